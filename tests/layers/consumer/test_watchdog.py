"""The watchdog."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run_async
from fdbqueue.layers.common.waiting import Stop
from fdbqueue.layers.consumer import Watchdog
from fdbqueue.layers.leases import Disposition, Leases, Reclaimed
from tests.helpers.clock import Clock


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), max_attempts=2, clock=clock)


def test_expired_leases_are_given_back_and_the_hook_gets_their_consumers(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [b"1", b"2"])
    leases.lease(db, duration=10, consumer="printer 3")
    leases.lease(db, duration=20, consumer="printer 4")
    told: list[Reclaimed] = []
    watchdog = Watchdog(leases, hook=told.append)
    assert watchdog.sweep(db).leases == 0
    clock.now += 10
    assert watchdog.sweep(db).leases == 1
    assert [(found.consumer, found.fate, found.attempt) for found in told] == [("printer 3", Disposition.available, 1)]
    assert [item.value for item in leases.queue.browse(db)] == [b"1"]


def test_more_than_one_batch_is_swept_at_once_and_delays_and_lives_end_too(
    db: Any, leases: Leases, clock: Clock
) -> None:
    leases.enqueue_many(db, [b"x"] * 25, delay=5)
    leases.enqueue_many(db, [b"y"] * 7, ttl=5)
    leases.enqueue(db, b"z")
    clock.now += 5
    report = Watchdog(leases, batch=10).sweep(db)
    assert (report.delays, report.expired, report.leases) == (25, 7, 0)
    assert leases.stats(db).available == 26
    assert leases.check(db).ok


def test_a_hook_that_fails_is_logged_and_keeps_nothing_from_coming_back(
    db: Any, leases: Leases, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue_many(db, [b"1", b"2"])
    leases.lease_many(db, duration=1)
    clock.now += 2

    def fail(reclaimed: Reclaimed) -> None:
        raise LookupError("no such agent")

    with caplog.at_level(logging.ERROR):
        report = Watchdog(leases, hook=fail).sweep(db)
    assert (report.leases, report.hook_errors) == (2, 2)
    assert "no such agent" in caplog.text
    assert leases.stats(db).available == 2


def test_two_watchdogs_reclaim_each_item_once(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue_many(db, [b"x"] * 200)
    leases.lease_many(db, limit=200, duration=1)
    clock.now += 2
    watchdogs = [Watchdog(leases, batch=20) for _ in range(2)]
    threads = [threading.Thread(target=watchdog.sweep, args=(db,)) for watchdog in watchdogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(watchdog.report.leases for watchdog in watchdogs) == 200
    assert leases.stats(db).available == 200


def test_a_running_watchdog_reclaims_a_lease_when_its_time_has_come(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"x")
    watchdog = Watchdog(leases, hook=lambda reclaimed: watchdog.stop(), interval=30)
    leases.lease(db, duration=0.2)
    assert watchdog.run(db).leases == 1
    assert leases.stats(db).available == 1


def test_a_running_watchdog_ignores_a_key_that_is_no_timer(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    db[leases.layout.timers.pack(("none",))] = db[leases.layout.timers.key() + b"\x15\x01none"] = b""
    watchdog = Watchdog(leases, hook=lambda found: watchdog.stop(), interval=0.01)
    leases.enqueue(db, b"x")
    leases.lease(db, duration=0.05)
    assert watchdog.run(db).leases == 1


def test_a_watchdog_prints_what_it_is(leases: Leases) -> None:
    assert "interval=2" in repr(Watchdog(leases, interval=2))


def test_a_watchdog_runs_in_an_event_loop_until_another_task_stops_it(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))

    async def main() -> None:
        told = asyncio.Event()
        watchdog = Watchdog(leases, hook=lambda found: told.set(), interval=3_600)
        await leases.enqueue.aio(db, b"x")
        await leases.lease.aio(db, duration=0.05)
        running = asyncio.create_task(watchdog.run.aio(db))
        await told.wait()
        watchdog.stop()
        assert (await running).leases == 1

    asyncio.run(main())
    assert leases.stats(db).available == 1


async def restart(found: Reclaimed) -> None:
    """Restart the agent, some time."""


def test_an_async_hook_is_reported_as_failed(
    db: Any, leases: Leases, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    leases.enqueue(db, b"1")
    leases.lease(db, duration=1)
    clock.now += 2
    with caplog.at_level(logging.ERROR):
        report = Watchdog(leases, hook=lambda found: restart(found)).sweep(db)
    assert (report.leases, report.hook_errors) == (1, 1)
    assert "a coroutine, which is not awaited" in caplog.text


@pytest.mark.slow
def test_a_finished_rest_is_not_referenced() -> None:
    stop = Stop()
    loops = []

    async def rest() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await run_async(stop.rest([], 0.001))

    asyncio.run(rest())
    gc.collect()
    assert loops[0]() is None, "it may be one of a million"
