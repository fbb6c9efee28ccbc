"""What a process reads that takes the items assigned to it: requests, due timers and items, in few reads."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import delivery as _delivery
from fdbqueue.layers.staged.delivery import HeadDelivery
from fdbqueue.layers.staged.requests import Requests
from tests.helpers.clock import Clock
from tests.helpers.reading import Reading
from tests.helpers.staging import register


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


class Looks:
    """Looks of one process, and how many reads each needs."""

    def __init__(self, db: Any, leases: Leases) -> None:
        self.db = Reading(db)
        self.delivery = HeadDelivery(leases)
        self.requests = Requests(leases.layout)

    def look(self, limit: int = 2) -> tuple[int, int, list[str]]:
        """Return how many requests and due timers, and which items a look found."""
        requests, delivery = self.requests, self.delivery

        async def body(tr: Any) -> tuple[int, int, list[str]]:
            found, head = await delivery.look_behind(tr, requests.begin, requests.end, limit=limit, others=100)
            due, items = await delivery.see(tr, head)
            return len(found), len(due), [row.value[1:].decode() for row in items]

        return run(body(self.db.create_transaction()))

    def reads(self, limit: int = 2) -> int:
        before = self.db.reads
        self.look(limit)
        return self.db.reads - before


def test_a_look_finds_requests_due_timers_and_items(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b", "c"])
    looks = Looks(db, leases)
    assert looks.look() == (1, 0, ["a", "b"])
    assert leases.lease(db, duration=5) is not None
    assert leases.lease(db, duration=500) is not None
    for _ in range(3):
        assert looks.look() == (1, 0, ["c"])
    clock.now += 10
    for _ in range(3):
        assert looks.look() == (1, 1, ["c"])


def test_a_look_reads_once_without_timers_and_twice_with_some(
    db: Any, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(queue, clock=clock)
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b", "c"])
    looks = Looks(db, leases)
    looks.look()  # it also looks for a pause
    assert looks.reads() == 1
    lease = leases.lease(db)
    assert lease is not None
    looks.look()  # it finds the timer
    assert looks.reads() == 2
    leases.ack(db, lease)
    monkeypatch.setattr(_delivery, "TRY_AGAIN_LOOKS", 1)
    looks.look()  # it finds none
    monkeypatch.setattr(_delivery, "TRY_AGAIN_LOOKS", 1_000_000)
    assert looks.reads() == 1


def test_many_other_keys_in_between_are_read_once_only(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    assert leases.lease(db) is not None
    for number in range(200):
        db[queue.layout.smart.pack((number,))] = b""
    looks = Looks(db, leases)
    for _ in range(3):
        assert looks.look() == (1, 0, ["b"])
    assert looks.reads() == 3
