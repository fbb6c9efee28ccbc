"""Calls of one process that are pending together share transactions, and do not share their troubles."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import CodecError, LeaseLost, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.engine.steps import run, run_async, value_of
from fdbqueue.engine.waiting import Promise
from fdbqueue.layers.common import batcher as _batcher
from fdbqueue.layers.common.batcher import Alarm, Batcher, CallQueue, PendingCall
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.held import HeldDatabase
from tests.helpers.staging import wait_until


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.fixture
def staged(queue: Queue) -> StagedQueue:
    return StagedQueue(queue)


def values(queue: Queue, db: Any) -> list[str]:
    return [item.value for item in queue.browse(db)]


async def turn_loop() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_calls_that_come_while_one_commits_share_the_next_transaction(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    held = HeldDatabase(db)

    async def enqueue_all() -> list[Position]:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, f"{n}")) for n in range(10)]
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks)

    positions = asyncio.run(enqueue_all())
    assert held.commits == 2
    assert len(set(positions)) == 10
    assert values(queue, db) == [f"{n}" for n in range(10)]
    assert queue.stats(db).enqueued == 10


def test_a_thread_leads_and_tasks_follow(db: Any, queue: Queue, staged: StagedQueue) -> None:
    held = HeldDatabase(db)
    leader = threading.Thread(target=lambda: staged.enqueue(held, "thread"))
    leader.start()
    assert held.committing.wait(60)

    async def follow() -> None:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, f"task {n}")) for n in range(3)]
        await turn_loop()
        held.release()
        await asyncio.gather(*tasks)

    asyncio.run(follow())
    leader.join()
    assert held.commits == 2
    assert values(queue, db) == ["thread", "task 0", "task 1", "task 2"]


def test_bad_input_fails_its_own_call_only(db: Any, queue: Queue, staged: StagedQueue) -> None:
    held = HeldDatabase(db)
    bad: Any = 7

    async def enqueue_all() -> list[Any]:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, value)) for value in ("a", bad, "b")]
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(enqueue_all())
    assert isinstance(results[1], CodecError)
    assert values(queue, db) == ["a", "b"]


def test_a_cancelled_follower_enqueues_nothing_and_fails_no_other_call(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    held = HeldDatabase(db)

    async def enqueue_all() -> list[Any]:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, value)) for value in ("a", "b", "c")]
        await turn_loop()
        tasks[1].cancel()
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(enqueue_all())
    assert isinstance(results[1], asyncio.CancelledError)
    assert values(queue, db) == ["a", "c"]


def test_a_cancelled_leader_leaves_its_transaction_to_others_and_passes_the_lead_on(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    held = HeldDatabase(db)
    held.release()
    staged.enqueue(held, "before")
    held.hold()

    async def enqueue_all() -> list[Any]:
        first = asyncio.create_task(staged.enqueue.aio(held, "first"))
        await turn_loop()
        leader, *followers = [asyncio.create_task(staged.enqueue.aio(held, value)) for value in ("a", "b", "c")]
        first.cancel()
        leader.cancel()
        await turn_loop()
        held.release()
        return await asyncio.gather(first, leader, *followers, return_exceptions=True)

    results = asyncio.run(enqueue_all())
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[1], asyncio.CancelledError)
    assert all(isinstance(result, Position) for result in results[2:])
    assert values(queue, db) == ["before", "first", "b", "c"]
    staged.enqueue(db, "after")
    assert queue.check(db).ok


@pytest.mark.parametrize("fault", [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)])
@pytest.mark.parametrize("at", [0, 1])
def test_a_shared_transaction_takes_effect_exactly_once_under_faults(
    db: Any, queue: Queue, staged: StagedQueue, fault: Fault, at: int
) -> None:
    held = HeldDatabase(FaultyDatabase.failing_at(db, {at}, fault))

    async def enqueue_all() -> None:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, f"{n}")) for n in range(5)]
        await turn_loop()
        held.release()
        await asyncio.gather(*tasks)

    asyncio.run(enqueue_all())
    assert values(queue, db) == [f"{n}" for n in range(5)]
    assert queue.check(db).ok


def test_values_too_large_for_one_transaction_go_in_one_by_one(db: Any, queue: Queue, staged: StagedQueue) -> None:
    held = HeldDatabase(FaultyDatabase.failing_at(db, {1, 2}, ("before", 2101)))

    async def enqueue_all() -> list[Any]:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, f"{n}")) for n in range(5)]
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(enqueue_all())
    assert not any(isinstance(result, BaseException) for result in results)
    assert sorted(values(queue, db)) == [f"{n}" for n in range(5)]


def test_an_unknown_outcome_is_told_to_every_call_that_shared_the_commit(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    held = HeldDatabase(FaultyDatabase.failing_at(db, {1}, ("before", 1031)))

    async def enqueue_all() -> list[Any]:
        tasks = [asyncio.create_task(staged.enqueue.aio(held, f"{n}")) for n in range(3)]
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(enqueue_all())
    assert isinstance(first, Position)
    assert [getattr(error, "code", None) for error in others] == [1031, 1031]
    assert isinstance(others[0], FDBError)
    assert values(queue, db) == ["0"]


def test_a_lost_lease_fails_its_own_ack_only(db: Any, queue: Queue, staged: StagedQueue) -> None:
    for value in ("a", "b", "c"):
        staged.enqueue(db, value)
    leases = staged.lease_many(db, limit=3)
    staged.leases.nack(db, leases[1])
    held = HeldDatabase(db)

    async def ack_all() -> list[Any]:
        tasks = [asyncio.create_task(staged.ack.aio(held, lease)) for lease in (leases[0], *leases)]
        await turn_loop()
        held.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(ack_all())
    assert [type(result) for result in results] == [type(None), LeaseLost, LeaseLost, type(None)]
    assert values(queue, db) == ["b"]
    assert staged.leases.check(db).ok


def test_many_threads_and_tasks_at_once_lose_and_double_nothing(db: Any, queue: Queue, staged: StagedQueue) -> None:
    async def in_tasks(name: int) -> None:
        await asyncio.gather(*(staged.enqueue.aio(db, f"task {name} {n}") for n in range(20)))

    def work(name: int) -> None:
        if name % 2:
            asyncio.run(in_tasks(name))
        else:
            for n in range(20):
                staged.enqueue(db, f"thread {name} {n}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    seen = values(queue, db)
    assert len(seen) == len(set(seen)) == 160
    assert queue.check(db).ok
    for name in range(0, 8, 2):
        own = [value for value in seen if value.startswith(f"thread {name} ")]
        assert own == [f"thread {name} {n}" for n in range(20)]


def test_an_announced_group_of_calls_is_waited_for_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_batcher, "GATHER_SECONDS", 2_000.0)
    monkeypatch.setattr(_batcher, "LONGEST_GATHER_SECONDS", 2_000.0)
    line: CallQueue[int, int] = CallQueue()
    line.join(PendingCall(object(), 1))  # type: ignore[arg-type]
    monkeypatch.setattr(_batcher, "ANNOUNCED_SECONDS", 0.0)
    line.announce(2)
    began = time.monotonic()
    run(line.gather())
    assert time.monotonic() - began < 1_000
    monkeypatch.setattr(_batcher, "ANNOUNCED_SECONDS", 20.0)
    line.announce(2)
    with ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(run, line.gather())
        wait_until(lambda: line.gathering is not None)
        assert not gathering.done()
        line.join(PendingCall(object(), 2))  # type: ignore[arg-type]
        gathering.result(60)


class _Watch(Promise):
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Resting(Batcher[None, None]):
    """Finds nothing, once its gate opens, and waits for a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.watch = Promise(), _Watch()

    async def serve(self, leader: PendingCall[None, None]) -> Alarm | None:
        await value_of(self.gate)
        return [self.watch], None


