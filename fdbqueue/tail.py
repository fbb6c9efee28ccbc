"""The end of a queue: which index the next item gets.

One more than the last available item's. An item that is away for a while, leased or delayed, must still come before
all that is enqueued meanwhile, also when no other item is left: who takes one away raises the queue's tail, below
which no new index is given.
"""

from __future__ import annotations

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.selector import KeySelector
from fdbqueue.engine.steps import Steps
from fdbqueue.layout import Layout


class LastIndex:
    """The last index that was given, on its way.

    By snapshot: were it a plain read, every enqueue would conflict with each that commits before it.

    *Conflicts:* none. *Cost:* one read where items were never lent; else two, which are issued at once but for the
    first time in a process.
    """

    __slots__ = ("_item", "_layout", "_tail", "_tr")

    def __init__(self, tr: Transaction, layout: Layout) -> None:
        self._tr = tr
        self._layout = layout
        self._tail = tr.snapshot.get(layout.tail_key) if layout.has_tail else None
        end = layout.end if layout.has_tail else layout.tail_key + b"\x00"
        self._item = tr.snapshot.get_key(KeySelector.last_less_than(end))

    def steps(self) -> Steps[int]:
        """Wait for it."""
        layout = self._layout
        key = bytes((yield self._item))
        if self._tail is None:
            if key != layout.tail_key:
                return layout.index_of(key)
            layout.has_tail = True
            return (yield from LastIndex(self._tr, layout).steps())
        index, tail = layout.index_of(key), (yield self._tail)
        return max(index, int.from_bytes(bytes(tail), "big")) if tail.present() else index


def raise_tail(tr: Transaction, layout: Layout, index: int) -> None:
    """Let no later enqueue get an index up to `index`.

    Atomically and without a read, so that those who take items away don't conflict with each other here. An enqueue
    that read the tail before this commits saw the item itself, where it was, or its own index is higher.
    """
    tr.byte_max(layout.tail_key, index.to_bytes(8, "big"))
