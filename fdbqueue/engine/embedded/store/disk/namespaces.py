"""The PID namespace of each process that has a folder open.

LMDB locks a byte of its lock file for each process that reads. The PID says which byte. Processes of two PID
namespaces, such as two containers', can have the same PID. Then the second one can't read. A fork can bring that about
at any time, and LMDB can't tell that a killed reader is dead if a new process has its PID. So all processes of a folder
must share one PID namespace, and a process of another one is refused when it opens the folder. (docs/adr/0165)

Each process locks one byte of the folder lock's file. Its place says the namespace and the PID. The system frees the
lock with the process. These are locks of an open file (OFD). They are independent of `flock`, of LMDB's locks, and of
other descriptors that the process closes. Older versions hold none, and are not noticed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from dataclasses import dataclass
from typing import Final

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
