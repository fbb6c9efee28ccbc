"""The head of a queue: the next items, and the conflicts of a transaction that takes them.

Only this module knows the order of taking items. It is the order of their keys, which includes the queue's own
order (`fdbqueue.stored.order`). A layer that takes items in another way gives `Leases` another head.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.lowlevel import TAKEN, KeyValue, Layout, Steps, Transaction, rows


class Head:
    """The first items, in the order of the queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        """Read the next `limit` available items, behind the key `after` if given, to be taken together with that item.

        By snapshot, since only `take` knows how many of them are taken. A plain read of 100 rows that finds 3 would
        conflict with every enqueue. Yet an enqueue behind the last taken item changes nothing.
        """
        begin = self._layout.begin if after is None else after + b"\x00"
        return rows(tr.snapshot, begin, self._layout.end, limit=limit)

    def came_back(self, packed: Sequence[bytes]) -> None:
        """Note which items this transaction itself has put back, before it reads again."""

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items: the first ones, at least one, of the items that `first` read.

        The conflict range reaches from the start of the queue, before the first item, to the last taken item. It
        conflicts with another take of one of these items. It also conflicts with an item that appears in front of one:
        from a give-back, a fired timer or a slow producer. Then this transaction runs again and takes that item first.
        Nothing else is written in this range, so that all conflicts have one of these two causes.
        """
        tr.add_read_conflict_range(self._layout.begin, taken[-1].key + b"\x00")
        tr.clear_range(taken[0].key, taken[-1].key + TAKEN)

    def found_nothing(self, tr: Transaction) -> None:
        """Conflict with every new item, so that "there is nothing" is still true at the commit."""
        tr.add_read_conflict_range(self._layout.begin, self._layout.end)
