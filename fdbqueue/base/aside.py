"""Write a file aside, and rename it when its data are complete. A reader sees the old file or the whole new one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NAME_CHARACTERS = 40
"""How much of the file's name its unfinished neighbour has. A name has 255 bytes at most."""


@contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a file to write into. At the end of the block it takes the name `path`, and is on the disk.

    If the block raises, the file at `path` stays what it was. A killed process leaves a file ``.NAME.….part`` beside
    it. A symbolic link keeps its place, and its target is replaced. The new file has the rights of the old one. A
    device or a pipe can't be replaced, so it is written directly.

    Raises:
        OSError: the folder or the disk refused, the file may not be written, or it is a folder.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "data")
    ...     with written_aside(path) as file:
    ...         size = file.write(b"tea"), path.exists()
    ...     size, path.read_bytes()
    ((3, False), b'tea')
    """
    target = Path(os.path.realpath(path))
    rights = _rights(target)
    if rights is not None and not stat.S_ISREG(rights):
        with target.open("wb") as directly:
            yield directly
        return
    new = target.with_name(f".{target.name[:_NAME_CHARACTERS]}.{os.urandom(6).hex()}.part")
    try:
        opened = new.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the caller knows this name only
    try:
        with opened as file:
            yield file
            file.flush()
            if rights is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(rights))
            os.fsync(file.fileno())
        os.replace(new, target)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    sync(target.parent)


def _rights(path: Path) -> int | None:
    """Return the kind and the rights of a file; None if there is none.

    Raises:
        OSError: it is a folder, or may not be written.
    """
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return None
    for wrong, number in ((stat.S_ISDIR(found), errno.EISDIR), (not os.access(path, os.W_OK), errno.EACCES)):
        if wrong:
            raise OSError(number, os.strerror(number), str(path))
    return found


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
