"""Whether LMDB writes through memory or through the file (docs/adr/0010).

Where nobody waits for the disk, LMDB is half as fast again if it writes into the mapped file (``MDB_WRITEMAP``). That
has two conditions. The file must have all its blocks before they are mapped, as a full disk would otherwise end the
process (SIGBUS) instead of raising an error: so they are reserved. And since whoever maps the file so also sets its
length, all processes must do it alike, and one at a time: so each holds a lock that says how it does, and follows
those who are there already.

The locks are Linux' open file description locks on ``turns``, a file beside LMDB's. They are gone with the process.
Elsewhere, and on file systems that can't reserve blocks, LMDB writes through the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE: Final = "turns"
LEAST_SIZE: Final = 64 << 20
"""Bytes that a file written through memory has at least."""

_SIZING: Final = 1 << 20
_MAPPED: Final = _SIZING + 1
_PLAIN: Final = _SIZING + 2
"""Bytes of the file, behind what it really has, that are locked."""
_FLOCK: Final = struct.Struct("@hhqqi4x")
_KINDS: Final = frozenset({"ext4", "xfs", "overlay"})
"""File systems that keep the blocks which they have reserved for the places that they were reserved for."""


class WriteMap:
    """How this process writes to a folder's file, and its say in how others do."""

    __slots__ = ("_fd", "_path", "on")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(os.path.join(path, FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.on = False
        """Whether it writes through memory."""

    @contextlib.contextmanager
    def sizing(self) -> Iterator[None]:
        """Keep other processes from opening the file and from changing its length."""
        self._lock(_SIZING, fcntl.F_WRLCK)
        try:
            yield
        finally:
            self._lock(_SIZING, fcntl.F_UNLCK)

    def join(self, *, wanted: bool) -> None:
        """Do as those do who are there; if nobody is, as is `wanted` and possible. Only while `sizing`."""
        if not _LOCKS:
            return
        if self._held(_MAPPED):
            self.on = True
        elif wanted and not self._held(_PLAIN):
            self.on = _kind(self._path) in _KINDS and self._can_reserve()
        self._lock(_MAPPED if self.on else _PLAIN, fcntl.F_RDLCK)

    def leave(self) -> None:
        """Have no say any more."""
        self._lock(_MAPPED if self.on else _PLAIN, fcntl.F_UNLCK)
        os.close(self._fd)

    def _lock(self, at: int, kind: int) -> None:
        if _LOCKS:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))

    def _held(self, at: int) -> bool:
        """Say whether another process has the lock."""
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def _can_reserve(self) -> bool:
        try:
            reserve(self._fd, mmap.PAGESIZE)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return False
            raise
        return True


_LOCKS: Final = hasattr(fcntl, "F_OFD_SETLKW") and hasattr(ctypes.CDLL(None), "fallocate")


def reserve(fd: int, size: int) -> None:
    """Give the first `size` bytes of a file their blocks.

    Not `os.posix_fallocate`, which writes to the file where the file system has no better way.

    Raises:
        OSError: no room, or the file system can't.
    """
    if ctypes.CDLL(None, use_errno=True).fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kind(path: str) -> str:
    """Return the name of the folder's file system, "" if it can't be found out."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == wanted:
            return kind.split()[0]
    return ""
