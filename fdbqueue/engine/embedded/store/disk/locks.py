"""Locks of a folder: who has it open, who may write, and which PID namespaces they are of."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.errors import StorageError

# Find the processes that hold a lock, if the system reports them: Linux does, for processes that it shows us.

_LOCKS: Final = Path("/proc/locks")
_STOPPED: Final = (b"T", b"t")


def pids_of_owners(fd: int) -> list[int]:
    """Return the other processes that hold a lock (flock) on an open file; none if the system does not report them."""
    found = os.fstat(fd)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        rows = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return []
    # Columns: number, kind, advisory, read or write, process, file, … A waiting process has an arrow after the number.
    pids = {int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == file}
    return sorted(pids - {os.getpid()})


def is_stopped(pid: int) -> bool:
    """Return whether a process, or a thread, is stopped by a signal or a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] in _STOPPED


def process_of(thread: int) -> int:
    """Return the process that a thread belongs to; `thread` itself if the system does not report it."""
    try:
        lines = Path(f"/proc/{thread}/status").read_text(errors="replace").splitlines()
    except OSError:
        return thread
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), thread)


def blame(pid: int) -> str:
    """Return a part of an error message: the stopped process that holds a lock, and the remedy."""
    return f"process {pid} has, which is stopped. `kill -CONT {pid}` lets it go on; or end it,"


# The PID namespace of each process that has a folder open.
#
# LMDB locks a byte of its lock file for each process that reads. The PID says which byte. Processes of two PID
# namespaces, such as two containers', can have the same PID. Then the second one can't read. A fork can bring that
# about
# at any time, and LMDB can't tell that a killed reader is dead if a new process has its PID. So all processes of a
# folder
# must share one PID namespace, and a process of another one is refused when it opens the folder. (docs/adr/0165)
#
# Each process locks one byte of the folder lock's file. Its place says the namespace and the PID. The system frees
# the
# lock with the process. These are locks of an open file (OFD). They are independent of `flock`, of LMDB's locks,
# and of
# other descriptors that the process closes. Older versions hold none, and are not noticed.

log = logging.getLogger("fdbqueue.engine")

_NAMESPACE: Final = "/proc/self/ns/pid"
_PID_BITS: Final = 22
"""Linux has PIDs below 4,194,304."""
_NAMESPACE_BITS: Final = 40
_END: Final = 1 << (_PID_BITS + _NAMESPACE_BITS)
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""C's `struct flock`: kind, from where, begin, length, process."""
_UNKNOWN: Final = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Member:
    """A process, as its own PID namespace knows it."""

    namespace: int
    pid: int

    @property
    def place(self) -> int:
        """The byte that it locks."""
        return self.namespace << _PID_BITS | self.pid


def own() -> Member | None:
    """Return this process; None if the system has no PID namespaces, or does not show them."""
    try:
        namespace = os.stat(_NAMESPACE).st_ino
    except OSError:
        return None
    return Member(namespace & (1 << _NAMESPACE_BITS) - 1, os.getpid())


def join(fd: int, me: Member | None) -> Member | None:
    """Lock the byte of this process; return a process of another namespace that has the file open, None if none has."""
    if me is None or not hasattr(fcntl, "F_OFD_SETLK"):
        return None
    try:
        # A shared lock: this process may have the folder open twice for a moment, if its files were replaced.
        _call(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, me.place, 1)
        begin, end = me.namespace << _PID_BITS, (me.namespace + 1) << _PID_BITS
        for first, last in ((0, begin), (end, _END)):
            kind, at = _call(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, first, last - first)
            if kind != fcntl.F_UNLCK:
                return Member(at >> _PID_BITS, at & (1 << _PID_BITS) - 1)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        log.info("The file system has no locks of open files (%s): other PID namespaces are not noticed.", error)
    return None


def leave(fd: int, me: Member | None) -> None:
    """Release the byte of this process."""
    if me is not None:
        _call(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, me.place, 1)


