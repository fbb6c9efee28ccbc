"""Rows that Spark enqueues are compared with what is queued, each once, whatever fails."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fdbqueue import CheckFailed, ChecksBypassed, CodecError
from fdbqueue.engine import Subspace
from fdbqueue.errors import JobError
from fdbqueue.spark import job_report
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.attempts import JobAttempt
from fdbqueue.spark.options import LOAD, parse
from fdbqueue.spark.partition_log import job_log
from fdbqueue.spark.waiting_rows import SparkRows, digests_of
from fdbqueue.stored.items import envelope
from tests.helpers.faults import Fault
from tests.spark.shop import prices
from tests.spark.simulated import HastyDatabase, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMART = "tests.spark.shop:prices"
ARTICLES = 7


def records(amount: int) -> list[dict[str, Any]]:
    return [{"type": "price", "article": n % ARTICLES, "n": n} for n in range(amount)]


def as_rows(messages: list[Any]) -> SparkRows:
    payloads = [msgspec.json.encode(message) for message in messages]
    return SparkRows([envelope(payload) for payload in payloads], digests_of(payloads))


def attempt(job: Job, db: Any = None) -> JobAttempt:
    log = job_log(db or job.db, job.keys, 0, job.record)
    key = job.queue.layout.prefix.hex()
    given = {"url": "file:x", "queueKey": key, "jobId": "job", "codec": "json", "smart": SMART, "batchRows": "10"}
    return writing_of(parse(LOAD, given)).attempt(db or job.db, log, 0)


def newest(job: Job) -> dict[int, int]:
    smart = prices(job.queue.layout.space)
    assert smart.check(job.db).problems == ()
    found = [(item.value["article"], item.value["n"]) for item in smart.queue.browse(job.db)]
    assert len(found) == len(dict(found)), "an article has one price"
    return dict(found)


def test_each_row_is_compared_once_over_all_attempts(db: Any, space: Subspace) -> None:
    job = Job(db, space)
    for skipped in (0, 95):
        one = attempt(job)
        one.add(as_rows(records(95)))
        report = one.finish()
        assert (report.rows, report.skipped, report.retries) == (95, skipped, 0)
    assert newest(job) == {n % ARTICLES: n for n in range(95 - ARTICLES, 95)}
    assert prices(space).queue.stats(db).enqueued == ARTICLES


def test_rows_are_dealt_with_once_under_faults_and_a_consumer(db: Any, space: Subspace) -> None:
    chance = random.Random(7)
    faults: list[Fault | None] = [
        ("before", 1021),
        ("after", 1021),
        ("before", 1020),
        ("after", 1021),
        None,
        None,
        None,
    ]
    job = Job(db, space)
    taken: list[int] = []

    def fault() -> Fault | None:
        if chance.random() < 0.2:
            item = prices(space).dequeue(db)
            taken.append(item.value["n"] if item else -1)
        return chance.choice(faults)

    one = attempt(job, HastyDatabase(db, fault))
    one.add(as_rows([{"type": "note", "n": n} for n in range(60)]))
    assert one.finish().rows == 60
    left = [item.value["n"] for item in prices(space).queue.browse(db)]
    assert sorted(left + [n for n in taken if n >= 0]) == list(range(60))


def test_a_row_that_is_no_message_fails_the_attempt_and_its_batch_is_not_written(db: Any, space: Subspace) -> None:
    job = Job(db, space)
    one = attempt(job)
    with pytest.raises(CodecError, match="not registered"):
        one.add(as_rows([*records(5), {"type": "unknown"}, *records(5)]))
    assert newest(job) == {}
    again = attempt(job)
    with pytest.raises(CheckFailed, match="KeyError"):
        again.add(as_rows([*records(10), {"type": "price", "article": 1}, *records(9)]))
    assert len(newest(job)) == ARTICLES


def test_large_rows_and_headers_go_through(db: Any, space: Subspace) -> None:
    message = {"type": "note", "n": 1, "text": "x" * 200_000}
    payload = msgspec.json.encode(message)
    rows = SparkRows([envelope(payload, {"who": "me"})], digests_of([payload]), None, [payload])
    one = attempt(Job(db, space))
    one.add(rows)
    one.finish()
    item = prices(space).dequeue(db)
    assert item is not None
    assert (item.value, item.headers) == (message, {"who": "me"})


def test_rows_without_the_option_are_refused_by_a_smart_queue(db: Any, space: Subspace) -> None:
    job = Job(db, space, codec="json")  # begun before the queue was smart
    prices(space).enqueue(db, {"type": "note", "n": 1})
    with pytest.raises(ChecksBypassed, match="option smart"):
        job.run([b"row"])
    with pytest.raises(ChecksBypassed, match="option smart"):
        Job(db, space, "another job", codec="json")
    assert job_report(db, space, "another job") is None
    assert len(list(prices(space).queue.browse(db))) == 1
    assert prices(space).check(db).ok


def test_the_smart_option_must_name_an_existing_function() -> None:
    base = {"url": "file:x", "queue": "q", "jobId": "j"}
    with pytest.raises(ValueError, match="codec=json"):
        parse(LOAD, {**base, "smart": SMART})
    assert parse(LOAD, {**base, "smart": SMART, "codec": "json"}).smart == SMART
    for name in ("tests.spark.shop:nothing", "no.such.module:x", "tests.spark.shop:NOT_A_FUNCTION"):
        with pytest.raises(ValueError, match="option smart"):
            writing_of(parse(LOAD, {**base, "smart": name, "codec": "json"}))


@pytest.mark.spark
@pytest.mark.engines("file")
@pytest.mark.parametrize("delivery", [pytest.param("exactlyOnce", marks=pytest.mark.nightly), "atLeastOnce"])
def test_a_dataframe_without_the_option_is_refused_by_a_smart_queue(
    spark: SparkSession, db: Any, url: str, queue_name: str, delivery: str
) -> None:
    from pyspark.errors import PySparkException

    from fdbqueue.spark import enqueue_dataframe

    smart = prices(Subspace((queue_name,)))
    smart.enqueue(db, {"type": "note", "n": 1})
    frame = spark.createDataFrame([("note", 2, queue_name)], "type string, n int, target string")
    known = {"url": url, "codec": "json", "delivery": delivery, "jobId": "job"}
    with pytest.raises(ChecksBypassed, match=r"^The queue .* is smart.*option smart"):
        enqueue_dataframe(
            frame.drop("target"), url=url, queue=queue_name, job_id="job", codec="json", delivery=delivery
        )
    for df, options in (
        (frame.drop("target"), {"queue": queue_name}),
        (frame, {"queue": f"{queue_name} other", "queueColumn": "target"}),
    ):
        with pytest.raises(PySparkException, match=r"ChecksBypassed: The queue .* is smart.*option smart"):
            df.write.format("fdbqueue").mode("append").options(**known, **options).save()
    assert job_report(db, queue_name, "job") is None
    assert [item.value["n"] for item in smart.queue.browse(db)] == [1]
    report = enqueue_dataframe(
        frame.drop("target"), url=url, queue=queue_name, job_id="job", codec="json", delivery=delivery, smart=SMART
    )
    assert report.rows == 1
    assert smart.check(db).ok


@pytest.mark.spark
@pytest.mark.engines("file")
def test_a_dataframe_goes_through_a_smart_queue(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    from fdbqueue.spark import enqueue_dataframe

    frame = spark.createDataFrame([("price", n % ARTICLES, n) for n in range(300)], "type string, article int, n int")
    for _ in range(2):
        report = enqueue_dataframe(
            frame, url=url, queue=queue_name, job_id="job", partitions=2, codec="json", smart=SMART
        )
        assert report.rows == 300
    with pytest.raises(JobError, match=f"smart was {SMART} and is now not given"):
        enqueue_dataframe(frame, url=url, queue=queue_name, job_id="job", partitions=2, codec="json")
    smart = prices(Subspace((queue_name,)))
    assert smart.check(db).ok
    assert {item.value["article"]: item.value["n"] for item in smart.queue.browse(db)} == {
        n % ARTICLES: n for n in range(300 - ARTICLES, 300)
    }
    assert smart.queue.stats(db).enqueued == ARTICLES
