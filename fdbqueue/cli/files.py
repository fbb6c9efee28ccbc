"""Files that a command writes: each appears whole, or stays as it was."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path`, and rename it to `path` at the end of the block.

    If the block raises, `path` stays as it was. A file keeps its mode, and a symbolic link its target. A pipe or a
    device has no place beside it, and is written directly.

    Raises:
        OSError: the folder can't be written.
    """
    target = path.resolve()
    before = _mode(target)
    if before is not None and not stat.S_ISREG(before):
        with target.open("wb") as direct:
            yield direct
        return
    fd, part = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fchmod(fd, 0o666 & ~_umask() if before is None else stat.S_IMODE(before))
            os.fsync(fd)
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise


def _mode(path: Path) -> int | None:
    """Return the type and the rights of a file; None if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
