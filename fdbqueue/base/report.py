"""The report of a bulk enqueue."""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown


@dataclass(frozen=True, slots=True, repr=False)
class BulkReport(Shown):
    """The result of a bulk enqueue."""

    items: int
    """Values that are in the queue now."""
    size_bytes: int
    """Bytes of their payloads, encoded."""
    first: Position | None
    """The position of the first one; None if there are none."""
    last: Position | None
    """The position of the last one."""
    transactions: int = 0
    """Commits that took effect; 0 in a caller's transaction."""
    conflicts: int = 0
    """Commits that failed with 1020 and were repeated."""
    retries: int = 0
    """Commits that failed and were repeated, conflicts included."""
    seconds: float = 0.0
    """The time from the first value to the last commit."""
