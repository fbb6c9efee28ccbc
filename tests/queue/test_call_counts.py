"""Python calls of an enqueue: counts are exact, where times are noisy."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.calls import python_calls


@pytest.mark.engines("memory", "file")
def test_an_enqueue_into_a_queue_whose_items_were_leased_costs_little_more(db: Any, space: Subspace) -> None:
    fresh, used = Queue(space["fresh"]), Leases(Queue(space["used"]))
    fresh.enqueue(db, b"first")
    used.enqueue(db, b"first")
    assert used.lease(db)
    for queue in (fresh, used.queue):
        queue.enqueue(db, b"second")  # it learns what the queue has

    calls = {queue: python_calls(lambda: queue.enqueue(db, b"third")) for queue in (used.queue, fresh)}  # noqa: B023
    assert calls[used.queue] < 2.2 * calls[fresh]
