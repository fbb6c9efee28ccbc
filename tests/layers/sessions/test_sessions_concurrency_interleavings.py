"""Two transactions on the slots of one session at once: their reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError, Queue
from fdbqueue.layers import Groups, Sessions
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.sessions import assert_sound, do_all, fill, lease_all, lease_of, numbers, values


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, concurrency=2, clock=clock)


def test_of_two_leases_that_see_the_same_item_one_conflicts(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, second = lease_all(sessions, db)
    acks = [db.create_transaction(), db.create_transaction()]
    following = [sessions.ack_and_next(tr, lease) for tr, lease in zip(acks, (first, second), strict=True)]
    assert [lease.value for lease in following if lease is not None] == ["3", "3"]
    assert [conflicts(tr) for tr in acks] == [False, True]
    assert sessions.ack_and_next(db, second) is None
    assert_sound(sessions, db)


def test_of_two_acks_of_the_last_items_one_runs_again(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    leases = lease_all(sessions, db)
    acks = [db.create_transaction() for _ in leases]
    for tr, lease in zip(acks, leases, strict=True):
        sessions.ack(tr, lease)
    assert [conflicts(tr) for tr in acks] == [False, True]
    sessions.ack(db, leases[1])
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)


def test_acks_in_one_transaction_see_each_other(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    leases = lease_all(sessions, db)
    tr = db.create_transaction()
    for lease in leases:
        sessions.ack(tr, lease)
    tr.commit().wait()
    assert do_all(sessions, db) == ["ann:3"]
    assert_sound(sessions, db)


def test_two_acks_that_hand_on_their_slots_do_not_conflict(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, *(f"ann:{number}" for number in range(1, 6)))
    leases = lease_all(sessions, db)
    acks = [db.create_transaction() for _ in leases]
    for tr, lease in zip(acks, leases, strict=True):
        sessions.ack(tr, lease)
    assert [conflicts(tr) for tr in acks] == [False, False]
    assert values(lease_all(sessions, db)) == ["3", "4"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("acks_first", [True, False])
def test_a_release_without_a_waiter_and_an_enqueue_into_a_full_session_notice_each_other(
    db: Any, sessions: Sessions, acks_first: bool
) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    first, _ = lease_all(sessions, db)
    acking, enqueueing = db.create_transaction(), db.create_transaction()
    sessions.ack(acking, first)
    sessions.enqueue(enqueueing, "3", session="ann")
    one, other = (acking, enqueueing) if acks_first else (enqueueing, acking)
    assert not conflicts(one)
    assert conflicts(other), "the item would wait beside a free slot"
    if acks_first:
        fill(sessions, db, "ann:3")
    else:
        sessions.ack(db, first)
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)


def test_enqueues_into_a_full_session_conflict_with_nothing(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, _ = lease_all(sessions, db)
    enqueues = [db.create_transaction(), db.create_transaction()]
    for tr in enqueues:
        sessions.enqueue(tr, "4", session="ann")
    sessions.ack(db, first)
    assert [conflicts(tr) for tr in enqueues] == [False, False]


@pytest.mark.parametrize("lowers_first", [True, False])
def test_a_lowered_limit_and_an_ack_are_one_after_the_other(db: Any, sessions: Sessions, lowers_first: bool) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3", "ann:4")
    first, second = lease_all(sessions, db)
    lowering, acking = db.create_transaction(), db.create_transaction()
    sessions.set_concurrency(lowering, "ann", 1)
    sessions.ack(acking, first)
    one, other = (lowering, acking) if lowers_first else (acking, lowering)
    assert not conflicts(one)
    if conflicts(other):
        if lowers_first:
            sessions.ack(db, first)
        else:
            sessions.set_concurrency(db, "ann", 1)
    assert len(lease_all(sessions, db)) == 0
    assert numbers(sessions, db) == (1, 1)
    sessions.ack(db, second)
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("raises_first", [True, False])
def test_a_raised_limit_and_an_enqueue_notice_each_other(db: Any, sessions: Sessions, raises_first: bool) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    lease_all(sessions, db)
    raising, enqueueing = db.create_transaction(), db.create_transaction()
    sessions.set_concurrency(raising, "ann", 3)
    sessions.enqueue(enqueueing, "3", session="ann")
    one, other = (raising, enqueueing) if raises_first else (enqueueing, raising)
    assert not conflicts(one)
    assert conflicts(other), "the item would wait beside a free slot"
    if raises_first:
        fill(sessions, db, "ann:3")
    else:
        sessions.set_concurrency(db, "ann", 3)
    assert values(lease_all(sessions, db)) == ["3"]
    assert_sound(sessions, db)


def test_of_two_changes_of_a_limit_the_later_one_counts(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, *(f"ann:{number}" for number in range(1, 9)))
    first, second = db.create_transaction(), db.create_transaction()
    sessions.set_concurrency(first, "ann", 6)
    sessions.set_concurrency(second, "ann", 4)
    assert not conflicts(first)
    assert conflicts(second)
    sessions.set_concurrency(db, "ann", 4)
    assert len(lease_all(sessions, db)) == 4


@pytest.mark.parametrize("acks_first", [True, False])
def test_of_an_ack_and_an_expiry_of_a_slot_one_commits(
    db: Any, sessions: Sessions, clock: Clock, acks_first: bool
) -> None:
    fill(sessions, db, "ann:1", "ann:2", "ann:3")
    first, _ = lease_of(sessions, db, duration=10), lease_of(sessions, db, duration=100)
    clock.now += 11
    acking, reclaiming = db.create_transaction(), db.create_transaction()
    sessions.ack(acking, first)
    sessions.reclaim(reclaiming)
    one, other = (acking, reclaiming) if acks_first else (reclaiming, acking)
    assert not conflicts(one)
    assert conflicts(other)
    assert values(lease_all(sessions, db)) == (["3"] if acks_first else ["1"])
    assert_sound(sessions, db)


@pytest.mark.parametrize("leases_first", [True, False])
def test_an_item_whose_life_ends_is_either_leased_or_removed(
    db: Any, sessions: Sessions, clock: Clock, leases_first: bool
) -> None:
    sessions.enqueue(db, "1", session="ann", ttl=10)
    fill(sessions, db, "ann:2", "ann:3")
    early, late = db.create_transaction(), db.create_transaction()
    assert lease_of(sessions, early).value == "1"
    clock.now += 11
    assert lease_of(sessions, late).value == "2"
    one, other = (early, late) if leases_first else (late, early)
    assert not conflicts(one)
    assert conflicts(other)
    assert_sound(sessions, db)


@pytest.mark.parametrize("sweeps_first", [True, False])
def test_of_a_sweep_and_a_lease_that_remove_the_same_member_one_runs_again(
    db: Any, sessions: Sessions, sweeps_first: bool
) -> None:
    groups = Groups(sessions)
    group = groups.open(db, "book")
    group.enqueue_many(db, ["1", "2", "3"], session="ann")
    group.close(db)
    fill(sessions, db, "ann:other", "ann:another")
    at_work = lease_of(sessions, db)
    cancelling = db.create_transaction()
    group.cancel(cancelling)  # nothing is swept yet
    cancelling.commit().wait()
    leasing = db.create_transaction()
    assert lease_of(sessions, leasing).value == "other"
    if sweeps_first:
        group.cancel(db)
        assert conflicts(leasing)
    else:
        leasing.commit().wait()
        group.cancel(db)
    sessions.ack(db, at_work)
    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    stats = group.stats(db)
    assert (stats.done, stats.cancelled, stats.available) == (1, 2, 0)
    assert_sound(sessions, db)
