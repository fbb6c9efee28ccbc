"""A limit drops the oldest of the least urgent items, whichever limit it is."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import NOTHING, Limit, Messages, MessageType, SmartQueue
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts


def limited_by(space: Subspace, by: str, most: int, levels: int | None) -> SmartQueue:
    """Return a queue whose items, or those of their type or key, may be so many."""
    limit = Limit(most, "drop oldest")
    own = MessageType("x", sees=NOTHING)
    if by == "type":
        own = dataclasses.replace(own, limit=limit)
    elif by == "key":
        own = dataclasses.replace(own, key=lambda data: "one", key_limit=limit)
    queue = Queue(space, codec=Messages(own), order=None if levels is None else Levels(levels))
    return SmartQueue(Leases(queue, clock=Clock()), limit=limit if by == "queue" else None)


def left(smart: SmartQueue, db: Any) -> list[int]:
    """Return the numbers of the items that are available or delayed, in queue order."""
    assert smart.check(db).problems == ()
    kept = [*smart.leases.browse(db, state="available"), *smart.leases.browse(db, state="delayed")]
    return [one.value["n"] for one in sorted(kept, key=lambda one: one.position)]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_drops_what_was_enqueued_first(db: Any, space: Subspace, by: str) -> None:
    smart = limited_by(space, by, 3, None)
    outcomes = [smart.enqueue(db, {"type": "x", "n": n}) for n in range(5)]
    assert outcomes[4].deleted == (outcomes[1].position,)
    assert left(smart, db) == [2, 3, 4]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_drops_a_delayed_item_that_was_enqueued_first(db: Any, space: Subspace, by: str) -> None:
    smart = limited_by(space, by, 3, None)
    for n in range(4):
        smart.enqueue(db, {"type": "x", "n": n}, delay=9 if n < 2 else None)
    assert left(smart, db) == [1, 2, 3]
    smart.enqueue(db, {"type": "x", "n": 4}, delay=9)
    smart.enqueue(db, {"type": "x", "n": 5})
    assert left(smart, db) == [3, 4, 5]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_drops_the_first_of_the_least_urgent_and_not_the_most_urgent(
    db: Any, space: Subspace, by: str
) -> None:
    smart = limited_by(space, by, 4, 5)
    for n, priority in enumerate((3, 0, 4, 4)):
        smart.enqueue(db, {"type": "x", "n": n}, priority=priority)
    for n, priority, there in (
        (4, 0, [1, 4, 0, 3]),
        (5, 0, [1, 4, 5, 0]),
        (6, 1, [1, 4, 5, 6]),
        (7, 4, [1, 4, 5, 7]),  # as urgent as it is, the newcomer comes in
    ):
        smart.enqueue(db, {"type": "x", "n": n}, priority=priority)
        assert left(smart, db) == there


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_goes_by_rank_then_by_age_over_available_and_delayed_items(
    db: Any, space: Subspace, by: str
) -> None:
    smart = limited_by(space, by, 4, 3)
    for n, priority, delay in ((0, 2, None), (1, 2, 9), (2, 1, 9), (3, 0, None)):
        smart.enqueue(db, {"type": "x", "n": n}, priority=priority, delay=delay)
    smart.enqueue(db, {"type": "x", "n": 4}, priority=0, delay=9)
    assert left(smart, db) == [3, 4, 2, 1]
    smart.enqueue(db, {"type": "x", "n": 5}, priority=0)
    assert left(smart, db) == [3, 4, 5, 2]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_leaves_leased_items_and_drops_the_next(db: Any, space: Subspace, by: str) -> None:
    smart = limited_by(space, by, 3, 2)
    smart.enqueue(db, {"type": "x", "n": 0}, priority=1)
    lease = smart.leases.lease(db)
    smart.enqueue(db, {"type": "x", "n": 1}, priority=0)
    smart.enqueue(db, {"type": "x", "n": 2}, priority=0)
    smart.enqueue(db, {"type": "x", "n": 3}, priority=0)
    assert lease is not None
    assert left(smart, db) == [2, 3]
    smart.leases.nack(db, lease)
    assert left(smart, db) == [2, 3, 0]
    smart.enqueue(db, {"type": "x", "n": 4}, priority=1)
    assert left(smart, db) == [2, 3, 4]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_drop_oldest_takes_as_many_ranks_as_it_needs(db: Any, space: Subspace, by: str) -> None:
    smart = limited_by(space, by, 6, 3)
    for n in range(6):
        smart.enqueue(db, {"type": "x", "n": n}, priority=n % 3)
    lowered = limited_by(space, by, 2, 3)
    outcome = lowered.enqueue(db, {"type": "x", "n": 6}, priority=0)
    assert len(outcome.deleted) == 5
    assert left(lowered, db) == [3, 6]


@pytest.mark.parametrize("by", ["queue", "type", "key"])
def test_a_drop_conflicts_with_a_take_and_with_a_better_candidate(db: Any, space: Subspace, by: str) -> None:
    smart = limited_by(space, by, 2, 3)
    for n in range(2):
        smart.enqueue(db, {"type": "x", "n": n}, priority=1)
    tr = db.create_transaction()
    smart.enqueue(tr, {"type": "x", "n": 2}, priority=1)
    assert smart.dequeue(db) is not None
    assert conflicts(tr)


@pytest.mark.parametrize("levels", [None, 1, 3])
@settings(max_examples=20)
@given(data=st.data())
def test_the_limits_of_a_queue_a_type_and_a_key_drop_the_same(db: Any, levels: int | None, data: st.DataObject) -> None:
    space = Subspace(("fdbqueue tests", "drop oldest", secrets.token_bytes(8)))
    queues = {by: limited_by(space[by], by, 3, levels) for by in ("queue", "type", "key")}
    model: list[tuple[int, int]] = []  # rank and number
    for n in range(data.draw(st.integers(4, 9))):
        priority = data.draw(st.integers(0, (levels or 1) - 1))
        delay = data.draw(st.sampled_from([None, 9.0]))
        if len(model) == 3:
            model.remove(min(model, key=lambda one: (-one[0], one[1])))
        model.append((priority, n))
        for smart in queues.values():
            smart.enqueue(db, {"type": "x", "n": n}, delay=delay, priority=None if levels is None else priority)
            assert left(smart, db) == [number for _, number in sorted(model)]
    db.clear_range_startswith(space.key())
