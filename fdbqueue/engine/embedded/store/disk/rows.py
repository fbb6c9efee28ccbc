"""Rows as they are stored: with checksums, and with keys that are longer than LMDB's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from zlib import crc32

from fdbqueue.engine.embedded.store.disk.layout import DIRECT_KEY, Cursor, Handle, Row, Txn
from fdbqueue.engine.errors import StorageError

# Checksums of rows: a value that was changed on the disk is never read as another one.
#
# LMDB has no checksums. In a folder with `layout.FORMAT`, each row of a user, and each row of the log, ends with
# the
# CRC-32 of its key and its value::
#
#     value | crc32(key + value), 4 bytes, little-endian
#
# In that byte order the CRC-32 of a whole row, its checksum included, is always the same number: `WHOLE`. So a
# reader
# compares one number, and needs to cut nothing off before. The stored key counts: for a long key it is the level
# and the
# rest of the key (`long_keys`).
#
# A range is compared at once. After a whole row, four fixed bytes (`BETWEEN`) bring the CRC-32 back to where it
# began, so
# rows with these bytes between them have the same number together as each of them. One wrong row changes it as
# surely as
# its own. Several wrong ones hide each other with the chance that a row of random bytes matches: one in four
# billion.
#
# Folders of `layout.PLAIN_FORMAT` have no checksums. Such are databases in memory, and folders of earlier versions.

log = logging.getLogger("fdbqueue.engine")

WHOLE: Final = 0x2144DF1C
"""The CRC-32 of every row that is as it was written."""
BETWEEN: Final = b"\x81\xd5\x9dL"
"""The CRC-32 of a whole row and these bytes is 0, as that of nothing."""
VALUE: Final = slice(-4)
"""The value in its stored form."""
packed: Final = Struct("<I").pack
"""The stored form of a checksum."""
_BLOCK: Final = 64
"""How many rows of a range are compared at once. The processor's caches hold them."""


def sealed(dbs: Databases, key: bytes, value: bytes) -> bytes:
    """Return the stored form of a value."""
    return value + packed(crc32(key + value)) if dbs.checked else value


def sealed_all(dbs: Databases, rows: Iterable[Row]) -> Iterable[Row]:
    """Return rows with their values in stored form."""
    return [(key, value + packed(crc32(key + value))) for key, value in rows] if dbs.checked else rows


def opened(dbs: Databases, key: bytes, stored: bytes) -> bytes:
    """Return the value of a row in its stored form.

    Raises:
        StorageError: the row is damaged.
    """
    if not dbs.checked:
        return stored
    if crc32(key + stored) != WHOLE:
        damaged(dbs, key)
    return stored[VALUE]


def opened_all(dbs: Databases, rows: list[Row]) -> list[Row]:
    """Return rows, which are in their stored form, with the values themselves. The list may be changed in place.

    Raises:
        StorageError: a row is damaged.
    """
    if not dbs.checked:
        return rows
    if len(rows) == 1:
        key, stored = rows[0]
        return [(key, opened(dbs, key, stored))]
    for at in range(0, len(rows), _BLOCK):
        block = rows[at : at + _BLOCK]
        if crc32(BETWEEN.join(map(b"".join, block))) == WHOLE:
            rows[at : at + _BLOCK] = [(key, stored[VALUE]) for key, stored in block]
        else:
            rows[at : at + _BLOCK] = [(key, opened(dbs, key, stored)) for key, stored in block]
    return rows


def damaged(dbs: Databases, key: bytes) -> None:
    """Raise the error of a damaged row; log it if `dbs` ignores such rows.

    Raises:
        StorageError: the row is damaged, and `dbs` does not ignore that.
    """
    what = f"{dbs.path}: the row {key!r} is damaged: its checksum does not match."
    if not dbs.ignoring:
        raise StorageError(f"{what} `fdbqueue check --file {dbs.path}` tells what else is. Restore a backup.")
    log.warning("%s It is read as it is, as checksums=ignore in the URL says.", what)


