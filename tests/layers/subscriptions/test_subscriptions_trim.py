"""Trimming old notes of arrivals never takes away what the same transaction notes."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.leases.timers import FIRE_LIMIT
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions.head import LAG_SECONDS, TRIM_SECONDS, Habit, SubscriptionHead
from fdbqueue.moves.moves import announce
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.subscribing import fill, of_color, values


@pytest.mark.parametrize("records", [False, True])
def test_a_transaction_that_records_arrivals_does_not_trim(db: Any, space: Subspace, records: bool) -> None:
    queue = Queue(space)
    subscriptions = Subscriptions(queue)
    subscriptions.subscribe(db, "blue")
    tr = db.create_transaction()
    later_us = subscriptions.leases.now_us() + int(2 * LAG_SECONDS * 1e6)
    head = SubscriptionHead(queue.layout, "blue", now_us=later_us, habit=Habit())
    run(head.prepare(tr, fresh=True))
    if records:
        announce(tr, queue.layout, [(b"a packed position", b"a packed position")])

    run(head.trim(tr))

    assert tr.get(queue.layout.trimmed_key).wait().present() == (not records)


def test_leases_that_expire_together_return_though_arrivals_are_trimmed(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    everything = subscriptions.subscribe(db, "all")
    amount = FIRE_LIMIT + 1  # the first transaction only settles timers; the next one takes an item
    fill(leases, db, *["red"] * amount)
    assert len(everything.lease_many(db, limit=100, duration=2 * TRIM_SECONDS)) == amount
    fill(leases, db, *["green"] * 40)  # enough new arrivals for a look at what may be trimmed
    clock.now += 3 * TRIM_SECONDS

    assert values(everything.lease_many(db, limit=2)) == ["red0", "red1"]


def test_notes_are_trimmed_once_a_second_at_most_by_every_clock(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    everything = subscriptions.subscribe(db, "all")
    items = [f"{n}" for n in range(40)]

    def notes_left() -> bool:
        for item in items:
            leases.enqueue(db, item)
        taken = everything.lease_many(db)
        assert values(taken) == items
        leases.ack_many(db, taken)
        span = leases.layout.arrivals.range()
        return bool(list(db[span.start : span.stop]))

    assert not notes_left()
    assert notes_left()
    clock.now += TRIM_SECONDS
    assert not notes_left()
    clock.now -= 10 * TRIM_SECONDS  # who trimmed last has a clock that is ahead
    assert not notes_left()


def test_trimming_notes_conflicts_with_no_other_subscription(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    blue = of_color(subscriptions, db, "blue")
    of_color(subscriptions, db, "red")
    fill(leases, db, "red", "blue")
    tr = db.create_transaction()
    head = SubscriptionHead(leases.layout, "red", now_us=leases.now_us(), habit=Habit())
    run(head.prepare(tr, fresh=True))
    assert run(head.finish(tr))
    assert tr.snapshot.get(leases.layout.trimmed_key).wait().present()
    assert blue.lease(db) is not None
    assert not conflicts(tr)


def test_a_subscription_that_never_took_an_item_holds_no_notes(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    everything, new = subscriptions.subscribe(db, "all"), subscriptions.subscribe(db, "new")
    leases.enqueue(db, "x")
    assert everything.lease(db) is not None
    span = leases.layout.arrivals.range()
    assert not list(db[span.start : span.stop])
    leases.enqueue(db, "y")
    assert values(new.lease_many(db)) == ["y"]
    assert subscriptions.check(db).problems == ()
