"""A kind of queue has the verbs of a queue."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Messages, MessageType, PriorityQueue, RelaxedQueue, SmartQueue, Subscriptions


@pytest.mark.parametrize("kind", [PriorityQueue, RelaxedQueue, SmartQueue])
def test_every_kind_of_queue_can_be_read_and_cleared(db: Any, space: Subspace, kind: Any) -> None:
    queue = kind(Queue(space, codec=Messages(MessageType("call"))))
    assert queue.is_empty(db)
    assert queue.peek(db) is None
    enqueue = queue.enqueue if hasattr(queue, "enqueue") else queue.queue.enqueue
    for number in range(3):
        enqueue(db, {"type": "call", "n": number})

    assert queue.peek(db).value["n"] == 0
    assert [item.value["n"] for item in queue.browse(db, reverse=True, limit=2)] == [2, 1]
    assert not queue.is_empty(db)
    queue.clear(db)
    assert queue.is_empty(db)
    assert list(db.get_range_startswith(space.key())) == []


def places(items: Any) -> list[Position]:
    return [item.position for item in items]


def test_every_browser_stops_at_both_borders_and_reads_backwards(db: Any, space: Subspace) -> None:
    queue = Queue(space["fifo"], codec="str")
    queue.enqueue_many(db, list("abcdef"))
    jobs = PriorityQueue(Queue(space["levels"], codec="str"), levels=3)
    for value, priority in zip("abcdef", (2, 1, 0, 1, 2, 1), strict=True):
        jobs.enqueue(db, value, priority=priority)
    dying = Leases(Queue(space["dead"], codec="str"), max_attempts=1)
    dying.enqueue_many(db, list("abcdef"))
    dying.nack_many(db, dying.lease_many(db))

    for browse in (queue.browse, Leases(queue).browse, Subscriptions(queue).browse, jobs.browse, dying.dead.browse):
        everything = places(browse(db))
        assert len(everything) == 6
        assert places(browse(db, after=everything[1], before=everything[4])) == everything[2:4]
        assert places(browse(db, after=everything[1], before=everything[4], reverse=True)) == everything[3:1:-1]
        assert places(browse(db, reverse=True, limit=2)) == everything[:3:-1]
        assert places(browse(db, limit=0)) == []


def test_one_level_can_be_browsed_between_borders(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=3)
    for value, priority in zip("abcdef", (2, 1, 0, 1, 2, 1), strict=True):
        jobs.enqueue(db, value, priority=priority)
    everything = places(jobs.browse(db))
    level = places(jobs.browse(db, level=1))

    assert places(jobs.browse(db, level=1, after=level[0])) == level[1:]
    assert places(jobs.browse(db, level=1, before=level[2])) == level[:2]
    assert places(jobs.browse(db, level=1, after=everything[0], before=everything[-1])) == level
    assert places(jobs.browse(db, level=1, after=everything[-1])) == []
    assert places(jobs.browse(db, level=1, reverse=True)) == level[::-1]
