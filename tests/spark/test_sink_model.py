"""The streaming sink's protocol without Spark: replays with other partitions and rows, and kills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from fdbqueue import Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.spark.appenders import Appender
from fdbqueue.spark.attempts import PartitionReport
from fdbqueue.spark.sink_batches import SinkBatch, SinkKeys, commit_batch, stage
from fdbqueue.spark.waiting_rows import SparkRows
from fdbqueue.stored.items import envelope
from fdbqueue.stored.layout import Layout
from tests.helpers.faults import FaultyDatabase
from tests.spark.simulated import rows
from tests.spark.simulated_stream import Killed, Killer, dying

HISTORIES = 100
LONG = range(HISTORIES, 3_000)


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


def task(
    db: Any, layout: Layout, batch: int, partition: int, values: Sequence[bytes], *, query: str = "q", **how: Any
) -> PartitionReport:
    """Do what a task does with `values` as its input."""
    staging = stage(db, SinkBatch(SinkKeys(layout, "s"), query, batch, **how), partition, part_rows=3)
    try:
        for start in range(0, len(values), 2):
            staging.add(rows(values[start : start + 2]))
        return staging.finish()
    finally:
        staging.close()


def commit(
    db: Any, layout: Layout, batch: int, staged: Sequence[PartitionReport], *, query: str = "q", **how: Any
) -> None:
    """Do what Spark's commit does."""
    commit_batch(db, SinkBatch(SinkKeys(layout, "s"), query, batch, **how), Appender(layout), staged)


