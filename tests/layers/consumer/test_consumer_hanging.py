"""Handlers that block their loop or hang, and leases that are lost all the same."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.handlers import ACKED
from fdbqueue.layers.consumer import Consumer, running
from fdbqueue.layers.leases import Lease, Leases, immediately
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from tests.helpers.clock import Clock, slow
from tests.helpers.consuming import consumer_threads, logged, until
from tests.helpers.staging import wait_until


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"), max_attempts=2, backoff=immediately, clock=slow)


def test_leases_are_extended_while_a_handler_blocks_the_loop(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])
    span = leases.layout.timers.range()
    extensions = 0

    async def handle(lease: Lease) -> None:
        nonlocal extensions
        before = [row.key for row in db.get_range(span.start, span.stop)]
        wait_until(lambda: [row.key for row in db.get_range(span.start, span.stop)] != before)
        extensions += 1

    report = Consumer(leases, handle, concurrency=3, duration=0.6).drain(db)
    assert (report.acked, report.failed, report.lost) == (3, 0, 0)
    assert (extensions, logged(caplog)) == (3, [])
    assert leases.stats(db).dequeued == 3


def source_of(leases: Leases, db: Any, kind: str) -> Leases | Subscription:
    return leases if kind == "leases" else Subscriptions(leases).subscribe(db, "all")


@pytest.mark.parametrize("kind", ["leases", "subscription"])
def test_a_consumer_does_not_take_its_own_leases_when_they_ran_out(
    db: Any, space: Subspace, clock: Clock, kind: str
) -> None:
    leases = Leases(Queue(space, codec="str"), clock=clock, max_attempts=2)
    source = source_of(leases, db, kind)
    leases.enqueue(db, "a")
    handled: list[tuple[str, int]] = []
    second = asyncio.Event()

    async def handle(lease: Lease) -> None:
        handled.append((lease.value, lease.attempt))
        if lease.value == "a" and lease.attempt == 1:
            clock.now += 60  # as if the whole process had been stopped
            await leases.enqueue.aio(db, "b")
            await second.wait()
            # A thread extends the lease. If the handler returned first, there would be nothing left to extend.
            await until(lambda: consumer.report.extended >= 1)
        second.set()

    consumer = Consumer(source, handle, concurrency=2, prefetch=0, duration=30)

    async def main() -> None:
        async with consumer.running(db):
            await until(lambda: consumer.report.acked == 2)
        assert (consumer.report.lost, consumer.report.failed) == (0, 0)

    asyncio.run(main())
    assert handled == [("a", 1), ("b", 1)]


def test_a_consumer_keeps_an_item_that_it_lost_and_leased_again(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    span = leases.layout.timers.range()

    async def handle(lease: Lease) -> None:
        if lease.attempt == 1:
            await leases.nack.aio(db, lease)  # as another process might
            await again.wait()
        else:
            keys = [row.key for row in db.get_range(span.start, span.stop)]
            for _ in range(2):
                before = keys
                await until(lambda before=before: [r.key for r in db.get_range(span.start, span.stop)] != before)  # type: ignore[misc]
                keys = [row.key for row in db.get_range(span.start, span.stop)]
            again.set()

    async def main() -> None:
        async with Consumer(leases, handle, concurrency=2, prefetch=0, duration=0.6).running(db) as consumer:
            await until(lambda: consumer.report.acked + consumer.report.lost == 2)
        assert (consumer.report.acked, consumer.report.lost) == (1, 1)

    again = asyncio.Event()
    asyncio.run(main())


def test_a_lease_that_is_lost_at_the_ack_is_logged(db: Any, leases: Leases, caplog: pytest.LogCaptureFixture) -> None:
    position = leases.enqueue(db, "a")

    async def handle(lease: Lease) -> None:
        if lease.attempt == 1:
            await leases.nack.aio(db, lease)

    assert Consumer(leases, handle, consumer="painter").drain(db).lost == 1
    [line] = logged(caplog)
    assert caplog.records[0].levelname == "WARNING"
    for word in (position.text, "attempt 1", "painter", "was lost"):
        assert word in line


@pytest.mark.parametrize("how", ["returns", "fails"])
@pytest.mark.parametrize(
    ("verb", "terms", "told"),
    [
        ("cancel", {}, "it was cancelled while painter had it, and is not handled again."),
        ("update", {"value": "b"}, "it was updated while painter had it, and is handled again as it is now."),
        ("reschedule", {"delay": 60}, "it was rescheduled while painter had it, and is handled again as it is now."),
    ],
)
def test_a_call_by_position_that_took_an_item_away_is_logged(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture, how: str, verb: str, terms: dict[str, Any], told: str
) -> None:
    position = leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        if lease.value == "a":
            getattr(leases, verb)(db, position, **terms)
            if how == "fails":
                raise ValueError("no paint")

    assert Consumer(leases, handle, consumer="painter").drain(db).lost == 1
    line = logged(caplog)[-1]
    assert line.endswith(told)
    assert "may be" not in line


@pytest.mark.parametrize("how", ["returns", "fails"])
@pytest.mark.parametrize(
    ("verb", "terms", "told"),
    [
        (
            "cancel",
            {},
            "it was cancelled (or given another level )?while .* had it, and is not handled again( in its old place)?.",
        ),
        ("update", {"value": "x"}, "it was (updated|changed) while .* had it, and is handled again as it is now."),
        (
            "reschedule",
            {"delay": 60},
            "it was (rescheduled|changed) while .* had it, and is handled again as it is now.",
        ),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_turn_whose_item_a_call_by_position_took_away_says_so(
    db: Any,
    space: Subspace,
    caplog: pytest.LogCaptureFixture,
    how: str,
    verb: str,
    terms: dict[str, Any],
    told: str,
    at: int,
) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue_many(db, ["a", "b", "c", "d"], session="ann")

    def handle(lease: Any) -> None:
        if lease.value == "abcd"[at] and lease.attempt == 1 and not changed:
            changed.append(lease.position)
            getattr(sessions, verb)(db, "ann", lease.position, **terms)
            if how == "fails":
                raise ValueError("no paint")

    changed: list[Any] = []
    assert Consumer(sessions, handle, consumer="painter").drain(db).lost == 1
    lines = [line for line in logged(caplog) if "was lost" in line]
    assert len(lines) == 1
    assert re.search(f"The lease of the session 'ann' of .*: {told}$", lines[0])


def test_a_lease_that_is_lost_while_its_handler_runs_is_logged_then_and_once(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        if lease.attempt == 1:
            leases.nack(db, lease, delay=3_600)
            wait_until(lambda: logged(caplog))

    report = Consumer(leases, handle, duration=0.3).drain(db)
    assert report.lost == 1
    [line] = logged(caplog)
    assert "is lost" in line


def test_a_handler_that_acked_its_item_itself_has_lost_no_lease(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue_many(db, ["own", "other"])

    async def handle(lease: Lease) -> object:
        if lease.value == "other":
            await acked.wait()
            return None
        await leases.ack.aio(db, lease)
        before = consumer.report.extended
        await until(lambda: consumer.report.extended > before)  # that of the other one: this one was looked at, too
        acked.set()
        return ACKED

    acked = asyncio.Event()
    consumer = Consumer(leases, handle, concurrency=2, duration=1.5)
    report = consumer.drain(db)
    assert (report.acked, report.lost, logged(caplog)) == (2, 0, [])


def test_a_coroutine_that_hangs_fails_its_attempt(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["hangs", "good"])
    cancelled: list[int] = []

    async def handle(lease: Lease) -> None:
        if lease.value == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(lease.attempt)

    report = Consumer(leases, handle, concurrency=1, handler_timeout=0.02).drain(db)
    assert (report.acked, report.failed, report.dead, report.lost) == (1, 2, 1, 0)
    assert cancelled == [1, 2]
    [letter] = leases.dead.browse(db)
    assert letter.error == "TimeoutError: the handler took longer than its 0.02 s"


def test_a_handlers_own_timeout_is_reported_as_its_own(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")

    async def handle(lease: Lease) -> None:
        raise TimeoutError("the printer is silent")

    Consumer(leases, handle, handler_timeout=60).drain(db)
    [letter] = leases.dead.browse(db)
    assert letter.error == "TimeoutError: the printer is silent"


def test_a_thread_that_hangs_fails_its_attempt_and_the_others_go_on(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["hangs", "a", "b"])
    hanging = threading.Event()
    handled: list[tuple[str, int]] = []

    def handle(lease: Lease) -> None:
        if lease.value == "hangs" and lease.attempt == 1:
            hanging.wait(60)
        handled.append((lease.value, lease.attempt))

    try:
        report = Consumer(leases, handle, concurrency=2, handler_timeout=1.0).drain(db)
        assert (report.acked, report.failed, report.lost) == (3, 1, 0)
        assert sorted(handled) == [("a", 1), ("b", 1), ("hangs", 2)]
        assert leases.stats(db).dequeued == 3
    finally:
        hanging.set()
    wait_until(lambda: not consumer_threads())
    assert leases.check(db).ok


def test_threads_that_all_hang_hold_no_item_and_one_that_returns_goes_on(
    db: Any, space: Subspace, caplog: pytest.LogCaptureFixture
) -> None:
    leases = Leases(Queue(space, codec="str"), backoff=immediately)
    leases.enqueue_many(db, ["a", "b", "c"])
    hanging = threading.Event()
    most: list[int] = []

    def handle(lease: Lease) -> None:
        most.append(len([name for name in consumer_threads() if "handler" in name]))
        if lease.value in ("a", "b") and lease.attempt == 1:
            hanging.wait(60)

    def all_are_back() -> bool:
        stats = leases.stats(db)
        return (stats.available, stats.leased, len(most)) == (3, 0, 2)

    async def main() -> None:
        async with Consumer(leases, handle, concurrency=2, prefetch=2, handler_timeout=1.0).running(db) as consumer:
            await until(all_are_back)
            hanging.set()
            await until(lambda: consumer.report.acked == 3)
        assert consumer.report.failed == 2

    asyncio.run(main())
    assert max(most) == 2
    assert any("ran longer than their limit" in line for line in logged(caplog))


def test_a_drain_with_only_hanging_threads_fails_and_leaves_the_rest(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue_many(db, ["a", "b"])
    hanging = threading.Event()
    try:
        consumer = Consumer(leases, lambda lease: hanging.wait(60), concurrency=1, handler_timeout=0.05, grace=0.05)
        with pytest.raises(TimeoutError, match=r"All 1 handlers of .* ran longer"):
            consumer.drain(db)
        stats = leases.stats(db)
        assert (stats.available, stats.delayed, stats.leased) == (1, 1, 0)
    finally:
        hanging.set()


def test_a_lease_is_not_extended_for_a_handler_that_blocks_the_loop_beyond_its_time(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue(db, "a")

    async def handle(lease: Lease) -> None:
        wait_until(lambda: logged(caplog))

    Consumer(leases, handle, handler_timeout=0.05, duration=0.3).drain(db)
    assert "is not extended any more" in logged(caplog)[0]


@pytest.mark.parametrize("ends", [True, False])
def test_a_coroutine_that_will_not_be_cancelled_keeps_no_consumer_from_ending(
    db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    monkeypatch.setattr(running, "GIVE_BACK_SECONDS", 0.2)
    leases.enqueue(db, "a")

    async def main() -> None:
        begun, released = asyncio.Event(), asyncio.Event()

        async def handle(lease: Lease) -> None:
            begun.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    if ends:
                        return

        consumer = Consumer(leases, handle, grace=0.01)
        running = asyncio.create_task(consumer.run.aio(db))
        await begun.wait()
        consumer.stop()
        report = await running
        assert (report.acked, report.returned) == ((1, 0) if ends else (0, 1))
        assert any("still run" in line for line in logged(caplog)) is not ends
        released.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())
    assert leases.stats(db).leased == 0


def test_worker_threads_are_as_many_as_are_needed_and_end_with_the_run(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [str(n) for n in range(40)])
    seen: set[int] = set()
    together = threading.Barrier(4, timeout=60)

    def handle(lease: Lease) -> None:
        seen.add(threading.get_ident())
        together.wait()

    assert Consumer(leases, handle, concurrency=4).drain(db).acked == 40
    assert len(seen) == 4
    wait_until(lambda: not consumer_threads())


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"handler_timeout": 0}, ValueError),
        ({"handler_timeout": -1}, ValueError),
        ({"handler_timeout": float("nan")}, ValueError),
        ({"handler_timeout": "5"}, TypeError),
        ({"grace": -1}, ValueError),
        ({"grace": None}, TypeError),
        ({"concurrency": True}, TypeError),
        ({"concurrency": 1.5}, TypeError),
        ({"concurrency": "4"}, TypeError),
        ({"concurrency": None}, TypeError),
        ({"prefetch": 1.5}, TypeError),
        ({"prefetch": True}, TypeError),
        ({"duration": "30"}, TypeError),
        ({"consumer": 7}, TypeError),
    ],
)
def test_terms_that_can_not_be_kept_are_refused_by_name(
    leases: Leases, terms: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"^{next(iter(terms))} is "):
        Consumer(leases, print, **terms)


def test_no_timeout_is_the_default(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    assert Consumer(leases, lambda lease: time.monotonic(), handler_timeout=None).drain(db).acked == 1
