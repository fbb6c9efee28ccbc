"""A consistent view of the database: an LMDB read transaction that can be evicted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

import lmdb

from fdbqueue.engine.embedded.store.commit_log import Commit, read_log
from fdbqueue.engine.embedded.store.disk.files import explain
from fdbqueue.engine.embedded.store.disk.layout import DIRECT_KEY, Handle, Row, Txn
from fdbqueue.engine.embedded.store.disk.rows import Databases, LongKeys, opened, opened_all
from fdbqueue.engine.errors import TRANSACTION_TOO_OLD, FDBError, StorageError

# Reads in flight: the reads whose answer a cluster's client would still be waiting for.
#
# This engine reads at once; on a cluster a read is a round trip. A transaction that ends fails its reads in flight,
# and
# programs can see that: ``future = tr.get(key); tr.cancel(); future.wait()`` raises 1025. So a read counts as in
# flight
# until this process has waited for anything: this read, another read or a commit. By then a cluster's answer would
# also
# have arrived. Values that are known without a read (own writes, keys that were read before) are never in flight,
# and
# have no source.
#
# Every read uses this module, so it does little work. A read notes how often the process had waited when it was
# made. It
# is in flight if that count is the same when its source is cut off.

CANCELLED: Final = 1101


class Waits:
    """Counts how often this process has waited for something that takes time on a cluster."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 1


waits: Final = Waits()


class ReadSource:
    """The source of reads, until it is cut off. Subclasses set `cut_at` to -1."""

    cut_at: int
    """How often the process had waited when the source was cut off; -1 before that."""
    error = 1025
    """Error code of the reads that were in flight at that time."""

    def cut_off(self, error: int) -> None:
        """Fail the reads that are in flight. Only the first call has an effect."""
        if self.cut_at < 0:
            self.cut_at, self.error = waits.count, error


class CancelledRead(ReadSource):
    """The source of a read that was cancelled while it was in flight."""

    error = CANCELLED

    def __init__(self, asked_at: int) -> None:
        self.cut_at = asked_at


def cancelled(source: ReadSource | None, asked_at: int) -> ReadSource | None:
    """Return the source of a read after its cancellation; it is unchanged if the answer had already arrived."""
    if source is None or source.cut_at >= 0 or asked_at != waits.count:
        return source
    return CancelledRead(asked_at)


_FIRST_CHUNK: Final = 16
_LARGEST_CHUNK: Final = 4096
_CHUNK_BYTES: Final = 1 << 20
_SEEK_LIMIT: Final = 511


