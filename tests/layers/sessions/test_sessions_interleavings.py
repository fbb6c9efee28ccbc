"""Two transactions on sessions at once: their reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue, SessionClosed
from fdbqueue.layers import Sessions
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.sessions import do_all, fill, lease_of


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, clock=clock)


def test_enqueues_into_a_session_that_has_items_conflict_with_nothing(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "bob:1")
    first, second = db.create_transaction(), db.create_transaction()
    sessions.enqueue(first, "3", session="ann")
    sessions.enqueue(second, "urgent", session="ann", level=0)
    lease = lease_of(sessions, db)
    sessions.ack(db, lease)  # ann's pointer has moved to the end of the line
    assert not conflicts(first)
    assert not conflicts(second)
    assert sorted(do_all(sessions, db)) == ["ann:2", "ann:3", "ann:urgent", "bob:1"]


def test_a_lease_and_an_ack_do_not_conflict_with_enqueues_into_the_session(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    leasing = db.create_transaction()
    lease = lease_of(sessions, leasing)
    fill(sessions, db, "ann:3")
    assert not conflicts(leasing)
    acking = db.create_transaction()
    sessions.ack(acking, lease)
    sessions.enqueue(db, "urgent", session="ann", level=0)
    assert not conflicts(acking)
    assert do_all(sessions, db) == ["ann:urgent", "ann:2", "ann:3"]


def test_of_two_first_items_of_a_session_one_runs_again(db: Any, sessions: Sessions) -> None:
    first, second = db.create_transaction(), db.create_transaction()
    sessions.enqueue(first, "1", session="ann")
    sessions.enqueue(second, "2", session="ann")
    assert not conflicts(first)
    assert conflicts(second)
    assert sessions.stats(db).ready == 1


def test_first_items_of_different_sessions_do_not_conflict(db: Any, sessions: Sessions) -> None:
    first, second = db.create_transaction(), db.create_transaction()
    sessions.enqueue(first, "1", session="ann")
    sessions.enqueue(second, "1", session="bob")
    assert not conflicts(first)
    assert not conflicts(second)


def test_an_ack_of_the_last_item_sees_an_enqueue_that_commits_first(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    acking = db.create_transaction()
    sessions.ack(acking, lease)
    fill(sessions, db, "ann:2")
    assert conflicts(acking), "the session would end, and its item stay behind"
    sessions.ack(db, lease)
    assert do_all(sessions, db) == ["ann:2"]


def test_an_enqueue_sees_that_the_session_ended_first(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    enqueueing = db.create_transaction()
    sessions.enqueue(enqueueing, "2", session="ann")
    sessions.ack(db, lease)
    assert conflicts(enqueueing), "nobody would ever look for its item"
    fill(sessions, db, "ann:2")
    assert do_all(sessions, db) == ["ann:2"]


def test_a_session_that_goes_to_sleep_and_an_item_that_comes_notice_each_other(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    for acks_first in (True, False):
        fill(sessions, db, "ann:1")
        sessions.enqueue(db, "later", session="ann", delay=100)
        lease = lease_of(sessions, db)
        acking, enqueueing = db.create_transaction(), db.create_transaction()
        sessions.ack(acking, lease)
        sessions.enqueue(enqueueing, "2", session="ann")
        first, second = (acking, enqueueing) if acks_first else (enqueueing, acking)
        assert not conflicts(first)
        assert conflicts(second)
        if acks_first:
            fill(sessions, db, "ann:2")
        else:
            sessions.ack(db, lease)
        assert do_all(sessions, db) == ["ann:2"]
        clock.now += 101
        assert do_all(sessions, db) == ["ann:later"]


def test_of_two_items_that_wake_a_session_both_are_done(db: Any, sessions: Sessions) -> None:
    sessions.enqueue(db, "later", session="ann", delay=100)
    first, second = db.create_transaction(), db.create_transaction()
    sessions.enqueue(first, "1", session="ann")
    sessions.enqueue(second, "2", session="ann")
    assert not conflicts(first)
    assert conflicts(second)
    fill(sessions, db, "ann:2")
    assert do_all(sessions, db) == ["ann:1", "ann:2"]


def test_the_wake_up_by_a_timer_and_by_an_item_are_decided_by_a_conflict(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    sessions.enqueue(db, "later", session="ann", delay=10)
    enqueueing = db.create_transaction()
    sessions.enqueue(enqueueing, "1", session="ann")
    clock.now += 11
    lease = lease_of(sessions, db)
    assert conflicts(enqueueing)
    fill(sessions, db, "ann:1")
    assert sessions.lease(db) is None
    assert sessions.ack_and_next(db, lease) is not None
    assert sessions.check(db).problems == ()


def test_of_two_leases_of_the_same_session_one_conflicts(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    first, second = db.create_transaction(), db.create_transaction()
    assert lease_of(sessions, first).session == lease_of(sessions, second).session == "ann"
    assert not conflicts(first)
    assert conflicts(second)


def test_of_an_ack_and_an_expiry_one_commits(db: Any, sessions: Sessions, clock: Clock) -> None:
    for acks_first in (True, False):
        fill(sessions, db, "ann:1")
        lease = lease_of(sessions, db, duration=10)
        clock.now += 11
        acking, reclaiming = db.create_transaction(), db.create_transaction()
        sessions.ack(acking, lease)
        sessions.reclaim(reclaiming)
        first, second = (acking, reclaiming) if acks_first else (reclaiming, acking)
        assert not conflicts(first)
        assert conflicts(second)
        if not acks_first:
            with pytest.raises(LeaseLost):
                sessions.ack(db, lease)
            assert lease_of(sessions, db).attempt == 2
        else:
            assert sessions.lease(db) is None


def test_a_state_write_of_a_worker_that_lost_its_lease_meanwhile_does_not_commit(
    db: Any, sessions: Sessions, clock: Clock
) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db, duration=10)
    writing = db.create_transaction()
    sessions.set_state(writing, lease, b"old")
    clock.now += 11
    lease_of(sessions, db)
    assert conflicts(writing)
    assert sessions.state(db, "ann") is None


def test_a_removal_and_an_enqueue_are_one_after_the_other(db: Any, sessions: Sessions) -> None:
    for removes_first in (True, False):
        fill(sessions, db, "ann:1")
        removing, enqueueing = db.create_transaction(), db.create_transaction()
        sessions.remove(removing, "ann")
        sessions.enqueue(enqueueing, "2", session="ann")
        first, second = (removing, enqueueing) if removes_first else (enqueueing, removing)
        assert not conflicts(first)
        if removes_first:
            assert conflicts(second), "an item that was refused would be in"
            with pytest.raises(SessionClosed):
                fill(sessions, db, "ann:2")
            assert do_all(sessions, db) == ["ann:1"]
        else:
            assert not conflicts(second)
            assert do_all(sessions, db) == ["ann:1", "ann:2"]
        assert sessions.info(db, "ann") is None


def test_a_removal_sees_the_ack_that_empties_the_session(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    lease = lease_of(sessions, db)
    removing = db.create_transaction()
    sessions.remove(removing, "ann")
    sessions.ack(db, lease, state=b"x")
    assert conflicts(removing), "a record without a pointer would refuse items for ever"
    sessions.remove(db, "ann")
    assert sessions.info(db, "ann") is None
    assert sessions.state(db, "ann") is None


def test_the_end_of_a_generation_sees_an_item_of_the_next_one(db: Any, sessions: Sessions) -> None:
    for acks_first in (True, False):
        fill(sessions, db, "ann:1")
        lease = lease_of(sessions, db)
        sessions.remove(db, "ann", later="renew")
        acking, enqueueing = db.create_transaction(), db.create_transaction()
        sessions.ack(acking, lease)
        sessions.enqueue(enqueueing, "2", session="ann")
        first, second = (acking, enqueueing) if acks_first else (enqueueing, acking)
        assert not conflicts(first)
        assert conflicts(second)
        if acks_first:
            fill(sessions, db, "ann:2")
        else:
            sessions.ack(db, lease)
        assert do_all(sessions, db) == ["ann:2"]


def test_of_a_pause_and_a_lease_one_runs_again(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    leasing, pausing = db.create_transaction(), db.create_transaction()
    lease_of(sessions, leasing)
    sessions.pause(pausing, "ann")
    assert not conflicts(leasing)
    assert conflicts(pausing)
    sessions.pause(db, "ann")
    info = sessions.info(db, "ann")
    assert info is not None
    assert info.status == "busy", "the item in progress ends as usual"


def test_an_ack_sees_the_pause_that_commits_first(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    acking = db.create_transaction()
    sessions.ack(acking, lease)
    sessions.pause(db, "ann")
    assert conflicts(acking)
    sessions.ack(db, lease)
    assert sessions.lease(db) is None
    sessions.resume(db, "ann")
    assert do_all(sessions, db) == ["ann:2"]


def test_acks_of_different_sessions_do_not_conflict(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "ann:2", "bob:1", "bob:2", "cy:1")
    leases = [lease_of(sessions, db) for _ in range(3)]
    under_way = [db.create_transaction() for _ in leases]
    for tr, lease in zip(under_way, leases, strict=True):
        sessions.ack(tr, lease)
    assert not any(conflicts(tr) for tr in under_way)


def test_a_session_that_another_transaction_just_ended_can_begin_again_at_once(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    sessions.ack(db, lease_of(sessions, db))
    fill(sessions, db, "ann:2")
    assert do_all(sessions, db) == ["ann:2"]
    assert sessions.check(db).problems == ()
