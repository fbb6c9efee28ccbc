"""The terms of what subscriptions enqueue: those that leases and priority queues have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import AmqpLevels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.subscribing import of_color, started, values


@pytest.fixture
def leveled(space: Subspace, clock: Clock) -> Subscriptions:
    """Subscriptions to a queue with levels."""
    return Subscriptions(PriorityQueue(Queue(space, codec="str"), levels=3, clock=clock).leases)


@pytest.mark.parametrize("many", [False, True])
def test_an_item_of_a_higher_priority_is_delivered_first(db: Any, leveled: Subscriptions, many: bool) -> None:
    everything = leveled.subscribe(db, "all")
    for value, priority in [("later", 2), ("soon", 1), ("now", 0), ("soon too", 1)]:
        if many:
            assert leveled.enqueue_many(db, [value], priority=priority).items == 1
        else:
            assert leveled.enqueue(db, value, priority=priority) is not None
    taken = everything.lease_many(db)
    assert values(taken) == ["now", "soon", "soon too", "later"]
    assert [lease.headers["priority"] for lease in taken] == [0, 1, 1, 2]
    assert leveled.check(db).ok


def test_a_priority_is_seen_by_selectors_as_it_was_sent(db: Any, space: Subspace) -> None:
    amqp = Subscriptions(PriorityQueue(Queue(space, codec="str"), levels=AmqpLevels(3)).leases)
    high = amqp.subscribe(db, "high", selector="JMSPriority > 5 AND color = 'red'")
    amqp.enqueue(db, "low", priority=1, headers={"color": "red"})
    amqp.enqueue(db, "high", priority=9, headers={"color": "red"})
    assert values(high.lease_many(db)) == ["high"]


def test_an_item_with_a_priority_is_delivered_to_a_consumer_that_waits(db: Any, leveled: Subscriptions) -> None:
    async def session() -> None:
        [task] = await started(leveled, db, leveled.subscribe(db, "all"))
        delivery = await leveled.enqueue.aio(db, "x", priority=0, immediate=True)
        assert delivery is not None
        assert (delivery.subscription, delivery.position.rank) == ("all", 0)
        assert (await task).headers == {"priority": 0}

    asyncio.run(session())


@pytest.mark.parametrize("priority", [3, -1, True, "0", 1.0])
def test_a_priority_that_the_queue_has_not_is_refused(db: Any, leveled: Subscriptions, priority: Any) -> None:
    with pytest.raises(ValueError, match="integer from 0 to 2"):
        leveled.enqueue(db, "x", priority=priority)
    with pytest.raises(ValueError, match="integer from 0 to 2"):
        leveled.enqueue_many(db, ["x"], priority=priority)
    assert leveled.leases.stats(db).enqueued == 0


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("term", ["delay", "at"])
def test_an_item_with_a_delay_is_delivered_at_its_time_and_in_its_place(
    db: Any, subscriptions: Subscriptions, clock: Clock, term: str, many: bool
) -> None:
    everything = subscriptions.subscribe(db, "all")
    terms: dict[str, Any] = {"delay": 10.0} if term == "delay" else {"at": clock.now + 10}
    if many:
        assert subscriptions.enqueue_many(db, ["a", "b"], **terms).items == 2
    else:
        for value in ("a", "b"):
            delivery = subscriptions.enqueue(db, value, **terms)
            assert delivery is not None
            assert delivery.subscription is None
    subscriptions.enqueue(db, "c", headers={"n": 1})
    assert subscriptions.leases.stats(db).delayed == 2
    clock.now += 10
    assert values(everything.lease_many(db)) == ["a", "b", "c"]
    assert subscriptions.check(db).problems == ()


def test_a_delayed_item_wakes_a_waiting_consumer_when_it_is_due(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Queue(space, codec="str"))

    async def session() -> None:
        [task] = await started(subscriptions, db, of_color(subscriptions, db, "red"))
        delivery = await subscriptions.enqueue.aio(db, "r", headers={"color": "red"}, delay=0.3)
        assert delivery is not None
        assert delivery.subscription is None
        assert (await task).value == "r"

    asyncio.run(session())


@pytest.mark.parametrize("many", [False, True])
def test_an_item_that_expires_before_its_delay_ends_is_never_delivered(
    db: Any, subscriptions: Subscriptions, clock: Clock, many: bool
) -> None:
    everything = subscriptions.subscribe(db, "all")
    if many:
        subscriptions.enqueue_many(db, ["x"], delay=20, ttl=10)
    else:
        subscriptions.enqueue(db, "x", delay=20, ttl=10)
    clock.now += 20
    assert everything.lease(db) is None
    assert subscriptions.leases.stats(db).expired == 1


def test_no_delay_goes_together_with_immediate(db: Any, subscriptions: Subscriptions) -> None:
    subscriptions.subscribe(db, "all")
    assert subscriptions.enqueue(db, "x", delay=0, immediate=True) is None  # now, and no consumer waits
    assert subscriptions.leases.stats(db).enqueued == 0


def test_terms_take_part_in_a_callers_transaction(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    subscriptions.subscribe(db, "all")
    tr = db.create_transaction()
    subscriptions.enqueue(tr, "a", delay=5)
    assert subscriptions.enqueue_many(tr, ["b", "c"], ttl=5).items == 2
    assert leases.stats(db).enqueued == 0
    tr.commit().wait()
    stats = leases.stats(db)
    assert (stats.available, stats.delayed) == (2, 1)
    assert subscriptions.check(db).problems == ()
