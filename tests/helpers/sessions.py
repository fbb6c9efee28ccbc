"""Shared helpers for tests of sessions."""

from __future__ import annotations

from typing import Any

from fdbqueue.engine import Subspace
from fdbqueue.layers import SessionLease, Sessions


def lease_of(sessions: Sessions, tr: Any, **terms: Any) -> SessionLease:
    """Lease a session that must be ready."""
    lease = sessions.lease(tr, **terms)
    assert lease is not None
    return lease


def fill(sessions: Sessions, db: Any, *items: str) -> None:
    """Enqueue items like "ann:1": the session's name, and the value behind it."""
    for item in items:
        session, _, value = item.partition(":")
        sessions.enqueue(db, value, session=session)


def do_all(sessions: Sessions, db: Any) -> list[str]:
    """Let one worker do all that is ready, as long as a session keeps it. Return what it did."""
    did = []
    while (lease := sessions.lease(db)) is not None:
        while lease is not None:
            did.append(f"{lease.session!s}:{lease.value}")
            lease = sessions.ack_and_next(db, lease)
    return did


def keys_of(db: Any, space: Subspace) -> set[str]:
    """Return the first strings of the keys under a subspace, without the name of the codec of states, which stays."""
    kept = space["state"].key()
    return {str(space.unpack(row.key)[0]) for row in db.get_range_startswith(space.key()) if row.key != kept}


def lease_all(sessions: Sessions, db: Any, **terms: Any) -> list[SessionLease]:
    """Lease all that is ready."""
    return list(iter(lambda: sessions.lease(db, **terms), None))


def values(leases: list[SessionLease]) -> list[str]:
    return [lease.value for lease in leases]


def numbers(sessions: Sessions, db: Any, name: str = "ann") -> tuple[int, int]:
    """Return how many items of a session are in progress, and its limit."""
    info = sessions.info(db, name)
    assert info is not None
    return info.running, info.concurrency


def assert_sound(sessions: Sessions, db: Any) -> None:
    assert sessions.check(db).problems == ()
