"""The way of commits to the disk, with one wait each where that is possible.

That a power cut loses nothing (`redo`) hangs on two rules, which all processes keep: a commit is made only when the one
before it is on the disk, and it is labelled before it is made. Relaxed commits keep neither, and leave no label.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import lmdb

from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.disk import redo
from fdbqueue.engine.embedded.store.disk.folder_lock import FolderLock
from fdbqueue.errors import StorageError


class Disk(Protocol):
    """What the store asks of a disk. What it says of a transaction is by LMDB's number of it."""

    def begun(self, txn: int) -> None:
        """Make it safe that the transaction `txn`, which has just begun, writes something.

        Raises:
            StorageError: the disk has failed: nothing may be written.
        """

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> None:
        """Label the commit `txn`, right before it is made.

        Raises:
            StorageError: the disk refused.
        """

    def ensure(self, txn: int) -> None:
        """Wait until the commit `txn`, which was made, and all before it are on the disk.

        Raises:
            StorageError: the disk has failed: they may be, or not.
            lmdb.MapResizedError: another process has made the map larger; that is to be taken over first.
        """

    def release(self) -> None:
        """Leave a file that needs no bringing in order. Only for the last process that has it open."""

    def close(self) -> None:
        """Let the file go."""


class Durable:
    """Nothing is acknowledged, and nothing is read, before it is on the disk."""

    def __init__(self, path: str, env: Any, guard: FolderLock) -> None:
        self._path = path
        self._env = env
        self._guard = guard
        self._fd = os.open(os.path.join(path, "data.mdb"), os.O_RDWR | os.O_CLOEXEC)
        self._labels = redo.Labels(self._fd, env.stat()["psize"])
        self._waiting = threading.Lock()

    def begun(self, txn: int) -> None:
        if self._guard.synced < txn - 1:
            self._settle(txn - 1)
        elif self._guard.failed:
            raise self._failure()

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> None:
        self.label_other(txn, redo.encode(version, time_us, requests, self._labels.room))

    def label_other(self, txn: int, content: bytes | None) -> None:
        """Label a commit that is made again from that redo, if there is one."""
        try:
            self._labels.write(txn, content)
        except OSError as error:
            raise self._broken(error) from error

    def ensure(self, txn: int) -> None:
        guard = self._guard
        if guard.synced >= txn:
            return
        with self._waiting:  # one wait is enough for all threads
            if guard.synced >= txn:
                return
            whose, has_redo = self._label_at(txn)
            if whose == txn and not has_redo:
                # Its label has to go, and may be another commit's meanwhile: nobody may commit.
                self._locked(self._settle)
            else:
                self._sync()
                self._note(txn)

    def release(self) -> None:
        self._locked(self._unlabel)

    def close(self) -> None:
        os.close(self._fd)

    def _locked(self, action: Callable[[int], None]) -> None:
        """Do something for the last commit, so that it remains the last meanwhile."""
        lock = self._env.begin(write=True)
        try:
            action(lock.id() - 1)
        finally:
            lock.abort()

    def _settle(self, last: int) -> None:
        """Have `last` on the disk, and trusted or made again after a power cut."""
        if self._guard.synced >= last:
            return
        self._sync()
        if self._label_at(last) == (last, False):
            self._clear(last)
            self._sync()
        self._note(last)

    def _unlabel(self, last: int) -> None:
        """Have `last` on the disk, and trusted after a power cut."""
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
        if self._guard.synced < txn:  # another process may write a smaller number over it: that only costs a wait
            self._guard.synced = txn

    def _sync(self) -> None:
        if self._guard.failed:
            raise self._failure()
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            # What the system could not write it forgets, and it claims success the next time it is asked.
            self._guard.fail()
            raise self._failure() from error

    def _failure(self) -> StorageError:
        return StorageError(
            f"{self._path}: the disk has failed to keep a commit. Close the database in all processes; opening it again"
            " brings it in order."
        )


class Relaxed(Durable):
    """The system writes to the disk when it likes. That others wait for it is left to them."""

    def __init__(self, path: str, env: Any, guard: FolderLock) -> None:
        super().__init__(path, env, guard)
        page_size = env.stat()["psize"]
        self._pages = mmap.mmap(self._fd, 2 * page_size, prot=mmap.PROT_READ)
        self._numbers = memoryview(self._pages).cast("Q")
        self._places = (redo.NUMBER_AT // 8, (page_size + redo.NUMBER_AT) // 8)

    def begun(self, txn: int) -> None:
        numbers, places = self._numbers, self._places
        if numbers[places[txn & 1]] == txn:
            self._clear(txn)  # of one that failed
        if numbers[places[~txn & 1]] == txn - 1:
            # Made again from the state before it, which is about to be written over.
            self._unlabel(txn - 1)

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> None:
        pass

    def ensure(self, txn: int) -> None:
        pass

    def release(self) -> None:
        pass

    def close(self) -> None:
        self._numbers.release()
        self._pages.close()
        super().close()
