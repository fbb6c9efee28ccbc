"""Stats of a queue with leases, and the age of its first item.

To store only its payload and one byte, a plain enqueue notes no time. So the queue does not tell the item's age. The
index does not tell it either, since an empty queue gives the same indices to other items. So a process remembers, at
each look, how many items had been enqueued in total. The items enqueued before the first available item are no longer
available, so the number of unavailable items limits theirs. If an earlier look counted more enqueued items than that,
the item was there then. This needs no write and no further read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise

from fdbqueue import FormatError, Stats
from fdbqueue.lowlevel import Layout, Transaction, notes_of, rows, started
from fdbqueue.stored.counters import read_own_stats
from fdbqueue.stored.layout import rank_of

from .timers import due_timers

OVERDUE_LIMIT = 1_000
MAX_LOOKS = 256
"""Most earlier looks that are remembered; beyond that, some are forgotten."""
PRECISION = 4
"""An age may be too small by one part in so many. So a few looks are enough for years."""
LOOK_US = 1_000_000
"""A look within this time after another one is not remembered."""


@dataclass(frozen=True, slots=True, repr=False)
class LeaseStats(Stats):
    """`fdbqueue.Stats`, with due timers and ages."""

    overdue: int
    """Due timers that have not fired yet, counted up to 1,000."""
    oldest_age_s: float | None
    """The time that the first available item has been in the queue. None without one, if it can't be read, or after a
    plain enqueue, which notes no time."""
    oldest_age_at_least_s: float | None
    """The same, or a lower bound if the age is unknown. This object derives the bound from the times at which it read
    stats of a database. The bound is 0 at the first time. None without an available item."""


class Looks:
    """The counters that earlier looks at a queue saw, in the memory of one process.

    The counters show a clear of the queue, unless more items came and went after it than before.
    """

    def __init__(self) -> None:
        self._looks: list[tuple[int, int]] = []
        """The time of each look, and how many items had been enqueued by then."""
        self._gone = 0
        self._first = (b"", 0)
        """The first available item, and the time of the first look that saw it."""

    def remember(self, counted: Stats, first: bytes, now_us: int) -> None:
        """Remember a look at the counters and the packed position of the first available item, b"" for none."""
        gone = counted.dequeued + counted.expired + counted.purged + counted.deleted
        if gone < self._gone or (self._looks and counted.enqueued < self._looks[-1][1]):
            self._looks = []  # the queue was cleared
        self._gone = gone
        if first != self._first[0]:
            self._first = (first, now_us)
        if not self._looks or now_us - self._looks[-1][0] >= LOOK_US:
            looks = [*self._looks, (now_us, counted.enqueued)]
            self._looks = looks if len(looks) <= MAX_LOOKS else _thinned(looks, now_us)

    def age_us(self, counted: Stats, first: bytes, now_us: int) -> int:
        """Return a lower bound of the time that the first available item has been in the queue."""
        since = [self._first[1]] if first == self._first[0] else []
        if rank_of(first) is None:  # with ranks, earlier items may be available behind it
            at_most = counted.enqueued - counted.available + 1
            since += [at_us for at_us, enqueued in self._looks if enqueued >= at_most]
        return max(0, now_us - min(since, default=now_us))


def _thinned(looks: list[tuple[int, int]], now_us: int) -> list[tuple[int, int]]:
    kept = looks[:1]
    for one, following in pairwise(looks[1:]):
        if following[0] - kept[-1][0] > (now_us - one[0]) / PRECISION:
            kept.append(one)
    return [*kept, looks[-1]]


async def read_lease_stats(tr: Transaction, layout: Layout, now_us: int, looks: Looks, *, remember: bool) -> LeaseStats:
    """Read a queue's `LeaseStats`.

    Args:
        looks: the earlier looks.
        remember: whether to remember this look; not in a caller's transaction, which may have enqueued items itself.
    """
    overdue = started(due_timers(tr, layout, now_us, limit=OVERDUE_LIMIT))
    first = started(rows(tr.snapshot, layout.begin, layout.end, limit=1))
    counted = await read_own_stats(tr, layout)
    late = await overdue
    age_s = at_least_s = None
    found = await first
    packed = layout.available.packed(found[0].key) if found else b""
    if remember:
        looks.remember(counted, packed, now_us)
    for row in found:
        with suppress(FormatError):  # a call that takes it raises this, and a check reports it
            enqueued_at_us = notes_of(row.value).enqueued_at_us
            age_s = (now_us - enqueued_at_us) / 1e6 if enqueued_at_us else None
        at_least_s = looks.age_us(counted, packed, now_us) / 1e6 if age_s is None else age_s
    return LeaseStats(**asdict(counted), overdue=len(late), oldest_age_s=age_s, oldest_age_at_least_s=at_least_s)
