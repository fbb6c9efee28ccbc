"""A duration under a microsecond is refused: as whole microseconds it is 0, which means no lease, or no end."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Leases,
    StagedQueue,
)


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


def test_an_item_is_not_taken_out_by_a_lease_under_a_microsecond(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1)
    staged = StagedQueue(queue)
    assert staged.dequeue(db) is not None  # a call with the duration 0 is known
    queue.enqueue(db, 2)
    for lease in (staged.lease, staged.lease_many):
        with pytest.raises(ValueError, match="at least a microsecond"):
            lease(db, duration=4e-7)
    assert queue.stats(db).dequeued == 1


def test_a_microsecond_is_the_shortest_duration(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1)
    lease = Leases(queue).lease(db, duration=1e-6)
    assert lease is not None
    assert lease.value == 1
