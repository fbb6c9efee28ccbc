"""Staged calls that are interrupted, or whose database is out of order: nobody waits for them ever after."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Item, Queue, StorageError
from fdbqueue.engine.waiting import Promise
from fdbqueue.layers.common.batcher import CallQueue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged._staged import MOST_TERMS, StagedQueue
from fdbqueue.layers.staged.head_coordinator import HeadCoordinator
from tests.helpers.faults import FaultyDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.staging import has_requests, value, wait_until

pytestmark = pytest.mark.slow

LINE = (
    "layers/common/batcher.py",
    "layers/common/waiting.py",
    "engine/waiting.py",
    "layers/staged/head_coordinator.py",
)


def in_time(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or fail where it hangs."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "it waits for ever"
    return results[0]


@pytest.mark.engines("memory")
@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "lease", "ack"])
@pytest.mark.parametrize(("alone", "lines"), [(True, 25), (False, 50)])
def test_ctrl_c_at_any_line_leaves_a_queue_that_others_can_use(
    db: Any, leases: Leases, verb: str, alone: bool, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = StagedQueue(leases)
    if not alone:
        monkeypatch.setattr(CallQueue, "lead_alone", lambda *_: False)  # every call joins the queue of calls

    def call() -> Any:
        if verb == "enqueue":
            return staged.enqueue(db, "mine")
        if verb == "ack":
            lease = leases.lease(db)
            assert lease is not None
            return staged.ack(db, lease)
        return getattr(staged, verb)(db)

    def then(place: str) -> None:
        assert in_time(lambda: staged.enqueue(db, "another's")), place
        assert in_time(lambda: staged.dequeue(db)) is not None, place
        lease = in_time(lambda: staged.lease(db, timeout=20))
        in_time(lambda: staged.ack(db, lease))
        staged.queue.enqueue_many(db, ["a", "b", "c"])

    staged.queue.enqueue_many(db, ["a", "b", "c"])
    assert interrupted_at_each_line(call, of=LINE, then=then) > lines
    assert leases.check(db).ok


@pytest.mark.engines("memory")
def test_ctrl_c_at_any_line_of_a_wait_leaves_a_queue_that_others_can_use(db: Any, leases: Leases) -> None:
    staged = StagedQueue(leases)

    def then(place: str) -> None:
        # More than one, since what falls to requests that were interrupted before this process knew of them is theirs;
        # the last of them may be registered only now, by a thread that finishes what was interrupted.
        staged.queue.enqueue_many(db, ["a"] * (2 + staged.stats(db).requests))
        assert in_time(lambda: staged.dequeue(db, timeout=60)) is not None, place
        staged.queue.dequeue_many(db)

    runs = interrupted_at_each_line(lambda: staged.dequeue(db, timeout=0.001), of=LINE[:2], then=then)
    assert runs > 50
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["enqueue", "dequeue"])
def test_a_failing_database_fails_the_call_and_no_later_ones(db: Any, queue: Queue, leases: Leases, verb: str) -> None:
    staged = StagedQueue(leases)
    queue.enqueue(db, "a")
    broken = FaultyDatabase.failing_at(db, {0}, ("before", StorageError("the disk is full")))

    def call() -> Any:
        return staged.enqueue(broken, "b") if verb == "enqueue" else staged.dequeue(broken)

    with pytest.raises(StorageError, match="disk is full"):
        call()
    assert in_time(call) is not None


def test_a_call_without_a_timeout_returns_none_at_once_while_others_wait(db: Any, queue: Queue, leases: Leases) -> None:
    staged = StagedQueue(leases)

    async def ask_while_another_call_waits() -> list[Item | None]:
        waiting = asyncio.create_task(staged.dequeue.aio(db, timeout=None))
        await asyncio.to_thread(wait_until, lambda: has_requests(staged, db, 1))
        told = [await asyncio.wait_for(staged.dequeue.aio(db), 120) for _ in range(3)]
        await queue.enqueue.aio(db, "a")
        return [*told, await asyncio.wait_for(waiting, 120)]

    assert [value(item) for item in asyncio.run(ask_while_another_call_waits())] == [None, None, None, "a"]


def test_finished_waits_leave_nothing_in_memory(db: Any, leases: Leases) -> None:
    staged = StagedQueue(leases)

    def callbacks() -> int:
        gc.collect()
        return sum(len(one._callbacks) for one in gc.get_objects() if isinstance(one, Promise))

    before = callbacks()
    for _ in range(20):
        assert staged.dequeue(db, timeout=0.01) is None
    assert callbacks() <= before + 2


def test_leases_of_ever_other_durations_are_not_remembered_for_ever(db: Any, leases: Leases) -> None:
    staged = StagedQueue(leases)
    gc.collect()
    before = sum(isinstance(one, HeadCoordinator) for one in gc.get_objects())
    for n in range(5 * MOST_TERMS):
        staged.queue.enqueue(db, "a")
        assert staged.lease(db, duration=30 + n) is not None
    gc.collect()
    assert sum(isinstance(one, HeadCoordinator) for one in gc.get_objects()) <= before + MOST_TERMS
