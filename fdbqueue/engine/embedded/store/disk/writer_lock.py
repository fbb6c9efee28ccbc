"""Wait for LMDB's writer lock with a time limit if its owner is stopped. LMDB itself waits without a limit.

The lock is a mutex in the file ``lock.mdb``, which LMDB has mapped. Its first word is the thread that owns it. This
module reads that word in LMDB's mapping: opening and closing the file again would drop LMDB's own locks on it. If the
mutex does not have glibc's layout, the owner is unknown.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Final

from fdbqueue.engine.embedded.store.disk import folder_lock
from fdbqueue.engine.embedded.store.disk.lock_owners import blame, is_stopped, process_of
from fdbqueue.engine.errors import StorageError

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
    since, pause = time.monotonic(), folder_lock.SHORTEST_PAUSE
    while (owner := word.value & _THREAD) and is_stopped(owner):
        waited = time.monotonic() - since
        if waited >= folder_lock.PATIENCE_SECONDS:
            raise StorageError(
                f"{path}: waited {waited:.0f} s for its writer lock, which {blame(process_of(owner))} and open the"
                " folder again."
            )
        time.sleep(pause)
        pause = min(2 * pause, folder_lock.LONGEST_PAUSE)


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
