"""`RateLimit`: a limit for all processes, of a queue or of each key."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases, RateLimit, Sessions


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.fixture
def leases(queue: Queue) -> Leases:
    return Leases(queue)


def nothing(lease: Lease) -> None:
    """Do nothing."""


def test_items_beyond_the_limit_go_back_uncounted_until_there_is_a_token(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b", "c", "d"])
    limit = RateLimit(db, count=2, seconds=600)

    report = Consumer(leases, nothing, concurrency=1, middleware=[limit]).drain(db)

    assert (report.acked, report.snoozed, report.failed) == (2, 2, 0)
    assert [(item.value, item.attempt) for item in leases.browse(db, state="delayed")] == [("c", 0), ("d", 0)]


def test_two_consumers_share_the_limit_of_their_queue(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])
    first, second = (
        Consumer(leases, nothing, middleware=[RateLimit(db, count=2, seconds=600)]).drain(db) for _ in range(2)
    )
    assert first.acked == 2
    leases.enqueue(db, "d")
    third = Consumer(leases, nothing, middleware=[RateLimit(db, count=2, seconds=600)]).drain(db)
    assert (second.acked, third.acked) == (0, 0)


def test_each_key_has_its_own_limit_and_none_is_none(db: Any, leases: Leases) -> None:
    values = ["a 1", "a 2", "b 1", "b 2", "free 1", "free 2"]
    leases.enqueue_many(db, values)
    limit = RateLimit(db, count=1, seconds=600, key=lambda lease: None if "free" in lease.value else lease.value[0])
    done: list[str] = []

    Consumer(leases, lambda lease: done.append(lease.value), concurrency=1, middleware=[limit]).drain(db)

    assert done == ["a 1", "b 1", "free 1", "free 2"]


def test_queues_may_share_a_limit(db: Any, queue: Queue) -> None:
    shared = Queue(queue.layout.space["limits"], codec="str")
    acked = []
    for name in ("one", "other"):
        leases = Leases(Queue(queue.layout.space[name], codec="str"))
        leases.enqueue(db, "a")
        limit = RateLimit(db, count=1, seconds=600, queue=shared)
        acked.append(Consumer(leases, nothing, middleware=[limit]).drain(db).acked)
    assert acked == [1, 0]


def test_in_a_session_only_that_session_waits(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue_many(db, ["1", "2"], session="Ann")
    sessions.enqueue_many(db, ["1"], session="Bob")
    limit = RateLimit(db, count=1, seconds=600, key=lambda lease: lease.session)  # type: ignore[attr-defined]

    report = Consumer(sessions, nothing, middleware=[limit]).drain(db)

    assert (report.acked, report.snoozed) == (2, 1)
