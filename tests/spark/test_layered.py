"""Rows with priorities, delays and times to live: what the layers that know them then see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from fdbqueue import CodecError, OrderError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.spark import enqueue_dataframe
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.attempts import JobAttempt
from fdbqueue.spark.columns import RowColumns
from fdbqueue.spark.options import LOAD, Options, parse
from fdbqueue.spark.partition_log import job_log
from tests.spark.simulated import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def options(space: Subspace, **given: str) -> Options:
    return parse(LOAD, {"url": "file:/x", "queueKey": space.key().hex(), "jobId": "j", "codec": "str"} | given)


def enqueue(db: Any, chosen: Options, batch: pa.RecordBatch, *, at_once: int | None = None) -> None:
    job = Job(db, chosen.layout().space, chosen.job_id or "", codec=chosen.codec)
    log = job_log(db, job.keys, 0, job.record)
    attempt = JobAttempt(db, log, writing_of(chosen).appender, batch_rows=at_once or writing_of(chosen).rows)
    attempt.add(*RowColumns(chosen, ["value"]).rows(batch))
    attempt.finish()


def test_rows_with_priorities_are_in_their_levels(db: Any, space: Subspace) -> None:
    values = [f"{number}" for number in range(30)]
    batch = pa.record_batch({"value": values, "p": [None if n % 7 == 0 else n % 3 for n in range(30)]})
    chosen = options(space, priorityColumn="p", levels="3")
    for _ in range(2):
        enqueue(db, chosen, batch, at_once=4)
    urgent = PriorityQueue(Queue(space, codec="str"), levels=3)
    order = sorted(range(30), key=lambda n: (2 if n % 7 == 0 else n % 3, n))
    assert [item.value for item in urgent.browse(db)] == [values[number] for number in order]
    assert urgent.stats(db).levels == tuple(
        sum((2 if n % 7 == 0 else n % 3) == rank for n in range(30)) for rank in range(3)
    )
    assert urgent.check(db).ok
    urgent.enqueue(db, "first", priority=0)
    with pytest.raises(OrderError):
        enqueue(db, options(space, priorityColumn="p", levels="4", jobId="k"), batch)


def test_rows_with_delays_and_lives_wait_and_expire(db: Any, space: Subspace) -> None:
    batch = pa.record_batch(
        {
            "value": ["now", "later", "soon over", "large" * 40_000],
            "d": [0, 1000, None, 2000],
            "t": [None, None, 0.0, 5000],
        }
    )
    enqueue(db, options(space, delayColumn="d", ttlColumn="t"), batch)
    leases = Leases(Queue(space, codec="str"))
    assert leases.check(db).ok
    stats = leases.stats(db)
    assert (stats.available, stats.delayed, stats.enqueued) == (2, 2, 4)
    leases.reclaim(db)
    assert [item.value for item in leases.browse(db, state="available")] == ["now"]
    assert [item.value[:5] for item in leases.browse(db, state="delayed")] == ["later", "large"]
    assert leases.stats(db).expired == 1
    assert leases.check(db).ok


def test_a_row_is_another_if_its_delay_differs(space: Subspace) -> None:
    chosen = options(space, delayColumn="d")
    columns = RowColumns(chosen, ["value"])
    one, other = (columns.rows(pa.record_batch({"value": ["x"], "d": [d]}))[0].digests for d in (1, 2))
    assert one != other
    assert columns.rows(pa.record_batch({"value": ["x"], "d": [1]}))[0].digests == one


def test_values_that_are_no_priority_and_no_duration_are_refused(space: Subspace) -> None:
    chosen = options(space, priorityColumn="p", delayColumn="d", levels="3")
    columns = RowColumns(chosen, ["value"])
    for p, d, told in (
        (3, 0.0, "column 'p'"),
        (-1, 0.0, "column 'p'"),
        (0, -1.0, "'d' has -1.0"),
        (0, float("nan"), "'d'"),
    ):
        with pytest.raises(CodecError, match=told):
            columns.rows(pa.record_batch({"value": ["x"], "p": [p], "d": [d]}))


def test_options_that_do_not_fit_are_refused(space: Subspace) -> None:
    with pytest.raises(ValueError, match="levels needs the option priorityColumn"):
        options(space, levels="3")
    with pytest.raises(ValueError, match="levels is a whole number from 1 to 256"):
        options(space, priorityColumn="p", levels="257")
    with pytest.raises(ValueError, match="can't be combined with priorityColumn"):
        options(space, codec="json", smart="tests.spark.shop:prices", delayColumn="d")


@pytest.mark.spark
@pytest.mark.engines("file")
def test_a_dataframe_with_priorities_and_delays_is_enqueued_once(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    df = spark.range(40).selectExpr("string(id) AS value", "int(id % 4) AS p", "id % 2 * 1000 AS d")
    given: dict[str, Any] = {"url": url, "queue": queue_name, "job_id": "j", "codec": "str", "partitions": 2}
    for _ in range(2):
        report = enqueue_dataframe(df, **given, priority_column="p", levels=4, delay_column="d")
        assert report.rows == 40
    urgent = PriorityQueue(Queue(queue_name, codec="str"), levels=4)
    stats = urgent.stats(db)
    assert (stats.items.available, stats.items.delayed, stats.items.enqueued) == (20, 20, 40)
    assert {int(item.value) % 4 for item in urgent.browse(db)} == {0, 2}
    assert urgent.check(db).ok
    with pytest.raises(ValueError, match="which has seconds, must be a number"):
        enqueue_dataframe(df, **{**given, "job_id": "k"}, priority_column="p", delay_column="value")
    with pytest.raises((PySparkException, CodecError), match="column 'p'"):
        enqueue_dataframe(df, **{**given, "job_id": "k"}, priority_column="p", levels=2, delay_column="d")
