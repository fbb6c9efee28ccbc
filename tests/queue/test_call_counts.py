"""Python calls of an enqueue: counts are exact, where times are noisy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases


def calls(action: Callable[[], object]) -> int:
    """How many Python functions an action calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.engines("memory", "file")
def test_an_enqueue_into_a_queue_whose_items_were_leased_costs_little_more(db: Any, space: Subspace) -> None:
    fresh, used = Queue(space["fresh"]), Leases(Queue(space["used"]))
    fresh.enqueue(db, b"first")
    used.enqueue(db, b"first")
    assert used.lease(db)
    for queue in (fresh, used.queue):
        queue.enqueue(db, b"second")  # it learns what the queue has

    assert calls(lambda: used.queue.enqueue(db, b"third")) < 2.2 * calls(lambda: fresh.enqueue(db, b"third"))
