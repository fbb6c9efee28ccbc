"""Consumers of subscriptions: what they select, on its credit, and whose it stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.engine.waiting import Promise
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease, Leases, immediately
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions.records import read_registration
from tests.helpers.clock import Clock
from tests.helpers.consuming import until
from tests.helpers.subscribing import fill, of_color, until_waiting


@pytest.fixture
def subscriptions(space: Subspace) -> Subscriptions:
    return Subscriptions(Leases(Queue(space, codec="str"), max_attempts=2, backoff=immediately))


def test_it_handles_what_is_selected_and_leaves_the_rest(db: Any, subscriptions: Subscriptions) -> None:
    red = of_color(subscriptions, db, "red")
    fill(subscriptions.leases, db, "red", "blue", "red", "bad")
    subscriptions.leases.enqueue(db, "broken", headers={"color": "red"})
    handled: list[tuple[str, str]] = []

    async def handle(lease: Lease) -> None:
        handled.append((lease.value, lease.consumer))
        if lease.value == "broken":
            raise LookupError

    report = Consumer(red, handle, consumer="painter").drain(db)
    assert (report.acked, report.failed, report.dead) == (2, 2, 1)
    assert handled[:3] == [("red0", "painter"), ("red2", "painter"), ("broken", "painter")]
    assert [item.value for item in subscriptions.leases.queue.browse(db)] == ["blue1", "bad3"]
    assert subscriptions.check(db).ok


def test_a_consumer_stays_within_its_credit_and_goes_on_as_credit_returns(
    db: Any, subscriptions: Subscriptions
) -> None:
    red = of_color(subscriptions, db, "red")
    red.grant(db, items=2)
    fill(subscriptions.leases, db, *["red"] * 12)
    held: list[int] = []

    def handle(lease: Lease) -> None:
        held.append(subscriptions.stats(db)[0].held)

    assert Consumer(red, handle, concurrency=8).drain(db).acked == 12
    assert max(held) <= 2


def test_it_waits_for_items_and_gives_back_what_it_had_not_begun(db: Any, subscriptions: Subscriptions) -> None:
    red = of_color(subscriptions, db, "red")

    async def handle(lease: Lease) -> None:
        consumer.stop()
        for _ in range(3):
            await asyncio.sleep(0)  # for the loop to hear of it

    async def main() -> None:
        running = asyncio.create_task(consumer.run.aio(db))
        await until_waiting(subscriptions, db, 1)
        await subscriptions.leases.enqueue_many.aio(db, ["red"] * 5, headers={"color": "red"})
        assert (await running).acked == 1

    consumer = Consumer(red, handle, concurrency=1, prefetch=3)
    asyncio.run(main())
    stats = subscriptions.leases.stats(db)
    assert (stats.available, stats.leased, stats.dequeued) == (4, 0, 1)
    assert subscriptions.check(db).ok


class Late:
    """A database whose commits take effect at once, and say so when a test lets them."""

    def __init__(self, inner: Any, gate: Promise) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_transaction(self) -> LateTransaction:
        return LateTransaction(self._inner.create_transaction(), self._gate)


class LateTransaction:
    def __init__(self, inner: Any, gate: Promise) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> Promise:
        self._inner.commit().wait()
        return self._gate


def test_an_item_leased_while_the_consumer_stops_is_given_back(db: Any, subscriptions: Subscriptions) -> None:
    red = of_color(subscriptions, db, "red")
    fill(subscriptions.leases, db, *["red"] * 3)
    gate = Promise()

    async def main() -> None:
        consumer = Consumer(red, print)
        running = asyncio.create_task(consumer.drain.aio(Late(db, gate)))
        await until(lambda: subscriptions.leases.stats(db).leased)
        consumer.stop()
        for _ in range(5):
            await asyncio.sleep(0)
        gate.keep()
        assert (await running).returned == 3

    asyncio.run(main())
    assert subscriptions.leases.stats(db).available == 3


def test_it_ends_when_its_subscription_is_taken_away(db: Any, subscriptions: Subscriptions) -> None:
    red = of_color(subscriptions, db, "red")

    async def main() -> None:
        running = asyncio.create_task(Consumer(red, print).run.aio(db))
        await until_waiting(subscriptions, db, 1)
        await subscriptions.unsubscribe.aio(db, "red")
        with pytest.raises(SubscriptionError, match="removed"):
            await running

    asyncio.run(main())


def test_an_owner_with_slow_handlers_keeps_its_subscription(db: Any, space: Subspace, clock: Clock) -> None:
    subscriptions = Subscriptions(Leases(Queue(space, codec="str"), clock=clock))
    own = subscriptions.subscribe(db, "own", exclusive=True, ownership=0.3)
    fill(subscriptions.leases, db, "red")
    layout = subscriptions.leases.layout
    key = layout.subscriptions.pack(("own",))

    async def handle(lease: Lease) -> None:
        for _ in range(5):
            clock.now += 0.2
            await until(
                lambda: read_registration(layout, "own", bytes(db[key])).owned_until_us >= clock.now * 1e6 + 250_000
            )

    assert Consumer(own, handle, concurrency=1, prefetch=0, duration=1_000).drain(db).acked == 1


def test_an_owner_that_is_one_no_more_can_not_renew_it(db: Any, subscriptions: Subscriptions) -> None:
    shared = of_color(subscriptions, db, "red")
    shared.renew(db)
    assert shared.ownership == 0
    subscriptions.unsubscribe(db, "red")
    with pytest.raises(SubscriptionError, match="unsubscribed"):
        shared.renew(db)
    former = subscriptions.subscribe(db, "own", exclusive=True)
    former.close(db)
    owner = subscriptions.subscribe(db, "own", exclusive=True)
    owner.renew(db)
    with pytest.raises(SubscriptionError, match="another's"):
        former.renew(db)