def _call(fd: int, command: int, kind: int, begin: int, length: int) -> tuple[int, int]:
    answer: bytes = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, begin, length, 0))
    found = _FLOCK.unpack(answer)
    return found[0], found[2]


# The folder lock: the file ``synced``, which processes with an open folder share to report the state of the disk.
#
# Each process holds a lock on it (flock) while it has the folder open. A process that gets the lock exclusively may
# recover the data file (`redo.roll_back`). The file contains the boot of the last recovery, the last LMDB
# transaction
# that is certainly on the disk, whether the disk has failed since, and the host of the process that opened the
# folder
# last.
#
# All processes of a folder share one PID namespace (`namespaces`). Each also holds a lock that says which one it is
# in.

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
        self._namespace = own()
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
                    stranger = join(self._fd, self._namespace)
                    if stranger is None:
                        return False
                    # It may be closing the folder at this moment, or be refused itself.
                    if time.monotonic() - since >= NAMESPACE_PATIENCE_SECONDS:
                        raise self._refused(stranger)
                    leave(self._fd, self._namespace)
                # Else the exclusive holder died before the file was recovered.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._give_up_after(time.monotonic() - since)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        join(self._fd, self._namespace)
        return True

    def _refused(self, stranger: Member) -> StorageError:
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


# Wait for LMDB's writer lock with a time limit if its owner is stopped. LMDB itself waits without a limit.
#
# The lock is a mutex in the file ``lock.mdb``, which LMDB has mapped. Its first word is the thread that owns it.
# This
# module reads that word in LMDB's mapping: opening and closing the file again would drop LMDB's own locks on it. If
# the
# mutex does not have glibc's layout, the owner is unknown.

_MAPS: Final = Path("/proc/self/maps")
_LMDB: Final = 0xBEEFC0DE
_PLACES: Final = (64, 128)
"""Possible offsets of the mutex: after a header of one or two cache lines."""
_KIND_AT: Final = 16
_SHARED_AND_ROBUST: Final = 0x90
_THREAD: Final = 0x3FFFFFFF
"""The bits of the first word that hold the owner's thread number."""


def wait_for_stopped(path: str) -> None:
    """Wait while a stopped process owns the writer lock of the folder `path`, which this process has open.

    A running process releases the lock soon, and LMDB's own wait is the best for that case.

    Raises:
        StorageError: the process was stopped for `folder_lock.PATIENCE_SECONDS`.
    """
    word = _first_word(os.path.join(path, "lock.mdb"))
    if word is None:
        return
    since, pause = time.monotonic(), SHORTEST_PAUSE
    while (owner := word.value & _THREAD) and is_stopped(owner):
        waited = time.monotonic() - since
        if waited >= PATIENCE_SECONDS:
            raise StorageError(
                f"{path}: waited {waited:.0f} s for its writer lock, which {blame(process_of(owner))} and open the"
                " folder again."
            )
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _first_word(file: str) -> ctypes.c_uint32 | None:
    """Return the mutex's first word in this process's memory; None if the mutex isn't found."""
    start = _mapped_at(file)
    if start is None or ctypes.c_uint32.from_address(start).value != _LMDB:
        return None
    for place in _PLACES:
        if ctypes.c_uint32.from_address(start + place + _KIND_AT).value == _SHARED_AND_ROBUST:
            return ctypes.c_uint32.from_address(start + place)
    return None


def _mapped_at(file: str) -> int | None:
    try:
        inode = str(os.lstat(file).st_ino)
        rows = [line.split(maxsplit=5) for line in _MAPS.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return None
    # Columns: from-to, rights, offset, device, inode, path.
    spans = [row[0] for row in rows if len(row) > 5 and row[4] == inode and row[5].endswith("/lock.mdb")]
    return int(spans[0].partition("-")[0], 16) if spans else None
