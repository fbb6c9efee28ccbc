"""Where `fdbqueue.observe` may look at what consumers do. These lists are empty unless a program asked it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fdbqueue import Queue

from ..leases import Lease


class Acked(NamedTuple):
    """Items that a consumer has acked together."""

    queue: Queue
    leases: Sequence[Lease]
    """Their leases; empty for items of sessions, which one lease has together."""
    items: int
    """How many items were acked."""
    lost: int
    """How many leases were lost."""
    seconds: float
    """How long it took."""


around_all: list[Callable[[Any, Callable[[Any], Any]], Any]] = []
"""Middleware around the handlers of all consumers of this process, outside of their own."""
on_acked: list[Callable[[Acked], None]] = []
"""Called in a consumer's event loop after each transaction that acked items."""


def tell_acked(acked: Acked) -> None:
    """Tell of items that were acked."""
    for told in on_acked:
        told(acked)
