"""What a queue with leases holds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass

from fdbqueue import FormatError, Stats
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, rows, started
from fdbqueue.items import notes_of
from fdbqueue.layout import Layout
from fdbqueue.stats import read_stats

from .timers import due_timers

OVERDUE_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class LeaseStats(Stats):
    """`fdbqueue.Stats`, and what time has to do with it."""

    overdue: int
    """Timers that are due and that nobody has come by to settle, counted up to 1,000."""
    oldest_age_s: float | None
    """For how long the first available item has been in the queue; None without one, if it can't be read, or if it came
    by a plain enqueue, which notes no time."""


def read_lease_stats(tr: Transaction, layout: Layout, now_us: int) -> Steps[LeaseStats]:
    """Read a queue's `LeaseStats`."""
    overdue = started(due_timers(tr, layout, now_us, limit=OVERDUE_LIMIT))
    first = started(rows(tr.snapshot, layout.begin, layout.end, limit=1))
    stats = yield from read_stats(tr, layout)
    late = yield from overdue
    oldest_age_s = None
    for row in (yield from first):
        with suppress(FormatError):  # whoever takes it is told, and so is who checks
            enqueued_at_us = notes_of(row.value).enqueued_at_us
            oldest_age_s = (now_us - enqueued_at_us) / 1e6 if enqueued_at_us else None
    return LeaseStats(**asdict(stats), overdue=len(late), oldest_age_s=oldest_age_s)
