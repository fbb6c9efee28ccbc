"""The short cut of an exclusive subscription that wants everything, and what holds when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.layers.subscriptions.records import DISPATCHER
from fdbqueue.stored.known import Look, OwnChanges
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.consuming import until
from tests.helpers.subscribing import life_of, stand_in_line, standing, values


@pytest.fixture
def mine(db: Any, subscriptions: Subscriptions) -> Subscription:
    return subscriptions.subscribe(db, "mine", exclusive=True)


def fill(leases: Leases, db: Any, *names: str) -> None:
    for name in names:
        leases.enqueue(db, name)


def arrivals(leases: Leases, db: Any) -> int:
    span = leases.layout.arrivals.range()
    return len(db.create_transaction().get_range(span.start, span.stop).to_list())


def known(leases: Leases) -> str | None:
    """Return whom this process takes for the sole one."""
    return leases.layout.known.exclusive_all


Ends = Callable[[Any, Subscriptions], Any]
ENDS: list[Ends] = [
    lambda tr, subscriptions: subscriptions.subscribe(tr, "mine", exclusive=True),
    lambda tr, subscriptions: subscriptions.subscribe(tr, "mine"),
    lambda tr, subscriptions: subscriptions.subscribe(tr, "mine", selector="TRUE", exclusive=True),
    lambda tr, subscriptions: subscriptions.subscribe(tr, "beside"),
    lambda tr, subscriptions: subscriptions.unsubscribe(tr, "mine"),
]
ENDINGS = pytest.mark.parametrize(
    "end", ENDS, ids=["taken over", "shared", "with a condition", "not alone", "unsubscribed"]
)


def test_items_come_in_order_and_nothing_is_noted_for_it(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    fill(leases, db, "0", "1", "2", "3")
    taken = mine.lease_many(db, limit=3)
    assert values(taken) == ["0", "1", "2"]
    leases.nack(db, taken[1])
    leases.snooze(db, taken[0], delay=5)
    assert values(mine.lease_many(db, limit=1)) == ["1"]
    clock.now += 6
    assert values(mine.lease_many(db)) == ["0", "3"]
    assert arrivals(leases, db) == 0
    assert known(leases) == "mine"
    assert not leases.layout.known.subscribed
    assert subscriptions.check(db).problems == ()


@ENDINGS
@pytest.mark.parametrize("first", ["lease", "end"])
def test_of_its_owners_lease_and_its_end_at_the_same_time_one_fails(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock, end: Ends, first: str
) -> None:
    fill(leases, db, "x")
    clock.now += 29
    lending, ending = db.create_transaction(), db.create_transaction()
    assert values(mine.lease_many(lending)) == ["x"]  # which renews it, so that both write the same key
    clock.now += 2
    end(ending, subscriptions)
    transactions = [lending, ending] if first == "lease" else [ending, lending]
    assert not conflicts(transactions[0])
    assert conflicts(transactions[1])


@ENDINGS
def test_a_lease_that_renews_nothing_fails_too_when_it_ends(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock, end: Ends
) -> None:
    fill(leases, db, "x", "y")
    lending = db.create_transaction()
    assert values(mine.lease_many(lending, limit=1)) == ["x"]
    clock.now += 31
    end(db, subscriptions)
    assert conflicts(lending)
    with pytest.raises(SubscriptionError):
        mine.lease(db)
    assert leases.stats(db).leased == 0


@ENDINGS
def test_a_delivery_to_its_owner_fails_when_it_ends_at_the_same_time(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock, end: Ends
) -> None:
    fill(leases, db, "known by now")
    assert mine.lease(db, duration=1000) is not None
    stand_in_line(subscriptions, db, b"client", "mine")
    clock.now += 31
    stand_in_line(subscriptions, db, b"client later", "mine")
    delivering = db.create_transaction()
    assert known(leases) == "mine"
    delivery = subscriptions.enqueue(delivering, "x", immediate=True)
    assert delivery is not None
    end(db, subscriptions)
    assert conflicts(delivering)


@ENDINGS
def test_no_subscription_misses_items_that_came_without_notes(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock, end: Ends
) -> None:
    slow = db.create_transaction()
    fill(leases, db, "0", "1", "2", "3")
    leases.enqueue(slow, "slow")
    taken = mine.lease_many(db, limit=2, duration=1000)
    leases.nack(db, taken[0])
    releasing = db.create_transaction()
    leases.nack(releasing, taken[1])
    clock.now += 31
    end(db, subscriptions)
    heir = subscriptions.subscribe(db, "beside") if end is ENDS[3] or end is ENDS[4] else None
    if heir is None:
        clock.now += 31
        heir = subscriptions.subscribe(db, "mine")
    seen = values(heir.lease_many(db, limit=2, duration=1000))
    assert seen == ["0", "2"]
    assert conflicts(releasing), "who gives back must learn that arrivals are noted again"
    leases.nack(db, taken[1])
    assert values(heir.lease_many(db, limit=1, duration=1000)) == ["1"]
    assert not conflicts(slow), "and who enqueues never fails"
    rest = values(heir.lease_many(db, duration=1000))
    assert sorted(rest) == ["3", "slow"]
    assert subscriptions.check(db).problems == ()


def test_a_subscription_forgets_its_pointer_when_it_becomes_exclusive(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    shared = subscriptions.subscribe(db, "mine")
    fill(leases, db, "0", "1")
    lease = shared.lease(db, duration=1000)
    assert lease is not None
    assert shared.lease(db, timeout=0.01) is not None
    assert shared.lease(db, timeout=0.01) is None
    mine = subscriptions.subscribe(db, "mine", exclusive=True)
    assert arrivals(leases, db) == 0
    assert db.get(leases.layout.pointers.pack((DISPATCHER,))) is None
    leases.nack(db, lease)  # noted by nobody
    clock.now += 31
    again = subscriptions.subscribe(db, "mine")
    assert values(again.lease_many(db)) == ["0", "1"]
    with pytest.raises(SubscriptionError):
        mine.lease(db)


def test_a_lease_conflicts_with_arrivals_ahead_and_not_with_arrivals_behind(
    db: Any, leases: Leases, mine: Subscription
) -> None:
    fill(leases, db, "0", "1")
    front = mine.lease(db)
    assert front is not None
    tr = db.create_transaction()
    assert values(mine.lease_many(tr)) == ["1"]
    fill(leases, db, "behind")
    assert not conflicts(tr)
    tr = db.create_transaction()
    assert values(mine.lease_many(tr)) == ["behind"]
    leases.nack(db, front)
    assert conflicts(tr)
    tr = db.create_transaction()
    assert values(mine.lease_many(tr, limit=3)) == ["0", "behind"]
    assert mine.lease(tr) is None
    fill(leases, db, "something, after all")
    assert conflicts(tr), "it was told that there is nothing"


def test_consumers_without_a_subscription_that_notice_it_late_take_items_once(
    db: Any, leases: Leases, mine: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(leases, db, "0", "1")
    lending, taking = db.create_transaction(), db.create_transaction()
    assert values(mine.lease_many(lending)) == ["0", "1"]
    leases.layout.known.note(Look(time.monotonic() + 1_000, OwnChanges.count), db)  # as a process that has just looked
    leases.layout.known.is_open = True
    assert leases.lease(taking) is not None
    assert not conflicts(taking)
    assert conflicts(lending)
    assert values(mine.lease_many(db)) == ["1"]


def test_credit_is_kept_by_items_and_by_bytes(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    fill(leases, db, "x" * 10, "x" * 30, "x" * 10)
    mine.grant(db, items=2)
    first = mine.lease_many(db, duration=10)
    assert len(first) == 2
    assert mine.lease(db) is None
    clock.now += 11
    assert len(mine.lease_many(db, duration=10)) == 2, "what it let expire is its own until somebody comes by"
    clock.now += 11
    leases.reclaim(db)
    mine.grant(db, items=None, size_bytes=20)
    taken = mine.lease_many(db)
    assert [len(lease.value) for lease in taken] == [10]
    assert mine.lease(db) is None
    mine.grant(db, items=None, size_bytes=1_000)
    assert [len(lease.value) for lease in mine.lease_many(db)] == [30, 10]
    mine.suspend(db)
    fill(leases, db, "y")
    assert mine.lease(db) is None
    mine.resume(db)
    assert values(mine.lease_many(db)) == ["y"]
    assert subscriptions.check(db).problems == ()


def test_of_a_delivery_and_a_lease_behind_it_on_the_last_credit_one_conflicts(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription
) -> None:
    mine.grant(db, items=1)
    assert subscriptions.enqueue(db, "nobody waits", immediate=True) is None
    stand_in_line(subscriptions, db, b"client", "mine")
    delivering = db.create_transaction()
    assert subscriptions.enqueue(delivering, "in front", immediate=True) is not None
    leases.enqueue(db, "has the same index, and is not there", delay=1000)
    leases.enqueue(db, "behind")
    lending = db.create_transaction()
    assert values(mine.lease_many(lending)) == ["behind"]
    assert not conflicts(lending)
    assert conflicts(delivering)
    assert mine.credit(db).items == 0


def test_an_ack_disturbs_no_lease_on_limited_credit(db: Any, leases: Leases, mine: Subscription) -> None:
    mine.grant(db, items=2)
    fill(leases, db, "0", "1")
    lease = mine.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    assert values(mine.lease_many(tr)) == ["1"]
    mine.ack(db, lease)
    assert not conflicts(tr)


def test_an_enqueue_delivers_to_the_first_waiter_if_no_item_is_ahead(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    fill(leases, db, "front")
    life = life_of(subscriptions, db)
    for client in (b"dead", b"first", b"second"):
        stand_in_line(subscriptions, db, client, "mine")
        clock.now += life / 3 if client == b"dead" else 0
    assert known(leases) == "mine"
    assert subscriptions.enqueue(db, "x", immediate=True) is None
    front = mine.lease(db, duration=1000)
    assert front is not None
    clock.now += 0.7 * life  # the one who died waiting is passed over, and the others still wait
    for client in (b"second", b""):
        delivery = subscriptions.enqueue(db, "x", immediate=True)
        assert delivery is not None
        assert delivery.subscription == "mine"
        assert standing(subscriptions, db) == ([("mine", client)] if client else [])
    assert subscriptions.enqueue(db, "x", immediate=True) is None
    assert db.get(leases.layout.pointers.pack((DISPATCHER,))) is None
    assert subscriptions.check(db).problems == ()


def test_a_stale_cached_owner_does_not_stop_a_delivery(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    fill(leases, db, "x")
    assert mine.lease(db) is not None
    subscriptions.unsubscribe(db, "mine")
    other = subscriptions.subscribe(db, "other")
    stand_in_line(subscriptions, db, b"client", "other")
    assert known(leases) == "mine"
    delivery = subscriptions.enqueue(db, "y", immediate=True)
    assert delivery is not None
    assert delivery.subscription == "other"
    assert known(leases) is None
    assert other.lease(db) is None


def test_a_process_with_a_cached_owner_still_checks_the_selector(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    fill(leases, db, "x")
    assert mine.lease(db) is not None
    clock.now += 31
    subscriptions.subscribe(db, "mine", selector="color = 'red'", exclusive=True)
    stand_in_line(subscriptions, db, b"client", "mine")
    assert known(leases) == "mine"
    assert subscriptions.enqueue(db, "blue", headers={"color": "blue"}, immediate=True) is None


def test_a_process_that_does_not_know_it_yet_delivers_without_a_pointer_too(
    db: Any, space: Subspace, subscriptions: Subscriptions, mine: Subscription, clock: Clock
) -> None:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    stand_in_line(subscriptions, db, b"client", "mine")
    pointer = db.get(leases.layout.pointers.pack(("mine",)))
    delivery = Subscriptions(leases).enqueue(db, "x", immediate=True)
    assert delivery is not None
    assert db.get(leases.layout.pointers.pack(("mine",))) == pointer
    clock.now += 11
    assert leases.reclaim(db).reclaimed, "which nobody notes"
    clock.now += 20
    assert values(subscriptions.subscribe(db, "mine").lease_many(db)) == ["x"]


def test_a_delivery_conflicts_with_an_arrival_ahead_of_it(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription
) -> None:
    fill(leases, db, "front")
    lease = mine.lease(db)
    assert lease is not None
    stand_in_line(subscriptions, db, b"client", "mine")
    delivering = db.create_transaction()
    assert subscriptions.enqueue(delivering, "x", immediate=True) is not None
    leases.nack(db, lease)
    assert conflicts(delivering)


def test_an_enqueue_that_finds_no_waiter_conflicts_with_nothing(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription
) -> None:
    fill(leases, db, "x")
    enqueueing = db.create_transaction()
    assert subscriptions.enqueue(enqueueing, "y") is not None
    assert mine.lease(db) is not None
    mine.suspend(db)
    mine.resume(db)
    assert not conflicts(enqueueing)


def test_waiting_calls_get_arriving_items_in_order(db: Any, space: Subspace) -> None:
    async def session() -> None:
        leases = Leases(Queue(space, codec="str"))
        subscriptions = Subscriptions(leases)
        mine = subscriptions.subscribe(db, "mine", exclusive=True)

        async def waiting(amount: int) -> list[asyncio.Task[Any]]:
            tasks = [asyncio.create_task(mine.lease.aio(db, timeout=100, duration=0.3)) for _ in range(amount)]
            await until(lambda: len(standing(subscriptions, db)) == amount or any(one.done() for one in tasks))
            return tasks

        tasks = await waiting(3)
        await leases.queue.enqueue_many.aio(db, ["0", "1", "2"])
        assert sorted(lease.value for lease in await asyncio.gather(*tasks)) == ["0", "1", "2"]
        [task] = await waiting(1)
        back = await task
        assert back.attempt == 2  # when a lease had ended
        leases.ack(db, back)
        held: list[Lease] = []

        def both_are_back() -> bool:  # the other two, whose leases end at times of their own
            held.extend(mine.lease_many(db, limit=2 - len(held), duration=100))
            return len(held) == 2

        await until(both_are_back)
        for lease in held:
            [task] = await waiting(1)
            leases.nack(db, lease)
            again = await task
            assert (again.value, again.attempt) == (lease.value, lease.attempt + 1)
            leases.ack(db, again)
        assert arrivals(leases, db) == 0
        assert db.get(leases.layout.pointers.pack((DISPATCHER,))) is None

    asyncio.run(session())


def test_waiting_calls_of_a_former_owner_fail_when_it_is_replaced(
    db: Any, subscriptions: Subscriptions, mine: Subscription, clock: Clock
) -> None:
    async def session() -> None:
        tasks = [asyncio.create_task(mine.lease.aio(db, timeout=None)) for _ in range(2)]
        await until(lambda: len(standing(subscriptions, db)) == 2)
        clock.now += 31
        subscriptions.subscribe(db, "mine", exclusive=True)
        assert standing(subscriptions, db) == []
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            with pytest.raises(SubscriptionError, match="another's"):
                task.result()
        assert subscriptions.enqueue(db, "x", immediate=True) is None

    asyncio.run(session())


def test_an_item_that_expires_while_credit_is_short_is_counted_once(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    mine.grant(db, items=2)
    fill(leases, db, "held")
    assert mine.lease(db, duration=100) is not None
    leases.enqueue(db, "mortal", ttl=5)
    fill(leases, db, "x", "y")
    clock.now += 6
    assert values(mine.lease_many(db, limit=2)) == ["x"]
    assert leases.stats(db).available == 1
    assert not leases.check(db).problems


def test_an_item_that_is_delivered_keeps_its_time_to_live(
    db: Any, subscriptions: Subscriptions, leases: Leases, mine: Subscription, clock: Clock
) -> None:
    assert subscriptions.enqueue(db, "nobody waits", ttl=5) is not None
    clock.now += 6
    leases.reclaim(db)
    stand_in_line(subscriptions, db, b"client", "mine")
    assert subscriptions.enqueue(db, "delivered", ttl=5, immediate=True) is not None
    assert leases.stats(db).leased == 1
    clock.now += 11  # nobody has collected it
    leases.reclaim(db)
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.expired) == (0, 0, 2)
    assert subscriptions.check(db).problems == ()
