"""Two at the same time, each in a process of its own: a speculative copy of a task, and another driver's submission."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from fdbqueue import Queue
from fdbqueue.errors import JobError
from fdbqueue.spark import job_report, source
from fdbqueue.spark.attempts import PartitionReport
from fdbqueue.spark.source import FdbQueueDataSource, FdbQueueWriter
from tests.helpers.processes import Processes, kill_9

VALUES = [b"%d" % number for number in range(3_000)]
SCHEMA = StructType().add("value", BinaryType())

pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]


def attempt(writer: FdbQueueWriter, seed: int | None, start: Any, done: Any) -> None:
    """Write the partition, in the order that `seed` gives, as a worker of Spark does."""
    source.partition_here = lambda: 0
    values = VALUES if seed is None else random.Random(seed).sample(VALUES, k=len(VALUES))
    start.wait()
    done.put(writer.write(batches(values)))


def batches(values: list[bytes]) -> Iterator[Any]:
    for first in range(0, len(values), 200):
        yield pa.record_batch({"value": values[first : first + 200]})


def submit(options: dict[str, str], values: list[bytes], start: Any, done: Any) -> None:
    """Submit the job as a driver and its one task do."""
    source.partition_here = lambda: 0
    start.wait()
    try:
        writer = FdbQueueDataSource(options).writer(SCHEMA, overwrite=False)
        writer.commit([writer.write(batches(values))])
    except JobError as error:
        done.put((values, str(error)))
    else:
        done.put((values, None))


@pytest.fixture
def options(url: str, queue_name: str) -> dict[str, str]:
    return {"url": url, "queue": queue_name, "jobId": "job", "partitions": "1", "batchRows": "100"}


@pytest.fixture
def writer(options: dict[str, str]) -> FdbQueueWriter:
    return FdbQueueDataSource(options).writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize("seeds", [(None, None), (None, 1), (1, 2)], ids=["same order", "one mixed", "both mixed"])
def test_two_copies_of_a_task_put_each_row_in_once(
    db: Any, queue_name: str, writer: FdbQueueWriter, processes: Processes, seeds: tuple[int | None, int | None]
) -> None:
    start, done = processes.event(), processes.queue()
    for seed in seeds:
        processes.start(attempt, writer, seed, start, done)
    start.set()
    first, second = done.get(timeout=600), done.get(timeout=60)
    queue = Queue(queue_name)
    assert sorted(item.value for item in queue.browse(db)) == sorted(VALUES)
    reports: list[PartitionReport] = [first.report, second.report]
    assert [report.rows for report in reports] == [3_000, 3_000]
    writer.commit([first])
    assert queue.check(db).ok
    queue.clear(db)


def test_a_copy_continues_when_the_other_is_killed(
    db: Any, queue_name: str, writer: FdbQueueWriter, processes: Processes
) -> None:
    start, done = processes.event(), processes.queue()
    doomed = processes.start(attempt, writer, 1, start, processes.queue())
    processes.start(attempt, writer, 2, start, done)
    queue = Queue(queue_name)
    start.set()
    while queue.is_empty(db):
        pass
    kill_9(doomed)
    writer.commit([done.get(timeout=600)])
    assert sorted(item.value for item in queue.browse(db)) == sorted(VALUES)
    queue.clear(db)


@pytest.mark.parametrize("others", [VALUES, [b"other %d" % number for number in range(3_000)]], ids=["same", "other"])
def test_two_drivers_that_submit_a_job_at_once_put_each_row_in_once_or_one_is_refused(
    db: Any, queue_name: str, options: dict[str, str], processes: Processes, others: list[bytes]
) -> None:
    start, done = processes.event(), processes.queue()
    for values in VALUES, others:
        processes.start(submit, options, values, start, done)
    start.set()
    ended = [done.get(timeout=600), done.get(timeout=60)]
    won = [values for values, error in ended if error is None]
    assert won == [VALUES, VALUES] if others == VALUES else len(won) <= 1
    queue = Queue(queue_name)
    if won:
        assert sorted(item.value for item in queue.browse(db)) == sorted(won[0])
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert report.committed == bool(won)
    assert queue.check(db).ok
    queue.clear(db)
