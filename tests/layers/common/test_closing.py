"""Calls that wait without a limit end with an error when their database is closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

import fdbqueue
from fdbqueue import ClusterError, Queue, StorageError
from fdbqueue.engine import Subspace, blocking
from fdbqueue.engine.steps import run
from fdbqueue.engine.waiting import Promise, until_changed
from fdbqueue.layers import Consumer, Groups, Leases, Results, Sessions, StagedQueue, Subscriptions
from tests.helpers.staging import wait_until

CLOSED = (StorageError, ClusterError)


@pytest.fixture
def own(url: str) -> Any:
    """A database that the test may close. (That in memory is another one than `db`.)"""
    return fdbqueue.open(url)


WAITS: dict[str, Callable[[Any, Queue], Any]] = {
    "a completion": lambda db, queue: Results(Leases(queue)).enqueue(db, b"").wait,
    "a completion in a session": lambda db, queue: Results(Sessions(queue)).enqueue(db, b"", session="ann").wait,
    "a group": lambda db, queue: Groups(Leases(queue)).open(db, "book").wait,
    "a session": lambda db, queue: partial(Sessions(queue).lease, db, timeout=None),
    "a dequeue": lambda db, queue: partial(StagedQueue(queue).dequeue, db, timeout=None),
    "a lease": lambda db, queue: partial(StagedQueue(queue).lease, db, timeout=None),
    "a subscription": lambda db, queue: partial(
        Subscriptions(Leases(queue)).subscribe(db, "all").lease, db, timeout=None
    ),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_thread_that_waits_gets_an_error(own: Any, space: Subspace, kind: str) -> None:
    wait = WAITS[kind](own, Queue(space))
    raised: SimpleQueue[BaseException] = SimpleQueue()

    def work() -> None:
        try:
            wait()
        except CLOSED as error:
            raised.put(error)

    waiting = len(blocking.waiting)
    threading.Thread(target=work, daemon=True).start()
    wait_until(lambda: len(blocking.waiting) > waiting)
    own.close()
    assert "was closed" in str(raised.get(timeout=600))


@pytest.mark.parametrize("kind", ["a completion", "a dequeue", "a consumer"])
def test_a_task_that_waits_gets_an_error(own: Any, space: Subspace, kind: str) -> None:
    call: Any
    if kind == "a consumer":
        call = Consumer(Leases(Queue(space)), lambda lease: None).run.aio(own)
    else:
        wait: Any = WAITS[kind](own, Queue(space))
        verb: Any = getattr(wait, "func", None)
        call = wait.aio() if verb is None else verb.aio(own, timeout=None)

    async def main() -> None:
        waiting = len(blocking.waiting)
        task = asyncio.ensure_future(call)
        while len(blocking.waiting) == waiting:  # noqa: ASYNC110 - it waits in no event of its own
            await asyncio.sleep(0)
        own.close()
        with pytest.raises(CLOSED, match="was closed"):
            await asyncio.wait_for(task, 30)

    asyncio.run(main())


def test_a_wait_at_another_database_goes_on(own: Any, db: Any, space: Subspace) -> None:
    staged, taken = StagedQueue(Queue(space)), SimpleQueue[Any]()
    waiting = len(blocking.waiting)
    threading.Thread(target=lambda: taken.put(staged.dequeue(db, timeout=30)), daemon=True).start()
    wait_until(lambda: len(blocking.waiting) > waiting)
    own.close()
    Queue(space).enqueue(db, b"x")
    assert taken.get(timeout=600).value == b"x"


def test_a_wait_that_begins_just_after_a_close_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "AGAIN_SECONDS", 0.01)
    blocking.wake_all()
    others = set(blocking.waiting)  # threads of other tests may still wait
    began = time.monotonic()
    run(until_changed([Promise()], None))
    run(until_changed([Promise()], 3600.0))
    assert time.monotonic() - began < 600
    assert set(blocking.waiting) <= others
