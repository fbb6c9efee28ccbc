"""The private folder of a ``memory:`` database, on tmpfs if available. It is removed when its owner ends.

The folder's ``owner`` file is locked (flock) while the owner, or a child forked from it, lives. If the owner was
killed, the next process that makes such a folder removes the old one.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.errors import StorageError

_PREFIX = "fdbqueue-memory-"
_OWNER = "owner"
_owned: dict[str, tuple[int, int]] = {}


def make() -> str:
    """Create a folder; `remove` or the end of this process removes it."""
    root = _root()
    _sweep(root)
    while True:
        try:
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
            fd = folder.open_file(path, _OWNER)
        except StorageError:
            if not os.path.isdir(path):
                continue  # another process found the folder without a file, and removed it
            raise
        except OSError as error:
            raise StorageError(f"{root}: no folder for a database in memory can be made ({error.strerror}).") from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)  # another process found the file without a lock, and removed it
    if not _owned:
        atexit.register(_remove_all)
    _owned[path] = (os.getpid(), fd)
    return path


def check(path: str) -> None:
    """Raise if `path` is a folder of `make` that was removed. Opening it would create an empty one.

    Raises:
        StorageError: the folder was removed.
    """
    if os.path.basename(path).startswith(_PREFIX) and not os.path.exists(os.path.join(path, _OWNER)):
        raise StorageError("The database in memory is gone with the process that made it, or was closed there.")


def made(path: str) -> bool:
    """Return whether this process, or one that it was forked from, made the folder by `make`."""
    return path in _owned


def remove(path: str) -> None:
    """Remove a folder if this process made it."""
    owner = _owned.get(path)
    if owner is None or owner[0] != os.getpid():
        return
    del _owned[path]
    shutil.rmtree(path, ignore_errors=True)
    os.close(owner[1])


def _remove_all() -> None:
    for path in list(_owned):
        remove(path)


def _root() -> str:
    shm = "/dev/shm"
    return shm if os.path.isdir(shm) and os.access(shm, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _sweep(root: str) -> None:
    """Remove the folders that killed processes of this user have left."""
    for found in Path(root).glob(_PREFIX + "*"):
        try:
            if found.lstat().st_uid != os.getuid():
                continue
            fd = folder.open_file(str(found), _OWNER, create=False)
        except (OSError, StorageError):
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
        except OSError:
            continue  # its owner is alive
        finally:
            os.close(fd)
