"""A drain ends when it is certain that no item is left for it: no sooner, and not never."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError
from fdbqueue.engine.blocking import unfinished
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.layers import Consumer, Leases, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.consumer import running
from fdbqueue.layers.consumer._handling import ItemHandling
from fdbqueue.layers.consumer._turns import SessionHandling
from fdbqueue.layers.consumer.holds import Holds
from fdbqueue.layers.consumer.running import Run
from fdbqueue.layers.staged.requests import Wish
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.helpers.clock import Clock
from tests.helpers.consuming import until
from tests.helpers.held import HeldDatabase
from tests.helpers.staging import register, wait_until

MANY = 301


def names(number: int) -> list[str]:
    return [str(n) for n in range(number)]


def test_a_drain_waits_for_items_that_a_cancelled_call_puts_back(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, names(60))
    held, asked, handled = HeldDatabase(db), threading.Event(), []

    def told() -> list[threading.Thread]:
        asked.set()
        return unfinished()

    monkeypatch.setattr("fdbqueue.layers.consumer.running.unfinished", told)

    async def handle(lease: Any) -> None:
        handled.append(lease.value)

    async def main() -> int:
        held.hold()
        call = asyncio.create_task(StagedQueue(Leases(queue)).lease_many.aio(held, limit=40))
        await until(held.committing.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        first = held.gate
        held.hold()
        first.keep()  # the call's own commit takes effect, and that of the thread that puts the items back waits
        await until(held.committing.is_set)
        drain = asyncio.create_task(Consumer(Leases(queue), handle).drain.aio(db))
        await until(lambda: asked.is_set() or drain.done())
        assert len(handled) == 20
        held.release()
        return (await drain).acked

    assert asyncio.run(main()) == 60
    assert sorted(handled) == sorted(names(60))


def test_a_drain_whose_lease_call_is_cancelled_from_outside_does_not_end_as_if_it_were_done(
    db: Any, queue: Queue
) -> None:
    queue.enqueue_many(db, names(40))

    async def cancelled(*args: Any, **terms: Any) -> list[Any]:
        raise asyncio.CancelledError

    async def handle(lease: Any) -> None:
        consumer._run.handling.lease_many = cancelled  # type: ignore[union-attr]

    consumer = Consumer(Leases(queue), handle, concurrency=1, prefetch=0)

    with pytest.raises(asyncio.CancelledError, match="cancelled from outside"):
        consumer.drain(db)

    assert queue.stats(db).available == 39


def test_leases_that_cannot_be_given_back_end_a_run_and_are_not_held_for_ever(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, names(40))

    async def fails(*args: Any, **terms: Any) -> Any:
        raise FDBError(TRANSACTION_TIMED_OUT)

    monkeypatch.setattr("fdbqueue.layers.consumer.holds.all_not_lost", fails)

    async def handle(lease: Any) -> None:
        queue.pause(db)

    with pytest.raises(FDBError) as failed:
        Consumer(Leases(queue), handle, concurrency=1, prefetch=20).drain(db)
    assert failed.value.code == TRANSACTION_TIMED_OUT


def test_a_drain_looks_again_if_its_last_call_left_items(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, names(40))
    consumer = Consumer(Leases(queue), lambda lease: None, concurrency=1, prefetch=0)
    misses = iter([True, False, True, True, *[False] * 100])
    take = StagedQueue._take

    async def now_and_then(self: StagedQueue, *args: Any) -> list[Any]:
        if next(misses):
            return []
        return await take(self, *args)

    monkeypatch.setattr(StagedQueue, "_take", now_and_then)

    assert consumer.drain(db).acked == 40


def test_a_drain_waits_for_an_item_in_hand_that_may_come_back(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(db, "a")
    took_nothing, take = threading.Event(), StagedQueue._take

    async def telling(self: StagedQueue, *args: Any) -> list[Any]:
        taken = await take(self, *args)
        if not taken:
            took_nothing.set()
        return taken

    async def nothing_is_left(self: Run) -> bool:
        return True  # as a look says while the only item is in hand

    async def handle(lease: Any) -> None:
        if lease.attempt == 1:
            await until(took_nothing.is_set)
            raise ValueError("now it comes back")

    monkeypatch.setattr(StagedQueue, "_take", telling)
    monkeypatch.setattr(Run, "is_done", nothing_is_left)

    leases = Leases(queue, max_attempts=2, backoff=lambda attempt: 0)
    assert Consumer(leases, handle, concurrency=2).drain(db).acked == 1


def test_a_drain_of_a_queue_that_is_paused_meanwhile_ends_and_leaves_the_rest(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, names(40))
    consumer = Consumer(Leases(queue), lambda lease: queue.pause(db), concurrency=1)

    assert consumer.drain(db).acked == 1
    assert queue.stats(db).available == 39


Source = Callable[[Queue, Any], Any]


def of_leases(queue: Queue, clock: Any) -> Leases:
    return Leases(queue, clock=clock)


def of_sessions(queue: Queue, clock: Any) -> Sessions:
    return Sessions(queue, clock=clock)


def of_a_subscription(queue: Queue, clock: Any) -> Subscriptions:
    return Subscriptions(Leases(queue, clock=clock))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("source", "number"),
    [(of_leases, 0), (of_sessions, 1), (of_sessions, 7), (of_a_subscription, 0)],
    ids=["leases", "one session", "seven sessions", "subscription"],
)
def test_two_drains_leave_nothing_when_threads_starve_and_leases_run_out(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, source: Source, number: int, seed: int
) -> None:
    """As on a busy machine: leases end while they are held, threads are late, items are given back all the time."""
    choice = random.Random(seed)
    starved = ((Holds, "extend_in_time"), (ItemHandling, "write_acks"), (SessionHandling, "write_acks"))
    for kind, name in starved:
        work = getattr(kind, name)

        def late(self: Any, work: Callable[[Any], None] = work) -> None:
            time.sleep(choice.random() * 0.05)
            work(self)

        monkeypatch.setattr(kind, name, late)
    monkeypatch.setattr("fdbqueue.layers.consumer.running.WAIT_SECONDS", 0.0)
    began = time.time()

    def clock() -> float:
        return began + 100 * (time.time() - began)  # as if everything took 100 times as long

    given = [source(Queue(queue.layout.space, codec="str"), clock) for _ in range(2)]
    if number:
        given[0].enqueue_many(db, names(MANY), session=lambda value: f"s{int(value) % number}")
    else:
        queue.enqueue_many(db, names(MANY))
    handled: list[str] = []

    def handle(lease: Any) -> None:
        handled.append(lease.value)
        if choice.random() < 0.02:
            time.sleep(0.02)

    reports: list[Any] = []

    def drain(own: Any) -> None:
        own = own.subscribe(db, "all") if isinstance(own, Subscriptions) else own
        reports.append(Consumer(own, handle, concurrency=3, duration=30, signals=False).drain(db))

    threads = [threading.Thread(target=drain, args=(own,)) for own in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(reports) == 2
    assert set(handled) == set(names(MANY))
    assert sum(report.acked for report in reports) + sum(report.lost for report in reports) >= MANY
    left = given[0].leases if isinstance(given[0], Subscriptions) else given[0]
    stats = left.stats(db)
    assert [getattr(stats, state, 0) for state in ("available", "leased", "delayed", "items", "ready")] == [0] * 5
    assert left.check(db).problems == ()


# --- items that were between two places when the last call took nothing


def grant(db: Any, queue: Queue, clock: Clock) -> None:
    """Grant an item to a process that has ended."""
    register(db, queue, clock, duration=30.0, process=b"")
    queue.enqueue(db, "late")
    assert StagedQueue(Leases(queue, clock=clock)).lease(db) is None
    threading.Timer(0.05, setattr, (clock, "now", clock.now + 1)).start()


def delay(db: Any, queue: Queue, clock: Clock) -> None:
    Leases(queue, clock=clock).enqueue(db, "late", delay=1)
    clock.now += 2


def expire(db: Any, queue: Queue, clock: Clock) -> None:
    queue.enqueue(db, "late")
    assert Leases(queue, clock=clock).lease(db, duration=1) is not None
    clock.now += 2


def give_back(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    queue.enqueue(db, "late")
    lease = leases.lease(db)
    assert lease is not None
    leases.snooze(db, lease, delay=0)


def in_time(monkeypatch: pytest.MonkeyPatch, move: Callable[[], None]) -> None:
    """Let something happen once, when a drain's call has taken nothing, and before it says that it is done."""
    is_done = Run.is_done
    moved: list[bool] = []

    async def first_move(self: Run) -> bool:
        if not moved:
            moved.append(True)
            move()
        return await is_done(self)

    monkeypatch.setattr(Run, "is_done", first_move)


