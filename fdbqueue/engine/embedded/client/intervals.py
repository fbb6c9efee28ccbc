"""A set of keys, stored as sorted, disjoint, half-open intervals that never touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[bytes, bytes]


class Intervals:
    """A set of keys with operations on ranges.

    >>> keys = Intervals([(b"a", b"c"), (b"c", b"d")])
    >>> keys.remove(b"b", b"b\\x00")
    >>> list(keys)
    [(b'a', b'b'), (b'b\\x00', b'd')]
    >>> b"b" in keys, keys.meets(b"b", b"c"), list(keys.clip(b"", b"b"))
    (False, True, [(b'a', b'b')])

    *Cost:* a search is logarithmic in the number of intervals. A change moves the intervals behind it.
    """

    __slots__ = ("begins", "ends")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.begins: list[bytes] = []
        self.ends: list[bytes] = []
        if ranges:
            for begin, end in ranges:
                self.add(begin, end)

    def __bool__(self) -> bool:
        return bool(self.begins)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.begins, self.ends, strict=True)

    def __repr__(self) -> str:
        return f"Intervals({list(self)!r})"

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.begins, key) - 1
        return at >= 0 and key < self.ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add every key of ``[begin, end)``."""
        if begin >= end:
            return
        begins, ends = self.begins, self.ends
        if not ends or begin > ends[-1]:
            begins.append(begin)
            ends.append(end)
            return
        first = bisect_left(ends, begin)  # the first interval that reaches `begin`
        last = bisect_right(begins, end)  # the first interval that starts behind `end`
        if first < last:
            begin = min(begin, begins[first])
            end = max(end, ends[last - 1])
        begins[first:last] = [begin]
        ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove every key of ``[begin, end)``."""
        begins, ends = self.begins, self.ends
        first = bisect_right(ends, begin)
        last = bisect_left(begins, end)
        if first >= last or begin >= end:
            return
        kept = [
            part
            for part in (
                (begins[first], min(begin, ends[first])),
                (max(end, begins[last - 1]), ends[last - 1]),
            )
            if part[0] < part[1]
        ]
        begins[first:last] = [part[0] for part in kept]
        ends[first:last] = [part[1] for part in kept]

    def meets(self, begin: bytes, end: bytes) -> bool:
        """Return whether any key of ``[begin, end)`` is in the set."""
        at = bisect_right(self.ends, begin)
        return at < len(self.begins) and self.begins[at] < end

    def end_of(self, key: bytes) -> bytes:
        """Return the end of the interval that holds `key`, or `key` if none does."""
        at = bisect_right(self.begins, key) - 1
        return self.ends[at] if at >= 0 and key < self.ends[at] else key

    def begin_of(self, key: bytes) -> bytes:
        """Return the begin of the interval that holds the keys right before `key`, or `key` if none does."""
        at = bisect_left(self.begins, key) - 1
        return self.begins[at] if at >= 0 and key <= self.ends[at] else key

    def clip(self, begin: bytes, end: bytes) -> Iterator[Range]:
        """Yield the set's intervals inside ``[begin, end)``, cut at its ends."""
        at = bisect_right(self.ends, begin)
        while at < len(self.begins) and self.begins[at] < end:
            yield max(begin, self.begins[at]), min(end, self.ends[at])
            at += 1

    def gaps(self, begin: bytes, end: bytes) -> Iterator[Range]:
        """Yield the parts of ``[begin, end)`` that are not in the set."""
        for low, high in self.clip(begin, end):
            if begin < low:
                yield begin, low
            begin = high
        if begin < end:
            yield begin, end
