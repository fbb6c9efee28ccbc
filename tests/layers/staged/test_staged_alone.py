"""A staged call that meets no other one: it joins no queue of calls, and calls that come meanwhile wait behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue, StorageError
from fdbqueue.layers.common import batcher as _batcher
from fdbqueue.layers.common.batcher import LoneCall
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.calls import python_calls
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.held import HeldDatabase
from tests.helpers.staging import join_finishers, left_behind, register, state_of, value, wait_until


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls that joined a queue of calls, as they come."""
    calls: list[Any] = []
    join = _batcher.CallQueue.join

    def note(queue: Any, pending: Any, *lone: Any) -> None:
        join(queue, pending, *lone)
        calls.append(pending)

    monkeypatch.setattr(_batcher.CallQueue, "join", note)
    return calls


@pytest.mark.engines("memory")
def test_a_lone_call_costs_little_more_than_a_plain_one(db: Any, queue: Queue, leases: Leases) -> None:
    staged = StagedQueue(leases)

    def lease_and_ack(source: Any) -> None:
        source.ack(db, source.lease(db))

    pairs: list[tuple[Callable[[], object], Callable[[], object], float]] = [
        # A snapshot read and a conflict range of its own, since it may take nothing; and about twenty steps of waiting.
        (lambda: staged.dequeue(db), lambda: queue.dequeue(db), 1.8),
        (lambda: lease_and_ack(staged), lambda: lease_and_ack(leases), 1.15),
    ]
    queue.enqueue_many(db, ["x"] * 60)
    for ours, plain, most in pairs:
        for warm in (ours, plain, ours, plain):
            warm()
        lowest = [min(python_calls(call) for _ in range(5)) for call in (ours, plain)]
        assert lowest[0] <= most * lowest[1]


