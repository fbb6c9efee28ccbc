"""Write commits to the disk, with one wait each if possible.

A power cut loses nothing (`redo`) because all processes follow two rules. A process makes a commit only after the
previous commit is on the disk, and it labels the commit first. Relaxed commits follow neither rule, and have no label.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import lmdb
import msgspec

from fdbqueue.engine.embedded.store.commit.atomics import Mutation
from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.disk import data_file, folder
from fdbqueue.engine.embedded.store.disk.locks import FolderLock
from fdbqueue.engine.errors import StorageError

# The redo: data beside a commit's meta page to repeat the commit, so that one wait for the disk is enough.
#
# LMDB makes a commit durable with two waits: for its pages, then for the meta page that makes them the database.
# With one
# wait for both, a power cut may leave the meta page on the disk without all of the pages. LMDB does not use the
# rest of
# the meta page, so that part takes a *label*, written right before the commit. The label holds the commit's number
# and,
# if they fit, its writes: the *redo*. The label begins in the meta page's own sector, so the disk writes both or
# neither.
#
# After a power cut, do not trust the newer meta page if it has a label with its own number. The older one is
# complete. No
# page of a commit is written before the previous commit is on the disk. LMDB never overwrites pages of the last two
# states. `roll_back` makes the older state the database again, and the commit is repeated from the redo. If there
# is no
# complete redo, no caller was told that the commit succeeded.
#
# ::
#
#     page 0 or 1   | LMDB's header and meta (152 bytes) |   | label (32 bytes) | redo            |
#                   0                                        256               288               4096

LABEL_AT: Final = 256
NONE: Final = 0xFFFFFFFF
"""The length that means that there is no redo."""
MOST_MUTATIONS: Final = 256
"""Maximum number of mutations in a redo: more would hardly ever fit."""

_LABEL: Final = struct.Struct("<8sQQII")
_MAGIC: Final = b"fdbqredo"
NUMBER_AT: Final = LABEL_AT + 16
"""Offset of the number of the commit that a label belongs to."""
_encode: Final = msgspec.msgpack.Encoder().encode


class Redo(msgspec.Struct, array_like=True, frozen=True):
    """A commit of one or more requests, in the form that repeats it."""

    version: bytes
    time_us: int
    """The time of the commit. No conflict check needs its write set: no transaction outlives a roll-back."""
    requests: list[list[tuple[int, bytes, bytes]]]
    """The mutations of each request."""


_decode: Final = msgspec.msgpack.Decoder(Redo).decode


def encode(version: bytes, time_us: int, requests: Sequence[CommitRequest], room: int) -> bytes | None:
    """Return the redo of a commit; None if it has more than `room` bytes or too many mutations."""
    mutations: list[list[Mutation]] = []
    size = 0
    for request in requests:
        size += request.size()
        if size > MOST_MUTATIONS:
            return None
        mutations.append(request.all_mutations())
    redo = _encode((version, time_us, mutations))
    return redo if len(redo) <= room else None


def decode(redo: bytes) -> Redo:
    """Return the commit that `encode` was given."""
    return _decode(redo)


def room(page_size: int) -> int:
    """Return the maximum size of a redo in bytes."""
    return page_size - LABEL_AT - _LABEL.size


@dataclass(frozen=True, slots=True)
class Label:
    """The label beside a meta page."""

    txn: int
    """The number of the commit that it belongs to, whichever meta page it is beside; 0 if there is no label."""
    redo: bytes | None
    """The redo of the commit; None if there is no complete one."""


class Labels:
    """The labels of an open data file."""

    __slots__ = ("_fd", "_identity", "_page_size", "room")

    def __init__(self, fd: int, page_size: int) -> None:
        self._fd = fd
        self._page_size = page_size
        self._identity = os.fstat(fd).st_ino  # ignore labels in a copied file: its older state may be torn
        self.room = room(page_size)

    def write(self, txn: int, redo: bytes | None) -> None:
        """Label the commit `txn`, which is about to be made."""
        head = _LABEL.pack(
            _MAGIC, self._identity, txn, NONE if redo is None else len(redo), zlib.crc32(redo or b"", txn)
        )
        self.put(txn, head + (redo or b""))

    def clear(self, txn: int) -> None:
        """Remove the label of the commit `txn`."""
        self.put(txn, bytes(_LABEL.size))

    def txn_at(self, txn: int) -> tuple[int, bool]:
        """Return the number of the commit whose label is in the place of `txn`'s, and whether it claims to have a redo.

        The number is 0 if there is no label.
        """
        magic, identity, found, length, _ = _LABEL.unpack(os.pread(self._fd, _LABEL.size, self._at(txn)))
        return (found, length != NONE) if magic == _MAGIC and identity == self._identity else (0, False)

    def read(self, txn: int) -> Label:
        """Return the label that is in the place of `txn`'s."""
        place = os.pread(self._fd, _LABEL.size + self.room, self._at(txn))
        magic, identity, found, length, checksum = _LABEL.unpack_from(place)
        if magic != _MAGIC or identity != self._identity:
            return Label(0, None)
        redo = place[_LABEL.size : _LABEL.size + length]
        whole = len(redo) == length and zlib.crc32(redo, found) == checksum
        return Label(found, redo if whole else None)

    def _at(self, txn: int) -> int:
        return (txn & 1) * self._page_size + LABEL_AT

    def put(self, txn: int, content: bytes) -> None:
        if os.pwrite(self._fd, content, self._at(txn)) < len(content):
            raise OSError(5, "the disk took only a part of a page")


