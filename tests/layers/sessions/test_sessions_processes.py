"""Threads, tasks and processes that work on sessions; some of them are killed at random points."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Sessions
from tests.helpers.processes import Processes, kill_9

pytestmark = pytest.mark.slow

ACCOUNTS = int(os.environ.get("FDBQUEUE_TEST_ACCOUNTS", "40"))
"""How many bank accounts. 1,000 is for a machine of its own."""
DURATION_S = 0.5
ORDERS = (-50, +100, -150)
OPENING = 100


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


def bank(space: Subspace, **terms: Any) -> Sessions[int]:
    return Sessions(Queue(space["bank"], codec="json"), state_codec="json", quantum=2, **terms)


def serve(url: str, key: bytes, seed: int) -> None:
    """Apply orders to accounts until all are done. Some orders fail for a while, some workers are slow."""
    db = fdbqueue.open(url)
    space = Subspace((), key)
    sessions = bank(space)
    choice = random.Random(seed)
    lease = None
    while lease is not None or sessions.stats(db).available:
        try:
            if lease is None:
                lease = sessions.lease(db, duration=DURATION_S, timeout=DURATION_S)
                continue
            dice = choice.random()
            if dice < 0.05:
                sessions.nack(db, lease, error="no paper")
                lease = None
                continue
            if dice < 0.08:
                time.sleep(DURATION_S * 1.5)  # the lease is lost meanwhile
            balance, applied = lease.state or (OPENING, [])
            after = [balance + lease.value, [*applied, lease.value]]
            if dice < 0.5:
                lease = sessions.ack_and_next(db, lease, state=after, duration=DURATION_S)
            else:
                sessions.ack(db, lease, state=after)
                lease = None
        except (LeaseLost, FDBError):
            lease = None  # the order comes back, or was applied already


@pytest.mark.engines("file", "cluster")
def test_every_balance_is_right_when_workers_are_killed(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}, {ACCOUNTS} accounts")
    choice = random.Random(seed)
    sessions = bank(space)
    for order in ORDERS:
        sessions.enqueue_many(db, [order] * ACCOUNTS, session=_numbered())
    workers = [processes.start(serve, url, space.key(), seed + n) for n in range(3)]
    deadline = time.monotonic() + 120 + ACCOUNTS
    kills = 0
    while (left := sessions.stats(db).available) > 0:
        assert time.monotonic() < deadline, f"{left} orders left; seed {seed}"
        if left < ACCOUNTS * 3 * (8 - kills) // 9 and kills < 6:
            victim = choice.randrange(3)
            kill_9(workers[victim])
            workers[victim] = processes.start(serve, url, space.key(), seed + 10 + kills)
            kills += 1
        time.sleep(0.01)  # looking at other processes has to be done by polling
    for worker in workers:
        worker.join(600)
        assert worker.exitcode == 0
    assert kills >= 3
    found = Counter(str(sessions.state(db, ("account", n))) for n in range(ACCOUNTS))
    assert found == {str([OPENING + sum(ORDERS), list(ORDERS)]): ACCOUNTS}, f"seed {seed}"
    assert list(sessions.list(db)) == []
    assert sessions.check(db).problems == ()


def _numbered() -> Any:
    numbers = iter(range(ACCOUNTS))
    return lambda value: ("account", next(numbers))
