"""Consumers: what becomes of items, leases and handlers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine import blocking as _waiting
from fdbqueue.layers.common.handlers import ACKED, Snooze
from fdbqueue.layers.consumer import Consumer, running
from fdbqueue.layers.leases import Lease, Leases, immediately
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.clock import slow
from tests.helpers.held import HeldDatabase
from tests.helpers.processes import Processes
from tests.helpers.raw import raw
from tests.helpers.staging import wait_until


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space), max_attempts=2, backoff=immediately)


def test_every_item_is_handled_once_and_gone(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"%d" % n for n in range(500)])
    handled: Counter[bytes] = Counter()
    report = Consumer(leases, lambda lease: handled.update([lease.value]), concurrency=4).drain(db)
    assert handled == {b"%d" % n: 1 for n in range(500)}
    assert (report.acked, report.failed, report.lost, report.returned) == (500, 0, 0, 0)
    assert leases.stats(db).dequeued == 500
    assert leases.check(db).ok


def test_coroutine_handlers_run_side_by_side(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"x"] * 40)
    running = most = 0
    everyone = asyncio.Event()

    async def handle(lease: Lease) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 20:
            everyone.set()
        await everyone.wait()
        running -= 1

    assert Consumer(leases, handle, concurrency=20).drain(db).acked == 40
    assert most == 20


def test_blocking_handlers_run_side_by_side_in_threads(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"x"] * 12)
    together = threading.Barrier(6, timeout=60)
    assert Consumer(leases, lambda lease: together.wait(), concurrency=6).drain(db).acked == 12


def test_a_failing_handler_fails_the_attempt_and_at_last_the_item(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"good", b"bad"])

    def handle(lease: Lease) -> None:
        if lease.value == b"bad":
            raise LookupError(f"attempt {lease.attempt}")

    report = Consumer(leases, handle).drain(db)
    assert (report.acked, report.failed, report.dead) == (1, 2, 1)
    [letter] = leases.dead.browse(db)
    assert (letter.value, letter.error) == (b"bad", "LookupError: attempt 2")


class Mute(Exception):
    """It can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


async def waits_for_what_was_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(100))
    task.cancel()
    await task


async def cancels_its_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.cancel()
    await asyncio.sleep(0)


async def snoozes_into_the_past() -> None:
    raise Snooze(-1)


async def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (waits_for_what_was_cancelled, "CancelledError"),
        (cancels_its_own_task, "CancelledError"),
        (snoozes_into_the_past, "ValueError: seconds is a number"),
        (partial(raises, SystemExit(3)), "SystemExit: 3"),
        (partial(raises, KeyboardInterrupt()), "KeyboardInterrupt"),
        (partial(raises, GeneratorExit()), "RuntimeError: GeneratorExit()"),
        (partial(raises, BaseException("stop")), "BaseException: stop"),
        (partial(raises, Mute()), "Mute"),
        (partial(raises, ValueError("\udcff" * 5_000)), "ValueError: ?"),
    ],
    ids=["cancelled", "cancels itself", "snooze", "exit", "interrupt", "closed", "base", "mute", "surrogates"],
)
def test_a_coroutine_that_ends_in_any_way_but_well_fails_its_attempt_and_not_the_consumer(
    db: Any, leases: Leases, work: Callable[[], Awaitable[None]], told: str
) -> None:
    leases.enqueue_many(db, [b"bad", b"good", b"good"])

    async def handle(lease: Lease) -> None:
        if lease.value == b"bad":
            await work()

    report = Consumer(leases, handle, concurrency=1).drain(db)
    assert (report.acked, report.failed, report.dead) == (2, 2, 1)
    [letter] = leases.dead.browse(db)
    assert letter.error.startswith(told)


def test_an_awaitable_result_of_a_handler_is_awaited_before_the_ack(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"a", b"b"])
    handled: list[bytes] = []

    async def handle(lease: Lease) -> None:
        await asyncio.sleep(0)
        handled.append(lease.value)

    assert Consumer(leases, lambda lease: handle(lease)).drain(db).acked == 2
    assert sorted(handled) == [b"a", b"b"]


def of_leases(queue: Queue) -> Leases:
    return Leases(queue, max_attempts=1)


def of_sessions(queue: Queue, **terms: Any) -> Sessions:
    return Sessions(queue, max_attempts=1, **terms)