# Keys of up to 10,000 bytes, in order, although LMDB's limit is 511.
#
# A key of up to 500 bytes is stored in ``data`` unchanged. For a longer key, its first 500 bytes and a zero byte
# are a
# *pointer* to a *level*. The level is stored in ``long`` under its id, and holds the rest of the key. If the rest
# is too
# long again, the level has a pointer for it, and so on. A pointer is 501 bytes long, unlike any other stored key.
# It
# sorts in the same place as the keys that it leads to: right after the key of its 500 bytes, before everything
# else.
# Level 0 holds the empty key, which LMDB doesn't accept.
#
# Most databases have no long key. A caller that knows this (`any_long`) reads and writes ``data`` directly.

POINTER_LENGTH: Final = DIRECT_KEY + 1
EMPTY_KEY: Final = bytes(8)


class NoLong:
    """What this process knows without a look: in which states of the folder no key is long."""

    __slots__ = ("until", "written")

    def __init__(self) -> None:
        self.until = -1
        """The number of LMDB's transaction after which there was none."""
        self.written = False
        """Whether this process has written one, committed or not."""

    def seen(self, txn: Txn, dbs: Databases) -> bool:
        """Look whether there is a long key in a snapshot, and return it."""
        found: bool = txn.cursor(dbs.long).first()
        if not found:
            self.until = txn.id()
        return found


@dataclass(frozen=True, slots=True)
class Databases:
    """The handles of the named databases in the folder `path`."""

    path: str
    checked: bool
    """Whether rows have checksums (`checksums`)."""
    ignoring: bool
    """Whether a row with a wrong checksum is read as it is."""
    data: Handle
    long: Handle
    log: Handle
    meta: Handle
    top: Handle
    """The environment's own database, where LMDB keeps the roots of the others."""
    no_long: NoLong = field(default_factory=NoLong)


