"""A DataFrame of arguments in a task's queue."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fdbqueue
import fdbqueue.spark
from fdbqueue.layers import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclass
class Money:
    amount: Decimal
    currency: str = "CHF"


def test_rows_are_arguments_of_their_types_and_those_that_do_not_fit_are_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = Tasks("bills", retries=0)
    seen: list[tuple[str, Money, dt.date, bytes, list[int]]] = []

    @app.task
    def bill(who: str, cost: Money, day: dt.date, seal: bytes = b"", parts: list[int] | None = None) -> None:
        seen.append((who, cost, day, seal, parts or []))

    rows = spark.range(100).selectExpr(
        "concat('customer ', id) AS who",
        "named_struct('amount', CAST(id AS STRING)) AS cost",
        "date_add(DATE'2026-01-01', CAST(id AS INT)) AS day",
        "CAST('seal' AS BINARY) AS seal",
        "CASE WHEN id % 2 = 0 THEN array(id, id + 1) END AS parts",
    )
    calls = rows.selectExpr("'bill' AS task", "struct(*) AS args")
    bad = rows.limit(1).selectExpr("'bill' AS task", "struct(who, 7 AS cost) AS args")
    url = f"file:{tmp_path / 'db'}"
    for number, frame in enumerate((calls, calls, bad)):  # the same job again adds nothing
        job = {"queue": app.queue.layout.space, "codec": "json", "job_id": f"job {number // 2}"}
        fdbqueue.spark.enqueue_dataframe(frame, url=url, **job)  # type: ignore[arg-type]

    with fdbqueue.open(url) as db:
        report = app.run_due(db)
        [letter] = app.lane.leases.dead.browse(db)
    assert (report.acked, report.dead) == (100, 1)
    assert "do not fit bill(who: str" in letter.error
    assert sorted(seen, key=lambda one: one[2]) == [
        (
            f"customer {number}",
            Money(Decimal(number)),
            dt.date(2026, 1, 1) + dt.timedelta(number),
            b"seal",
            [number, number + 1] if number % 2 == 0 else [],
        )
        for number in range(100)
    ]


def test_rows_are_in_the_sessions_of_a_task(spark: SparkSession, tmp_path: Path) -> None:
    app = Tasks("charges")
    seen: dict[str, list[int]] = {}

    @app.task(session="customer")
    async def charge(customer: str, number: int) -> None:
        seen.setdefault(customer, []).append(number)

    rows = spark.range(60).selectExpr("concat('customer ', id % 3) AS customer", "id AS number")
    calls = rows.selectExpr("'charge' AS task", "struct(customer, number) AS args", "customer", "number")
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        charge.enqueue(db, "customer 1", -1)  # both go into the same session
    fdbqueue.spark.enqueue_dataframe(
        calls.select("task", "args", "customer", "number"),
        url=url,
        queue="charges",
        codec="json",
        job_id="charges",
        session_column="customer",
        session_order="number",
    )
    with fdbqueue.open(url) as db:
        assert app.run_due(db).acked == 61

    assert {name: sorted(numbers) == numbers for name, numbers in seen.items()} == {
        f"customer {number}": True for number in range(3)
    }
    assert seen["customer 1"][0] == -1
