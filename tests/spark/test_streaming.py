"""Streams out of queues and into them, in Spark itself: what comes, what is refused, what a restart repeats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue, StreamError
from fdbqueue.layers.leases import Leases
from fdbqueue.spark import claim, drain_to_table, forget_stream, redrive, release, settle, streams
from tests.spark.sessions import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.engines("file", "cluster")]


def run(df: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> Any:
    query = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.foreachBatch(each).start()
    started.awaitTermination()
    return started


class Batches:
    """Collects the values of each batch; it is told which batch fails, once."""

    def __init__(self, *, failing: int | None = None) -> None:
        self.got: dict[int, list[str]] = {}
        self.failing = failing

    def __call__(self, df: DataFrame, number: int) -> None:
        values = [row.value for row in df.collect()]
        assert self.got.get(number, values) == values, "a replay had other rows"
        self.got[number] = values
        if number == self.failing:
            self.failing = None
            raise RuntimeError("the sink failed")

    @property
    def values(self) -> list[str]:
        return [value for number in sorted(self.got) for value in self.got[number]]


@pytest.fixture
def queue(queue_name: str) -> Queue[str]:
    return Queue(queue_name, codec="str")


def test_a_stream_takes_what_is_there_in_batches_and_replays_a_failed_one(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    values = [f"{number:02d}" for number in range(25)]
    queue.enqueue_many(db, values)
    got = Batches(failing=1)
    df = source(spark, url, queue_name, maxItemsPerTrigger="10", maxItemsPerPartition="4", includeHeaders="true")
    assert df.columns == ["value", "queue", "position", "enqueued_at", "attempts", "headers"]
    with pytest.raises(Exception, match="the sink failed"):
        run(df, tmp_path / "c", got)
    assert queue.stats(db).claimed == 10
    assert [(one.name, one.batch, one.items, one.acked) for one in streams(db, queue_name)] == [("s", 2, 10, 1)]
    query = run(df, tmp_path / "c", got)
    assert got.values == values
    assert [len(batch) for batch in got.got.values()] == [10, 10, 5]
    stats = queue.stats(db)
    assert (stats.claimed, stats.dequeued, stats.available) == (0, 25, 0)
    assert '"available"' in str(query.lastProgress.sources[0].latestOffset).replace("'", '"')
    queue.enqueue(db, "more")
    with pytest.raises(Exception, match="belongs to another checkpoint"):
        run(df, tmp_path / "other", got)
    assert queue.check(db).ok


def test_a_stream_runs_until_it_is_stopped_and_waits_for_items(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    got = Batches()
    writer = source(spark, url, queue_name).writeStream.option("checkpointLocation", str(tmp_path / "c"))
    query = writer.foreachBatch(got).start()
    try:
        for value in "a", "b":
            queue.enqueue(db, value)
            query.processAllAvailable()
        assert got.values == ["a", "b"]
    finally:
        query.stop()


def test_a_source_refuses_what_it_can_not_do(spark: SparkSession, url: str, queue_name: str, tmp_path: Path) -> None:
    for number, (wrong, told) in enumerate(
        (
            ({"startingOffsets": "earliest"}, "begins at the head"),
            ({"maxTriggerDelay": "soon"}, "is a duration"),
            ({"minItemsPerTrigger": "20000"}, "is over maxItemsPerTrigger"),
            ({"states": "dead"}, "no option 'states'"),
        )
    ):
        with pytest.raises(Exception, match=told):
            run(source(spark, url, queue_name, **wrong), tmp_path / str(number), Batches())
    with pytest.raises(Exception, match=r"drain_to_table|streamName is missing"):
        spark.readStream.format("fdbqueue").options(url=url, queue=queue_name).load().writeStream.format("noop").start(
            checkpointLocation=str(tmp_path / "unnamed")
        ).awaitTermination()


def test_bad_items_fail_become_null_or_dead_letters(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    raw, decoded = Queue(queue_name), Queue(queue_name, codec="json")
    raw.enqueue_many(db, [b'"good"', b"{bad", b'"good too"'])
    decoded.register(db, on_codec="replace")
    got = Batches()
    with pytest.raises(Exception, match="does not decode by the codec json"):
        run(source(spark, url, queue_name, codec="json"), tmp_path / "c", got)
    run(source(spark, url, queue_name, codec="json", onBadItem="null"), tmp_path / "c", got)
    assert got.values == ['"good"', None, '"good too"']
    raw.register(db, on_codec="replace")
    raw.enqueue_many(db, [b'"good"', b"{bad"])
    decoded.register(db, on_codec="replace")
    run(source(spark, url, queue_name, codec="json", onBadItem="dead"), tmp_path / "c", got)
    assert got.got[1] == ['"good"']
    look = spark.read.format("fdbqueue").options(url=url, queue=queue_name, states="dead").load()
    assert [row.error[:18] for row in look.collect()] == ["It does not decode"]
    assert redrive(look, url=url, queue=queue_name) == 1
    assert [item.value for item in raw.browse(db)] == [b"{bad"]
    with pytest.raises(ValueError, match="no column 'where'"):
        redrive(look, url=url, queue=queue_name, position_column="where")


def test_a_stream_is_settled_by_its_checkpoint(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    queue.enqueue_many(db, [f"{number:02d}" for number in range(25)])
    with pytest.raises(Exception, match="the sink failed"):
        run(source(spark, url, queue_name, maxItemsPerTrigger="10"), tmp_path / "c", Batches(failing=1))
    with pytest.raises(StreamError, match=r"Batch 2 .* with 10 items.*undecided='redeliver' or 'drop'"):
        settle(db, queue_name, "s", tmp_path / "c")
    settled = settle(db, queue_name, "s", f"file://{tmp_path / 'c'}", undecided="redeliver")
    assert (settled.acked, settled.redelivered, settled.dropped) == (1, 10, 0)
    assert [item.value for item in queue.browse(db)] == [f"{number:02d}" for number in range(10, 25)]
    with pytest.raises(Exception, match="was released"):
        run(source(spark, url, queue_name), tmp_path / "c", Batches())
    assert settle(db, queue_name, "s", tmp_path / "c").redelivered == 0
    got = Batches()
    run(source(spark, url, queue_name), tmp_path / "new", got)
    assert len(got.values) == 15
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        settle(db, queue_name, "s", tmp_path / "c")
    with pytest.raises(StreamError, match="has no stream 'other'"):
        release(db, queue_name, "other")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        settle(db, queue_name, "s", tmp_path)
    assert release(db, queue_name, "s") == 0
    assert forget_stream(db, queue_name, "s")
    assert list(streams(db, queue_name)) == []


def test_a_drain_moves_what_is_there_into_a_folder_and_reports_it(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    queue.enqueue_many(db, [f"{number:02d}" for number in range(25)])
    given: dict[str, Any] = {"url": url, "queue": queue_name, "checkpoint": tmp_path / "c", "codec": "str"}
    report = drain_to_table(
        spark, **given, path=tmp_path / "out", limit=20, transform=lambda df: df.select("value"), maxItemsPerTrigger="8"
    )
    assert (report.items, report.batches) == (20, 3)
    report = drain_to_table(spark, **given, path=tmp_path / "out", transform=lambda df: df.select("value"))
    assert report.items == 5
    assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        f"{number:02d}" for number in range(25)
    ]
    got = Batches()
    queue.enqueue(db, "for a function")
    report = drain_to_table(spark, **{**given, "checkpoint": tmp_path / "d"}, foreach_batch=got, stream="function")
    assert (report.items, got.values) == (1, ["for a function"])
    outputs: list[dict[str, Any]] = [{}, {"path": "x", "table": "y"}]
    for wrong in outputs:
        with pytest.raises(ValueError, match="one of table, path and foreach_batch"):
            drain_to_table(spark, **given, **wrong)
    with pytest.raises(ValueError, match="limit is a whole number"):
        drain_to_table(spark, **given, path="x", limit=0)


def test_a_claim_has_the_same_rows_in_every_action_until_its_ack(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    queue.enqueue_many(db, [f"{number:02d}" for number in range(25)])
    one = claim(url=url, queue=queue_name, name="2013-06-01", limit=20, partitions=3)
    assert (one.count, one.done) == (20, False)
    df = one.dataframe(spark, codec="str")
    assert df.count() == df.join(df, "position").count() == 20
    again = claim(url=url, queue=queue_name, name="2013-06-01", limit=5)
    assert again.count == 20
    df.write.mode("overwrite").parquet(str(tmp_path / "2013-06-01"))
    again.ack()
    again.ack()
    assert claim(url=url, queue=queue_name, name="2013-06-01").done
    with pytest.raises(Exception, match=r"has no open claim|was acked before"):
        one.dataframe(spark, codec="str").count()
    other = claim(url=url, queue=queue_name, name="other")
    assert other.release() == 5
    assert queue.stats(db).available == 5
    with pytest.raises(StreamError, match="nothing to give back"):
        one.release()
    with pytest.raises(ValueError, match="limit is a whole number"):
        claim(url=url, queue=queue_name, name="x", limit=0)
    with pytest.raises(TypeError, match="url is a str"):
        claim(url=db, queue=queue_name, name="x")


def test_other_consumers_and_a_stream_share_a_queue(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    leases = Leases(queue)
    queue.enqueue_many(db, [f"{number:02d}" for number in range(10)])
    lease = leases.lease(db)
    assert lease is not None
    got = Batches()
    run(source(spark, url, queue_name), tmp_path / "c", got)
    leases.nack(db, lease)
    run(source(spark, url, queue_name), tmp_path / "c", got)
    assert got.got == {0: [f"{number:02d}" for number in range(1, 10)], 1: ["00"]}
