"""Threads and tasks that work on sessions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions

pytestmark = pytest.mark.slow


class Watched:
    """Which sessions are in progress right now, and what was done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[Any] = set()
        self.done: dict[Any, list[str]] = {}

    def begin(self, session: Any) -> None:
        with self._lock:
            assert session not in self._busy, f"two workers are in {session!r}"
            self._busy.add(session)

    def end(self, session: Any, value: str) -> None:
        with self._lock:
            self._busy.remove(session)
            self.done.setdefault(session, []).append(value)


def values(number: int) -> list[str]:
    return [f"{n % number}:{n}" for n in range(400)]


def name_of(value: str) -> str:
    return f"session {value.partition(':')[0]}"


@pytest.mark.parametrize("sessions_count", [3, 40])
def test_threads_do_every_item_once_and_in_order(db: Any, space: Subspace, sessions_count: int) -> None:
    sessions = Sessions(Queue(space, codec="str"), quantum=4)
    sessions.enqueue_many(db, values(sessions_count), session=name_of)
    watched = Watched()

    def work() -> None:
        lease = sessions.lease(db, duration=600)
        while lease is not None:
            watched.begin(lease.session)
            watched.end(lease.session, lease.value)
            lease = sessions.ack_and_next(db, lease) or sessions.lease(db, duration=600, timeout=0.2)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watched.done == {
        f"session {n}": [value for value in values(sessions_count) if name_of(value) == f"session {n}"]
        for n in range(sessions_count)
    }
    assert sessions.check(db).problems == ()
    assert (sessions.stats(db).available, sessions.stats(db).ready) == (0, 0)


def test_tasks_do_every_item_once_and_in_order_while_others_are_enqueued(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), quantum=4)
    watched = Watched()

    async def work() -> None:
        while (lease := await sessions.lease.aio(db, duration=600, timeout=1.0)) is not None:
            watched.begin(lease.session)
            watched.end(lease.session, lease.value)
            await sessions.ack.aio(db, lease)

    async def enqueue() -> None:
        for value in values(7):
            await sessions.enqueue.aio(db, value, session=name_of(value))

    async def both() -> None:
        await asyncio.gather(enqueue(), *(work() for _ in range(12)))

    asyncio.run(both())
    assert watched.done == {
        f"session {n}": [value for value in values(7) if name_of(value) == f"session {n}"] for n in range(7)
    }
    assert sessions.check(db).problems == ()