@pytest.mark.parametrize("verb", ["dequeue", "lease", "enqueue"])
def test_calls_that_come_during_a_lone_one_wait_and_share_the_next_transaction(
    db: Any, queue: Queue, leases: Leases, verb: str, joined: list[Any]
) -> None:
    queue.enqueue_many(db, ["0", "1", "2", "3"])
    staged, held = StagedQueue(leases), HeldDatabase(db)
    arguments = ["4"] if verb == "enqueue" else []

    def call() -> Any:
        return getattr(staged, verb)(held, *arguments)

    def has_joined(number: int) -> bool:
        return len(joined) == number

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(call)
        assert held.committing.wait(60)
        assert joined == []
        others = []
        for number in range(1, 4):
            others.append(pool.submit(call))
            wait_until(partial(has_joined, number))
        held.release()
        got = [one.result(20) for one in [first, *others]]
    assert held.commits == 2
    if verb != "enqueue":
        assert [one.value for one in got] == ["0", "1", "2", "3"]
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_task_that_comes_during_a_threads_lone_call_waits_behind_it(
    db: Any, queue: Queue, leases: Leases, verb: str, joined: list[Any]
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, held = StagedQueue(leases), HeldDatabase(db)

    async def come_second() -> Any:
        task = asyncio.create_task(getattr(staged, verb).aio(held))
        await asyncio.to_thread(wait_until, lambda: len(joined) == 1)
        held.release()
        return await task

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(getattr(staged, verb), held)
        assert held.committing.wait(60)
        assert value(asyncio.run(come_second())) == "b"
        assert value(first.result(20)) == "a"


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_that_is_dropped_during_its_commit_takes_nothing(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, held = StagedQueue(leases), HeldDatabase(db)
    steps = getattr(staged, verb).steps(held)
    future = next(steps)
    while not held.committing.is_set():
        future = steps.send(future.wait())
    steps.close()
    held.release()
    join_finishers()
    assert [value(getattr(staged, verb)(db)) for _ in range(2)] == ["a", "b"]
    assert leases.check(db).ok


def test_a_cancelled_lone_call_passes_its_item_and_the_lead_on_to_a_thread(
    db: Any, queue: Queue, leases: Leases, joined: list[Any]
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, held = StagedQueue(leases), HeldDatabase(db)

    async def cancel_the_first(pool: ThreadPoolExecutor) -> Any:
        first = asyncio.create_task(staged.dequeue.aio(held))
        await asyncio.to_thread(held.committing.wait, 10)
        second = pool.submit(staged.dequeue, held)
        await asyncio.to_thread(wait_until, lambda: len(joined) == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        held.release()
        return await asyncio.wrap_future(second)

    with ThreadPoolExecutor(1) as pool:
        assert value(asyncio.run(cancel_the_first(pool))) == "a"
    assert value(staged.dequeue(db)) == "b"
    assert queue.check(db).ok


def test_a_cancelled_lone_ack_takes_effect_and_the_next_one_goes_on(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, held = StagedQueue(leases), HeldDatabase(db)
    first, second = leases.lease_many(db)

    async def cancel_the_first() -> None:
        ack = asyncio.create_task(staged.ack.aio(held, first))
        await asyncio.to_thread(held.committing.wait, 10)
        next_one = asyncio.create_task(staged.ack.aio(held, second))
        await asyncio.sleep(0)
        ack.cancel()
        await asyncio.gather(ack, return_exceptions=True)
        held.release()
        await next_one

    asyncio.run(cancel_the_first())
    assert leases.stats(db).leased == 0
    with pytest.raises(LeaseLost):
        staged.ack(db, first)


@pytest.mark.parametrize("verb", ["dequeue", "lease", "enqueue"])
def test_a_lone_call_that_fails_lets_those_behind_it_go_on(
    db: Any, queue: Queue, leases: Leases, verb: str, joined: list[Any]
) -> None:
    queue.enqueue(db, "a")
    held = HeldDatabase(FaultyDatabase.failing_at(db, {0}, ("before", StorageError("the disk is full"))))
    staged = StagedQueue(leases)
    arguments = ["b"] if verb == "enqueue" else []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(getattr(staged, verb), held, *arguments)
        assert held.committing.wait(60)
        second = pool.submit(getattr(staged, verb), held, *arguments)
        wait_until(lambda: len(joined) == 1)
        held.release()
        with pytest.raises(StorageError, match="disk is full"):
            first.result(20)
        assert second.result(20) is not None
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_takes_nothing_that_is_assigned_to_a_request(
    db: Any, queue: Queue, leases: Leases, clock: Clock, verb: str
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["for another", "own"])
    assert value(getattr(StagedQueue(leases), verb)(db)) == "own"
    assert next(iter(leases.browse(db, state="leased"))).value == "for another"
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_that_loses_its_item_to_another_process_takes_the_next_one(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged, held = StagedQueue(leases), HeldDatabase(db)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(getattr(staged, verb), held, timeout=20)
        assert held.committing.wait(60)
        assert value(queue.dequeue(db)) == "a"
        held.release()
        assert value(call.result(20)) == "b"
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_on_an_empty_or_paused_queue_a_lone_call_finds_nothing_and_leaves_nothing(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    staged = StagedQueue(leases)
    assert getattr(staged, verb)(db) is None
    queue.enqueue(db, "a")
    queue.pause(db)
    assert getattr(staged, verb)(db) is None
    assert left_behind(queue, db) == []
    queue.resume(db)
    assert value(getattr(staged, verb)(db)) == "a"


def test_many_threads_that_come_and_go_lose_and_double_nothing(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [str(number) for number in range(200)])
    staged = StagedQueue(leases)
    taken: list[str] = []
    begin = threading.Barrier(3)

    def take() -> None:
        begin.wait()
        while (item := staged.dequeue(db)) is not None:
            taken.append(item.value)

    with ThreadPoolExecutor(3) as pool:
        for one in [pool.submit(take) for _ in range(3)]:
            one.result(60)
    assert sorted(taken, key=int) == [str(number) for number in range(200)]


@pytest.mark.engines("memory")
def test_of_two_calls_that_find_no_other_at_the_same_moment_one_leads(db: Any, queue: Queue) -> None:
    batcher = state_of(StagedQueue(queue)).acks
    calls, first, second = batcher.calls, LoneCall(batcher, db), LoneCall(batcher, db)

    class Meanwhile(contextlib.nullcontext[None]):
        def __enter__(self) -> None:
            calls.led = first

    vars(calls)["_lock"] = Meanwhile()
    assert not calls.lead_alone(second)


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_beside_leases_in_hand_and_due_timers_needs_no_queue_of_calls(
    db: Any, queue: Queue, leases: Leases, clock: Clock, verb: str, joined: list[Any]
) -> None:
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    staged = StagedQueue(leases)
    first = staged.lease(db, duration=10)
    assert first is not None
    assert value(getattr(staged, verb)(db)) == "b"
    clock.now += 20
    assert value(getattr(staged, verb)(db)) == "a"  # its timer was due
    with pytest.raises(LeaseLost):
        staged.ack(db, first)
    assert joined == []
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_sees_a_pause_beside_leases_in_hand(db: Any, queue: Queue, leases: Leases, verb: str) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    assert [value(staged.lease(db)), value(getattr(staged, verb)(db))] == ["a", "b"]
    queue.pause(db)
    assert getattr(staged, verb)(db) is None
    queue.resume(db)
    assert value(getattr(staged, verb)(db)) == "c"


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_lone_call_beside_leases_in_hand_conflicts_with_an_item_that_comes_back(
    db: Any, queue: Queue, leases: Leases, verb: str
) -> None:
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    staged, held = StagedQueue(leases), HeldDatabase(db)
    first, _ = staged.lease(db), staged.lease(db)
    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(getattr(staged, verb), held)
        assert held.committing.wait(60)
        leases.nack(db, first, delay=0)
        held.release()
        assert value(call.result(20)) == "a"
    assert leases.check(db).ok


@pytest.mark.parametrize("duration", [0.0, -1.0, None, True, "1", float("nan")])
def test_a_duration_is_checked_though_the_last_call_had_an_equal_one(
    db: Any, queue: Queue, leases: Leases, duration: Any
) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    for warm in (lambda: staged.lease(db, duration=1.0), lambda: staged.dequeue(db)):
        assert warm() is not None
        with pytest.raises((TypeError, ValueError), match="duration is a number of seconds"):
            staged.lease(db, duration=duration)
    assert value(staged.lease(db, duration=1)) == "c"
    assert queue.stats(db).leased == 2


def test_a_database_is_checked_though_the_last_call_had_the_same_duration(db: Any, queue: Queue) -> None:
    queue.enqueue(db, "a")
    staged = StagedQueue(queue)
    assert value(staged.lease(db)) == "a"
    with pytest.raises(TypeError, match=r"StagedQueue\.lease takes a database"):
        staged.lease(None)  # type: ignore[arg-type]
    assert staged.dequeue(db) is None
    with pytest.raises(TypeError, match="makes its own transactions"):
        staged.dequeue(db.create_transaction())