@pytest.mark.parametrize("move", [grant, delay, expire, give_back])
def test_a_drain_comes_to_an_item_that_was_between_two_places(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, move: Callable[[Any, Queue, Clock], None]
) -> None:
    clock = Clock()
    queue.enqueue(db, "soon")
    in_time(monkeypatch, lambda: move(db, queue, clock))
    handled: list[str] = []
    report = Consumer(Leases(queue, clock=clock), lambda lease: handled.append(lease.value)).drain(db)
    assert (handled, report.acked, report.stopped) == (["soon", "late"], 2, False)


def wake_a_session(db: Any, sessions: Sessions) -> None:
    clock: Any = sessions.line.leases.clock
    sessions.enqueue(db, "late", session="ann", delay=1)
    clock.now += 2


def grant_a_session(db: Any, sessions: Sessions) -> None:
    clock: Any = sessions.line.leases.clock
    register(db, sessions.line.leases.queue, clock, duration=30.0, process=b"")
    sessions.enqueue(db, "late", session="ann")
    assert sessions.lease(db) is None
    threading.Timer(0.05, setattr, (clock, "now", clock.now + 1)).start()


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("move", [wake_a_session, grant_a_session])
def test_a_drain_of_sessions_comes_to_an_item_between_places(
    db: Any,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[Any, Sessions], None],
    concurrency: int,
) -> None:
    sessions: Sessions = Sessions(queue, concurrency=concurrency, clock=Clock())
    sessions.enqueue(db, "soon", session="bob")
    in_time(monkeypatch, lambda: move(db, sessions))
    handled: list[str] = []
    Consumer(sessions, lambda lease: handled.append(lease.value)).drain(db)
    assert handled[0] == "soon"
    assert len(handled) == 2
    assert sessions.check(db).ok


