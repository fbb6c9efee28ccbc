"""Checks that a queue has one order, and that its tail is behind all items."""

from __future__ import annotations

from fdbqueue.layout import Position
from fdbqueue.tail import Tail


class OrderCheck:
    """What was seen of the positions of a queue's items."""

    __slots__ = ("_last", "_plain", "_ranked")

    def __init__(self) -> None:
        self._plain = 0
        self._ranked = 0
        self._last = 0

    def see(self, position: Position) -> None:
        """Note an item's position."""
        if position.rank is None:
            self._plain += 1
        else:
            self._ranked += 1
            self._last = max(self._last, position.index)

    def problems(self, tail: Tail) -> list[str]:
        """Return what does not fit together, a sentence each, given the tail as it was read afterwards."""
        found = []
        if self._plain and tail.order is not None:
            found.append(f"The queue has the order {tail.order!r}, but {self._plain:,} items without a rank.")
        if self._ranked and tail.order is None:
            found.append(f"The queue is first in, first out, but {self._ranked:,} items have a rank.")
        if self._last > tail.index:
            found.append(f"The tail says that index {tail.index} was the last to be given, but there is {self._last}.")
        return found
