"""`RateLimit`: limit how many handlers begin in a time, over all processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from fdbqueue import Queue
from fdbqueue.lowlevel import Database

from ..common.handlers import Snooze
from ..common.middleware import AsyncMiddleware, Next
from ..common.token_bucket import TokenBucket
from ..leases import Lease

NAME = "middleware"
"""The name of a queue's bucket; a key's bucket has the key behind it."""


class RateLimit(AsyncMiddleware):
    """Puts an item off when too many handlers have begun in a time, in all processes together.

    The item goes back to its place and is delayed; no attempt is counted. In a session only that session waits.

    Args:
        db: the database of the queue.
        count: how many handlers may begin in `seconds`.
        seconds: the time for `count` handlers.
        burst: how many may begin at once after a pause; None: `count`.
        key: a function of the lease that returns the name of the item's own limit, a text or a number; None: one limit
            for the queue. Without a name (None) an item is not limited.
        queue: the queue that has the limit, to share it among the consumers of several queues; None: the consumer's.

    *Conflicts:* with each other handler that begins under the same limit. *Cost:* a transaction for each item: one read
    and one write.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases
    >>> from fdbqueue.layers.middleware import RateLimit
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("mails", codec="str"))
    >>> report = leases.enqueue_many(db, ["a", "b", "c"])
    >>> report = Consumer(leases, lambda lease: None, middleware=[RateLimit(db, count=2, seconds=60)]).drain(db)
    >>> report.acked, report.snoozed
    (2, 1)
    """

    def __init__(
        self,
        db: Database,
        *,
        count: int,
        seconds: float = 1.0,
        burst: int | None = None,
        key: Callable[[Lease], Any] | None = None,
        queue: Queue | None = None,
    ) -> None:
        if not hasattr(db, "create_transaction"):
            raise TypeError(f"RateLimit takes the database of the queue, as fdbqueue.open returns it, not {db!r}.")
        if key is not None and not callable(key):
            raise TypeError(f"key is a function of the lease, as in key=lambda lease: lease.value.host, not {key!r}.")
        self._terms: dict[str, Any] = {"count": count, "seconds": seconds, "burst": burst}
        TokenBucket(queue or Queue(NAME), NAME, **self._terms)  # raises TypeError and ValueError now
        self._db = db
        self._key = key
        self._queue = queue

    def __repr__(self) -> str:
        return f"RateLimit(count={self._terms['count']}, seconds={self._terms['seconds']})"

    def for_consumer(self, consumer: Any) -> RateLimit:
        """Return the same for a consumer, whose queue has the limit if no other was given."""
        if not isinstance(getattr(consumer, "queue", None), Queue):
            raise TypeError(f"RateLimit.for_consumer takes a Consumer, not {consumer!r}.")
        own = copy.copy(self)
        own._queue = self._queue or consumer.queue
        return own

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        name: Any = NAME
        if self._key is not None:
            key = self._key(lease)
            if key is None:
                return await call_next(lease)
            name = (NAME, key)
        if self._queue is None:
            raise TypeError("RateLimit has no queue for its limit: give it to a Consumer, or give queue=.")
        wait_s = await TokenBucket(self._queue, name, **self._terms).take.aio(self._db)
        if wait_s:
            raise Snooze(math.ceil(wait_s * 1e3) / 1e3)
        return await call_next(lease)
