"""Workers of sessions that are stopped, cancelled, or run side by side: nothing is lost, and no session stays busy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import OWN_KEY, Consumer, Messages, MessageType, SessionLease, Sessions, SmartSessions
from tests.helpers.sessions import assert_sound, lease_of

MESSAGES = Messages(MessageType("job", key=lambda job: job["n"], sees=OWN_KEY))


@pytest.fixture(params=["Sessions", "SmartSessions"])
def source(request: pytest.FixtureRequest, space: Subspace) -> Any:
    sessions = Sessions(Queue(space, codec="json" if request.param == "Sessions" else MESSAGES))
    return sessions if request.param == "Sessions" else SmartSessions(sessions)


def load(source: Any, db: Any, items: int = 6, number: int = 2) -> None:
    jobs = [{"type": "job", "n": n} for n in range(items)]
    source.enqueue_many(db, jobs, session=lambda job: f"s{job['n'] % number}")


def left_in_order(source: Any, db: Any) -> list[list[int]]:
    """Return the numbers that wait in each session. No session is busy, and nothing is wrong."""
    assert_sound(source.sessions, db)
    assert source.sessions.stats(db).busy == 0
    waiting = [[item.value["n"] for item in source.sessions.scheduled(db, name)] for name in ("s0", "s1")]
    assert waiting == [sorted(numbers) for numbers in waiting]
    return waiting


def test_an_application_that_ends_gives_its_sessions_back(db: Any, source: Any) -> None:
    load(source, db)
    began = asyncio.Event()

    async def handle(lease: SessionLease[Any]) -> None:
        began.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with Consumer(source, handle, concurrency=2, grace=0.01).running(db):
            await asyncio.Event().wait()

    async def main() -> None:
        serving = asyncio.create_task(serve())
        await began.wait()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(main())

    assert left_in_order(source, db) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_call_that_is_cancelled_happened_as_a_whole_or_not_at_all(db: Any, source: Any, steps: int) -> None:
    load(source, db)

    async def cancelled(call: Any) -> Any:
        task = asyncio.ensure_future(call)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return None

    async def main() -> None:
        sessions = source.sessions
        lease = await cancelled(sessions.lease.aio(db, duration=1_000))
        if lease is not None:
            following = await cancelled(sessions.ack_and_next.aio(db, lease, duration=1_000))
            if following is not None:
                await cancelled(sessions.snooze.aio(db, following, delay=0))
        await cancelled(source.enqueue.aio(db, {"type": "job", "n": 100}, session="s0"))
        await cancelled(sessions.pause.aio(db, "s1"))
        await cancelled(sessions.remove.aio(db, "s1"))

    asyncio.run(main())

    # In one transaction: a thread may give a lease back that the cancelled call has left behind.
    assert source.sessions.check(db.create_transaction()).problems == ()
    numbers = [item.value["n"] for item in source.sessions.scheduled(db, "s0")]
    assert numbers == sorted(numbers)
    assert set(numbers) <= {0, 2, 4, 100}


def test_of_many_threads_that_end_a_lease_one_does(db: Any, source: Any) -> None:
    load(source, db)
    lease = lease_of(source.sessions, db)
    barrier = threading.Barrier(6)

    def end(which: int) -> bool:
        barrier.wait()
        try:
            [source.sessions.ack, source.sessions.ack_and_next, source.sessions.snooze][which % 3](
                *(db, lease), **({"delay": 0} if which % 3 == 2 else {})
            )
        except LeaseLost:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        ended = list(threads.map(end, range(6)))

    assert sum(ended) == 1
    assert_sound(source.sessions, db)


def test_threads_and_tasks_enqueue_into_one_session_at_once(db: Any, source: Any) -> None:
    async def some(begin: int) -> None:
        await asyncio.gather(
            *(source.enqueue.aio(db, {"type": "job", "n": begin + n}, session="s0") for n in range(10))
        )

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda begin: asyncio.run(some(begin)), (0, 10, 20)))

    done: list[int] = []
    report = Consumer(source, lambda lease: done.append(lease.value["n"])).drain(db)
    assert (sorted(done), report.acked) == (list(range(30)), 30)
    assert_sound(source.sessions, db)
