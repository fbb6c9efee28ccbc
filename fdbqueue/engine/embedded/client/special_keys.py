"""The special keys from ``\\xff\\xff``: information about the transaction, and about a cluster's machines.

This module has the transaction's keys. They show its read and write conflict ranges. After a commit failed with 1020
under ``report_conflicting_keys``, they also show the ranges that it failed on. A range has two keys: ``1`` at its
begin and ``0`` at its end. The keys about machines belong to a cluster: reading one raises `options.Unsupported`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.client.futures import FailedValue, Value
from fdbqueue.engine.embedded.client.options import Settings, Unsupported
from fdbqueue.engine.embedded.client.pages import UNLIMITED, FutureKeyValueArray, KeyValue, PageLimits, RangeSelector
from fdbqueue.engine.embedded.client.write_buffer import Intervals

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.transaction import Transaction

BEGIN: Final = b"\xff\xff"
END: Final = b"\xff\xff\xff"

ERROR_MESSAGE: Final = (b"\xff\xff/error_message", b"\xff\xff/error_message\0")
TRANSACTION: Final = (b"\xff\xff/transaction/", b"\xff\xff/transaction0")
READS: Final = b"\xff\xff/transaction/read_conflict_range/"
READS_END: Final = b"\xff\xff/transaction/read_conflict_range0"
WRITES: Final = b"\xff\xff/transaction/write_conflict_range/"
CONFLICTS: Final = b"\xff\xff/transaction/conflicting_keys/"

MACHINES: Final = (
    *((b"\xff\xff/" + name + b"/", b"\xff\xff/" + name + b"0") for name in (
        b"actor_lineage", b"actor_profiler_conf", b"configuration", b"global_config", b"management", b"metrics",
        b"tracing", b"worker_interfaces",
    )),
    *((b"\xff\xff/" + name, b"\xff\xff/" + name + b"\0") for name in (
        b"cluster_file_path", b"cluster_id", b"connection_string", b"status/json",
    )),
)  # fmt: skip
MODULES: Final = sorted((TRANSACTION, ERROR_MESSAGE, *MACHINES))


def holds(key: bytes) -> bool:
    """Return whether `key` is a special key."""
    return BEGIN <= key < END


def write_error(settings: Settings) -> int:
    """Return the error code for writing a special key: 2114, or 2115 (no such key) if an option allows writes."""
    return 2115 if settings.write_special else 2114


def get(tr: Transaction, key: bytes) -> Value:
    """Read one special key."""
    if key == BEGIN:
        return Value(None)  # a cluster's client finds no next key and reads an empty range
    page = get_range(tr, RangeSelector(key, 1), RangeSelector(key + b"\0", 1), 0, UNLIMITED, False)
    if page._error:
        return FailedValue(code=page._error)
    rows = page.wait()[0]
    return Value(rows[0].value if rows else None)


def get_range(
    tr: Transaction, begin: RangeSelector, end: RangeSelector, limit: int, size: int, reverse: bool
) -> FutureKeyValueArray:
    """Read special keys between two selectors."""
    if limit < -1:
        return FutureKeyValueArray(error=2012)
    if begin.offset >= end.offset and begin.key >= end.key:
        return FutureKeyValueArray(([], 0, False))
    low, high, code = _module(begin.key, end.key, tr._settings.relaxed)
    if code:
        return FutureKeyValueArray(error=code)
    rows = [row for row in _rows(tr) if low <= row.key < high]  # selectors go no further, as in a cluster's client
    keys = [row.key for row in rows]
    refused = low <= READS < high and (tr._broken_error() or tr._read_error)  # of read conflicts only
    if refused and (_through_reads(keys, begin) or _through_reads(keys, end)):
        return FutureKeyValueArray(error=refused)
    if not (begin.key < READS_END and end.key > READS):
        refused = 0
    first, last = _index(keys, begin), _index(keys, end)
    chosen = rows[first:last]
    if reverse:
        chosen.reverse()
    limits = PageLimits(limit or UNLIMITED, size)
    page: list[KeyValue] = []
    for row in chosen:
        if refused and (row.key < READS_END if reverse else row.key >= READS):
            break
        page.append(row)
        limits.take(row.key, row.value)
        if limits.reached:
            return FutureKeyValueArray((page, len(page), True))
    if refused:
        return FutureKeyValueArray(error=refused)
    return FutureKeyValueArray((page, len(page), False))


def _module(begin: bytes, end: bytes, relaxed: bool) -> tuple[bytes, bytes, int]:
    """Return the bounds of the module that a range is in, and an error code if it is not inside one, or 0.

    `relaxed` allows all special keys.

    Raises:
        Unsupported: the range has keys about a cluster's machines.
    """
    low, high = BEGIN, END
    if not relaxed:
        at = bisect_right(MODULES, (begin, END)) - 1
        low, high = MODULES[at] if at >= 0 else (BEGIN, BEGIN)
        inside = begin < high
        if not inside:
            low, high = high, MODULES[at + 1][0] if at + 1 < len(MODULES) else END
        if not low <= end <= high:
            return low, high, 2112
        if not inside:
            return low, high, 2113
    for first, last in MACHINES:
        if begin < last and first < end:
            raise Unsupported(first.decode("ascii", "backslashreplace"))
    return low, high, 0


def _index(keys: list[bytes], selector: RangeSelector) -> int:
    return min(max(bisect_left(keys, selector.key) + selector.offset - 1, 0), len(keys))


def _through_reads(keys: list[bytes], selector: RangeSelector) -> bool:
    """Return whether resolving a selector reads the read conflicts. A broken transaction refuses that."""
    to = bisect_left(keys, selector.key) + selector.offset - 1
    if selector.key <= READS:
        return selector.offset > 1 and to >= bisect_left(keys, READS)
    if selector.key >= READS_END:
        return selector.offset < 1 and to < bisect_left(keys, READS_END)
    return selector.offset != 1


def _rows(tr: Transaction) -> list[KeyValue]:
    edges = [
        KeyValue(prefix + key, value)
        for prefix, ranges in (
            (READS, tr._read_conflicts()),
            (WRITES, merged([*tr._write_conflicts_so_far(), *tr._stamped_ranges()])),
            (CONFLICTS, tr._failed_on()),
        )
        for begin, end in ranges
        for key, value in ((begin, b"1"), (end, b"0"))
    ]
    return sorted(edges, key=attrgetter("key"))


def merged(ranges: list[tuple[bytes, bytes]]) -> Intervals:
    """Return the union of ranges."""
    return Intervals(sorted(ranges))