@pytest.mark.parametrize("source", [of_leases, of_sessions, partial(of_sessions, concurrency=2)])
def test_a_handler_that_says_acked_and_has_not_acked_has_failed(
    db: Any, space: Subspace, source: Callable[[Queue], Any]
) -> None:
    own = source(Queue(space, codec="str"))
    terms = {} if isinstance(own, Leases) else {"session": "ann"}
    own.enqueue_many(db, ["acked", "not acked", "last"], **terms)

    def handle(lease: Lease) -> object:
        if lease.value == "acked":
            own.ack(db, lease)
        return ACKED if lease.value != "last" else None

    report = Consumer(own, handle, concurrency=1).drain(db)
    assert (report.acked, report.failed, report.dead, report.lost) == (2, 1, 1, 0)
    dead = own.dead.browse(db) if isinstance(own, Leases) else own.dead(db, "ann")
    assert [(one.value, one.error.split(".")[0]) for one in dead] == [
        ("not acked", "NotAcked: the handler returned ACKED, and its lease was not acked")
    ]
    assert own.check(db).problems == ()


def test_an_item_is_not_acked_for_a_generator_that_never_ran(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"a")

    def handle(lease: Lease) -> Iterator[None]:
        yield

    assert Consumer(leases, handle).drain(db).acked == 0
    [letter] = leases.dead.browse(db)
    assert "generator" in letter.error


def test_a_drain_also_handles_items_that_return_during_its_last_look(db: Any, leases: Leases) -> None:
    patient = Leases(Queue(leases.layout.space), max_attempts=5, backoff=immediately)

    async def handle(lease: Lease) -> None:
        if lease.attempt < 3:
            raise LookupError

    for _ in range(30):
        patient.enqueue(db, b"x")
        Consumer(patient, handle, concurrency=2).drain(db)
        assert patient.stats(db).available == 0


def test_a_handler_can_put_an_item_off_without_counting_the_attempt(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"later", b"now"])

    async def handle(lease: Lease) -> None:
        if lease.value == b"later":
            raise Snooze(3_600)

    report = Consumer(leases, handle).drain(db)
    assert (report.acked, report.snoozed, report.failed) == (1, 1, 0)
    [delayed] = leases.browse(db, state="delayed")
    assert (delayed.value, delayed.attempt) == (b"later", 0)


def test_a_handler_can_ack_in_its_own_transaction(db: Any, leases: Leases, space: Subspace) -> None:
    leases.enqueue_many(db, [b"1", b"2"])

    def handle(lease: Lease) -> object:
        tr = db.create_transaction()
        tr[space.pack(("done", lease.value))] = b""
        leases.ack(tr, lease)
        tr.commit().wait()
        return ACKED

    report = Consumer(leases, handle).drain(db)
    assert (report.acked, report.lost) == (2, 0)
    assert len(db.get_range_startswith(space.pack(("done",)))) == 2


def test_a_lease_is_extended_while_its_handler_runs(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space), clock=slow)
    leases.enqueue(db, b"slow")
    others: list[Any] = []
    extended = threading.Event()

    def handle(lease: Lease) -> None:
        span = leases.layout.timers.range()
        first = [row.key for row in db.get_range(span.start, span.stop)]
        while [row.key for row in db.get_range(span.start, span.stop)] == first:
            assert not extended.wait(0.01)
        others.append(leases.lease(db))

    report = Consumer(leases, handle, duration=1).drain(db)
    assert report.extended >= 1
    assert others == [None]
    assert (report.acked, report.lost) == (1, 0)


def test_a_handler_with_a_lost_lease_is_reported(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"1", b"2"])

    def handle(lease: Lease) -> None:
        if lease.value == b"1" and lease.attempt == 1:
            leases.nack(db, lease)

    report = Consumer(leases, handle).drain(db)
    assert (report.acked, report.lost) == (2, 1)


def test_a_stop_ends_running_handlers_and_returns_what_was_not_begun(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, [b"%d" % n for n in range(20)])

    def handle(lease: Lease) -> None:
        consumer.stop()

    consumer = Consumer(leases, handle, concurrency=2, prefetch=10)
    report = consumer.run(db)
    assert 1 <= report.acked <= 3
    assert report.acked + report.returned <= 20
    assert [item.value for item in leases.queue.browse(db)] == [b"%d" % n for n in range(report.acked, 20)]
    assert leases.stats(db).leased == 0
    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 1


