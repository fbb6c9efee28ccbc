"""The streaming sink with staging=repeated, without Spark: tasks write at once, and repeated batches leave rows out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.errors import JobError
from fdbqueue.spark import sink_batches
from fdbqueue.spark.appenders import Appender
from fdbqueue.spark.attempts import COMMITS_IN_FLIGHT, JobAttempt, PartitionReport
from fdbqueue.spark.options import SINK, parse
from fdbqueue.spark.sink_batches import (
    SinkBatch,
    SinkKeys,
    batch_log,
    begin_batch,
    commit_at_once,
    commit_batch,
    stage,
)
from fdbqueue.spark.waiting_rows import Multiset
from fdbqueue.stored.layout import Layout
from tests.helpers.faults import FaultyDatabase
from tests.spark.sessions import source
from tests.spark.simulated import rows
from tests.spark.simulated_stream import Killed, Killer, dying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES = 60
LONG = range(HISTORIES, 1_500)


@dataclass
class Message:
    """What a task tells the commit."""

    report: PartitionReport
    at_once: bool


@dataclass
class Run:
    """One run of a query."""

    layout: Layout
    name: str
    query: str = "q"
    at_once: bool = True
    in_flight: int = COMMITS_IN_FLIGHT

    @property
    def keys(self) -> SinkKeys:
        return SinkKeys(self.layout, "s")

    def batch(self, number: int) -> SinkBatch:
        return SinkBatch(self.keys, self.query, number)

    def attempt(self, db: Any, batch: int, partition: int = 0) -> JobAttempt | None:
        """Begin an attempt that writes at once; None: it has to store its rows aside."""
        record = begin_batch(db, self.batch(batch), self.name if self.at_once else "")
        if record is None:
            return None
        log = batch_log(db, self.batch(batch), partition, record)
        appender = Appender(self.layout)
        return JobAttempt(db, log, appender, partition=partition, batch_rows=3, in_flight=self.in_flight)

    def task(self, db: Any, batch: int, partition: int, values: Sequence[bytes]) -> Message:
        """Do what a task does with `values` as its input."""
        attempt = self.attempt(db, batch, partition)
        if attempt is not None:
            for start in range(0, len(values), 4):
                attempt.add(rows(values[start : start + 4]))
            return Message(attempt.finish(), at_once=True)
        staging = stage(db, self.batch(batch), partition, part_rows=3)
        staging.add(rows(values))
        return Message(staging.finish(), at_once=False)

    def commit(self, db: Any, batch: int, messages: Sequence[Message]) -> None:
        """Do what Spark's commit does."""
        written = [message.report for message in messages if message.at_once]
        if written and commit_at_once(db, self.batch(batch), written, self.name):
            return
        commit_batch(db, self.batch(batch), Appender(self.layout), [message.report for message in messages])

    def write(self, db: Any, batch: int, parts: Sequence[Sequence[bytes]]) -> None:
        """Write a batch."""
        self.commit(db, batch, [self.task(db, batch, number, part) for number, part in enumerate(parts)])


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


def contents(db: Any, queue: Queue[bytes]) -> list[bytes]:
    return sorted(item.value for item in queue.browse(db))


def only_the_record_is_left(db: Any, queue: Queue[bytes]) -> bool:
    return len(list(db[queue.layout.sinks.range()])) == 1


def cut(values: Sequence[bytes], partitions: int) -> list[Sequence[bytes]]:
    return [values[number::partitions] for number in range(partitions)]


VALUES = [b"%02d" % number for number in range(12)]


