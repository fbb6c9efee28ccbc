"""Check LMDB's data file without mapping it: whether it is complete.

LMDB maps the file and reads it as memory. If a part of the file is missing, such a read kills the process (SIGBUS)
instead of raising an error. So a process first checks the length of a file that it opens.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.errors import StorageError

# LMDB 0.9's meta page: a page header of 16 bytes, then magic, format, address, map size, two databases of 48 bytes
# each, last page used, transaction number. The first database is that of the free pages: it begins with the page size
# and ends with its root.
META_AT: Final = 16
_META: Final = struct.Struct("<II16xI36xQ48xQQ")
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1

# LMDB's other pages: page number, flags, and the end of a list of offsets. At each offset is an entry: two numbers
# whose meaning depends on the kind of page, the entry's flags, and the length of its key.
_PAGE: Final = struct.Struct("<Q2xHH2x")
_ENTRY: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH: Final = 1
_LEAF: Final = 2
_ELSEWHERE: Final = 1
"""Flag: the value of the entry is stored in separate pages."""
_NO_PAGE: Final = (1 << 64) - 1
_DEEPEST: Final = 32
_LARGEST_PAGE: Final = 1 << 16


def check(path: str, *, mend: bool = True) -> None:
    """Raise if the data file of the folder `path` is shorter than its first pages say.

    No other process may have the folder open. LMDB never writes pages at the end of the file that one transaction both
    takes and frees. Such pages may be missing: `check` adds them, unless `mend` is False. Then it writes nothing.

    Raises:
        StorageError: the file was truncated, or it can't be written.
    """
    try:
        with os.fdopen(
            folder.open_file(path, folder.DATA, create=False, write=mend), "r+b" if mend else "rb", 0
        ) as file:
            newest = newest_meta(file.fileno())
            if newest is None:
                return  # LMDB itself will report what the file is
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
        raise folder.refusal(path, folder.DATA, error) from error


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two pages with the roots of the database. The page with the larger transaction number is current."""

    page_size: int
    free_root: int
    """The page at which the search for free pages begins."""
    last_page: int
    txn: int
    """The number of the transaction that wrote the page."""
    content: bytes
    """All of LMDB's data on the page, without the page header."""


def meta(fd: int, at: int) -> Meta | None:
    """Return the meta page at offset `at`; None if there is none."""
    content = os.pread(fd, _META.size, at + META_AT)
    if len(content) < _META.size:
        return None
    magic, version, page_size, free_root, last, txn = _META.unpack(content)
    return Meta(page_size, free_root, last, txn, content) if magic == _MAGIC and version == _FORMAT else None


def newest_meta(fd: int) -> Meta | None:
    """Return the current meta page; None if there is none."""
    first = meta(fd, 0)
    second = meta(fd, first.page_size) if first is not None else None
    return second if first is not None and second is not None and second.txn > first.txn else first


def _all_free(fd: int, newest: Meta, first: int) -> bool:
    """Return whether all pages from number `first` on are free."""
    free: set[int] = set()
    if newest.page_size > _LARGEST_PAGE:
        return False
    try:
        for pages in _free_lists(fd, newest.page_size, newest.free_root, _DEEPEST):
            free.update(page for page in pages if page >= first)
    except (struct.error, ValueError, OverflowError, MemoryError):
        return False  # the list of free pages itself is damaged
    return len(free) > newest.last_page - first


def _free_lists(fd: int, page_size: int, root: int, deepest: int) -> Iterator[tuple[int, ...]]:
    """Yield the lists of free pages. LMDB stores each list as a count and the page numbers."""
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
