"""A driver that is killed, and with it Spark, in the middle of a job that another driver submits again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue
from fdbqueue.spark import job_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.engines("file")]

WAIT_SECONDS = 600.0


def test_another_driver_adds_what_a_killed_one_has_not_written(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark.killed_driver", url, queue_name, str(tmp_path)]
    with (tmp_path / "output").open("wb") as output:
        driver = subprocess.Popen(command, cwd=repository, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_until_it_stands_still(db, queue_name, driver, tmp_path / "output")
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    before = job_report(db, queue_name, "job")
    assert before is not None
    assert not before.committed
    numbers.write.format("fdbqueue").mode("append").options(
        url=url, queue=queue_name, jobId="job", partitions="4", batchRows="70"
    ).save()
    assert sorted(item.value for item in Queue(queue_name).browse(db)) == expected
    after = job_report(db, queue_name, "job")
    assert after is not None
    assert (after.committed, after.rows, after.attempts) == (True, len(expected), 8)
    assert after.skipped >= before.rows


def _wait_until_it_stands_still(db: Any, queue_name: str, driver: subprocess.Popen[bytes], output: Path) -> None:
    """Wait until the two partitions that go through are in, and of each of the other two 200 rows or more."""
    deadline = time.monotonic() + WAIT_SECONDS
    while Queue(queue_name).stats(db).available < 1400:
        assert driver.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
