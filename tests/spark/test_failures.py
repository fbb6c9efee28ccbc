"""Tasks that fail in the middle: an error, or SIGKILL, at every point of a transaction."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fdbqueue import Queue
from fdbqueue.spark import job_report
from tests.helpers.nightly import at_night
from tests.spark.faulty import POINTS, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.engines("file", "cluster")]

OFTEN = ("rows written", "marked", "commit handed in", "committed")
"""Points that an attempt passes once per transaction."""
CASES = tuple(product(POINTS, ("raise", "kill")))
BY_DAY = (("rows written", "raise"), ("commit handed in", "kill"), ("committed", "kill"))
"""The others run at night. By day test_protocol.py fails each commit of an attempt, without Spark."""


def write(df: DataFrame, url: str, queue: str, plan: Plan, **options: str) -> None:
    """Enqueue `df` through the sink with faults, in transactions of 50 rows."""
    writer = df.write.format("faulty").mode("append").option("fault", msgspec.json.encode(plan).decode())
    given = {"url": url, "queue": queue, "jobId": "job", "batchRows": "50", **options}
    writer.options(**given).save()


@pytest.mark.parametrize(
    ("point", "how"),
    [pytest.param(*case, marks=() if case in BY_DAY else pytest.mark.nightly) for case in CASES],
)
def test_each_row_is_in_once_when_every_partitions_first_attempt_fails(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str, point: str, how: str
) -> None:
    plan = Plan(how, point, passing=5 if point in OFTEN else 1)
    write(numbers, url, queue_name, plan, partitions="4")
    _check(db, queue_name, expected, attempts=8)


@pytest.mark.parametrize("passing", [4, *at_night(1, 10)])
def test_each_row_is_in_once_when_tasks_are_killed_while_they_commit(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str, passing: int
) -> None:
    write(numbers, url, queue_name, Plan("kill soon", "marked", passing, attempts=2))
    _check(db, queue_name, expected, attempts=8)


def test_a_job_that_failed_leaves_its_rows_and_submitting_it_again_adds_the_others(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="a fault that a test asked for"):
        # Before the first commit: an attempt that gets further leaves the next one less to do, the last one nothing.
        write(numbers, url, queue_name, Plan("raise", "rows written", attempts=4, partitions=(2,)))
    before = job_report(db, queue_name, "job")
    assert before is not None
    assert not before.committed
    assert 0 < before.rows < len(expected)
    assert Queue(queue_name).stats(db).available == before.rows
    write(numbers, url, queue_name, Plan("raise", "nowhere"))
    _check(db, queue_name, expected, attempts=before.attempts + 4)


def test_a_submission_killed_while_it_commits_is_completed_by_the_next(
    numbers: DataFrame, expected: list[bytes], db: Any, url: str, queue_name: str
) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    for plan in (
        Plan("raise", "rows written", attempts=4, partitions=(2,)),
        Plan("kill", "committed", passing=3, in_commit=True),
    ):
        with pytest.raises((PySparkException, Py4JJavaError)):
            write(numbers, url, queue_name, plan, partitions="4")
        assert 0 < Queue(queue_name).stats(db).available < len(expected)
    write(numbers, url, queue_name, Plan("raise", "nowhere"), partitions="4")
    _check(db, queue_name, expected, attempts=8)


def _check(db: Any, queue_name: str, expected: list[bytes], *, attempts: int) -> None:
    queue = Queue(queue_name)
    assert sorted(item.value for item in queue.browse(db)) == expected
    assert queue.check(db).ok
    report = job_report(db, queue_name, "job")
    assert report is not None
    assert (report.committed, report.rows) == (True, len(expected))
    assert report.attempts >= attempts
    queue.clear(db)
