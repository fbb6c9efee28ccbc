"""Wake the calls that wait for a change when a database is closed. The binding has no call that ends its watches.

A call that is woken looks again, and then gets the error of a closed database. A call on another database looks again
in vain, and goes on waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 5.0
"""The longest time of a transaction. A call that began to look before a close begins to wait this much later, or
sooner."""
AGAIN_SECONDS = 0.5

_waiting: set[Callable[[], None]] = set()
_closed_at = -LOOK_SECONDS


def wake_at_close(wake: Callable[[], None], seconds: float | None) -> float | None:
    """Register a call that begins to wait, and return how long it may wait. It then calls `end_wait`.

    Args:
        wake: ends the wait, from any thread.
        seconds: how long it wants to wait; None: no limit.
    """
    _waiting.add(wake)
    if time.monotonic() - _closed_at > LOOK_SECONDS:
        return seconds
    # It may have looked before a close, and its database may be the closed one.
    return AGAIN_SECONDS if seconds is None else min(seconds, AGAIN_SECONDS)


def end_wait(wake: Callable[[], None]) -> None:
    """Forget a call that has ended its wait."""
    _waiting.discard(wake)


def wake_all() -> None:
    """Wake all calls that wait. A database that was closed calls this."""
    global _closed_at
    _closed_at = time.monotonic()
    for wake in list(_waiting):
        wake()
