"""Items of smart queues, and of streams, are changed by their positions, or are not."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import ChecksBypassed, Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Messages,
    MessageType,
    PriorityQueue,
    SmartQueue,
)
from fdbqueue.layers.streams import Stream, Terms
from tests.helpers.by_position import STATES, Made, item_in, sound
from tests.helpers.clock import Clock


def keyed_queue(space: Subspace) -> SmartQueue:
    return SmartQueue(Queue(space, codec=Messages(MessageType("call", key=lambda one: one["n"], deadline=50.0))))


def test_a_smart_item_changes_with_its_deadline_and_the_copies_of_its_recipients(db: Any, space: Subspace) -> None:
    smart = keyed_queue(space)
    smart.resend.register(db, "B")
    position = smart.enqueue(db, {"type": "call", "n": 1, "text": "old"}).position
    assert position is not None
    fetched = smart.resend.fetch(db, "B")

    smart.update(db, position, value={"type": "call", "n": 1, "text": "new"})

    assert smart.resend.confirm(db, "B", copy=fetched) == (None, False)
    again = smart.resend.fetch(db, "B")
    assert again is not None
    assert again.value["text"] == "new"
    assert smart.check(db).problems == ()
    assert smart.cancel(db, position)
    assert smart.resend.fetch(db, "B") is None
    assert smart.check(db).problems == ()


def test_a_smart_item_keeps_its_type_and_key(db: Any, space: Subspace) -> None:
    smart = keyed_queue(space)
    position = smart.enqueue(db, {"type": "call", "n": 1}).position
    assert position is not None

    with pytest.raises(ValueError, match="keeps type and key"):
        smart.update(db, position, value={"type": "call", "n": 2})
    with pytest.raises(ChecksBypassed, match=r"SmartQueue\(...\).update"):
        smart.queue.update(db, position, value={"type": "call", "n": 2})
    with pytest.raises(ChecksBypassed):
        Queue(space, codec="json").update(db, position, value={})

    assert smart.queue.update(db, position, headers={"seen": 1}) == position
    assert smart.check(db).problems == ()


@pytest.mark.parametrize("state", STATES)
def test_a_smart_priority_queue_moves_an_item_with_its_index_entry(
    db: Any, space: Subspace, clock: Clock, state: str
) -> None:
    jobs = PriorityQueue(
        Queue(space, codec=Messages(MessageType("call", deadline=500.0))), levels=3, max_attempts=1, clock=clock
    )
    smart = SmartQueue(jobs)
    own = Made(smart, jobs.leases, smart.enqueue, smart.check)
    position, _ = item_in(state, own, db)

    moved = smart.reschedule(db, position, priority=0)

    assert moved is not None
    assert moved.rank == 0
    sound(own, db)
    assert smart.cancel(db, moved)
    sound(own, db)


def test_an_item_in_a_streams_batch_is_found_and_can_not_be_changed(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    position = queue.enqueue(db, "a")
    Stream(queue, "s").claim(db, Terms(epoch="e", run="r", items=10, size_bytes=1_000, batch=1))

    found = queue.get(db, position)
    assert found is not None
    assert (found.state, found.value) == ("claimed", "a")
    for edit in (
        lambda: queue.cancel(db, position),
        lambda: queue.update(db, position, value="b"),
        lambda: queue.reschedule(db, position, delay=1),
    ):
        with pytest.raises(StreamError, match="batch of a stream"):
            edit()
