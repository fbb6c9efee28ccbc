"""A waiting consumer is woken by an arrival, and does not find it much later by chance."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.staging import wait_until

PATIENCE_SECONDS = 12.0
SOON_SECONDS = 6.0
"""Far more than a wake-up takes on a machine that is busy, and less than it takes to look again by the clock."""


def not_woken(db: Any, space: Subspace) -> list[str]:
    """Let one wait, and enqueue an item for it; say what is wrong if it does not get it soon."""
    queue = Queue(space)
    staged = StagedQueue(queue)
    try:
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(staged.dequeue, db, timeout=PATIENCE_SECONDS)
            wait_until(lambda: staged.stats(db).requests == 1)
            # The request stands; the watches are set right after it.
            time.sleep(0.2)
            began = time.monotonic()
            queue.enqueue(db, b"for the one who waits")
            got = waiting.result()
            took = time.monotonic() - began
    finally:
        queue.clear(db)
    if got is not None and took < SOON_SECONDS:
        return []
    return [f"a consumer that waited {'got nothing' if got is None else 'got its item'} after {took:.1f} s"]
