"""Check LMDB's data file without mapping it: whether it is complete.

LMDB maps the file and reads it as memory. If a part of the file is missing, such a read kills the process (SIGBUS)
instead of raising an error. So a process first checks the length of a file that it opens.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from fdbqueue.engine.embedded.store.disk import folder, layout, rows
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


# Read every page of a data file by its structure, to find damaged ones.
#
# LMDB has no checksums, and it maps its file: a damaged page ends the process that reads it, by SIGSEGV or SIGABRT.
# This
# module reads the pages as bytes from the file, and checks what LMDB relies on: each page's number and kind, the
# places
# of its entries, the order of its keys, and the numbers of pages and rows that each database has. So it survives
# every
# page, and the keys around a damaged one say which keys are lost. If the rows of the folder have checksums, it
# compares
# them too. Otherwise a value that was changed in its place is not found.

_HEADER: Final = struct.Struct(
    "<Q2xHHH"
)  # its number, its kind, the end of the list of offsets, the begin of the entries
_DATABASE: Final = struct.Struct("<I2xHQQQQQ")  # depth; branch pages, leaf pages, pages of long values, rows; root
_COUNT: Final = struct.Struct("<12xI")
_LONG_VALUE: Final = 4
_KINDS: Final = _BRANCH | _LEAF | _LONG_VALUE
_IS_DATABASE: Final = 2
_PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
FREE: Final = b"free pages"
TOP: Final = b"databases"


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged page, or a damaged row."""

    page: int
    database: bytes
    """The database whose page it is, as `layout` names them; `FREE`, or `TOP`."""
    begin: bytes
    """The keys from this one on may be lost."""
    end: bytes | None
    """They end before this one; None: they go to the last key."""
    what: str
    """What is wrong with the page, or the row."""
    is_row: bool = False
    """Whether only a row is damaged, and the page that it is in can be read."""


@dataclass(frozen=True, slots=True)
class PagesReport:
    """What was found in a data file."""

    pages: int
    """How many pages were read."""
    rows: int
    """How many keys of users were read."""
    checked: bool | None
    """Whether rows have checksums, which were compared; None: the row that says so can't be read."""
    damages: tuple[Damage, ...]


class _Wrong(Exception):
    """A page is damaged; the text says how."""


def check_pages(path: str, see: Callable[[bytes], None]) -> PagesReport:
    """Read every page of the data file in the folder `path`. Nothing is written, and LMDB is not used.

    Args:
        path: the folder.
        see: is called with every readable key of users.

    Raises:
        StorageError: there is no data file; its first pages are damaged; or it was written to meanwhile.
    """
    try:
        fd = folder.open_file(path, folder.DATA, create=False, write=False)
    except FileNotFoundError as error:
        raise StorageError(f"{path}: there is no database.") from error
    try:
        newest = newest_meta(fd)
        if newest is None or newest.page_size not in _PAGE_SIZES:
            raise StorageError(f"{path}: the file is damaged: its first two pages are no database. Restore a backup.")
        walk = _Walk(fd, newest, see)
        walk.all()
        if walk.damages and newest_meta(fd) != newest:
            raise StorageError(
                f"{path}: it was written to while it was read, so what was found means nothing. Stop the programs that"
                " use it, or look at a backup of it."
            )
        return PagesReport(walk.pages, walk.rows, walk.checked, tuple(walk.damages))
    except OSError as error:
        raise folder.refusal(path, folder.DATA, error) from error
    finally:
        os.close(fd)


def _meta_first(database: tuple[bytes, bytes]) -> bool:
    """Order the databases so that the format is known before the rows."""
    return database[0] != layout.META


