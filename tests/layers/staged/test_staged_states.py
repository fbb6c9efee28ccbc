"""The states of a process at the head of a queue, and the events that change them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.grants import NEXT, Event, HeadPlace, State
from fdbqueue.layers.staged.requests import Request, Wish
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.staging import coordinating, register, value, wait_until

OURS = Request(b"key", Wish(b"client", 1, 0))
WITH_REQUEST = (State.claiming, State.waiting)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The events so far, of all processes."""
    seen: list[Event] = []
    after = HeadPlace.after

    def noting(self: HeadPlace, event: Event, **terms: Any) -> HeadPlace:
        seen.append(event)
        return after(self, event, **terms)

    monkeypatch.setattr(HeadPlace, "after", noting)
    return seen


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize(("state", "event"), NEXT)
def test_a_process_has_a_request_exactly_while_it_claims_or_waits(state: State, event: Event, claims: bool) -> None:
    before = HeadPlace(state, OURS if state in WITH_REQUEST else None)
    after = before.after(event, request=OURS if event is Event.registered else None, claims=claims)
    assert (after.request is OURS) == (after.state in WITH_REQUEST)
    assert after.state is NEXT[state, event] or (after.state is State.waiting and not claims)
    assert claims or after.state is not State.claiming


def test_every_state_can_be_left_and_every_state_can_be_dismissed() -> None:
    for state in State:
        assert NEXT[state, Event.dismissed] is State.direct
        assert {to for (begin, _), to in NEXT.items() if begin is state} - {state}


def test_a_state_without_a_request_refuses_to_give_one() -> None:
    with pytest.raises(RuntimeError, match="direct has no request"):
        HeadPlace().own_request()


def test_a_call_on_an_empty_queue_registers_waits_and_takes_the_next_item(
    db: Any, queue: Queue, leases: Leases, events: list[Event]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(StagedQueue(leases).dequeue, db, timeout=20)
        wait_until(lambda: Event.unassigned in events)
        queue.enqueue(db, "a")
        assert value(call.result(20)) == "a"
    assert events == [Event.starved, Event.registered, Event.unassigned, Event.fulfilled, Event.dismissed]


def test_a_call_after_a_conflict_registers_and_takes_the_item_assigned_to_it(
    db: Any, queue: Queue, leases: Leases, events: list[Event]
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    conflicted = FaultyDatabase.failing_at(db, {0}, ("before", 1020))
    assert value(StagedQueue(leases).lease(conflicted)) == "a"
    assert events == [Event.conflict, Event.registered, Event.fulfilled, Event.dismissed]


def test_large_items_are_never_claimed(
    db: Any, queue: Queue, leases: Leases, clock: Clock, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, ["x" * 10_000] * 3)
    staged = StagedQueue(leases)
    assert staged.lease(db) is not None
    register(db, queue, clock)
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))  # it registers at once
    del events[:]
    assert staged.lease(db, timeout=0.01) is None  # the item is granted to the sleeping process in front
    assert Event.unassigned not in events
    assert events[0] is Event.registered
