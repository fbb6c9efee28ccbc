"""Take items out one after the other, for a process that meets no other one at the head of a queue.

One read returns the head and shows whether other keys are in front of it. When prefetch pays, the process takes the
items that it predicted, without a read. Nothing here decides which process gets an item: a wrong prediction only costs
a conflict.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fdbqueue.lowlevel import KeyValue, Layout, Transaction

from ..leases.taking import HeadRead
from ._recent import RECENT_SECONDS, Prefetch, Unforeseen
from .delivery import HeadDelivery

if TYPE_CHECKING:
    from .grants import Attempt

ROWS_AT_MOST = 32
BYTES_AT_MOST = 50_000
"""About how many bytes are prefetched."""
WORTH_SECONDS = 0.0002
"""If a read of the head takes less time, prefetch saves nothing."""
PAUSE_CALLS = 16
"""After a wrong prediction, so many calls read the head. Then one commit in so many is wasted at most."""


class Uncontended:
    """Takes single items out for one uncontended process.

    Args:
        delivery: the delivery of the queue.
        layout: the layout of the queue.
        begin: the begin of the range of requests.
    """

    __slots__ = (
        *("_begin", "_delivery", "_layout", "_limit", "_pause", "_prefetch", "_seen_at"),
        *("guessed", "may_prefetch"),
    )

    def __init__(self, delivery: HeadDelivery, layout: Layout, begin: bytes, *, may_prefetch: bool = True) -> None:
        self._delivery = delivery
        self._layout = layout
        self._begin = begin
        self._prefetch: Prefetch | None = None
        self._seen_at = 0.0
        self._limit = 1
        self._pause = 0
        self.guessed = False
        """Whether the last attempt conflicts with more than the item that it takes. Such a conflict does not prove
        contention yet."""
        self.may_prefetch = may_prefetch
        """Whether a read has a round trip, which prefetch can save."""

    async def take(self, tr: Transaction, attempt: Attempt) -> HeadRead | None:
        """Take one item out for an attempt. Else return the look, as `HeadDelivery.look_uncontended` does.

        Raises:
            Unforeseen: the predicted item can't be taken.
        """
        # Forgotten here, so that an attempt after a failed one reads the head.
        prefetch, self._prefetch = self._known() if self._prefetch is not None else None, None
        found: list[KeyValue] = []
        limit = self._limit if self.may_prefetch else 1
        if prefetch is not None:
            tr.set_read_version(prefetch.version)
        else:
            began_at = time.monotonic()
            seen = await self._delivery.rows_uncontended(tr, self._begin, limit=limit)
            if seen is None:
                return await self._delivery.look_past_timers(tr, self._begin, limit=1)
            if not seen:
                return self._delivery.looked(seen, limit=limit)
            found = seen
            if self.may_prefetch:
                self._looked(found, time.monotonic() - began_at)
            if len(found) > 1:
                prefetch = Prefetch(found, 0)
        if prefetch is not None:
            self.guessed = True
            prefetch.expect(tr, self._begin)
            row = prefetch.next
        else:
            row = found[0]
            tr.add_read_conflict_range(self._layout.begin, row.key + b"\x00")
        got = await self._delivery.take_next(tr, row)
        if got is None:
            if not found:
                raise Unforeseen  # a call that reads the head gets the item's error
            return self._delivery.looked(found, limit=limit)
        attempt.got = [got]
        if prefetch is not None:
            attempt.prefetch = prefetch.after()
        return None

    def committed(self, prefetch: Prefetch, version: int) -> None:
        """Keep the prefetch of a commit, valid just before the commit's version; 0 or less: the version is unknown."""
        if version > 0:
            self._prefetch = Prefetch(prefetch.rows, prefetch.taken, version - 1)
            self._seen_at = time.monotonic()

    def was_wrong(self) -> None:
        """Stop prefetching for some calls."""
        self._limit, self._pause = 1, PAUSE_CALLS

    def _known(self) -> Prefetch | None:
        if self._prefetch is None or time.monotonic() - self._seen_at < RECENT_SECONDS:
            return self._prefetch
        self._limit = 1  # calls are too rare for prefetch
        return None

    def _looked(self, rows: Sequence[KeyValue], seconds: float) -> None:
        """Read more the next time, if the look took so long that prefetch saves time."""
        if self._pause:
            self._pause -= 1
        elif self.may_prefetch and seconds >= WORTH_SECONDS:
            size = sum(len(row.value) for row in rows)
            self._limit = max(1, len(rows) // 2) if size > BYTES_AT_MOST else min(2 * self._limit, ROWS_AT_MOST)
