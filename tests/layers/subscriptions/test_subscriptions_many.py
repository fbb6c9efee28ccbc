"""Very many subscriptions: what is asked of one of them does not read all, and does not conflict with others."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.reading import Reading
from tests.helpers.subscribing import fill, of_color


def subscribed(subscriptions: Subscriptions, db: Any, *names: str, **terms: Any) -> None:
    for name in names:
        subscriptions.subscribe(db, name, **terms)


def test_subscribing_does_not_conflict_with_other_subscribes_and_unsubscribes(
    db: Any, subscriptions: Subscriptions
) -> None:
    subscribed(subscriptions, db, "a", "b", "c", "x", "z")
    new, again, ending = (db.create_transaction() for _ in range(3))
    subscriptions.subscribe(new, "new")
    subscriptions.subscribe(again, "x", selector="n = 1")
    assert subscriptions.unsubscribe(ending, "z")
    subscriptions.subscribe(db, "d")
    subscriptions.subscribe(db, "c", selector="n = 2")
    subscriptions.unsubscribe(db, "d")
    assert not conflicts(new)
    assert not conflicts(again)
    assert not conflicts(ending)
    assert [one.name for one in subscriptions.stats(db)] == ["a", "b", "c", "new", "x"]


@pytest.mark.parametrize("there", [[], ["a"], ["m"], ["z"], ["a", "z"], ["a", "b", "c"]])
@pytest.mark.parametrize("name", ["a0", "n", "zz"])
def test_an_exclusive_subscription_and_another_at_the_same_time_do_not_both_come(
    db: Any, subscriptions: Subscriptions, there: list[str], name: str
) -> None:
    subscribed(subscriptions, db, *there)
    sharing, ending, owning = (db.create_transaction() for _ in range(3))
    subscriptions.subscribe(sharing, name)
    for one in there:
        subscriptions.unsubscribe(ending, one)
    ending.commit().wait()
    subscriptions.subscribe(owning, "mine", exclusive=True)
    owning.commit().wait()
    assert conflicts(sharing)
    with pytest.raises(SubscriptionError, match="exclusive"):
        subscriptions.subscribe(db, name)


@pytest.mark.parametrize("there", [["a"], ["z"], ["a", "z"], ["a", "b", "z"]])
def test_an_exclusive_subscription_is_refused_while_there_is_another(
    db: Any, subscriptions: Subscriptions, there: list[str]
) -> None:
    subscribed(subscriptions, db, "mine", *there)
    with pytest.raises(SubscriptionError, match="has the subscription"):
        subscriptions.subscribe(db, "mine", exclusive=True)
    for one in there:
        subscriptions.unsubscribe(db, one)
    assert subscriptions.subscribe(db, "mine", exclusive=True).stats(db).exclusive


def test_of_the_last_two_that_end_at_the_same_time_one_sees_that_it_is_the_last(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    subscribed(subscriptions, db, "a", "b")
    first, second = db.create_transaction(), db.create_transaction()
    assert subscriptions.unsubscribe(first, "a")
    assert subscriptions.unsubscribe(second, "b")
    assert not conflicts(first)
    assert conflicts(second)
    assert subscriptions.unsubscribe(db, "b")
    assert db[leases.layout.subscribed_key] is None, "arrivals are noted no more"
    assert not subscriptions.unsubscribe(db, "b")


def test_a_former_owner_gives_way_to_new_subscriptions(db: Any, subscriptions: Subscriptions, clock: Clock) -> None:
    mine = subscriptions.subscribe(db, "mine", exclusive=True)
    clock.now += 40
    subscribed(subscriptions, db, "a", "b", "c")
    with pytest.raises(SubscriptionError, match="another's"):
        mine.lease(db)
    assert not any(one.exclusive for one in subscriptions.stats(db))


def test_stats_come_in_pages_and_of_one_subscription(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    colors = [f"c{n:02}" for n in range(7)]
    served = [of_color(subscriptions, db, color) for color in colors]
    fill(leases, db, *colors, *colors[:3])
    for one in served[1:4]:
        one.lease_many(db)
    everything = subscriptions.stats(db)
    assert [(one.name, one.held) for one in everything] == list(zip(colors, [0, 2, 2, 1, 0, 0, 0], strict=True))
    size = everything[3].held_bytes
    assert [one.held_bytes for one in everything] == [0, 2 * size, 2 * size, size, 0, 0, 0]
    assert subscriptions.stats(db, limit=3) == everything[:3]
    assert subscriptions.stats(db, after="c02", limit=2) == everything[3:5]
    assert subscriptions.stats(db, after="c06") == subscriptions.stats(db, after="z") == []
    assert [one.stats(db) for one in served] == everything
    assert (subscriptions.count(db), subscriptions.count(db, limit=4)) == (7, 4)
    subscriptions.unsubscribe(db, "c02")
    with pytest.raises(SubscriptionError, match="unsubscribed"):
        served[2].stats(db)


def test_stats_of_many_subscriptions_take_as_many_reads_as_of_few(db: Any, space: Subspace) -> None:
    reads = []
    for amount in (2, 40):
        subscriptions = Subscriptions(Queue(space[amount], codec="str"))
        subscribed(subscriptions, db, *(f"{n}" for n in range(amount)))
        reading = Reading(db)
        assert len(subscriptions.stats(reading)) == amount
        reads.append(reading.reads)
    assert reads[0] == reads[1]