def write(db: Any, layout: Layout, batch: int, values: Sequence[bytes], partitions: int = 1, **how: Any) -> None:
    """Write a batch, cut into partitions."""
    size = -(-len(values) // partitions) or 1
    parts = [values[at * size : (at + 1) * size] for at in range(partitions)]
    staged = [task(db, layout, batch, number, part, **how) for number, part in enumerate(parts)]
    commit(db, layout, batch, staged, **how)


def contents(db: Any, queue: Queue[bytes]) -> list[bytes]:
    return [item.value for item in queue.browse(db)]


def nothing_is_left(db: Any, queue: Queue[bytes]) -> bool:
    span = queue.layout.sinks.range()
    return len(list(db[span])) == 1


def test_a_batch_is_in_the_queue_in_order_after_its_commit(db: Any, queue: Queue[bytes]) -> None:
    values = [b"%02d" % number for number in range(20)]
    staged = [task(db, queue.layout, 0, number, values[number * 10 : number * 10 + 10]) for number in (1, 0)]
    assert contents(db, queue) == []
    commit(db, queue.layout, 0, staged)
    assert contents(db, queue) == values
    assert nothing_is_left(db, queue)
    assert queue.check(db).ok


def test_a_commit_that_is_repeated_with_other_tasks_changes_nothing(db: Any, queue: Queue[bytes]) -> None:
    write(db, queue.layout, 0, [b"a", b"b"], 2)
    for partitions in 1, 2, 3:
        write(db, queue.layout, 0, [b"other", b"rows"], partitions)
    assert contents(db, queue) == [b"a", b"b"]
    assert nothing_is_left(db, queue)


def test_a_commit_that_was_killed_is_ended_by_the_next_with_the_rows_of_the_first(db: Any, queue: Queue[bytes]) -> None:
    values = [b"%02d" % number for number in range(12)]
    for failing in range(7):
        queue.clear(db)
        staged = [task(db, queue.layout, 0, 0, values)]
        with dying():
            commit(FaultyDatabase.failing_at(db, {failing}, ("after", Killed())), queue.layout, 0, staged)
        write(db, queue.layout, 0, [b"other", *values[::-1]], 3)
        assert contents(db, queue) in (values, [b"other", *values[::-1]])
        assert contents(db, queue) == values or failing > 5
        assert nothing_is_left(db, queue)


def test_both_attempts_of_a_task_store_rows_and_one_counts(db: Any, queue: Queue[bytes]) -> None:
    slow = task(db, queue.layout, 0, 0, [b"slow", b"er"])
    quick = task(db, queue.layout, 0, 0, [b"quick", b"er"])
    commit(db, queue.layout, 0, [quick])
    assert contents(db, queue) == [b"quick", b"er"]
    commit(db, queue.layout, 0, [slow])
    assert contents(db, queue) == [b"quick", b"er"]
    late = task(db, queue.layout, 0, 0, [b"late"])
    assert (late.aside, late.stopped, late.rows) == (None, True, 1)


def test_an_older_checkpoint_and_another_query_are_refused(db: Any, queue: Queue[bytes]) -> None:
    for batch in range(3):
        write(db, queue.layout, batch, [b"%d" % batch])
    with pytest.raises(StreamError, match="older copy"):
        write(db, queue.layout, 1, [b"x"])
    with pytest.raises(StreamError, match=r"another checkpoint.*onLostCheckpoint=continue"):
        write(db, queue.layout, 0, [b"x"], query="other")
    write(db, queue.layout, 0, [b"x"], query="other", lost="continue")
    with pytest.raises(StreamError, match="another checkpoint"):
        write(db, queue.layout, 3, [b"y"])
    assert contents(db, queue) == [b"0", b"1", b"2", b"x"]


def test_a_successor_ends_the_decided_batch_of_the_lost_checkpoint(db: Any, queue: Queue[bytes]) -> None:
    staged = [task(db, queue.layout, 0, 0, [b"%d" % number for number in range(9)])]
    with dying():
        commit(FaultyDatabase.failing_at(db, {2}, ("before", Killed())), queue.layout, 0, staged)
    assert len(contents(db, queue)) == 3
    write(db, queue.layout, 0, [b"new"], query="other", lost="continue")
    assert contents(db, queue) == [*(b"%d" % number for number in range(9)), b"new"]


def test_an_empty_batch_is_a_batch(db: Any, queue: Queue[bytes]) -> None:
    write(db, queue.layout, 0, [])
    write(db, queue.layout, 1, [b"a"])
    assert contents(db, queue) == [b"a"]


def test_large_rows_are_moved_whole(db: Any, queue: Queue[bytes]) -> None:
    large = bytes(3_000_000)
    staging = stage(db, SinkBatch(SinkKeys(queue.layout, "s"), "q", 0), 0)
    staging.add(SparkRows([envelope(large)], [b"d" * 16], None, [large]))
    commit(db, queue.layout, 0, [staging.finish()])
    assert contents(db, queue) == [large]
    assert queue.check(db).ok


def history(db: Any, queue: Queue[bytes], seed: int) -> None:
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.02, 0.1, 0.25)))
    expected: list[bytes] = []
    for batch in range(draw.randint(1, 4)):
        values = [b"%d.%d" % (batch, number) for number in range(draw.randint(0, 14))]
        for _ in range(30):
            with dying():
                write(killer.database(db), queue.layout, batch, values, draw.randint(1, 4))
                killer.at("commit log")
                break
        else:
            write(db, queue.layout, batch, values)
        expected += values
    assert contents(db, queue) == expected, f"seed {seed}"
    assert nothing_is_left(db, queue)
    assert queue.check(db).ok


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_random_histories_write_each_row_once_and_in_order(db: Any, space: Subspace) -> None:
    for seed in range(HISTORIES):
        history(db, Queue(space[seed]), seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.engines("memory")
def test_thousands_of_histories_do_so_too(db: Any, space: Subspace) -> None:
    for seed in LONG:
        history(db, Queue(space[seed]), seed)


@pytest.mark.engines("file", "cluster")
def test_random_histories_do_so_on_disk_and_on_a_cluster(db: Any, space: Subspace) -> None:
    for seed in range(20):
        history(db, Queue(space[seed]), seed)
