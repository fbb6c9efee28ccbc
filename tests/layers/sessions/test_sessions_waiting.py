"""Workers that wait for sessions sleep, and an enqueue wakes them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import FollowUp, Results, SessionLease, Sessions
from tests.helpers.sessions import fill, lease_of
from tests.helpers.staging import wait_until


def waiting_in_a_thread(sessions: Sessions, db: Any, timeout: float = 30.0) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(sessions.lease(db, timeout=timeout)))
    thread.start()
    return thread, got


def waiting(sessions: Sessions, db: Any) -> int:
    """Return how many processes wait."""
    return sessions.staged.stats(db).requests


def looks(sessions: Sessions) -> int:
    """Return how often a worker has looked for a session."""
    return sessions.staged.contention_stats().looks


def until_requested(sessions: Sessions, db: Any, requests: int) -> None:
    """Wait until so many processes have registered that they wait."""
    wait_until(lambda: waiting(sessions, db) >= requests)


def test_a_waiting_worker_gets_the_session_of_a_new_item(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    thread, got = waiting_in_a_thread(sessions, db)
    until_requested(sessions, db, 1)
    fill(sessions, db, "ann:1")
    thread.join()
    assert (got[0].session, got[0].value) == ("ann", "1")


def test_a_waiting_worker_gets_a_session_that_another_gives_back(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    thread, got = waiting_in_a_thread(sessions, db)
    until_requested(sessions, db, 1)
    sessions.ack(db, lease)
    thread.join()
    assert got[0].value == "2"


def test_a_waiting_worker_wakes_when_a_delay_is_over(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, "far", session="ann", delay=600)
    thread, got = waiting_in_a_thread(sessions, db)
    until_requested(sessions, db, 1)
    sessions.enqueue(db, "soon", session="ann", delay=0.05)
    thread.join()
    assert got[0].value == "soon"


def test_a_waiting_worker_wakes_for_an_item_that_wakes_a_session(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, "far", session="ann", delay=600)
    thread, got = waiting_in_a_thread(sessions, db)
    until_requested(sessions, db, 1)
    fill(sessions, db, "ann:now")
    thread.join()
    assert got[0].value == "now"


def test_a_waiting_worker_wakes_for_a_follow_up_in_a_session_of_its_own(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    Results(sessions).enqueue(db, "1", session="ann", then=FollowUp(sessions, "after", session="bob"))
    lease = lease_of(sessions, db)
    thread, got = waiting_in_a_thread(sessions, db)
    until_requested(sessions, db, 1)
    sessions.ack(db, lease)
    thread.join()
    assert (got[0].session, got[0].value) == ("bob", "after")


def test_a_wait_ends_after_its_time_and_leaves_nothing(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    assert sessions.lease(db, timeout=0.05) is None
    assert waiting(sessions, db) == 0


def test_an_enqueue_wakes_at_most_two_waiting_workers(db: Any, space: Subspace) -> None:
    async def wait(sessions: Sessions) -> SessionLease | None:
        return await sessions.lease.aio(db, timeout=30)

    async def woken_by_one() -> list[int]:
        # Each object waits as a process of its own does.
        workers = [Sessions(Queue(space, codec="str"), consumer=f"worker {n}") for n in range(6)]
        workers[0].clear(db)
        tasks = [asyncio.create_task(wait(sessions)) for sessions in workers]
        await asyncio.to_thread(until_requested, workers[0], db, 6)
        before = [looks(sessions) for sessions in workers]
        fill(workers[0], db, "ann:1")
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        woken = [now - then for now, then in zip(map(looks, workers), before, strict=True)]
        assert len(done) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return woken

    # On a busy machine a worker may look once more before it sleeps. That only adds to what the enqueue wakes.
    rounds = (asyncio.run(woken_by_one()) for _ in range(10))
    assert any(sum(looks > 0 for looks in woken) <= 2 for woken in rounds)


def test_a_worker_that_waits_costs_nothing(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    thread, got = waiting_in_a_thread(sessions, db, timeout=0.5)
    thread.join()
    assert got == [None]
    # One look finds nothing and registers the wait, one sets the watches, and one ends it. None depends on the time.
    assert looks(sessions) <= 3