def test_the_first_run_of_a_batch_writes_its_rows_at_once(db: Any, queue: Queue[bytes]) -> None:
    run = Run(queue.layout, "r")
    messages = [run.task(db, 0, number, part) for number, part in enumerate(cut(VALUES, 2))]
    assert contents(db, queue) == VALUES
    run.commit(db, 0, messages)
    run.write(db, 0, cut(VALUES, 3))
    run.write(db, 1, [])
    run.write(db, 2, cut([b"x", b"x"], 1))
    assert contents(db, queue) == [*VALUES, b"x", b"x"]
    assert only_the_record_is_left(db, queue)
    assert queue.check(db).ok


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_a_repeated_batch_leaves_out_what_is_in_whatever_its_partitions(
    db: Any, queue: Queue[bytes], partitions: int
) -> None:
    for failing in range(9):
        queue.clear(db)
        with dying():
            first = FaultyDatabase.failing_at(db, {failing}, ("after", Killed()))
            Run(queue.layout, "first").write(first, 0, cut(VALUES, 2))
        Run(queue.layout, "second").write(db, 0, cut(VALUES[::-1], partitions))
        assert contents(db, queue) == VALUES, f"killed after commit {failing}"
        assert only_the_record_is_left(db, queue)


def test_a_task_that_is_tried_again_in_its_run_writes_the_rest(db: Any, queue: Queue[bytes]) -> None:
    run = Run(queue.layout, "r", in_flight=1)
    with dying():
        run.task(FaultyDatabase.failing_at(db, {3}, ("after", Killed())), 0, 0, VALUES)
    assert 0 < len(contents(db, queue)) < len(VALUES)
    run.commit(db, 0, [run.task(db, 0, 0, VALUES[::-1])])
    assert contents(db, queue) == VALUES


def test_a_stopped_run_that_goes_on_writes_nothing_after_another_has_decided(db: Any, queue: Queue[bytes]) -> None:
    first, second = Run(queue.layout, "first"), Run(queue.layout, "second")
    attempt = first.attempt(db, 0)
    assert attempt is not None
    attempt.add(rows(VALUES[:6]))
    messages = [second.task(db, 0, 0, VALUES)]
    attempt.add(rows(VALUES[6:9]))  # the second run has not decided yet
    with dying():
        second.commit(FaultyDatabase.failing_at(db, {1}, ("after", Killed())), 0, messages)
    attempt.add(rows(VALUES[9:]))
    report = attempt.finish()
    assert report.stopped
    first.commit(db, 0, [Message(report, at_once=True)])  # it ends what the second one decided
    assert contents(db, queue) == VALUES
    assert only_the_record_is_left(db, queue)


def test_rows_that_differ_are_refused_before_more_are_written(db: Any, queue: Queue[bytes]) -> None:
    with dying():
        Run(queue.layout, "first").write(FaultyDatabase.failing_at(db, {3}, ("after", Killed())), 0, [VALUES])
    assert contents(db, queue)
    with pytest.raises(JobError, match="differ between attempts"):
        Run(queue.layout, "first").task(db, 0, 0, [b"other"])
    for run in "second", "third":
        with pytest.raises(StreamError, match=r"not among its rows now.*staging=always"):
            Run(queue.layout, run).write(db, 0, [[b"other"]])
        assert {*contents(db, queue)} <= {*VALUES}
        assert len(contents(db, queue)) <= len(VALUES)


def test_older_checkpoints_other_queries_and_a_cleared_queue_are_refused(db: Any, queue: Queue[bytes]) -> None:
    run = Run(queue.layout, "r")
    for batch in range(3):
        run.write(db, batch, [[b"%d" % batch]])
    with pytest.raises(StreamError, match="older copy"):
        run.write(db, 1, [[b"x"]])
    with pytest.raises(StreamError, match="another checkpoint"):
        Run(queue.layout, "r", query="other").write(db, 0, [[b"x"]])
    messages = [run.task(db, 3, 0, VALUES)]
    queue.clear(db)
    with pytest.raises(StreamError, match="the queue was cleared"):
        run.commit(db, 3, messages)


def test_the_option_may_change_while_a_batch_is_open(db: Any, queue: Queue[bytes]) -> None:
    with dying():
        Run(queue.layout, "first").write(FaultyDatabase.failing_at(db, {3}, ("after", Killed())), 0, [VALUES])
    Run(queue.layout, "second", at_once=False).write(db, 0, cut(VALUES, 3))
    assert contents(db, queue) == VALUES
    assert parse(SINK, {"url": "fdb:", "queue": "q", "staging": "Repeated"}).at_once
    with pytest.raises(ValueError, match="staging is one of always, repeated"):
        parse(SINK, {"url": "fdb:", "queue": "q", "staging": "never"})


