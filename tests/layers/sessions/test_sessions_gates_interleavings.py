"""Two transactions on one gate at once: their reads and commits laid out by hand, and who fails."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers import Gate, Sessions
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.sessions import assert_sound, fill, lease_all, lease_of, values


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, gates=lambda _: (Gate("all", 2),), clock=clock)


def taken(sessions: Sessions, db: Any) -> tuple[int, int]:
    assert_sound(sessions, db)
    info = sessions.gate(db, "all")
    return (0, 0) if info is None else (info.taken, info.waiting)


def test_of_two_sessions_that_take_the_last_slot_one_runs_again(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    enqueues = [db.create_transaction() for _ in range(2)]
    for tr, name in zip(enqueues, ("bob", "cat"), strict=True):
        sessions.enqueue(tr, "x", session=name)
    assert [conflicts(tr) for tr in enqueues] == [False, True]
    fill(sessions, db, "cat:x")
    assert taken(sessions, db) == (2, 1)


@pytest.mark.parametrize("first", ["ack", "enqueue"])
def test_a_slot_that_is_given_back_and_a_session_that_begins_to_wait_see_each_other(
    db: Any, sessions: Sessions, first: str
) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    lease = lease_of(sessions, db)
    lease_of(sessions, db)
    ack, enqueue = db.create_transaction(), db.create_transaction()
    sessions.ack(ack, lease)
    sessions.enqueue(enqueue, "x", session="cat")
    order = [ack, enqueue] if first == "ack" else [enqueue, ack]
    assert [conflicts(tr) for tr in order] == [False, True]
    if first == "ack":
        fill(sessions, db, "cat:x")
    else:
        sessions.ack(db, lease)
    assert taken(sessions, db) == (2, 0)
    assert values(lease_all(sessions, db)) == ["x"]


def test_of_two_acks_that_move_the_same_waiting_session_one_runs_again(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cat:1", "dan:1")
    leases = lease_all(sessions, db)
    acks = [db.create_transaction() for _ in leases]
    for tr, lease in zip(acks, leases, strict=True):
        sessions.ack(tr, lease)
    assert [conflicts(tr) for tr in acks] == [False, True]
    assert taken(sessions, db) == (2, 1)
    sessions.ack(db, leases[1])
    assert taken(sessions, db) == (2, 0)


def test_two_acks_in_one_transaction_move_two_sessions(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cat:1", "dan:1")
    tr = db.create_transaction()
    for lease in lease_all(sessions, db):
        sessions.ack(tr, lease)
    tr.commit().wait()
    assert taken(sessions, db) == (2, 0)
    assert len(lease_all(sessions, db)) == 2


def test_an_ack_that_hands_its_slot_on_conflicts_with_no_enqueue(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cat:1")
    lease = lease_of(sessions, db)
    ack = db.create_transaction()
    sessions.ack(ack, lease)
    enqueues = [db.create_transaction() for _ in range(3)]
    for tr, name in zip(enqueues, ("cat", "dan", "eve"), strict=True):
        sessions.enqueue(tr, "x", session=name)
    assert [conflicts(tr) for tr in (ack, *enqueues)] == [False] * 4
    assert taken(sessions, db) == (2, 2)


def test_two_sessions_that_begin_to_wait_do_not_conflict(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    enqueues = [db.create_transaction() for _ in range(2)]
    for tr, name in zip(enqueues, ("cat", "dan"), strict=True):
        sessions.enqueue(tr, "x", session=name)
    assert [conflicts(tr) for tr in enqueues] == [False, False]
    assert taken(sessions, db) == (2, 2)


@pytest.mark.parametrize("first", ["lower", "lease"])
def test_a_lease_and_a_lowered_limit_see_each_other(db: Any, sessions: Sessions, first: str) -> None:
    fill(sessions, db, "ann:1", "bob:1")
    lease, lower = db.create_transaction(), db.create_transaction()
    assert sessions.lease(lease) is not None
    sessions.set_limit(lower, "all", 1)
    order = [lower, lease] if first == "lower" else [lease, lower]
    assert [conflicts(tr) for tr in order] == [False, first == "lower"]
    assert len(lease_all(sessions, db)) == (1 if first == "lower" else 0)
    assert taken(sessions, db) == (1, 1)


def test_a_session_that_goes_on_and_a_lowered_limit_see_each_other(db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, ["1", "2"], session="ann")
    fill(sessions, db, "bob:1")
    lease, _ = lease_all(sessions, db)
    ack = db.create_transaction()
    assert sessions.ack_and_next(ack, lease) is not None
    sessions.set_limit(db, "all", 1)
    assert conflicts(ack)
    assert sessions.ack_and_next(db, lease) is None
    assert sessions.lease(db) is None
    assert taken(sessions, db) == (1, 1)


def test_a_lowered_limit_and_a_session_that_takes_a_slot_see_each_other(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:1")
    enqueue = db.create_transaction()
    sessions.enqueue(enqueue, "x", session="bob")
    sessions.set_limit(db, "all", 1)
    assert conflicts(enqueue)
    fill(sessions, db, "bob:x")
    assert taken(sessions, db) == (1, 1)


def test_acks_after_a_lowered_limit_end_exactly_at_it(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, gates=lambda _: (Gate("all", 5),), clock=clock)
    fill(sessions, db, *(f"s{number}:x" for number in range(9)))
    leases = lease_all(sessions, db)
    sessions.set_limit(db, "all", 2)
    acks = [db.create_transaction() for _ in leases[:3]]
    for tr, lease in zip(acks, leases, strict=False):
        sessions.ack(tr, lease)
    assert [conflicts(tr) for tr in acks] == [False, True, True]
    for lease in leases[1:3]:
        sessions.ack(db, lease)
    assert taken(sessions, db) == (2, 4)
    assert sessions.lease(db) is None
    sessions.ack(db, leases[3])
    assert len(lease_all(sessions, db)) == 1
    assert taken(sessions, db) == (2, 3)


@pytest.mark.parametrize("first", ["pause", "ack"])
def test_a_pause_and_an_ack_that_moves_the_waiting_session_see_each_other(
    db: Any, sessions: Sessions, first: str
) -> None:
    fill(sessions, db, "ann:1", "bob:1", "cat:1")
    leases = lease_all(sessions, db)
    pause, ack = db.create_transaction(), db.create_transaction()
    sessions.pause(pause, "cat")
    sessions.ack(ack, leases[0])
    order = [pause, ack] if first == "pause" else [ack, pause]
    assert [conflicts(tr) for tr in order] == [False, True]
    if first == "pause":
        sessions.ack(db, leases[0])
    else:
        sessions.pause(db, "cat")
    assert sessions.lease(db) is None
    assert taken(sessions, db) == (1, 0)
    sessions.resume(db, "cat")
    assert values(lease_all(sessions, db)) == ["1"]