def test_a_leader_that_is_cancelled_while_it_looks_leaves_no_watch() -> None:
    calls = _Resting()

    async def session() -> None:
        task = asyncio.create_task(run_async(calls.call(PendingCall(object(), None))))  # type: ignore[arg-type]
        await turn_loop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(session())
    calls.gate.keep()
    wait_until(lambda: not calls.calls.is_led())
    assert calls.watch.cancelled


class InOrder(Batcher[str, str]):
    """Serves one call at a time. A call alone finds nothing, after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.tried, self.served = Promise(), list[str]()

    async def serve_alone(self, db: Any, argument: str, results: list[str]) -> None:
        await value_of(self.tried)

    async def serve(self, leader: PendingCall[str, str]) -> Alarm | None:
        [first, *_] = self.calls.first(1)
        self.served.append(first.argument)
        self.calls.settle(first, first.argument)
        return None


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_that_was_tried_alone_comes_before_those_that_came_meanwhile(cancelled: bool) -> None:
    batcher = InOrder()

    async def body() -> list[Any]:
        calls = []
        for name in ("first", "second", "third"):
            calls.append(asyncio.create_task(run_async(batcher.request(None, name))))  # type: ignore[arg-type]
            await turn_loop()
        if cancelled:
            calls[0].cancel()
            await turn_loop()
        batcher.tried.keep()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    results = asyncio.run(body())
    assert results[1:] == ["second", "third"]
    assert batcher.served == [*([] if cancelled else ["first"]), "second", "third"]
    assert not batcher.calls.is_led()
