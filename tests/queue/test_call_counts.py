"""The way of an enqueue and of a dequeue: counts are exact, where times are noisy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.calls import Way, python_calls, way_of


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


WAYS = {"enqueue": Way(24, 60, 86), "dequeue": Way(22, 62, 86)}
"""The ways of warm calls in memory. The loop of commit markers has a file of its own, which `transactional` uses too.
Packed positions have one, and so has what opens items by the queue's codec, for all takers.
A dequeue asks the module that decides for all takers, which opens the item by the queue again.
A change may make them a tenth longer; more asks for a reason, and a new figure."""


def test_waiting_for_the_disk_costs_few_calls(untouched_file: Any, space: Subspace) -> None:
    db, queue = untouched_file, Queue(space)
    for _ in range(20):
        queue.enqueue(db, b"x")

    calls = min(python_calls(partial(queue.enqueue, db, b"x")) for _ in range(5))
    assert calls <= 93


@pytest.mark.parametrize("verb", WAYS)
def test_a_call_takes_a_short_way(untouched: Any, space: Subspace, verb: str) -> None:
    db, queue = untouched, Queue(space)
    for _ in range(20):
        queue.enqueue(db, b"x")
    queue.dequeue(db)
    call = partial(queue.enqueue, db, b"x") if verb == "enqueue" else partial(queue.dequeue, db)
    ways = [way_of(call) for _ in range(5)]  # now and then a commit trims the log, or a look is due

    found, most = min(ways, key=lambda way: way.calls), WAYS[verb]
    assert found.files <= 1.1 * most.files
    assert found.calls <= 1.1 * most.calls
    assert found.moves <= 1.1 * most.moves


@pytest.mark.engines("memory")
def test_a_list_of_queues_takes_few_calls_for_each(db: Any, space: Subspace) -> None:
    for number in range(40):
        Queue(space[number]).enqueue(db, b"x")

    def calls(limit: int) -> int:
        return min(python_calls(lambda: fdbqueue.queues(db, within=space, limit=limit)) for _ in range(5))

    assert (calls(40) - calls(10)) / 30 <= 290
