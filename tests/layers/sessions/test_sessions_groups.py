"""Groups whose members are items of many sessions."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError, FDBError, Queue
from fdbqueue.layers import Consumer, FollowUp, Groups, Results, SessionLease, Sessions
from tests.helpers.clock import Clock
from tests.helpers.sessions import do_all, fill, lease_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, clock=clock, max_attempts=2)


@pytest.fixture
def groups(sessions: Sessions) -> Groups:
    return Groups(sessions)


def members(db: Any, groups: Groups, *names: str, then: Any = ()) -> Any:
    """Open a group with an item in each of these sessions."""
    group = groups.open(db, "book", then=then)
    for name in names:
        group.enqueue(db, "page", session=name)
    group.close(db)
    return group


def test_a_group_ends_with_its_last_member_in_any_session(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = members(db, groups, "ann", "bob", "ann", then=FollowUp(sessions, "bind", session="cid"))
    assert sessions.check(db).problems == ()
    assert group.stats(db).available == 3
    assert do_all(sessions, db) == ["ann:page", "ann:page", "bob:page", "cid:bind"]
    assert group.wait(timeout=60).done == 3
    assert sessions.check(db).problems == ()
    assert sessions.stats(db).available == 0


def test_members_end_when_they_die_expire_or_are_acked(
    db: Any, sessions: Sessions, groups: Groups, clock: Clock
) -> None:
    group = groups.open(db, "book")
    group.enqueue(db, "dies", session="ann")
    group.enqueue(db, "expires", session="bob", ttl=50)
    group.enqueue(db, "late", session="cid", delay=70)
    group.close(db)
    for _ in range(2):
        sessions.nack(db, lease_of(sessions, db))
        stats = group.stats(db)
    assert (stats.dead, stats.available, stats.delayed) == (1, 1, 1)
    clock.now += 60
    assert sessions.lease(db) is None
    clock.now += 60
    sessions.ack(db, lease_of(sessions, db))
    stats = group.wait(timeout=60)
    assert (stats.dead, stats.expired, stats.done) == (1, 1, 1)
    sessions.redrive(db, "ann")
    sessions.ack(db, lease_of(sessions, db))
    assert group.stats(db).done == 1  # it has left the group
    assert sessions.check(db).problems == ()


def test_a_cancel_removes_what_waits_in_all_sessions(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = members(db, groups, "ann", "ann", "bob")
    group = groups.group(db, "book")
    fill(sessions, db, "ann:other")
    lease = lease_of(sessions, db)
    stats = group.cancel(db)
    assert (stats.cancelled, stats.available) == (2, 1)
    assert sessions.info(db, "bob") is None or sessions.lease(db) is None  # its pointer goes at the next look
    assert sessions.info(db, "bob") is None
    following: Any = sessions.ack_and_next(db, lease)
    assert following.value == "other"
    sessions.ack(db, following)
    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    assert group.stats(db).done == 1
    assert sessions.check(db).problems == ()


def test_no_worker_takes_a_member_of_a_cancelled_group(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = members(db, groups, "ann", "ann", "bob")
    lease = lease_of(sessions, db)
    tr = db.create_transaction()
    group.cancel(tr)  # nothing is swept yet
    tr.commit().wait()
    fill(sessions, db, "ann:other")
    assert sessions.ack_and_next(db, lease) is None
    assert do_all(sessions, db) == ["ann:other"]
    assert sessions.check(db).problems == ()
    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    assert group.stats(db).cancelled == 2


def test_a_member_that_comes_back_after_the_cancel_is_removed(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = members(db, groups, "ann")
    lease = lease_of(sessions, db)
    group.cancel(db)
    sessions.nack(db, lease)
    assert sessions.lease(db) is None
    with pytest.raises(CompletionError, match="cancelled"):
        group.wait(timeout=60)
    assert sessions.info(db, "ann") is None
    assert sessions.check(db).problems == ()


def test_a_cancel_and_a_lease_at_the_same_time_do_not_both_commit(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = members(db, groups, "ann")
    tr = db.create_transaction()
    lease_of(sessions, tr)
    group.cancel(db)
    with pytest.raises(FDBError):
        tr.commit().wait()
    assert sessions.lease(db) is None
    assert sessions.check(db).problems == ()


def test_a_consumer_stops_reading_ahead_at_a_cancelled_member(db: Any, sessions: Sessions, groups: Groups) -> None:
    group = groups.open(db, "book")
    group.enqueue_many(db, ["page"] * 3, session="ann")
    group.close(db)
    fill(sessions, db, "bob:cancel", "ann:other")
    did = []

    def handle(lease: SessionLease) -> None:
        did.append(lease.value)

    tr = db.create_transaction()
    group.cancel(tr)
    tr.commit().wait()
    Consumer(groups, handle, concurrency=1).drain(db)
    assert sorted(did) == ["cancel", "other"]
    assert sessions.check(db).problems == ()


def test_a_group_of_many_sessions_ends_once_though_workers_end_it_together(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    groups = Groups(Results(sessions))
    group = groups.open(db, "book", then=FollowUp(sessions, "bind", session="end"))
    completions = [group.enqueue(db, str(n), session=("s", n % 20)) for n in range(60)]
    group.close(db)
    bound = []

    def handle(lease: SessionLease) -> int:
        if lease.value == "bind":
            bound.append(lease.session)
            return 0
        return int(lease.value)

    assert Consumer(groups, handle, concurrency=8).drain(db).acked == 61
    assert bound == ["end"]
    assert group.wait(timeout=60).done == 60
    assert [completion.wait(timeout=60) for completion in completions] == [*range(60)]
    assert sessions.check(db).problems == ()
