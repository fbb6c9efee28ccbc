"""A waiting call is woken by what it waits for, and does not find it much later by chance."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.results import Results
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


def not_told(db: Any, space: Subspace) -> list[str]:
    """Let a caller wait for the end of an item, and ack the item; say what is wrong if the caller is not told soon."""
    leases = Leases(Queue(space))
    try:
        completion = Results(leases).enqueue(db, b"waited for")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(completion.wait, timeout=PATIENCE_SECONDS)
            time.sleep(0.2)  # the watch is set within that time, most likely; nothing shows it
            began = time.monotonic()
            for lease in leases.lease_many(db):
                leases.ack(db, lease, result="done")
            found = waiting.exception()
            took = time.monotonic() - began
    finally:
        leases.queue.clear(db)
    if found is None and took < SOON_SECONDS:
        return []
    return [f"a caller that waited for an item was told {found or 'its end'} after {took:.1f} s"]
