"""Deadlines: each missed one is told once, over any number of monitors, and those that are near before."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers.smart import MessageType, Monitor, Replace, SmartQueue
from fdbqueue.layers.smart._deadlines import Deadline, Deadlines
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.smart import contents, rows_of, smart_queue


def due_in(seconds: float) -> MessageType:
    return MessageType("call", deadline=seconds, expires=lambda message: message.get("until"))


@pytest.fixture
def smart(space: Subspace, clock: Clock) -> SmartQueue:
    return smart_queue(space, due_in(30.0), clock=clock)


def call(n: int, **more: Any) -> dict[str, Any]:
    return {"type": "call", "n": n, **more}


def numbers(told: list[Deadline]) -> list[Any]:
    return [deadline.message["n"] for deadline in told]


def test_a_missed_deadline_is_claimed_once_and_the_item_stays(db: Any, smart: SmartQueue, clock: Clock) -> None:
    deadlines = Deadlines(smart)
    smart.enqueue(db, call(1))
    clock.now += 29
    smart.enqueue(db, call(2))
    assert deadlines.claim(db) == []
    clock.now += 1
    [missed] = deadlines.claim(db)
    assert (missed.message["n"], missed.state, missed.at, missed.missed) == (1, "available", clock.now, True)
    assert deadlines.claim(db) == []
    assert [message["n"] for message in contents(smart, db)] == [1, 2]


def test_near_deadlines_are_reported_once_and_again_when_missed(db: Any, smart: SmartQueue, clock: Clock) -> None:
    deadlines = Deadlines(smart)
    smart.enqueue_many(db, [call(1), call(2)])
    clock.now += 25
    assert deadlines.claim(db, lead=4) == []
    assert [deadline.missed for deadline in deadlines.claim(db, lead=5, limit=1)] == [False]
    assert numbers(deadlines.claim(db, lead=5)) == [2]
    clock.now += 5
    assert numbers(deadlines.claim(db)) == [1, 2]
    smart.enqueue(db, call(3))
    clock.now += 30
    assert numbers(deadlines.claim(db)) == [3]
    assert deadlines.claim(db, lead=5) == [], "what is missed is not near any more"


def test_a_deadline_names_the_state_of_its_item(db: Any, smart: SmartQueue, clock: Clock) -> None:
    smart.enqueue(db, call(1))
    smart.leases.lease(db, duration=100)
    smart.enqueue(db, call(2), delay=100)
    clock.now += 31
    assert [deadline.state for deadline in Deadlines(smart).claim(db)] == ["leased", "delayed"]


@pytest.mark.parametrize("way", ["dequeue", "ack", "expire"])
def test_an_item_that_has_left_misses_nothing(db: Any, smart: SmartQueue, clock: Clock, way: str) -> None:
    smart.enqueue(db, call(1, until=clock.now + 10))
    if way == "dequeue":
        smart.queue.dequeue(db)
    elif way == "ack":
        lease = smart.leases.lease(db)
        assert lease is not None
        smart.leases.ack(db, lease)
    else:
        clock.now += 11
        assert smart.dequeue(db) is None
    clock.now += 31
    assert Deadlines(smart).claim(db) == []
    assert smart.check(db).ok


def test_a_replaced_message_has_a_deadline_of_its_own(db: Any, space: Subspace, clock: Clock) -> None:
    given = MessageType("call", check=lambda queued, new: Replace(new), deadline=lambda message: message.get("at"))
    smart = smart_queue(space, given, clock=clock)
    for at in (10, 20, None, 5):
        smart.enqueue(db, call(1, at=at and clock.now + at))
        assert smart.check(db).ok
    clock.now += 6
    assert len(Deadlines(smart).claim(db)) == 1
    clock.now += 100
    assert Deadlines(smart).claim(db) == []


def test_a_reported_deadline_is_not_reported_again_after_an_equal_replacement(
    db: Any, space: Subspace, clock: Clock
) -> None:
    given = MessageType("call", check=lambda queued, new: Replace(new), deadline=lambda message: message["at"])
    smart = smart_queue(space, given, clock=clock)
    at = clock.now + 10
    smart.enqueue(db, call(1, at=at))
    clock.now += 11
    assert numbers(Deadlines(smart).claim(db)) == [1]
    assert smart.enqueue(db, call(2, at=at)).rewritten is not None
    assert Deadlines(smart).claim(db) == []
    smart.enqueue(db, call(3, at=at + 1))
    assert numbers(Deadlines(smart).claim(db)) == [3]
    assert smart.check(db).ok


def test_of_two_claims_and_of_a_claim_and_a_move_of_the_item_at_once_one_conflicts(
    db: Any, smart: SmartQueue, clock: Clock
) -> None:
    deadlines = Deadlines(smart)
    takes: tuple[Callable[[Any], Any], ...] = (deadlines.claim, smart.queue.dequeue, smart.leases.lease)
    for other in takes:
        smart.enqueue(db, call(1))
        clock.now += 31
        first, second = db.create_transaction(), db.create_transaction()
        deadlines.claim(second)
        other(first)
        assert not conflicts(first)
        assert conflicts(second)
        smart.queue.clear(db)


def test_a_claim_composes_with_what_its_caller_writes(
    db: Any, smart: SmartQueue, clock: Clock, space: Subspace
) -> None:
    smart.enqueue(db, call(1))
    clock.now += 31
    tr = db.create_transaction()
    [missed] = Deadlines(smart).claim(tr)
    tr.add(space.pack(("missed", missed.message["n"])), (1).to_bytes(8, "little"))
    del tr
    assert len(Deadlines(smart).claim(db)) == 1, "nothing of the other took effect"


@pytest.mark.parametrize("fault", [("before", 1021), ("after", 1021), ("before", 1020)])
def test_a_handler_is_called_once_under_commit_faults(db: Any, smart: SmartQueue, clock: Clock, fault: Fault) -> None:
    smart.enqueue_many(db, [call(n) for n in range(3)])
    clock.now += 31
    told: list[Deadline] = []
    report = Monitor(Deadlines(smart), told.append).sweep(FaultyDatabase.failing_at(db, {0, 2, 4}, fault))
    assert (numbers(told), report.missed) == ([0, 1, 2], 3)
    Monitor(Deadlines(smart), told.append).sweep(db)
    clock.now += 100
    Monitor(Deadlines(smart), told.append).sweep(db)
    assert len(told) == 3
    assert not list(db.get_range_startswith(smart.queue.layout.missed.key()))


def test_a_handler_that_fails_is_called_again_after_a_while_by_any_monitor(
    db: Any, smart: SmartQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    smart.enqueue(db, call(1))
    clock.now += 31

    def broken(deadline: Deadline) -> None:
        raise RuntimeError("no connection")

    with caplog.at_level(logging.ERROR):
        assert Monitor(Deadlines(smart), broken, claim_seconds=10).sweep(db).errors == 1
    assert "no connection" in caplog.text
    told: list[Deadline] = []
    other = Monitor(Deadlines(smart), told.append, claim_seconds=10)
    other.sweep(db)
    assert told == []
    smart.queue.dequeue(db)
    clock.now += 11
    other.sweep(db)
    assert [(deadline.state, deadline.message) for deadline in told] == [("gone", None)]
    clock.now += 11
    other.sweep(db)
    assert len(told) == 1


@pytest.mark.slow
def test_many_monitors_report_each_deadline_once(db: Any, smart: SmartQueue, clock: Clock) -> None:
    smart.enqueue_many(db, [call(n) for n in range(250)])
    clock.now += 31
    told: list[Deadline] = []
    monitors = [threading.Thread(target=Monitor(Deadlines(smart), told.append).sweep, args=(db,)) for _ in range(4)]
    for monitor in monitors:
        monitor.start()
    for monitor in monitors:
        monitor.join()
    assert sorted(numbers(told)) == list(range(250))


def test_slow_handlers_are_called_once_each_while_another_monitor_runs(
    db: Any, smart: SmartQueue, clock: Clock
) -> None:
    smart.enqueue_many(db, [call(n) for n in range(6)])
    clock.now += 31
    told: list[Deadline] = []
    other = Monitor(Deadlines(smart), told.append, claim_seconds=10)

    def slow(deadline: Deadline) -> None:
        told.append(deadline)
        clock.now += 9
        if len(told) > 1:
            other.sweep(db)

    Monitor(Deadlines(smart), slow, claim_seconds=10).sweep(db)
    clock.now += 100
    other.sweep(db)
    assert sorted(numbers(told)) == list(range(6))


def test_a_handler_that_stops_its_monitor_is_not_told_again(db: Any, smart: SmartQueue, clock: Clock) -> None:
    smart.enqueue_many(db, [call(n) for n in range(3)])
    clock.now += 31
    told: list[Deadline] = []

    def last(deadline: Deadline) -> None:
        told.append(deadline)
        monitor.stop()

    monitor = Monitor(Deadlines(smart), last)
    monitor.sweep(db)
    assert numbers(told) == [0]
    clock.now += 1_000
    Monitor(Deadlines(smart), told.append).sweep(db)
    assert numbers(told) == [0, 1, 2]


def test_a_sweep_does_not_repeat_a_handler_that_fails_for_longer_than_its_claim(
    db: Any, smart: SmartQueue, clock: Clock
) -> None:
    smart.enqueue_many(db, [call(n) for n in range(2)])
    clock.now += 31
    told: list[Deadline] = []

    def fails(deadline: Deadline) -> None:
        told.append(deadline)
        clock.now += 11
        if len(told) < 10:
            raise TimeoutError

    monitor = Monitor(Deadlines(smart), fails, claim_seconds=10)
    assert monitor.sweep(db).errors == 2
    assert monitor.sweep(db).errors == 4, "it is told again by the next"


async def hang_up(deadline: Deadline) -> None:
    """End the call, some time."""


def test_an_async_handler_is_called_again(
    db: Any, smart: SmartQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    smart.enqueue(db, call(1))
    clock.now += 31
    with caplog.at_level(logging.ERROR):
        report = Monitor(Deadlines(smart), lambda deadline: hang_up(deadline), claim_seconds=10).sweep(db)
    assert (report.missed, report.errors) == (0, 1)
    assert "a coroutine, which is not awaited" in caplog.text
    told: list[Deadline] = []
    clock.now += 11
    Monitor(Deadlines(smart), told.append).sweep(db)
    assert numbers(told) == [1]


def test_a_monitor_is_woken_by_a_deadline_that_is_set_and_by_the_time(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, due_in(0.05), clock=time.time)
    told: list[Deadline] = []
    warned: list[Deadline] = []

    def handler(deadline: Deadline) -> None:
        told.append(deadline)
        if len(told) == 2:
            monitor.stop()

    monitor = Monitor(Deadlines(smart), handler, near=warned.append, lead=0.02)
    running = threading.Thread(target=monitor.run, args=(db,))
    running.start()
    smart.enqueue(db, call(1))
    while not told:
        running.join(0.01)
    smart.enqueue(db, call(2))
    running.join()
    assert numbers(told) == [1, 2]
    assert all(deadline.at <= time.time() for deadline in told)
    assert monitor.report.near == len(warned) <= 2


@pytest.mark.parametrize("fault", [("before", 1007), ("before", 1020), ("before", 1021)])
def test_a_monitor_goes_on_when_the_database_says_try_again(db: Any, space: Subspace, fault: Fault) -> None:
    smart = smart_queue(space, due_in(0.05), clock=time.time)
    smart.enqueue(db, call(1))
    monitor = Monitor(Deadlines(smart), lambda deadline: monitor.stop())
    assert monitor.run(FaultyDatabase.failing_at(db, {0, 2}, fault)).missed == 1


def test_a_monitor_is_stopped_from_outside_and_runs_in_an_event_loop(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, due_in(0.05), clock=time.time)

    async def main() -> None:
        told = asyncio.Event()
        monitor = Monitor(Deadlines(smart), lambda deadline: told.set())
        running = asyncio.create_task(monitor.run.aio(db))
        await smart.enqueue.aio(db, call(1))
        await told.wait()
        monitor.stop()
        assert (await running).missed == 1

    asyncio.run(main())


def test_a_reported_deadline_leaves_no_key_behind(db: Any, smart: SmartQueue, clock: Clock) -> None:
    smart.enqueue(db, call(1))
    clock.now += 31
    Monitor(Deadlines(smart), lambda deadline: None).sweep(db)
    smart.dequeue(db)
    left = {smart.queue.layout.space.unpack(key)[0] for key, _ in rows_of(smart, db)}
    assert left <= {"count", "once", "alarm", True}  # under True it says that it is a smart queue
