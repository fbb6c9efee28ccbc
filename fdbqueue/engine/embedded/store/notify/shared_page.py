"""A page of memory that all processes with an open folder share: a small mapped file."""

from __future__ import annotations

import mmap
import os

from fdbqueue.engine.embedded.store.disk import folder


def open_page(path: str, name: str, size: int) -> tuple[int, mmap.mmap]:
    """Open the file `name` in the folder `path`, or create it; return its number and its first `size` bytes, mapped.

    Raises:
        StorageError: the file can't be used.
    """
    fd = folder.open_file(path, name)
    try:
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
        raise folder.refusal(path, name, error) from error
