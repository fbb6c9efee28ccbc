"""Sessions with items and pointers that can't be read: each verb works, or its error names the item and the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import FormatError, LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import SessionLease, Sessions
from fdbqueue.lowlevel import pack
from tests.helpers.clock import Clock
from tests.helpers.sessions import fill, lease_all, lease_of

DAMAGED = {"newer": b"\x90newer", "no notes": b"\x14\x00\x05notes"}
"""Stored bytes of items that can't be read."""
VERBS: dict[str, Callable[[Sessions, Any, SessionLease], object]] = {
    "ack": lambda sessions, db, lease: sessions.ack(db, lease),
    "ack_and_next": lambda sessions, db, lease: sessions.ack_and_next(db, lease),
    "nack": lambda sessions, db, lease: sessions.nack(db, lease),
    "get": lambda sessions, db, lease: sessions.get(db, lease.session, lease.position),
}


@pytest.fixture
def sessions(space: Subspace, clock: Clock) -> Sessions:
    return Sessions(Queue(space["orders"], codec="str"), clock=clock)


def leased(sessions: Sessions, db: Any) -> tuple[SessionLease, bytes, bytes]:
    """Lease the session "ann" of two items. Return the lease, and the keys of its first item and of its pointer."""
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db, duration=10)
    item = sessions.line.session(pack_name("ann")).layout.available.key(pack(lease.position))
    return lease, item, sessions.line.layout.leased.key(pack(lease.turn))


def pack_name(name: str) -> bytes:
    return Subspace((name,)).key()


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("verb", VERBS)
def test_an_error_names_the_item_in_progress(db: Any, sessions: Sessions, verb: str, damage: str) -> None:
    lease, item, _ = leased(sessions, db)
    db[item] = DAMAGED[damage]
    with pytest.raises(FormatError) as caught:
        VERBS[verb](sessions, db, lease)
    assert f"item {lease.position.text} of the session 'ann' of " in str(caught.value)
    assert sessions.layout.describe() in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_lost_lease_of_an_unreadable_item_is_lost(db: Any, sessions: Sessions, clock: Clock, damage: str) -> None:
    lease, item, _ = leased(sessions, db)
    clock.now += 20
    lease_of(sessions, db)
    db[item] = DAMAGED[damage]
    for verb in (sessions.ack, sessions.nack, sessions.extend):
        with pytest.raises(LeaseLost):
            verb(db, lease)
    with pytest.raises(LeaseLost):
        sessions.set_state(db, lease, b"s")


@pytest.mark.parametrize("damage", DAMAGED)
def test_an_expired_unreadable_item_blocks_its_session_only(
    db: Any, sessions: Sessions, clock: Clock, damage: str
) -> None:
    lease, item, _ = leased(sessions, db)
    fill(sessions, db, "bob:1")
    db[item] = DAMAGED[damage]
    clock.now += 20
    assert lease_of(sessions, db).session == "bob"
    assert sessions.lease(db) is None
    info = sessions.info(db, "ann")
    assert info is not None
    assert info.status == "blocked"
    assert lease.position.text in info.reason
    assert sessions.cancel(db, "ann", lease.position)
    assert lease_of(sessions, db).value == "2"


@pytest.mark.parametrize("damage", DAMAGED)
def test_an_error_names_the_pointer_and_the_line(db: Any, sessions: Sessions, clock: Clock, damage: str) -> None:
    lease, _, pointer = leased(sessions, db)
    db[pointer] = DAMAGED[damage]
    for verb in (sessions.get, sessions.cancel):
        with pytest.raises(FormatError) as caught:
            verb(db, "ann", lease.position)
        told = str(caught.value)
        assert f"item {lease.turn.text} of the line of sessions of {sessions.layout.describe()}" in told


@pytest.mark.parametrize("damaged", ["pointer", "record", "slot"])
def test_an_expired_lease_that_can_not_end_keeps_no_other(db: Any, space: Subspace, clock: Clock, damaged: str) -> None:
    sessions = Sessions(Queue(space["orders"], codec="str"), clock=clock, concurrency=2 if damaged == "slot" else 1)
    _, _, pointer = leased(sessions, db)
    lease_all(sessions, db, duration=10)
    session = sessions.line.session(pack_name("ann"))
    slots = [row.key for row in db.get_range_startswith(session.slots_prefix)]
    for key in {"pointer": [pointer], "record": [session.record_key], "slot": slots}[damaged]:
        db[key] = b"\xff" if damaged == "slot" else bytes(db[key])[:-3]  # the notes of a pointer are whole
    fill(sessions, db, "bob:1")
    clock.now += 20
    assert [one.session for one in lease_all(sessions, db)] == ["bob"]
    assert sessions.check(db).problems
