"""What the helpers of workers do with sessions: a watchdog ends their leases, and a cancelled lease ends silently."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import FDBError, Queue
from fdbqueue.engine.blocking import in_thread
from fdbqueue.layers import Gate, Results, Sessions, Watchdog
from tests.helpers.clock import Clock
from tests.helpers.sessions import assert_sound, fill, lease_of


@pytest.fixture
def sessions(queue: Queue, clock: Clock) -> Sessions:
    return Sessions(queue, max_attempts=1, consumer="printer 3", clock=clock)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_watchdog_gives_back_the_sessions_of_dead_workers_and_names_them(
    db: Any, sessions: Sessions, clock: Clock, wrapped: bool
) -> None:
    fill(sessions, db, "ann:1", "ann:2", "bob:1")
    lost = lease_of(sessions, db, duration=10)
    told: list[Any] = []
    clock.now += 11
    report = Watchdog(Results(sessions) if wrapped else sessions, hook=told.append).sweep(db)
    assert report.leases == 1
    assert [(one.session, one.position, one.consumer, one.fate) for one in told] == [
        ("ann", lost.position, "printer 3", "dead")
    ]
    assert lease_of(sessions, db).session == "ann"  # it has kept its place
    assert_sound(sessions, db)


def test_a_watchdog_wakes_sessions_whose_delay_is_over(db: Any, sessions: Sessions, clock: Clock) -> None:
    sessions.enqueue(db, "later", session="ann", delay=10)
    clock.now += 11
    assert Watchdog(sessions).sweep(db).delays == 1
    assert sessions.stats(db).ready == 1


def test_a_watchdog_passes_on_the_slots_of_gates(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, max_attempts=1, gates=lambda _: (Gate("all", 1),), clock=clock)
    fill(sessions, db, "ann:1", "bob:1")
    lease_of(sessions, db, duration=10)
    clock.now += 11
    Watchdog(sessions).sweep(db)
    assert lease_of(sessions, db).session == "bob"
    assert_sound(sessions, db)


def test_what_ends_for_a_caller_that_has_gone_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    async def steps() -> None:
        raise FDBError(1031)

    in_thread(steps())
    for thread in threading.enumerate():
        if thread.name.startswith("fdbqueue-finish"):
            thread.join()
    assert told == []
