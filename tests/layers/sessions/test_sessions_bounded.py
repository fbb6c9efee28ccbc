"""No session keeps a worker busy with nothing: a lease ends after few transactions, whatever can't be taken."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from fdbqueue import Queue
from fdbqueue.layers import FollowUp, Groups, Results, Sessions
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.lowlevel import pack
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, lease_all, lease_of, values

MOST_LOOKS = 400


class Counting(Clock):
    """A clock that fails a worker who looks at it without end."""

    looks = 0
    armed = True

    def __call__(self) -> float:
        if self.armed:
            self.looks += 1
        assert self.looks < MOST_LOOKS, "the worker looks again and again"
        return super().__call__()


@pytest.fixture
def clock() -> Counting:
    return Counting()


@pytest.mark.parametrize("at", ["database", "transaction"])
def test_lives_that_ended_during_work_do_not_wake_a_session_again_and_again(
    db: Any, queue: Queue, clock: Counting, at: str
) -> None:
    sessions = Sessions(queue, concurrency=20, clock=clock)
    sessions.enqueue_many(db, ["x"] * 20, session="ann", ttl=50)
    sessions.enqueue(db, "soon", session="ann", delay=55)
    sessions.enqueue(db, "later", session="ann", delay=100)
    leases = lease_all(sessions, db, duration=1_000)
    assert len(leases) == 20
    clock.now += 60  # the lives of items in progress are over, and their timers come before that of the delay
    tr = db if at == "database" else db.create_transaction()
    assert sessions.lease(tr) is None
    if at == "transaction":
        tr.commit().wait()
    clock.now += 50
    assert sessions.lease(db) is None
    for lease in leases:
        sessions.ack(db, lease)
    assert values(lease_all(sessions, db)) == ["soon", "later"]
    assert_sound(sessions, db)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("delays", ["pass", "hold"])
def test_a_delayed_item_that_can_not_be_read_does_not_wake_its_session_again_and_again(
    db: Any, queue: Queue, clock: Counting, concurrency: int, delays: Literal["pass", "hold"]
) -> None:
    sessions = Sessions(queue, concurrency=concurrency, delays=delays, clock=clock)
    position = sessions.enqueue(db, "x", session="ann", delay=10)
    key = sessions.line.session(pack_name("ann")).layout.delayed.key(pack(position))
    stored = bytes(db[key])
    db[key] = b"\x20newer"
    clock.now += 11
    assert sessions.lease(db) is None
    sessions.enqueue(db, "other", session="bob")
    assert lease_of(sessions, db).session == "bob"
    clock.now += 5
    assert sessions.lease(db) is None
    db[key] = stored
    clock.now += 5
    lease = lease_of(sessions, db)
    assert (lease.session, lease.value) == ("ann", "x")
    sessions.ack(db, lease)
    assert_sound(sessions, db)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2])
def test_no_worker_gets_an_item_whose_life_is_over_behind_many_others(
    db: Any, queue: Queue, clock: Counting, concurrency: int
) -> None:
    sessions = Sessions(queue, concurrency=concurrency, clock=clock)
    results = Results(sessions)
    groups = Groups(results)
    group = groups.open(db, "book")
    clock.armed = False
    group.enqueue_many(db, ["page"] * 1_100, session="ann")
    sessions.enqueue(db, "other", session="ann")
    clock.armed = True
    tr = db.create_transaction()
    group.cancel(tr)  # nothing is swept yet
    tr.commit().wait()
    assert values(lease_all(sessions, db)) == ["other"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_follow_up_that_is_released_when_its_session_wakes_leaves_one_pointer(
    db: Any, queue: Queue, clock: Counting, concurrency: int
) -> None:
    sessions = Sessions(queue, concurrency=concurrency, clock=clock)
    results = Results(sessions)
    sessions.enqueue(db, "delayed", session="ann", delay=10)
    results.enqueue(db, "before", session="bob", then=FollowUp(sessions, "follows", session="ann"))
    lease = lease_of(sessions, db)
    clock.now += 11
    sessions.ack(db, lease)  # the follow-up is released, and the session of both is due, at the same time
    leases = lease_all(sessions, db)
    assert values(leases) == ["delayed", "follows"][:concurrency]
    assert_sound(sessions, db)
    for lease in leases:
        sessions.ack(db, lease)
    for lease in lease_all(sessions, db):
        sessions.ack(db, lease)
    assert sessions.info(db, "ann") is None
    assert_sound(sessions, db)
