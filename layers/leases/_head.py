"""The head of a queue: which items are next, and what conflicts with taking them.

This is the one place that knows in which order items are taken. It is the order of their keys, whatever the queue's
own order (`fdbqueue.order`); a layer that takes them otherwise gives `Leases` another head.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.layout import TAKEN, Layout


class Head:
    """The first items, in the order of the queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read the next `limit` available items; `after`: right behind this item's key, to be taken together with it.

        By snapshot, since only `take` knows how many of them are taken: a plain read of 100 rows that finds 3 would
        conflict with every enqueue, though one behind the last taken item changes nothing.
        """
        begin = self._layout.begin if after is None else after + b"\x00"
        return rows(tr.snapshot, begin, self._layout.end, limit=limit)

    def came_back(self, packed: Sequence[bytes]) -> None:
        """Note which items this transaction itself has put back before it reads again."""

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items: the first ones of those, at least one, that `first` read.

        The conflict range begins at the start of the queue, not at the first item, and ends with the last one: it is
        met by another who takes one of these items, and by what comes to stand in front of one: an item that was
        given back, or fell due, or that a slow producer brings. Then this transaction runs again and takes that one
        first. Nobody else writes there, so that there is no conflict without one item in common, or one in front.
        """
        tr.add_read_conflict_range(self._layout.begin, taken[-1].key + b"\x00")
        tr.clear_range(taken[0].key, taken[-1].key + TAKEN)

    def found_nothing(self, tr: Transaction) -> None:
        """Make the caller's "there is nothing" true when it commits: conflict with whatever comes to stand here."""
        tr.add_read_conflict_range(self._layout.begin, self._layout.end)
