"""The folder lock: the file ``synced``, which processes with an open folder share to report the state of the disk.

Each process holds a lock on it (flock) while it has the folder open. A process that gets the lock exclusively may
recover the data file (`redo.roll_back`). The file contains the boot of the last recovery, the last LMDB transaction
that is certainly on the disk, whether the disk has failed since, and the host of the process that opened the folder
last.

All processes of a folder share one PID namespace (`namespaces`). Each also holds a lock that says which one it is in.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import Final

from fdbqueue.engine.embedded.store.disk import folder, namespaces
from fdbqueue.engine.embedded.store.disk.lock_owners import blame, is_stopped, pids_of_owners
from fdbqueue.engine.errors import StorageError

NAME: Final = "synced"
_SIZE: Final = 4096
_MAGIC: Final = b"fdbqsync"
_BOOT_BYTES: Final = 48
_HEAD: Final = len(_MAGIC) + _BOOT_BYTES
_SYNCED: Final = _HEAD // 8
_FAILED: Final = _SYNCED + 1
_HOST_AT: Final = 128
_HOST_BYTES: Final = 64

SHORTEST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.02
"""Seconds between two tries of a lock: first the shortest, in the end the longest."""
PATIENCE_SECONDS: Final = 20.0
"""Longest wait, when opening, for a stopped process that holds a lock of the folder."""
NAMESPACE_PATIENCE_SECONDS: Final = 0.25
"""Longest wait for a process of another PID namespace: a command that ends soon."""
LONGEST_SECONDS: Final = 600.0
"""Longest wait for a running process that opens or closes the folder: the disk may be slow."""


class FolderLock:
    """The lock and the shared page. Reads and writes of a number are atomic (8 aligned bytes)."""

    __slots__ = ("_boot", "_fd", "_namespace", "_numbers", "_page", "_path", "alone")

    def __init__(self, path: str, boot: bytes) -> None:
        self._path = path
        self._boot = _MAGIC + boot[:_BOOT_BYTES].ljust(_BOOT_BYTES, b"\0")
        self._fd = folder.open_file(path, NAME)
        self._namespace = namespaces.own()
        try:
            self.alone = self._lock()
            self._page = _mapped(self._fd)
            self._numbers = memoryview(self._page).cast("Q")
        except StorageError:
            os.close(self._fd)
            raise
        except (OSError, ValueError) as error:  # mmap raises ValueError if the file is too short
            os.close(self._fd)
            raise StorageError(f"{path}: its file {NAME!r} can't be used ({error}).") from error

    @property
    def synced(self) -> int:
        """The last LMDB transaction that is certainly on the disk, with all earlier ones."""
        return self._numbers[_SYNCED]

    @synced.setter
    def synced(self, txn: int) -> None:
        self._numbers[_SYNCED] = txn

    @property
    def failed(self) -> bool:
        """Whether the disk has failed to keep data that LMDB relies on."""
        return bool(self._numbers[_FAILED])

    @property
    def in_order(self) -> bool:
        """Whether the data file was recovered in this boot, with no failure since."""
        return self._page[:_HEAD] == self._boot and self._boot.strip(b"\0") != _MAGIC and not self.failed

    def fail(self) -> None:
        """Note that the disk has failed. No process commits until one process has opened the folder exclusively."""
        self._numbers[_FAILED] = 1

    def begin_anew(self) -> None:
        """Reset the state of the disk: recovery of the data file begins."""
        self._page[:_HEAD] = bytes(_HEAD)
        self._numbers[_SYNCED] = self._numbers[_FAILED] = 0

    def found(self, last: int) -> None:
        """Reset `synced` if it is after `last`, the data file's last transaction: a backup has replaced the file."""
        if self.alone and self.synced > last:
            self.synced = 0

    def opened(self) -> None:
        """Allow other processes to open the folder: the data file is recovered."""
        self._page[_HOST_AT : _HOST_AT + _HOST_BYTES] = (
            os.uname().nodename.encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
        )
        if self.alone:
            self._page[:_HEAD] = self._boot
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def last_one(self) -> bool:
        """Return whether no other process has the folder open. If so, no process can open it until `close`."""
        return self._try(fcntl.LOCK_EX)

    def close(self) -> None:
        """Release the lock."""
        self._numbers.release()
        self._page.close()
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing is not enough: a forked child has the file open too
        os.close(self._fd)

    def _lock(self) -> bool:
        """Take the lock; return whether it is exclusive. It is shared if other processes have recovered the file.

        This must run before the page is mapped. Mapping a new file writes to it, and only an exclusive holder may.
        """
        since, pause = time.monotonic(), SHORTEST_PAUSE
        while not self._try(fcntl.LOCK_EX):
            if self._try(fcntl.LOCK_SH):  # else an exclusive holder opens or closes the folder
                if os.pread(self._fd, _HEAD, 0) == self._boot:
                    stranger = namespaces.join(self._fd, self._namespace)
                    if stranger is None:
                        return False
                    # It may be closing the folder at this moment, or be refused itself.
                    if time.monotonic() - since >= NAMESPACE_PATIENCE_SECONDS:
                        raise self._refused(stranger)
                    namespaces.leave(self._fd, self._namespace)
                # Else the exclusive holder died before the file was recovered.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._give_up_after(time.monotonic() - since)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        namespaces.join(self._fd, self._namespace)
        return True

    def _refused(self, stranger: namespaces.Member) -> StorageError:
        host = os.pread(self._fd, _HOST_BYTES, _HOST_AT).rstrip(b"\0").decode("utf-8", "replace")
        own = self._namespace.namespace if self._namespace else 0
        return StorageError(
            f"{self._path}: is in use in another PID namespace, such as another container's: by process {stranger.pid}"
            f" of the namespace {stranger.namespace}, host {host!r}. This process, {os.getpid()}, is in {own}. LMDB"
            " knows processes by their PIDs, so all processes of a folder must share one PID namespace:"
            ' `pid: "service:NAME"` in compose, `shareProcessNamespace: true` in Kubernetes,'
            " `docker run --pid=container:NAME`."
        )

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _give_up_after(self, waited: float) -> None:
        """Raise if further waiting is useless: the lock's holder is stopped, or has held the lock too long."""
        if waited < PATIENCE_SECONDS:
            return
        pids = pids_of_owners(self._fd)
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
        # Write the bytes: if the file were only made longer, its page would have no block on the disk. A write to that
        # page would kill the process when the disk is full.
        os.pwrite(fd, bytes(_SIZE - found.st_size), found.st_size)
    return mmap.mmap(fd, _SIZE)
