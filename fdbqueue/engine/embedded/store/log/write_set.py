"""The write set of a commit, as the log records it, and the check of reads against it.

The check is exact: a key is the half-open range ``[key, key + b"\\0")``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Final

Range = tuple[bytes, bytes]

_HEADER: Final = struct.Struct(">QII")
_SINGLE: Final = struct.Struct(">QIIH")
ONE_KEY: Final = 1 << 32
"""The number of keys and the number of ranges in a record with one key and no range, read as one integer."""
KEY_AT: Final = _SINGLE.size
"""Offset of that key."""


def encode(time_us: int, keys: Sequence[bytes], ranges: Sequence[Range]) -> bytes:
    """Return the record of a commit: its time, the single keys and the ranges that it wrote."""
    if len(keys) == 1 and not ranges:
        return _SINGLE.pack(time_us, 1, 0, len(keys[0])) + keys[0]
    parts = [*keys, *chain.from_iterable(ranges)] if ranges else keys
    count = len(parts)
    lengths = struct.pack(f">{count}H", *map(len, parts))
    return b"".join((_HEADER.pack(time_us, len(keys), len(ranges)), lengths, *parts))


def time_of(record: bytes) -> int:
    """Return the time of the record's commit, in microseconds of the machine's clock."""
    return int.from_bytes(record[:8], "big")


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


def decode(record: bytes) -> tuple[list[bytes], list[Range]]:
    """Return the keys and ranges of a record."""
    _, keys, ranges = _HEADER.unpack_from(record)
    count = keys + 2 * ranges
    lengths = struct.unpack_from(f">{count}H", record, _HEADER.size)
    start = _HEADER.size + 2 * count
    parts = [record[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
    return parts[:keys], list(zip(parts[keys::2], parts[keys + 1 :: 2], strict=True))


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
