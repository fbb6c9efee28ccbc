"""Two transactions at once: their reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.stored.items import INLINE_BYTES
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.leasing import fill, lease_of


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


def test_of_two_leases_of_the_same_item_one_conflicts(db: Any, leases: Leases) -> None:
    fill(leases, db, 2)
    first, second = db.create_transaction(), db.create_transaction()
    assert lease_of(leases, first).position == lease_of(leases, second).position
    assert not conflicts(first)
    assert conflicts(second)
    assert lease_of(leases, db).value == b"1"


def test_leases_of_different_items_do_not_conflict(db: Any, leases: Leases) -> None:
    fill(leases, db, 3)
    first = db.create_transaction()
    lease_of(leases, first)
    assert not conflicts(first)
    second, third = db.create_transaction(), db.create_transaction()
    assert lease_of(leases, second).value == b"1"
    assert not conflicts(second)
    lease_of(leases, third)
    assert not conflicts(third)


def test_a_lease_does_not_conflict_with_enqueues_behind_it(db: Any, leases: Leases) -> None:
    fill(leases, db, 1)
    tr = db.create_transaction()
    assert len(leases.lease_many(tr, limit=100)) == 1
    leases.queue.enqueue(db, b"plain")
    leases.enqueue(db, b"delayed", delay=5)
    assert not conflicts(tr)


def test_a_lease_conflicts_with_an_item_given_back_ahead_of_it(db: Any, leases: Leases) -> None:
    fill(leases, db, 2)
    front = lease_of(leases, db)
    tr = db.create_transaction()
    assert lease_of(leases, tr).value == b"1"
    leases.nack(db, front)
    assert conflicts(tr)


def test_a_lease_conflicts_with_a_slow_producer_in_front_of_it(db: Any, leases: Leases) -> None:
    slow = db.create_transaction()
    leases.queue.enqueue(slow, b"slow")
    leases.queue.enqueue_many(db, [b"0", b"1", b"2"])
    leases.queue.dequeue(db)
    tr = db.create_transaction()
    assert lease_of(leases, tr).value == b"1"
    assert not conflicts(slow)
    assert conflicts(tr)
    assert lease_of(leases, db).value == b"slow"


def test_a_lease_does_not_conflict_with_an_item_given_back_behind_it(db: Any, leases: Leases) -> None:
    fill(leases, db, 3)
    taken = leases.lease_many(db, limit=2)
    leases.nack(db, taken[0])
    tr = db.create_transaction()
    assert lease_of(leases, tr).value == b"0"
    leases.nack(db, taken[1])
    assert not conflicts(tr)


def test_a_lease_that_saw_nothing_conflicts_in_a_callers_transaction(db: Any, leases: Leases, space: Subspace) -> None:
    tr = db.create_transaction()
    assert leases.lease(tr) is None
    tr[space.pack(("decided",))] = b"there was nothing to do"
    leases.enqueue(db, b"x")
    assert conflicts(tr)


def test_reading_a_queue_conflicts_with_no_consumer(db: Any, leases: Leases, space: Subspace) -> None:
    leases.queue.enqueue_many(db, [b"small", bytes(INLINE_BYTES + 1), b"small"])
    leases.lease(db)
    tr = db.create_transaction()
    assert leases.stats(tr).available == 2
    assert len(list(leases.browse(tr, state="available"))) == len(list(leases.queue.browse(tr))) == 2
    assert len(list(leases.browse(tr, state="leased"))) == 1
    assert leases.check(tr).ok
    tr[space.pack(("what was seen",))] = b""
    leases.ack_many(db, leases.lease_many(db))
    leases.queue.enqueue(db, b"new")
    assert not conflicts(tr)


def test_a_lease_and_a_plain_dequeue_of_the_same_item_conflict(db: Any, leases: Leases) -> None:
    fill(leases, db, 2)
    lending, taking = db.create_transaction(), db.create_transaction()
    lease_of(leases, lending)
    assert leases.queue.dequeue(taking) is not None
    assert not conflicts(lending)
    assert conflicts(taking)


ends: dict[str, Callable[[Leases, Any, Lease], Any]] = {
    "ack": lambda leases, tr, lease: leases.ack(tr, lease),
    "nack": lambda leases, tr, lease: leases.nack(tr, lease),
    "snooze": lambda leases, tr, lease: leases.snooze(tr, lease, delay=9),
    "extend": lambda leases, tr, lease: leases.extend(tr, lease),
    "reclaim": lambda leases, tr, lease: leases.reclaim(tr),
    "redelivery": lambda leases, tr, lease: leases.lease(tr),
}


@pytest.mark.parametrize("one", ends)
@pytest.mark.parametrize("other", ends)
def test_two_calls_that_end_or_extend_one_lease_conflict(
    db: Any, leases: Leases, clock: Clock, one: str, other: str
) -> None:
    fill(leases, db, 1)
    lease = lease_of(leases, db, duration=1)
    clock.now += 2
    first, second = db.create_transaction(), db.create_transaction()
    ends[one](leases, first, lease)
    ends[other](leases, second, lease)
    assert not conflicts(second)
    assert conflicts(first)
    assert leases.queue.check(db).ok


@pytest.mark.parametrize("one", ["ack", "nack", "snooze", "extend"])
@pytest.mark.parametrize("other", ["ack", "nack", "snooze", "extend"])
def test_calls_on_different_leases_do_not_conflict(db: Any, leases: Leases, one: str, other: str) -> None:
    fill(leases, db, 3)
    mine, yours, _ = leases.lease_many(db)
    first, second = db.create_transaction(), db.create_transaction()
    ends[one](leases, first, mine)
    ends[other](leases, second, yours)
    assert not conflicts(second)
    assert not conflicts(first)
    assert leases.queue.check(db).ok


@pytest.mark.parametrize("step", [2, 10], ids=["side by side", "far apart"])
def test_an_ack_of_many_conflicts_with_what_happens_to_one_of_them_and_not_between_them(
    db: Any, leases: Leases, step: int
) -> None:
    leases.enqueue_many(db, [b"x"] * 20 * step)
    taken = leases.lease_many(db, limit=20 * step)
    mine, yours = taken[::step], taken[1::step]
    first = db.create_transaction()
    leases.ack_many(first, mine)
    leases.ack(db, yours[3])
    leases.nack(db, yours[4])
    assert not conflicts(first)
    second = db.create_transaction()
    leases.ack_many(second, yours[:3] + yours[5:])
    leases.nack(db, yours[7])
    assert conflicts(second)
    with pytest.raises(LeaseLost) as lost:
        leases.ack_many(db, yours)
    assert lost.value.lost == [yours[n].position for n in (3, 4, 7)]
    assert leases.check(db).ok


def test_an_ack_of_many_that_finds_one_lost_conflicts_if_that_changes(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [b"x"] * 20)
    taken = leases.lease_many(db)
    leases.ack(db, taken[7])
    tr = db.create_transaction()
    with pytest.raises(LeaseLost):
        leases.ack_many(tr, taken)
    leases.ack(db, taken[8])
    leases.ack_many(tr, taken[:5])
    assert conflicts(tr)


def test_a_reclaim_conflicts_with_an_ack_of_an_item_that_it_reclaims_and_of_no_other(
    db: Any, leases: Leases, clock: Clock
) -> None:
    fill(leases, db, 3)
    overdue = leases.lease_many(db, limit=2, duration=1)
    clock.now += 2
    alive = lease_of(leases, db, duration=100)
    assert alive.value == b"0"
    tr = db.create_transaction()
    assert [found.position for found in leases.reclaim(tr, limit=1).reclaimed] == []
    leases.ack(db, alive)
    assert not conflicts(tr)
    assert leases.queue.stats(db).leased == 0
    assert len(overdue) == 2


def test_a_timer_set_in_the_past_by_a_slow_clock_conflicts_with_no_reclaim(
    db: Any, leases: Leases, clock: Clock, space: Subspace
) -> None:
    fill(leases, db, 1)
    behind = Leases(leases.queue, clock=lambda: clock.now - 600)
    tr = db.create_transaction()
    assert leases.reclaim(tr).reclaimed == ()
    tr[space.pack(("decided",))] = b"nothing was due"
    lease_of(behind, db)
    assert not conflicts(tr)


def test_two_consumers_that_reclaim_one_lease_at_once_count_one_attempt(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    lease_of(leases, db, duration=1)
    clock.now += 2
    first, second = db.create_transaction(), db.create_transaction()
    assert lease_of(leases, first).attempt == lease_of(leases, second).attempt == 2
    assert not conflicts(first)
    assert conflicts(second)
    assert leases.lease(db) is None


def test_an_item_that_falls_due_during_a_lease_is_taken_once(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"delayed", delay=5)
    clock.now += 5
    settling, reclaiming = db.create_transaction(), db.create_transaction()
    assert lease_of(leases, settling).value == b"delayed"
    assert len(leases.reclaim(reclaiming).reclaimed) == 1
    assert not conflicts(reclaiming)
    assert conflicts(settling)
    assert lease_of(leases, db).attempt == 1


def test_an_extension_in_time_keeps_a_clock_that_is_ahead_from_the_item(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    lease = lease_of(leases, db, duration=10)
    ahead = Leases(leases.queue, clock=lambda: clock.now + 5)
    clock.now += 4
    assert ahead.lease(db) is None
    leases.extend(db, lease, duration=10)
    clock.now += 4
    assert ahead.lease(db) is None
    leases.ack(db, lease)


@pytest.mark.parametrize("skew", [-600.0, -60.0, 0.0, 60.0, 600.0])
def test_clocks_that_disagree_by_minutes_lose_and_double_nothing(
    db: Any, leases: Leases, clock: Clock, skew: float
) -> None:
    fill(leases, db, 3)
    theirs = Leases(leases.queue, clock=lambda: clock.now + skew)
    mine = lease_of(leases, db, duration=30)
    other = lease_of(theirs, db, duration=30)
    if skew > 30:  # to them my lease is long over, and theirs is still good by my clock
        assert other.position == mine.position
        with pytest.raises(LeaseLost):
            leases.ack(db, mine)
        leases.ack(db, other)
        assert [lease.value for lease in theirs.lease_many(db)] == [b"1", b"2"]
    else:
        assert other.position != mine.position
        leases.ack(db, mine)
        if skew < -30:  # by my clock theirs ended before it began
            again = lease_of(leases, db)
            assert (again.position, again.attempt) == (other.position, 2)
            with pytest.raises(LeaseLost):
                theirs.ack(db, other)
            leases.ack(db, again)
        else:
            theirs.ack(db, other)
        assert [lease.value for lease in leases.lease_many(db)] == [b"2"]
    assert leases.queue.check(db).ok
