"""Browsers: blocking and awaited, lazily, and at a pace that leaves others their time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import FormatError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.api import KeyValue
from fdbqueue.engine.steps import run, run_async
from fdbqueue.engine.waiting import pause
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.reads.browse import BrowsePace, Pages
from tests.helpers.days import Days


@pytest.fixture
def queue(db: Any, space: Subspace) -> Queue:
    queue = Queue(space, codec="json")
    queue.enqueue_many(db, range(2_500))
    return queue


def test_items_come_in_order_blocking_and_awaited(db: Any, queue: Queue) -> None:
    async def awaited(limit: int | None) -> list[int]:
        return [item.value async for item in queue.browse(db, limit=limit)]

    assert [item.value for item in queue.browse(db)] == list(range(2_500))
    assert asyncio.run(awaited(None)) == list(range(2_500))
    assert asyncio.run(awaited(1_200)) == list(range(1_200))
    browser = queue.browse(db, reverse=True, duty_cycle=0.9)
    assert "for item in it" in repr(browser), "who forgets to go through it is told how"
    assert [next(browser).value, next(browser).value] == [2_499, 2_498]


def test_large_items_and_those_of_other_states_are_awaited_too(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    queue.enqueue(db, "x" * 200_000)
    queue.enqueue(db, "small")

    async def sizes() -> list[int]:
        return [len(item.value) async for item in queue.browse(db)]

    async def consumers() -> list[str]:
        return [kept.consumer async for kept in leases.browse(db, state="leased")]

    assert asyncio.run(sizes()) == [200_000, 5]
    leases.lease_many(db, consumer="me")
    assert asyncio.run(consumers()) == ["me", "me"]
    assert asyncio.run(sizes()) == []


def test_an_unreadable_item_is_reported_when_it_is_reached(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "first")
    position = queue.enqueue(db, "second")
    db[queue.layout.item_key(position)] = b"\xff"
    queue.enqueue(db, "third")
    browser = queue.browse(db)
    assert next(browser).value == "first"
    with pytest.raises(FormatError):
        next(browser)
    assert [item.value for item in queue.browse(db, after=position)] == ["third"]
    subscriptions = Subscriptions(queue)
    assert [item.value for item in subscriptions.browse(db, selector="TRUE")] == ["first", "third"]
    with pytest.raises(FormatError):
        list(subscriptions.browse(db))


@pytest.mark.parametrize("duty_cycle", [0.1, 0.5, 1.0])
def test_reading_takes_no_more_than_its_share_of_the_time(db: Any, queue: Queue, duty_cycle: float) -> None:
    days = Days()
    pages = Pages(db, queue.layout.begin, queue.layout.end, pace=BrowsePace(duty_cycle, clock=days, rest=days.rest))
    found: list[KeyValue] = []
    read = 0
    while (page := run(pages.next())) is not None:
        found += page
        read += 1
    assert len(found) == 2_500
    # A page takes a second by this clock, and to look at it whether to rest takes one too.
    assert days.rests == pytest.approx([max(0.0, 1 / duty_cycle - 2)] * (read - 1 if duty_cycle < 0.5 else 0))


def test_a_slow_browse_does_not_pause_longer_than_needed(db: Any, queue: Queue) -> None:
    days = Days()
    pages = Pages(db, queue.layout.begin, queue.layout.end, pace=BrowsePace(0.1, clock=days, rest=days.rest))
    run(pages.next())
    days.now += 6
    run(pages.next())
    days.now += 60
    run(pages.next())
    assert days.rests == [2.0]


def test_a_transaction_is_read_without_rests(db: Any, queue: Queue) -> None:
    days = Days()
    tr = db.create_transaction()
    pages = Pages(tr, queue.layout.begin, queue.layout.end, pace=BrowsePace(0.01, clock=days, rest=days.rest))
    while run(pages.next()) is not None:
        pass
    assert days.rests == []


def test_a_rest_ends_in_a_thread_and_in_an_event_loop() -> None:
    run(pause(0.001))
    asyncio.run(run_async(pause(0.001)))


def test_a_browser_asks_for_facts_too(db: Any, queue: Queue) -> None:
    found = Subscriptions(queue).browse(db, selector="fdbqueue_index = 7", limit=1, duty_cycle=1)
    assert [item.position.index for item in found] == [7]
