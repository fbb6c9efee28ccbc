"""Reclaim: fire due timers and report the result."""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.lowlevel import Layout, Shown, Transaction

from .timers import Reclaimed, due_timers, fire_due
from .transitions import Retry, Transitions


@dataclass(frozen=True, slots=True, repr=False)
class ReclaimReport(Shown):
    """The result of a reclaim."""

    reclaimed: tuple[Reclaimed, ...]
    """The items that were moved."""
    more: bool
    """Whether more may be due."""


async def reclaim(
    tr: Transaction, layout: Layout, *, limit: int, now_us: int, retry: Retry
) -> tuple[ReclaimReport, bool]:
    """Fire up to `limit` due timers. Return the report and whether anything was written.

    Raises:
        ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"limit is how many timers to settle, at least 1, not {limit}.")
    overdue = await due_timers(tr, layout, now_us, limit=limit)
    moves = Transitions(tr, layout, now_us)
    try:
        reclaimed, all_fired = await fire_due(tr, layout, moves, overdue, now_us=now_us, retry=retry)
    finally:
        moves.finish()
    more = moves.any and (not all_fired or len(overdue) >= limit)
    return ReclaimReport(tuple(reclaimed), more), moves.any
