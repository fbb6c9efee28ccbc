"""A lease that a verb can't take is refused by a TypeError that names the verb for it, and the lease stays alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, StagedQueue

Call = Callable[[Queue, Any, Any], object]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


OF_LEASES: dict[str, Call] = {
    "Leases.ack": lambda queue, db, lease: Leases(queue).ack(db, lease),
    "Leases.ack with a result": lambda queue, db, lease: Leases(queue).ack(db, lease, result=1),
    "Leases.ack_many": lambda queue, db, lease: Leases(queue).ack_many(db, [lease]),
    "Leases.ack_many with results": lambda queue, db, lease: Leases(queue).ack_many(db, [lease], results=[1]),
    "Leases.nack": lambda queue, db, lease: Leases(queue).nack(db, lease),
    "Leases.nack_many": lambda queue, db, lease: Leases(queue).nack_many(db, [lease]),
    "Leases.snooze": lambda queue, db, lease: Leases(queue).snooze(db, lease, delay=1),
    "Leases.snooze_many": lambda queue, db, lease: Leases(queue).snooze_many(db, [lease], delay=1),
    "Leases.extend": lambda queue, db, lease: Leases(queue).extend(db, lease),
    "Leases.extend_many": lambda queue, db, lease: Leases(queue).extend_many(db, [lease]),
    "StagedQueue.ack": lambda queue, db, lease: StagedQueue(queue).ack(db, lease),
}


@pytest.mark.parametrize("form", ["lease", "handle"])
@pytest.mark.parametrize("name", OF_LEASES)
def test_a_sessions_lease_is_refused_with_the_verb_that_takes_it(db: Any, queue: Queue, name: str, form: str) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, 1, session="ann")
    lease = sessions.lease(db)
    assert lease is not None
    told = r"^That of 'ann' is a session's lease, and nothing was done to it\. Give it to its sessions: Sessions\.ack"
    if form == "handle" and "extend" in name:
        told = "extend returns the lease with its new end, so it takes the lease, not SessionHandle"
    with pytest.raises(TypeError, match=told):
        OF_LEASES[name](queue, db, lease if form == "lease" else lease.handle)

    sessions.ack(db, lease)  # it is alive
    assert sessions.lease(db) is None


@pytest.mark.parametrize("name", OF_LEASES)
def test_what_is_no_lease_is_refused(db: Any, queue: Queue, name: str) -> None:
    with pytest.raises(TypeError, match="Give a lease, or its handle, not None"):
        OF_LEASES[name](queue, db, None)


@pytest.mark.parametrize("verb", ["ack_many", "nack_many", "snooze_many", "extend_many"])
@pytest.mark.parametrize("wrong", ["", "x", b"", {}])
def test_a_text_in_place_of_leases_is_refused(db: Any, queue: Queue, verb: str, wrong: Any) -> None:
    terms = {"delay": 1} if verb == "snooze_many" else {}
    with pytest.raises(TypeError, match=rf"{verb} takes leases, as in {verb}\(db, \[lease\]\), not {wrong!r}"):
        getattr(Leases(queue), verb)(db, wrong, **terms)


def test_a_handle_has_no_end_to_extend(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, 1)
    lease: Any = leases.lease(db)
    with pytest.raises(TypeError, match="extend returns the lease with its new end, so it takes the lease, not Lease"):
        leases.extend(db, lease.handle)
    leases.ack(db, lease)
