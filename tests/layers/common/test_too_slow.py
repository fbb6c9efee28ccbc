"""A call takes fewer items if one transaction is too short to read as many as it wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.leases.holding import Holding
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.staged import RelaxedQueue, StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import coordinating

ITEMS = 60
TOO_OLD: Fault = ("before", 1007)
Takes = Callable[[Any, Queue], Sequence[Any]]

TAKES: dict[str, Takes] = {
    "leases": lambda db, queue: Leases(queue).lease_many(db),
    "relaxed": lambda db, queue: RelaxedQueue(queue, window=1).dequeue_many(db),
    "subscription": lambda db, queue: Subscriptions(queue).open("all").lease_many(db),
    "subscription that waits": lambda db, queue: Subscriptions(queue).open("all").lease_many(db, timeout=60),
}


@pytest.mark.parametrize(("too_old", "taken"), [(2, 60), (3, 50), (4, 25), (9, 1)])
@pytest.mark.parametrize("takes", TAKES)
def test_fewer_are_taken_from_the_first_on(db: Any, queue: Queue, takes: str, too_old: int, taken: int) -> None:
    queue.enqueue_many(db, [str(n) for n in range(ITEMS)])
    if "subscription" in takes:
        Subscriptions(queue).subscribe(db, "all")
    slow = FaultyDatabase.failing_at(db, set(range(too_old)), TOO_OLD)
    assert [one.value for one in TAKES[takes](slow, queue)] == [str(n) for n in range(taken)]
    assert queue.stats(db).available == ITEMS - taken
    assert Leases(queue).check(db).ok


def test_fewer_are_taken_by_level(db: Any, queue: Queue) -> None:
    levels = PriorityQueue(queue)
    levels.enqueue_many(db, [str(n) for n in range(ITEMS)])
    slow = FaultyDatabase.failing_at(db, {0, 1, 2}, TOO_OLD)
    assert len(levels.dequeue_many(slow, limit=60)) == 30


@pytest.mark.parametrize("among_others", [False, True])
@pytest.mark.parametrize("verb", ["dequeue_many", "lease_many"])
@pytest.mark.parametrize(("too_old", "taken"), [(2, 60), (5, 32), (10, 1)])
def test_a_staged_call_takes_fewer(
    db: Any,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    too_old: int,
    taken: int,
    verb: str,
    among_others: bool,
) -> None:
    queue.enqueue_many(db, [str(n) for n in range(ITEMS)])
    before: set[int] = set()
    if among_others:  # it registers first, and then serves itself
        coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
        before = {0}
    slow = FaultyDatabase.failing_at(db, {n + len(before) for n in range(too_old)}, TOO_OLD)
    assert [one.value for one in getattr(StagedQueue(queue), verb)(slow)] == [str(n) for n in range(taken)]
    assert queue.stats(db).available == ITEMS - taken


def test_fewer_timers_are_settled(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [str(n) for n in range(ITEMS)], delay=1)
    clock.now += 2
    slow = FaultyDatabase.failing_at(db, {0, 1, 2}, TOO_OLD)
    report = leases.reclaim(slow, limit=40)
    assert (len(report.reclaimed), report.more) == (20, True)


@pytest.mark.parametrize("settling", ["ack", "snooze"])
def test_a_consumer_settles_fewer_at_a_time(
    db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch, settling: str
) -> None:
    leases.enqueue_many(db, [str(n) for n in range(ITEMS)])
    settle = getattr(Holding, settling)
    asked: list[int] = []

    def settle_few(self: Holding, tr: Any, held: list[Lease], *done: Any, **terms: Any) -> Any:
        asked[:] = [len(held)]
        return settle(self, tr, held, *done, **terms)

    def plan() -> Fault | None:
        assert slow.faults < 50, "it asks for as many again and again"
        too_many = asked and asked[0] > 10
        asked.clear()
        return TOO_OLD if too_many else None

    async def handle(lease: Lease) -> None:
        if settling == "snooze":
            consumer.stop()
            await asyncio.sleep(0)

    monkeypatch.setattr(Holding, settling, settle_few)
    slow = FaultyDatabase(db, plan)
    consumer = Consumer(leases, handle, concurrency=1, prefetch=ITEMS)
    report = consumer.drain(slow)
    assert slow.faults
    assert (report.acked, report.returned) == ((ITEMS, 0) if settling == "ack" else (1, ITEMS - 1))
    assert leases.check(db).ok
