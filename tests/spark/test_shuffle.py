"""After a shuffle a retried task meets its rows in another order, which only executors of their own show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.spark import job_report

ROWS = sorted(b"row %d" % number for number in range(40_000))
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.engines("file")]


def test_each_row_is_in_once_when_shuffled_tasks_are_retried(
    spark_is_here: None, db: Any, url: str, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark.shuffled", url, queue_name, str(tmp_path)]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stderr

    # Without this the test would pass by luck, and show nothing.
    orders = [[(tmp_path / f"{partition}-{attempt}").read_bytes() for attempt in (0, 1)] for partition in range(4)]
    assert any(not again.startswith(first[: len(first) // 2]) for first, again in orders), "every order was the same"

    queue = Queue(queue_name)
    assert sorted(item.value for item in queue.browse(db)) == ROWS
    assert queue.check(db).ok
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert report.attempts == 8
    assert report.skipped >= 4 * 5 * 500


@pytest.mark.timeout(600)
def test_each_row_is_in_once_when_an_executor_is_killed(
    spark_is_here: None, db: Any, url: str, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark.shuffled", url, queue_name, str(tmp_path), "kill executor"]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=420, check=False)
    assert ran.returncode == 0, ran.stderr

    queue = Queue(queue_name)
    assert sorted(item.value for item in queue.browse(db)) == ROWS
    assert queue.check(db).ok
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert report.attempts > 4
    assert report.skipped >= 5 * 500
