"""The plugin for users' own tests: each fixture in a project of its own, as a user has it."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue.layers import Consumer, Lease, Leases, Results, Sessions, StagedQueue
from fdbqueue.testing import Clock, Crash, Faults, run_due


def test_the_database_is_empty_and_in_memory(fdbqueue_db: fdbqueue.Database) -> None:
    assert not fdbqueue.queues(fdbqueue_db)
    assert repr(fdbqueue_db) == "<Database memory:>"


@pytest.mark.parametrize("code", [1007, 1020, 1021, 1031])
def test_a_failed_commit_is_tried_again(fdbqueue_db: fdbqueue.Database, fdbqueue_faults: Faults, code: int) -> None:
    orders = fdbqueue.Queue("orders", codec="str")
    fdbqueue_faults.fail_commit(code, times=1 if code == 1031 else 2)
    if code == 1031:
        with pytest.raises(fdbqueue.FDBError):
            orders.enqueue(fdbqueue_db, "a cup")
        return
    orders.enqueue(fdbqueue_db, "a cup")
    assert (orders.stats(fdbqueue_db).available, fdbqueue_faults.happened) == (1, 2)


def test_an_unknown_result_that_took_effect_is_not_repeated(
    fdbqueue_db: fdbqueue.Database, fdbqueue_faults: Faults
) -> None:
    orders = StagedQueue(fdbqueue.Queue("orders", codec="str"))
    fdbqueue_faults.fail_commit(1021, after=True)
    orders.enqueue(fdbqueue_db, "a cup")
    assert [item.value for item in orders.queue.browse(fdbqueue_db)] == ["a cup"]


def test_a_fault_in_a_callers_own_transaction(fdbqueue_db: fdbqueue.Database, fdbqueue_faults: Faults) -> None:
    orders = fdbqueue.Queue("orders", codec="str")
    runs: list[int] = []

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction) -> None:
        runs.append(1)
        orders.enqueue(tr, "a cup")

    fdbqueue_faults.fail_commit(skip=1)
    buy(fdbqueue_db)
    buy(fdbqueue_db)
    assert len(runs) == 3
    assert orders.stats(fdbqueue_db).available == 2


@pytest.mark.parametrize("after", [True, False])
def test_a_crash_leaves_what_was_committed(
    fdbqueue_db: fdbqueue.Database, fdbqueue_faults: Faults, *, after: bool
) -> None:
    orders = fdbqueue.Queue("orders", codec="str")
    fdbqueue_faults.crash(after=after)
    with pytest.raises(Crash):
        orders.enqueue(fdbqueue_db, "a cup")
    assert (orders.peek(fdbqueue_db) is not None) == after


async def _enqueue(orders: fdbqueue.Queue[str], db: fdbqueue.Database) -> None:
    await orders.enqueue.aio(db, "a cup")


def test_a_fault_in_an_event_loop(fdbqueue_db: fdbqueue.Database, fdbqueue_faults: Faults) -> None:
    import asyncio

    orders = fdbqueue.Queue("orders", codec="str")
    fdbqueue_faults.fail_commit(1021, after=True)
    asyncio.run(_enqueue(orders, fdbqueue_db))
    assert orders.stats(fdbqueue_db).available == 1


def test_a_fault_that_no_commit_meets_is_told(fdbqueue_db: fdbqueue.Database) -> None:
    faults, orders = Faults(fdbqueue_db), fdbqueue.Queue("orders", codec="str")
    faults.fail_commit(1021, after=True, skip=1)
    orders.enqueue(fdbqueue_db, "a cup")
    with pytest.raises(AssertionError, match=r"no commit met: fail_commit\(1021\) after the commit"):
        faults.check()
    orders.enqueue(fdbqueue_db, "a cup")
    faults.check()


@pytest.mark.parametrize("wrong", [{"code": 1}, {"after": True}, {"times": 0}, {"skip": -1}])
def test_a_wrong_fault_is_refused(fdbqueue_faults: Faults, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"commit|times"):
        fdbqueue_faults.fail_commit(**wrong)


@pytest.mark.parametrize("wrong", [{"code": 1021, "after": "no"}, {"times": None}, {"skip": "x"}, {"times": 1.5}])
def test_a_fault_of_a_wrong_type_is_refused(fdbqueue_faults: Faults, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="after is a bool"):
        fdbqueue_faults.fail_commit(**wrong)


@pytest.mark.engines("file", "cluster")
def test_faults_are_for_a_database_in_memory(db: Any) -> None:
    with pytest.raises(TypeError, match="memory:"):
        Faults(db)


def test_the_clock_makes_delays_leases_and_lives_end(fdbqueue_db: fdbqueue.Database, fdbqueue_clock: Clock) -> None:
    begun = fdbqueue_clock.now
    mails = Leases(fdbqueue.Queue("mails", codec="str"))
    seen: list[str] = []

    def send(lease: Lease) -> None:
        seen.append(lease.value)

    mails.enqueue(fdbqueue_db, "short", ttl=5)
    mails.enqueue(fdbqueue_db, "tomorrow", delay=86_400)
    mails.enqueue(fdbqueue_db, "crashed")
    fdbqueue_clock.move(6)
    assert mails.lease(fdbqueue_db, duration=30)
    consumer = Consumer(mails, send)
    assert run_due(fdbqueue_db, consumer) == 0
    fdbqueue_clock.move(31)
    assert run_due(fdbqueue_db, consumer) == 1
    fdbqueue_clock.move_to(begun + 86_401)
    assert run_due(fdbqueue_db, consumer) == 1
    assert seen == ["crashed", "tomorrow"]
    assert time.time() == begun + 86_401
    fdbqueue_clock.move_to("2026-03-29 02:30")
    assert datetime.datetime.now(datetime.UTC).month == 3


def test_the_clock_lets_waits_end_after_it_was_moved_and_after_a_fault(
    fdbqueue_db: fdbqueue.Database, fdbqueue_clock: Clock, fdbqueue_faults: Faults
) -> None:
    orders = Leases(fdbqueue.Queue("orders", codec="str"))
    began = time.monotonic()
    fdbqueue_faults.fail_commit(1021, after=True)  # the retry waits, by the monotonic clock
    orders.enqueue(fdbqueue_db, "teapot")
    fdbqueue_clock.move(86_400)
    assert orders.lease(fdbqueue_db) is not None
    assert 0 < time.monotonic() - began < 3_600


@pytest.mark.parametrize("seconds", [None, "1", float("nan"), float("inf")])
def test_the_clock_moves_by_seconds(fdbqueue_clock: Clock, seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="seconds is"):
        fdbqueue_clock.move(seconds)


def test_run_due_runs_what_follows_in_another_queue(fdbqueue_db: fdbqueue.Database, fdbqueue_clock: Clock) -> None:
    bills = Sessions(fdbqueue.Queue("bills", codec="str"))
    orders = Results(Leases(fdbqueue.Queue("orders", codec="str")), type=int)

    def bill(lease: Any) -> None:
        bills.enqueue(fdbqueue_db, lease.value, session="Ann")

    pays: list[str] = []
    consumers = [Consumer(bills, lambda lease: pays.append(lease.value)), Consumer(orders, bill)]
    orders.enqueue(fdbqueue_db, "a cup")
    assert run_due(fdbqueue_db, *consumers) == 2
    assert pays == ["a cup"]


def test_run_due_wants_consumers(fdbqueue_db: fdbqueue.Database) -> None:
    for wrong in ([], [None], [fdbqueue.Queue("orders")]):
        with pytest.raises(TypeError, match="run_due takes"):
            run_due(fdbqueue_db, *wrong)
