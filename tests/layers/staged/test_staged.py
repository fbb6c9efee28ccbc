"""Staged dequeue: strict order under contention, waits that wake, and nothing left behind by those who go."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.requests import GRANT_SECONDS, REQUEST_SECONDS
from tests.helpers.clock import Clock
from tests.helpers.consuming import until
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.held import HeldDatabase
from tests.helpers.raw import raw
from tests.helpers.staging import coordinating, has_requests, join_finishers, left_behind, register, value, wait_until


@pytest.fixture
def staged(leases: Leases) -> StagedQueue:
    return StagedQueue(leases)


@pytest.fixture
def other(leases: Leases) -> StagedQueue:
    """The same queue's, of another process as far as the database can see."""
    return StagedQueue(leases)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as started:
        yield started


def put(queue: Queue, db: Any, *values: str) -> None:
    for text in values:
        queue.enqueue(db, text)


def test_items_come_out_in_queue_order_and_an_empty_queue_gives_none(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    put(queue, db, "a", "b", "c", "d")
    assert value(staged.dequeue(db)) == "a"
    assert [item.value for item in staged.dequeue_many(db, limit=2)] == ["b", "c"]
    lease = staged.lease(db, duration=60)
    assert value(lease) == "d"
    assert staged.dequeue(db) is None
    assert staged.lease(db) is None
    assert staged.dequeue_many(db, timeout=0.01) == []
    assert lease is not None
    staged.ack(db, lease)
    assert staged.leases.check(db).ok
    assert left_behind(queue, db) == []


def test_an_uncontended_call_takes_one_transaction_and_writes_no_request(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    put(queue, db, "a", "b")
    counting = FaultyDatabase(db, lambda: None)
    assert value(staged.dequeue(counting)) == "a"
    assert value(staged.dequeue(counting)) == "b"
    assert counting.commits == 2
    assert staged.dequeue(counting) is None
    assert counting.commits == 2
    assert staged.contention_stats().looks == 0


def test_a_call_that_loses_the_race_registers_and_gets_the_next_item(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    put(queue, db, "a", "b")
    winner = Queue(queue.layout.space, codec="str")
    stolen: list[Any] = []

    def plan() -> Fault | None:
        if not stolen:  # it has read the head, and is about to commit
            stolen.append(winner.dequeue(db))
        return None

    assert value(staged.dequeue(FaultyDatabase(db, plan))) == "b"
    assert value(stolen[0]) == "a"
    assert staged.contention_stats().conflicts == 1
    assert left_behind(queue, db) == []
    assert queue.check(db).ok


def test_requests_keep_their_order_and_a_sleeping_one_gets_a_grant(
    db: Any, queue: Queue, staged: StagedQueue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    granted = register(db, queue, clock)
    put(queue, db, "a", "b")
    assert value(staged.dequeue(db, timeout=20)) == "b"
    assert granted in left_behind(queue, db)
    assert staged.dequeue(db) is None
    clock.now += GRANT_SECONDS + 1
    assert value(staged.dequeue(db)) == "a"
    assert leases.check(db).ok


def test_requests_are_served_in_their_order(db: Any, queue: Queue, leases: Leases, pool: ThreadPoolExecutor) -> None:
    consumers = [StagedQueue(leases) for _ in range(4)]
    waiting: list[Future[Any]] = []
    for number, consumer in enumerate(consumers):
        waiting.append(pool.submit(consumer.dequeue, db, timeout=20))
        wait_until(partial(has_requests, consumers[0], db, number + 1))
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    assert [value(one.result(20)) for one in waiting] == ["a", "b", "c", "d"]
    assert left_behind(queue, db) == []


def test_one_enqueue_wakes_few_of_many_waiting_calls(
    db: Any, queue: Queue, leases: Leases, pool: ThreadPoolExecutor
) -> None:
    consumers = [StagedQueue(leases) for _ in range(8)]
    waiting = []
    for number, consumer in enumerate(consumers):
        waiting.append(pool.submit(consumer.dequeue, db, timeout=60))
        wait_until(partial(has_requests, consumers[0], db, number + 1))
    wait_until(lambda: consumers[0].contention_stats().looks > 0)
    before = [consumer.contention_stats().looks for consumer in consumers]
    put(queue, db, "a")
    wait_until(lambda: any(one.done() for one in waiting))
    woken = sum(consumer.contention_stats().looks > seen for consumer, seen in zip(consumers, before, strict=True))
    assert woken < 4  # two, and one that looks after the others by its own clock just now
    for number in range(7):
        put(queue, db, f"{number}")
    assert all(one.result(20) is not None for one in waiting)


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_plain_enqueue_wakes_a_waiting_call(
    db: Any, queue: Queue, staged: StagedQueue, pool: ThreadPoolExecutor, verb: str
) -> None:
    waiting = pool.submit(getattr(staged, verb), db, timeout=None)
    wait_until(lambda: staged.stats(db).requests)
    put(queue, db, "a")
    assert value(waiting.result(20)) == "a"
    assert left_behind(queue, db) == []


def test_an_item_that_is_given_back_wakes_a_waiting_call(
    db: Any, queue: Queue, staged: StagedQueue, leases: Leases, pool: ThreadPoolExecutor
) -> None:
    put(queue, db, "a")
    lease = leases.lease(db)
    assert lease is not None
    waiting = pool.submit(staged.dequeue, db, timeout=None)
    wait_until(lambda: staged.contention_stats().looks)
    leases.nack(db, lease)
    assert value(waiting.result(20)) == "a"


def test_a_waiting_call_gets_an_item_that_falls_due_without_help(
    db: Any, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    leases = Leases(queue)
    staged = StagedQueue(leases)
    leases.enqueue(db, "later", delay=0.1)
    assert value(staged.dequeue(db, timeout=20)) == "later"
    assert leases.check(db).ok


def test_a_call_that_times_out_leaves_no_request_and_others_wait_on(
    db: Any, queue: Queue, staged: StagedQueue, pool: ThreadPoolExecutor
) -> None:
    soon = pool.submit(staged.dequeue, db, timeout=0.05)
    later = pool.submit(staged.dequeue, db, timeout=20)
    assert soon.result(20) is None
    put(queue, db, "a")
    assert value(later.result(20)) == "a"
    assert staged.dequeue(db, timeout=0.02) is None
    assert left_behind(queue, db) == []


def test_waiting_tasks_that_are_cancelled_take_nothing_and_leave_nothing(
    db: Any, queue: Queue, staged: StagedQueue
) -> None:
    async def wait_and_cancel() -> Any:
        first = [asyncio.create_task(staged.dequeue.aio(db, timeout=None)) for _ in range(5)]
        await until(lambda: staged.stats(db).requests)
        for task in (*first[:2], first[3]):
            task.cancel()
        await asyncio.gather(*first[:2], first[3], return_exceptions=True)
        await queue.enqueue.aio(db, "a")
        await queue.enqueue.aio(db, "b")
        got = await asyncio.gather(first[2], first[4])
        last = asyncio.create_task(staged.dequeue.aio(db, timeout=None))
        await until(lambda: staged.stats(db).requests)
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        return got

    assert [value(item) for item in asyncio.run(wait_and_cancel())] == ["a", "b"]
    join_finishers()
    assert left_behind(queue, db) == []
    put(queue, db, "c")
    assert value(staged.dequeue(db)) == "c"
    assert queue.check(db).ok


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
@pytest.mark.parametrize("text", ["short", "long" * 30_000], ids=["short", "chunked"])
def test_a_cancelled_calls_item_returns_to_its_place(
    db: Any, queue: Queue, staged: StagedQueue, verb: str, text: str
) -> None:
    queue.enqueue(db, text, headers={"n": 1})
    put(queue, db, "behind")
    held = HeldDatabase(db)

    async def take_and_cancel() -> None:
        task = asyncio.create_task(getattr(staged, verb).aio(held))
        await until(held.committing.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held.release()

    asyncio.run(take_and_cancel())
    join_finishers()
    assert staged.leases.check(db).ok
    item = staged.dequeue(db)
    assert item is not None
    assert (item.value, dict(item.headers)) == (text, {"n": 1})
    assert queue.check(db).ok


def test_a_cancelled_calls_item_goes_to_the_processes_next_call(db: Any, queue: Queue, staged: StagedQueue) -> None:
    put(queue, db, "a", "b")
    held = HeldDatabase(db)

    async def take_two_cancel_one() -> Any:
        cancelled = asyncio.create_task(staged.dequeue.aio(held))
        await until(held.committing.is_set)
        next_one = asyncio.create_task(staged.dequeue.aio(held))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        held.release()
        return await next_one

    assert value(asyncio.run(take_two_cancel_one())) == "a"
    assert value(staged.dequeue(db)) == "b"
    assert queue.check(db).ok


def test_an_undecodable_item_is_reported_and_stays(
    db: Any, queue: Queue, staged: StagedQueue, pool: ThreadPoolExecutor
) -> None:
    of_bytes = raw(queue.layout.space)
    of_bytes.enqueue(db, b"\xff")
    put(queue, db, "behind")
    for _ in range(2):
        with pytest.raises(CodecError):
            staged.dequeue(db)
    assert of_bytes.dequeue(db) is not None
    assert [item.value for item in staged.dequeue_many(db, limit=2, timeout=20)] == ["behind"]
    waiting = pool.submit(staged.dequeue, db, timeout=20)
    wait_until(lambda: staged.stats(db).requests)
    of_bytes.enqueue(db, b"\xff")
    with pytest.raises(CodecError):
        waiting.result(20)
    assert left_behind(queue, db) == []


def test_a_process_that_slept_too_long_loses_its_request_and_registers_again(
    db: Any, queue: Queue, staged: StagedQueue, clock: Clock, pool: ThreadPoolExecutor
) -> None:
    register(db, queue, clock, lives=1.0)
    clock.now += 2.0
    put(queue, db, "a")
    assert value(staged.dequeue(db, timeout=20)) == "a"
    assert left_behind(queue, db) == []
    waiting = pool.submit(staged.dequeue, db, timeout=20)
    wait_until(lambda: staged.stats(db).requests)
    db.clear_range_startswith(queue.layout.requests.key())
    put(queue, db, "b")
    assert value(waiting.result(20)) == "b"


def test_old_uncollected_grants_are_swept_by_new_requests(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    monkeypatch.setattr("fdbqueue.layers.staged.grants.os.urandom", lambda size: b"\x00" * size)
    granted = register(db, queue, clock)
    put(queue, db, "a", "b")
    assert value(StagedQueue(leases).dequeue(db, timeout=20)) == "b"
    assert granted in left_behind(queue, db)
    clock.now += GRANT_SECONDS + REQUEST_SECONDS + 1
    assert value(StagedQueue(leases).dequeue(db)) == "a"
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))  # whoever comes registers at once
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(StagedQueue(leases).dequeue, db, timeout=None)
        wait_until(lambda: granted not in left_behind(queue, db))
        put(queue, db, "c")
        assert value(waiting.result()) == "c"
    assert left_behind(queue, db) == []


def test_many_consumers_of_several_processes_get_everything_once(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [f"{n}" for n in range(300)])
    consumers = [StagedQueue(leases) for _ in range(3)]
    seen: list[list[int]] = [[] for _ in range(12)]

    def work(number: int) -> None:
        staged = consumers[number % 3]
        while (item := staged.dequeue(db)) is not None:
            seen[number].append(int(item.value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for own in seen for n in own) == list(range(300))
    assert all(own == sorted(own) for own in seen)
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_check_names_malformed_requests_and_grants(db: Any, queue: Queue, staged: StagedQueue, clock: Clock) -> None:
    grant = register(db, queue, clock)
    assert staged.check(db).ok
    db[grant] = b"nonsense"
    [problem] = staged.check(db).problems
    assert f"The grant of the key {grant!r} of {queue.layout.describe()} can't be read" in problem
    del db[grant]
    [request] = left_behind(queue, db)
    db[request] = b"nonsense"
    [problem] = staged.check(db).problems
    assert "request" in problem
