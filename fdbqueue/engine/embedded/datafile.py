"""What can be seen of LMDB's data file without mapping it: whether it is whole.

LMDB maps the file and reads it as memory, so that a part which is not there ends the process (SIGBUS) instead of
raising an error. Whoever opens a file therefore looks first how long it has to be.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, Final

from fdbqueue.errors import StorageError

# Of LMDB 0.9's meta page: a page header of 16 bytes, then magic, format, address, map size, two databases of 48 bytes
# each, of which the first begins with the page size, last page used, number of the transaction.
_META: Final = struct.Struct("<16xII16xI44x48xQQ")
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
        # Unbuffered: the second meta page is read where the first one says it is.
        with open(os.path.join(path, "data.mdb"), "r+b", buffering=0) as file:
            needed = _needed(file)
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


def _needed(file: BinaryIO) -> int:
    """Return how long the file has to be; 0 where LMDB itself will say that it is none."""
    first = _meta(file, 0)
    if first is None:
        return 0
    page_size, last, txn = first
    second = _meta(file, page_size)
    if second is not None and second[2] > txn:
        last = second[1]
    return (last + 1) * page_size


def _meta(file: BinaryIO, at: int) -> tuple[int, int, int] | None:
    file.seek(at)
    page = file.read(_META.size)
    if len(page) < _META.size:
        return None
    magic, version, page_size, last, txn = _META.unpack(page)
    return (page_size, last, txn) if magic == _MAGIC and version == _FORMAT else None
