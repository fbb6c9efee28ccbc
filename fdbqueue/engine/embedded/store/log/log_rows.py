"""The log of recent commits in LMDB: rows of many commits, and the newest commits in a *tail*.

LMDB keeps the roots of its databases in one page, and the tail is stored in that page. Every commit writes it anyway,
so most commits write no other page for the log. When the tail is full, its entries become a row of the database
``log``. Each new row removes a few old ones. (Dropping many at once is cheaper in itself, but then LMDB has a long list
of free pages. It writes that list again with every commit until the pages are used up.)

::

    tail    | version of the last commit | entry | entry | …     the key ``tail`` of the environment's own database
    row     | entry | entry | …                                  of ``log``, its key the version of its last entry
    entry   | version of a commit | length | record |
              8                     4
    record  | time | numbers of keys and of ranges | lengths of the keys, and of the ends of the ranges | all of them |
              8      4 + 4                           2 each

Consecutive entries, in a row or in the tail, are a *run*. Commits of other processes stay in their runs until a check
needs them: most are never needed one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

from fdbqueue.engine.embedded.store.disk.checksums import opened, sealed
from fdbqueue.engine.embedded.store.disk.layout import TAIL_KEY, WINDOW_SECONDS
from fdbqueue.engine.embedded.store.disk.long_keys import Databases
from fdbqueue.engine.embedded.store.log.write_set import Range

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
_SINGLE: Final = struct.Struct(">QIIH")
_ONE_KEY: Final = 1 << 32
"""The number of keys and the number of ranges in a record with one key and no range, read as one integer."""
_KEY_AT: Final = _SINGLE.size
"""Offset of that key."""
_ENTRY: Final = struct.Struct(">QI")
_SHAPE: Final = struct.Struct(">8xI8xQ")
"""Of an entry: the length of its record, and the record's number of keys and of ranges."""
_VERSION_BYTES: Final = 8


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


def decode(record: bytes) -> tuple[list[bytes], list[Range]]:
    """Return the keys and ranges of a record."""
    _, keys, ranges = _HEADER.unpack_from(record)
    count = keys + 2 * ranges
    lengths = struct.unpack_from(f">{count}H", record, _HEADER.size)
    start = _HEADER.size + 2 * count
    parts = [record[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
    return parts[:keys], list(zip(parts[keys::2], parts[keys + 1 :: 2], strict=True))


def begin(txn: Any, dbs: Databases, time_us: int, *, jump: int) -> None:
    """Remove all commits and continue, `jump` versions higher, with one commit that wrote nothing."""
    version = (last_version(txn, dbs) + jump).to_bytes(8, "big")
    txn.drop(dbs.log, delete=False)
    append(txn, dbs, version, version, time_us, (), ())


def last_version(txn: Any, dbs: Databases) -> int:
    """Return the version of the last commit, 0 if there is none."""
    tail = txn.get(TAIL_KEY, db=dbs.top)
    if tail is not None:
        return int.from_bytes(tail[:_VERSION_BYTES], "big")
    cursor = txn.cursor(dbs.log)  # the former format has no tail
    return int.from_bytes(cursor.key(), "big") if cursor.last() else 0


def tail_of(txn: Any, dbs: Databases) -> bytes:
    """Return the tail, for `append`."""
    tail: bytes = txn.get(TAIL_KEY, b"", db=dbs.top)
    return tail


def append(
    txn: Any,
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
    record = encode(time_us, keys, ranges)
    entry = b"".join((version, len(record).to_bytes(4, "big"), record))
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


def read_runs(txn: Any, dbs: Databases, after: int) -> Iterator[Run]:
    """Read the commits after version `after`, in order, as stored runs."""
    cursor = txn.cursor(dbs.log)
    if cursor.set_range((after + 1).to_bytes(8, "big")):
        for key, row in cursor.iternext():
            yield int.from_bytes(key, "big"), newer(opened(dbs, key, row), after)
    tail = tail_of(txn, dbs)
    if rest := newer(tail[_VERSION_BYTES:], after):
        yield int.from_bytes(tail[:_VERSION_BYTES], "big"), rest


def read_log(txn: Any, dbs: Databases, after: int) -> Iterator[Commit]:
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


def first_version(txn: Any, dbs: Databases) -> int:
    """Return the version of the oldest commit in the log; 0 if there is none."""
    cursor = txn.cursor(dbs.log)
    found = cursor.first()
    oldest = commits(opened(dbs, *cursor.item()) if found else tail_of(txn, dbs)[_VERSION_BYTES:])
    return next(oldest, (0, b""))[0]


def _put(txn: Any, dbs: Databases, key: bytes, run: bytes) -> None:
    txn.put(key, sealed(dbs, key, run), True, True, True, dbs.log)


def _trim(txn: Any, dbs: Databases, version: bytes) -> None:
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
