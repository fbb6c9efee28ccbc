"""Know since when items are in their queues, if they store no time: from the indices that earlier reads have seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fdbqueue.engine.api import KeyValue
from fdbqueue.stored.layout import Layout

MOST_POINTS = 64
"""How many points of one queue are kept. With more, one of the closest is left out: ages get a little too small."""


class Ages:
    """Remembers at each read the highest index of each queue, and so at which read an item was there at the latest.

    A queue with ranks has no such order, and is not remembered.
    """

    def __init__(self) -> None:
        self._points: dict[bytes, deque[tuple[float, int]]] = {}
        self._seen: set[bytes] = set()

    def seen(self, layout: Layout, first: Sequence[KeyValue], last: Sequence[KeyValue], now: float) -> float | None:
        """Note the ends of a queue, and return since when its first item is there at least.

        Returns None without an item, or with ranks.
        """
        ends = [index_of(layout.available.packed(row.key)) for row in (*first[:1], *last[:1])]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return None
        low, high = ends[0], ends[1]
        self._seen.add(layout.prefix)
        points = self._points.setdefault(layout.prefix, deque())
        if points and high < points[-1][1]:
            points.clear()  # the queue was cleared
        while points and points[0][1] < low:
            points.popleft()
        if not points or high > points[-1][1]:
            points.append((now, high))
        if len(points) > MOST_POINTS:
            times = [at for at, _ in points]
            del points[min(range(1, MOST_POINTS), key=lambda at: times[at + 1] - times[at - 1])]
        return points[0][0]

    def forget_unseen(self) -> None:
        """Forget queues of which no item was seen since the last call."""
        for prefix in self._points.keys() - self._seen:
            del self._points[prefix]
        self._seen.clear()


def index_of(packed: bytes) -> int | None:
    """Return the index that begins a packed position; None if a rank does, or nothing."""
    size = packed[0] - 0x14 if packed else -1
    if not 0 <= size <= 8 or packed[1 + size : 2 + size] != b"\x01":
        return None
    return int.from_bytes(packed[1 : 1 + size], "big")
