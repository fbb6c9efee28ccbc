"""Consumers in event loops: cancelled, beside a body, two in one loop, and in no one's way."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.verb import Verb
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.consumer.holds import Background
from fdbqueue.layers.leases import Lease, Leases
from tests.helpers.consuming import consumer_threads, left_over, until
from tests.helpers.held import HeldDatabase
from tests.helpers.names import beside
from tests.helpers.raw import raw
from tests.helpers.staging import wait_until


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"), max_attempts=2)


class Gated:
    """A handler that waits until a test lets it go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, lease: Lease) -> None:
        self.begun.append(lease.value)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(lease.value)
            raise


async def by_cancel(running: Awaitable[object], begun: asyncio.Event) -> None:
    task = asyncio.ensure_future(running)
    await begun.wait()
    task.cancel()
    await task


async def by_timeout(running: Awaitable[object], begun: asyncio.Event) -> None:
    async with asyncio.timeout(None) as limit:
        asyncio.get_running_loop().create_task(_expire(limit, begun))
        await running


async def _expire(limit: asyncio.Timeout, begun: asyncio.Event) -> None:
    await begun.wait()
    limit.reschedule(asyncio.get_running_loop().time())


async def by_group(running: Awaitable[object], begun: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(running)  # type: ignore[arg-type]
        await begun.wait()
        raise LookupError


async def by_wait_for(running: Awaitable[object], begun: asyncio.Event) -> None:
    async def fail_when_begun() -> None:
        await begun.wait()
        raise asyncio.CancelledError

    inner = asyncio.ensure_future(asyncio.wait_for(running, 1_000))
    try:
        await fail_when_begun()
    except asyncio.CancelledError:
        inner.cancel()
        await inner


@pytest.mark.parametrize(
    ("cancelling", "raised"),
    [
        (by_cancel, asyncio.CancelledError),
        (by_timeout, TimeoutError),
        (by_group, ExceptionGroup),
        (by_wait_for, asyncio.CancelledError),
    ],
)
@pytest.mark.parametrize("form", ["run", "drain"])
def test_a_cancellation_is_a_graceful_stop(
    db: Any,
    leases: Leases,
    cancelling: Callable[[Awaitable[object], asyncio.Event], Awaitable[None]],
    raised: type[BaseException],
    form: str,
) -> None:
    leases.enqueue_many(db, ["a", "b", "c", "d", "e"])

    async def main() -> None:
        begun, handler = asyncio.Event(), Gated()

        async def handle(lease: Lease) -> None:
            begun.set()
            await handler(lease)

        consumer = Consumer(leases, handle, concurrency=1, prefetch=3)
        ending = asyncio.ensure_future(cancelling(getattr(consumer, form).aio(db), begun))
        await until(lambda: begun.is_set() and not leases.stats(db).available - 4)
        assert leases.stats(db).leased == 1
        handler.gate.set()
        with pytest.raises(raised):
            await ending
        assert (handler.begun, handler.cancelled) == (["a"], [])
        assert (consumer.report.acked, consumer.report.lost) == (1, 0)
        leases.enqueue(db, "late")
        await until(lambda: not left_over())

    asyncio.run(main())
    stats = leases.stats(db)
    assert (stats.available, stats.leased) == (5, 0)


def test_a_second_cancellation_ends_it_at_once_and_leaves_nothing_behind(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])

    async def main() -> None:
        handler = Gated()
        consumer = Consumer(leases, handler, concurrency=2, prefetch=1, grace=3_600)
        running = asyncio.create_task(consumer.run.aio(db))
        await until(lambda: len(handler.begun) == 2)
        running.cancel()
        await until(lambda: leases.stats(db).available == 1)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(handler.cancelled) == ["a", "b"]
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        assert consumer.report.returned == 3

    asyncio.run(main())
    stats = leases.stats(db)
    assert (stats.available, stats.leased) == (3, 0)
    lease = leases.lease(db)
    assert lease is not None
    assert (lease.value, lease.attempt) == ("a", 1)


def test_a_consumer_that_was_cancelled_can_run_again(db: Any, leases: Leases) -> None:
    handled: list[str] = []

    async def handle(lease: Lease) -> None:
        handled.append(lease.value)

    consumer = Consumer(leases, handle)

    async def main() -> None:
        running = asyncio.create_task(consumer.run.aio(db))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    leases.enqueue(db, "a")
    assert consumer.drain(db).acked == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopping"])
def test_a_loop_that_ends_with_a_forgotten_consumer_gives_its_items_back(
    db: Any, leases: Leases, stopped: bool
) -> None:
    leases.enqueue_many(db, ["done", "a", "b", "c"])
    handled: list[str] = []

    async def handle(lease: Lease) -> None:
        if lease.value != "done":
            await asyncio.Event().wait()
        handled.append(lease.value)

    consumer = Consumer(leases, handle, concurrency=2, prefetch=4)

    async def main() -> None:
        asyncio.create_task(consumer.run.aio(db))  # noqa: RUF006 - it is forgotten on purpose
        await until(lambda: handled and leases.stats(db).leased >= 2)
        if stopped:
            consumer.stop()
            await asyncio.sleep(0)

    asyncio.run(main())
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.dequeued) == (3, 0, 1)
    wait_until(lambda: not consumer_threads())


def test_a_loop_that_ends_while_items_go_back_lets_them(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])
    held = HeldDatabase(db)
    held.release()
    handler = Gated()
    consumer = Consumer(leases, handler, concurrency=3, prefetch=0, grace=0)

    async def release_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            held.release()

    async def main() -> None:
        tasks = [asyncio.create_task(consumer.run.aio(held)), asyncio.create_task(release_at_the_end())]
        await until(lambda: len(handler.begun) == 3)
        held.hold()
        consumer.stop()
        await until(lambda: held.committing.is_set() and len(handler.cancelled) == 3)
        assert not any(task.done() for task in tasks)

    asyncio.run(main())
    stats = leases.stats(db)
    assert (stats.available, stats.leased) == (3, 0)