def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_item_returned(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"x")
    cancelled: list[Lease] = []

    async def handle(lease: Lease) -> None:
        consumer.stop()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(lease)
            raise

    consumer = Consumer(leases, handle, grace=0.05)
    assert consumer.run(db).returned == 1
    assert len(cancelled) == 1
    assert leases.stats(db).available == 1


def test_an_exception_in_a_handler_is_logged(db: Any, leases: Leases, caplog: pytest.LogCaptureFixture) -> None:
    position = leases.enqueue(db, b"x")
    leases.queue.register(db, max_attempts=1)

    def handle(lease: Lease) -> None:
        raise LookupError("no such printer")

    Consumer(leases, handle).drain(db)
    [record] = [record for record in caplog.records if record.name == "fdbqueue.layers.consumer"]
    assert (record.levelname, position.text in record.getMessage()) == ("WARNING", True)
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such printer"


def test_a_database_that_does_not_answer_keeps_no_consumer_from_ending(
    db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "GIVE_BACK_SECONDS", 0.01)
    leases.enqueue(db, b"x")
    held = HeldDatabase(db)
    held.release()

    async def handle(lease: Lease) -> None:
        held.hold()
        consumer.stop()
        await asyncio.Event().wait()

    consumer = Consumer(leases, handle, grace=0.01)
    assert consumer.run(held).stopped
    assert "was stopped, and its database did not answer: 1 items come back when their leases end." in caplog.text
    assert leases.stats(db).leased == 1  # and will expire
    held.release()


def wait_for_items_until_nothing_answers(url: str, space: bytes) -> None:
    """Run a consumer that waits for its first item when its database falls silent, and is stopped then."""
    _waiting.FINISH_SECONDS = 0.01
    db = fdbqueue.open(url)
    held = HeldDatabase(db)
    held.release()
    leases = Leases(Queue(Subspace((), space)))
    consumer = Consumer(leases, lambda lease: None, grace=0.01)

    def stop() -> None:
        wait_until(lambda: StagedQueue(leases).stats(db).requests)
        held.hold()
        consumer.stop()

    threading.Thread(target=stop).start()
    consumer.run(held)


@pytest.mark.slow
def test_a_process_ends_though_its_database_stops_answering_a_waiting_consumer(
    processes: Processes, url: str, space: Subspace
) -> None:
    processes.run(wait_for_items_until_nothing_answers, url, space.key())


def test_a_thread_that_does_not_end_in_time_is_fenced(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"x")
    forever = threading.Event()

    def handle(lease: Lease) -> None:
        consumer.stop()
        forever.wait(60)

    consumer = Consumer(leases, handle, grace=0.05)
    assert consumer.run(db).returned == 1
    forever.set()
    assert leases.stats(db).available == 1


@pytest.mark.slow
def test_more_than_one_transaction_can_hold_is_returned_in_several(db: Any, leases: Leases) -> None:
    leases.queue.enqueue_many(db, [bytes(85_000)] * 150)
    begun = 0

    async def handle(lease: Lease) -> None:
        nonlocal begun
        begun += 1
        if begun == 150:
            consumer.stop()
        await asyncio.Event().wait()

    consumer = Consumer(leases, handle, concurrency=150, grace=0.05)
    assert consumer.run(db).returned == 150
    assert leases.stats(db).available == 150


def test_an_idle_consumer_wakes_up_for_an_item_and_for_one_that_falls_due(db: Any, leases: Leases) -> None:
    seen: list[bytes] = []
    first = threading.Event()

    def handle(lease: Lease) -> None:
        seen.append(lease.value)
        first.set()
        if len(seen) == 2:
            consumer.stop()

    consumer = Consumer(leases, handle)

    def produce() -> None:
        leases.enqueue(db, b"now")
        first.wait(60)
        leases.enqueue(db, b"soon", delay=0.2)

    producer = threading.Thread(target=produce)
    producer.start()
    consumer.run(db)
    producer.join()
    assert seen == [b"now", b"soon"]


def test_an_item_that_cannot_be_read_ends_the_consumer_and_stays(db: Any, space: Subspace) -> None:
    raw(space).enqueue_many(db, [b"1", b"{"])
    leases = Leases(Queue(space, codec="json"))
    with pytest.raises(CodecError, match="The item 2:"):
        Consumer(leases, lambda lease: None).run(db)
    assert leases.stats(db).available == 1
    assert leases.stats(db).leased == 0


def test_a_consumer_prints_what_it_is(leases: Leases) -> None:
    assert "concurrency=3" in repr(Consumer(leases, print, concurrency=3))
