"""Subscriptions: on whose credit, in items and in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.layers.leases import Leases
from fdbqueue.layers.leases.timers import FIRE_LIMIT
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions.head import LAG_SECONDS
from fdbqueue.layers.subscriptions.records import Credit
from tests.helpers.clock import Clock
from tests.helpers.subscribing import fill, of_color, values


def test_credit_is_never_negative_and_returns_when_leases_end(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, *["red"] * 8)
    red.grant(db, items=3)
    taken = red.lease_many(db, duration=10)
    assert values(taken) == ["red0", "red1", "red2"]
    assert red.credit(db) == Credit(0, None)
    assert red.lease(db) is None
    red.ack(db, taken[0])
    leases.nack(db, taken[1])
    assert red.credit(db) == Credit(2, None)
    assert values(red.lease_many(db, duration=5)) == ["red1", "red3"]
    clock.now += 20
    leases.reclaim(db)
    assert red.credit(db) == Credit(3, None)
    red.grant(db, items=0)
    assert red.lease(db) is None
    red.grant(db, items=None)
    assert values(red.lease_many(db)) == ["red1", "red2", "red3", "red4", "red5", "red6", "red7"]
    red.grant(db, items=2)
    assert red.credit(db) == Credit(0, None)
    assert subscriptions.check(db).problems == ()


def test_credit_in_bytes_ends_before_the_item_that_is_too_much(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    subscription = subscriptions.subscribe(db, "all")
    for size in (100, 100, 100, 10):
        leases.enqueue(db, "x" * size)
    subscription.grant(db, items=None, size_bytes=250)
    taken = subscription.lease_many(db)
    assert [len(lease.value) for lease in taken] == [100, 100]
    assert subscription.lease(db) is None  # the small one stands behind
    assert subscriptions.check(db).problems == ()
    left = subscription.credit(db)
    assert left.size_bytes is not None
    assert 0 <= left.size_bytes < 50
    leases.extend(db, taken[0], duration=50)
    assert subscription.credit(db) == left
    subscription.ack(db, taken[0])
    assert [len(lease.value) for lease in subscription.lease_many(db)] == [100, 10]
    assert subscriptions.check(db).problems == ()


def test_a_returned_item_that_exceeds_the_credit_is_not_skipped(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    subscription = subscriptions.subscribe(db, "all")
    for size in (100, 10, 10):
        leases.enqueue(db, "x" * size)
    large, *_ = subscription.lease_many(db)
    leases.nack(db, large)
    subscription.grant(db, items=None, size_bytes=50)
    leases.enqueue(db, "x" * 10)
    clock.now += LAG_SECONDS / 4  # so that it notes how far it has looked
    assert subscription.lease_many(db) == []
    assert subscriptions.check(db).problems == ()
    subscription.grant(db, items=None)
    assert [len(lease.value) for lease in subscription.lease_many(db)] == [100, 10]


def test_a_subscription_without_credit_blocks_no_other(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    poor, other = subscriptions.subscribe(db, "poor"), subscriptions.subscribe(db, "other")
    poor.grant(db, items=0)
    fill(leases, db, "red")
    assert poor.lease(db) is None
    assert values(other.lease_many(db)) == ["red0"]


def test_credit_returns_however_many_timers_are_due_before(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    one = subscriptions.subscribe(db, "one")
    one.grant(db, items=1)
    leases.enqueue(db, "mine")
    assert one.lease(db, duration=20) is not None
    leases.enqueue_many(db, [f"{n}" for n in range(FIRE_LIMIT)], delay=10)
    clock.now += 30
    again = one.lease(db)
    assert again is not None
    assert again.value == "mine"


@pytest.mark.parametrize("grant", [{"items": 3}, {"items": None, "size_bytes": 5}])
def test_remaining_credit_does_not_hide_returned_items(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock, grant: Any
) -> None:
    few = subscriptions.subscribe(db, "few")
    few.grant(db, **grant)
    leases.enqueue_many(db, ["a", "b"])
    assert len(few.lease_many(db, duration=20)) == 2
    clock.now += 30
    assert values(few.lease_many(db, limit=2)) == ["a", "b"]