def test_it_touches_no_signal_handler_of_its_event_loop(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.append, "application")
        handler = Gated()
        consumer = Consumer(leases, handler)
        async with consumer.running(db):
            await until(lambda: handler.begun)
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: told)
            leases.enqueue(db, "b")
            await until(lambda: len(handler.begun) == 2)
            handler.gate.set()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(told) == 2)
        assert consumer.report.acked == 2

    asyncio.run(main())


def test_it_runs_beside_a_body_and_stops_at_its_end(db: Any, leases: Leases) -> None:
    handled: list[str] = []
    consumer = Consumer(leases, lambda lease: handled.append(lease.value))

    async def main(*values: str) -> None:
        async with consumer.running(db) as same:
            assert same is consumer
            for value in values:
                await leases.enqueue.aio(db, value)
            await until(lambda: set(values) <= set(handled) and not leases.stats(db).leased)
        await leases.enqueue.aio(db, "late")
        await until(lambda: not left_over())

    asyncio.run(main("a", "b"))
    assert (sorted(handled), leases.stats(db).available) == (["a", "b"], 1)
    asyncio.run(main("c"))
    assert (sorted(handled), leases.stats(db).available) == (["a", "b", "c", "late"], 1)


def test_a_body_is_cancelled_with_the_reason_when_its_consumer_fails(db: Any, space: Subspace) -> None:
    raw(space).enqueue(db, b"{")
    consumer = Consumer(Leases(Queue(space, codec="json")), print)

    async def main() -> None:
        with pytest.raises(CodecError, match="The item 1"):
            async with consumer.running(db):
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_cancelled_body_stops_its_consumer_gracefully_and_another_cancellation_at_once(
    db: Any, leases: Leases
) -> None:
    leases.enqueue(db, "a")

    async def main() -> None:
        handler = Gated()
        consumer = Consumer(leases, handler, grace=3_600)

        async def body() -> None:
            async with consumer.running(db):
                await asyncio.Event().wait()

        running = asyncio.create_task(body())
        await until(lambda: handler.begun)
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler.cancelled == []
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (handler.cancelled, consumer.report.returned) == (["a"], 1)
        await until(lambda: not left_over())

    asyncio.run(main())
    assert leases.stats(db).available == 1


def test_an_exception_of_the_body_is_raised_after_its_consumer_ended(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")

    async def main() -> None:
        handler = Gated()
        consumer = Consumer(leases, handler)

        async def body() -> None:
            async with consumer.running(db):
                await until(lambda: handler.begun)
                handler.gate.set()
                raise LookupError

        with pytest.raises(LookupError):
            await body()
        assert consumer.report.acked == 1

    asyncio.run(main())


def test_a_consumer_runs_once_at_a_time(db: Any, leases: Leases) -> None:
    async def main() -> None:
        consumer = Consumer(leases, print)
        async with consumer.running(db):
            with pytest.raises(RuntimeError, match="is running already"):
                async with consumer.running(db):
                    pytest.fail("the body began")
            with pytest.raises(RuntimeError, match="is running already"):
                await consumer.drain.aio(db)

    asyncio.run(main())


def test_two_consumers_share_a_loop(db: Any, leases: Leases, space: Subspace) -> None:
    others = Leases(Queue(beside(space, "others"), codec="str"))
    handled: list[tuple[str, str]] = []

    async def handle(lease: Lease) -> None:
        handled.append((lease.consumer, lease.value))

    one, other = Consumer(leases, handle, consumer="one"), Consumer(others, handle, consumer="other")

    async def main() -> None:
        async with one.running(db), other.running(db):
            await leases.enqueue.aio(db, "a")
            await others.enqueue.aio(db, "b")
            await until(lambda: len(handled) == 2)
            async with Consumer(others, handle, consumer="third").running(db):
                await asyncio.sleep(0)
            await leases.enqueue.aio(db, "c")
            await until(lambda: len(handled) == 3)

    asyncio.run(main())
    assert sorted(handled) == [("one", "a"), ("one", "c"), ("other", "b")]


def test_a_blocking_call_raises_when_its_task_is_cancelled(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    begun: list[str] = []

    async def handle(lease: Lease) -> None:
        begun.append(lease.value)
        for task in asyncio.all_tasks():
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        Consumer(leases, handle).drain(db)
    assert begun == ["a"]
    assert leases.stats(db).leased == 0


@pytest.mark.parametrize("form", ["run", "drain"])
def test_a_blocking_call_in_an_event_loop_names_the_one_to_await(db: Any, leases: Leases, form: str) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=rf"await consumer\.{form}\.aio\(db\)"):
            getattr(Consumer(leases, print), form)(db)

    asyncio.run(main())


def test_run_and_drain_are_verbs(db: Any, leases: Leases) -> None:
    consumer = Consumer(leases, print)
    for name in ("run", "drain"):
        assert isinstance(inspect.getattr_static(Consumer, name), Verb)
        assert str(inspect.signature(getattr(consumer, name))) == "(db: 'Database') -> 'ConsumerReport'"
        assert getattr(consumer, name).__doc__.startswith("Handle items")
    report = asyncio.run(consumer.drain.aio(db))
    assert report is consumer.report


def test_a_thread_ends_after_its_loop_was_closed() -> None:
    async def main() -> Background:
        return Background("extend", lambda: None, 0.01)

    asyncio.run(main())
    wait_until(lambda: not consumer_threads())
