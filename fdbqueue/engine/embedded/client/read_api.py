"""The reading half of a transaction: the values that each read sees, and the read conflicts that it adds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from itertools import starmap
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.api import Bound, KeySelector, StreamingMode
from fdbqueue.engine.embedded.client import pages, special_keys
from fdbqueue.engine.embedded.client.futures import FailedKey, FailedValue, FutureInt64, FutureKeyArray, Key, Value
from fdbqueue.engine.embedded.client.options import Settings
from fdbqueue.engine.embedded.client.pages import (
    FutureKeyValueArray,
    KeyValue,
    PageLimits,
    RangePage,
    RangeSelector,
    Row,
    integer,
    key_to_bytes,
    selector,
)
from fdbqueue.engine.embedded.client.pending import LateKey, LatePage, LateRead, LateValue, VersionWait
from fdbqueue.engine.embedded.client.reads import (
    BEYOND_INT,
    METADATA_VERSION,
    READ_KEY_LIMIT,
    SYSTEM_KEY_LIMIT,
    SYSTEM_TOP,
    TOP,
    SnapshotReads,
    TransactionRead,
    cut,
)
from fdbqueue.engine.embedded.client.ryw_iterator import RywIterator
from fdbqueue.engine.embedded.client.write_buffer import ABSENT, Intervals, Range, WriteBuffer
from fdbqueue.engine.embedded.store.commit.atomics import Stack
from fdbqueue.engine.embedded.store.snapshot import waits
from fdbqueue.engine.errors import FUTURE_VERSION, FDBError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.database import Database
    from fdbqueue.engine.embedded.store.store import Snapshot, Store

MANY_WRITES: Final = 64
COMPACT_AT: Final = 1024
FEW_READS: Final = 4
_PAGE_BYTES: Final = (4096, 6144, 9216, 13824, 20736, 31104, 46656, 69984, 80000, 120000)
_MODE_BYTES: Final = {-2: 80000, 0: pages.UNLIMITED, 1: 256, 2: 1000, 3: 4096, 4: 80000}


def _page_bytes(mode: int, iteration: int) -> int:
    """Return about how many bytes a page has; 0: there is no such mode."""
    if mode == StreamingMode.iterator and iteration > 0:
        return _PAGE_BYTES[min(iteration, len(_PAGE_BYTES)) - 1]
    return _MODE_BYTES.get(mode, 0)


def _after(key: bytes) -> bytes:
    """Return the first key after `key`. In a cluster's client, the end of all keys has none after it."""
    return key if key == SYSTEM_TOP else cut(key + b"\0")