def history(db: Any, queue: Queue[bytes], seed: int) -> None:
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.02, 0.1, 0.25)))
    chance, number, expected = killer.chance, 0, list[bytes]()
    stalled: list[tuple[Run, int, JobAttempt, list[bytes]]] = []
    for batch in range(draw.randint(1, 3)):
        values = [b"%d.%d" % (batch, draw.randint(0, 9)) for _ in range(draw.randint(0, 14))]
        for most in range(30):
            killer.chance = 0.0 if most == 29 else chance
            number += 1
            run = Run(queue.layout, f"r{number}", at_once=draw.random() < 0.9)
            parts = cut(draw.sample(values, len(values)), draw.randint(1, 4))
            if draw.random() < 0.3 and (attempt := run.attempt(db, batch)) is not None:
                attempt.add(rows(parts[0][:5]))  # this driver is stopped here, and goes on later
                stalled.append((run, batch, attempt, list(parts[0][5:])))
                continue
            with dying():
                messages = []
                for partition, part in enumerate(parts):
                    for _ in range(3):
                        with dying():
                            messages.append(run.task(killer.database(db), batch, partition, part))
                            break
                    else:
                        raise Killed
                for late, of, attempt, rest in stalled:
                    if draw.random() < 0.5:
                        go_on(db, late, of, attempt, rest)
                run.commit(killer.database(db), batch, messages)
                killer.at("commit log")
                break
        expected += values
    assert contents(db, queue) == sorted(expected), f"seed {seed}"
    assert only_the_record_is_left(db, queue), f"seed {seed}"
    assert queue.check(db).ok


def go_on(db: Any, run: Run, batch: int, attempt: JobAttempt, rest: list[bytes]) -> None:
    """Let a stopped driver's task go on. Its other tasks never ran, so it does not commit."""
    attempt.add(rows(rest))
    rest.clear()
    attempt.finish()


def histories(db: Any, space: Subspace, seeds: range) -> None:
    for seed in seeds:
        history(db, Queue(space[seed]), seed)


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_random_histories_write_each_row_once(db: Any, space: Subspace) -> None:
    histories(db, space, range(HISTORIES))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.engines("memory")
def test_many_histories_do_so_too(db: Any, space: Subspace) -> None:
    histories(db, space, LONG)


@pytest.mark.engines("file", "cluster")
def test_random_histories_do_so_on_disk_and_on_a_cluster(db: Any, space: Subspace) -> None:
    histories(db, space, range(8))


@pytest.mark.engines("memory")
@pytest.mark.parametrize("mutant", ["a repeated batch is written at once", "a commit leaves nothing out"])
def test_mutants_of_the_protocol_are_noticed(
    db: Any, space: Subspace, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant == "a commit leaves nothing out":
        monkeypatch.setattr(sink_batches, "written", lambda db, keys, record: Multiset())
    else:

        def begin_batch(db: Any, batch: SinkBatch, run_id: str) -> bytes | None:
            return sink_batches.begin_batch(db, batch, "the same")

        monkeypatch.setitem(Run.attempt.__globals__, "begin_batch", begin_batch)
    with pytest.raises((AssertionError, StreamError, JobError)):
        histories(db, space, range(HISTORIES))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.engines("file", "cluster")
def test_spark_writes_each_batch_once_with_staging_of_repeated_ones(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    values = [f"{number:03d}" for number in range(60)]
    Queue(queue_name, codec="str").enqueue_many(db, values)
    df = source(spark, url, queue_name, maxItemsPerTrigger="25", minPartitions="3").select("value")
    out = Queue(queue_name + " out", codec="str")
    for _ in range(2):
        writer = df.writeStream.format("fdbqueue").trigger(availableNow=True).option("staging", "repeated")
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        query = writer.options(url=url, queue=queue_name + " out", codec="str", streamName="t").start()
        query.awaitTermination()
    assert sorted(item.value for item in out.browse(db)) == values
    assert out.check(db).ok
    keys = SinkKeys(out.layout, "t")
    record = keys.stored(db[keys.record])
    assert record is not None
    assert record.done >= 2
