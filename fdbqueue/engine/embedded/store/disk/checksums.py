"""Checksums of rows: a value that was changed on the disk is never read as another one.

LMDB has no checksums. In a folder with `layout.FORMAT`, each row of a user, and each row of the log, ends with the
CRC-32 of its key and its value::

    value | crc32(key + value), 4 bytes, little-endian

In that byte order the CRC-32 of a whole row, its checksum included, is always the same number: `WHOLE`. So a reader
compares one number, and needs to cut nothing off before. The stored key counts: for a long key it is the level and the
rest of the key (`long_keys`).

Folders of `layout.PLAIN_FORMAT` have no checksums. Such are databases in memory, and folders of earlier versions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

from fdbqueue.engine.errors import StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.store.disk.long_keys import Databases, Row

log = logging.getLogger("fdbqueue.engine")

WHOLE: Final = 0x2144DF1C
"""The CRC-32 of every row that is as it was written."""
BYTES: Final = 4
"""How long a checksum is."""


def sealed(dbs: Databases, key: bytes, value: bytes) -> bytes:
    """Return the stored form of a value."""
    return value + crc32(key + value).to_bytes(4, "little") if dbs.checked else value


def sealed_all(dbs: Databases, rows: Iterable[Row]) -> Iterable[Row]:
    """Return rows with their values in stored form."""
    return _sealed_all(rows) if dbs.checked else rows


def opened(dbs: Databases, key: bytes, stored: bytes) -> bytes:
    """Return the value of a row in its stored form.

    Raises:
        StorageError: the row is damaged.
    """
    if not dbs.checked:
        return stored
    if crc32(key + stored) != WHOLE:
        damaged(dbs, key)
    return stored[:-BYTES]


def opened_all(dbs: Databases, rows: list[Row]) -> list[Row]:
    """Return rows whose values are in their stored form with the values themselves.

    Raises:
        StorageError: a row is damaged.
    """
    if not dbs.checked or not rows:
        return rows
    whole = [(key, stored[:-BYTES]) for key, stored in rows if crc32(key + stored) == WHOLE]
    return whole if len(whole) == len(rows) else [(key, opened(dbs, key, stored)) for key, stored in rows]


def damaged(dbs: Databases, key: bytes) -> None:
    """Raise the error of a damaged row; log it if `dbs` ignores such rows.

    Raises:
        StorageError: the row is damaged, and `dbs` does not ignore that.
    """
    what = f"{dbs.path}: the row {key!r} is damaged: its checksum does not match."
    if not dbs.ignoring:
        raise StorageError(f"{what} `fdbqueue check --file {dbs.path}` tells what else is. Restore a backup.")
    log.warning("%s It is read as it is, as checksums=ignore in the URL says.", what)


def _sealed_all(rows: Iterable[Row]) -> Iterator[Row]:
    for key, value in rows:
        yield key, value + crc32(key + value).to_bytes(4, "little")