def labelled(path: str) -> bool:
    """Return whether the data file of the folder `path` has a label: then it is ours, and may need `roll_back`."""
    try:
        with os.fdopen(folder.open_file(path, folder.DATA, create=False, write=False), "rb", 0) as file:
            first = data_file.meta(file.fileno(), 0)
            if first is None or os.fstat(file.fileno()).st_size < 2 * first.page_size:
                return False
            labels = Labels(file.fileno(), first.page_size)
            return any(labels.txn_at(txn)[0] for txn in (0, 1))
    except OSError:
        return False  # `data_file.check` will report it


def roll_back(path: str) -> bytes | None:
    """Go back to the last state that is certainly complete; return the redo of the commit after it, or None.

    No process may have the folder `path` open. After an interrupt, the next call finishes the work.

    Raises:
        StorageError: there is no complete state, or the file can't be written.
    """
    try:
        fd = folder.open_file(path, folder.DATA, create=False)
    except FileNotFoundError:
        return None
    try:
        return _roll_back(path, fd)
    except OSError as error:
        raise StorageError(f"{path}: the disk failed while it was brought in order ({error.strerror}).") from error
    finally:
        os.close(fd)


def _roll_back(path: str, fd: int) -> bytes | None:
    first = data_file.meta(fd, 0)
    second = data_file.meta(fd, first.page_size) if first is not None else None
    if first is None or second is None:
        return None  # LMDB itself will report what the file is
    labels = Labels(fd, first.page_size)
    older, newer = sorted((first, second), key=lambda meta: meta.txn)
    txn = older.txn + 1
    if newer.txn > older.txn:
        if labels.txn_at(newer.txn)[0] != newer.txn:
            return None
        if newer.txn != txn:
            raise StorageError(f"{path}: the file is damaged: its last but one commit is missing. Restore a backup.")
        os.pwrite(fd, older.content, (txn & 1) * first.page_size + data_file.META_AT)
        os.fsync(fd)
    label = labels.read(txn)
    return label.redo if label.txn == txn else None


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

    def __init__(self, path: str, env: lmdb.Environment, folder_lock: FolderLock) -> None:
        self._path = path
        self.env = env
        self._folder_lock = folder_lock
        self._fd = folder.open_file(path, folder.DATA, create=False)
        self.labels = Labels(self._fd, env.stat()["psize"])
        self._waiting = threading.Lock()
        self._shares_syncs = True
        """Whether to wait for the sync of another process; not if the last such wait was in vain."""

    def begun(self, txn: int) -> None:
        if self._folder_lock.synced < txn - 1:
            self._settle(txn - 1)
        elif self._folder_lock.failed:
            raise self._failure()

    def label(self, txn: int, version: bytes, time_us: int, requests: Sequence[CommitRequest]) -> bool:
        content = encode(version, time_us, requests, self.labels.room)
        self.label_other(txn, content)
        return content is not None

    def label_other(self, txn: int, content: bytes | None) -> None:
        """Label the commit `txn` with the redo `content`; None if it has no redo."""
        try:
            self.labels.write(txn, content)
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
        lock = self.env.begin(write=True)
        try:
            action(lock.id() - 1)
        finally:
            lock.abort()

    def _settle(self, last: int) -> None:
        """Make sure that `last` is on the disk, and that it is trusted or made again after a power cut."""
        if self._folder_lock.synced >= last:
            return
        if self._label_at(last) == (last, False):
            self.sync()
            self._clear(last)
            self.sync()
            self._note(last)
        else:
            self._share_sync(last)

    def _unlabel(self, last: int) -> None:
        """Make sure that `last` is on the disk, and that it is trusted after a power cut."""
        self._settle(last)
        if self._label_at(last)[0] == last:
            self._clear(last)
            self.sync()

    def _label_at(self, txn: int) -> tuple[int, bool]:
        try:
            return self.labels.txn_at(txn)
        except OSError as error:
            raise self._broken(error) from error

    def _clear(self, txn: int) -> None:
        try:
            self.labels.clear(txn)
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
                self.sync()
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

    def sync(self) -> None:
        if self._folder_lock.failed:
            raise self._failure()
        try:
            self.env.sync(True)
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

    def __init__(self, path: str, env: lmdb.Environment, folder_lock: FolderLock) -> None:
        super().__init__(path, env, folder_lock)
        page_size = env.stat()["psize"]
        self._pages = mmap.mmap(self._fd, 2 * page_size, prot=mmap.PROT_READ)
        self._numbers = memoryview(self._pages).cast("Q")
        self._places = (NUMBER_AT // 8, (page_size + NUMBER_AT) // 8)

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