class LongKeys:
    """Reads and writes of all keys, long and short, in one LMDB transaction.

    *Cost:* one LMDB operation for each 500 bytes of the key, for a single key and for each row.
    """

    __slots__ = ("_data", "_dbs", "_long", "_txn")

    def __init__(self, txn: Txn, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs
        self._data = dbs.data
        self._long = dbs.long

    def any_long(self) -> bool:
        """Return whether there is a key that is not stored in ``data`` unchanged."""
        return bool(self._txn.cursor(self._long).first())

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        place = self._path(key)[-1]
        return None if place is None else self._read(*place)

    def put(self, key: bytes, value: bytes) -> None:
        """Set `key`, and create the levels that it needs."""
        self._dbs.no_long.written = True
        db, level, rest = self._data, b"", key
        fresh = 0
        while len(level) + len(rest) > DIRECT_KEY:
            pointer, rest = _split(level, rest)
            below = self._read(db, pointer)
            if below is None:
                fresh = fresh + 1 if fresh else self._free_level()
                below = fresh.to_bytes(8, "big")
                self._write(db, pointer, below)
            db, level = self._long, below
        if key:
            self._write(db, level + rest, value)
        else:
            self._write(self._long, EMPTY_KEY, value)

    def delete(self, key: bytes) -> bool:
        """Clear `key`, and the levels that become empty; return whether the key was there."""
        path = self._path(key)
        if path[-1] is None:
            return False
        places = [place for place in path if place is not None]
        db, stored = places.pop()
        if not self._txn.delete(stored, db=db):
            return False
        while places and not self._occupied(stored[:8]):
            db, stored = places.pop()
            self._txn.delete(stored, db=db)
        return True

    def rows(self, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows of ``[begin, end)`` in order. No write may happen during the iteration."""
        if reverse:
            yield from self._down(self._data, b"", b"", begin, end)
            if begin == b"" < end and (value := self._read(self._long, EMPTY_KEY)) is not None:
                yield b"", value
            return
        if begin == b"" < end and (value := self._read(self._long, EMPTY_KEY)) is not None:
            yield b"", value
        yield from self._up(self._data, b"", b"", begin, end)

    def _path(self, key: bytes) -> list[tuple[Handle, bytes] | None]:
        """Return the places of the pointers to `key` and, last, of the key itself; None if a pointer is missing."""
        if not key:
            return [(self._long, EMPTY_KEY)]
        db, level, rest = self._data, b"", key
        places: list[tuple[Handle, bytes] | None] = []
        while len(level) + len(rest) > DIRECT_KEY:
            pointer, rest = _split(level, rest)
            places.append((db, pointer))
            below = self._read(db, pointer)
            if below is None:
                return [*places, None]
            db, level = self._long, below
        return [*places, (db, level + rest)]

    def _read(self, db: Handle, stored_key: bytes) -> bytes | None:
        stored: bytes | None = self._txn.get(stored_key, db=db)
        return None if stored is None else opened(self._dbs, stored_key, stored)

    def _write(self, db: Handle, stored_key: bytes, value: bytes) -> None:
        self._txn.put(stored_key, sealed(self._dbs, stored_key, value), db=db)

    def _free_level(self) -> int:
        cursor = self._txn.cursor(self._long)
        return int.from_bytes(cursor.key()[:8], "big") + 1 if cursor.last() else 1

    def _occupied(self, level: bytes) -> bool:
        cursor = self._txn.cursor(self._long)
        return bool(cursor.set_range(level)) and cursor.key().startswith(level)

    def _up(self, db: Handle, level: bytes, prefix: bytes, begin: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows of one level, whose keys all start with `prefix`, from `begin` on, in ascending order."""
        cursor = self._txn.cursor(db)
        rest = begin[len(prefix) :] if begin > prefix else b""
        seek = _seek(level, rest)
        if not (cursor.set_range(seek) if seek else cursor.first()):
            return
        for stored, value in cursor.iternext():
            if not stored.startswith(level):
                return
            if len(stored) == POINTER_LENGTH:
                inner = prefix + stored[len(level) : DIRECT_KEY]
                if inner >= end:
                    return
                yield from self._up(self._long, opened(self._dbs, stored, value), inner, begin, end)
                continue
            key = prefix + stored[len(level) :]
            if key >= end:
                return
            if key >= begin:
                yield key, opened(self._dbs, stored, value)

    def _down(self, db: Handle, level: bytes, prefix: bytes, begin: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows of one level that are before `end`, in descending order."""
        cursor = self._txn.cursor(db)
        if end.startswith(prefix):
            seek = _seek(level, end[len(prefix) :])
            # If the path to `end` goes through a pointer, that pointer's level also holds keys before `end`.
            found = cursor.set_range(seek) if seek else False
            if not (found and len(seek) == POINTER_LENGTH and cursor.key() == seek):
                found = cursor.prev() if found else cursor.last()
        else:
            found = _last_of(cursor, level)
        if not found:
            return
        for stored, value in cursor.iterprev():
            if not stored.startswith(level):
                return
            if len(stored) == POINTER_LENGTH:
                inner = prefix + stored[len(level) : DIRECT_KEY]
                yield from self._down(self._long, opened(self._dbs, stored, value), inner, begin, end)
                if inner < begin:
                    return
                continue
            key = prefix + stored[len(level) :]
            if key < begin:
                return
            if key < end:
                yield key, opened(self._dbs, stored, value)


def _split(level: bytes, rest: bytes) -> tuple[bytes, bytes]:
    """Return the pointer that leads from `level` towards `rest`, and the part of `rest` after it."""
    room = DIRECT_KEY - len(level)
    return level + rest[:room] + b"\0", rest[room:]


def _seek(level: bytes, rest: bytes) -> bytes:
    """Return the stored key to seek to: `rest` itself in the level, or the pointer that leads towards it."""
    if len(level) + len(rest) > DIRECT_KEY:
        return _split(level, rest)[0]
    return level + rest


def _last_of(cursor: Cursor, level: bytes) -> bool:
    """Move the cursor to the last key of the level; return whether there is one."""
    if not level:
        return bool(cursor.last())
    after = (int.from_bytes(level, "big") + 1).to_bytes(8, "big")
    return bool(cursor.prev() if cursor.set_range(after) else cursor.last())
