"""Notes of what became available, where somebody wants to know."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.moves.moves import MAX_SPANS, announce
from fdbqueue.stored.counters import read_counts
from fdbqueue.stored.positions import pack


@pytest.fixture
def queue(db: Any, space: Subspace) -> Queue:
    """A queue of whose arrivals somebody wants to know."""
    queue = Queue(space)
    tr = db.create_transaction()
    tr[queue.layout.subscribed_key] = b""
    tr.commit().wait()
    return queue


def noted(db: Any, queue: Queue, since: int = 0) -> list[tuple[bytes, bytes]]:
    begin, end = queue.layout.arrivals_since(since)
    return [queue.layout.arrival_of(row.key) for row in db.create_transaction().get_range(begin, end)]


def unannounced(db: Any, queue: Queue) -> int:
    counts = run(read_counts(db.create_transaction(), queue.layout))
    return counts.get("enqueued", 0) - counts.get("announced", 0)


def test_without_subscriptions_no_arrival_is_noted(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, b"x")
    assert noted(db, queue) == []


def test_every_way_to_enqueue_notes_where(db: Any, queue: Queue) -> None:
    positions = [queue.enqueue(db, b"0")]
    tr = db.create_transaction()
    positions += [queue.enqueue(tr, b"1"), queue.enqueue(tr, b"2")]
    tr.commit().wait()
    assert noted(db, queue) == [(pack(position), pack(position)) for position in positions]
    bulk = queue.enqueue_many(db, [b"3", b"4", b"5"])
    assert bulk.first is not None
    assert bulk.last is not None
    positions = [Leases(queue).enqueue(db, b"6"), StagedQueue(queue).enqueue(db, b"7")]
    rest = [(pack(position), pack(position)) for position in positions]
    assert noted(db, queue)[3:] == [(pack(bulk.first), pack(bulk.last)), *rest]
    Leases(queue).enqueue(db, b"delayed", delay=5)
    assert len(noted(db, queue)) == 6
    assert unannounced(db, queue) == 0


def test_every_way_back_is_noted(db: Any, queue: Queue) -> None:
    now = 1_000.0
    positions = [queue.enqueue(db, b"%d" % number) for number in range(3)]
    leases = Leases(Queue(queue.layout.space), max_attempts=2, clock=lambda: now)  # it has not learned it by an enqueue
    tr = db.create_transaction()
    version = tr.get_read_version().wait()
    nacked, snoozed, expires = leases.lease_many(db, duration=10)
    leases.nack(db, nacked)
    leases.snooze(db, snoozed, delay=5)
    now += 20
    leases.reclaim(db)
    leases.nack(db, leases.lease_many(db, limit=1)[0])
    leases.dead.redrive(db)
    order = [0, 1, 2, 0] if positions[1] < expires.position else [0, 2, 1, 0]
    found = noted(db, queue, version)
    assert sorted(found) == sorted((pack(positions[n]), pack(positions[n])) for n in order)
    assert found[0] == found[-1] == (pack(positions[0]), pack(positions[0]))
    assert unannounced(db, queue) == 0


def test_many_places_are_noted_as_one(db: Any, queue: Queue) -> None:
    tr = db.create_transaction()
    places = [b"\x15%c" % number for number in range(2 * MAX_SPANS)]
    announce(tr, queue.layout, [(place, place) for place in reversed(places)])
    tr.commit().wait()
    assert noted(db, queue) == [(places[0], places[-1])]


def test_notes_are_in_commit_order(db: Any, queue: Queue) -> None:
    slow, fast = db.create_transaction(), db.create_transaction()
    queue.enqueue(slow, b"slow")
    late = queue.enqueue(fast, b"fast")
    fast.commit().wait()
    version = fast.get_committed_version()
    slow.commit().wait()
    assert noted(db, queue)[0] == (pack(late), pack(late))
    assert len(noted(db, queue, version)) == 1
    begin, end = queue.layout.arrivals_until(version)
    assert len(db.create_transaction().get_range(begin, end).to_list()) == 1


def test_counters_reveal_an_enqueue_that_began_before_the_first_subscription(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    slow = db.create_transaction()
    queue.enqueue(slow, b"slow")
    tr = db.create_transaction()
    tr[queue.layout.subscribed_key] = b""
    tr.commit().wait()
    queue.enqueue(db, b"knows")
    assert unannounced(db, queue) == 0
    slow.commit().wait()
    assert unannounced(db, queue) == 1


def test_a_release_that_began_before_the_first_subscription_retries_and_notes(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"x")
    lease = leases.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    leases.nack(tr, lease)
    db[leases.layout.subscribed_key] = b""
    with pytest.raises(FDBError) as failed:
        tr.commit().wait()
    assert failed.value.code == 1020
    leases.nack(db, lease)
    assert noted(db, leases.queue) == [(pack(lease.position), pack(lease.position))]


def test_producers_that_note_arrivals_do_not_conflict(db: Any, queue: Queue) -> None:
    one, other = db.create_transaction(), db.create_transaction()
    queue.enqueue(one, b"one")
    queue.enqueue(other, b"other")
    one.commit().wait()
    other.commit().wait()
    assert len(noted(db, queue)) == 2
