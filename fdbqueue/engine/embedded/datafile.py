"""What can be seen of LMDB's data file without mapping it: whether it is whole.

LMDB maps the file and reads it as memory, so that a part which is not there ends the process (SIGBUS) instead of
raising an error. Whoever opens a file therefore looks first how long it has to be.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

from fdbqueue.errors import StorageError

# Of LMDB 0.9's meta page: a page header of 16 bytes, then magic, format, address, map size, two databases of 48 bytes
# each, of which the first begins with the page size, last page used, number of the transaction.
META_AT: Final = 16
_META: Final = struct.Struct("<II16xI44x48xQQ")
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1
_UNWRITTEN: Final = 16
"""Pages at the end that LMDB may count as used without having written them: it freed them at once."""


def check(path: str) -> None:
    """Raise if the data file of the folder `path` is shorter than its own first pages say.

    Raises:
        StorageError: it was cut off, or may not be written.
    """
    try:
        with open(os.path.join(path, "data.mdb"), "r+b", buffering=0) as file:
            needed = _needed(file.fileno())
            size = os.fstat(file.fileno()).st_size
            if size >= needed:
                return
            if needed - size > _UNWRITTEN * 4096:
                raise StorageError(
                    f"{path}: the file is damaged: of {needed} bytes only {size} are left, the rest was cut off."
                    " Restore a backup."
                )
            file.truncate(needed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"{path}: no right to write there ({error.strerror}). The folder and its files must be writable."
        ) from error


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two pages that say what the database is: the one with the larger number does."""

    page_size: int
    last_page: int
    txn: int
    """The number of the transaction that wrote it."""
    content: bytes
    """All that LMDB keeps there, behind the page's header."""


def meta(fd: int, at: int) -> Meta | None:
    """Read the meta page at that place; None where there is none."""
    content = os.pread(fd, _META.size, at + META_AT)
    if len(content) < _META.size:
        return None
    magic, version, page_size, last, txn = _META.unpack(content)
    return Meta(page_size, last, txn, content) if magic == _MAGIC and version == _FORMAT else None


def _needed(fd: int) -> int:
    """Return how long the file has to be; 0 where LMDB itself will say that it is none."""
    first = meta(fd, 0)
    if first is None:
        return 0
    second = meta(fd, first.page_size)
    newest = second if second is not None and second.txn > first.txn else first
    return (newest.last_page + 1) * first.page_size
