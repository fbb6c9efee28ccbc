"""Timers of groups that are due in the same transaction as timers of their members."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers import FollowUp, Groups, Leases, Results, Sessions, StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.results import consistent
from tests.helpers.sessions import do_all, lease_of


@pytest.mark.parametrize("take", ["lease", "staged lease", "reclaim"])
@pytest.mark.parametrize("terms", [{"delay": 5.0}, {"ttl": 5.0}, {"delay": 5.0, "ttl": 5.0}])
def test_a_sweep_and_timers_of_the_members_at_once_remove_each_member_once(
    db: Any, leases: Leases, clock: Clock, terms: dict[str, float], take: str
) -> None:
    group = Groups(leases).open(db, "import")
    group.enqueue_many(db, ["a", "b", "c"], **terms)
    tr = db.create_transaction()
    group.cancel(tr)
    tr.commit().wait()
    clock.now += 10
    calls: dict[str, Any] = {
        "lease": leases.lease,
        "staged lease": StagedQueue(leases).lease,
        "reclaim": leases.reclaim,
    }
    for _ in range(2):
        taken = calls[take](db)
        assert taken is None or take == "reclaim"
        clock.now += 1
    stats = leases.stats(db)
    assert (stats.available, stats.delayed) == (0, 0)
    assert group.stats(db).ended
    assert consistent(leases, db)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("done", [True, False])
def test_a_follow_up_that_goes_as_its_sleeping_session_wakes_wakes_it_once(
    db: Any, queue: Queue, clock: Clock, done: bool, concurrency: int
) -> None:
    sessions = Sessions(queue, clock=clock, max_attempts=1, concurrency=concurrency)
    results = Results(sessions, keep=60)
    sessions.enqueue(db, "later", session="ann", delay=5)
    then = FollowUp(sessions, "follow-up", session="ann")
    results.enqueue(db, "first", session="bob", ttl=None if done else 3, then=then)
    if done:
        sessions.ack(db, lease_of(sessions, db))
    clock.now += 10
    assert do_all(sessions, db) == (["ann:later", "ann:follow-up"] if done else ["ann:later"])
    assert sessions.check(db).problems == ()
    assert sessions.info(db, "ann") is None


def test_a_sweep_of_members_as_their_sleeping_session_wakes_removes_them(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, clock=clock)
    group = Groups(sessions).open(db, "import")
    for _ in range(3):
        group.enqueue(db, "member", session="ann", delay=5)
    sessions.enqueue(db, "other", session="ann", delay=5)
    tr = db.create_transaction()
    group.cancel(tr)
    tr.commit().wait()
    clock.now += 10
    assert do_all(sessions, db) == ["ann:other"]
    assert group.stats(db).ended
    assert sessions.check(db).problems == ()


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("leased", [1, 2])
def test_leases_that_expire_as_their_sleeping_session_wakes_leave_it_consistent(
    db: Any, queue: Queue, clock: Clock, slots: int, leased: int
) -> None:
    sessions = Sessions(queue, clock=clock, concurrency=slots)
    for value in ("1", "2"):
        sessions.enqueue(db, value, session="ann")
    sessions.enqueue(db, "3", session="ann", delay=10)
    held = [lease for _ in range(leased) if (lease := sessions.lease(db, duration=10)) is not None]
    assert len(held) == min(slots, leased)
    clock.now += 20
    sessions.reclaim(db)
    assert sessions.check(db).problems == ()
    assert sorted(do_all(sessions, db)) == ["ann:1", "ann:2", "ann:3"]
    assert sessions.check(db).problems == ()