def test_a_drain_of_a_subscription_comes_to_an_item_that_was_delivered_and_not_taken(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    subscriptions = Subscriptions(Leases(queue, clock=clock))
    subscription = subscriptions.subscribe(db, "all")
    queue.enqueue(db, "soon")

    def deliver() -> None:
        waiters = Waiters(queue.layout)
        wish = Wish(b"sleeping", 1, int((clock() + 30) * 1e6), 0, "all", b"")
        tr = db.create_transaction()
        waiters.register(tr, wish)
        tr.commit().wait()
        delivery = subscriptions.enqueue(db, "late")
        assert delivery is not None
        assert delivery.subscription == "all"
        threading.Timer(0.05, setattr, (clock, "now", clock.now + 1)).start()

    in_time(monkeypatch, deliver)
    handled: list[str] = []
    Consumer(subscription, lambda lease: handled.append(lease.value)).drain(db)
    assert handled == ["soon", "late"]


def test_a_drain_does_not_wait_for_an_item_that_a_live_process_has_taken(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "UNSURE_SECONDS", 1_000.0)
    clock = Clock()
    leases = Leases(queue, clock=clock)
    register(db, queue, clock, duration=30.0)  # one of an older version is in front
    with ThreadPoolExecutor(1) as pool:
        waiting = StagedQueue(leases)
        lease = pool.submit(waiting.lease, db, timeout=20)
        wait_until(lambda: waiting.stats(db).requests == 2)
        queue.enqueue_many(db, ["first", "taken"])
        assert lease.result(20) is not None
    assert Consumer(leases, lambda lease: None).drain(db).acked == 0


def test_a_drain_gives_up_waiting_for_an_item_that_does_not_come_back(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "UNSURE_SECONDS", 0.1)
    clock = Clock()  # it stands still
    leases = Leases(queue, clock=clock)
    register(db, queue, clock, duration=30.0, process=b"")
    queue.enqueue(db, "a")
    assert StagedQueue(leases).lease(db) is None
    assert Consumer(leases, lambda lease: None).drain(db).acked == 0
