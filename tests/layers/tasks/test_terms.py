"""Tasks: delays, lives, priorities, sessions, and the layers under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, PriorityQueue, Sessions, Tasks, Worker
from tests.helpers.clock import Clock


def test_many_calls_are_enqueued_together(db: Any, app: Tasks) -> None:
    seen: list[int] = []

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    report = note.enqueue_many(db, (note.call(number) for number in range(700)))
    app.run_due(db)

    assert report.items == 700
    assert sorted(seen) == list(range(700))


def test_delays_and_times_and_lives(db: Any, app: Tasks, clock: Clock) -> None:
    seen: list[str] = []

    @app.task
    def note(name: str) -> None:
        seen.append(name)

    note.configure(delay=10).enqueue(db, "delay")
    note.configure(at=clock.now + 20).enqueue(db, "at")
    note.configure(delay=30, ttl=5).enqueue(db, "over")
    for _ in range(5):
        app.run_due(db)
        seen.append("-")
        clock.now += 10

    assert seen == ["-", "delay", "-", "at", "-", "-", "-"]


def test_priorities_and_queues(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space["a"], levels=3, clock=clock)
    seen: list[str] = []

    @app.task(priority=1)
    async def usual(name: str) -> None:
        seen.append(name)

    @app.task(queue=space["b"])
    async def elsewhere(name: str) -> None:
        seen.append(name)

    usual.enqueue(db, "usual")
    usual.configure(priority=2).enqueue(db, "later")
    usual.configure(priority=0).enqueue(db, "urgent")
    elsewhere.enqueue(db, "other queue")
    Worker(app, concurrency=1).drain(db)

    assert [one for one in seen if one != "other queue"] == ["urgent", "usual", "later"]
    assert "other queue" in seen
    with pytest.raises(ValueError, match="No task of"):
        Worker(app, queues=["nothing"])


def test_sessions_run_their_calls_in_order(db: Any, space: Subspace, clock: Clock) -> None:
    app = Tasks(space, clock=clock)
    seen: list[tuple[str, int]] = []
    at_work: set[str] = set()

    @app.task(session="customer", keep_result=60)
    async def charge(customer: str, number: int) -> int:
        assert customer not in at_work
        at_work.add(customer)
        await asyncio.sleep(0)
        at_work.remove(customer)
        seen.append((customer, number))
        return number

    handles = [charge.enqueue(db, name, number) for number in range(5) for name in ("Ann", "Bob")]
    charge.enqueue_many(db, [charge.call("Ann", 5), charge.call("Bob", 5)])
    app.run_due(db)

    for name in ("Ann", "Bob"):
        assert [number for own, number in seen if own == name] == list(range(6))
    assert [handle.result(timeout=60) for handle in handles[:4]] == [0, 0, 1, 1]


def test_tasks_of_given_layers(db: Any, space: Subspace, clock: Clock) -> None:
    seen: list[str] = []
    given: list[tuple[str, Any, dict[str, Any]]] = [
        ("leases", Leases(Queue(space["1"], codec="json"), clock=clock), {}),
        ("levels", PriorityQueue(Queue(space["2"], codec="json"), levels=2, clock=clock), {"priority": 1}),
        ("sessions", Sessions(Queue(space["3"], codec="json"), clock=clock), {"session": "name"}),
    ]
    for kind, source, options in given:
        app = Tasks(source, clock=clock)

        @app.task(keep_result=60, **options)
        def note(name: str) -> str:
            seen.append(name)
            return name

        handle = note.enqueue(db, kind)
        app.run_due(db)
        assert handle.result(timeout=60) == kind

    assert seen == [kind for kind, _, _ in given]
