"""`TimeLimit`: limit how long a handler may take, by the item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..common.handlers import within
from ..common.middleware import AsyncMiddleware, Next
from ..leases import Lease
from ..leases.times import positive


class TimeLimit(AsyncMiddleware):
    """Fails an attempt that takes longer, with a TimeoutError.

    A coroutine is cancelled. A thread runs on until its function returns, and the item is given back meanwhile.
    `Consumer(handler_timeout=)` does the same for all items, and also for a coroutine that blocks the event loop: its
    lease is not extended any more.

    Args:
        seconds: the limit, or a function of the lease that returns it; None: none for this item.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases
    >>> from fdbqueue.layers.middleware import TimeLimit
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("numbers", codec="json"))
    >>> position = leases.enqueue(db, 7, headers={"seconds": 5})
    >>> limit = TimeLimit(lambda lease: lease.headers.get("seconds", 60))
    >>> Consumer(leases, lambda lease: None, middleware=[limit]).drain(db).acked
    1
    """

    def __init__(self, seconds: float | Callable[[Lease], float | None]) -> None:
        if not callable(seconds):
            positive(seconds, "seconds")
        self._seconds = seconds

    def __repr__(self) -> str:
        return f"TimeLimit({self._seconds!r})"

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        seconds = self._seconds(lease) if callable(self._seconds) else self._seconds
        if seconds is None:
            return await call_next(lease)
        positive(seconds, "seconds")
        return await within(seconds, call_next(lease))
