"""The log of recent commits: which keys and ranges each one wrote, for the conflict check and for watches."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Final

from fdbqueue.engine.embedded.store.disk.layout import TAIL_KEY, WINDOW_SECONDS, Txn
from fdbqueue.engine.embedded.store.disk.rows import Databases, opened, sealed

# The write set of commits, and the check of reads against it.
#
# The check is exact: a key is the half-open range ``[key, key + b"\0")``.

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


# The log of recent commits in LMDB: rows of many commits, and the newest commits in a *tail*.
#
# LMDB keeps the roots of its databases in one page, and the tail is stored in that page. Every commit writes it
# anyway,
# so most commits write no other page for the log. When the tail is full, its entries become a row of the database
# ``log``. Each new row removes a few old ones. (Dropping many at once is cheaper in itself, but then LMDB has a
# long list
# of free pages. It writes that list again with every commit until the pages are used up.)
#
# ::
#
#     tail    | version of the last commit | entry | entry | …     the key ``tail`` of the environment's own
# database
#     row     | entry | entry | …                                  of ``log``, its key the version of its last entry
#     entry   | version of a commit | length | record |
#               8                     4
#     record  | time | numbers of keys and of ranges | lengths of the keys, and of the ends of the ranges | all of
# them |
#               8      4 + 4                           2 each
#
# Consecutive entries, in a row or in the tail, are a *run*. Commits of other processes stay in their runs until a
# check
# needs them: most are never needed one by one.

Commit = tuple[int, bytes]
"""A version and its record."""
Run = tuple[int, bytes]
"""The version of its last entry, and the entries."""

TAIL_BYTES: Final = 1_900
"""With key and header, less than half a page: LMDB's limit for an entry that shares a page with others."""
TRIM_MOST: Final = 3
"""Old rows that each new row removes at most. It is more than one, because otherwise rows would accumulate."""
WINDOW_US: Final = int((WINDOW_SECONDS + 1) * 1_000_000)

_HEADER: Final = struct.Struct(">QII")
_ONE_KEY: Final = 1 << 32
"""The number of keys and the number of ranges in a record with one key and no range, read as one integer."""
_KEY_AT: Final = _HEADER.size + 2
"""Offset of that key."""
_ENTRY: Final = struct.Struct(">QI")
_SHAPE: Final = struct.Struct(">8xI8xQ")
"""Of an entry: the length of its record, and the record's number of keys and of ranges."""
_VERSION_BYTES: Final = 8


@lru_cache(64)
def _entry_with(parts: int) -> struct.Struct:
    """Return the form of an entry of so many keys and ends of ranges, up to their lengths."""
    return struct.Struct(f">8sIQII{parts}H")


def entry_of(version: bytes, time_us: int, keys: Sequence[bytes], ranges: Sequence[Range]) -> bytes:
    """Return the entry of a commit: its version, and the record of its time, and of the keys and ranges written."""
    parts = [*keys, *chain.from_iterable(ranges)] if ranges else keys
    lengths = [*map(len, parts)]
    size = _HEADER.size + 2 * len(lengths) + sum(lengths)
    head = _entry_with(len(lengths)).pack(version, size, time_us, len(keys), len(ranges), *lengths)
    return b"".join((head, *parts))


def time_of(record: bytes) -> int:
    """Return the time of the record's commit, in microseconds of the machine's clock."""
    return int.from_bytes(record[:8], "big")


