"""The sink as users call it: what goes in, what is refused on the driver, what is reported."""

from __future__ import annotations

import datetime
import decimal
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import fdbqueue
from fdbqueue import Queue
from fdbqueue.errors import CodecError, JobError
from fdbqueue.spark import enqueue_dataframe, job_report, jobs, register
from fdbqueue.spark.options import LOAD, parse
from fdbqueue.spark.partition_log import JobKeys
from tests.docs.test_readme import BLOCK, ROOT
from tests.docs.test_readme import expected as printed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.engines("file")]


def write(df: DataFrame, mode: str = "append", **options: str) -> None:
    df.write.format("fdbqueue").mode(mode).options(**options).save()


def contents(db: Any, queue_name: str, codec: str = "bytes") -> list[Any]:
    return [item.value for item in Queue(queue_name, codec=codec).browse(db)]


def test_a_dataframe_is_appended_and_reported(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    write(numbers, url=url, queue=queue_name, jobId="2013-01-01", partitions="4")
    assert sorted(contents(db, queue_name)) == expected
    report = job_report(db, queue_name, "2013-01-01")
    assert report is not None
    assert report.committed
    assert (report.partitions, report.rows, report.skipped, report.attempts) == (4, 2000, 0, 4)
    assert (report.transactions, report.conflicts, report.retries) == (4, 0, 0)
    assert report.size_bytes == sum(map(len, expected))
    assert report.seconds > 0


def test_a_committed_job_submitted_again_writes_nothing_however_it_is_partitioned(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    for df, partitions in (numbers, 4), (numbers, 4), (numbers.coalesce(1), 1), (numbers.repartition(7), 7):
        write(df, url=url, queue=queue_name, jobId="job", partitions=str(partitions))
    assert Queue(queue_name).stats(db).enqueued == len(expected)
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert (report.already_committed, report.rows, report.partitions) == (True, len(expected), 4)


def test_other_rows_under_the_id_of_a_committed_job_are_refused(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    from pyspark.sql import functions as f

    write(numbers, url=url, queue=queue_name, jobId="job")
    other = numbers.select(
        f.when(f.col("value") == f.lit(b"row 7 of 2"), f.lit(b"new")).otherwise(f.col("value")).alias("value")
    )
    for df, told in (other, "2,000 others, in part or all"), (numbers.limit(500), "500"), (numbers.limit(0), "0"):
        with pytest.raises(PySparkException, match=rf"with 2,000 rows, and was submitted again with {told}.*Nothing"):
            write(df, url=url, queue=queue_name, jobId="job")
        with pytest.raises(
            JobError, match=rf"^Job 'job' is committed.* again with {told}.*id of their own.*forget_job"
        ):
            enqueue_dataframe(df, url=url, queue=queue_name, job_id="job")
    assert sorted(contents(db, queue_name)) == expected
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert not report.already_committed
    write(other, url=url, queue=queue_name, jobId="another job")
    assert Queue(queue_name).stats(db).enqueued == 4000


@pytest.mark.nightly
@pytest.mark.parametrize("by_one_call", [False, True])
def test_other_rows_under_the_id_of_a_failed_job_are_refused_before_one_is_enqueued(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str, by_one_call: bool
) -> None:
    from pyspark.sql import functions as f

    def submit(df: DataFrame) -> None:
        if by_one_call:
            enqueue_dataframe(df, url=url, queue=queue_name, job_id="job", batch_rows=50, partitions=4)
        else:
            write(df, url=url, queue=queue_name, jobId="job", batchRows="50", partitions="4")

    value = f.col("value")
    # Nothing is in of the partition that fails: its first batch has the row that can't be.
    with pytest.raises(CodecError if by_one_call else PySparkException, match="nulls"):
        submit(numbers.select(f.when(~value.endswith(f.lit(b" of 2")), value).alias("value")))
    before = sorted(contents(db, queue_name))
    assert 0 < len(before) < len(expected)
    with pytest.raises((JobError, PySparkException), match=r"rows in the queue.*Nothing new was written"):
        submit(numbers.select(f.concat(f.lit(b"other "), value).alias("value")))
    assert sorted(contents(db, queue_name)) == before
    submit(numbers)
    assert sorted(contents(db, queue_name)) == expected


@pytest.mark.nightly
def test_a_failed_job_that_is_partitioned_otherwise_is_refused_before_one_row_is_enqueued(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    from pyspark.sql import functions as f

    broken = numbers.select(f.when(f.col("value") != f.lit(b"row 77 of 2"), f.col("value")).alias("value"))
    with pytest.raises(PySparkException, match="nulls"):
        write(broken, url=url, queue=queue_name, jobId="job", batchRows="50")
    before = sorted(contents(db, queue_name))
    with pytest.raises(PySparkException, match="Nothing new was written"):
        write(numbers.repartition(7), url=url, queue=queue_name, jobId="job")
    assert sorted(contents(db, queue_name)) == before
    write(numbers, url=url, queue=queue_name, jobId="job")
    assert sorted(contents(db, queue_name)) == expected


def test_at_least_once_needs_no_job_and_leaves_no_trace(numbers: DataFrame, db: Any, url: str, queue_name: str) -> None:
    for _ in range(2):
        write(numbers, url=url, queue=queue_name, delivery="atleastonce")
    assert Queue(queue_name).stats(db).enqueued == 4000
    assert not list(jobs(db, queue_name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quue": "typo"}, "There is no option 'quue'"),
        ({"url": "memory:"}, "memory: is private to one process"),
        ({"url": "redis:"}, "not a database URL"),
        ({"queue": None}, "option queue is missing"),
        ({"jobId": None}, "option jobId is missing"),
        ({"jobId": ""}, "option jobId is empty"),
        ({"partitions": "0"}, "option partitions is a whole number from 1"),
        ({"batchRows": "7000"}, "option batchRows is a whole number from 1 to 6,000"),
        ({"delivery": "sometimes"}, "one of exactlyOnce, atLeastOnce"),
        ({"codec": "pickle"}, "one of bytes, str, json, msgpack, tuple"),
        ({"codec": "str"}, "'value', binary, must be a string"),
        ({"valueColumn": "body"}, "valueColumn: 'body' is no column of the DataFrame, which has value"),
        ({"queueColumn": "value"}, "'value', binary, which names queues, must be a string"),
        ({"headersColumn": "value"}, "must be a map from string"),
        ({"queueKey": "0102"}, "one of the options queue and queueKey"),
        ({"mode": "overwrite"}, "overwrite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_impossible_options_are_refused_before_any_task(
    spark: SparkSession,
    numbers: DataFrame,
    db: Any,
    url: str,
    queue_name: str,
    changes: dict[str, str | None],
    message: str,
) -> None:
    group = f"refused {queue_name}"
    spark.sparkContext.setJobGroup(group, "")
    options = {"url": url, "queue": queue_name, "jobId": "job", **changes}
    with pytest.raises(PySparkException, match=message):
        write(numbers, **{name: value for name, value in options.items() if value is not None})
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert Queue(queue_name).is_empty(db)
    assert not list(jobs(db, queue_name))


def test_reading_a_queue_refuses_the_options_of_a_job(spark: SparkSession, url: str, queue_name: str) -> None:
    with pytest.raises(PySparkException, match=r"(?i)no option 'jobid'\. A look at a queue has"):
        spark.read.format("fdbqueue").options(url=url, queue=queue_name, jobId="job").load()


def test_a_column_that_would_be_lost_is_refused(spark: SparkSession, url: str, queue_name: str) -> None:
    df = spark.createDataFrame([(b"v", 1)], "value binary, priority int")
    with pytest.raises(PySparkException, match="columns priority would be lost"):
        write(df, url=url, queue=queue_name, jobId="job")


def test_another_number_of_partitions_is_refused_before_a_row(
    numbers: DataFrame, db: Any, url: str, queue_name: str
) -> None:
    with pytest.raises(PySparkException, match=r"is to have 3 partitions, but there is a number 3"):
        write(numbers, url=url, queue=queue_name, jobId="job", partitions="3")
    with pytest.raises(PySparkException, match="partitions was 3 and is now 4"):
        write(numbers, url=url, queue=queue_name, jobId="job", partitions="4")
    assert not [value for value in contents(db, queue_name) if value.endswith(b"of 3")]


def test_rows_that_differ_when_a_job_is_submitted_again_are_refused(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    options = {"url": url, "queue": queue_name, "jobId": "job", "codec": "str", "batchRows": "10"}
    broken = spark.createDataFrame([("a",)] * 250 + [(None,)], "value string").coalesce(1)
    with pytest.raises(PySparkException, match="nulls"):
        write(broken, **options)
    other = spark.createDataFrame([("b",)] * 251, "value string").coalesce(1)
    with pytest.raises(PySparkException, match=r"200 rows in the queue.*checkpoint\(\)"):
        write(other, **options)
    assert contents(db, queue_name, "str") == ["a"] * 200


def test_a_null_is_refused_by_name(spark: SparkSession, url: str, queue_name: str) -> None:
    df = spark.createDataFrame([(b"v",), (None,)], "value binary").coalesce(1)
    with pytest.raises(PySparkException, match="'value' has 1 nulls in 2 rows"):
        write(df, url=url, queue=queue_name, jobId="job")


def test_all_columns_are_one_record_for_json(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    day = datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=-5)))
    schema = "n int, at timestamp, price decimal(5,2), tags array<string>, more map<string,int>, sub struct<x:double>"
    row = (1, day, decimal.Decimal("1.50"), ["a", None], {"k": 2}, (0.5,))
    write(spark.createDataFrame([row], schema), url=url, queue=queue_name, jobId="job", codec="json")
    assert contents(db, queue_name, "json") == [
        {
            "n": 1,
            "at": "2013-01-01T10:00:00Z",
            "price": "1.50",
            "tags": ["a", None],
            "more": {"k": 2},
            "sub": {"x": 0.5},
        }
    ]


@pytest.mark.parametrize(
    ("codec", "value"),
    [("str", "ü"), ("json", {"value": "ü", "n": 1}), ("msgpack", {"value": "ü", "n": 1}), ("tuple", ("ü", 1))],
)
def test_every_codec_reads_back_what_the_sink_wrote(
    spark: SparkSession, db: Any, url: str, queue_name: str, codec: str, value: Any
) -> None:
    df = spark.createDataFrame([("ü", 1)], "value string, n int")
    if codec == "str":
        df = df.select("value")
    write(df, url=url, queue=queue_name, jobId="job", codec=codec)
    assert contents(db, queue_name, codec) == [value]


def test_a_column_can_name_the_queue_of_each_row(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    rows = [(b"%d" % n, None if n % 3 == 2 else f"{queue_name} {n % 3}") for n in range(9)]
    df = spark.createDataFrame(rows, "value binary, target string").coalesce(1)
    write(df, url=url, queue=queue_name, queueColumn="target", jobId="job")
    assert contents(db, f"{queue_name} 0") == [b"0", b"3", b"6"]
    assert contents(db, f"{queue_name} 1") == [b"1", b"4", b"7"]
    assert contents(db, queue_name) == [b"2", b"5", b"8"]
    with pytest.raises(PySparkException, match="names no queue in 3 of 9 rows"):
        write(df, url=url, queueColumn="target", jobId=f"job of {queue_name}")


def test_headers_come_from_a_map(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    rows: list[tuple[bytes, dict[str, str] | None]] = [(b"a", {"kind": "x"}), (b"b", None)]
    df = spark.createDataFrame(rows, "value binary, meta map<string,string>").coalesce(1)
    write(df, url=url, queue=queue_name, headersColumn="meta", jobId="job")
    assert [dict(item.headers) for item in Queue(queue_name).browse(db)] == [{"kind": "x"}, {}]


def test_a_large_payload_is_chunked(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    values = [bytes(200_000), b"small", b"x" * 90_001]
    df = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)
    write(df, url=url, queue=queue_name, jobId="job")
    assert contents(db, queue_name) == values
    assert Queue(queue_name).check(db).ok


def test_enqueue_dataframe_returns_its_report_and_runs_a_job_once(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    report = enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job", partitions=3)
    assert (report.rows, report.partitions, report.committed) == (2000, 3, True)
    assert not report.already_committed
    again = replace(report, already_committed=True)
    assert enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job") == again
    assert enqueue_dataframe(numbers.coalesce(1), url=url, queue=queue_name, job_id="job", partitions=2) == again
    assert sorted(contents(db, queue_name)) == expected
    with pytest.raises(JobError, match=r"^Job 'job' was submitted before, and differs now: codec was bytes and is now"):
        enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job", codec="msgpack", value_column="value")


def test_resubmitting_a_job_removes_the_records_of_its_dead_driver(
    numbers: DataFrame, db: Any, url: str, queue_name: str
) -> None:
    enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job", partitions=1)
    keys = JobKeys(Queue(queue_name).layout, "job")
    db[keys.log_entry(0, 1)] = bytes(16)
    assert enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job").rows == 2000
    assert not list(db[keys.begin : keys.end])


def test_enqueue_dataframe_takes_a_subspace_and_a_dataframe_with_maps(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    df = spark.createDataFrame([({"k": n},) for n in range(50)], "more map<string,int>")
    name = ("tests", queue_name)
    assert enqueue_dataframe(df, url=url, queue=name, job_id="job", codec="json").rows == 50
    found = {item.value["more"]["k"] for item in Queue(name, codec="json").browse(db)}
    assert found == set(range(50))


def test_a_relative_path_is_the_callers_wherever_spark_was_started(
    numbers: DataFrame, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert enqueue_dataframe(numbers, url="file:here", queue=queue_name, job_id="job", partitions=1).rows == 2000
    with fdbqueue.open(f"file:{tmp_path / 'here'}") as db:
        assert Queue(queue_name).stats(db).available == 2000


def test_a_row_is_in_the_same_partition_in_any_time_zone(spark: SparkSession) -> None:
    from fdbqueue.spark.dataframe import repartitioned
    from fdbqueue.spark.schemas import header_of

    df = spark.range(200).selectExpr("id", "map('at', timestamp_seconds(id), 'never', null) AS more")
    header = header_of(parse(LOAD, {"url": "fdb:", "queue": "q", "jobId": "j", "codec": "json"}), df.schema)
    found = []
    for zone, ignore in ("UTC", "true"), ("America/New_York", "false"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.set("spark.sql.jsonGenerator.ignoreNullFields", ignore)
        found.append(repartitioned(df, header).selectExpr("id", "spark_partition_id()").sort("id").collect())
    spark.conf.unset("spark.sql.session.timeZone")
    spark.conf.unset("spark.sql.jsonGenerator.ignoreNullFields")
    assert found[0] == found[1]


def test_a_job_that_is_exactly_once_is_not_reported_on_as_another(
    numbers: DataFrame, db: Any, url: str, queue_name: str
) -> None:
    write(numbers, url=url, queue=queue_name, jobId="job")
    with pytest.raises(PySparkException, match="'job' is the id of a job with exactlyOnce delivery"):
        write(numbers, url=url, queue=queue_name, jobId="job", delivery="atLeastOnce")
    assert Queue(queue_name).stats(db).enqueued == 2000, "it is refused before its first row"


def test_enqueue_dataframe_at_least_once_leaves_no_job(numbers: DataFrame, db: Any, url: str, queue_name: str) -> None:
    report = enqueue_dataframe(numbers, url=url, queue=queue_name, delivery="atLeastOnce", partitions=2)
    assert (report.rows, report.delivery, report.transactions) == (2000, "atLeastOnce", 2)
    assert not list(jobs(db, queue_name))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": 5}, "url is a str, not 5"),
        ({"job_id": b"job"}, "jobId is a str, not b'job'"),
        ({"codec": str, "value_column": ["value"]}, r"codec is a str.*; valueColumn is a str, not \['value'\]"),
        ({"delivery": 1}, "delivery is a str"),
        ({"smart": len}, "smart is a str"),
        ({"queue": 5}, "A queue is named by"),
    ],
    ids=str,
)
def test_enqueue_dataframe_refuses_arguments_of_a_wrong_type(
    numbers: DataFrame, db: Any, url: str, queue_name: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        enqueue_dataframe(numbers, **{"url": url, "queue": queue_name, "job_id": "job", **wrong})
    assert not list(jobs(db, queue_name))


@pytest.mark.parametrize("wrong", [None, "rows", [b"row"]], ids=str)
def test_a_value_that_is_no_dataframe_is_refused(wrong: Any, url: str) -> None:
    with pytest.raises(TypeError, match=r"takes a DataFrame of Spark, not builtins\..*createDataFrame"):
        enqueue_dataframe(wrong, url=url, queue="q", job_id="job")
    with pytest.raises(TypeError, match="takes a SparkSession"):
        register(wrong)


def test_a_smart_queue_that_is_not_there_is_refused_before_its_job_begins(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    df = spark.createDataFrame([("note", 1)], "type string, n int")
    for name in ("nothing", "no.such.module:prices", "tests.spark.shop:NOT_A_FUNCTION"):
        with pytest.raises(ValueError, match="option smart"):
            enqueue_dataframe(df, url=url, queue=queue_name, job_id="job", codec="json", smart=name)
    assert not list(jobs(db, queue_name))


def test_enqueue_dataframe_refuses_before_it_asks_spark(numbers: DataFrame, url: str, queue_name: str) -> None:
    with pytest.raises(ValueError, match="jobId is missing"):
        enqueue_dataframe(numbers, url=url, queue=queue_name)
    with pytest.raises(ValueError, match="must be a string"):
        enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job", codec="str")


def test_an_empty_dataframe_is_a_job_too(numbers: DataFrame, db: Any, url: str, queue_name: str) -> None:
    for again in (False, True):
        report = enqueue_dataframe(numbers.limit(0), url=url, queue=queue_name, job_id="job")
        assert (report.rows, report.committed, report.already_committed) == (0, True, again)
    assert Queue(queue_name).is_empty(db)
    with pytest.raises(JobError, match="is committed, with 0 rows, and was submitted again with 2,000"):
        enqueue_dataframe(numbers, url=url, queue=queue_name, job_id="job")
    assert Queue(queue_name).is_empty(db)


def test_a_dataframe_partitioned_otherwise_adds_only_what_is_missing(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    from pyspark.sql import functions as f

    broken = numbers.select(f.when(f.col("value") != f.lit(b"row 77 of 2"), f.col("value")).alias("value"))
    with pytest.raises(CodecError, match="nulls"):
        enqueue_dataframe(broken, url=url, queue=queue_name, job_id="job", partitions=3, batch_rows=20)
    report = enqueue_dataframe(numbers.coalesce(1), url=url, queue=queue_name, job_id="job")
    assert report.partitions == 3
    assert sorted(contents(db, queue_name)) == expected


def test_the_first_block_of_the_guide_runs_unchanged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "guides" / "spark.md").read_text()
    block = re.findall(BLOCK.format("python"), guide, re.DOTALL | re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "<block>", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "".join(printed(block))
