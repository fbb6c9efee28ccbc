"""Two transactions at once: their reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.subscribing import fill, of_color, values


@pytest.fixture
def red(db: Any, subscriptions: Subscriptions) -> Subscription:
    return of_color(subscriptions, db, "red")


@pytest.fixture
def blue(db: Any, subscriptions: Subscriptions) -> Subscription:
    return of_color(subscriptions, db, "blue")


def test_subscriptions_that_take_different_items_do_not_conflict(
    db: Any, leases: Leases, red: Subscription, blue: Subscription
) -> None:
    fill(leases, db, *["red", "blue"] * 3)
    first, second = db.create_transaction(), db.create_transaction()
    assert values(red.lease_many(first)) == ["red0", "red2", "red4"]
    assert values(blue.lease_many(second)) == ["blue1", "blue3", "blue5"]
    assert not conflicts(first)
    assert not conflicts(second)


def test_of_two_subscriptions_that_want_the_same_item_one_gets_it(
    db: Any, subscriptions: Subscriptions, leases: Leases, red: Subscription
) -> None:
    everything = subscriptions.subscribe(db, "all")
    fill(leases, db, "blue", "red")
    first, second = db.create_transaction(), db.create_transaction()
    assert values(everything.lease_many(first)) == ["blue0", "red1"]
    assert values(red.lease_many(second)) == ["red1"]
    assert not conflicts(first)
    assert conflicts(second)
    assert red.lease(db) is None


def test_two_consumers_of_one_subscription_conflict(db: Any, leases: Leases, red: Subscription) -> None:
    fill(leases, db, "red", "red")
    first, second = db.create_transaction(), db.create_transaction()
    assert values(red.lease_many(first, limit=1)) == values(red.lease_many(second, limit=1)) == ["red0"]
    assert not conflicts(first)
    assert conflicts(second)


def test_a_lease_and_a_plain_dequeue_of_the_same_item_conflict(db: Any, leases: Leases, red: Subscription) -> None:
    fill(leases, db, "red", "red")
    lending, taking = db.create_transaction(), db.create_transaction()
    assert red.lease(lending) is not None
    assert leases.queue.dequeue(taking) is not None
    assert not conflicts(taking)
    assert conflicts(lending)


def test_a_producer_behind_the_taken_items_conflicts_with_no_consumer(
    db: Any, leases: Leases, red: Subscription
) -> None:
    fill(leases, db, "red")
    lending, producing = db.create_transaction(), db.create_transaction()
    assert len(red.lease_many(lending)) == 1
    leases.enqueue(producing, "behind", headers={"color": "red"})
    leases.enqueue(db, "another", headers={"color": "red"})
    assert not conflicts(lending)
    assert not conflicts(producing)


def test_a_lease_conflicts_with_an_arrival_ahead_of_it(
    db: Any, leases: Leases, red: Subscription, clock: Clock
) -> None:
    slow = db.create_transaction()
    leases.enqueue(slow, "slow", headers={"color": "red"})
    fill(leases, db, "red", "red", "red")
    front = red.lease(db)
    assert front is not None
    for what in ("nack", "slow producer", "timer"):
        tr = db.create_transaction()
        taken = red.lease(tr)
        assert taken is not None
        if what == "nack":
            leases.nack(db, front)
        elif what == "slow producer":
            assert not conflicts(slow)
        else:
            clock.now += 100
            assert leases.reclaim(db).reclaimed
        assert conflicts(tr), what
        front = red.lease(db, duration=10)
        assert front is not None
        assert front.position < taken.position or what == "timer"


def test_an_item_given_back_behind_the_taken_ones_does_not_conflict(db: Any, leases: Leases, red: Subscription) -> None:
    fill(leases, db, "red", "red", "red")
    taken = red.lease_many(db, limit=2)
    leases.nack(db, taken[0])
    tr = db.create_transaction()
    assert values(red.lease_many(tr, limit=1)) == ["red0"]
    leases.nack(db, taken[1])
    assert not conflicts(tr)


def test_an_arrival_while_a_lease_commits_is_seen_by_the_next_one(db: Any, leases: Leases, red: Subscription) -> None:
    slow = db.create_transaction()
    leases.enqueue(slow, "slow", headers={"color": "blue"})
    fill(leases, db, "red", "red")
    tr = db.create_transaction()
    assert values(red.lease_many(tr)) == ["red0", "red1"]
    assert not conflicts(slow)
    assert conflicts(tr), "it might have been wanted"
    assert values(red.lease_many(db)) == ["red0", "red1"]


def test_a_lease_that_found_no_item_conflicts_with_an_enqueue(
    db: Any, leases: Leases, red: Subscription, space: Subspace
) -> None:
    tr = db.create_transaction()
    assert red.lease(tr) is None
    tr[space.pack(("decided",))] = b"there was nothing to do"
    fill(leases, db, "red")
    assert conflicts(tr)


def test_a_lease_conflicts_with_its_suspension_its_credit_and_its_end(
    db: Any, subscriptions: Subscriptions, leases: Leases, red: Subscription
) -> None:
    fill(leases, db, *["red"] * 4)
    for what in ("suspend", "grant", "unsubscribe"):
        tr = db.create_transaction()
        assert red.lease(tr) is not None
        if what == "suspend":
            red.suspend(db)
            red.resume(db)
        elif what == "grant":
            red.grant(db, items=2)
        else:
            subscriptions.unsubscribe(db, "red")
        assert conflicts(tr), what


def test_of_two_leases_on_the_last_credit_one_conflicts(db: Any, leases: Leases, red: Subscription) -> None:
    fill(leases, db, "red", "red")
    red.grant(db, items=1)
    first, second = db.create_transaction(), db.create_transaction()
    assert len(red.lease_many(first)) == len(red.lease_many(second)) == 1
    assert not conflicts(second)
    assert conflicts(first)
    assert red.credit(db).items == 0


def test_returned_credit_conflicts_with_no_lease(db: Any, leases: Leases, red: Subscription) -> None:
    fill(leases, db, "red", "red", "red")
    red.grant(db, items=2)
    taken = red.lease(db)
    assert taken is not None
    tr = db.create_transaction()
    assert len(red.lease_many(tr)) == 1
    leases.ack(db, taken)
    assert not conflicts(tr)


def test_two_exclusive_subscribes_at_once_conflict(db: Any, subscriptions: Subscriptions, clock: Clock) -> None:
    first, second = db.create_transaction(), db.create_transaction()
    mine = subscriptions.subscribe(first, "mine", exclusive=True)
    subscriptions.subscribe(second, "yours", exclusive=True)
    assert not conflicts(first)
    assert conflicts(second)
    with pytest.raises(SubscriptionError):
        subscriptions.subscribe(db, "yours", exclusive=True)
    clock.now += 40
    owner, heir = db.create_transaction(), db.create_transaction()
    assert mine.lease(owner) is None  # renews, since nobody has taken over
    subscriptions.subscribe(heir, "mine", exclusive=True)
    assert not conflicts(heir)
    assert conflicts(owner)
    with pytest.raises(SubscriptionError, match="another's"):
        mine.lease(db)
