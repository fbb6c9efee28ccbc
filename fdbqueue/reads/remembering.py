"""What a process remembers of its earlier looks at a queue: for rates, depths, and the ages of first items.

To store only its payload and one byte, a plain enqueue notes no time. So the queue does not tell the item's age. The
index does not tell it either, since an empty queue gives the same indices to other items. So a process remembers, at
each look, how many items had been enqueued in total. The items enqueued before the first available item are no longer
available, so the number of unavailable items limits theirs. If an earlier look counted more enqueued items than that,
the item was there then. This needs no write and no further read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fdbqueue.base.reprs import Shown
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.positions import rank_of

MAX_LOOKS = 128
"""Most earlier looks that are remembered for ages; beyond that, some are forgotten."""
PRECISION = 4
"""An age may be too small by one part in so many. So a few looks are enough for years."""
LOOK_US = 1_000_000
"""A look within this time after another one is not remembered for ages."""


@dataclass(frozen=True, slots=True, repr=False)
class Look(Shown):
    """The counters of a queue at a time."""

    at: float
    """The time, in seconds since 1970."""
    stats: Stats
    """The counters."""


class History:
    """The looks of this process at one queue, the newest last.

    Args:
        seconds: older looks are forgotten.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.looks: deque[Look] = deque()

    def add(self, look: Look, most: int, *, apart: float = 0.0) -> None:
        """Add a look, and keep up to `most` of them, so many seconds apart or more. The newest one is always kept."""
        looks = self.looks
        if looks and (look.stats.enqueued < looks[-1].stats.enqueued or look.at < looks[-1].at):
            looks.clear()  # the queue was cleared, or the clock was set back
        if len(looks) > 1 and looks[-1].at - looks[-2].at < apart:
            looks.pop()
        looks.append(look)
        while looks[0].at < look.at - self._seconds or len(looks) > most:
            looks.popleft()

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Items a second that came and went since the look before the last; None if there is none."""
        return next(flows([*self.looks][-2:]), (None, None))

    @property
    def depths(self) -> list[float]:
        """The available items, from the oldest look to the newest."""
        return [float(one.stats.available) for one in self.looks]


def flows(looks: Iterable[Look]) -> Iterator[tuple[float, float]]:
    """Yield the items a second that came and went between looks."""
    for one, later in pairwise(looks):
        if (passed := later.at - one.at) > 0:
            came, went = (getattr(later.stats, name) - getattr(one.stats, name) for name in ("enqueued", "dequeued"))
            yield came / passed, went / passed


class Ages:
    """The counters that earlier looks at a queue saw, for the age of its first item.

    The counters show a clear of the queue, unless more items came and went after it than before.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        """The time of each look, and how many items had been enqueued by then."""
        self._gone = 0
        self._first = (b"", 0)
        """The first available item, and the time of the first look that saw it."""

    def remember(self, counted: Stats, first: bytes, now_us: int) -> None:
        """Remember a look at the counters and the packed position of the first available item, b"" for none."""
        gone = counted.dequeued + counted.expired + counted.purged + counted.deleted
        if gone < self._gone or (self.kept and counted.enqueued < self.kept[-1][1]):
            self.kept = []  # the queue was cleared
        self._gone = gone
        if first != self._first[0]:
            self._first = (first, now_us)
        if not self.kept or now_us - self.kept[-1][0] >= LOOK_US:
            looks = [*self.kept, (now_us, counted.enqueued)]
            self.kept = looks if len(looks) <= MAX_LOOKS else _thinned(looks, now_us)

    def age_us(self, counted: Stats, first: bytes, now_us: int) -> int:
        """Return a lower bound of the time that the first available item has been in the queue."""
        since = [self._first[1]] if first == self._first[0] else []
        if rank_of(first) is None:  # with ranks, earlier items may be available behind it
            at_most = counted.enqueued - counted.available + 1
            since += [at_us for at_us, enqueued in self.kept if enqueued >= at_most]
        return max(0, now_us - min(since, default=now_us))


def _thinned(looks: list[tuple[int, int]], now_us: int) -> list[tuple[int, int]]:
    kept = looks[:1]
    for one, following in pairwise(looks[1:]):
        if following[0] - kept[-1][0] > (now_us - one[0]) / PRECISION:
            kept.append(one)
    return [*kept, looks[-1]]
