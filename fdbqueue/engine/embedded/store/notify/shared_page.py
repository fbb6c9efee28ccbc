"""A page that all processes with a folder open have in common: a small file, mapped."""

from __future__ import annotations

import mmap
import os

from fdbqueue.errors import StorageError


def open_page(path: str, name: str, size: int) -> tuple[int, mmap.mmap]:
    """Return the file `name` in the folder `path`, made if it isn't there, and its first `size` bytes in memory.

    Raises:
        StorageError: it can't be used.
    """
    try:
        fd = os.open(os.path.join(path, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            found = os.fstat(fd)
            if found.st_size < size or not found.st_blocks:
                # Written, not only made longer: a page without a block would end the process when the disk is full.
                os.pwrite(fd, bytes(size), 0)
            return fd, mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise StorageError(f"{path}: its file {name!r} can't be used ({error.strerror}).") from error
