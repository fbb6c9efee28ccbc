"""The store: ordered keys in LMDB files, consistent views of them, and commits that are checked for conflicts.

General layout of the store side::

    Store              one open folder of this process, shared by its users      store.py
      Files            LMDB's environment: open, check, grow                     disk/files.py, layout.py, data_file.py
        Disk           durable with one wait; recovery after a power cut         disk/disk.py, locks.py
      folder           opens all files, with the rights of their folder          disk/folder.py
      Snapshot         a consistent view, evicted when it gets too old           snapshot.py
      Committer        group commit                                              commit/committer.py, request.py
        RecentCommits  the write set of each commit, for conflict checks         commit_log.py
        apply          mutations to LMDB                                         commit/request.py, atomics.py
      Changes          watched keys and their callbacks                          notification.py
        Notifier       wakes processes that wait for commits of others           notification.py
      LongKeys         keys longer than LMDB's 511 bytes                         disk/rows.py
      sealed, opened   a checksum in each row                                    disk/rows.py
      Members          the processes that use the folder, and their marks        members.py

One writer at a time, over all processes, holds LMDB's lock; readers never wait. A process that dies, with or without
the lock, leaves the last commit intact. LMDB writes the pages of a commit to free places, and then one page that makes
them the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import lmdb

from fdbqueue.engine.embedded.store import opening
from fdbqueue.engine.embedded.store.commit.background_committer import BackgroundCommitter, uninterrupted
from fdbqueue.engine.embedded.store.commit.committer import Committer
from fdbqueue.engine.embedded.store.commit.request import CommitRequest, Faults
from fdbqueue.engine.embedded.store.commit_log import Commit, last_version
from fdbqueue.engine.embedded.store.disk import folder, forks
from fdbqueue.engine.embedded.store.disk.files import Files, explain, identity
from fdbqueue.engine.embedded.store.disk.layout import WINDOW_SECONDS, Handle, Txn
from fdbqueue.engine.embedded.store.members import Members
from fdbqueue.engine.embedded.store.notification import Changes, Notifier
from fdbqueue.engine.embedded.store.opening import StoreClock
from fdbqueue.engine.embedded.store.snapshot import Committed, Snapshot, SnapshotReaper
from fdbqueue.engine.errors import FUTURE_VERSION, TRANSACTION_TOO_OLD, FDBError, StorageError

__all__ = ["CommitRequest", "Faults", "Snapshot", "Store"]

log = logging.getLogger("fdbqueue.engine")

READERS_EVERY_SECONDS: Final = 5.0
MOST_PINS: Final = 64
MOST_KEPT: Final = 16

_stores: dict[str, Store] = {}
_stores_lock = threading.RLock()
_all: weakref.WeakSet[Store] = weakref.WeakSet()
"""All stores, also those whose files were removed or replaced."""


class Store:
    """An open folder. Open it with `Store.open`: all callers in this process that open the same folder share it."""

    def __init__(self, path: str, options: opening.StoreOptions, clock: StoreClock) -> None:
        self.path = path
        self.options = options
        self.clock = clock
        self.users = 0
        self.closer = 0
        self.versions_set = False
        self._forked = False
        self.closed = threading.Event()
        self._identity: tuple[int, int] | None = None
        self._begin_work()
        _all.add(self)

    def _begin_work(self) -> None:
        """Open the files and create the objects that work on them: in `__init__`, and again in a forked child."""
        self._use(self._opened_files())
        self._gate = threading.Lock()
        self._open: dict[Snapshot, None] = {}
        self._forget = self._open.pop
        self._seconds = self.clock.seconds
        self._pins: dict[int, Snapshot] = {}
        self._kept: deque[weakref.ref[Committed]] = deque()
        with contextlib.ExitStack() as undo:
            undo.callback(self.files.close)
            self.notifier = Notifier(self.path)
            undo.callback(self.notifier.close)
            self.members = Members(self.path)
            undo.callback(self.members.close)
            self.committer = Committer(self)
            undo.pop_all()
        self.process_scheduler = self.committer.process_scheduler
        self.background_committer = BackgroundCommitter(self.committer)
        self.changes = Changes(self, self.notifier)
        self._snapshot_reaper = SnapshotReaper(self)
        self.readers_checked = self.clock.seconds()
        self._tidied_commits = 0

    def _opened_files(self) -> Files:
        """Open the files; raise if other files have replaced those that were open before."""
        folder.check(self.path)
        if self._identity not in (None, identity(self.path)):
            raise StorageError(
                f"{self.path}: was removed, or replaced, since it was opened. Close it and open it again."
            )
        files = Files(self.path, self.options, self.clock)
        self._identity = files.identity
        return files

    def _use(self, files: Files) -> None:
        self.files = files
        self.begin: Callable[..., Txn] = files.env.begin
        self._dbs = files.dbs
        self._data = files.dbs.data
        self._last: tuple[int, int] = (-1, -1)
        self._ensure = files.disk.ensure

    @classmethod
    def open(cls, path: str | None, options: Mapping[str, str], clock: StoreClock | None = None) -> Store:
        """Open the folder `path` with a URL's `options`; None opens a new one in memory.

        Raises:
            StorageError: the folder can't be used.
            UrlError: an option or its value is unknown.
        """
        parsed = opening.parse(options)
        if path is None:
            made = folder.make_folder()
            try:
                store = cls(made, replace(parsed, durable=False), clock or StoreClock())
            except BaseException:
                folder.remove(made)
                raise
            with _stores_lock:
                _stores[made] = store
                store.users = 1
            return store
        real = os.path.realpath(path)
        while True:
            with _stores_lock:
                found = _stores.get(real)
                if found is None or not found.files.in_place():
                    # No store is open there, or only one whose files were removed since.
                    found = _stores[real] = cls(real, parsed, clock or StoreClock())
                if found.users or not found.closer:
                    if parsed.durable and not found.options.durable:
                        raise StorageError(
                            f"{path}: is open in this process with durability=relaxed. Close that first."
                        )
                    if parsed.checksums and not found.options.checksums:
                        raise StorageError(f"{path}: is open in this process with checksums=ignore. Close that first.")
                    found.users += 1
                    return found
            # Another thread is closing it. A process can't open a file twice with LMDB, so wait.
            if found.closer == threading.get_ident():
                raise StorageError(f"{path}: is being closed, by what called this.")
            found.closed.wait()

    def close(self) -> None:
        """Release the folder. The last user of it commits the pending requests and closes the files.

        An interrupt during this, such as Ctrl-C, is raised when the work is done.
        """
        uninterrupted(self._give_up)

    def _give_up(self) -> None:
        with _stores_lock:
            self.users -= 1
            if self.users:
                return
            self.closer = threading.get_ident()
        try:
            self.committer.sweep()
            for worker in (self.background_committer, self.changes, self._snapshot_reaper):
                worker.close()
            self.committer.close(self._shut)
            self.changes.remind_all()
            folder.remove(self.path)
        finally:
            with _stores_lock:
                if _stores.get(self.path) is self:
                    del _stores[self.path]
                _all.discard(self)
            self.closed.set()

    def _shut(self) -> None:
        with self._gate:
            self.begin = self._refuse
            for snapshot in list(self._open):
                snapshot.shut()
            self._evict_all()
            self.notifier.close()
            self.members.close()
            self.files.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the database as it is now.

        Raises:
            StorageError: too many snapshots are open, or the store is closed.
        """
        with self._gate:
            try:
                txn = self.begin(self._data)
                txn_id = txn.id()
                last_id, version = self.committer.newest
                if txn_id != last_id:
                    last_id, version = self._last
                if txn_id != last_id:
                    self._keep(txn, txn_id)
                    version = last_version(txn, self._dbs)
                    self._last = (txn_id, version)
            except lmdb.Error as error:
                trouble = error
            else:
                dbs = self._dbs
                any_long = False if dbs.no_long.until == txn_id else None
                snapshot = Snapshot(txn, dbs, version, self._seconds(), self._forget, any_long)
                self._open[snapshot] = None
                if not self._snapshot_reaper.awake:
                    self._snapshot_reaper.wake()
                return snapshot
        return self._snapshot_in_spite_of(trouble)

    def _keep(self, txn: Txn, txn_id: int) -> None:
        """Wait until the state of a snapshot is on the disk: no caller may act on data that a power cut could undo."""
        try:
            self._ensure(txn_id)
        except BaseException:
            txn.abort()
            raise

    def snapshot_at(self, version: int) -> Snapshot:
        """Return a snapshot of `version`: the newest, or one that a transaction of this process has open or pinned.

        For a version between two commits, that is the state after the first of them.

        Raises:
            FDBError: 1007: the version is no longer available; 1009: it is in the future.
        """
        newest = self.snapshot()
        if newest.version == version:
            return newest
        with closing(newest):
            if version > newest.version:
                raise FDBError(FUTURE_VERSION)
            held = [other for other in list(self._open) if other.version <= version]
            if held:
                found = max(held, key=attrgetter("version"))
                if found.version == version or newest.commits_after(found.version)[1][0][0] > version:
                    return found.share()
        raise FDBError(TRANSACTION_TOO_OLD)

    def pin(self, snapshot: Snapshot) -> None:
        """Keep the state of `snapshot` available to `snapshot_at` until it is 5 s old, or 64 others were pinned."""
        if snapshot.version not in self._pins:
            self._pins[snapshot.version] = snapshot.share()
            for version in list(self._pins)[:-MOST_PINS]:
                oldest = self._pins.pop(version, None)
                if oldest is not None:
                    oldest.close()

    def keep_newest(self) -> Committed | None:
        """Keep the state after the last commit available to `snapshot_at` while a caller holds the returned object.

        The state is dropped earlier if it is 5 s old, or if 16 others were kept. Returns None if another process has
        committed since, or if LMDB refuses.
        """
        with self._gate, contextlib.suppress(lmdb.Error):
            txn = self.begin(self._data)
            txn_id, version = self.committer.newest
            if txn.id() == txn_id:
                snapshot = Snapshot(txn, self._dbs, version, self._seconds(), self._forget)
                self._open[snapshot] = None
                committed = Committed(snapshot)
                self._kept.append(weakref.ref(committed))
                if len(self._kept) > MOST_KEPT and (oldest := self._kept.popleft()()) is not None:
                    oldest.snapshot.close()
                return committed
            txn.abort()
        return None

    def current(self, key: bytes) -> bytes | None:
        """Return the current value of `key`."""
        while True:
            snapshot = self.snapshot()
            try:
                return snapshot.get(key)
            except FDBError:
                pass  # the snapshot was evicted: the map had to grow, or this thread did not run for long
            finally:
                snapshot.close()

    # -- committing ----------------------------------------------------------------------------------------------

    def submit(self, request: CommitRequest) -> None:
        """Submit a commit. A waiting thread commits it; if none waits, the background committer does so soon."""
        self.committer.submit(request)
        if not self.background_committer.armed:
            self.background_committer.arm()

    def wait(self, request: CommitRequest) -> None:
        """Block until `request` is done.

        Raises:
            StorageError: the disk failed, and nothing of the commit was kept.
        """
        try:
            self.committer.wait(request)
        except BaseException:
            self.background_committer.kick()  # the interrupted thread may have had work to do for others
            raise
        if request.failure is not None:
            raise request.failure

    def on_done(self, request: CommitRequest, callback: Callable[[CommitRequest], None]) -> None:
        """Call `callback` when `request` is done: at once if it already is, else perhaps in another thread."""
        if request.on_done(callback):
            return
        if self._forked and not self.committer.has(request):
            self.committer.wait(request)  # the request is the parent's: this does not wait
        else:
            self.background_committer.kick()

    @property
    def faults(self) -> Faults | None:
        """The failures that tests inject."""
        return self.committer.faults

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        self.committer.faults = faults

    # -- watching ------------------------------------------------------------------------------------------------

    def watch(self, key: bytes, callback: Callable[[], object]) -> None:
        """Call `callback` after every commit, of any process, that wrote `key`, until `unwatch`."""
        self.changes.watch(key, callback)

    def unwatch(self, key: bytes, callback: Callable[[], object]) -> None:
        """Stop calling `callback` for `key`."""
        self.changes.unwatch(key, callback)

    def follow(self, callback: Callable[[], object]) -> None:
        """Call `callback` after every commit, of any process, and about 20 times a second, until `unfollow`."""
        self.changes.follow(callback)

    def unfollow(self, callback: Callable[[], object]) -> None:
        """Stop calling `callback`."""
        self.changes.unfollow(callback)

    def listen(self, on: bool) -> None:
        self.committer.listening = on

    def published(self, entries: list[Commit]) -> None:
        self.changes.publish(entries)

    def last_transaction(self) -> int:
        with self._gate:
            try:
                last: int = self.files.env.info()["last_txnid"]
            except lmdb.Error as error:
                raise explain(self.path, error) from error
        return last

    def entries_after(self, version: int) -> tuple[int, list[Commit]]:
        snapshot = self.snapshot()
        try:
            return snapshot.commits_after(version)
        finally:
            snapshot.close()

    def last_version(self) -> int:
        snapshot = self.snapshot()
        snapshot.close()
        return snapshot.version

    # -- housekeeping --------------------------------------------------------------------------------------------

    def tidy(self) -> float | None:
        """Evict snapshots older than 5 s, and remove readers of killed processes.

        Returns:
            The seconds until the next call is due; None if no call is.
        """
        now = self.clock.seconds()
        oldest: Snapshot | None = None
        for snapshot in list(self._open):
            if snapshot.opened_at + WINDOW_SECONDS > now:
                oldest = snapshot
                break
            self._evict(snapshot)
        if now - self.readers_checked >= READERS_EVERY_SECONDS:
            self.readers_checked = now
            try:
                self.files.env.reader_check()
            except lmdb.Error as error:
                log.warning("%s: could not look for readers that were killed: %s", self.path, error)
        if oldest is not None:
            return oldest.opened_at + WINDOW_SECONDS - now
        busy = self.committer.commits != self._tidied_commits
        self._tidied_commits = self.committer.commits
        return READERS_EVERY_SECONDS if busy else None

    def working(self) -> None:
        if not self._snapshot_reaper.awake:
            self._snapshot_reaper.wake()

    def grow(self) -> None:
        """Double the map. This evicts the open snapshots, because they would prevent it."""
        with self._gate:
            self._evict_all()
            self.files.grow()

    def adopt(self) -> None:
        """Adopt the map size that another process has set."""
        with self._gate:
            self._evict_all()
            self.files.adopt()

    def reopen(self) -> None:
        """Open the files again after LMDB has closed them."""
        with self._gate:
            self._evict_all()
            self.files.close()  # does nothing if an earlier call closed them and then failed to open them
            self._use(self._opened_files())

    def _evict(self, snapshot: Snapshot) -> None:
        self._open.pop(snapshot, None)
        self._pins.pop(snapshot.version, None)
        snapshot.evict()

    def _evict_all(self) -> None:
        for snapshot in list(self._open):
            self._evict(snapshot)

    def _snapshot_in_spite_of(self, error: lmdb.Error) -> Snapshot:
        """Fix the cause of `error`, which prevented a snapshot, and return a snapshot; raise if that is impossible."""
        if isinstance(error, lmdb.MapResizedError):
            self.committer.alone(self.adopt)
        elif isinstance(error, lmdb.PanicError) or self.files.lost:
            self.committer.alone(self.committer.reopen)
        elif not (isinstance(error, lmdb.ReadersFullError) and self.files.env.reader_check()):
            raise explain(self.path, error) from error
        return self.snapshot()

    def _refuse(self, _db: Handle) -> Txn:
        raise StorageError(f"{self.path}: was closed.")

    # -- forks ---------------------------------------------------------------------------------------------------

    def abandon(self) -> list[Any]:
        """Drop all objects of the parent process; return those that must not be freed in the child."""
        self._forked = True
        self.__class__ = _Inherited
        kept: list[Any] = [self.__dict__.pop(name, None) for name in _WORK]
        kept.extend([snapshot.abandon() for snapshot in list(kept[_WORK.index("_open")] or ())])
        return kept


class _Inherited(Store):
    """A store in a forked child, before the child uses it. Only here attributes are missing: others stay fast."""

    def __getattr__(self, name: str) -> Any:
        """Open the files again, since `abandon` has removed the attributes."""
        if name not in _WORK:
            raise AttributeError(name)
        with _stores_lock:
            if name not in self.__dict__:
                self._begin_work()
                self.__class__ = Store  # type: ignore[assignment]
        return self.__dict__[name]


_WORK = (
    *("files", "begin", "_dbs", "_data", "_gate", "_open", "_forget", "_seconds", "_pins", "_kept", "_last"),
    *("_ensure", "notifier", "committer", "process_scheduler", "members"),
    *("background_committer", "changes", "_snapshot_reaper"),
)  # fmt: skip


def _after_fork() -> None:
    global _stores_lock
    _stores_lock = threading.RLock()
    for path in [path for path, store in _stores.items() if not store.users]:
        del _stores[path]  # the thread that was closing it does not exist in this process
    forks.keep([store.abandon() for store in list(_all)])


os.register_at_fork(after_in_child=_after_fork)
