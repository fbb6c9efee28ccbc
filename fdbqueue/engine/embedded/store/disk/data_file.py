"""What can be seen of LMDB's data file without mapping it: whether it is whole.

LMDB maps the file and reads it as memory, so that a part which is not there ends the process (SIGBUS) instead of
raising an error. Whoever opens a file therefore looks first how long it has to be.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fdbqueue.errors import StorageError

# Of LMDB 0.9's meta page: a page header of 16 bytes, then magic, format, address, map size, two databases of 48 bytes
# each, of which the first, that of the free pages, begins with the page size and ends with its root, last page used,
# number of the transaction.
META_AT: Final = 16
_META: Final = struct.Struct("<II16xI36xQ48xQQ")
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1

# Of its other pages: number, flags, and the end of a list of offsets; there, of each entry, two numbers whose meaning
# depends on the page's kind, the entry's flags and its key's length.
_PAGE: Final = struct.Struct("<Q2xHH2x")
_ENTRY: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH: Final = 1
_LEAF: Final = 2
_ELSEWHERE: Final = 1
"""The value of the entry stands in pages of its own."""
_NO_PAGE: Final = (1 << 64) - 1
_DEEPEST: Final = 32
_LARGEST_PAGE: Final = 1 << 16


def check(path: str, *, mend: bool = True) -> None:
    """Raise if the data file of the folder `path`, which nobody else has open, is shorter than its first pages say.

    LMDB has never written pages at its end that it took and freed in one transaction. Those may be missing, and are
    added unless `mend` is False: then nothing is written.

    Raises:
        StorageError: it was cut off, or may not be written.
    """
    try:
        with open(os.path.join(path, "data.mdb"), "r+b" if mend else "rb", buffering=0) as file:
            newest = _newest(file.fileno())
            if newest is None:
                return  # LMDB itself will say what that is
            needed = (newest.last_page + 1) * newest.page_size
            size = os.fstat(file.fileno()).st_size
            if size >= needed:
                return
            if not _all_free(file.fileno(), newest, size // newest.page_size):
                raise StorageError(
                    f"{path}: the file is damaged: of {needed} bytes only {size} are left, the rest was cut off."
                    " Restore a backup."
                )
            if mend:
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
    free_root: int
    """The page at which the search for free pages begins."""
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
    magic, version, page_size, free_root, last, txn = _META.unpack(content)
    return Meta(page_size, free_root, last, txn, content) if magic == _MAGIC and version == _FORMAT else None


def _newest(fd: int) -> Meta | None:
    first = meta(fd, 0)
    second = meta(fd, first.page_size) if first is not None else None
    return second if first is not None and second is not None and second.txn > first.txn else first


def _all_free(fd: int, newest: Meta, first: int) -> bool:
    """Say whether all pages from the one numbered `first` on are free."""
    free: set[int] = set()
    if newest.page_size > _LARGEST_PAGE:
        return False
    try:
        for pages in _free_lists(fd, newest.page_size, newest.free_root, _DEEPEST):
            free.update(page for page in pages if page >= first)
    except (struct.error, ValueError, OverflowError, MemoryError):
        return False  # the list of the free pages is damaged itself
    return len(free) > newest.last_page - first


def _free_lists(fd: int, page_size: int, root: int, deepest: int) -> Iterator[tuple[int, ...]]:
    """Read the lists of free pages, each of which stands in LMDB as their count and their numbers."""
    if root == _NO_PAGE:
        return
    page = os.pread(fd, page_size, root * page_size)
    _, kind, end = _PAGE.unpack_from(page)
    if not deepest or not kind & (_BRANCH | _LEAF):
        raise ValueError(root)
    for (at,) in struct.iter_unpack("<H", page[_PAGE.size : end]):
        low, high, flags, key_length = _ENTRY.unpack_from(page, at)
        if kind & _BRANCH:
            yield from _free_lists(fd, page_size, low | high << 16 | flags << 32, deepest - 1)
            continue
        value = at + _ENTRY.size + key_length
        pages = page[value : value + (low | high << 16)]
        if flags & _ELSEWHERE:
            place = _NUMBER.unpack(pages[: _NUMBER.size])[0] * page_size + _PAGE.size
            pages = os.pread(fd, low | high << 16, place)
        yield struct.unpack_from(f"<{_NUMBER.unpack_from(pages)[0]}Q", pages, _NUMBER.size)