class Snapshot(ReadSource):
    """The database at `version`. Any thread may use it; every read raises 1007 after eviction."""

    _shut = False

    def __init__(
        self,
        txn: Txn,
        dbs: Databases,
        version: int,
        opened_at: float,
        forget: Callable[[Snapshot, None], object],
        any_long: bool | None = None,
    ) -> None:
        self._any_long = any_long
        self._closed = False
        self._sharers: dict[Snapshot, None] | None = None
        self._txn: Txn | None = txn
        self._dbs = dbs
        self._lock = threading.Lock()
        self._forget = forget
        self.cut_at = -1
        self.version = version
        self.opened_at = opened_at

    @property
    def closed(self) -> bool:
        """Whether the owner has closed the snapshot. Sharers may still use it."""
        return self._closed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        with self._lock:
            if self._txn is None:
                raise self._gone()
            try:
                if 0 < len(key) <= DIRECT_KEY:
                    stored: bytes | None = self._txn.get(key)
                    return opened(self._dbs, key, stored) if stored is not None and self._dbs.checked else stored
                return LongKeys(self._txn, self._dbs).get(key)
            except lmdb.Error as error:
                raise explain(self._dbs.path, error) from error

    def rows(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> list[Row]:
        """Return the rows of ``[begin, end)``, at most `limit` of them (0: all), from the front or from the back.

        *Cost:* finding the first row takes time logarithmic in the size of the database; each further row is one step.
        """
        with self._lock:
            txn = self._txn
            if txn is None:
                raise self._gone()
            if begin >= end:
                return []
            try:
                if self._any_long is None:
                    self._any_long = self._dbs.no_long.seen(txn, self._dbs)
                if self._any_long:
                    return list(islice(LongKeys(txn, self._dbs).rows(begin, end, reverse), limit or None))
                rows = (_down if reverse else _up)(txn, self._dbs.data, begin, end, limit)
                return opened_all(self._dbs, rows) if self._dbs.checked else rows
            except lmdb.Error as error:
                raise explain(self._dbs.path, error) from error

    def last_below(self, end: bytes) -> bytes | None:
        """Return the last key below `end`; None if there is none."""
        with self._lock:
            txn = self._txn
            if txn is None:
                raise self._gone()
            try:
                if self._any_long is None:
                    self._any_long = self._dbs.no_long.seen(txn, self._dbs)
                if self._any_long:
                    return next((key for key, _ in LongKeys(txn, self._dbs).rows(b"", end, True)), None)
                cursor = txn.cursor(self._dbs.data)
                found = cursor.prev() if cursor.set_range(end[:_SEEK_LIMIT]) else cursor.last()
                return cursor.key() if found else None
            except lmdb.Error as error:
                raise explain(self._dbs.path, error) from error

    def scan(self, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows of ``[begin, end)``, read lazily in chunks of at most about a megabyte."""
        size = _FIRST_CHUNK
        while True:
            chunk = self.rows(begin, end, size, reverse)
            yield from chunk
            if len(chunk) < size:
                return
            if reverse:
                end = chunk[-1][0]
            else:
                begin = chunk[-1][0] + b"\0"
            size = _next_chunk(size, chunk[-1])

    def commits_after(self, version: int) -> tuple[int, list[Commit]]:
        """Return LMDB's transaction number, and the commits after `version` that the log still has, in order."""
        with self._lock:
            if self._txn is None:
                raise self._gone()
            return self._txn.id(), list(read_log(self._txn, self._dbs, version))

    def share(self) -> Snapshot:
        """Return another handle of the same view. The caller closes each handle separately."""
        with self._lock:
            if self._txn is None:
                raise self._gone()
            if self._sharers is None:
                self._sharers = {}
        return SharedSnapshot(self, self._sharers)

    def close(self) -> None:
        """Close the snapshot; the view ends when all sharers have closed theirs too. A second call does nothing."""
        if not self._closed:
            self._closed = True
            if not self._sharers:
                self._forget(self, None)
                with self._lock:
                    if self._txn is not None:
                        self._txn.abort()
                        self._txn = None

    def drop(self) -> None:
        """Close the snapshot in a finalizer, which must not wait for a lock (see `Changes.unwatch`).

        Only a thread that evicts the snapshot may hold the lock then, and it ends the view.
        """
        if not self._closed:
            self._closed = True
            if not self._sharers:
                self.end(wait=False)

    def end(self, wait: bool = True) -> None:
        """End the view for all sharers. Without `wait`, leave that to a thread that holds the lock."""
        self._forget(self, None)
        if self._lock.acquire(wait):
            try:
                self._abort()
            finally:
                self._lock.release()

    def evict(self) -> None:
        """Abort the view; all later reads of it raise 1007."""
        with self._lock:
            self._abort()

    def shut(self) -> None:
        """Abort the view, because the store closes; all later reads of it raise StorageError."""
        self._shut = True
        self.evict()

    def _gone(self) -> FDBError | StorageError:
        return StorageError(f"{self._dbs.path}: was closed.") if self._shut else FDBError(TRANSACTION_TOO_OLD)

    def _abort(self) -> None:
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.abort()

    def abandon(self) -> Txn | None:
        """Detach and return LMDB's transaction in a forked child, which must keep it and never use it."""
        self._lock = threading.Lock()
        txn, self._txn = self._txn, None
        return txn


class SharedSnapshot(Snapshot):
    """Another handle of a snapshot's view; the view ends when its last handle is closed."""

    def __init__(self, base: Snapshot, sharers: dict[Snapshot, None]) -> None:
        self._base = base
        self._all = sharers
        self.cut_at = -1
        self.version = base.version
        self.opened_at = base.opened_at
        sharers[self] = None

    def get(self, key: bytes) -> bytes | None:
        return self._base.get(key)

    def rows(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> list[Row]:
        return self._base.rows(begin, end, limit, reverse)

    def last_below(self, end: bytes) -> bytes | None:
        return self._base.last_below(end)

    def commits_after(self, version: int) -> tuple[int, list[Commit]]:
        return self._base.commits_after(version)

    def share(self) -> Snapshot:
        return self._base.share()

    def close(self) -> None:
        self._end_last()

    def drop(self) -> None:
        self._end_last(wait=False)

    def _end_last(self, wait: bool = True) -> None:
        self._all.pop(self, None)
        if not self._all and self._base.closed:
            self._base.end(wait)


def _next_chunk(size: int, row: Row) -> int:
    room = _CHUNK_BYTES // (len(row[0]) + len(row[1]) + 1)
    return max(_FIRST_CHUNK, min(size * 4, _LARGEST_CHUNK, room))


def _up(txn: Txn, db: Handle, begin: bytes, end: bytes, limit: int) -> list[Row]:
    # No key here is longer than the limit of a seek, so a seek to the truncated `begin` finds the same row.
    cursor = txn.cursor(db)
    if not (cursor.set_range(begin[:_SEEK_LIMIT]) if begin else cursor.first()):
        return []
    if limit == 1:
        key = cursor.key()
        return [(key, cursor.value())] if key < end else []
    rows = cursor.iternext()
    found: list[Row] = []
    for row in islice(rows, min(_FIRST_CHUNK, limit or _FIRST_CHUNK)):
        if row[0] >= end:
            return found
        found.append(row)
    if len(found) < _FIRST_CHUNK or len(found) == limit:
        return found
    behind = txn.cursor(db)
    return found + _until(rows, behind.item() if behind.set_range(end[:_SEEK_LIMIT]) else None, limit - len(found))


def _down(txn: Txn, db: Handle, begin: bytes, end: bytes, limit: int) -> list[Row]:
    cursor = txn.cursor(db)
    if not (cursor.prev() if cursor.set_range(end[:_SEEK_LIMIT]) else cursor.last()):
        return []
    if limit == 1:
        key = cursor.key()
        return [(key, cursor.value())] if key >= begin else []
    rows = cursor.iterprev()
    found: list[Row] = []
    for row in islice(rows, min(_FIRST_CHUNK, limit or _FIRST_CHUNK)):
        if row[0] < begin:
            return found
        found.append(row)
    if len(found) < _FIRST_CHUNK or len(found) == limit:
        return found
    behind = txn.cursor(db)
    is_there = behind.prev() if behind.set_range(begin[:_SEEK_LIMIT]) else behind.last()
    return found + _until(rows, behind.item() if is_there else None, limit - len(found))


def _until(rows: Iterator[Row], behind: Row | None, limit: int) -> list[Row]:
    """Return the rows in front of the one behind the range: at most `limit`; all if that is negative.

    Only that row is read of those of another range. Their pages may be damaged, and LMDB then ends the process.
    """
    if behind is not None:
        rows = iter(rows.__next__, behind)
    return list(rows if limit < 0 else islice(rows, limit))


# The snapshot reaper: a thread that evicts snapshots that are too old, so that LMDB can reuse their pages.

IDLE_SECONDS: Final = 5.0
LONGEST_JOIN: Final = 5.0


class Tidied(Protocol):
    """The object that the reaper tidies: the store."""

    def tidy(self) -> float | None:
        """Do the due work; return the seconds until more work is due, None if there is none."""


class SnapshotReaper:
    """Tidies while there is something to tidy, and sleeps otherwise."""

    __slots__ = ("_closed", "_event", "_thread", "_tidied", "awake")

    def __init__(self, tidied: Tidied) -> None:
        self._tidied = tidied
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.awake = False

    def wake(self) -> None:
        """Note that there is something to tidy. The store calls this if `awake` is not set."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fdbqueue-janitor", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads, or the interpreter is shutting down: the next call tries again
            self._thread = thread
        self.awake = True
        self._event.set()

    def close(self) -> None:
        """End the thread, and wait for its end."""
        self._closed = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LONGEST_JOIN)

    def _run(self) -> None:
        while not self._closed:
            due = self._tidied.tidy()
            if due is None:
                due = self._sleep()
            self._pause(due)

    def _sleep(self) -> float:
        """Sleep until there is something to tidy; return the seconds until it is due."""
        self._event.clear()
        self.awake = False
        due = self._tidied.tidy()  # for callers that came earlier and still saw `awake` set
        if due is None:
            if not self._closed:
                self._event.wait()
            due = IDLE_SECONDS
        self.awake = True
        return due

    def _pause(self, seconds: float) -> None:
        self._event.clear()
        if not self._closed:
            self._event.wait(seconds)


# The state after the commits of one version, readable while a caller may ask for that version.


class Committed:
    """A snapshot that the commits of its version hold in common; it closes when the last of them is freed."""

    __slots__ = ("__weakref__", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __del__(self) -> None:
        self.snapshot.drop()
