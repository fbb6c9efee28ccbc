"""The processes that use a folder: which of them are alive, and which marks they have set.

Each process that asks for its id gets a slot in the file ``members``, and locks one byte of it. The system frees that
lock when the process ends, however it ends. The slot also keeps the last marks that its processes have set. They are
in the file and not in the process, so that they outlive a ``kill -9``. A power cut may lose them.

The locks belong to processes (POSIX), not to open files: a forked child does not inherit them. A process loses its lock
if it closes another descriptor of the file. So the file is opened once, and the lock is renewed at each use of the id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from typing import Final

from fdbqueue.engine.embedded.store.disk import folder

_NAME: Final = "members"
MOST: Final = 1_024
"""The most processes that get a slot. Others have no id."""
MARK_BYTES: Final = 16
MARKS: Final = 255
"""How many marks a slot keeps, the last ones."""
_SLOT_BYTES: Final = (1 + MARKS) * MARK_BYTES
_HEAD: Final = struct.Struct("=8sQ")
"""The random part of the id of a slot's last process, and how many marks were set in the slot."""
_ID: Final = struct.Struct(">H8s")


class Members:
    """The processes of one folder.

    Args:
        path: the folder.

    Raises:
        StorageError: the file can't be opened and written.
    """

    __slots__ = ("_fd", "_id", "_lock", "_marks", "_slot")

    def __init__(self, path: str) -> None:
        self._fd = folder.open_file(path, _NAME)
        self._slot = -1
        self._id = b""
        self._marks = 0
        self._lock = threading.Lock()

    def own_id(self) -> bytes:
        """Return the id of this process; b"" if all slots are in use, or the system can't lock or write one.

        *Cost:* one system call. The first call makes one for each process that uses the folder.
        """
        with self._lock:
            try:
                return self._own_id()
            except OSError:
                return b""

    def is_dead(self, process: bytes) -> bool:
        """Return whether the process with an id has ended. A stopped process is alive."""
        if len(process) != _ID.size or process == self._id:
            return False
        slot, made = _ID.unpack(process)
        with self._lock, contextlib.suppress(OSError):
            if slot == self._slot or os.pread(self._fd, len(made), slot * _SLOT_BYTES) != made:
                return True  # another process has its slot now
            if self._try(slot, fcntl.LOCK_SH):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot * _SLOT_BYTES)
                return True
        return False

    def mark(self, mark: bytes) -> bool:
        """Keep a mark of this process, also if it is killed at once. Return False if that is impossible."""
        with self._lock, contextlib.suppress(OSError):
            if not self._own_id():
                return False
            slot_at, mark_at = self._slot * _SLOT_BYTES, (1 + self._marks % MARKS) * MARK_BYTES
            self._marks += 1
            wrote = os.pwrite(self._fd, _padded(mark), slot_at + mark_at)
            # The next process in this slot goes on behind this mark.
            wrote += os.pwrite(self._fd, _HEAD.pack(self._id[-8:], self._marks), slot_at)
            return wrote == 2 * MARK_BYTES
        return False

    def has_mark(self, process: bytes, mark: bytes) -> bool:
        """Return whether a process, alive or dead, has set a mark lately."""
        if len(process) != _ID.size:
            return False
        slot, _ = _ID.unpack(process)
        with self._lock, contextlib.suppress(OSError):
            kept = os.pread(self._fd, _SLOT_BYTES, slot * _SLOT_BYTES)
            return _padded(mark) in {kept[at : at + MARK_BYTES] for at in range(MARK_BYTES, len(kept), MARK_BYTES)}
        return False

    def close(self) -> None:
        """Close the file, which frees the lock."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._slot = -1
            self._id = b""

    def _own_id(self) -> bytes:
        if self._fd < 0:
            return b""  # closed
        if self._slot >= 0 and self._try(self._slot, fcntl.LOCK_EX):
            return self._id
        self._slot = next((slot for slot in range(MOST) if self._try(slot, fcntl.LOCK_EX)), -1)
        self._id = b""
        if self._slot >= 0:
            head = os.pread(self._fd, _HEAD.size, self._slot * _SLOT_BYTES).ljust(_HEAD.size, b"\0")
            self._marks = _HEAD.unpack(head)[1]
            made = os.urandom(8)
            os.pwrite(self._fd, _HEAD.pack(made, self._marks), self._slot * _SLOT_BYTES)
            self._id = _ID.pack(self._slot, made)
        return self._id

    def _try(self, slot: int, kind: int) -> bool:
        """Lock a slot, or change the kind of the lock; return False if another process has a lock of it."""
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, slot * _SLOT_BYTES)
        except (BlockingIOError, PermissionError):
            return False
        return True


def _padded(mark: bytes) -> bytes:
    return mark[:MARK_BYTES].ljust(MARK_BYTES, b"\0")
