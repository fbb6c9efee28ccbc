"""Shared helpers for tests of staged queues: views of their keys, and a request that only waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers.staged import StagedQueue, grants, head_coordinator
from fdbqueue.layers.staged import requests as _requests
from fdbqueue.layers.staged.requests import REQUEST_SECONDS, Requests, Wish
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase

GRANT_S = 0.5
"""How long grants live when tests are in a hurry, in all processes."""
_HURRY = {
    "GRANT_SECONDS": GRANT_S,
    "REQUEST_SECONDS": 2 * GRANT_S,
    "UNSEEN_SECONDS": 2 * GRANT_S,
    "TAKEOVER_SECONDS": 0.05,
}


PATIENCE_SECONDS = 600
"""How long tests wait for what must happen, on a machine however busy."""


def state_of(staged: StagedQueue) -> Any:
    """Return what the calls of this process share."""
    return staged._state()


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Let requests and grants expire soon."""
    for name, seconds in _HURRY.items():
        for module in (_requests, grants, head_coordinator):
            if hasattr(module, name):
                patch.setattr(module, name, seconds)


def coordinating(patch: pytest.MonkeyPatch, **settings: float) -> None:
    """Change what coordinators of heads go by, as AFTERMATH_SECONDS or TAKEOVER_SECONDS.

    With an infinite aftermath a call registers at once, as if it had just met others.
    """
    for name, value in settings.items():
        patch.setattr(head_coordinator, name, value)


def register(
    db: Any,
    queue: Queue,
    clock: Clock,
    *,
    wanted: int = 1,
    lives: float = REQUEST_SECONDS,
    duration: float = 0.0,
    process: bytes | None = None,
    client: bytes = b"sleeping",
) -> bytes:
    """Register a request of somebody who does nothing ever after, and return its grant's key.

    Args:
        process: the id of its process; b"": unknown; None: an older version of the library wants it.
        client: the client's id.
    """
    requests = Requests(queue.layout)

    async def body(tr: Any) -> None:
        wish = Wish(client, wanted, int((clock() + lives) * 1e6), int(duration * 1e6), "asleep", process)
        requests.register(tr, wish)

    run(attempts(db, body))
    return requests.grant_key(client)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for what other threads do, without a word of it to wait for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_SECONDS} seconds"
        time.sleep(0.002)


def join_finishers() -> None:
    """Wait for the threads that finish what cancelled leaders began."""
    for thread in threading.enumerate():
        if thread.name == "fdbqueue-finish":
            thread.join(120)


def left_behind(queue: Queue, db: Any) -> list[bytes]:
    """Return the keys of requests and grants that are there."""
    layout = queue.layout
    return [row.key for space in (layout.requests, layout.grants) for row in db.get_range_startswith(space.key())]


def has_requests(staged: StagedQueue, db: Any, number: int) -> bool:
    return staged.stats(db).requests == number


def value(got: Any) -> Any:
    return None if got is None else got.value


def acting_at(db: Any, number: int, action: Callable[[], object]) -> FaultyDatabase:
    """Return the database with something that happens right before its commit of this number, counted from 0."""
    numbers = itertools.count()

    def plan() -> None:
        if next(numbers) == number:
            action()

    return FaultyDatabase(db, plan)
