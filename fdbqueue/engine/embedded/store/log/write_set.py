"""The write set of commits, and the check of reads against it.

The check is exact: a key is the half-open range ``[key, key + b"\\0")``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[bytes, bytes]


class WriteSet:
    """Keys and ranges that were written. The forms that checks need are computed when first needed."""

    _key_set: set[bytes] | None = None
    _sorted: list[bytes] | None = None
    _merged: tuple[list[bytes], list[bytes]] | None = None

    def __init__(self, keys: list[bytes], ranges: list[Range]) -> None:
        self.keys = keys
        self.ranges = ranges

    def add(self, keys: Sequence[bytes], ranges: Sequence[Range]) -> None:
        """Add keys and ranges."""
        self.keys += keys
        if self._key_set is not None:
            self._key_set.update(keys)
        self._sorted = None
        if ranges:
            self.ranges += ranges
            self._merged = None

    def meets_any(self, keys: Sequence[bytes]) -> bool:
        """Return whether one of `keys` was written."""
        if self._key_set is None:
            self._key_set = set(self.keys)
        if not self._key_set.isdisjoint(keys):
            return True
        return bool(self.ranges) and any(self._in_ranges(key, key + b"\0") for key in keys)

    def meets_range(self, begin: bytes, end: bytes) -> bool:
        """Return whether a key in ``[begin, end)``, which may be empty, was written."""
        if begin >= end:
            return False
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self.keys)
        at = bisect_left(keys, begin)
        if at < len(keys) and keys[at] < end:
            return True
        return bool(self.ranges) and self._in_ranges(begin, end)

    def _in_ranges(self, begin: bytes, end: bytes) -> bool:
        if self._merged is None:
            self._merged = _merge(self.ranges)
        begins, ends = self._merged
        at = bisect_right(ends, begin)
        return at < len(begins) and begins[at] < end


def _merge(ranges: Iterable[Range]) -> tuple[list[bytes], list[bytes]]:
    """Return the begins and the ends of `ranges`, sorted and disjoint."""
    begins: list[bytes] = []
    ends: list[bytes] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if ends and begin <= ends[-1]:
            ends[-1] = max(end, ends[-1])
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends


def conflicts(written: Iterable[WriteSet], keys: Sequence[bytes], ranges: Sequence[Range]) -> bool:
    """Return whether one of the read `keys` or `ranges` was `written`."""
    for some in written:
        if keys and some.meets_any(keys):
            return True
        for begin, end in ranges:
            if some.meets_range(begin, end):
                return True
    return False


def conflicting(written: Iterable[WriteSet], keys: Sequence[bytes], ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Return the read keys and ranges that were `written`, keys first, in the order given."""
    found = list(written)
    points = [(key, key + b"\0") for key in keys if any(some.meets_any((key,)) for some in found)]
    return (*points, *(span for span in ranges if any(some.meets_range(*span) for some in found)))
