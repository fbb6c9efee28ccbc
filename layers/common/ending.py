"""Wait until a record shows the end of an item or a group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fdbqueue.engine.waiting import until_changed
from fdbqueue.lowlevel import Database, Steps, Transaction, attempts

from ..leases import Leases
from ..leases.times import check_timeout

T = TypeVar("T")


class NotEnded(NamedTuple):
    """What a look at a record found that shows no end."""

    key: bytes
    """The record's key."""
    due_us: int
    """When a timer is due that may end it; 0: never."""


async def until_ended(
    db: Database,
    leases: Leases,
    look: Callable[[Transaction], Steps[T | NotEnded]],
    timeout: float | None,
    name: str,
    expire: Callable[[Database], Steps[None]] | None = None,
) -> T:
    """Return the end that `look` finds. Wait for it by a watch; fire its timer if no consumer does.

    Args:
        db: the database.
        leases: the leases of the queue, whose timers are fired.
        look: reads the record.
        timeout: seconds to wait; None: no limit.
        name: names the item or group, for messages.
        expire: ends the life of an item for which the queue has no timer; None: it has one.

    Raises:
        TimeoutError: the time is over.
    """
    check_timeout(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    fired_us = 0

    async def look_and_watch(tr: Transaction) -> tuple[T | NotEnded, Any]:
        found = await look(tr)
        # The watch compares with the value that this transaction read, so that it misses nothing.
        return found, (tr.watch(found.key) if isinstance(found, NotEnded) else None)

    while True:
        found, watch = await attempts(db, look_and_watch)
        if not isinstance(found, NotEnded):
            return found
        due_in = None if found.due_us in (0, fired_us) else max(0.0, (found.due_us - leases.now_us()) / 1e6)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if left == 0:
            watch.cancel()
            raise TimeoutError(f"{name} has not ended in {timeout} s.")
        await until_changed([watch], left, due_in)
        if due_in is not None and leases.now_us() >= found.due_us:
            fired_us = found.due_us  # once: what did not end by it, as a leased item, ends without it
            while (await leases.reclaim.steps(db)).more:
                pass
            if expire is not None:
                await expire(db)
