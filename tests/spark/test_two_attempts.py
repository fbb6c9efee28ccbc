"""A speculative copy: two attempts at one partition at the same time, each in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from fdbqueue import Queue
from fdbqueue.spark import source
from fdbqueue.spark.attempt import PartitionReport
from fdbqueue.spark.source import FdbQueueDataSource, FdbQueueWriter
from tests.helpers.processes import Processes, kill_9

VALUES = [b"%d" % number for number in range(3_000)]
SCHEMA = StructType().add("value", BinaryType())

pytestmark = pytest.mark.engines("file", "cluster")


def attempt(writer: FdbQueueWriter, seed: int | None, start: Any, done: Any) -> None:
    """Write the partition, in the order that `seed` gives, as a worker of Spark does."""
    source._partition = lambda: 0
    values = VALUES if seed is None else random.Random(seed).sample(VALUES, k=len(VALUES))

    def batches() -> Iterator[Any]:
        for first in range(0, len(values), 200):
            yield pa.record_batch({"value": values[first : first + 200]})

    start.wait()
    done.put(writer.write(batches()))


@pytest.fixture
def writer(url: str, queue_name: str) -> FdbQueueWriter:
    options = {"url": url, "queue": queue_name, "jobId": "job", "partitions": "1", "batchRows": "100"}
    return FdbQueueDataSource(options).writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize("seeds", [(None, None), (None, 1), (1, 2)], ids=["same order", "one mixed", "both mixed"])
def test_two_copies_of_a_task_put_each_row_in_once(
    db: Any, queue_name: str, writer: FdbQueueWriter, processes: Processes, seeds: tuple[int | None, int | None]
) -> None:
    start, done = processes.event(), processes.queue()
    for seed in seeds:
        processes.start(attempt, writer, seed, start, done)
    start.set()
    first, second = done.get(timeout=60), done.get(timeout=60)
    queue = Queue(queue_name)
    assert sorted(item.value for item in queue.browse(db)) == sorted(VALUES)
    reports: list[PartitionReport] = [first.report, second.report]
    assert [report.rows for report in reports] == [3_000, 3_000]
    writer.commit([first])
    assert queue.check(db).ok
    queue.clear(db)


def test_a_copy_goes_on_when_the_other_is_killed(
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
    writer.commit([done.get(timeout=60)])
    assert sorted(item.value for item in queue.browse(db)) == sorted(VALUES)
    queue.clear(db)
