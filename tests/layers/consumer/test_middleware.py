"""Middleware around a consumer's handler: order, what it may change, and what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    ACKED,
    Consumer,
    Disposition,
    GiveUp,
    Lease,
    Leases,
    NewState,
    PriorityQueue,
    Results,
    RetryIn,
    SessionLease,
    Sessions,
    Snooze,
    Subscriptions,
    constant,
)
from fdbqueue.layers.middleware import ItemFields, LogItems, Next, RetryBy, TimeLimit
from tests.helpers.clock import Clock
from tests.helpers.names import beside

SHORT = 0.02


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.fixture
def leases(queue: Queue) -> Leases:
    return Leases(queue)


def teller(told: list[str], name: str) -> Callable[[Lease, Next], Any]:
    async def tell(lease: Lease, call_next: Next) -> Any:
        told.append(f"{name} begins")
        result = await call_next(lease)
        told.append(f"{name} ends")
        return result

    return tell


def plain_teller(told: list[str], name: str) -> Callable[[Lease, Next], Any]:
    def tell(lease: Lease, call_next: Next) -> Any:
        told.append(f"{name} begins")
        result = call_next(lease)
        told.append(f"{name} ends")
        return result

    return tell


def test_the_first_is_the_outermost_around_a_coroutine_function(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    told: list[str] = []

    async def handle(lease: Lease) -> None:
        told.append(lease.value)

    Consumer(leases, handle, middleware=[teller(told, "outer"), teller(told, "inner")]).drain(db)

    assert told == ["outer begins", "inner begins", "a", "inner ends", "outer ends"]


def test_plain_functions_run_in_the_thread_of_a_plain_handler(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    told: list[str] = []
    threads: list[int] = []

    def note(lease: Lease, call_next: Next) -> Any:
        threads.append(threading.get_ident())
        return call_next(lease)

    def handle(lease: Lease) -> None:
        threads.append(threading.get_ident())
        told.append(lease.value)

    chain = [teller(told, "outer"), note, plain_teller(told, "inner")]
    Consumer(leases, handle, middleware=chain).drain(db)

    assert told == ["outer begins", "inner begins", "a", "inner ends", "outer ends"]
    assert threads[0] == threads[1] != threading.get_ident()


def test_a_context_variable_is_seen_inside_and_not_by_the_next_item(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["a", "b"])
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[str, str]] = []

    async def set_it(lease: Lease, call_next: Next) -> Any:
        seen.append(("before", variable.get()))
        variable.set(lease.value)
        return await call_next(lease)

    for handle in (lambda lease: seen.append(("in", variable.get())), _async_note(seen, variable)):
        seen.clear()
        leases.enqueue_many(db, ["a", "b"])
        Consumer(leases, handle, concurrency=1, middleware=[set_it]).drain(db)
        assert [what for _, what in seen if _ == "before"] == ["unset"] * (len(seen) // 2)
        assert {what for where, what in seen if where == "in"} == {"a", "b"}


def _async_note(seen: list[tuple[str, str]], variable: contextvars.ContextVar[str]) -> Callable[[Lease], Any]:
    async def handle(lease: Lease) -> None:
        await asyncio.sleep(0)
        seen.append(("in", variable.get()))

    return handle


def test_what_it_raises_and_returns_counts_as_the_handlers(db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["acked", "failed", "snoozed", "skipped", "handled"])
    handled = []

    async def decide(lease: Lease, call_next: Next) -> Any:
        if lease.value == "acked":
            await leases.ack.aio(db, lease)
            return ACKED
        if lease.value == "failed":
            raise LookupError("no")
        if lease.value == "snoozed":
            raise Snooze(60)
        return None if lease.value == "skipped" else await call_next(lease)

    report = Consumer(leases, lambda lease: handled.append(lease.value), middleware=[decide]).drain(db)

    assert (report.acked, report.failed, report.snoozed) == (3, 1, 1)
    assert handled == ["handled"]


def test_it_may_give_the_handler_another_lease_and_call_it_twice(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    seen: list[str] = []

    async def twice(lease: Lease, call_next: Next) -> Any:
        await call_next(lease)
        return await call_next(dataclasses.replace(lease, value=lease.value.upper()))

    assert Consumer(leases, lambda lease: seen.append(lease.value), middleware=[twice]).drain(db).acked == 1
    assert seen == ["a", "A"]


def test_one_that_returns_the_next_call_without_awaiting_it_works(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    handled: list[str] = []

    async def forgets(lease: Lease, call_next: Next) -> Any:
        return call_next(lease)

    Consumer(leases, lambda lease: handled.append(lease.value), middleware=[forgets]).drain(db)

    assert handled == ["a"]


async def good(lease: Lease, call_next: Next) -> Any:
    return await call_next(lease)


def plain(lease: Lease, call_next: Next) -> Any:
    return call_next(lease)


async def handle_async(lease: Lease) -> None:
    """Do nothing."""


def generator(lease: Lease, call_next: Next) -> Any:
    yield call_next(lease)


@pytest.mark.parametrize(
    ("middleware", "handler", "told"),
    [
        (good, handle_async, "middleware is a list"),
        ("TimeLimit", handle_async, "middleware is a list"),
        (7, handle_async, "middleware is a list"),
        ([7], handle_async, "can't be"),
        ([TimeLimit], handle_async, "not the class TimeLimit: give an instance"),
        ([lambda lease: None], print, "takes \\(lease\\)"),
        ([generator], print, "is a generator"),
        ([plain], handle_async, "write"),
        ([plain, good], print, "write"),
        ([functools.partial(plain)], handle_async, "write"),
    ],
)
def test_what_can_not_be_middleware_is_refused(leases: Leases, middleware: Any, handler: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"(?i){told}"):
        Consumer(leases, handler, middleware=middleware)


def test_partials_and_objects_are_middleware(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    chain: list[Any] = [functools.partial(good), TimeLimit(60), functools.partial(plain)]
    assert Consumer(leases, lambda lease: None, middleware=chain).drain(db).acked == 1


# --- composition


def test_it_is_around_the_handlers_of_a_priority_queue(db: Any, queue: Queue) -> None:
    own = PriorityQueue(queue)
    own.enqueue(db, "a")
    told: list[str] = []
    Consumer(own, lambda lease: None, middleware=[teller(told, "m")]).drain(db)
    assert told == ["m begins", "m ends"]


def test_it_is_around_the_handlers_of_subscriptions(db: Any, queue: Queue) -> None:
    subscriptions = Subscriptions(queue)
    all_of_them = subscriptions.subscribe(db, "all")
    subscriptions.enqueue(db, "a")
    told: list[str] = []
    Consumer(all_of_them, lambda lease: None, middleware=[teller(told, "m")]).drain(db)
    assert told == ["m begins", "m ends"]


def test_it_is_around_each_item_of_a_session_and_may_change_its_state(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, state_codec="json")
    sessions.enqueue_many(db, ["a", "b", "c"], session="Ann")

    async def count(lease: SessionLease, call_next: Next) -> Any:
        await call_next(lease)
        return NewState((lease.state or 0) + 1)

    assert Consumer(sessions, lambda lease: None, middleware=[count]).drain(db).acked == 3
    assert sessions.state(db, "Ann") == 3


def test_its_result_is_stored(db: Any, leases: Leases) -> None:
    results = Results(leases)
    completion = results.enqueue(db, "a")

    async def louder(lease: Lease, call_next: Next) -> Any:
        return (await call_next(lease)).upper()

    Consumer(leases, lambda lease: lease.value, middleware=[louder]).drain(db)

    assert completion.wait(0) == "A"


# --- the next attempt


def test_retry_in_says_when_the_next_attempt_is(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock, backoff=constant(1_000), max_attempts=3)
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        raise RetryIn(7, "busy")

    report = Consumer(leases, handle).drain(db)

    [delayed] = leases.browse(db, state="delayed")
    assert (report.failed, delayed.visible_at, delayed.error) == (1, clock() + 7, "busy")


def test_a_drain_ends_though_each_failure_says_try_at_once(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        raise RetryIn(0)

    assert Consumer(leases, handle).drain(db).failed == 1


@pytest.mark.parametrize("max_attempts", [None, 5])
def test_give_up_makes_a_dead_letter_at_once(db: Any, queue: Queue, max_attempts: int | None) -> None:
    leases = Leases(queue, max_attempts=max_attempts)
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        try:
            raise KeyError("no customer")
        except KeyError as error:
            raise GiveUp from error

    report = Consumer(leases, handle).drain(db)

    [dead] = leases.dead.browse(db)
    assert (report.failed, report.dead, dead.error, dead.attempt) == (1, 1, "KeyError: 'no customer'", 1)


def test_give_up_in_a_session_makes_a_dead_letter_and_the_session_goes_on(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue_many(db, ["bad", "good"], session="Ann")
    seen = []

    def handle(lease: SessionLease) -> None:
        seen.append(lease.value)
        if lease.value == "bad":
            raise GiveUp("never")

    report = Consumer(sessions, handle).drain(db)

    assert (seen, report.dead, report.acked) == (["bad", "good"], 1, 1)


def test_the_last_attempt_may_be_told_by_hand(db: Any, leases: Leases, space: Subspace) -> None:
    leases.enqueue_many(db, ["a", "b"])
    one, other = leases.lease_many(db)
    assert leases.nack(db, one, last=True, delay=5) is Disposition.dead
    assert leases.nack_many(db, [other], last=True) == [Disposition.dead]
    sessions = Sessions(Queue(beside(space, "s"), codec="str"))
    sessions.enqueue(db, "c", session="Ann")
    lease = sessions.lease(db)
    assert lease is not None
    assert sessions.nack(db, lease, last=True) is Disposition.dead


# --- those that are shipped


async def hang(lease: Lease) -> None:
    await asyncio.Event().wait()


def test_a_time_limit_fails_the_attempt(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    report = Consumer(leases, hang, middleware=[TimeLimit(SHORT)]).drain(db)
    [delayed] = leases.browse(db, state="delayed")
    assert report.failed == 1
    assert delayed.error == f"TimeoutError: the handler took longer than its {SHORT} s"


def test_a_time_limit_in_a_thread_gives_the_item_back(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    going = threading.Event()
    report = Consumer(leases, lambda lease: going.wait(), middleware=[TimeLimit(SHORT)]).drain(db)
    going.set()
    assert report.failed == 1


def test_a_time_limit_may_depend_on_the_item(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "short")
    leases.enqueue(db, "long")

    async def handle(lease: Lease) -> None:
        if lease.value == "short":
            await asyncio.Event().wait()

    limit = TimeLimit(lambda lease: SHORT if lease.value == "short" else None)
    report = Consumer(leases, handle, middleware=[limit]).drain(db)
    assert report.acked == 1
    assert report.failed >= 1  # on a busy machine the next attempt is due before the drain ends


def test_the_nearest_limit_counts(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    report = Consumer(leases, hang, handler_timeout=60, middleware=[TimeLimit(50), TimeLimit(SHORT)]).drain(db)
    assert report.failed == 1


def test_a_rule_decides_by_the_type_of_the_exception(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock, max_attempts=9)
    errors = {
        "key": KeyError("k"),
        "index": IndexError("i"),
        "connection": ConnectionResetError("c"),
        "type": TypeError("t"),
        "own": RetryIn(3),
        "plain": OSError("o"),
    }
    leases.enqueue_many(db, list(errors))

    def handle(lease: Lease) -> None:
        raise errors[lease.value]

    rules = RetryBy(
        {LookupError: 5, IndexError: GiveUp, ConnectionError: constant(30), TypeError: Snooze(70), RetryIn: 1}
    )
    report = Consumer(leases, handle, middleware=[rules]).drain(db)

    waits = {item.value: round((item.visible_at or 0) - clock()) for item in leases.browse(db, state="delayed")}
    assert waits == {"key": 5, "connection": 30, "type": 70, "own": 3, "plain": 1}
    assert [(dead.value, dead.error) for dead in leases.dead.browse(db)] == [("index", "IndexError: i")]
    assert (report.failed, report.dead, report.snoozed) == (5, 1, 1)


def test_a_rule_may_give_up_after_some_attempts(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        raise ValueError(lease.attempt)

    rules = RetryBy({ValueError: lambda attempt: 1 if attempt < 3 else None})
    for _ in range(3):
        Consumer(leases, handle, middleware=[rules]).drain(db)
        clock.now += 10

    assert [dead.attempt for dead in leases.dead.browse(db)] == [3]


def test_a_line_is_logged_for_each_item_without_its_value(
    db: Any, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue_many(db, ["SECRET 1", "SECRET 2", "SECRET 3"])

    def handle(lease: Lease) -> None:
        if lease.value == "SECRET 2":
            raise LookupError("no")
        if lease.value == "SECRET 3":
            raise Snooze(5)

    with caplog.at_level(logging.INFO):
        Consumer(leases, handle, concurrency=1, consumer="printer", middleware=[LogItems()]).drain(db)

    records: list[Any] = [one for one in caplog.records if one.name == "fdbqueue.layers.middleware"]
    assert [one.outcome for one in records] == ["returned", "failed", "snoozed"]
    assert {one.consumer for one in records} == {"printer"}
    assert "SECRET" not in caplog.text
    assert all("SECRET" not in repr(vars(one)) for one in records)


def test_a_value_is_logged_if_it_is_asked_for(db: Any, leases: Leases, caplog: pytest.LogCaptureFixture) -> None:
    leases.enqueue(db, "SECRET")
    logger = logging.getLogger("shop")
    with caplog.at_level(logging.DEBUG):
        Consumer(leases, print, middleware=[LogItems(logger, level=logging.DEBUG, values=True)]).drain(db)
    record: Any
    [record] = [one for one in caplog.records if one.name == "shop"]
    assert (record.value, record.levelno) == ("'SECRET'", logging.DEBUG)


def test_what_a_handler_logs_has_the_items_fields(db: Any, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, "a", session=("shop", 7))
    logger = logging.getLogger("shop")
    caplog.handler.addFilter(ItemFields())
    caplog.set_level(logging.INFO)

    def handle(lease: SessionLease) -> None:
        logger.info("working")

    Consumer(sessions, handle, consumer="printer", middleware=[LogItems()]).drain(db)
    logger.info("idle")

    inside: Any = next(one for one in caplog.records if one.getMessage() == "working")
    outside: Any = next(one for one in caplog.records if one.getMessage() == "idle")
    assert (inside.attempt, inside.consumer, inside.session) == (1, "printer", '["shop", 7]')
    assert (outside.queue, outside.session) == ("", "")


def test_the_consumers_own_warnings_have_the_fields(db: Any, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases(queue)
    position = leases.enqueue(db, "a")

    def handle(lease: Lease) -> None:
        raise LookupError("no")

    Consumer(leases, handle, consumer="printer").drain(db)

    record: Any
    [record] = [one for one in caplog.records if one.name == "fdbqueue.layers.consumer"]
    assert (record.position, record.attempt, record.consumer) == (position.text, 1, "printer")
    assert record.session == ""
