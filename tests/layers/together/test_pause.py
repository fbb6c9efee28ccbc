"""A paused queue: takers find nothing and wait, producers and holders of leases go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue, QueuePaused
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Leases, PriorityQueue, RelaxedQueue, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.streams import Stream, Terms
from tests.helpers.leasing import lease_of

Take = Callable[[Any], Any]


def takers(queue: Queue[str]) -> dict[str, Take]:
    """Return calls that take items, each of an object of its own."""
    leases = Leases(queue)
    subscription = Subscriptions(leases)

    def in_transaction(take: Take) -> Take:
        def call(db: Any) -> Any:
            tr = db.create_transaction()
            taken = take(tr)
            tr.commit().wait()
            return taken

        return call

    def subscribed(db: Any) -> Any:
        return subscription.subscribe(db, "all").lease(db)

    return {
        "Queue.dequeue": queue.dequeue,
        "Queue.dequeue_many": queue.dequeue_many,
        "Queue.dequeue in a transaction": in_transaction(queue.dequeue),
        "Leases.lease": leases.lease,
        "Leases.lease in a transaction": in_transaction(leases.lease),
        "StagedQueue.dequeue": StagedQueue(leases).dequeue,
        "StagedQueue.lease_many": StagedQueue(leases).lease_many,
        "RelaxedQueue.dequeue": RelaxedQueue(queue).dequeue,
        "Subscription.lease": subscribed,
    }


NAMES = sorted(takers(Queue("names", codec="str")))


@pytest.mark.parametrize("name", NAMES)
def test_a_taker_finds_nothing_until_the_queue_goes_on(db: Any, space: Subspace, name: str) -> None:
    queue = Queue(space, codec="str")
    take = takers(queue)[name]
    queue.enqueue_many(db, ["a", "b", "c"])
    assert take(db)

    Queue(space).pause(db, reason="stocktaking", by="Ann")

    assert not take(db)
    assert not take(db)
    queue.enqueue(db, "d")
    found = queue.paused(db)
    assert found is not None
    assert (found.by, found.reason, found.since > 1e9) == ("Ann", "stocktaking", True)
    assert queue.check(db).problems == ()
    Queue(space).resume(db)
    assert queue.paused(db) is None
    assert take(db)
    assert Leases(queue).check(db).problems == ()


def test_a_priority_queue_and_sessions_pause(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space["jobs"], codec="str"), levels=3)
    jobs.enqueue(db, "a", priority=1)
    jobs.queue.pause(db)
    assert jobs.dequeue(db) is None
    jobs.queue.resume(db)
    assert jobs.dequeue(db) is not None
    sessions = Sessions(Queue(space["sessions"], codec="str"))
    for name in ("ann", "bob"):
        sessions.enqueue(db, "a", session=name)
    lease = sessions.lease(db)
    assert lease is not None
    sessions.queue.pause(db)
    assert sessions.lease(db) is None
    sessions.ack(db, lease)
    sessions.queue.resume(db)
    assert sessions.lease(db) is not None
    assert sessions.check(db).problems == ()


def test_holders_go_on_and_timers_fire(db: Any, space: Subspace, clock: Any) -> None:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    for text in "abc":
        leases.enqueue(db, text)
    leases.enqueue(db, "later", delay=10)
    first, second = lease_of(leases, db), lease_of(leases, db)
    leases.queue.pause(db)

    leases.ack(db, leases.extend(db, first))
    leases.nack(db, second)
    clock.now += 11
    assert StagedQueue(leases).lease(db) is None
    assert (leases.stats(db).available, leases.stats(db).delayed) == (3, 0)
    assert leases.check(db).problems == ()


def test_a_stream_claims_nothing_of_a_paused_queue(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    queue.pause(db)
    terms = Terms(epoch="e", run="r", items=10, size_bytes=1_000, batch=1)

    with pytest.raises(QueuePaused, match="is paused"):
        Stream(queue, "s").claim(db, terms)
    queue.resume(db)
    assert Stream(queue, "s").claim(db, terms).count == 1


@pytest.mark.parametrize("kind", ["staged", "subscription"])
def test_a_call_that_waits_goes_on_waiting_and_wakes_at_resume(db: Any, space: Subspace, kind: str) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    taker: Any = StagedQueue(leases) if kind == "staged" else Subscriptions(leases).subscribe(db, "all")
    queue.pause(db)
    queue.enqueue(db, "a")
    took: list[Any] = []
    thread = threading.Thread(target=lambda: took.append(taker.lease(db, timeout=None)))
    thread.start()
    thread.join(0.3)
    assert not took

    queue.resume(db)
    thread.join()

    assert took[0].value == "a"


def test_a_consumer_of_a_paused_queue_drains_nothing(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue(db, "a")
    leases.queue.pause(db)

    assert Consumer(leases, lambda lease: None).drain(db).acked == 0
    leases.queue.resume(db)
    assert Consumer(leases, lambda lease: None).drain(db).acked == 1


def test_a_pause_takes_part_in_a_transaction(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    tr = db.create_transaction()
    queue.pause(tr)
    assert queue.paused(tr) is not None
    assert queue.paused(db) is None
    tr.cancel()
    assert queue.dequeue(db) is not None
    queue.resume(db)
    queue.pause(db)
    queue.clear(db)
    assert list(db.get_range_startswith(space.key())) == []
