"""A page of memory that all processes with an open folder share: a small mapped file."""

from __future__ import annotations

import mmap
import os

from fdbqueue.engine.errors import StorageError


def open_page(path: str, name: str, size: int) -> tuple[int, mmap.mmap]:
    """Open the file `name` in the folder `path`, or create it; return its number and its first `size` bytes, mapped.

    Raises:
        StorageError: the file can't be used.
    """
    try:
        fd = os.open(os.path.join(path, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            found = os.fstat(fd)
            if found.st_size < size or not found.st_blocks:
                # Write the bytes: if the file were only made longer, its page would have no block on the disk. A write
                # to that page would kill the process when the disk is full.
                os.pwrite(fd, bytes(size), 0)
            return fd, mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise StorageError(f"{path}: its file {name!r} can't be used ({error.strerror}).") from error