def decode(record: bytes) -> tuple[list[bytes], list[Range]]:
    """Return the keys and ranges of a record."""
    _, keys, ranges = _HEADER.unpack_from(record)
    count = keys + 2 * ranges
    lengths = struct.unpack_from(f">{count}H", record, _HEADER.size)
    start = _HEADER.size + 2 * count
    parts = [record[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
    return parts[:keys], list(zip(parts[keys::2], parts[keys + 1 :: 2], strict=True))


def begin(txn: Txn, dbs: Databases, time_us: int, *, jump: int) -> None:
    """Remove all commits and continue, `jump` versions higher, with one commit that wrote nothing."""
    version = (last_version(txn, dbs) + jump).to_bytes(8, "big")
    txn.drop(dbs.log, delete=False)
    append(txn, dbs, version, version, time_us, (), ())


def last_version(txn: Txn, dbs: Databases) -> int:
    """Return the version of the last commit, 0 if there is none."""
    tail = txn.get(TAIL_KEY, db=dbs.top)
    if tail is not None:
        return int.from_bytes(tail[:_VERSION_BYTES], "big")
    cursor = txn.cursor(dbs.log)  # the former format has no tail
    return int.from_bytes(cursor.key(), "big") if cursor.last() else 0


def tail_of(txn: Txn, dbs: Databases) -> bytes:
    """Return the tail, for `append`."""
    tail: bytes = txn.get(TAIL_KEY, b"", db=dbs.top)
    return tail


def append(
    txn: Txn,
    dbs: Databases,
    tail: bytes,
    version: bytes,
    time_us: int,
    keys: Sequence[bytes],
    ranges: Sequence[Range],
) -> tuple[bytes, bytes]:
    """Append the newest commit to `tail`, the tail that is stored now. Return the new tail, and the commit's entry.

    *Cost:* one write into a page that the commit writes anyway; once in about forty small commits, two searches for
    rows.
    """
    entry = entry_of(version, time_us, keys, ranges)
    if len(tail) + len(entry) <= TAIL_BYTES:
        tail = b"".join((version, tail[_VERSION_BYTES:], entry))
    else:
        if len(tail) > _VERSION_BYTES:
            _put(txn, dbs, tail[:_VERSION_BYTES], tail[_VERSION_BYTES:])
        if _VERSION_BYTES + len(entry) <= TAIL_BYTES:
            tail = version + entry
        else:
            _put(txn, dbs, version, entry)
            tail = version
        _trim(txn, dbs, version)
    txn.put(TAIL_KEY, tail, True, True, False, dbs.top)
    return tail, entry


def read_runs(txn: Txn, dbs: Databases, after: int) -> Iterator[Run]:
    """Read the commits after version `after`, in order, as stored runs."""
    cursor = txn.cursor(dbs.log)
    if cursor.set_range((after + 1).to_bytes(8, "big")):
        for key, row in cursor.iternext():
            yield int.from_bytes(key, "big"), newer(opened(dbs, key, row), after)
    tail = tail_of(txn, dbs)
    if rest := newer(tail[_VERSION_BYTES:], after):
        yield int.from_bytes(tail[:_VERSION_BYTES], "big"), rest


def read_log(txn: Txn, dbs: Databases, after: int) -> Iterator[Commit]:
    """Read the commits after version `after`, in order, one by one."""
    for _, run in read_runs(txn, dbs, after):
        yield from commits(run)


def first_of(run: bytes) -> int:
    """Return the version of the first entry of `run`."""
    return int.from_bytes(run[:_VERSION_BYTES], "big")


def newest(run: bytes) -> Commit:
    """Return the last commit of `run`."""
    at = end = 0
    while end < len(run):
        at = end
        version, length = _ENTRY.unpack_from(run, at)
        end += _ENTRY.size + length
    return version, run[at + _ENTRY.size :]


def newer(run: bytes, version: int) -> bytes:
    """Return the part of `run` after `version`; `run` itself if all of it is newer."""
    at = 0
    while at < len(run):
        found, length = _ENTRY.unpack_from(run, at)
        if found > version:
            break
        at += _ENTRY.size + length
    return run[at:]


def commits(run: bytes) -> Iterator[Commit]:
    """Yield the commits of `run` one by one."""
    at = 0
    while at < len(run):
        version, length = _ENTRY.unpack_from(run, at)
        at += _ENTRY.size
        yield version, run[at : at + length]
        at += length


def written_in(runs: Iterable[bytes]) -> tuple[list[bytes], list[Range]]:
    """Return the keys and ranges that the commits of `runs` wrote together."""
    keys: list[bytes] = []
    ranges: list[Range] = []
    for run in runs:
        at = 0
        while at < len(run):
            length, counts = _SHAPE.unpack_from(run, at)
            start = at + _ENTRY.size
            at = start + length
            if counts == _ONE_KEY:
                keys.append(run[start + _KEY_AT : at])
            else:
                some_keys, some_ranges = decode(run[start:at])
                keys += some_keys
                ranges += some_ranges
    return keys, ranges


def first_version(txn: Txn, dbs: Databases) -> int:
    """Return the version of the oldest commit in the log; 0 if there is none."""
    cursor = txn.cursor(dbs.log)
    found = cursor.first()
    oldest = commits(opened(dbs, *cursor.item()) if found else tail_of(txn, dbs)[_VERSION_BYTES:])
    return next(oldest, (0, b""))[0]


def _put(txn: Txn, dbs: Databases, key: bytes, run: bytes) -> None:
    txn.put(key, sealed(dbs, key, run), True, True, True, dbs.log)


def _trim(txn: Txn, dbs: Databases, version: bytes) -> None:
    """Drop some rows that no transaction can need; `version` is that of the last commit.

    Versions grow at least one per microsecond. The newest row from before the window stays: its last commit gives the
    state that a transaction at the start of the window sees.
    """
    cursor = txn.cursor(dbs.log)
    since = max(0, int.from_bytes(version, "big") - WINDOW_US).to_bytes(8, "big")
    if not (cursor.prev() if cursor.set_range(since) else cursor.last()):
        return
    kept = cursor.key()
    cursor.first()
    for _ in range(TRIM_MOST):
        if cursor.key() >= kept:
            return
        cursor.delete()


# The recent commits in memory: which keys and ranges each wrote, for the conflict check.
#
# A commit conflicts if another transaction wrote a range that it read, after its read version. The log of commits
# covers
# all processes: it is stored with the data (`log_rows`), and each commit writes its record in its own LMDB
# transaction.
# This module is the part of the log that one process keeps in memory.

CACHE_BYTES: Final = 24 << 20
BLOCK_BYTES: Final = 32 << 10
FEW: Final = 8
"""Up to this many runs are decoded one by one and cached, because later checks use them again."""
RUN_OVERHEAD: Final = 90
"""Bytes that Python needs for a run in addition to the run's own bytes."""


class Block:
    """Consecutive commits in runs: each own commit is one run, other processes' runs are copied from the log.

    The write set of the whole block is computed when a check needs it. A block holds plain bytes in lists. One object
    per commit would give the garbage collector hundreds of thousands of objects.
    """

    __slots__ = ("_all", "_each", "full", "runs", "size", "time_us", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        """The last version of each run."""
        self.runs: list[bytes] = []
        self.size = 0
        self.time_us = 0
        """Upper bound for the time of the last commit."""
        self.full = False
        self._each: dict[int, WriteSet] = {}
        self._all: WriteSet | None = None

    @property
    def first(self) -> int:
        """The version of the first commit."""
        return first_of(self.runs[0])

    def since(self, version: int) -> Iterator[WriteSet]:
        """Yield the write sets of commits after `version`: a single one if the block is full and entirely newer."""
        if self.full and self.first > version:
            if self._all is None:
                self._all = self._whole()
            yield self._all
            return
        first = bisect_right(self.versions, version)
        runs = self.runs[first:]
        if len(runs) > FEW:
            runs[0] = newer(runs[0], version)
            yield WriteSet(*written_in(runs))
            return
        for at, run in enumerate(runs, first):
            yield self._written(at, run, version)

    def _written(self, at: int, run: bytes, version: int) -> WriteSet:
        rest = newer(run, version)
        if rest is not run:
            return WriteSet(*written_in((rest,)))
        written = self._each.get(at)
        if written is None:
            written = self._each[at] = WriteSet(*written_in((run,)))
        return written

    def _whole(self) -> WriteSet:
        self._each.clear()
        return WriteSet(*written_in(self.runs))


class RecentCommits:
    """The newest part of the log that this process has read or written; older commits stay in LMDB.

    Only the thread that holds the committer's lead uses it.
    """

    __slots__ = ("_block", "_blocks", "_dbs", "fresh", "last_time_us", "last_version", "size", "tail")

    def __init__(self, dbs: Databases) -> None:
        self._dbs = dbs
        self._block = Block()
        self._blocks: deque[Block] = deque([self._block])
        self.size = 0
        self.fresh: list[tuple[int, int, bytes]] = []
        """The versions, times and runs of the newest commits, in no block yet. Most are forgotten unasked."""
        self.last_version = -1
        self.last_time_us = 0
        self.tail = b""
        """The log's tail in LMDB (`log_rows`) after the last commit."""

    def _settle(self) -> None:
        """Put the fresh commits into blocks."""
        fresh, self.fresh = self.fresh, []
        for version, time_us, run in fresh:
            block = self._block
            if block.size >= BLOCK_BYTES:
                block = self._next_block()
            block.versions.append(version)
            block.runs.append(run)
            block.size += len(run) + RUN_OVERHEAD
            block.time_us = time_us

    def _next_block(self) -> Block:
        self._block.full = True
        self.size += self._block.size
        while self.size > CACHE_BYTES and len(self._blocks) > 1:
            self._drop()
        self._block = Block()
        self._blocks.append(self._block)
        return self._block

    def _drop(self) -> None:
        self.size -= self._blocks.popleft().size

    def catch_up(self, txn: Txn) -> list[bytes]:
        """Read and add the commits of other processes; return them in runs."""
        known, dbs = self.last_version, self._dbs
        new = list(read_runs(txn, dbs, known if known >= 0 else last_version(txn, dbs) - 1))
        self.tail = tail_of(txn, dbs)
        if new:
            _, record = newest(new[-1][1])
            time_us = time_of(record)
            self.fresh += [(version, time_us, run) for version, run in new]
            self.last_version, self.last_time_us = new[-1][0], time_us
        return [run for _, run in new] if known >= 0 else []

    def forget(self, before_us: int) -> None:
        """Drop blocks from before `before_us`, except the newest block."""
        self._settle()
        while len(self._blocks) > 1 and self._blocks[0].time_us < before_us:
            self._drop()

    def reaches(self, txn: Txn, version: int) -> bool:
        """Return whether every commit after `version` is known."""
        self._settle()
        return self._blocks[0].first <= version or 0 < first_version(txn, self._dbs) <= version

    def since(self, txn: Txn, version: int) -> Iterator[WriteSet]:
        """Yield the write sets of commits after `version`."""
        self._settle()
        for block in reversed(self._blocks):
            if block.versions and block.versions[-1] <= version:
                return
            yield from block.since(version)
        oldest = self._blocks[0].first
        if oldest > version:
            yield from self._stored(txn, version, oldest)

    def _stored(self, txn: Txn, version: int, before: int) -> Iterator[WriteSet]:
        for last, run in read_runs(txn, self._dbs, version):
            yield WriteSet(*written_in((run,)))
            if last >= before:
                return  # the rest is in memory too
