"""Consumers whose handlers fail: when the item is tried again, when a drain ends, and what is logged."""

from __future__ import annotations

import asyncio
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    ACKED,
    Consumer,
    Done,
    Lease,
    Leases,
    PriorityQueue,
    RetryIn,
    SessionLease,
    Sessions,
    Snooze,
    Subscriptions,
    constant,
    exponential,
    immediately,
)
from fdbqueue.layers.middleware import Next
from tests.helpers.clock import Clock


def fail(lease: Lease) -> None:
    raise LookupError("no such printer")


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.mark.parametrize("backoff", [None, immediately, constant(0.0001), lambda attempt: 0])
def test_a_drain_without_max_attempts_ends_even_if_its_handler_always_fails(
    db: Any, queue: Queue, backoff: Callable[[int], float] | None
) -> None:
    leases = Leases(queue, backoff=backoff)
    leases.enqueue_many(db, ["a", "b", "c"])

    report = Consumer(leases, fail, concurrency=2).drain(db)

    assert (report.failed, report.acked, report.dead) == (3, 0, 0)
    assert leases.stats(db).delayed == 3


def test_a_drain_handles_the_items_behind_failing_ones(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue_many(db, [f"bad {n}" for n in range(50)] + ["good"])

    def handle(lease: Lease) -> None:
        if lease.value != "good":
            fail(lease)

    report = Consumer(leases, handle, concurrency=2).drain(db)

    assert (report.acked, report.failed) == (1, 50)


def test_without_a_backoff_a_failed_item_waits_longer_after_each_attempt(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, "a")
    waits = []
    for _ in range(4):
        Consumer(leases, fail).drain(db)
        [delayed] = leases.browse(db, state="delayed")
        assert delayed.visible_at is not None
        waits.append(delayed.visible_at - clock())
        clock.now += waits[-1] + 0.001

    assert [least <= wait <= 1.1 * least for least, wait in zip((1, 2, 4, 8), waits, strict=True)] == [True] * 4


@pytest.mark.parametrize("form", ["run", "drain"])
def test_a_consumer_of_any_kind_of_queue_waits_by_default(db: Any, space: Subspace, form: str) -> None:
    jobs = PriorityQueue(Queue(space["levels"], codec="str"), levels=2)
    paints = Subscriptions(Queue(space["paints"], codec="str"))
    sources: list[tuple[Any, Leases]] = [(jobs, jobs.leases), (paints.subscribe(db, "all"), paints.leases)]
    made: list[Consumer] = []

    def handle(lease: Lease) -> None:
        made[-1].stop()
        fail(lease)

    for source, leases in sources:
        leases.enqueue(db, "a")
        made.append(Consumer(source, handle))
        assert getattr(made[-1], form)(db).failed == 1
        assert leases.stats(db).delayed == 1


def test_a_back_off_that_is_given_is_followed(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, backoff=constant(600), clock=clock)
    leases.enqueue(db, "a")

    Consumer(leases, fail).drain(db)

    [delayed] = leases.browse(db, state="delayed")
    assert delayed.visible_at == pytest.approx(clock() + 600)


def test_with_max_attempts_and_no_wait_a_drain_tries_an_item_until_it_is_a_dead_letter(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=3, backoff=immediately)
    leases.enqueue(db, "a")

    report = Consumer(leases, fail).drain(db)

    assert (report.failed, report.dead) == (3, 1)


def test_a_nack_by_hand_takes_effect_at_once(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "a")
    lease = leases.lease(db)
    assert lease is not None

    assert leases.nack(db, lease).value == "available"


def test_the_traceback_of_an_error_is_logged_once_and_each_failure_is(
    db: Any, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    leases = Leases(queue, max_attempts=4, backoff=immediately)
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        raise LookupError("no such printer" if lease.attempt < 4 else "no such paper")

    Consumer(leases, handle).drain(db)

    records = [record for record in caplog.records if record.name == "fdbqueue.layers.consumer"]
    assert [record.getMessage().rpartition(": ")[2] for record in records] == ["no such printer"] * 3 + [
        "no such paper"
    ]
    assert [record.exc_info is not None for record in records] == [True, False, False, True]


def test_a_report_says_that_a_stop_or_a_cancellation_ended_the_call(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue_many(db, ["a", "b"])
    stopped: Consumer[str] = Consumer(leases, lambda lease: stopped.stop(), concurrency=1, prefetch=0)
    assert stopped.drain(db).stopped

    async def cancelled() -> Consumer:
        consumer = Consumer(leases, lambda lease: None)
        task = asyncio.create_task(consumer.run.aio(db))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return consumer

    assert asyncio.run(cancelled()).report.stopped


def test_a_drain_that_ends_by_itself_was_not_stopped(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "a")
    consumer = Consumer(leases, lambda lease: None)

    report = consumer.drain(db)

    assert not report.stopped
    assert "stopped" not in str(report)
    assert report.acked == 1


@pytest.mark.parametrize("policy", [exponential(first=2), constant(3), immediately])
def test_policies_can_be_sent_with_their_leases(queue: Queue, policy: Any) -> None:
    leases = pickle.loads(pickle.dumps(Leases(queue, backoff=policy)))

    assert leases.retry.policy.backoff == policy
    assert exponential(first=2) != exponential(first=3)


def test_dead_letters_that_end_side_by_side_are_all_counted(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    leases.enqueue_many(db, map(str, range(50)))

    async def handle(lease: Lease) -> None:
        await asyncio.sleep(0)
        fail(lease)

    assert Consumer(leases, handle, concurrency=16).drain(db).dead == 50


def test_a_terminal_that_is_closed_ends_a_run_gracefully(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue_many(db, ["a", "b"])

    async def handle(lease: Lease) -> None:
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        report = Consumer(leases, handle, concurrency=1, prefetch=0).run(db)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)

    assert (report.stopped, report.acked) == (True, 1)


class Stop(BaseException):
    """No Exception, as pytest.fail raises."""


@pytest.mark.parametrize("error", [Stop, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["leases", "subscription", "sessions", "middleware"])
def test_no_exception_of_a_coroutine_ends_a_consumer_of_any_kind(
    db: Any, queue: Queue, kind: str, error: type[BaseException]
) -> None:
    leases = Leases(queue, max_attempts=2, backoff=immediately)
    source: Any = leases
    if kind == "subscription":
        source = Subscriptions(leases).subscribe(db, "all")
    elif kind == "sessions":
        source = Sessions(queue, max_attempts=2, backoff=immediately)
    terms: dict[str, Any] = {"session": "ann"} if kind == "sessions" else {}
    for value in ("bad", "good"):
        (source if kind == "sessions" else leases).enqueue(db, value, **terms)

    async def handle(lease: Lease) -> None:
        if lease.value == "bad" and kind != "middleware":
            raise error

    async def around(lease: Lease, call_next: Any) -> Any:
        if lease.value == "bad" and kind == "middleware":
            raise error
        return await call_next(lease)

    consumer: Consumer = Consumer(source, handle, middleware=[around] if kind == "middleware" else [])
    report = consumer.drain(db)

    assert (report.acked, report.failed, report.dead) == (1, 2, 1)


class Telling:
    """A handler that is told of the ends of its items, and keeps those that it was not told of."""

    def __init__(self, db: Any, verbs: Any) -> None:
        self._db, self._verbs = db, verbs
        self.left: dict[tuple[bytes, Position], str] = {}
        self.ended: dict[str, list[bool]] = {}

    async def __call__(self, lease: Lease) -> Any:
        self.left[lease.token, lease.position] = lease.value
        if lease.value == "own":
            await self._verbs.ack.aio(self._db, lease)
            return ACKED
        if lease.value == "cancelled":
            place = (lease.session, lease.position) if isinstance(lease, SessionLease) else (lease.position,)
            await self._verbs.cancel.aio(self._db, *place)
        return Done("x" * 200_000) if lease.value == "large" else None

    def item_ended(self, token: bytes, position: Position, acked: bool) -> None:
        if value := self.left.pop((token, position), ""):
            self.ended.setdefault(value, []).append(acked)


@pytest.mark.parametrize("kind", ["leases", "sessions", "one session"])
def test_a_handler_is_told_of_the_end_of_each_item_that_it_began(db: Any, queue: Queue, kind: str) -> None:
    verbs: Any = Leases(queue) if kind == "leases" else Sessions(queue)
    values = ["a", "b", "own", "c", *(["late"] if kind == "one session" else ["cancelled", "large", "late", "snoozed"])]
    for value in values:
        terms = {} if kind == "leases" else {"session": "s" if kind == "one session" else value}
        verbs.enqueue(db, value, **terms)
    telling = Telling(db, verbs)

    async def change_its_mind(lease: Lease, call_next: Next) -> Any:
        result = await call_next(lease)
        if lease.value == "snoozed":
            raise Snooze(60)
        if lease.value == "late":
            raise RetryIn(60)
        return result

    report = Consumer(verbs, telling, middleware=[change_its_mind]).drain(db)

    assert report.acked == 4
    assert telling.ended == {value: [value in ("a", "b", "c", "own")] for value in values}
    assert telling.left == {}
