"""A position among the segments of a transaction's key space, for reads over own writes or earlier reads.

Every key is in exactly one segment: a *row* with a known value, an *empty* range, or an *unknown* range. Known
segments come from the transaction's own writes and earlier reads. The snapshot answers for unknown ones.

The ranges that were read decide where the page of a range read ends. The page's end decides the conflicts of a
transaction that stops reading there. So the transaction keeps these ranges, although it could cheaply read the rows
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.client.write_buffer import Intervals, WriteBuffer
from fdbqueue.engine.embedded.store.commit.atomics import Point, Stack
from fdbqueue.engine.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.store.store import Snapshot

UNKNOWN: Final = 0
EMPTY: Final = 1
ROW: Final = 2

UNMODIFIED: Final = 0
CLEARED: Final = 1
INDEPENDENT: Final = 2
DEPENDENT: Final = 3

LAST: Final = b"\xff\xff"
"""The end of all keys."""


class SegmentPosition:
    """A segment, with moves to the next and the previous one.

    Args:
        known: the ranges of the snapshot that the transaction has read.
        writes: the transaction's own writes; None to see only the snapshot.
    """

    __slots__ = (
        "_ahead",
        "_below",
        "_known",
        "_over",
        "_snap",
        "_writes",
        "below_begin",
        "below_end",
        "below_value",
        "over_begin",
        "over_end",
        "point",
        "unreadable",
    )

    def __init__(self, snap: Callable[[], Snapshot], known: Intervals, writes: WriteBuffer | None) -> None:
        self._snap = snap
        self._known = known
        self._writes = writes
        self._ahead: Iterator[tuple[bytes, bytes]] | None = None
        self._below = UNKNOWN
        self.below_begin: bytes = b""
        self.below_end: bytes = LAST
        self.below_value: bytes | None = None
        self._over = UNMODIFIED
        self.over_begin: bytes = b""
        self.over_end: bytes = LAST
        self.point: Point = None
        self.unreadable = False

    def copy(self) -> SegmentPosition:
        other = SegmentPosition(self._snap, self._known, self._writes)
        for name in ("_below", "below_begin", "below_end", "below_value", "_over", "over_begin", "over_end", "point"):
            setattr(other, name, getattr(self, name))
        other.unreadable = self.unreadable
        return other

    @property
    def begin(self) -> bytes:
        return max(self.below_begin, self.over_begin)

    @property
    def end(self) -> bytes:
        return min(self.below_end, self.over_end)

    @property
    def kind(self) -> int:
        """Return the kind of the segment.

        Raises:
            FDBError: 1036 if the segment depends on a versionstamp.
        """
        if self.unreadable:
            raise FDBError(1036)
        over = self._over
        if over == UNMODIFIED:
            return self._below
        if over == CLEARED:
            return EMPTY
        if over == INDEPENDENT:
            return ROW
        return UNKNOWN if self._below == UNKNOWN else ROW

    @property
    def told(self) -> bool:
        """Return whether the segment is known without a read of the snapshot."""
        return not self.unreadable and self.kind != UNKNOWN

    @property
    def unmodified(self) -> bool:
        return self._over == UNMODIFIED

    def unmodified_end(self) -> bytes:
        """Return the end of the known, unwritten keys that start at this unmodified row."""
        known = self._known
        return min(self.over_end, known.ends[bisect_right(known.begins, self.below_begin) - 1])

    def unmodified_begin(self) -> bytes:
        """Return the begin of the known, unwritten keys that end at this unmodified row."""
        known = self._known
        return max(self.over_begin, known.begins[bisect_right(known.begins, self.below_begin) - 1])

    def same(self, other: SegmentPosition) -> bool:
        return self.begin == other.begin and self.end == other.end

    def value(self) -> bytes | None:
        """Return the value of a row, or None if the transaction's own operations cleared it."""
        if self._over == UNMODIFIED:
            return self.below_value
        if isinstance(self.point, Stack):
            return self.point.value(self.below_value if self._below == ROW else None)
        return self.point

    # -- moving --------------------------------------------------------------------------------------------------

    def seek(self, key: bytes) -> None:
        """Move to the segment that holds `key`."""
        if key >= LAST:
            self._below, self.below_begin, self.below_end, self.below_value = EMPTY, LAST, LAST + b"\0", None
            self._over, self.over_begin, self.over_end, self.point = UNMODIFIED, LAST, LAST + b"\0", None
            self.unreadable = False
            return
        self._seek_below(key)
        self._seek_over(key)

    def next(self) -> None:
        """Move to the next segment."""
        at = self.end
        if self.below_end <= at:
            self._next_below(at)
        if self.over_end <= at:
            self._seek_over(at)

    def back(self) -> None:
        """Move to the previous segment."""
        at = self.begin
        if self.below_begin >= at:
            self._back_below(at)
        if self.over_begin >= at:
            self._back_over(at)

    def _seek_below(self, key: bytes) -> None:
        known = self._known
        self._ahead = None
        self.below_value = None
        at = bisect_right(known.begins, key) - 1
        if at < 0 or key >= known.ends[at]:
            self._below = UNKNOWN
            self.below_begin = known.ends[at] if at >= 0 else b""
            self.below_end = known.begins[at + 1] if at + 1 < len(known.begins) else LAST
            return
        rows = self._snap().rows(key, known.ends[at], 1)
        if rows and rows[0][0] == key:
            self._below, self.below_begin, self.below_end, self.below_value = ROW, key, key + b"\0", rows[0][1]
            return
        self._below = EMPTY
        row = self._row_before(known.begins[at], key)
        self.below_begin = known.begins[at] if row is None else row[0] + b"\0"
        self.below_end = rows[0][0] if rows else known.ends[at]

    def _row_before(self, begin: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        rows = self._snap().rows(begin, key, 1, True) if begin < key else None
        return rows[0] if rows else None

    def _next_below(self, key: bytes) -> None:
        """Move on to `key`, the end of the snapshot's current segment."""
        known = self._known
        if key >= LAST:
            self._below, self.below_begin, self.below_end = EMPTY, LAST, LAST + b"\0"
            return
        at = bisect_right(known.begins, key) - 1
        if at < 0 or key >= known.ends[at]:
            self._seek_below(key)
            return
        if self._ahead is None:
            self._ahead = _rows(self._snap, key, known.ends[at])
            self.below_value = None
        elif self._below == EMPTY and self.below_value is not None:
            # The read of the empty range has found the row at its end.
            self._below, self.below_begin, self.below_end = ROW, key, key + b"\0"
            return
        row = next(self._ahead, None)
        if row is None:
            self._below, self.below_begin, self.below_end, self.below_value = EMPTY, key, known.ends[at], None
            self._ahead = None
        elif row[0] == key:
            self._below, self.below_begin, self.below_end, self.below_value = ROW, key, key + b"\0", row[1]
        else:
            self._below, self.below_begin, self.below_end, self.below_value = EMPTY, key, row[0], row[1]

    def _back_below(self, key: bytes) -> None:
        """Move back from `key`, the begin of the snapshot's current segment."""
        known = self._known
        self._ahead = None
        self.below_value = None
        at = bisect_left(known.begins, key) - 1
        if at < 0 or key > known.ends[at]:
            self._below = UNKNOWN
            self.below_begin = known.ends[at] if at >= 0 else b""
            self.below_end = key
            return
        row = self._row_before(known.begins[at], key)
        if row is not None and row[0] + b"\0" == key:
            self._below, self.below_begin, self.below_end, self.below_value = ROW, row[0], key, row[1]
        else:
            self._below = EMPTY
            self.below_begin = known.begins[at] if row is None else row[0] + b"\0"
            self.below_end = key

    def _seek_over(self, key: bytes) -> None:
        writes = self._writes
        self.point = None
        self.unreadable = False
        self._over = UNMODIFIED
        if writes is None:
            self.over_begin, self.over_end = b"", LAST
            return
        if key >= LAST:
            self.over_begin, self.over_end = LAST, LAST + b"\0"
            return
        keys = writes.ordered()
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            self._on_point(key)
            return
        begin = keys[at - 1] + b"\0" if at else b""
        end = keys[at] if at < len(keys) else LAST
        self._between(writes, key, begin, end)

    def _on_point(self, key: bytes) -> None:
        point = self._writes.points[key]  # type: ignore[union-attr]
        self.over_begin, self.over_end, self.point = key, key + b"\0", point
        if point is None:
            self._over = CLEARED
        elif isinstance(point, Stack):
            self._over = DEPENDENT if point.dependent else INDEPENDENT
            self.unreadable = point.unreadable
        else:
            self._over = INDEPENDENT

    def _between(self, writes: WriteBuffer, key: bytes, begin: bytes, end: bytes) -> None:
        """Move to the segment around `key`, which is not written. The segment is inside ``[begin, end)``."""
        for ranges, kind in ((writes.clears, CLEARED), (writes.unreadable, UNMODIFIED)):
            at = bisect_right(ranges.begins, key) - 1
            if at >= 0 and key < ranges.ends[at]:
                begin, end = max(begin, ranges.begins[at]), min(end, ranges.ends[at])
                self._over = kind
                self.unreadable = kind == UNMODIFIED
                continue
            if at >= 0:
                begin = max(begin, ranges.ends[at])
            if at + 1 < len(ranges.begins):
                end = min(end, ranges.begins[at + 1])
        edges = writes.edges
        if edges:
            at = bisect_right(edges, key)
            if at:
                begin = max(begin, edges[at - 1])
            if at < len(edges):
                end = min(end, edges[at])
        self.over_begin, self.over_end = begin, end

    def _back_over(self, key: bytes) -> None:
        """Move back from `key`, the begin of the writes' current segment."""
        writes = self._writes
        self.point = None
        self.unreadable = False
        self._over = UNMODIFIED
        if writes is None:
            self.over_begin, self.over_end = b"", key
            return
        keys = writes.ordered()
        at = bisect_left(keys, key)
        if at and keys[at - 1] + b"\0" == key:
            self._on_point(keys[at - 1])
            return
        begin = keys[at - 1] + b"\0" if at else b""
        for ranges, kind in ((writes.clears, CLEARED), (writes.unreadable, UNMODIFIED)):
            at = bisect_left(ranges.begins, key) - 1
            if at < 0:
                continue
            if key <= ranges.ends[at]:
                begin = max(begin, ranges.begins[at])
                self._over = kind
                self.unreadable = kind == UNMODIFIED
            else:
                begin = max(begin, ranges.ends[at])
        at = bisect_left(writes.edges, key)
        if at:
            begin = max(begin, writes.edges[at - 1])
        self.over_begin, self.over_end = begin, key


def _rows(snap: Callable[[], Snapshot], begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a range. The first reads fetch few rows.

    This is no method of `SegmentPosition`, which holds the iterator: the cycle would keep a dropped transaction alive.
    """
    count = 1
    while begin < end:
        rows = snap().rows(begin, end, count)
        yield from rows
        if len(rows) < count:
            return
        begin, count = rows[-1][0] + b"\0", min(4 * count, 256)
