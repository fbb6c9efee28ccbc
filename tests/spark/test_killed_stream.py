"""SIGKILL of Spark at each point of a trigger, from a queue into a queue: every item arrives once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from tests.spark.killed_stream import AT_ONCE_POINTS, EXECUTOR, EXECUTOR_POINTS, ITEMS, SINK_POINTS, SOURCE_POINTS

pytestmark = [
    *(pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    pytest.mark.engines("file", "cluster"),
]


def run(repository: Path, folder: Path, *arguments: str) -> int:
    """Run the query in a process group of its own, and return how it ended."""
    command = [sys.executable, "-m", "tests.spark.killed_stream", *arguments]
    with (folder / "output").open("ab") as output:
        done = subprocess.run(
            command,
            cwd=repository,
            stdout=output,
            stderr=output,
            timeout=420,
            start_new_session=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(repository)},
        )
    return done.returncode


@pytest.mark.nightly
@pytest.mark.parametrize("point", [*SOURCE_POINTS, *SINK_POINTS, *AT_ONCE_POINTS, *EXECUTOR_POINTS])
def test_a_kill_loses_and_doubles_nothing(
    db: Any,
    url: str,
    queue_name: str,
    tmp_path: Path,
    repository: Path,
    spark_is_here: None,
    point: str,
) -> None:
    queue, out = Queue(queue_name, codec="str"), Queue(queue_name + " out", codec="str")
    values = [f"{number:02d}" for number in range(ITEMS)]
    queue.enqueue_many(db, values)
    ended = run(repository, tmp_path, url, queue_name, str(tmp_path), point, "2")
    assert (tmp_path / "killed").exists(), (tmp_path / "output").read_text()[-3000:]
    survives = point == "a worker reads" or point.startswith(EXECUTOR)
    assert (ended == 0) == survives, (tmp_path / "output").read_text()[-3000:]
    again = run(repository, tmp_path, url, queue_name, str(tmp_path), point, "3")
    assert again == 0, (tmp_path / "output").read_text()[-3000:]
    assert sorted(item.value for item in out.browse(db)) == values
    assert out.check(db).ok
    assert queue.check(db).ok
    stats = queue.stats(db)
    assert (stats.available, stats.claimed, stats.dequeued) == (0, 0, ITEMS)
