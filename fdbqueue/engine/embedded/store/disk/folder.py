"""Open the files of a database's folder. All files of the folder are opened here, and by no other module.

A file must be a regular file: a symbolic link is not followed. The files follow their folder, whatever the umask:

=====================  ===========================================================================
the folder             a file that is made in it
=====================  ===========================================================================
made by us             ``0600``. The folder has ``0700``; in a parent that has the setgid bit and
                       rights to write for its group, it has ``2770``.
its group may write    ``0660``, and the folder's group
any other              ``0600``
another user's         root gives the file to the folder's owner
=====================  ===========================================================================

Only a user who may write to a file can open it, so no other user can lock it. The modes of files and folders that exist
are not changed.

If all users may write to the folder, any of them can put a file there. Then the folder must belong to this user or to
root, and each file to one of these or to the folder's owner. OpenSSH checks its files in the same way.

LMDB opens its own two files by their names. `open_environment` looks at them before that and after it. A user who may
write to the folder can replace a file in between: the rights to the folder are the protection.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import logging
import os
import pwd
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import lmdb

from fdbqueue.engine.errors import StorageError

log = logging.getLogger("fdbqueue.engine")

DATA: Final = "data.mdb"
LOCK: Final = "lock.mdb"
NAMES: Final = frozenset({DATA, LOCK, "synced", "bell", "turns", "members", "owner"})
"""All files that a folder of ours may have."""

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_RIGHTS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
BEING_MADE_SECONDS: Final = 0.1
"""How long another user's process may take between making a file and giving it to the group."""
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def make(path: str) -> None:
    """Make the folder `path` if it is missing; raise if it can't be trusted or used.

    Raises:
        StorageError: it is a file; it can't be made, read or written; or another user's, who lets all users write.
    """
    try:
        if not os.path.lexists(path):
            _make(path)
        found = os.stat(path)
    except (FileExistsError, NotADirectoryError):
        raise StorageError(f"{path}: a part of this path is a file. file: needs a folder.") from None
    except OSError as error:
        raise StorageError(f"{path}: can't be made or read as a folder ({error.strerror}).") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StorageError(f"{path}: is a file. file: needs a folder.")
    if found.st_mode & stat.S_IWOTH and found.st_uid not in (os.geteuid(), 0) and os.geteuid():
        raise StorageError(
            f"{path}: belongs to {_user(found.st_uid)}, and all users may write there. Use a folder of your own, or"
            f" share this one with a group: {_sharing(path)}"
        )
    try:
        os.listdir(path)
    except OSError as error:
        raise StorageError(
            f"{path}: can't be made or read as a folder ({error.strerror}): {_told(found)}. To share it:"
            f" {_sharing(path)}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StorageError(
            f"{path}: no right to write there: {_told(found)}. The folder and its files must be writable. To share it:"
            f" {_sharing(path)}"
        )


