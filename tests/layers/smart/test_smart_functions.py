"""The functions of message types get the care of a check; a predicate is asked at use; what can't work is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
import time
from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest

from fdbqueue import CheckFailed, CodecError
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Limit, Messages, MessageType, SmartQueue
from fdbqueue.layers.smart.types import Answer, Decision, Replace
from fdbqueue.layers.staged import RelaxedQueue, StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.smart import contents, enqueue_unchecked, rows_of, smart_queue

Data = dict[str, Any]


def loop(message: Data) -> NoReturn:
    while True:
        pass


def fail(message: Data) -> NoReturn:
    raise ZeroDivisionError("broken")


def later(message: Data) -> Any:
    """Return a coroutine, though it is no coroutine function."""

    async def late() -> int:
        return 1

    return late()


FAULTS: dict[str, tuple[Callable[[Data], Any], str]] = {
    "loops": (loop, "did not return within 0.2 seconds"),
    "raises": (fail, "raised ZeroDivisionError: broken"),
    "returns a coroutine": (later, "coroutine"),
}
NO_TIMES: dict[str, Any] = {"a text": "soon", "NaN": math.nan, "a list": [1]}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("function", ["key", "expires", "deadline", "confirms"])
def test_a_function_that_fails_is_named_and_nothing_is_written(
    db: Any, space: Subspace, function: str, fault: str
) -> None:
    broken, said = FAULTS[fault]
    given = dataclasses.replace(MessageType("x", sees=NOTHING), **cast(Any, {function: broken}))
    seconds = 0.2 if fault == "loops" else 600.0
    smart = smart_queue(space, given, MessageType("y", sees=NOTHING), check_seconds=seconds)
    smart.enqueue(db, {"type": "y"})
    before = rows_of(smart, db)
    calls: tuple[Callable[[], object], ...] = (
        lambda: smart.enqueue(db, {"type": "x"}),
        lambda: smart.enqueue(db.create_transaction(), {"type": "x"}),
        lambda: smart.enqueue_many(db, [{"type": "x"}]),
        lambda: asyncio.run(smart.enqueue.aio(db, {"type": "x"})),
    )
    for call in calls:
        with pytest.raises(CheckFailed, match=f"'{function}' of the message type 'x' failed: it .*{said}") as caught:
            call()
        assert (caught.value.type, caught.value.position) == ("x", None)
    assert [row for row in rows_of(smart, db) if b"once" not in row[0]] == [
        row for row in before if b"once" not in row[0]
    ]


@pytest.mark.parametrize("given", NO_TIMES)
@pytest.mark.parametrize("function", ["expires", "deadline"])
def test_a_bad_time_is_refused(db: Any, space: Subspace, function: str, given: str) -> None:
    rule: dict[str, Any] = {function: lambda message: NO_TIMES[given]}
    smart = smart_queue(space, dataclasses.replace(MessageType("x"), **rule))
    with pytest.raises(CheckFailed, match=f"'{function}' .* and not a time of the clock in seconds"):
        smart.enqueue(db, {"type": "x"})
    assert smart.queue.is_empty(db)


def test_a_deadline_is_no_predicate(db: Any, space: Subspace) -> None:
    with pytest.raises(CheckFailed, match=r"'deadline' .* returned True"):
        smart_queue(space, MessageType("x", deadline=lambda message: True)).enqueue(db, {"type": "x"})


@pytest.mark.parametrize("at", [math.inf, 1e300])
def test_a_time_beyond_all_times_is_never_over(db: Any, space: Subspace, at: float) -> None:
    smart = smart_queue(space, MessageType("x", expires=lambda message: at, deadline=lambda message: at))
    smart.enqueue(db, {"type": "x"})
    assert len(smart.dequeue_many(db)) == 1


@pytest.mark.parametrize("function", ["key", "expires", "deadline"])
def test_a_function_that_fails_of_what_an_item_would_become_is_named(db: Any, space: Subspace, function: str) -> None:
    def only_once(message: Data) -> Any:
        if message["n"] == 2:
            raise ZeroDivisionError("broken")
        return 4e12

    def check(queued: Data, new: Data) -> Answer:
        return Replace({"type": "x", "n": 2})

    given = dataclasses.replace(MessageType("x", check=check, sees=OWN_TYPE), **cast(Any, {function: only_once}))
    smart = smart_queue(space, given)
    smart.enqueue(db, {"type": "x", "n": 1})
    with pytest.raises(CheckFailed, match=f"{function}.* failed.*ZeroDivisionError"):
        smart.enqueue(db, {"type": "x", "n": 3})
    assert [message["n"] for message in contents(smart, db)] == [1]


def test_check_reports_an_item_with_a_failing_key_function(db: Any, space: Subspace) -> None:
    smart_queue(space, MessageType("x", key=lambda message: 1)).enqueue(db, {"type": "x"})
    told = smart_queue(space, MessageType("x", key=fail)).check(db).problems
    assert any("'key' of the message type 'x' failed" in problem for problem in told)


def test_a_smart_queues_items_can_be_taken_in_relaxed_order(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue_many(db, [{"type": "x", "n": n} for n in range(5)])
    relaxed = RelaxedQueue(smart.queue, window=3)
    taken = [item.value["n"] for _ in range(5) if (item := relaxed.dequeue(db)) is not None]
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert contents(smart, db) == []


# Predicates.


OUTDATED: set[int] = set()


def is_outdated(message: Data) -> bool:
    """Say whether a message is outdated, by what the test has put there."""
    return message["n"] in OUTDATED


@pytest.fixture
def mortal(space: Subspace, clock: Clock) -> SmartQueue:
    """A smart queue whose items are outdated when a test says so."""
    OUTDATED.clear()
    return smart_queue(space, MessageType("x", expires=is_outdated, sees=OWN_TYPE), clock=clock)


def fill(smart: SmartQueue, db: Any, amount: int = 4) -> None:
    smart.enqueue_many(db, [{"type": "x", "n": n} for n in range(amount)])


TAKERS: dict[str, Callable[[SmartQueue, Any], Any]] = {
    "SmartQueue.dequeue": lambda smart, db: smart.dequeue(db),
    "SmartQueue.dequeue_many": lambda smart, db: next(iter(smart.dequeue_many(db, limit=1)), None),
    "Leases.lease": lambda smart, db: smart.leases.lease(db),
    "Leases.lease of another object": lambda smart, db: Leases(smart.queue).lease(db),
    "StagedQueue.dequeue": lambda smart, db: StagedQueue(smart.leases).dequeue(db),
    "StagedQueue.lease": lambda smart, db: StagedQueue(smart.leases).lease(db),
    "RelaxedQueue.dequeue": lambda smart, db: RelaxedQueue(smart.queue, window=1).dequeue(db),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_every_take_asks_the_predicate_first(db: Any, mortal: SmartQueue, taker: str) -> None:
    fill(mortal, db)
    OUTDATED.update({0, 1, 3})
    item = TAKERS[taker](mortal, db)
    assert item.value["n"] == 2
    assert TAKERS[taker](mortal, db) is None
    assert mortal.queue.stats(db).expired == 3
    assert mortal.check(db).problems == ()


def test_a_predicate_runs_again_when_an_item_is_given_back(db: Any, mortal: SmartQueue) -> None:
    fill(mortal, db, 2)
    lease = mortal.leases.lease(db)
    assert lease is not None
    OUTDATED.add(0)
    mortal.leases.nack(db, lease)
    item = mortal.dequeue(db)
    assert item is not None
    assert item.value["n"] == 1


def test_a_consumer_and_a_subscription_get_nothing_outdated(db: Any, mortal: SmartQueue) -> None:
    wants = Subscriptions(mortal.leases).subscribe(db, "all")
    fill(mortal, db)
    OUTDATED.update({0, 2})
    lease = wants.lease(db)
    assert lease is not None
    assert lease.value["n"] == 1
    wants.ack(db, lease)
    handled: list[int] = []
    Consumer(mortal.leases, lambda lease: handled.append(lease.value["n"])).drain(db)
    assert handled == [3]
    assert mortal.check(db).problems == ()


def test_staged_calls_that_foresee_or_meet_others_give_nothing_outdated(db: Any, mortal: SmartQueue) -> None:
    fill(mortal, db, 60)
    OUTDATED.update(range(0, 60, 3))
    crowd = [StagedQueue(mortal.leases) for _ in range(3)]

    async def some(staged: StagedQueue) -> list[int]:
        taken = []
        while (item := await staged.dequeue.aio(db)) is not None:
            taken.append(item.value["n"])
        return taken

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(some(staged) for staged in crowd for _ in range(2)))

    taken = [number for one in asyncio.run(main()) for number in one]
    assert sorted(taken) == [n for n in range(60) if n % 3]
    assert mortal.check(db).problems == ()


def test_a_prefetched_item_is_not_taken_when_it_is_outdated(db: Any, mortal: SmartQueue) -> None:
    fill(mortal, db, 20)
    staged = StagedQueue(mortal.leases)
    taken = [-1]
    while (item := staged.dequeue(db)) is not None:
        taken.append(item.value["n"])
        if taken[-1] >= 6:
            OUTDATED.add(taken[-1] + 1)  # it was read ahead, perhaps
    assert taken == [-1, 0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18]
    assert mortal.check(db).problems == ()


def test_a_new_message_removes_the_outdated_items_in_its_scope(db: Any, space: Subspace) -> None:
    OUTDATED.clear()
    asked = []

    def check(queued: Data, new: Data) -> Answer:
        asked.append(queued["n"])
        return Decision.dont_care

    smart = smart_queue(space, MessageType("x", check=check, expires=is_outdated, sees=OWN_TYPE))
    fill(smart, db)
    OUTDATED.update({1, 3})
    asked.clear()
    outcome = smart.enqueue(db, {"type": "x", "n": 9})
    assert asked == [0, 2]
    assert len(outcome.expired) == 2
    assert [message["n"] for message in contents(smart, db)] == [0, 2, 9]


def test_a_type_without_a_check_is_asked_whether_it_is_outdated_by_those_that_see_it(
    db: Any, mortal: SmartQueue
) -> None:
    fill(mortal, db, 2)
    OUTDATED.add(0)
    assert len(mortal.enqueue(db, {"type": "x", "n": 5}).expired) == 1


def test_a_leased_item_is_not_asked_and_a_limit_counts_until_an_item_is_met(db: Any, space: Subspace) -> None:
    OUTDATED.clear()
    given = MessageType("x", expires=is_outdated, sees=NOTHING, limit=Limit(2, "drop newest"))
    smart = smart_queue(space, given)
    fill(smart, db, 2)
    lease = smart.leases.lease(db)
    OUTDATED.update({0, 1})
    assert smart.enqueue(db, {"type": "x", "n": 7}).full
    sees_all = smart_queue(space, dataclasses.replace(given, sees=EVERYTHING))
    outcome = sees_all.enqueue(db, {"type": "x", "n": 7})
    assert (outcome.full, len(outcome.expired)) == (False, 1)
    assert lease is not None
    smart.leases.ack(db, lease)
    assert [message["n"] for message in contents(smart, db)] == [7]


def test_a_recipient_fetches_nothing_outdated(db: Any, mortal: SmartQueue) -> None:
    mortal.resend.register(db, "B")
    fill(mortal, db)
    OUTDATED.update({0, 2})
    assert [copy.value["n"] for copy in mortal.resend.fetch_many(db, "B")] == [1, 3]
    assert mortal.queue.stats(db).expired == 2


def test_a_predicate_can_take_the_time_of_the_queues_clock(db: Any, space: Subspace, clock: Clock) -> None:
    given = MessageType("x", expires=lambda message, now: now > message["until"])
    smart = smart_queue(space, given, clock=clock)
    smart.enqueue(db, {"type": "x", "until": clock.now + 10})
    smart.enqueue(db, {"type": "x", "until": clock.now + 99})
    clock.now += 11
    item = smart.dequeue(db)
    assert item is not None
    assert item.value["until"] == clock.now + 88


def test_a_function_of_the_message_that_gives_times_is_asked_once(db: Any, space: Subspace, clock: Clock) -> None:
    calls = []

    def until(message: Data) -> float:
        calls.append(message["n"])
        return clock.now + 10

    smart = smart_queue(space, MessageType("x", expires=until), clock=clock)
    fill(smart, db, 2)
    assert len(smart.dequeue_many(db)) == 2
    assert calls == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["loops", "raises"])
def test_a_predicate_that_fails_at_a_take_is_named_and_the_item_stays(db: Any, space: Subspace, fault: str) -> None:
    broken, said = FAULTS[fault]
    said = said.replace("0.2", "1.0")  # of whoever takes items without a smart queue's own limit
    fine = smart_queue(space, MessageType("x", expires=lambda message: False), check_seconds=600.0)
    fine.enqueue(db, {"type": "x", "n": 1})
    seconds = 0.2 if fault == "loops" else 600.0
    smart = smart_queue(space, MessageType("x", expires=broken), check_seconds=seconds)
    for taker in [TAKERS["Leases.lease"]] if fault == "loops" else TAKERS.values():
        with pytest.raises(CheckFailed, match=f"'expires' of the message type 'x' failed: it {said}.*stays") as caught:
            taker(smart, db)
        assert caught.value.position is not None
    with pytest.raises(CheckFailed, match=r"expires of 'x', for the item .* failed when it was asked"):
        smart_queue(space, MessageType("x", expires=broken), MessageType("y"), check_seconds=seconds).enqueue(
            db, {"type": "y"}
        )
    assert [message["n"] for message in contents(fine, db)] == [1]


def test_items_before_a_failing_predicate_can_be_taken(db: Any, space: Subspace) -> None:
    def some(message: Data) -> bool:
        return bool(1 / message["n"] < 0)

    smart = smart_queue(space, MessageType("x", expires=some))
    for n in (1, 2):
        smart.enqueue(db, {"type": "x", "n": n})
    enqueue_unchecked(smart, db, {"type": "x", "n": 0})
    assert len(smart.leases.lease_many(db)) == 2
    with pytest.raises(CheckFailed):
        smart.leases.lease_many(db)


def test_a_registry_with_a_predicate_can_be_pickled() -> None:
    messages: Messages = pickle.loads(pickle.dumps(Messages(MessageType("x", expires=is_outdated))))
    assert messages.is_over is not None
    assert Messages(MessageType("x", expires=5.0)).is_over is None


def test_functions_are_asked_once_for_each_message_and_not_for_each_attempt(db: Any, space: Subspace) -> None:
    calls = []

    def key(message: Data) -> int:
        calls.append(time.monotonic())
        return 1

    smart = smart_queue(space, MessageType("x", key=key, sees=OWN_KEY))
    smart.enqueue(db, {"type": "x"})
    assert len(calls) == 1


def test_a_key_that_can_not_be_stored_is_refused_as_ever(db: Any, space: Subspace) -> None:
    wrong: Any = {1: 2}
    with pytest.raises(CodecError, match="can't be stored"):
        smart_queue(space, MessageType("x", key=lambda message: wrong)).enqueue(db, {"type": "x"})
