"""Streams into queues, in Spark itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue
from tests.spark.sessions import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.engines("file", "cluster")]


@pytest.fixture
def queue(queue_name: str) -> Queue[str]:
    return Queue(queue_name, codec="str")


@pytest.mark.slow
def test_a_queue_goes_through_spark_into_a_queue_exactly_once_in_any_partitioning(
    spark: SparkSession, db: Any, url: str, queue: Queue[str], queue_name: str, tmp_path: Path
) -> None:
    values = [f"{number:03d}" for number in range(60)]
    queue.enqueue_many(db, values)
    out = Queue(queue_name + " out", codec="str")

    def sink(df: DataFrame, name: str = "t", mode: str = "append") -> Any:
        writer = df.writeStream.format("fdbqueue").outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        query = writer.options(url=url, queue=queue_name + " out", codec="str", streamName=name).start()
        query.awaitTermination()
        return query

    df = source(spark, url, queue_name, maxItemsPerTrigger="25", minPartitions="3").select("value")
    sink(df)
    assert sorted(item.value for item in out.browse(db)) == values
    queue.enqueue_many(db, ["x", "y"])
    sink(df.repartition(4))
    assert sorted(item.value for item in out.browse(db)) == [*values, "x", "y"]
    assert out.check(db).ok
    (tmp_path / "c").rename(tmp_path / "lost")
    counted = source(spark, url, queue_name, streamName="s2").groupBy("value").count()
    with pytest.raises(Exception, match="complete mode would enqueue"):
        sink(counted.selectExpr("concat(value, count) AS value"), "u", "complete")


def test_the_streaming_sink_refuses_options_that_are_a_jobs(
    spark: SparkSession, url: str, queue_name: str, tmp_path: Path
) -> None:
    for wrong, told in ({"jobId": "x"}, "identified by its checkpoint"), ({"colour": "red"}, "no option 'colour'"):
        df = spark.readStream.format("rate").load().selectExpr("encode(string(value), 'utf-8') AS value")
        writer = df.writeStream.format("fdbqueue").option("checkpointLocation", str(tmp_path / "c" / told[:3]))
        writer = writer.trigger(availableNow=True).options(url=url, queue=queue_name, **wrong)
        with pytest.raises(Exception, match=told):
            writer.start().awaitTermination()