def _make(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    found = os.stat(parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(path, 0o700)
        if found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IWGRP:
            os.chmod(path, 0o2770)


def open_file(path: str, name: str, *, create: bool = True, write: bool = True) -> int:
    """Open the file `name` of the folder `path`, to read and write it; return its number.

    Args:
        path: the folder.
        name: one of `NAMES`.
        create: whether to make a missing file.
        write: whether to open it to write, too.

    Raises:
        FileNotFoundError: there is none, and `create` is False.
        StorageError: it is no regular file, or another user's whom the folder does not trust; or the system refused.
    """
    flags = _FLAGS | (os.O_RDWR if write else os.O_RDONLY)
    try:
        fd = _opened(path, name, flags, create)
    except FileNotFoundError:
        if not create:
            raise
        raise StorageError(f"{path}: the folder is gone.") from None
    except OSError as error:
        raise refusal(path, name, error) from error
    try:
        _check(path, name, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_environment(path: str, *, readonly: bool = False, **options: Any) -> lmdb.Environment:
    """Open LMDB's environment in the folder `path`, with options of `lmdb.open`; make its files if they are missing.

    Args:
        path: the folder.
        readonly: whether to open it only to read it, without locks. Then the files must exist.
        options: as of `lmdb.open`.

    Raises:
        FileNotFoundError: there is no data file, and `readonly` is set.
        StorageError: as of `open_file`; or a file was replaced while LMDB opened it.
        lmdb.Error: LMDB refused.
    """
    os.close(open_file(path, DATA, create=not readonly, write=not readonly))
    if readonly:
        return lmdb.open(os.fsencode(path), readonly=True, lock=False, create=False, lib_version=0, **options)
    # Closing any descriptor of the lock file would drop LMDB's locks of this process. So one that exists is not opened.
    if look(path, LOCK) is None:
        os.close(open_file(path, LOCK))
    before = [look(path, name) for name in (DATA, LOCK)]
    env = lmdb.open(os.fsencode(path), lib_version=0, **options)
    if [look(path, name) for name in (DATA, LOCK)] != before:
        env.close()
        raise StorageError(f"{path}: its files were replaced while they were opened. Open it again.")
    return env


def look(path: str, name: str) -> tuple[int, int] | None:
    """Return the id of the file `name` (device, inode) without opening it; None if there is none.

    Raises:
        StorageError: it is no regular file, or another user's whom the folder does not trust; or the system refused.
    """
    try:
        found = os.lstat(os.path.join(path, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refusal(path, name, error) from error
    _check(path, name, found)
    return found.st_dev, found.st_ino


def adopt(path: str, name: str) -> None:
    """Give the file `name`, which LMDB has made as a copy, the owner and the mode of the folder `path`."""
    fd = open_file(path, name, create=False)
    try:
        _follow(fd, os.stat(path))
    finally:
        os.close(fd)


def refusal(path: str, name: str, error: OSError) -> StorageError:
    """Return an error for `error`, which the system raised for the file `name`, with its cause and the remedy."""
    found = None
    with contextlib.suppress(OSError):
        found = os.lstat(os.path.join(path, name))
    if found is not None and not stat.S_ISREG(found.st_mode):
        return _irregular(path, name, found)
    if error.errno in _FULL:
        return StorageError(f"{path}: the disk, or a quota, is full. Make room and try again.")
    if error.errno not in _RIGHTS:
        return StorageError(f"{path}: its file {name!r} can't be used ({error.strerror}).")
    whose = "" if found is None else f": {_told(found)}"
    return StorageError(
        f"{path}: no right to write there, to its file {name!r} ({error.strerror}){whose}. The folder and its files"
        f" must be writable. To share them: {_sharing(path)}"
    )


def _opened(path: str, name: str, flags: int, create: bool) -> int:
    file, since = os.path.join(path, name), time.monotonic()
    while True:
        try:
            return os.open(file, flags)
        except FileNotFoundError:
            if not create:
                raise
        except PermissionError:
            # Another user of the group may have made the file just now, and not have given it to the group yet.
            if not os.stat(path).st_mode & stat.S_IWGRP or time.monotonic() - since > BEING_MADE_SECONDS:
                raise
            time.sleep(0.001)
            continue
        try:
            fd = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # another process was faster
        _follow(fd, os.stat(path))
        return fd


def _follow(fd: int, folder: os.stat_result) -> None:
    """Give a file the owner and the mode that its folder asks for."""
    is_shared = bool(folder.st_mode & stat.S_IWGRP)
    owner = folder.st_uid if os.geteuid() == 0 else -1
    group = folder.st_gid if is_shared or owner >= 0 else -1
    with contextlib.suppress(PermissionError):  # not a member of the group, or a file system without owners
        os.fchown(fd, owner, group)
    is_shared = is_shared and os.fstat(fd).st_gid == folder.st_gid
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, 0o660 if is_shared else 0o600)


def _check(path: str, name: str, found: os.stat_result) -> None:
    """Raise if a file of the folder `path` is no regular file, or if a stranger may have put it there."""
    if not stat.S_ISREG(found.st_mode):
        raise _irregular(path, name, found)
    folder = os.stat(path)
    if folder.st_mode & stat.S_IWOTH and found.st_uid not in (os.geteuid(), 0, folder.st_uid):
        raise StorageError(
            f"{path}: all users may write there, and its file {name!r} belongs to {_user(found.st_uid)}. Remove that"
            f" file, or trust it by `chown {os.geteuid()}`, and run `chmod o-w {path}`."
        )


def _irregular(path: str, name: str, found: os.stat_result) -> StorageError:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    return StorageError(
        f"{path}: its file {name!r} is {kind}. Only a regular file is opened, and no link is followed. Remove it; or"
        " link the whole folder instead."
    )


def _told(found: os.stat_result) -> str:
    """Return a part of an error message: whose a file or a folder is, and who this process is."""
    mode = stat.S_IMODE(found.st_mode)
    return f"it belongs to {_user(found.st_uid)}, with mode {mode:04o}, and this process is {_user(os.geteuid())}"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name!r} ({uid})"
    except KeyError:
        return f"user {uid}"


def _sharing(path: str) -> str:
    """Return the commands that share the folder with a group of several users."""
    return f"`chgrp -R GROUP {path}; chmod -R g+rwX {path}; chmod g+s {path}`."


# The private folder of a ``memory:`` database, on tmpfs if available. It is removed when its owner ends.
#
# The folder's ``owner`` file is locked (flock) while the owner, or a child forked from it, lives. If the owner was
# killed, the next process that makes such a folder removes the old one.

_PREFIX = "fdbqueue-memory-"
_OWNER = "owner"
_owned: dict[str, tuple[int, int]] = {}


def make_folder() -> str:
    """Create a folder; `remove` or the end of this process removes it."""
    root = _root()
    _sweep(root)
    while True:
        path = root
        try:
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
            fd = open_file(path, _OWNER)
        except (StorageError, OSError) as error:
            if path != root and not os.path.isdir(path):
                continue  # another process found the folder without a file, and removed it
            if isinstance(error, StorageError):
                raise
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
            fd = open_file(str(found), _OWNER, create=False)
        except (OSError, StorageError):
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
        except OSError:
            continue  # its owner is alive
        finally:
            os.close(fd)
