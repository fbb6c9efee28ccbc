"""What the processes that have a folder open tell each other of the disk: the file ``synced``.

Each holds a lock on it (flock) as long as it has the folder open: whoever gets it alone may bring the data file in
order (`redo.roll_back`). In the file stand the boot in which that was done last, the last LMDB transaction that surely
is on the disk, and whether the disk has failed since.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import Final

from fdbqueue.engine.embedded.store.disk.lock_owners import blame, holders, is_stopped
from fdbqueue.errors import StorageError

NAME: Final = "synced"
_SIZE: Final = 4096
_MAGIC: Final = b"fdbqsync"
_BOOT_BYTES: Final = 48
_HEAD: Final = len(_MAGIC) + _BOOT_BYTES
_SYNCED: Final = _HEAD // 8
_FAILED: Final = _SYNCED + 1

SHORTEST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.02
"""Seconds between two looks at a lock, at first and in the end."""
PATIENCE_SECONDS: Final = 20.0
"""Longest wait, at opening, for a process that is stopped with a lock of the folder."""
LONGEST_SECONDS: Final = 600.0
"""Longest wait for a process that opens or closes the folder and is not stopped: the disk may be slow."""


class FolderLock:
    """The lock, and the page that all share. Numbers are read and written as a whole (8 bytes in their own place)."""

    __slots__ = ("_boot", "_fd", "_numbers", "_page", "_path", "alone")

    def __init__(self, path: str, boot: bytes) -> None:
        self._path = path
        self._boot = _MAGIC + boot[:_BOOT_BYTES].ljust(_BOOT_BYTES, b"\0")
        try:
            self._fd = os.open(os.path.join(path, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"{path}: no right to write there ({error.strerror}). The folder and its files must be writable."
            ) from error
        try:
            self.alone = self._lock()
            self._page = _mapped(self._fd)
            self._numbers = memoryview(self._page).cast("Q")
        except StorageError:
            os.close(self._fd)
            raise
        except (OSError, ValueError) as error:  # a file that is too short for the page is an error of value
            os.close(self._fd)
            raise StorageError(f"{path}: its file {NAME!r} can't be used ({error}).") from error

    @property
    def synced(self) -> int:
        """The last LMDB transaction that surely is on the disk, with all before it."""
        return self._numbers[_SYNCED]

    @synced.setter
    def synced(self, txn: int) -> None:
        self._numbers[_SYNCED] = txn

    @property
    def failed(self) -> bool:
        """Whether the disk has failed to keep what LMDB takes for granted."""
        return bool(self._numbers[_FAILED])

    @property
    def in_order(self) -> bool:
        """Whether the data file was brought in order in this boot, and nothing has failed since."""
        return self._page[:_HEAD] == self._boot and self._boot.strip(b"\0") != _MAGIC and not self.failed

    def fail(self) -> None:
        """Note that the disk has failed. No process commits any more until one that is alone has opened the folder."""
        self._numbers[_FAILED] = 1

    def begin_anew(self) -> None:
        """Forget what was known of the disk, as the data file is being brought in order."""
        self._page[:_HEAD] = bytes(_HEAD)
        self._numbers[_SYNCED] = self._numbers[_FAILED] = 0

    def found(self, last: int) -> None:
        """Forget what is said here of commits after `last`, the data file's own: a backup was put into its place."""
        if self.alone and self.synced > last:
            self.synced = 0

    def opened(self) -> None:
        """Let the others in, as the data file is in order."""
        if self.alone:
            self._page[:_HEAD] = self._boot
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def last_one(self) -> bool:
        """Say whether no other process has the folder open; nobody can open it then before `close`."""
        return self._try(fcntl.LOCK_EX)

    def close(self) -> None:
        """Give the lock up."""
        self._numbers.release()
        self._page.close()
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked child has this file open too, and would keep the lock
        os.close(self._fd)

    def _lock(self) -> bool:
        """Take the lock, alone if nobody else has it, else together with others who have brought the file in order.

        Before the page is mapped, as who maps a new file writes to it, and only who is alone may.
        """
        since, pause = time.monotonic(), SHORTEST_PAUSE
        while not self._try(fcntl.LOCK_EX):
            if self._try(fcntl.LOCK_SH):  # else somebody who is alone opens the folder, or closes it
                if os.pread(self._fd, _HEAD, 0) == self._boot:
                    return False
                # Whoever was alone died on the way.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._give_up_after(time.monotonic() - since)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _give_up_after(self, waited: float) -> None:
        """Raise if waiting has become hopeless: who holds the lock is stopped, or has held it for very long."""
        if waited < PATIENCE_SECONDS:
            return
        pids = holders(self._fd)
        stopped = [pid for pid in pids if is_stopped(pid)]
        if not stopped and waited < LONGEST_SECONDS:
            return
        if stopped:
            who = blame(stopped[0])
        elif pids:
            who = f"process {pids[0]} has. Wait for it, or end it,"
        else:
            who = f"another process has. `fuser -v {self._path}/{NAME}` says which have it open: end that,"
        raise StorageError(
            f"{self._path}: waited {waited:.0f} s for the lock on its file {NAME!r}, for opening and closing the"
            f" folder, which {who} and open the folder again."
        )


def _mapped(fd: int) -> mmap.mmap:
    found = os.fstat(fd)
    if found.st_size < _SIZE:
        # Written, not only made longer: a page without a block would end the process when the disk is full.
        os.pwrite(fd, bytes(_SIZE - found.st_size), found.st_size)
    return mmap.mmap(fd, _SIZE)