class _Walk:
    """A walk through all pages of one state of the file."""

    def __init__(self, fd: int, newest: Meta, see: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._meta = newest
        self._size = newest.page_size
        self._see = see
        self._seen = bytearray(newest.last_page // 8 + 1) if newest.last_page < 1 << 40 else bytearray()
        self._counts = [0, 0, 0, 0]
        """Pages of branches, of leaves and of long values, and rows, of the database that is read."""
        self._databases: list[tuple[bytes, bytes]] = []
        self.pages = self.rows = 0
        self.checked: bool | None = None
        """Whether rows have checksums; None: the row that says so was not read."""
        self.damages: list[Damage] = []

    def all(self) -> None:
        """Read all databases."""
        content = self._meta.content
        self._database(FREE, content[24:72])
        self._database(TOP, content[72:120])
        for name, record in sorted(self._databases, key=_meta_first):
            self._database(name, record)

    def _database(self, name: bytes, record: bytes) -> None:
        depth, *told, root = _DATABASE.unpack(record)[1:]
        if root == _NO_PAGE:
            return
        self._counts = [0, 0, 0, 0]
        before = len(self.damages)
        self._page(name, root, b"", None, depth)
        if len(self.damages) == before and self._counts != told:
            what = f"its database counts {told} pages of three kinds and rows, and {self._counts} were found"
            self.damages.append(Damage(root, name, b"", None, what))

    def _page(self, name: bytes, number: int, begin: bytes, end: bytes | None, depth: int) -> None:
        """Read a page and all below it, whose keys are from `begin` on and before `end`."""
        try:
            below = self._entries(name, number, begin, end, depth)
        except (_Wrong, struct.error) as error:
            what = str(error) if isinstance(error, _Wrong) else "an entry reaches beyond its page"
            self.damages.append(Damage(number, name, begin, end, what))
            return
        for at, (first, page) in enumerate(below):
            following = below[at + 1][0] if at + 1 < len(below) else end
            self._page(name, page, first, following, depth - 1)

    def _entries(
        self, name: bytes, number: int, begin: bytes, end: bytes | None, depth: int
    ) -> list[tuple[bytes, int]]:
        """Check the entries of a page. Return the pages below it, each with its first key."""
        page, kind, top = self._read(number)
        if kind != (_LEAF if depth == 1 else _BRANCH) or not 0 < depth <= _DEEPEST:
            raise _Wrong(f"its kind is {kind}, {depth - 1} pages above the leaves")
        self._counts[0 if kind == _BRANCH else 1] += 1
        below: list[tuple[bytes, int]] = []
        offsets = page[_HEADER.size : top]
        last: bytes | None = None
        for place, (at,) in enumerate(struct.iter_unpack("<H", offsets)):
            low, high, flags, length = _ENTRY.unpack_from(page, at)
            value = at + _ENTRY.size + length
            size = low | high << 16
            if at < top or value > self._size:
                raise _Wrong("an entry lies outside its page")
            key = page[at + _ENTRY.size : value]
            if kind == _BRANCH and not place:
                key = begin  # LMDB does not use the first key of such a page
            elif name != FREE and (
                key < begin or (end is not None and key >= end) or (last is not None and key <= last)
            ):
                raise _Wrong("its keys are not in order")
            last = key
            if kind == _BRANCH:
                below.append((key, size | flags << 32))
                continue
            self._counts[3] += 1
            if flags & _ELSEWHERE:
                stored = self._long_value(_NUMBER.unpack_from(page, value)[0], size)
            elif value + size > self._size:
                raise _Wrong("a value reaches beyond its page")
            else:
                stored = page[value : value + size]
            if flags & _IS_DATABASE and name == TOP:
                self._databases.append((key, page[value : value + _DATABASE.size]))
            elif name == layout.META and key == layout.FORMAT_KEY:
                self.checked = stored == layout.FORMAT
                if stored not in layout.FORMATS:
                    what = f"its row {key!r} is {stored!r}, which is no format"
                    self.damages.append(Damage(number, name, key, key + b"\0", what, is_row=True))
            elif self.checked and name in layout.CHECKED and crc32(key + stored) != rows.WHOLE:
                what = f"its row {key!r} does not match its checksum"
                self.damages.append(Damage(number, name, key, key + b"\0", what, is_row=True))
            if name == layout.DATA:
                self.rows += 1
                self._see(key)
        return below

    def _long_value(self, number: int, size: int) -> bytes:
        """Return a value that has pages of its own."""
        page, kind, _ = self._read(number, long=True)
        amount = _COUNT.unpack_from(page)[0]
        if kind != _LONG_VALUE or amount * self._size < size + _HEADER.size:
            raise _Wrong(f"the value at page {number} is damaged")
        self._counts[2] += amount
        self.pages += amount - 1
        if number + amount - 1 > self._meta.last_page:
            raise _Wrong(f"the value at page {number} reaches beyond the file")
        return os.pread(self._fd, size, number * self._size + _HEADER.size)

    def _read(self, number: int, *, long: bool = False) -> tuple[bytes, int, int]:
        """Return a page, its kind, and the end of its list of entries."""
        if not 2 <= number <= self._meta.last_page:
            raise _Wrong(f"page {number} is none of the file's")
        at, bit = number // 8, 1 << number % 8
        if self._seen[at] & bit:
            raise _Wrong(f"page {number} is used twice")
        self._seen[at] |= bit
        page = os.pread(self._fd, self._size, number * self._size)
        if len(page) < self._size:
            raise _Wrong(f"page {number} was cut off")
        self.pages += 1
        own, kind, top, upper = _HEADER.unpack_from(page)
        if own != number:
            raise _Wrong(f"it says that it is page {own}")
        if not long and not _HEADER.size <= top <= upper <= self._size:
            raise _Wrong("its list of entries is damaged")
        return page, kind & _KINDS, top
