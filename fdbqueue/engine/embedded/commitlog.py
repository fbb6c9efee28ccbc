"""The log of recent commits: which keys and ranges each wrote, and whether a read that came before meets them.

A commit conflicts if a range that its transaction read was written, after its read version, by another. The log says
so for all processes: it stands beside the data, one record a commit, written in the commit's own LMDB transaction.
The check is exact, with keys as half-open ranges ``[key, key + b"\\0")``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

Range = tuple[bytes, bytes]

_HEADER: Final = struct.Struct(">QII")
CACHE_BYTES: Final = 16 << 20


def encode(time_us: int, keys: Sequence[bytes], ranges: Sequence[Range]) -> bytes:
    """Return the record of a commit: when it was, which single keys it wrote, and which ranges."""
    parts = [*keys, *chain.from_iterable(ranges)] if ranges else keys
    count = len(parts)
    lengths = struct.pack(f">{count}H", *map(len, parts))
    return b"".join((_HEADER.pack(time_us, len(keys), len(ranges)), lengths, *parts))


def time_of(record: bytes) -> int:
    """Return when the record's commit was, in microseconds of the machine's clock."""
    return int.from_bytes(record[:8], "big")


class Entry:
    """What one commit wrote; `version` is its version."""

    __slots__ = ("_begins", "_ends", "_key_set", "_keys", "_ranges", "_record", "_sorted", "size", "time_us", "version")

    def __init__(self, version: int, record: bytes) -> None:
        self.version = version
        self.time_us = time_of(record)
        self.size = len(record)
        self._record = record
        self._keys: list[bytes] | None = None
        self._ranges: list[Range] = []
        self._key_set: frozenset[bytes] | None = None
        self._sorted: list[bytes] | None = None
        self._begins: list[bytes] | None = None
        self._ends: list[bytes] = []

    @property
    def keys(self) -> list[bytes]:
        """The single keys that were written."""
        return self._decode() if self._keys is None else self._keys

    @property
    def ranges(self) -> list[Range]:
        """The ranges that were written."""
        if self._keys is None:
            self._decode()
        return self._ranges

    def meets_key(self, key: bytes) -> bool:
        """Say whether `key` was written."""
        if self._key_set is None:
            self._key_set = frozenset(self.keys)
        return key in self._key_set or (bool(self._ranges) and self._in_ranges(key))

    def meets_any(self, keys: Sequence[bytes]) -> bool:
        """Say whether one of `keys` was written."""
        if self._key_set is None:
            self._key_set = frozenset(self.keys)
        if not self._key_set.isdisjoint(keys):
            return True
        return bool(self._ranges) and any(map(self._in_ranges, keys))

    def meets_range(self, begin: bytes, end: bytes) -> bool:
        """Say whether something in ``[begin, end)`` was written."""
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self.keys)
        at = bisect_left(keys, begin)
        if at < len(keys) and keys[at] < end:
            return True
        return bool(self._ranges) and self._overlaps(begin, end)

    def _in_ranges(self, key: bytes) -> bool:
        return self._overlaps(key, key + b"\0")

    def _overlaps(self, begin: bytes, end: bytes) -> bool:
        if self._begins is None:
            self._merge()
        at = bisect_right(self._ends, begin)
        return self._begins is not None and at < len(self._begins) and self._begins[at] < end

    def _merge(self) -> None:
        begins: list[bytes] = []
        ends: list[bytes] = []
        for begin, end in sorted(self._ranges):
            if begin >= end:
                continue
            if ends and begin <= ends[-1]:
                ends[-1] = max(end, ends[-1])
            else:
                begins.append(begin)
                ends.append(end)
        self._begins, self._ends = begins, ends

    def _decode(self) -> list[bytes]:
        record = self._record
        _, keys, ranges = _HEADER.unpack_from(record)
        count = keys + 2 * ranges
        lengths = struct.unpack_from(f">{count}H", record, _HEADER.size)
        start = _HEADER.size + 2 * count
        parts = [record[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
        self._keys = parts[:keys]
        self._ranges = list(zip(parts[keys::2], parts[keys + 1 :: 2], strict=True))
        return self._keys


class RecentCommits:
    """The newest entries of the log, kept decoded by this process; older ones are read from LMDB when asked for.

    Only the thread that holds the committer's lead uses it.
    """

    __slots__ = ("_bytes", "_entries", "_log", "last_time_us", "last_version")

    def __init__(self, log: Any) -> None:
        self._log = log
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self.last_version = -1
        self.last_time_us = 0

    def add(self, entry: Entry) -> None:
        """Take in the newest commit."""
        self._entries.append(entry)
        self._bytes += entry.size
        self.last_version = entry.version
        self.last_time_us = entry.time_us
        while self._bytes > CACHE_BYTES and len(self._entries) > 1:
            self._bytes -= self._entries.popleft().size

    def catch_up(self, txn: Any) -> list[Entry]:
        """Take in what other processes have committed, and return it."""
        if self.last_version < 0:
            cursor = txn.cursor(self._log)
            cursor.last()
            self.add(Entry(int.from_bytes(cursor.key(), "big"), cursor.value()))
            return []
        new = list(read_log(txn, self._log, self.last_version))
        for entry in new:
            self.add(entry)
        return new

    def forget(self, before_us: int) -> None:
        """Let go of entries from before `before_us`, but for the newest."""
        entries = self._entries
        while len(entries) > 1 and entries[0].time_us < before_us:
            self._bytes -= entries.popleft().size

    def reaches(self, txn: Any, version: int) -> bool:
        """Say whether every commit after `version` is known."""
        if self._entries[0].version <= version:
            return True
        cursor = txn.cursor(self._log)
        return bool(cursor.first()) and int.from_bytes(cursor.key(), "big") <= version

    def since(self, txn: Any, version: int) -> Iterator[Entry]:
        """Give the commits after `version`, the newest first while they are cached."""
        oldest = version
        for entry in reversed(self._entries):
            oldest = entry.version
            if oldest <= version:
                return
            yield entry
        for entry in read_log(txn, self._log, version):
            if entry.version >= oldest:
                return
            yield entry


def read_log(txn: Any, log: Any, after: int) -> Iterator[Entry]:
    """Read the commits after version `after`, in order."""
    cursor = txn.cursor(log)
    if cursor.set_range((after + 1).to_bytes(8, "big")):
        for key, record in cursor.iternext():
            yield Entry(int.from_bytes(key, "big"), record)


def conflicts(entries: Iterable[Entry], keys: Sequence[bytes], ranges: Sequence[Range]) -> bool:
    """Say whether one of `entries` wrote what was read."""
    for entry in entries:
        if keys and entry.meets_any(keys):
            return True
        for begin, end in ranges:
            if entry.meets_range(begin, end):
                return True
    return False


def conflicting(entries: Iterable[Entry], keys: Sequence[bytes], ranges: Sequence[Range]) -> list[Range]:
    """Return all that was read and that one of `entries` wrote, in the order given."""
    found = list(entries)
    points = [(key, key + b"\0") for key in keys if any(entry.meets_key(key) for entry in found)]
    return points + [(b, e) for b, e in ranges if any(entry.meets_range(b, e) for entry in found)]
