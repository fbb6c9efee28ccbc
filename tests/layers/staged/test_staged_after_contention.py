"""A staged queue after contention: its place among requests, what it sees, and its read versions."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.staging import coordinating, register, state_of, value


def met(db: Any, queue: Queue, leases: Leases, clock: Clock) -> StagedQueue:
    """Return somebody who has just served another."""
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "first"])
    staged = StagedQueue(leases)
    queue.enqueue(db, "second")
    assert value(staged.dequeue(db)) == "first"
    return staged


def test_a_take_respects_a_request_registered_after_its_last_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    staged = met(db, queue, leases, clock)
    register(db, queue, clock)
    assert staged.dequeue(db) is None
    queue.enqueue(db, "third")
    assert value(staged.dequeue(db)) == "third"
    assert leases.check(db).ok


def test_one_sees_what_was_enqueued_since_its_last_commit(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    staged = met(db, queue, leases, clock)
    assert value(staged.dequeue(db)) == "second"
    for name in "abc":
        queue.enqueue(db, name)
        assert value(staged.dequeue(db)) == name
    assert staged.dequeue(db) is None


def test_an_item_returned_since_the_last_commit_is_taken_first(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    queue.enqueue(db, "back")
    lease = leases.lease(db)
    assert lease is not None
    staged = met(db, queue, leases, clock)
    leases.nack(db, lease)
    assert value(staged.dequeue(db, timeout=20)) == "back"
    assert value(staged.dequeue(db, timeout=20)) == "second"
    assert leases.check(db).ok


def test_a_lease_starts_at_the_version_of_the_last_ack_and_sees_later_items(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "a"])
    staged = StagedQueue(leases)
    for name in "abc":
        lease = staged.lease(db)
        assert lease is not None
        assert lease.value == name
        staged.ack(db, lease)
        queue.enqueue(db, chr(ord(name) + 1))
    assert value(staged.lease(db)) == "d"
    assert leases.check(db).ok


def test_an_attempt_after_an_unknown_outcome_asks_for_its_own_version(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tr = db.create_transaction()
    seen = tr.get_read_version().wait()
    failing: list[Fault] = []

    def plan() -> Fault | None:
        if not failing:
            return None
        state_of(staged).version_of(faulty).note(seen)  # as an ack does in another thread
        return failing.pop()

    staged, faulty = StagedQueue(leases), FaultyDatabase(db, plan)
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "a", "b"])
    lease = staged.lease(faulty)
    assert lease is not None
    assert lease.value == "a"
    staged.ack(faulty, lease)
    [coordinator] = state_of(staged).coordinators.of(faulty).values()
    coordinator.own_requests.swept = True
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))  # it registers
    failing.append(("before", 1021))
    assert value(staged.lease(faulty, timeout=20)) == "b"
    assert not failing
    assert leases.check(db).ok
