"""A transaction: reads at one version, writes that wait for the commit, and FoundationDB's states around them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from itertools import islice
from fdbqueue.engine.embedded import pages
from fdbqueue.engine.embedded.intervals import Intervals
from fdbqueue.engine.embedded.segments import Position
from fdbqueue.engine.embedded.reads import Reader
from fdbqueue.engine.embedded.pages import Selector, Limits
from fdbqueue.engine.embedded.atomics import stamp_position
from fdbqueue.engine.embedded.futures import FutureInt64, FutureVoid, Future, FutureKeyArray
from fdbqueue.engine.embedded.options import Settings, TransactionOptions
from fdbqueue.engine.embedded.ranges import FDBRange, FutureKeyValueArray, KeyValue
from fdbqueue.engine.embedded.values import Key, PendingKey, Value
from fdbqueue.engine.embedded.writes import ABSENT, Stack, Writes
from fdbqueue.engine.embedded.commits import Commit, Pause
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.keys import strinc
from fdbqueue.engine.selector import KeySelector
from fdbqueue.engine.streaming import StreamingMode

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.database import Database

TOP = b"\xff"
SYSTEM_TOP = b"\xff\xff"
KEY_LIMIT = 10_000
SYSTEM_KEY_LIMIT = 30_000
READ_KEY_LIMIT = 10_008
VALUE_LIMIT = 100_000
PAGE_BYTES = (4096, 6144, 9216, 13824, 20736, 31104, 46656, 69984, 80000, 120000)
MODE_BYTES = {-2: 80000, 0: 1 << 62, 1: 256, 2: 1000, 3: 4096, 4: 80000}


def key_to_bytes(key: Any) -> bytes:
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_to_bytes(value: Any) -> bytes:
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


class TransactionRead:
    """The reading half of a transaction; as `tr.snapshot` it adds no read conflicts."""

    __slots__ = ("_tr",)

    _is_snapshot = True

    def __init__(self, tr):
        self._tr = tr

    @property
    def db(self):
        return self._tr._db

    def get_read_version(self):
        return self._tr._get_read_version()

    def get(self, key):
        return self._tr._get(key if type(key) is bytes else key_to_bytes(key), self._is_snapshot)

    def get_key(self, key_selector):
        key = key_to_bytes(key_selector.key)
        return self._tr._get_key(key, bool(key_selector.or_equal), key_selector.offset, self._is_snapshot)

    def _get_range(self, begin, end, limit, streaming_mode, iteration, reverse):
        return self._tr._page(begin, end, limit, streaming_mode, iteration, reverse, self._is_snapshot)

    def _to_selector(self, key_or_selector):
        if not hasattr(key_or_selector, "or_equal"):
            key_or_selector = KeySelector(key_or_selector, False, 1)
        return key_or_selector

    def get_range(self, begin, end, limit=0, reverse=False, streaming_mode=StreamingMode.iterator):
        if begin is None:
            begin = b""
        if end is None:
            end = b"\xff"
        return FDBRange(self, self._to_selector(begin), self._to_selector(end), limit, reverse, streaming_mode)

    def get_range_startswith(self, prefix, *args, **kwargs):
        prefix = key_to_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key):
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)

    def get_estimated_range_size_bytes(self, begin_key, end_key):
        if begin_key is None or end_key is None:
            raise Exception("Invalid begin key or end key")
        return self._tr._estimated_size(begin_key, end_key)

    def get_range_split_points(self, begin_key, end_key, chunk_size):
        if begin_key is None or end_key is None or chunk_size <= 0:
            raise Exception("Invalid begin key, end key or chunk size")
        return self._tr._split_points(begin_key, end_key, chunk_size)


class Transaction(TransactionRead):
    __slots__ = (
        "_backoff",
        "_broken",
        "_commit",
        "_committed_version",
        "_created",
        "_db",
        "_deferred",
        "_odd",
        "_pause",
        "_persistent",
        "_read_error",
        "_gets",
        "_known",
        "_synced",
        "_read_ranges",
        "_retries",
        "_settings",
        "_size",
        "_snap",
        "_stamp",
        "_store",
        "_version",
        "_watches",
        "_writes",
        "__weakref__",
    )

    _is_snapshot = False

    def __init__(self, db: Database) -> None:
        self._db = db
        self._store = db._store()
        self._snap = None
        self._commit = None
        self._fresh()

    def _fresh(self) -> None:
        self._backoff = 0.01
        self._retries = 0
        self._created = time.monotonic()
        self._persistent = list(self._db._defaults)
        self._renew()

    def _renew(self) -> None:
        """Begin anew, as after `on_error`: nothing read, nothing written, the persistent options set."""
        if self._snap is not None:
            self._snap.close()
        self._snap = None
        self._version = None
        self._writes = Writes()
        self._gets = {}
        self._known = Intervals()
        self._synced = 0
        self._read_ranges = []
        self._read_error = 0
        self._deferred = 0
        self._broken = 0
        self._commit = None
        self._committed_version = -1
        self._stamp = None
        self._watches = None
        self._pause = None
        self._size = 0
        self._settings = Settings()
        for code, param in self._persistent:
            self._settings.set(code, param)
        self._odd = not self._settings.plain

    def __del__(self) -> None:
        snap = getattr(self, "_snap", None)
        if snap is not None:
            snap.close()

    @property
    def _tr(self):
        return self

    @property
    def options(self):
        return TransactionOptions(self)

    @property
    def snapshot(self):
        return TransactionRead(self)

    # -- states

    def _blocked(self) -> int:
        if self._pause is not None:
            self._pause.look()
        if self._deferred:
            return self._deferred
        if self._commit is not None:
            self._used_during_commit()
            return 2017
        return self._broken

    def _used_during_commit(self) -> None:
        if not self._broken and self._settings.protected:
            self._break(2017)

    def _break(self, code: int) -> None:
        self._broken = code
        self._odd = True
        if self._commit is not None:
            self._commit.fail(code)

    def _defer(self, code: int) -> None:
        if not self._deferred:
            self._deferred = code
            self._odd = True

    def _set_option(self, code: int, param: bytes | None) -> None:
        if code == 51 and (self._gets or self._known or not self._writes.empty):
            self._defer(2000)
            return
        try:
            self._settings.set(code, param)
        except FDBError as error:
            self._defer(error.code)
            return
        if code in (500, 501, 502):
            self._persistent.append((code, param))
        self._odd = self._odd or not self._settings.plain

    # -- reads

    def _open_once(self):
        return self._snap or self._open()

    def _open(self):
        snap = self._snap = self._store.snapshot()
        self._version = snap.version
        return snap

    def _get_read_version(self):
        code = self._deferred or self._broken
        if code:
            return FutureInt64(None, code)
        if self._version is None:
            self._open()
        return FutureInt64(self._version)

    def _get(self, key: bytes, snapshot: bool) -> Value:
        if self._odd or self._commit is not None:
            code = self._blocked()
            if code:
                return Value(None, code)
        if key >= TOP and key >= (SYSTEM_TOP if self._settings.read_system else TOP):
            return Value(None, 2004)
        if len(key) > READ_KEY_LIMIT:
            return Value(None)
        try:
            writes = self._writes
            settings = self._settings
            if settings.ryw_disabled or (snapshot and settings.snapshot_ryw <= 0):
                if not snapshot:
                    self._gets[key] = True
                return Value((self._snap or self._open()).get(key))
            point = writes.points.get(key, ABSENT)
            if point is ABSENT:
                if writes.unreadable and key in writes.unreadable:
                    raise FDBError(1036)
                if writes.clears and key in writes.clears:
                    return Value(None)
                if snapshot:
                    self._gets.setdefault(key, False)
                else:
                    self._gets[key] = True
                    self._size += 2 * len(key) + 25
                return Value((self._snap or self._open()).get(key))
            if isinstance(point, Stack):
                if point.unreadable and not settings.bypass_unreadable:
                    raise FDBError(1036)
                if point.dependent:
                    if snapshot:
                        self._gets.setdefault(key, False)
                    else:
                        self._gets[key] = True
                        self._size += 2 * len(key) + 25
                    return Value(point.value((self._snap or self._open()).get(key)))
                return Value(point.value(None))
            return Value(point)
        except FDBError as error:
            self._read_error = self._read_error or error.code
            return Value(None, error.code)

    def _top(self) -> bytes:
        return SYSTEM_TOP if self._settings.read_system else TOP

    def _overlay(self, snapshot: bool) -> Writes | None:
        s = self._settings
        return None if s.ryw_disabled or (snapshot and s.snapshot_ryw <= 0) else self._writes

    def _conflict(self, begin: bytes, end: bytes, snapshot: bool) -> None:
        if snapshot or begin >= end:
            return
        writes = self._writes
        if self._settings.ryw_disabled or not writes.touches(begin, end):
            self._read_ranges.append((begin, end))
            self._size += len(begin) + len(end) + 24
            return
        at = Position(None, Intervals(), writes)
        at._seek_over(begin)
        while True:
            low, high = max(begin, at.over_begin), min(end, at.over_end)
            if at._over in (0, 3) and low < high:
                self._read_ranges.append((low, high))
                self._size += len(begin) + len(end) + 24
            if at.over_end >= end:
                return
            at._seek_over(at.over_end)

    def _reader(self, snapshot):
        gets = self._gets
        if len(gets) != self._synced:
            for key in islice(gets, self._synced, None):
                self._known.add(key, key + b"\0")
            self._synced = len(gets)
        return Reader(self._open_once, self._known, self._overlay(snapshot), self._top())

    def _get_key(self, key, or_equal, offset, snapshot):
        if self._odd or self._commit is not None:
            code = self._blocked()
            if code:
                return Key(None, code)
        key = key[: READ_KEY_LIMIT + 1]
        if key > self._top():
            return Key(None, 2004)
        after = key + b"\0" if or_equal else key
        try:
            if self._settings.ryw_disabled:
                found, _ = pages.resolve(self._snap or self._open(), Selector(after, offset))
            else:
                found = self._reader(snapshot).key(Selector(after, offset))
        except FDBError as error:
            self._read_error = self._read_error or error.code
            return Key(None, error.code)
        if offset <= 0:
            self._conflict(found, after, snapshot)
        else:
            self._conflict(after, found + b"\0", snapshot)
        return Key(min(found, self._top()))

    def _page(self, begin, end, limit, mode, iteration, reverse, snapshot):
        begin_key, end_key = key_to_bytes(begin.key)[: READ_KEY_LIMIT + 1], key_to_bytes(end.key)[: READ_KEY_LIMIT + 1]
        if not limit and mode == 0:
            return FutureKeyValueArray(None, 2210)
        if mode == -1:
            nbytes = PAGE_BYTES[min(iteration, 10) - 1]
        elif mode in MODE_BYTES:
            nbytes = MODE_BYTES[mode]
        else:
            return FutureKeyValueArray(None, 2000)
        if self._odd or self._commit is not None:
            code = self._blocked()
            if code:
                return FutureKeyValueArray(None, code)
        top = self._top()
        if begin_key > top or end_key > top:
            return FutureKeyValueArray(None, 2004)
        if limit < 0:
            return FutureKeyValueArray(None, 2012)
        b, e = Selector(begin_key, begin.offset), Selector(end_key, end.offset)
        if begin.or_equal:
            b.key += b"\0"
        if end.or_equal:
            e.key += b"\0"
        if b.offset >= e.offset and b.key >= e.key:
            return FutureKeyValueArray(([], 0, False))
        limits = Limits(limit or -1, nbytes)
        try:
            if self._settings.ryw_disabled:
                return self._direct_page(b, e, limits, reverse, snapshot)
            page = self._reader(snapshot).range(b, e, limits, reverse)
        except FDBError as error:
            self._read_error = self._read_error or error.code
            return FutureKeyValueArray(None, error.code)
        rows = page.rows
        if not snapshot:
            low, high = (b.key, e.key) if b.key < e.key else (e.key, b.key)
            if b.key < e.key and page.more:
                if not reverse and e.offset > 0:
                    high = b.key
                if reverse and b.offset <= 1:
                    low = e.key
            if page.to_begin and b.offset <= 0:
                low = b""
            if page.through_end and e.offset > 0:
                high = top
            if rows:
                if not reverse:
                    if b.offset <= 0:
                        low = min(low, rows[0][0])
                    if high <= rows[-1][0]:
                        high = rows[-1][0] + b"\0"
                else:
                    low = min(low, rows[-1][0])
                    if e.offset > 0 and high <= rows[0][0]:
                        high = rows[0][0] + b"\0"
            self._conflict(low, high, False)
        return FutureKeyValueArray(([KeyValue(*row) for row in rows], len(rows), page.more))

    def _direct_page(self, b, e, limits, reverse, snapshot):
        snap = self._snap or self._open()
        top = self._top()
        if reverse and e.offset > 1:
            found, _ = pages.resolve(snap, e)
            self._conflict(e.key, found + b"\0", snapshot)
            e = Selector(min(found, top), 1)
        page = pages.read(snap, b, e, limits, reverse)
        rows = page.rows
        if page.to_begin:
            low = b""
        elif ((not reverse or not page.more or b.offset > 1) and b.offset > 0) or not rows:
            low = b.key
        else:
            low = rows[-1][0] if reverse else rows[0][0]
        if e.offset > b.offset and e.key < low:
            low = e.key
        if page.through_end:
            high = b"\xff\xff"
        elif ((reverse or not page.more or e.offset <= 0) and e.offset <= 1) or not rows:
            high = e.key
        else:
            high = (rows[0][0] if reverse else rows[-1][0]) + b"\0"
        if b.offset < e.offset and b.key > high:
            high = b.key
        self._conflict(low, high, snapshot)
        more = page.more
        if not reverse and rows and rows[-1][0] >= top:
            rows = [row for row in rows if row[0] < top]
            more = False
        return FutureKeyValueArray(([KeyValue(*row) for row in rows], len(rows), more))

    def _estimated_size(self, begin, end):
        code = self._blocked()
        if code:
            return FutureInt64(None, code)
        if begin > end:
            return FutureInt64(None, 2005)
        snap = self._snap or self._open()
        return FutureInt64(sum(len(k) + len(v) for k, v in snap.scan(begin, end)))

    def _split_points(self, begin, end, chunk):
        code = self._blocked()
        if code:
            return FutureKeyArray(None, code)
        if begin > end:
            return FutureKeyArray(None, 2005)
        if begin > self._top() or end > self._top():
            return FutureKeyArray(None, 2004)
        snap = self._snap or self._open()
        points, size = [begin], 0
        for key, value in snap.scan(begin, end):
            if size >= chunk:
                points.append(key)
                size = 0
            size += len(key) + len(value)
        points.append(end)
        return FutureKeyArray(points)

    # -- writes

    def set_read_version(self, version: int) -> None:
        if self._version is not None:
            self._defer(2010)
        elif version <= 0:
            self._defer(2011)
        else:
            self._version = version
            try:
                self._snap = self._store.snapshot_at(version)
            except FDBError as error:
                self._read_error = error.code

    def _quiet(self) -> bool:
        if self._settings.quiet_next:
            self._settings.quiet_next = False
            return True
        return False

    def _writing(self) -> bool:
        if self._pause is not None:
            self._pause.look()
        if self._commit is not None:
            self._used_during_commit()
            self._defer(2017)
            return False
        return True

    def _write_limit(self, key: bytes) -> int:
        if key >= (SYSTEM_TOP if self._settings.write_system else TOP):
            return 2004
        if len(key) > (SYSTEM_KEY_LIMIT if key[:1] == b"\xff" else KEY_LIMIT + 8 * self._settings.read_system):
            return 2102
        return 0

    def set(self, key: Any, value: Any) -> None:
        if type(key) is not bytes:
            key = key_to_bytes(key)
        if type(value) is not bytes:
            value = value_to_bytes(value)
        quiet = False
        if self._odd or self._commit is not None:
            quiet = self._quiet()
            if not self._writing():
                return
        if key >= TOP or len(key) > KEY_LIMIT or len(value) > VALUE_LIMIT:
            code = self._write_limit(key) or (2103 if len(value) > VALUE_LIMIT else 0)
            if code:
                self._defer(code)
                return
        self._size += 3 * len(key) + len(value) + 69
        self._writes.set(key, value, not quiet)
        if self._watches:
            self._trigger(key, key + b"\0")

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        param = value_to_bytes(param)
        key = key_to_bytes(key)
        conflict = not self._quiet()
        if not self._writing():
            return
        code = self._write_limit(key) or (2103 if len(param) > VALUE_LIMIT else 0)
        if code:
            self._defer(code)
            return
        if opcode == 14:
            at = stamp_position(key)
            if at is None:
                self._defer(2000)
                return
            body = key[:-4]
            low = body[:at] + (self._version or 0).to_bytes(8, "big") + b"\0\0" + body[at + 10 :]
            high = body[:at] + b"\xff" * 10 + body[at + 10 :] + b"\0"
            self._writes.make_unreadable(low, min(high, self._top()))
            key = low + key[-4:]
            conflict = False
        elif opcode == 15 and stamp_position(param) is None:
            self._defer(2000)
            return
        self._size += len(key) + len(param) + 44 + (2 * len(key) + 25 if conflict else 0)
        self._writes.mutate(opcode, key, param, conflict)
        if self._watches:
            self._trigger(key, key + b"\0")

    def clear(self, key: Any) -> None:
        if hasattr(key, "or_equal"):
            key = self.get_key(key)
        key = key_to_bytes(key)
        conflict = not self._quiet()
        if not self._writing():
            return
        if key >= (SYSTEM_TOP if self._settings.write_system else TOP):
            self._defer(2004)
            return
        if len(key) > (SYSTEM_KEY_LIMIT if key[:1] == b"\xff" else READ_KEY_LIMIT):
            return
        self._size += 2 * len(key) + 25 + (2 * len(key) + 25 if conflict else 0)
        self._writes.clear(key, conflict)
        if self._watches:
            self._trigger(key, key + b"\0")

    def clear_range(self, begin: Any, end: Any) -> None:
        if begin is None:
            begin = b""
        if end is None:
            end = b"\xff"
        if hasattr(begin, "or_equal"):
            begin = self.get_key(begin)
        if hasattr(end, "or_equal"):
            end = self.get_key(end)
        begin, end = key_to_bytes(begin), key_to_bytes(end)
        if begin > end:
            self._defer(2005)
            return
        conflict = not self._quiet()
        if not self._writing():
            return
        top = SYSTEM_TOP if self._settings.write_system else TOP
        if begin > top or end > top:
            self._defer(2004)
            return
        self._size += len(begin) + len(end) + 44 + (len(begin) + len(end) + 24 if conflict else 0)
        begin, end = begin[: READ_KEY_LIMIT + 1], end[: READ_KEY_LIMIT + 1]
        if begin == end:
            return
        self._writes.clear_range(begin, end, conflict)
        if self._watches:
            self._trigger(begin, end)

    def clear_range_startswith(self, prefix: Any) -> None:
        prefix = key_to_bytes(prefix)
        return self.clear_range(prefix, strinc(prefix))

    def __setitem__(self, key, value):
        self.set(key, value)

    def __delitem__(self, key):
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    def add_read_conflict_range(self, begin, end):
        begin, end = key_to_bytes(begin), key_to_bytes(end)
        if begin > end:
            raise FDBError(2005)
        if not self._writing():
            return
        if begin > self._top() or end > self._top():
            self._defer(2004)
            return
        self._conflict(begin[: READ_KEY_LIMIT + 1], end[: READ_KEY_LIMIT + 1], False)

    def add_read_conflict_key(self, key):
        key = key_to_bytes(key)
        self.add_read_conflict_range(key, key + b"\x00")

    def add_write_conflict_range(self, begin, end):
        begin, end = key_to_bytes(begin), key_to_bytes(end)
        if begin > end:
            raise FDBError(2005)
        if not self._writing():
            return
        top = SYSTEM_TOP if self._settings.write_system else TOP
        if begin > top or end > top:
            self._defer(2004)
            return
        begin, end = begin[: READ_KEY_LIMIT + 1], end[: READ_KEY_LIMIT + 1]
        if begin < end:
            self._size += len(begin) + len(end) + 24
            self._writes.conflicts.append((begin, end))
            self._writes.empty = False

    def add_write_conflict_key(self, key):
        key = key_to_bytes(key)
        self.add_write_conflict_range(key, key + b"\x00")

    # -- the end

    def commit(self) -> Future[None]:
        code = self._blocked() or self._read_error
        if code:
            return FutureVoid(None, code)
        return Commit.start(self)

    def get_committed_version(self) -> int:
        if self._commit is not None:
            self._commit.look()
        return self._committed_version

    def get_approximate_size(self):
        return FutureInt64(self._size, self._deferred)

    def get_versionstamp(self):
        code = self._blocked()
        if code:
            return Key(None, code)
        if self._stamp is None:
            self._stamp = PendingKey()
        return self._stamp

    def on_error(self, error):
        if isinstance(error, FDBError):
            code = error.code
        elif isinstance(error, int):
            code = error
        else:
            raise error
        return Pause.start(self, code)

    def reset(self) -> None:
        self._abandon(1025)
        self._fresh()

    def cancel(self) -> None:
        if not self._broken:
            self._break(1025)

    def _abandon(self, code: int) -> None:
        if self._commit is not None:
            self._commit.fail(code)
        if self._stamp is not None:
            self._stamp.settle(error=code)


def _operation(code: int):
    def operation(self: Any, key: Any, param: Any) -> None:
        self._atomic_operation(code, key, param)

    return operation


OPERATIONS = {
    "add": 2,
    "and": 6,
    "bit_and": 6,
    "or": 7,
    "bit_or": 7,
    "xor": 8,
    "bit_xor": 8,
    "append_if_fits": 9,
    "max": 12,
    "min": 13,
    "set_versionstamped_key": 14,
    "set_versionstamped_value": 15,
    "byte_min": 16,
    "byte_max": 17,
    "compare_and_clear": 20,
}
for _name, _code in OPERATIONS.items():
    setattr(Transaction, _name, _operation(_code))
    setattr(Transaction, f"bit_{_name}", _operation(_code))
