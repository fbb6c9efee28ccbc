"""Alone: how a process that meets nobody at the head of a queue takes items out, one after the other.

It looks at the head and at whether anything else stands in front of it in one read, and once that pays, it takes what
it foresees. Nothing here decides who gets what: a guess that is wrong costs a conflict, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.layout import Layout

from ..leases._taking import UNTAKEABLE, LifeOver
from ._attempt import Attempt, Unforeseen
from ._delivery import Delivery, HeadRead
from ._prefetch import Prefetch
from ._versions import RECENT_SECONDS

ROWS_AT_MOST = 32
BYTES_AT_MOST = 50_000
"""About how much is read ahead."""
WORTH_SECONDS = 0.0002
"""Who reads the head in less time has nothing to save."""
PAUSE_CALLS = 16
"""After something was not as foreseen, so many calls look for themselves: one wasted commit in so many is no loss."""


class Uncontended:
    """Takes single items out for one process that meets nobody.

    Args:
        serving: what takes items of the queue.
        layout: of the queue.
        begin: where the first request stands, if there is any.
    """

    __slots__ = ("_begin", "_foresight", "_layout", "_limit", "_pause", "_seen_at", "_serving", "guessed")

    def __init__(self, serving: Delivery, layout: Layout, begin: bytes) -> None:
        self._serving = serving
        self._layout = layout
        self._begin = begin
        self._foresight: Prefetch | None = None
        self._seen_at = 0.0
        self._limit = 1
        self._pause = 0
        self.guessed = False
        """Whether the last attempt conflicts with more than what it takes, which says nothing yet about others."""

    def take(self, tr: Transaction, turn: Attempt) -> Steps[HeadRead | None]:
        """Take one item out for a turn; if it did not, return what was seen, as `Serving.look_alone`.

        Raises:
            Unforeseen: what was foreseen can't be taken.
        """
        # Forgotten with it, so that an attempt after one that failed looks.
        foresight, self._foresight = self._known(), None
        look = None
        if foresight is not None:
            tr.set_read_version(foresight.version)
        else:
            began_at = time.monotonic()
            look = yield from self._serving.look_alone(tr, self._begin, limit=self._limit)
            if look is None or not look.rows:
                return look
            self._looked(look.rows, time.monotonic() - began_at)
            foresight = Prefetch(look.rows, 0)
        self.guessed = len(foresight.rows) > 1
        foresight.expect(tr, self._begin if self.guessed else self._layout.begin)
        try:
            turn.got = [(yield from self._serving.take_next(tr, foresight.next))]
        except (*UNTAKEABLE, LifeOver) as error:
            if look is None:
                raise Unforeseen from error  # who looks is told what is wrong with it
            return look
        turn.foresight = foresight.after()
        return None

    def committed(self, foresight: Prefetch, version: int) -> None:
        """Foresee that, as of just before a commit that took the last item; 0 or less: it is not known."""
        if version > 0:
            self._foresight = Prefetch(foresight.rows, foresight.taken, version - 1)
            self._seen_at = time.monotonic()

    def was_wrong(self) -> None:
        """Look for some time."""
        self._limit, self._pause = 1, PAUSE_CALLS

    def _known(self) -> Prefetch | None:
        if self._foresight is None or time.monotonic() - self._seen_at < RECENT_SECONDS:
            return self._foresight
        self._limit = 1  # who comes so seldom has read in vain
        return None

    def _looked(self, rows: Sequence[KeyValue], seconds: float) -> None:
        """Read more the next time, if looking took so long that not to look saves something."""
        if self._pause:
            self._pause -= 1
        elif seconds >= WORTH_SECONDS:
            size = sum(len(row.value) for row in rows)
            self._limit = max(1, len(rows) // 2) if size > BYTES_AT_MOST else min(2 * self._limit, ROWS_AT_MOST)
