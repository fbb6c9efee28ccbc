"""Mistakes as users of Spark see them: one sentence first, as early as Spark allows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from fdbqueue import Queue
from fdbqueue.errors import CodecError, QueuePaused
from fdbqueue.spark import drain_to_table, enqueue_dataframe, job_report, started
from tests.spark.sessions import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.engines("file")]


@pytest.fixture
def with_a_null(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a",), (None,)], "value string").coalesce(1)


def test_a_failed_task_tells_its_sentence_before_the_traceback(
    with_a_null: DataFrame, url: str, queue_name: str
) -> None:
    writer = with_a_null.write.format("fdbqueue").mode("append")
    with pytest.raises(PySparkException) as raised:
        writer.options(url=url, queue=queue_name, codec="str", jobId="j").save()
    lines = str(raised.value).splitlines()
    told = next(number for number, line in enumerate(lines) if "'value' has 1 nulls in 2 rows" in line)
    assert told < next(number for number, line in enumerate(lines) if line.startswith("Traceback")), lines
    assert told <= 1
    with pytest.raises(CodecError, match=r"^The column 'value' has 1 nulls in 2 rows, and the codec str does not take"):
        enqueue_dataframe(with_a_null, url=url, queue=queue_name, codec="str", job_id="k")


def test_a_wrong_option_of_a_look_is_told_in_the_first_line(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    Queue(queue_name).enqueue(db, b"a")
    for options, sentence in (
        ({"url": url, "quue": "typo"}, "There is no option 'quue'"),
        ({"url": f"file:{tmp_path}/none", "queue": queue_name}, "there is no database"),
    ):
        with pytest.raises(PySparkException) as raised:
            spark.read.format("fdbqueue").options(**options).load()
        assert sentence in str(raised.value).splitlines()[0]
    with pytest.raises(PySparkException) as raised:
        spark.read.format("fdbqueue").options(url=url, queue=queue_name[:-1]).load().collect()
    assert f"Did you mean '{queue_name}'?" in str(raised.value).splitlines()[0]
    assert not (tmp_path / "none").exists()


def test_a_thread_with_another_session_enqueues(
    spark: SparkSession, numbers: DataFrame, db: Any, url: str, queue_name: str
) -> None:
    failed: list[BaseException] = []

    def enqueue() -> None:
        try:
            other: Any = spark.newSession()
            other._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(other._jsparkSession)
            enqueue_dataframe(numbers.limit(5), url=url, queue=queue_name, job_id="j", partitions=1)
        except BaseException as error:  # noqa: BLE001  the test raises it
            failed.append(error)

    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    assert failed == []
    assert Queue(queue_name).stats(db).available == 5


def test_a_job_with_fewer_partitions_than_the_option_says_goes_through(
    numbers: DataFrame, db: Any, url: str, queue_name: str
) -> None:
    writer = numbers.coalesce(2).write.format("fdbqueue").mode("append")
    writer.options(url=url, queue=queue_name, jobId="j", partitions="4").save()
    report = job_report(db, queue_name, "j")
    assert report is not None
    assert (report.partitions, report.rows) == (2, 2000)


def test_binary_is_base64_in_json_and_the_default_mode_is_sparks(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    df = spark.createDataFrame([(b"x",)], "b binary").coalesce(1)
    options = {"url": url, "queue": queue_name, "jobId": "j", "codec": "json"}
    with pytest.raises(PySparkException, match='"ErrorIfExists" mode'):
        df.write.format("fdbqueue").options(**options).save()
    df.write.format("fdbqueue").mode("append").options(**options).save()
    assert [item.value for item in Queue(queue_name, codec="json").browse(db)] == [{"b": "eA=="}]


def test_late_mistakes_of_a_query_are_raised_when_it_has_started(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    Queue(queue_name, codec="str").enqueue(db, "a")
    unnamed = spark.readStream.format("fdbqueue").options(url=url, queue=queue_name).load()
    wrong_schema = spark.readStream.format("fdbqueue").schema("valeu string")
    items = source(spark, url, queue_name)
    for number, (df, format, told) in enumerate(
        (
            (unnamed, "noop", r"^The option streamName is missing|^spark\.read only looks"),
            (
                wrong_schema.options(url=url, queue=queue_name, streamName="x").load(),
                "noop",
                "^There is no column 'valeu'",
            ),
            (
                source(spark, url, queue_name, limit="1"),
                "noop",
                "^The option limit counts the items of a run that ends",
            ),
            (items.groupBy("value").count(), "fdbqueue", "^A queue is appended to: complete mode"),
        )
    ):
        writer = df.writeStream.format(format).option("checkpointLocation", str(tmp_path / str(number)))
        if format == "fdbqueue":
            writer = writer.options(url=url, queue="out", codec="json").outputMode("complete")
        with pytest.raises(ValueError, match=told):
            started(writer.start())
    update = (
        source(spark, url, queue_name, streamName="update")
        .writeStream.format("fdbqueue")
        .outputMode("update")
        .options(url=url, queue="out", codec="json")
    )
    with pytest.raises(PySparkException, match=r"(?i)update"):
        started(update.option("checkpointLocation", str(tmp_path / "update")).start())
    good = source(spark, url, queue_name, streamName="another")  # "s" has the batch of the query in complete mode
    query = good.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "good")).start()
    assert started(query).isActive
    query.stop()


def test_a_drain_of_a_paused_queue_raises_the_pause_and_goes_on_after_it(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    queue = Queue(queue_name, codec="str")
    queue.enqueue_many(db, ["a", "b"])
    queue.pause(db, reason="stocktaking", by="Ann")
    given: dict[str, Any] = {"url": url, "queue": queue_name, "codec": "str", "checkpoint": tmp_path / "c"}
    with pytest.raises(QueuePaused, match=r"^The queue .* is paused, by Ann: stocktaking\..*onPaused=wait"):
        drain_to_table(spark, **given, path=tmp_path / "out")
    assert queue.stats(db).available == 2
    timer = threading.Timer(1.0, lambda: queue.resume(db))
    timer.start()
    assert drain_to_table(spark, **given, path=tmp_path / "out", onPaused="wait").items == 2
    timer.join()
