"""Limits of tasks: concurrency and rates, of all calls or of those that belong together."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers import Concurrency, Rate, Tasks, Worker
from tests.helpers.clock import Clock


@pytest.fixture
def app(space: Subspace, clock: Clock) -> Tasks:
    return Tasks(space, clock=clock)


def test_no_more_calls_than_the_limit_run_at_the_same_time(db: Any, app: Tasks) -> None:
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.task(limits=[Concurrency(4), Concurrency(2, by="host")])
    async def crawl(host: str, page: int) -> None:
        for name in ("all", host):
            at_work[name] += 1
            most[name] = max(most[name], at_work[name])
        await asyncio.sleep(0.001)
        for name in ("all", host):
            at_work[name] -= 1

    for page in range(8):
        for host in ("a", "b", "c"):
            crawl.enqueue(db, host, page)
    report = Worker(app, concurrency=16, signals=False).drain(db)

    assert report.acked == 24
    assert most["all"] <= 4
    assert max(most[host] for host in "abc") <= 2
    assert most["all"] > 1


def test_no_more_calls_than_the_rate_start(db: Any, app: Tasks, clock: Clock) -> None:
    started: list[float] = []

    @app.task(limits=[Rate(2, 10.0)])
    def call(number: int) -> None:
        started.append(clock.now)

    for number in range(7):
        call.enqueue(db, number)
    began = clock.now
    for _ in range(40):
        app.run_due(db)
        clock.now += 1

    assert [int(at - began) for at in started] == [0, 0, 5, 10, 15, 20, 25]


@pytest.mark.slow
def test_a_rate_of_each_key_and_one_of_all(db: Any, app: Tasks, clock: Clock) -> None:
    started: list[str] = []

    @app.task(limits=[Rate(1, 10.0, by="user"), Rate(3, 100.0)])
    def call(user: str) -> None:
        started.append(user)

    for user in "aabbcd":
        call.enqueue(db, user)
    app.run_due(db)
    assert len(started) == len(set(started)) == 3  # the fourth has no token of all, and took none of its own
    for _ in range(300):
        clock.now += 1
        app.run_due(db)

    assert Counter(started) == {"a": 2, "b": 2, "c": 1, "d": 1}


def test_a_snoozed_call_has_used_no_attempt(db: Any, app: Tasks, clock: Clock) -> None:
    attempts: list[int] = []

    @app.task(limits=[Rate(1, 10.0)], retries=0)
    def call() -> None:
        attempts.append(app.current.attempt)

    for _ in range(4):
        call.enqueue(db)
    for _ in range(60):
        app.run_due(db)
        clock.now += 1

    assert attempts == [1, 1, 1, 1]


def test_two_workers_share_a_rate(db: Any, space: Subspace, clock: Clock) -> None:
    started: list[int] = []
    apps = [Tasks(space, clock=clock) for _ in range(2)]
    for number, app in enumerate(apps):

        @app.task(name="call", limits=[Rate(1, 10.0)])
        def call(number: int = number) -> None:
            started.append(number)

    for _ in range(2):
        apps[0].tasks["call"].enqueue(db)
    for app in apps:
        app.run_due(db)

    assert len(started) == 1


@pytest.mark.parametrize("text", ["x" * 5_000, "é" * 1_000, "\udcff"], ids=["long", "long in UTF-8", "lone surrogate"])
@pytest.mark.parametrize("option", ["unique", "concurrency", "rate"])
def test_a_call_may_belong_to_any_text(db: Any, app: Tasks, text: str, option: str) -> None:
    ran: list[int] = []

    def by(number: int) -> str:
        return f"{text}{number % 2}"

    options: dict[str, dict[str, Any]] = {
        "unique": {"unique": by},
        "concurrency": {"limits": [Concurrency(1, by=by), Concurrency(2, by=by)]},
        "rate": {"limits": [Rate(1, 60, by=by)]},
    }

    @app.task(**options[option])
    def call(number: int) -> None:
        ran.append(number)

    for number in range(4):
        call.enqueue(db, number)
    app.run_due(db)

    assert sorted(ran) == ([0, 1, 2, 3] if option == "concurrency" else [0, 1])
