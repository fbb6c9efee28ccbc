"""Checks that a queue has one order, that its high-water mark is right, and that its levels are counted correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fdbqueue.base import reprs
from fdbqueue.base.position import Position
from fdbqueue.stored.counters import COUNTED_RANKS
from fdbqueue.stored.settings import HighWaterMark


class OrderCheck:
    """The positions of a queue's items, as far as they matter for its order."""

    __slots__ = ("_last", "_levels", "_plain", "_ranked")

    def __init__(self) -> None:
        self._plain = 0
        self._ranked = 0
        self._last = 0
        self._levels: Counter[int] = Counter()

    def see(self, position: Position, state: str) -> None:
        """Note an item's position and state."""
        if position.rank is None:
            self._plain += 1
        else:
            self._ranked += 1
            self._last = max(self._last, position.index)
            if state == "available" and position.rank < COUNTED_RANKS:
                self._levels[position.rank] += 1

    def problems(self, mark: HighWaterMark, counted: Mapping[int, int]) -> list[str]:
        """Return the inconsistencies, one sentence each, given the high-water mark and the counters of the levels."""
        found = []
        if self._plain and mark.order is not None:
            found.append(
                f"The queue has the order {mark.order!r}, but {reprs.counted(self._plain, 'item')} without a rank."
            )
        if self._ranked and mark.order is None:
            found.append(
                f"The queue is first in, first out, but {reprs.counted(self._ranked, 'item has', 'items have')} a rank."
            )
        if self._last > mark.index:
            found.append(f"The high-water mark is {mark.index}, but there is an item with index {self._last}.")
        for rank in sorted({*self._levels, *counted}):
            there, said = self._levels[rank], counted.get(rank, 0)
            if there != said:
                found.append(f"The counters say that {said:,} items of rank {rank} are available, not {there:,}.")
        return found


class NoOrderCheck(OrderCheck):
    """Checks no order, for layers that give ranks to the items of a queue of their own and keep no mark of them."""

    def problems(self, mark: HighWaterMark, counted: Mapping[int, int]) -> list[str]:
        """Return nothing."""
        return []
