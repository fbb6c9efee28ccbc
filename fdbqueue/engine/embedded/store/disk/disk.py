"""Write commits to the disk, with one wait each if possible.

A power cut loses nothing (`redo`) because all processes follow two rules. A process makes a commit only after the
previous commit is on the disk, and it labels the commit first. Relaxed commits follow neither rule, and have no label.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import lmdb

from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.disk import folder, redo
from fdbqueue.engine.embedded.store.disk.folder_lock import FolderLock
from fdbqueue.engine.errors import StorageError

SHORTEST_PAUSE: Final = 0.00005
LONGEST_PAUSE: Final = 0.001
"""Seconds between two looks whether another process has synced: first the shortest, in the end the longest."""
LONGEST_SHARED_SECONDS: Final = 0.1
"""After this time a process no longer waits for another one's sync. The other one may be stopped, so the process does
not wait for one again until it has found the lock free."""


class Disk(Protocol):
    """The disk as the store uses it. `txn` is LMDB's number of a transaction."""

    def begun(self, txn: int) -> None:
        """Make it safe to write in the transaction `txn`, which has just begun.

        Raises:
            StorageError: the disk has failed: no process may write.
        """

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> bool:
        """Label the commit `txn`, immediately before it is made. Return whether its label has a redo.

        Raises:
            StorageError: the disk refused the write.
        """

    def ensure(self, txn: int, *, has_redo: bool = False) -> None:
        """Wait until the commit `txn`, which was made, and all earlier commits are on the disk.

        Args:
            has_redo: whether the caller has made the commit, with a redo in its label. Otherwise its label is read.

        Raises:
            StorageError: the disk has failed: the commits may or may not be on it.
            lmdb.MapResizedError: another process has made the map larger; the caller must adopt its size first.
        """

    def release(self) -> None:
        """Leave a file that needs no recovery. Only the last process that has it open may call this."""

    def close(self) -> None:
        """Close the file."""


class Durable:
    """Commits are on the disk before they are acknowledged, and before they are read."""

    def __init__(self, path: str, env: Any, folder_lock: FolderLock) -> None:
        self._path = path
        self._env = env
        self._folder_lock = folder_lock
        self._fd = folder.open_file(path, folder.DATA, create=False)
        self._labels = redo.Labels(self._fd, env.stat()["psize"])
        self._waiting = threading.Lock()
        self._shares_syncs = True
        """Whether to wait for the sync of another process; not if the last such wait was in vain."""

    def begun(self, txn: int) -> None:
        if self._folder_lock.synced < txn - 1:
            self._settle(txn - 1)
        elif self._folder_lock.failed:
            raise self._failure()

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> bool:
        content = redo.encode(version, time_us, requests, self._labels.room)
        self.label_other(txn, content)
        return content is not None

    def label_other(self, txn: int, content: bytes | None) -> None:
        """Label the commit `txn` with the redo `content`; None if it has no redo."""
        try:
            self._labels.write(txn, content)
        except OSError as error:
            raise self._broken(error) from error

    def ensure(self, txn: int, *, has_redo: bool = False) -> None:
        folder_lock = self._folder_lock
        if folder_lock.synced >= txn:
            return
        with self._waiting:  # one wait is enough for all threads
            if folder_lock.synced >= txn:
                return
            if not has_redo and self._label_at(txn) == (txn, False):
                # Its label must be removed. In the meantime the label could become another commit's, so lock out
                # other commits.
                self._locked(self._settle)
            else:
                self._share_sync(txn)

    def release(self) -> None:
        self._locked(self._unlabel)

    def close(self) -> None:
        os.close(self._fd)

    def _locked(self, action: Callable[[int], None]) -> None:
        """Run `action` on the last commit, under the writer lock so that it stays the last."""
        lock = self._env.begin(write=True)
        try:
            action(lock.id() - 1)
        finally:
            lock.abort()

    def _settle(self, last: int) -> None:
        """Make sure that `last` is on the disk, and that it is trusted or made again after a power cut."""
        if self._folder_lock.synced >= last:
            return
        if self._label_at(last) == (last, False):
            self._sync()
            self._clear(last)
            self._sync()
            self._note(last)
        else:
            self._share_sync(last)

    def _unlabel(self, last: int) -> None:
        """Make sure that `last` is on the disk, and that it is trusted after a power cut."""
        self._settle(last)
        if self._label_at(last)[0] == last:
            self._clear(last)
            self._sync()

    def _label_at(self, txn: int) -> tuple[int, bool]:
        try:
            return self._labels.txn_at(txn)
        except OSError as error:
            raise self._broken(error) from error

    def _clear(self, txn: int) -> None:
        try:
            self._labels.clear(txn)
        except OSError as error:
            raise self._broken(error) from error

    def _broken(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path}: the disk failed ({error.strerror}).")

    def _note(self, txn: int) -> None:
        if self._folder_lock.synced < txn:  # another process may overwrite it with less: that only costs a wait
            self._folder_lock.synced = txn

    def _share_sync(self, txn: int) -> None:
        """Wait until the commit `txn`, which was made, is on the disk; let one process sync for all that wait.

        A process locks the data file while it syncs. The lock only saves needless syncs: a process that waited for too
        long syncs without it.
        """
        folder_lock, pause = self._folder_lock, SHORTEST_PAUSE
        until = time.monotonic() + LONGEST_SHARED_SECONDS
        while not (locked := self._try_lock()) and folder_lock.synced < txn and self._shares_syncs:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self._shares_syncs = time.monotonic() < until
        self._shares_syncs = self._shares_syncs or locked
        try:
            if folder_lock.synced < txn:
                self._sync()
                self._note(txn)
        finally:
            if locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # another process syncs, or this file system has no locks
        return True

    def _sync(self) -> None:
        if self._folder_lock.failed:
            raise self._failure()
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            # The system drops data that it could not write, and reports success at the next sync.
            self._folder_lock.fail()
            raise self._failure() from error

    def _failure(self) -> StorageError:
        return StorageError(
            f"{self._path}: the disk has failed to keep a commit. Close the database in all processes; opening it again"
            " brings it in order."
        )


class Relaxed(Durable):
    """The system decides when it writes to the disk. Other processes may still wait for the disk."""

    def __init__(self, path: str, env: Any, folder_lock: FolderLock) -> None:
        super().__init__(path, env, folder_lock)
        page_size = env.stat()["psize"]
        self._pages = mmap.mmap(self._fd, 2 * page_size, prot=mmap.PROT_READ)
        self._numbers = memoryview(self._pages).cast("Q")
        self._places = (redo.NUMBER_AT // 8, (page_size + redo.NUMBER_AT) // 8)

    def begun(self, txn: int) -> None:
        numbers, places = self._numbers, self._places
        if numbers[places[txn & 1]] == txn:
            self._clear(txn)  # the label of a commit that failed
        if numbers[places[~txn & 1]] == txn - 1:
            # After a power cut, this commit would be made again from the state before it. That state is about to be
            # overwritten.
            self._unlabel(txn - 1)

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> bool:
        return False

    def ensure(self, txn: int, *, has_redo: bool = False) -> None:
        pass

    def release(self) -> None:
        pass

    def close(self) -> None:
        self._numbers.release()
        self._pages.close()
        super().close()
