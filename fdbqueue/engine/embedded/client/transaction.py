"""A transaction: its reads and writes, its states, and its end.

The states are FoundationDB's, because programs rely on them:

- A refused write fails the commit (*deferred*). A failed read fails the commit too.
- A use after the commit began fails with 2017, and the commit fails as well.
- After a cancel or a timeout every operation fails (*broken*).
- Only `reset`, or an `on_error` that succeeds, makes the transaction new.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from _thread import RLock  # what `threading.RLock` calls; shorter, as each transaction makes one
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fdbqueue.engine import api
from fdbqueue.engine.embedded.client import special_keys
from fdbqueue.engine.embedded.client.commits import Commit
from fdbqueue.engine.embedded.client.futures import (
    FailedKey,
    FailedValue,
    Future,
    FutureInt64,
    FutureString,
    FutureVoid,
    Key,
    PendingKey,
    Value,
)
from fdbqueue.engine.embedded.client.options import (
    INITIALIZE_NEW_DATABASE,
    PERSISTENT,
    READ_YOUR_WRITES_DISABLE,
    TIMEOUT,
    Settings,
    TransactionOptions,
)
from fdbqueue.engine.embedded.client.pages import FutureKeyValueArray, RangeSelector, integer, key_to_bytes
from fdbqueue.engine.embedded.client.pending import FIRST_DELAY, FailedWatch, RetryPause, Watch
from fdbqueue.engine.embedded.client.read_api import COMPACT_AT
from fdbqueue.engine.embedded.client.reads import METADATA_VERSION, TOP
from fdbqueue.engine.embedded.client.write_api import KEY_LIMIT, WriteApi
from fdbqueue.engine.embedded.client.write_buffer import Intervals, Range, WriteBuffer
from fdbqueue.engine.embedded.store.commit.scheduling import TimeSlice
from fdbqueue.engine.embedded.store.members import Members
from fdbqueue.engine.embedded.store.snapshot import waits
from fdbqueue.engine.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.database import Database
    from fdbqueue.engine.embedded.store.snapshot import Snapshot as StoreSnapshot


class Transaction(WriteApi):
    """Reads and writes that take effect together when `commit` succeeds, or not at all.

    The methods are those of the official binding's transaction at API version 730.
    """

    _backoff = FIRST_DELAY
    _broken = 0
    _commit: Commit | None = None
    _committing: StoreSnapshot | None = None  # the snapshot that the commit's transaction read
    _committed = -1
    _defaults: Settings | None = None  # the database's options at creation or reset, if this set others
    _deferred = 0
    _failed_ranges: Sequence[Range] = ()
    _pause: weakref.ref[RetryPause] | None = None
    _persistent: list[tuple[int, bytes | None]] | None = None  # options set here that outlive errors
    _retries = 0
    _stamps: tuple[PendingKey, ...] = ()
    marker_claim: object = None
    """What `engine.marker` keeps here for a `transactional` function; None: this is no transaction of one."""

    def __init__(self, db: Database) -> None:
        self._watches = []
        self.db = db
        self._store = db._opened or db._store()
        self._lock = RLock()
        self._created = time.monotonic()
        self._writes = WriteBuffer()
        self._gets = {}
        self._known = self._snap = self._version = self._version_wait = self._commit = self._pause = None
        self._conflict_ranges = []
        self._fresh = self._stamps = ()
        self._only_looked = False
        self._known_since = self._size = self._read_error = 0
        self._settings = settings = db._settings
        self._odd = settings.odd
        if settings.odd:
            self._deferred = settings.error

    def _start(self) -> None:
        """Discard the whole state, for `reset`."""
        self._backoff = FIRST_DELAY
        self._retries = 0
        self._created = time.monotonic()
        self._persistent = None
        self._defaults = self.db._settings
        self._renew()

    def _renew(self) -> None:
        """Discard reads and writes, but keep the options that outlive an error, for `on_error`."""
        self._close_snapshot()
        self._version = self._version_wait = None
        self._writes = WriteBuffer()
        self._gets = {}
        self._synced = 0
        self._known, self._fresh = None, ()
        self._conflict_ranges = []
        self._covered = None
        self._compact_at = COMPACT_AT
        self._size = self._unseen_size = 0
        self._has_read = self._only_looked = False
        self._read_error = self._broken = 0
        self._commit = self._committing = self._pause = None
        self._stamps = ()
        self._watches = []
        latest = self.db._settings
        settings = self._defaults or self._settings
        self._defaults = None
        if self._persistent or settings.snapshot_ryw != latest.snapshot_ryw:
            self._defaults = settings
            settings = settings.copy()
            settings.see_own_writes(latest.snapshot_ryw)
            for code, param in self._persistent or ():
                settings.try_set(code, param)
        self._settings = settings
        self._deferred = settings.error or latest.error
        self._odd = settings.odd or bool(latest.error)

    def _cut(self, code: int) -> None:
        """Fail the reads that are under way. None is under way after a commit has ended: it waited for them."""
        snap = self._snap
        if snap is None and self._commit is not None and not self._commit.is_ready():
            snap = self._committing
        if snap is not None:
            snap.cut_off(code)
        for watch in self._watches:
            watch.cut_off(code)

    def _close_snapshot(self) -> None:
        snap, self._snap = self._snap, None
        if snap is not None:
            snap.close()

    def __del__(self) -> None:
        snap = self._snap
        if snap is not None:
            snap.cut_at = waits.count
            snap.drop()
        if self._watches:
            for watch in self._watches:
                watch.abandon(1025)
        if self._version_wait is not None:
            self._version_wait.settle(error=1025)
        if self._commit is None:
            for stamp in self._stamps:
                stamp.settle(error=1025)
        if self._pause is not None and (pause := self._pause()) is not None:
            pause.fail()

    def __reduce__(self) -> Any:
        raise TypeError(
            "A transaction can't be copied or pickled: it belongs to one run of your function. Make another one by"
            " db.create_transaction(), or give the database, which can be pickled."
        )

    def __repr__(self) -> str:
        state = "committed" if self._commit is not None else f"broken by {self._broken}" if self._broken else "open"
        version = "" if self._version is None else f" at version {self._version}"
        return f"<Transaction{version} of {self.db!r}, {state}>"

    @property
    def options(self) -> TransactionOptions:
        return TransactionOptions(self)

    def next_turn(self) -> TimeSlice | None:
        """Return the future of this process's next time slice, as `Database.next_turn` does."""
        return self.db.next_turn()

    @property
    def members(self) -> Members:
        """The processes that use this database, as `Database.members`."""
        return self.db.members

    # -- states --------------------------------------------------------------------------------------------------

    def _blocked(self) -> int:
        code = self._deferred_error()
        if code:
            return code
        if self._commit is not None:
            self._used_during_commit()
            return 2017
        return self._broken_error()

    def _deferred_error(self) -> int:
        pause = None if self._pause is None else self._pause()
        if pause is not None:
            pause.look()
        return self._deferred

    def _broken_error(self) -> int:
        timeout = self._settings.timeout
        if timeout and not self._broken and time.monotonic() >= self._created + timeout:
            self._break(1031)
        return self._broken

    def _time_left(self) -> float | None:
        """Return the seconds until the transaction times out, or None for no limit."""
        timeout = self._settings.timeout
        if not timeout or self._broken_error():
            return None
        return max(0.0, self._created + timeout - time.monotonic())

    def _used_during_commit(self) -> None:
        if not self._broken and self._settings.protected:
            self._break(2017)

    def _failed(self, error: FDBError) -> int:
        if self._commit is not None:  # another thread began it during this read and closed the snapshot
            self._used_during_commit()
            return 2017
        return super()._failed(error)

    def _break(self, code: int) -> None:
        self._broken = code
        self._odd = True
        if code != 1031:  # 1031 is the timeout: reads that are under way had time enough
            self._cut(code)
        if self._commit is not None:
            self._commit.fail(code)
        for stamp in self._stamps:
            stamp.settle(error=code)
        if self._version_wait is not None:
            self._version_wait.settle(error=code)

    def _defer(self, code: int) -> None:
        if not self._deferred:
            self._deferred = code
            self._odd = True

    def _may_write(self) -> bool:
        if self._commit is None:
            return True
        self._used_during_commit()
        self._defer(2017)
        return False

    def _set_option(self, code: int, param: bytes | None) -> None:
        if self._deferred_error():
            return
        if code == READ_YOUR_WRITES_DISABLE:
            before = self._settings.ryw_disabled
            if self._has_read or self._gets or not (before or self._writes.empty):
                self._defer(2000)
                return
            if not before:
                self._conflict_ranges = []  # drop the ranges that the program added
        if code == INITIALIZE_NEW_DATABASE:
            if self._has_version():
                self._defer(2010)
            else:
                self._version = 0
            return
        if code == TIMEOUT:
            self._broken_error()  # the old timeout may be over
        if self._defaults is None:
            self._defaults = self._settings
            self._settings = self._settings.copy()
        try:
            self._settings.set(code, param)
        except FDBError as error:
            self._defer(error.code)
            return
        if code in PERSISTENT:
            self._persistent = [*(self._persistent or ()), (code, param)]
        self._odd = self._odd or self._settings.odd

    # -- reads ---------------------------------------------------------------------------------------------------

    def get(self, key: api.Key) -> Value:
        """Read the value of `key`.

        *Conflicts:* with writes to `key`, unless this transaction has set or cleared it.
        """
        if type(key) is not bytes:
            key = key_to_bytes(key)
        if self._odd or key >= TOP or len(key) > KEY_LIMIT or not self._writes.empty:
            return self._get(key, False)
        try:
            snap = self._snap or self._opened()
            found = snap.get(key)
        except FDBError:
            return self._get(key, False)
        if key in self._gets or self._fresh or self._known is not None:
            value = Value(found, self._asked_again(key, snap), waits.count)
        else:
            value = Value(found, snap, waits.count)
            self._gets[key] = waits.count
        self._size += 2 * len(key) + 25
        return value

    def get_key(self, key_selector: api.KeySelector) -> Key:
        """Return the key that a selector names: ``b""`` before the first key, ``b"\\xff"`` after the last.

        *Conflicts:* with writes between the selector's key and the one found.
        """
        key = key_selector.key
        if type(key) is not bytes:
            key = key_to_bytes(key)
        return self._get_key(key, key_selector.or_equal, key_selector.offset, False)

    def set_read_version(self, version: int) -> None:
        """Read at `version`, which another transaction recently got from `get_read_version`."""
        version = integer(version, 64)
        if self._deferred_error():
            return
        self._store.versions_set = True
        if self._has_version():
            self._defer(2010)
        elif version <= 0:
            self._defer(2011)
        else:
            self._version = version
            with contextlib.suppress(FDBError):  # an unavailable version fails the reads, not this call
                self._snap = self._store.snapshot_at(version)

    def conflict_since(self, version: int) -> None:
        """Check conflicts from `version` on, as `set_read_version` does, for a transaction that reads nothing.

        It takes no view of that version, which may be unavailable by now.
        """
        self._version = version

    def _has_version(self) -> bool:
        return self._version is not None or (self._commit is not None and self._commit.versioned)

    # -- special keys about the transaction itself ----------------------------------------------------------------

    def _get_special(self, key: bytes) -> Value:
        return special_keys.get(self, key)

    def _get_special_range(
        self, begin: RangeSelector, end: RangeSelector, limit: int, size: int, reverse: bool
    ) -> FutureKeyValueArray:
        return special_keys.get_range(self, begin, end, limit, size, reverse)

    def _read_conflicts(self) -> Intervals:
        ranges = [(key, key + b"\0") for key in self._conflict_keys()]
        return special_keys.merged(ranges + self._conflict_ranges)

    def _conflict_keys(self) -> list[bytes]:
        gets = self._gets
        if not self._only_looked:
            return list(gets)
        if max(gets.values(), default=0) < 0:
            return []
        return [key for key, since in list(gets.items()) if since > 0]

    def _write_conflicts_so_far(self) -> Intervals:
        writes = self._writes
        return special_keys.merged([(key, key + b"\0") for key in writes.conflict_keys()] + list(writes.conflicts))

    def _stamped_ranges(self) -> list[Range]:
        """Return the ranges that may get versionstamped keys, and after the commit the keys themselves."""
        keys = () if self._commit is None else self._commit.stamped()
        return [(key, key + b"\0") for key in keys] or self._writes.stamped

    def _failed_on(self) -> Intervals:
        if self._commit is not None:
            self._failed_ranges = self._commit.conflicting() or self._failed_ranges
        return special_keys.merged(list(self._failed_ranges))

    # -- watches -------------------------------------------------------------------------------------------------

    def watch(self, key: api.Key) -> Future[None]:
        """Return a future that becomes ready when `key` has another value than this transaction sees.

        The watch starts when the transaction commits, and outlives it. It may miss a value that changes and changes
        back.

        *Conflicts:* as a read of `key`.
        """
        key = key_to_bytes(key)
        code = self._blocked()
        if not code and self._settings.ryw_disabled:
            code = 1034
        if not code and key >= self._top() and key != METADATA_VERSION:
            code = 2004
        if not code and len(key) > self._write_limit(key):
            code = 2102
        if code:
            return FailedWatch(error=code)
        read_error = self._read_error
        value = self._get(key, False)
        self._read_error = read_error  # a failed watch does not fail the commit
        if isinstance(value, FailedValue):
            return FailedWatch(error=value.code)
        try:
            watch = Watch(self._store, self.db._outstanding, key, value)
        except FDBError as error:
            return FailedWatch(error=error.code)
        self._watches.append(watch)
        self._odd = True
        return watch

    # -- the end -------------------------------------------------------------------------------------------------

    def commit(self) -> Future[None]:
        """Commit: make all writes take effect, or none.

        The future raises 1020 if another transaction has written a key that this one read, and 1021 if the outcome is
        unknown. The commit happens even if no caller waits for the future.
        """
        if self._odd:
            code = self._blocked()
            if code:
                return FutureVoid(error=code)
        with self._lock:
            commit = self._commit = Commit()
            self._odd = True
            wait = self._version_wait
            if wait is None or wait.is_ready():
                self._hand_in(commit)
            else:
                commit.begin_after(wait, self)
        return commit

    def _hand_in(self, commit: Commit) -> None:
        code = self._read_error
        if self._version_wait is not None:
            code = code or self._version_wait.failed()
        if code:
            commit.fail(code)
            return
        commit.begin(self)
        self._committing = snap = self._snap
        self._snap = None
        if snap is not None:
            snap.close()

    def get_committed_version(self) -> int:
        """Return the version of the last successful commit: -1 before the first, and if it wrote nothing."""
        if self._commit is not None:
            self._committed = self._commit.version(self._committed)
            if self._committed > 0:
                # The program may pass it to `set_read_version`: keep that state readable after this transaction ends.
                with contextlib.suppress(FDBError):
                    snap = self._store.snapshot_at(self._committed)
                    self._store.pin(snap)
                    snap.close()
        return self._committed

    def committed_version(self) -> int:
        """Return the version of the last successful commit, but do not keep its state readable."""
        commit = self._commit
        return self._committed if commit is None else commit.version(self._committed)

    def get_versionstamp(self) -> FutureString:
        """Return the future of the commit's 10-byte versionstamp. Call this before the commit."""
        code = self._blocked()
        if code:
            return FailedKey(code=code)
        stamp = PendingKey(weakref.WeakMethod(self._time_left))
        self._stamps = (*self._stamps, stamp)
        return stamp

    def get_approximate_size(self) -> FutureInt64:
        """Return the approximate size of the commit in bytes. The limit is 10,000,000."""
        code = self._deferred_error()
        return FutureInt64(error=code) if code else FutureInt64(self._size)

    def on_error(self, error: Any) -> Future[None]:
        """Make the transaction ready for another attempt after `error`. Raise the error again if a retry can't help.

        The future becomes ready after a pause. The pause starts at 10 ms and doubles up to the option
        ``max_retry_delay``. Each pause is multiplied by a random fraction, so that conflicting transactions don't
        collide again.
        """
        if isinstance(error, FDBError):
            code = error.code
        elif isinstance(error, int):
            code = integer(error)
            code = code if 0 <= code <= 30_000 else 4000
        else:
            raise error
        return RetryPause.after(self, code)

    def reset(self) -> None:
        """Make this a new transaction. Futures of the old one that are not ready fail with 1025.

        During a pause of `on_error`, the first `reset` cancels the transaction; a second `reset` makes it new.
        """
        with self._lock:
            pause = None if self._pause is None else self._pause()
            self._cut(1025)
            self._abandon(1025)
            self._start()
            if pause is not None and pause.fail():
                self._break(1025)

    def cancel(self) -> None:
        """Fail every later operation of the transaction, until `reset`."""
        if not self._broken_error():  # a timeout that is over comes first
            self._break(1025)

    def _abandon(self, code: int) -> None:
        """Fail the futures that are not ready yet."""
        if self._commit is not None:
            self._failed_ranges = self._commit.conflicting() or self._failed_ranges
            self._committed = self._commit.version(self._committed)
            self._commit.fail(code)
        for stamp in self._stamps:
            stamp.settle(error=1100)
        for watch in self._watches:
            watch.abandon(code)
        if self._version_wait is not None:
            self._version_wait.settle(error=code)


class TransactionCreator:
    """What creates transactions: the database."""

    def create_transaction(self: Any) -> Transaction:
        """Return a new transaction."""
        return Transaction(self)
