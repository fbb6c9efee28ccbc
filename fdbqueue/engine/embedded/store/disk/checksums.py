"""Checksums of rows: a value that was changed on the disk is never read as another one.

LMDB has no checksums. In a folder with `layout.FORMAT`, each row of a user, and each row of the log, ends with the
CRC-32 of its key and its value::

    value | crc32(key + value), 4 bytes, little-endian

In that byte order the CRC-32 of a whole row, its checksum included, is always the same number: `WHOLE`. So a reader
compares one number, and needs to cut nothing off before. The stored key counts: for a long key it is the level and the
rest of the key (`long_keys`).

A range is compared at once. After a whole row, four fixed bytes (`BETWEEN`) bring the CRC-32 back to where it began, so
rows with these bytes between them have the same number together as each of them. One wrong row changes it as surely as
its own. Several wrong ones hide each other with the chance that a row of random bytes matches: one in four billion.

Folders of `layout.PLAIN_FORMAT` have no checksums. Such are databases in memory, and folders of earlier versions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from fdbqueue.engine.errors import StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.store.disk.long_keys import Databases, Row

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
