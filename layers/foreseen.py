"""Foreseen: the items that come next, as a process knows them that takes items out alone.

A transaction at the head reads a few items more than it takes. When it commits, it knows what stands there now: nothing
came between and nothing went, or it would have met a conflict. The next one begins with that: it reads nothing and asks
for no version, and is one round trip, its commit. (docs/adr/0043)

It begins one version before the last commit. A commit shares its version with others, which the cluster puts behind it
in the same batch: of what those wrote, a transaction that began at that version itself would not be told. One version
earlier it is, and of the last commit's own write as well, which it therefore has to leave out of what it expects: the
one item that was taken, which nobody else brings back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fdbqueue.engine.api import KeyValue, Transaction

from .pacing import RECENT_SECONDS

ROWS_AT_MOST = 32
BYTES_AT_MOST = 50_000
"""About how much is read ahead."""
WORTH_SECONDS = 0.0002
"""Who reads the head in less time has nothing to save."""
PAUSE_CALLS = 16
"""After something was not as foreseen, so many calls look for themselves: one wasted commit in so many is no loss."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """The first items of a queue, the first `taken` of which are gone."""

    rows: Sequence[KeyValue]
    taken: int
    version: int = 0
    """As of when, but for the last one that was taken."""

    @property
    def next(self) -> KeyValue:
        """The first one that is there."""
        return self.rows[self.taken]

    def expect(self, tr: Transaction, begin: bytes) -> None:
        """Conflict with all that makes this untrue from `begin` on, before the transaction writes anything itself.

        That is more than the taking of one item meets: also a request that is registered, a timer that is set, and an
        item that comes between two of these. But for the last the item is not ours to take then, and that one happens
        where producers share an index.
        """
        end = self.rows[-1].key + b"\x00"
        if self.taken:
            gone = self.rows[self.taken - 1].key
            tr.add_read_conflict_range(begin, gone)
            begin = gone + b"\x00"
        tr.add_read_conflict_range(begin, end)

    def after(self) -> Foresight | None:
        """Return what is foreseen when one more is taken; None: nothing."""
        return Foresight(self.rows, self.taken + 1) if self.taken + 1 < len(self.rows) else None


class Foreseen:
    """What a process foresees. A guess that is wrong costs a conflict, and no more."""

    __slots__ = ("_foresight", "_limit", "_pause", "_seen_at")

    def __init__(self) -> None:
        self._foresight: Foresight | None = None
        self._seen_at = 0.0
        self._limit = 1
        self._pause = 0

    def limit(self) -> int:
        """Return how many items to read."""
        return self._limit

    def looked(self, rows: Sequence[KeyValue], seconds: float) -> None:
        """Read more the next time, if looking took so long that not to look saves something."""
        if self._pause:
            self._pause -= 1
        elif sum(len(row.value) for row in rows) > BYTES_AT_MOST:
            self._limit = max(1, len(rows) // 2)
        elif seconds >= WORTH_SECONDS:
            self._limit = min(2 * self._limit, ROWS_AT_MOST)

    def take(self) -> Foresight | None:
        """Return what is foreseen and forget it, so that an attempt after one that failed reads."""
        foresight, self._foresight = self._foresight, None
        if foresight is None:
            return None
        if time.monotonic() - self._seen_at < RECENT_SECONDS:
            return foresight
        self._limit = 1  # who comes so seldom has read in vain
        return None

    def committed(self, foresight: Foresight, version: int) -> None:
        """Foresee that, as of just before a commit that took the last item; 0 or less: it is not known."""
        if version > 0:
            self._foresight = Foresight(foresight.rows, foresight.taken, version - 1)
            self._seen_at = time.monotonic()

    def was_wrong(self) -> None:
        """Look for some time."""
        self._limit, self._pause = 1, PAUSE_CALLS
