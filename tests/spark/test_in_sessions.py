"""Rows in sessions: what the workers of sessions then get, once and in order."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fdbqueue import CodecError, Queue, SessionClosed
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions, SmartQueue
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.layers.smart import Messages, MessageType
from fdbqueue.spark import enqueue_dataframe
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.attempts import JobAttempt
from fdbqueue.spark.columns import RowColumns
from fdbqueue.spark.options import LOAD, Options, parse
from fdbqueue.spark.partition_log import job_log
from fdbqueue.spark.sink_batches import SinkBatch, SinkKeys, commit_batch, stage
from fdbqueue.spark.waiting_rows import SparkRows, digests_of, pack, unpack
from fdbqueue.stored.items import envelope
from tests.helpers.faults import FaultyDatabase
from tests.spark.sessions import source
from tests.spark.simulated import Job
from tests.spark.simulated_stream import Killer, dying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = "tests.spark.insession:"


def options(space: Subspace, **given: str) -> Options:
    plain = {"url": "file:/x", "queueKey": space.key().hex(), "jobId": "j", "codec": "str", "sessionColumn": "s"}
    return parse(LOAD, plain | given)


def rows_of(chosen: Options, **columns: list[Any]) -> SparkRows:
    return RowColumns(chosen, ["value"]).rows(pa.record_batch(columns))[0]


def enqueue(db: Any, chosen: Options, *, at_once: int | None = None, **columns: list[Any]) -> None:
    job = Job(db, chosen.layout().space, chosen.job_id or "", codec=chosen.codec)
    log = job_log(db, job.keys, 0, job.record)
    attempt = JobAttempt(
        db,
        log,
        writing_of(chosen).appender,
        batch_rows=at_once or writing_of(chosen).rows,
        in_flight=writing_of(chosen).in_flight,
    )
    attempt.add(rows_of(chosen, **columns))
    attempt.finish()


def stored(db: Any, space: Subspace) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in db[space.range()]]


def drained(db: Any, sessions: Sessions[Any]) -> dict[Any, list[Any]]:
    """Take all ready items; return the values of each session in their order."""
    done: dict[Any, list[Any]] = {}
    while (lease := sessions.lease(db)) is not None:
        done.setdefault(lease.session, []).append(lease.value)
        sessions.ack(db, lease)
    return done


def test_rows_are_in_their_sessions_in_order_and_by_level(db: Any, space: Subspace) -> None:
    names = ["ann" if number % 3 else "bob" for number in range(30)]
    levels = [None if number % 5 == 0 else number % 2 for number in range(30)]
    for job in "j", "k":
        columns: dict[str, list[Any]] = {"value": [f"{job}{n:02d}" for n in range(30)], "s": names, "p": levels}
        enqueue(db, options(space, priorityColumn="p", jobId=job), at_once=4, **columns)
    sessions = Sessions(Queue(space, codec="str"))
    assert sessions.check(db).ok
    expected = {
        name: [
            f"{job}{number:02d}"
            for level in (0, 1)
            for job in "jk"
            for number in range(30)
            if names[number] == name and (1 if levels[number] is None else levels[number]) == level
        ]
        for name in ("ann", "bob")
    }
    assert drained(db, sessions) == expected
    assert sessions.check(db).ok


def test_names_may_be_binary_and_values_large(db: Any, space: Subspace) -> None:
    enqueue(db, options(space), value=["small", "large" * 50_000], s=[b"\x00\xff", b"\x00\xff"])
    sessions = Sessions(Queue(space, codec="str"))
    assert drained(db, sessions) == {b"\x00\xff": ["small", "large" * 50_000]}


def test_rows_with_delays_and_lives_wait_and_expire_in_their_sessions(db: Any, space: Subspace) -> None:
    chosen = options(space, delayColumn="d", ttlColumn="t")
    values = ["now", "later", "over", "then", "later still"]
    enqueue(db, chosen, value=values, s=["a"] * 5, d=[0, 1000, None, None, 2000.0], t=[None, None, 0.0, 5000.0, None])
    sessions = Sessions(Queue(space, codec="str"))
    assert sessions.check(db).ok
    assert drained(db, sessions) == {"a": ["now", "then"]}
    assert [item.value for item in sessions.scheduled(db, "a")] == ["later", "later still"]
    assert sessions.check(db).ok


def test_other_rules_for_sessions_come_from_a_function(db: Any, space: Subspace) -> None:
    chosen = options(space, sessions=FUNCTIONS + "wide", priorityColumn="p")
    enqueue(db, chosen, value=["third", "first", "second"], s=["a", "a", "a"], p=[None, 0, 1])
    sessions = Sessions(Queue(space, codec="str"), levels=3, concurrency=2)
    first, second = sessions.lease(db), sessions.lease(db)
    assert first is not None
    assert second is not None
    assert (first.value, second.value) == ("first", "second")
    assert sessions.lease(db) is None
    with pytest.raises(CodecError, match="a level of these sessions is 0 to 2, not 3"):
        rows_of(chosen, value=["x"], s=["a"], p=[3])


def test_a_row_is_another_if_its_session_or_its_level_differs(space: Subspace) -> None:
    chosen = options(space, priorityColumn="p")
    found = [rows_of(chosen, value=["x"], s=[s], p=[p]).digests[0] for s, p in (("a", 0), ("b", 0), ("a", 1), ("a", 0))]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_rows_keep_their_sessions_when_they_are_cut_and_stored(space: Subspace) -> None:
    rows = rows_of(options(space), value=["x", "y", "z"], s=["a", "b", "c"])
    assert unpack(pack(rows)) == rows
    assert [name for name, _ in rows.pick([2, 0]).sessions or ()] == [pack_name("c"), pack_name("a")]
    assert [name for name, _ in rows.part(1, 2).sessions or ()] == [pack_name("b")]
    assert min(rows.sizes()) > 8


def test_values_that_name_no_session_and_no_level_are_refused(space: Subspace) -> None:
    chosen = options(space, priorityColumn="p")
    for s, p, told in (
        (None, 0, "'s' has a null"),
        ("", 0, "'s': A session needs a name"),
        ("x" * 2_000, 0, "'s': The name of the session.*may have 1,000"),
        ("a", 2, "'p': a level of these sessions is 0 to 1, not 2"),
        ("a", -1, "'p'"),
    ):
        with pytest.raises(CodecError, match=told):
            rows_of(chosen, value=["v"], s=[s], p=[p])


def test_options_of_sessions_that_do_not_fit_are_refused(space: Subspace) -> None:
    for wrong, told in (
        ({"sessionColumn": "", "levels": "2"}, "sessionColumn is empty"),
        ({"sessions": "x:y", "levels": "3"}, "levels can't be combined with sessions"),
        ({"smart": "tests.spark.shop:prices", "codec": "json"}, "smart can't be combined with .*sessionColumn"),
    ):
        with pytest.raises(ValueError, match=told):
            options(space, **wrong)
    with pytest.raises(ValueError, match="sessions needs the option sessionColumn"):
        parse(LOAD, {"url": "fdb:", "queue": "q", "jobId": "j", "sessions": "x:y"})
    for name, told in (
        ("nowhere:f", "where executors can import it"),
        (FUNCTIONS + "nothing", "returned None"),
        (FUNCTIONS + "elsewhere", "returns the Sessions of the subspace that it is given"),
    ):
        with pytest.raises((ValueError, TypeError), match=told):
            writing_of(options(space, sessions=name))


def test_what_is_no_name_of_a_column_orders_no_session(space: Subspace) -> None:
    from pyspark.sql import types as t

    from fdbqueue.spark.dataframe import order_of

    df: Any = SimpleNamespace(
        schema=t.StructType([t.StructField("s", t.StringType()), t.StructField("n", t.LongType())])
    )
    assert [order_of(df, options(space), given) for given in (None, "n", ["n", "s"], ())] == [[], ["n"], ["n", "s"], []]
    for wrong, kind, told in (
        (7, TypeError, "session_order is a column's name or a list of names, not 7"),
        ([7], TypeError, "session_order names columns, each by a str, not 7"),
        ({"n"}, TypeError, "session_order is a column's name"),
        ("x", ValueError, "session_order: 'x' is no column of the DataFrame, which has s, n"),
    ):
        given: Any = wrong
        with pytest.raises(kind, match=told):
            order_of(df, options(space), given)


def test_a_queue_with_checks_or_an_order_has_no_sessions_and_is_not_touched(db: Any, space: Subspace) -> None:
    SmartQueue(Queue(space["smart"], codec=Messages(MessageType("m")))).enqueue(db, {"type": "m"})
    PriorityQueue(Queue(space["urgent"], codec="str")).enqueue(db, "x", priority=0)
    for name, told in ("smart", "is smart"), ("urgent", "in the order"):
        before = stored(db, space[name])
        tr = db.create_transaction()
        chosen = options(space[name])
        with pytest.raises(Exception, match=told):
            writing_of(chosen).appender.prepare(tr, rows_of(chosen, value=["v"], s=["a"]))()
        tr.commit().wait()  # it holds nothing
        assert stored(db, space[name]) == before


def test_a_session_that_is_being_removed_takes_no_rows_until_it_is_gone(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue(db, "before", session="a")
    sessions.remove(db, "a")
    for _ in range(2):
        with pytest.raises(SessionClosed, match="is being removed"):
            enqueue(db, options(space), value=["other", "after"], s=["b", "a"])
    assert sessions.info(db, "b") is None
    assert drained(db, sessions) == {"a": ["before"]}
    enqueue(db, options(space), value=["other", "after"], s=["b", "a"])
    assert drained(db, sessions) == {"a": ["after"], "b": ["other"]}


def session_rows(values: list[bytes]) -> SparkRows:
    """Return values as rows; each is in the session that its last byte names."""
    places = [(pack_name(value[-1:]), value[0] % 2) for value in values]
    return SparkRows([envelope(value) for value in values], digests_of(values), sessions=places)


def batch_history(db: Any, space: Subspace, seed: int) -> None:
    """Load rows by attempts that are killed; each goes on with the rows in the same order."""
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.02, 0.1, 0.25)))
    chosen = options(space)
    values = [b"%d %02d %d" % (draw.randint(0, 1), number, draw.randint(0, 3)) for number in range(draw.randint(1, 25))]
    job = Job(db, space)
    reports = []
    for chance in [killer.chance] * 15 + [0.0]:
        killer.chance = chance
        with dying():
            way = killer.database(db)
            log = job_log(way, job.keys, 0, job.record)
            attempt = replace(writing_of(chosen), rows=3).attempt(way, log, 0)
            for start in range(0, len(values), 4):
                attempt.add(session_rows(values[start : start + 4]))
            reports = [attempt.finish()]
            break
    job.commit(*reports)
    all_there(db, space, values, seed)


def stream_history(db: Any, space: Subspace, seed: int) -> None:
    """Write batches by a streaming sink that is killed, with other partitions at each replay."""
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.02, 0.1, 0.25)))
    chosen = options(space)
    keys = SinkKeys(chosen.layout(), "s")
    expected = []
    for batch in range(draw.randint(1, 3)):
        values = [b"%d %d.%02d %d" % (number % 2, batch, number, draw.randint(0, 3)) for number in range(12)]
        for chance in [killer.chance] * 20 + [0.0]:
            killer.chance = chance
            with dying():
                size, staged = draw.randint(3, 12), []
                for partition, start in enumerate(range(0, len(values), size)):
                    staging = stage(killer.database(db), SinkBatch(keys, "q", batch), partition, part_rows=5)
                    staging.add(session_rows(values[start : start + size]))
                    staged.append(staging.finish())
                appender = writing_of(chosen).appender
                commit_batch(killer.database(db), SinkBatch(keys, "q", batch), appender, staged)
                break
        expected += values
    all_there(db, space, expected, seed)


def all_there(db: Any, space: Subspace, values: list[bytes], seed: int) -> None:
    sessions = Sessions(Queue(space))
    report = sessions.check(db)
    assert report.ok, f"seed {seed}: {report.problems}"
    wanted: dict[bytes, list[bytes]] = {}
    for value in sorted(values, key=lambda value: value[0] % 2):
        wanted.setdefault(value[-1:], []).append(value)
    assert drained(db, sessions) == wanted, f"seed {seed}"


@pytest.mark.parametrize("history", [batch_history, stream_history])
def test_rows_are_in_once_and_in_order_whatever_dies(db: Any, space: Subspace, history: Any) -> None:
    for seed in range(5):
        history(db, space[seed], seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.engines("memory")
@pytest.mark.parametrize("history", [batch_history, stream_history])
def test_they_are_in_many_histories_too(db: Any, space: Subspace, history: Any) -> None:
    for seed in range(5, 500):
        history(db, space[seed], seed)


def test_a_commit_that_fails_or_is_in_doubt_changes_no_order(db: Any, space: Subspace) -> None:
    job, chosen, values = Job(db, space), options(space), [b"1 %02d a" % number for number in range(9)]
    for number, code in enumerate((1021, 1020)):
        way = FaultyDatabase.failing_at(db, {2}, ("after" if code == 1021 else "before", code))
        log = job_log(way, job.keys, number, job.record)
        attempt = replace(writing_of(chosen), rows=3).attempt(way, log, 0)
        attempt.add(session_rows(values))
        attempt.finish()
    assert drained(db, Sessions(Queue(space))) == {b"a": values + values}


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.engines("file", "cluster")
def test_a_dataframe_is_in_sessions_once_and_in_its_order(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    df = spark.range(60).selectExpr("string(id) AS value", "concat('s', id % 4) AS s", "-id AS n").repartition(5)
    given: dict[str, Any] = {"url": url, "queue": queue_name, "job_id": "j", "codec": "str", "partitions": 3}
    for _ in range(2):
        assert enqueue_dataframe(df, **given, session_column="s", session_order="n").rows == 60
    sessions = Sessions(Queue(queue_name, codec="str"))
    assert sessions.check(db).ok
    wanted = {f"s{rest}": [f"{number}" for number in reversed(range(60)) if number % 4 == rest] for rest in range(4)}
    assert drained(db, sessions) == wanted
    for wrong, told in (
        ({"session_order": "value"}, "session_order needs session_column"),
        ({"session_column": "s", "session_order": ["x"]}, "session_order: 'x' is no column"),
        ({"session_column": "s", "session_order": [1]}, "session_order names columns"),
        ({"session_column": "n"}, "which names sessions, must be a string or binary"),
        ({"session_column": 7}, "sessionColumn is a str, not 7"),
    ):
        with pytest.raises((ValueError, TypeError), match=told):
            enqueue_dataframe(df, **given | wrong)


@pytest.mark.spark
@pytest.mark.engines("file", "cluster")
def test_a_stream_s_rows_are_in_sessions_once(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    Queue(queue_name, codec="str").enqueue_many(db, [f"{number:02d}" for number in range(40)])
    df = source(spark, url, queue_name, maxItemsPerTrigger="15").selectExpr("value", "right(value, 1) AS s")
    writer = df.writeStream.format("fdbqueue").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("sessionColumn", "s")
    writer.options(url=url, queue=queue_name + " out", codec="str", streamName="t").start().awaitTermination()
    sessions = Sessions(Queue(queue_name + " out", codec="str"))
    assert sessions.check(db).ok
    assert drained(db, sessions) == {f"{last}": [f"{ten}{last}" for ten in range(4)] for last in range(10)}