class ReadApi(TransactionRead):
    """The state that a transaction's reads need. `Transaction` adds the writes, the commit and the states."""

    db: Database
    _store: Store
    _lock: threading.RLock
    _settings: Settings
    _writes: WriteBuffer
    # Single keys that were read, with `in_flight.waits.count` at the time of the read; negative for a snapshot read.
    _gets: dict[bytes, int]
    _conflict_ranges: list[Range]

    # What a transaction decides.
    _blocked: Callable[[], int]
    """Return the error code that every operation now fails with, or 0."""
    _deferred_error: Callable[[], int]
    _broken_error: Callable[[], int]
    _has_version: Callable[[], bool]
    _time_left: Callable[[], float | None]
    _get_special: Callable[[bytes], Value]

    # Class attributes hold the values that most transactions never change: creating a transaction must be cheap.
    _odd = False  # whether a read or write must check the state before it takes the short path
    _snap: Snapshot | None = None
    _version: int | None = None
    _known: Intervals | None  # the ranges that were read from the snapshot
    _fresh: tuple[Range, ...] = ()  # the newest of them, until `_now_known` is asked: many transactions have few
    _known_since = 0  # `waits.count` when `_known` last grew
    _version_since = 0
    _version_wait: VersionWait | None = None  # set if no commit has reached the given read version yet
    _synced = 0  # the number of keys of `_gets` that `_known` includes
    _only_looked = False  # whether any key of `_gets` was read by snapshot
    _has_read = False  # whether a selector or range was read, or a key without read-your-writes
    _read_error = 0  # the code of the first failed read, which fails the commit too
    _size = 0
    _unseen_size = 0  # the commit's size without read-your-writes; `_size` misses some of it
    _covered: Intervals | None = None  # ranges of conflicts that were added over many writes
    _compact_at = COMPACT_AT  # the number of conflict ranges from which merging pays off
    _likely = 0  # the number of rows that fit in a page, by the last page

    @property
    def snapshot(self) -> SnapshotReads:
        return SnapshotReads(self)

    def _opened(self) -> Snapshot:
        """Return the snapshot. The first read takes it."""
        with self._lock:
            return self._snap or self._open()

    def _open(self) -> Snapshot:
        """Take the snapshot. The caller holds the lock."""
        if self._version is None:
            snap = self._store.snapshot()
            self._version = snap.version
            self._version_since = waits.count
        elif self._version:
            snap = self._store.snapshot_at(self._version)
            if self._version_wait is not None:
                self._version_wait.release()
        else:
            raise FDBError(2000)  # an option declared the database new: there is nothing to read
        self._snap = snap
        return snap

    def _top(self) -> bytes:
        return SYSTEM_TOP if self._settings.read_system else TOP

    def _failed(self, error: FDBError) -> int:
        """Record that a read failed, and return the error code for it."""
        self._read_error = self._read_error or error.code
        return error.code

    def _get_special_range(
        self, begin: RangeSelector, end: RangeSelector, limit: int, size: int, reverse: bool
    ) -> FutureKeyValueArray:
        raise NotImplementedError

    # -- single keys ---------------------------------------------------------------------------------------------

    def _get(self, key: bytes, snapshot: bool) -> Value:
        if self._odd or key >= TOP:
            code = self._refused(key)
            if code:
                return FailedValue(code=code)
            if special_keys.holds(key):
                return self._get_special(key)
        if len(key) > READ_KEY_LIMIT and len(key) > (SYSTEM_KEY_LIMIT if key[:1] == TOP else 0):
            return Value(None)
        try:
            return self._value(key, snapshot)
        except FDBError as error:
            if error.code == FUTURE_VERSION:
                return LateValue(late=LateRead(self, ReadApi._value, key, snapshot))
            return FailedValue(code=self._failed(error))

    def _value(self, key: bytes, snapshot: bool) -> Value:
        settings = self._settings
        writes = self._writes
        if settings.ryw_disabled:
            self._has_read = True
            snap = self._opened()
            if not snapshot:
                self._conflict_ranges.append((key, key + b"\0"))
                self._unseen_size += 2 * len(key) + 25
            return Value(snap.get(key), snap, waits.count)
        if snapshot and settings.snapshot_ryw <= 0:
            snap = self._opened()
            return Value(snap.get(key), self._looked_at(key, snap), waits.count)
        point = writes.points.get(key, ABSENT)
        if point is ABSENT:
            if writes.ranged:
                if key in writes.unreadable and not settings.bypass_unreadable:
                    raise FDBError(1036)
                if key in writes.clears:
                    return Value(None)
        elif not isinstance(point, Stack):
            return Value(point)  # type: ignore[arg-type]
        elif point.unreadable and not settings.bypass_unreadable:
            raise FDBError(1036)
        elif not point.dependent:
            return Value(point.value(None))
        snap = self._snap or self._opened()
        below = snap.get(key)
        value = point.value(below) if isinstance(point, Stack) else below
        if snapshot:
            return Value(value, self._looked_at(key, snap), waits.count)
        self._size += 2 * len(key) + 25
        return Value(value, self._asked_again(key, snap), waits.count)

    def _asked_again(self, key: bytes, snap: Snapshot) -> Snapshot | None:
        """Record a read of `key`. Return its source: `snap`, or None if the value was known."""
        source = self._source_of(key, snap)
        if self._gets.get(key, -1) < 0:
            self._gets[key] = waits.count
        return source

    def _looked_at(self, key: bytes, snap: Snapshot) -> Snapshot | None:
        """Record a read of `key` without a conflict. Return its source as `_asked_again` does."""
        self._only_looked = True
        if key not in self._gets and self._known_since == waits.count:
            self._gets[key] = -waits.count  # all reads so far are under way together
            return snap
        source = self._source_of(key, snap)
        self._gets.setdefault(key, -waits.count)
        return source

    def _source_of(self, key: bytes, snap: Snapshot) -> Snapshot | None:
        since = self._gets.get(key)
        fresh = self._fresh
        if since is not None:
            told = abs(since) != waits.count
        elif self._known_since == waits.count or not (self._known or fresh):
            told = False
        elif self._known or len(fresh) >= FEW_READS:
            told = key in self._now_known()
        else:
            told = False
            for begin, end in fresh:
                if begin <= key < end:
                    told = True
        return None if told else snap

    def _refused(self, key: bytes) -> int:
        """Return the error code for a read of `key` that is refused before the read, or 0."""
        if special_keys.holds(key):
            return self._deferred_error()
        code = self._blocked()
        if code:
            return code
        return 2004 if key >= self._top() and key != METADATA_VERSION else 0

    def _get_key(self, key: bytes, or_equal: int, offset: int, snapshot: bool) -> Key:
        if not ((or_equal is False or or_equal is True) and type(offset) is int and -BEYOND_INT <= offset < BEYOND_INT):
            or_equal, offset = integer(or_equal), integer(offset)
        if self._odd:
            code = self._blocked()
            if code:
                return FailedKey(code=code)
        elif not offset and (found := self._short_key(key + b"\0" if or_equal else key, snapshot)) is not None:
            return found
        if len(key) > READ_KEY_LIMIT:
            key = cut(key)
        settings = self._settings
        top = SYSTEM_TOP if settings.read_system else TOP
        if key > top:
            return FailedKey(code=2004)
        after = key + b"\0" if or_equal else key
        self._has_read = True
        if not after and offset <= 0 and not (settings.ryw_disabled or (snapshot and settings.snapshot_ryw <= 0)):
            return Key(b"")  # a cluster's client answers this itself, and takes no read version
        try:
            return self._key(after, offset, top, snapshot)
        except FDBError as error:
            if error.code == FUTURE_VERSION:
                return LateKey(late=LateRead(self, ReadApi._key, after, offset, top, snapshot))
            return FailedKey(code=self._failed(error))

    def _key(self, after: bytes, offset: int, top: bytes, snapshot: bool) -> Key:
        with self._lock:
            asked = True
            if self._settings.ryw_disabled:
                found = pages.locate(self._opened(), RangeSelector(after, offset))
            else:
                reader = self._reader(snapshot)
                found = reader.key(RangeSelector(after, offset))
                asked = reader.asked
            if not snapshot:
                if offset <= 0:
                    self._add_conflict(found, after)
                else:
                    self._add_conflict(after, found + b"\0")
        return Key(min(found, top) if found < pages.BEYOND else top, self._told_by(asked), waits.count)

    def _short_key(self, end: bytes, snapshot: bool) -> Key | None:
        """Read the last key below `end` from the snapshot.

        Return None if there is none, if the read fails, and after other reads or writes: then read in the general way.
        """
        if not b"" < end <= TOP or len(end) > READ_KEY_LIMIT:
            return None
        with self._lock:
            if self._gets or self._fresh or self._known or not self._writes.empty:
                return None
            try:
                snap = self._snap or self._open()
                found = snap.last_below(end)
            except FDBError:
                return None
            if found is None:
                return None
            self._has_read = True
            self._fresh = ((found, end),)
            self._known_since = waits.count
            if not snapshot:
                self._add_conflict(found, end)
        return Key(found, snap, waits.count)

    # -- ranges --------------------------------------------------------------------------------------------------

    def _get_range(
        self, begin: Bound, end: Bound, limit: int, mode: int, iteration: int, reverse: bool, snapshot: bool = False
    ) -> FutureKeyValueArray:
        """Read one page of a range. The ends are keys or selectors. The binding's range reads consist of such pages."""
        if (
            type(begin) is bytes
            and type(end) is bytes
            and not self._odd
            and type(limit) is int
            and 0 <= limit < BEYOND_INT
            and (reverse is False or reverse is True)
        ):
            page = self._short_page(begin, end, limit, mode, iteration, reverse, snapshot)
            if page is not None:
                return page
        return self._any_page(selector(begin), selector(end), limit, mode, iteration, reverse, snapshot)

    def _short_page(
        self, begin: bytes, end: bytes, limit: int, mode: int, iteration: int, reverse: bool, snapshot: bool
    ) -> FutureKeyValueArray | None:
        """Read a page directly from the snapshot. Return None if only the general way can read it."""
        size = _page_bytes(mode, iteration)
        if not size or (size == pages.UNLIMITED and not limit):
            return None
        page = self._short_rows(begin, end, limit, size, reverse, snapshot)
        if page is None:
            return None
        rows, more = page
        return FutureKeyValueArray((list(starmap(KeyValue, rows)), len(rows), more), self._snap)

    def read_rows(self, begin: bytes, end: bytes, limit: int, reverse: bool = False) -> list[KeyValue] | None:
        """Read the first `limit` rows of a range, and wait for them. Return None if only `get_range` can read them.

        *Conflicts:* as `get_range`.
        """
        pairs = self._pairs(begin, end, limit, reverse, False)
        return None if pairs is None else list(starmap(KeyValue, pairs))

    def _pairs(self, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool) -> list[Row] | None:
        if self._odd or not 0 < limit < BEYOND_INT:
            return None
        page = self._short_rows(begin, end, limit, pages.UNLIMITED, reverse, snapshot)
        if page is None:
            return None
        waits.count += 1  # a cluster's client waits for the answer
        return page[0]

    def _short_rows(
        self, begin: bytes, end: bytes, limit: int, size: int, reverse: bool, snapshot: bool
    ) -> tuple[list[Row], bool] | None:
        """Read rows directly from the snapshot, and return whether there may be more.

        Return None if the range has own writes or earlier reads, and if the read fails: then read in the general way.
        """
        if begin >= end or end > TOP or len(begin) > READ_KEY_LIMIT or len(end) > READ_KEY_LIMIT:
            return None
        with self._lock:
            writes = self._writes
            if not writes.empty and writes.touches(begin, end):
                return None
            if (self._gets or self._fresh or self._known) and self._has_asked(begin, end):
                return None
            try:
                snap = self._snap or self._open()
                if size == pages.UNLIMITED:  # only the number of rows ends it
                    rows = snap.rows(begin, end, limit, reverse)
                    more = len(rows) == limit
                else:
                    rows, more = pages.first(snap, begin, end, limit, size, reverse, self._likely)
            except FDBError:
                return None
            if more:
                # A limit ended the page: the rest was not read. A page filled exactly at the range's end is complete.
                last = rows[-1][0]
                if reverse:
                    more = last > begin or len(rows) == limit
                    begin = last
                else:
                    more = last + b"\0" < end or len(rows) == limit
                    end = last + b"\0"
                if size != pages.UNLIMITED:
                    self._likely = len(rows) + 1
            self._has_read = True
            if begin < end:
                self._fresh += ((begin, end),)
            self._known_since = waits.count
            if not snapshot:
                self._size += len(begin) + len(end) + 24
                ranges = self._conflict_ranges
                if ranges and ranges[-1][1] == begin:
                    ranges[-1] = (ranges[-1][0], end)  # the next page of the same read
                else:
                    ranges.append((begin, end))
        return rows, more

    def _has_asked(self, begin: bytes, end: bytes) -> bool:
        """Return whether a part of ``[begin, end)`` was read before."""
        fresh, gets = self._fresh, self._gets
        if self._known or len(fresh) >= FEW_READS or len(gets) >= FEW_READS:
            return self._now_known().meets(begin, end)
        for known, known_end in fresh:
            if begin < known_end and known < end:
                return True
        return any(begin <= key < end for key in list(gets)) if gets else False  # a copy: another thread may be reading

    def _any_page(
        self, begin: KeySelector, end: KeySelector, limit: int, mode: int, iteration: int, reverse: bool, snapshot: bool
    ) -> FutureKeyValueArray:
        begin_key, end_key = cut(key_to_bytes(begin.key)), cut(key_to_bytes(end.key))
        begin_or_equal, begin_offset = integer(begin.or_equal), integer(begin.offset)
        end_or_equal, end_offset = integer(end.or_equal), integer(end.offset)
        limit, mode, reverse = integer(limit), integer(mode), bool(integer(reverse))
        if not (size := _page_bytes(mode, iteration)):
            return FutureKeyValueArray(error=2000)
        if limit in (0, -1) and size == pages.UNLIMITED:
            return FutureKeyValueArray(error=2210)
        first = RangeSelector(_after(begin_key) if begin_or_equal else begin_key, begin_offset)
        last = RangeSelector(_after(end_key) if end_or_equal else end_key, end_offset)
        if special_keys.holds(begin_key) and special_keys.BEGIN <= end_key <= special_keys.END:
            code = self._deferred_error()
            if code:
                return FutureKeyValueArray(error=code)
            return self._get_special_range(first, last, limit, size, reverse)
        code = self._blocked() if self._odd else 0
        if not code and (begin_key > self._top() or end_key > self._top()):
            code = 2004
        if not code and limit < -1:
            code = 2012
        if code:
            return FutureKeyValueArray(error=code)
        if first.offset >= last.offset and first.key >= last.key:
            return FutureKeyValueArray(([], 0, False))
        read = (first, last, PageLimits(limit or pages.UNLIMITED, size), reverse, snapshot)
        self._has_read = True
        try:
            return self._rows(*read)
        except FDBError as error:
            if error.code == FUTURE_VERSION:
                return LatePage(LateRead(self, ReadApi._rows, *read))
            return FutureKeyValueArray(error=self._failed(error))

    def _rows(
        self, first: RangeSelector, last: RangeSelector, limits: PageLimits, reverse: bool, snapshot: bool
    ) -> FutureKeyValueArray:
        with self._lock:
            if self._settings.ryw_disabled:
                page = self._direct(first, last, limits, reverse, snapshot)
                asked = True
            else:
                reader = self._reader(snapshot)
                page = reader.range(first, last, limits, reverse)
                asked = reader.asked
                if not snapshot:
                    low, high = page.conflict(first, last, reverse, self._top())
                    if low > high:
                        # Both selectors are beyond the last legal key, and known to be: a cluster's client ends the
                        # conflict range at that key, and refuses the inverted range.
                        raise FDBError(2005)
                    self._add_conflict(low, high)
        rows = page.rows
        return FutureKeyValueArray((list(starmap(KeyValue, rows)), len(rows), page.more), self._told_by(asked))

    def _told_by(self, asked: bool) -> Snapshot | None:
        """Return the source of a range or selector: the snapshot if it was `asked`, None if the answer was known."""
        if asked:
            self._known_since = waits.count
        return self._snap if self._known_since == waits.count else None

    def _now_known(self) -> Intervals:
        """Return the ranges that were read from the snapshot so far."""
        gets = self._gets
        known = self._known
        if known is None:
            known = self._known = Intervals()
        for fresh in self._fresh:
            known.add(*fresh)
        self._fresh = ()
        if len(gets) != self._synced:
            new = list(gets)[self._synced :]  # one atomic copy: another thread may be reading
            for key in new:
                known.add(key, key + b"\0")
            self._synced += len(new)
        return known

    def _reader(self, snapshot: bool) -> RywIterator:
        own = None if snapshot and self._settings.snapshot_ryw <= 0 else self._writes
        return RywIterator(self._opened, self._now_known(), own, self._top())

    def _direct(
        self, begin: RangeSelector, end: RangeSelector, limits: PageLimits, reverse: bool, snapshot: bool
    ) -> RangePage:
        """Read without the transaction's own writes, for the option ``read_your_writes_disable``."""
        snap, top = self._opened(), min(self._top(), pages.BEYOND)
        if reverse and end.offset > 1:
            found = pages.locate(snap, end)
            if not snapshot:
                self._add_conflict(end.key, found + b"\0")
            end = RangeSelector(min(found, top), 1)
        page = pages.read(snap, begin, end, limits, reverse)
        if not snapshot:
            self._add_conflict(*page.direct_conflict(begin, end, reverse))
        if not reverse and page.rows and page.rows[-1][0] >= top:
            page.rows = [row for row in page.rows if row[0] < top]
            page.more = False
        return page

    def _add_conflict(self, begin: bytes, end: bytes) -> None:
        """Add a read conflict on ``[begin, end)``, except where the contents depend only on own writes."""
        if begin >= end:
            return
        cost = len(begin) + len(end) + 24
        ranges = self._conflict_ranges
        writes = self._writes
        if self._settings.ryw_disabled:
            ranges.append((begin, end))
            return
        if writes.empty or not writes.touches(begin, end):
            self._size += cost
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)  # the next page of the same read
            else:
                ranges.append((begin, end))
            return
        anew = [(begin, end)]
        if writes.count(begin, end) > MANY_WRITES:
            # Repeated reads over a growing number of own writes must not cost more each time. So it skips keys that it
            # has covered. Later writes make a key depend less on the snapshot, never more: no conflict is missed.
            covered = self._covered = self._covered or Intervals()
            anew = list(covered.gaps(begin, end))
            covered.add(begin, end)
        for low, high in anew:
            for part in writes.undetermined(low, high):
                self._size += cost
                ranges.append(part)
        if len(ranges) > self._compact_at:
            ranges[:] = Intervals(sorted(ranges))
            self._compact_at = COMPACT_AT + 2 * len(ranges)

    # -- versions and sizes: a size counts all that is committed now, at any read version ----------------------------

    def get_read_version(self) -> FutureInt64:
        """Return the read version. The first read sets it."""
        code = self._deferred_error() or self._broken_error()
        if code:
            return FutureInt64(error=code)
        if self._version is None:
            known = self._has_version()  # taken by the commit
            self._opened()
            if known:
                self._version_since = -1
        if self._snap is not None:
            self._store.pin(self._snap)
        return FutureInt64(self._version, self._snap if self._version_since == waits.count else None)

    def get_estimated_range_size_bytes(self, begin_key: bytes | None, end_key: bytes | None) -> FutureInt64:
        """Return the exact size of a range's keys and values. A cluster estimates it.

        *Cost:* a read of the range.
        """
        if begin_key is None or end_key is None:
            raise ValueError("Invalid begin key or end key")
        code = 2005 if begin_key > end_key else self._blocked()
        if not code and begin_key == end_key:
            code = 4100
        if code:
            return FutureInt64(error=code)
        with closing(self._store.snapshot()) as snap:
            return FutureInt64(sum(len(key) + len(value) for key, value in snap.scan(begin_key, end_key)))

    def get_range_split_points(self, begin_key: bytes | None, end_key: bytes | None, chunk_size: int) -> FutureKeyArray:
        """Return keys that divide a range into chunks of about `chunk_size` bytes. The list includes both ends.

        *Cost:* a read of the range.
        """
        if begin_key is None or end_key is None or chunk_size <= 0:
            raise ValueError("Invalid begin key, end key or chunk size")
        chunk_size = integer(chunk_size)
        code = 2005 if begin_key > end_key else self._blocked()
        if not code and (begin_key > self._top() or end_key > self._top()):
            code = 2004
        if not code and begin_key == end_key:
            code = 4100
        if code:
            return FutureKeyArray(error=code)
        points, size = [begin_key], 0
        with closing(self._store.snapshot()) as snap:
            for key, value in snap.scan(begin_key, end_key):
                if size >= chunk_size:
                    points.append(key)
                    size = 0
                size += len(key) + len(value)
        points.append(end_key)
        return FutureKeyArray(points)
