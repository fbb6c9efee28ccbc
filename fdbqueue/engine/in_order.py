"""Awaited verbs of one transaction, one after the other.

A verb reads, waits and then writes. If another verb of the same transaction ran while it waits, neither would see what
the other writes: both would take the same item, on a cluster. Verbs of different transactions run side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fdbqueue.engine.steps import Steps, run_async

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class _VerbsInOrder:
    """The awaited verbs of a transaction that have begun, or wait for their turn."""

    __slots__ = ("lock", "verbs")

    def __init__(self, lock: asyncio.Lock) -> None:
        self.lock = lock
        self.verbs = 0


_under_way: dict[tuple[int, int], _VerbsInOrder] = {}
"""By the ids of the transaction, which its verbs keep alive, and of the event loop."""


def is_transaction(given: object) -> bool:
    """Say whether a verb's first argument is a transaction."""
    # A cluster that was not used yet would connect, and block, if it were asked for a name that it does not have.
    return not hasattr(given, "create_transaction") and hasattr(given, "commit")


async def run_in_order(tr: object, steps: Steps[T]) -> T:
    """Run a verb's steps when the verbs of the same transaction that were called before have ended."""
    import asyncio  # whoever awaits has it

    key = id(tr), id(asyncio.get_running_loop())
    line = _under_way.get(key)
    if line is None:
        line = _under_way[key] = _VerbsInOrder(asyncio.Lock())
    line.verbs += 1
    try:
        async with line.lock:
            return await run_async(steps)
    finally:
        line.verbs -= 1
        if not line.verbs:
            del _under_way[key]
