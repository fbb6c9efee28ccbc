"""What makes one wait for the disk enough: beside a commit's meta page stands how to make the commit again.

LMDB makes a commit durable with two waits: for its pages, and then for the meta page that makes them the database. With
one wait for all of them a power cut may leave the meta page on disk, and not all of the pages. So the rest of the
meta page, which LMDB leaves alone, takes a *label*, written right before the commit: its number and, if it is small
enough, its writes, the *redo*. The label begins in the meta page's own sector, so the disk takes both or none.

After a power cut the newer of the two meta pages is not to be trusted if it has a label of its own number. The older
one is whole: nothing of a commit is written before the one before it is on disk, and LMDB never writes over pages of
the last two states. `roll_back` makes it the database again, and the commit is made again from the redo. Without a
whole redo nobody was told that it succeeded.

::

    page 0 or 1   | LMDB's header and meta (152 bytes) |   | label (32 bytes) | redo            |
                  0                                        256               288               4096
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.disk import data_file
from fdbqueue.errors import StorageError

LABEL_AT: Final = 256
NONE: Final = 0xFFFFFFFF
"""The length of a redo that is not there."""
MOST_MUTATIONS: Final = 256
"""More of them hardly ever fit, and are not tried."""

_LABEL: Final = struct.Struct("<8sQQII")
_MAGIC: Final = b"fdbqredo"
NUMBER_AT: Final = LABEL_AT + 16
"""Where the number stands that a label belongs to."""
_encode: Final = msgspec.msgpack.Encoder().encode


class Redo(msgspec.Struct, array_like=True, frozen=True):
    """A commit of one or more requests, as it is made again."""

    version: bytes
    time_us: int
    """When it was. What it wrote, as the log of commits has it, nobody asks: no transaction outlives a roll-back."""
    requests: list[list[tuple[int, bytes, bytes]]]
    """The mutations of each request."""


_decode: Final = msgspec.msgpack.Decoder(Redo).decode


def encode(version: bytes, time_us: int, requests: Sequence[CommitRequest], room: int) -> bytes | None:
    """Return the redo of a commit, None if it has more than `room` bytes."""
    if sum(request.size() for request in requests) > MOST_MUTATIONS:
        return None
    redo = _encode((version, time_us, [request.all_mutations() for request in requests]))
    return redo if len(redo) <= room else None


def decode(redo: bytes) -> Redo:
    """Return what `encode` was given."""
    return _decode(redo)


def room(page_size: int) -> int:
    """Return how many bytes a redo may have."""
    return page_size - LABEL_AT - _LABEL.size


@dataclass(frozen=True, slots=True)
class Label:
    """What stands beside a meta page."""

    txn: int
    """The number of the commit that it belongs to, whatever meta page it stands beside; 0 for no label."""
    redo: bytes | None
    """How to make the commit again, where that is whole."""


class Labels:
    """The labels of an open data file."""

    __slots__ = ("_fd", "_identity", "_page_size", "room")

    def __init__(self, fd: int, page_size: int) -> None:
        self._fd = fd
        self._page_size = page_size
        self._identity = os.fstat(fd).st_ino  # a copy's labels are none: whoever made it may have torn the older state
        self.room = room(page_size)

    def write(self, txn: int, redo: bytes | None) -> None:
        """Label the commit `txn`, which is about to be made."""
        head = _LABEL.pack(
            _MAGIC, self._identity, txn, NONE if redo is None else len(redo), zlib.crc32(redo or b"", txn)
        )
        self._put(txn, head + (redo or b""))

    def clear(self, txn: int) -> None:
        """Take the label of the commit `txn` away."""
        self._put(txn, bytes(_LABEL.size))

    def txn_at(self, txn: int) -> tuple[int, bool]:
        """Return whose label stands where that of `txn` would, 0 for nobody's, and whether it says it has a redo."""
        magic, identity, found, length, _ = _LABEL.unpack(os.pread(self._fd, _LABEL.size, self._at(txn)))
        return (found, length != NONE) if magic == _MAGIC and identity == self._identity else (0, False)

    def read(self, txn: int) -> Label:
        """Return the label that stands where that of `txn` would."""
        place = os.pread(self._fd, _LABEL.size + self.room, self._at(txn))
        magic, identity, found, length, checksum = _LABEL.unpack_from(place)
        if magic != _MAGIC or identity != self._identity:
            return Label(0, None)
        redo = place[_LABEL.size : _LABEL.size + length]
        whole = len(redo) == length and zlib.crc32(redo, found) == checksum
        return Label(found, redo if whole else None)

    def _at(self, txn: int) -> int:
        return (txn & 1) * self._page_size + LABEL_AT

    def _put(self, txn: int, content: bytes) -> None:
        if os.pwrite(self._fd, content, self._at(txn)) < len(content):
            raise OSError(5, "the disk took only a part of a page")


def roll_back(path: str) -> bytes | None:
    """Go back to the last state that is surely whole; return the redo of the commit after it, where there is one.

    Nobody may have the folder `path` open. Interrupted, it does the rest when it is called again.

    Raises:
        StorageError: there is no such state, or the file can't be written.
    """
    try:
        fd = os.open(os.path.join(path, "data.mdb"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{path}: no right to write there ({error.strerror}). The folder and its files must be writable."
        ) from error
    try:
        return _roll_back(path, fd)
    except OSError as error:
        raise StorageError(f"{path}: the disk failed while it was brought in order ({error.strerror}).") from error
    finally:
        os.close(fd)


def _roll_back(path: str, fd: int) -> bytes | None:
    first = data_file.meta(fd, 0)
    second = data_file.meta(fd, first.page_size) if first is not None else None
    if first is None or second is None:
        return None  # LMDB itself will say what that is
    labels = Labels(fd, first.page_size)
    older, newer = sorted((first, second), key=lambda meta: meta.txn)
    txn = older.txn + 1
    if newer.txn > older.txn:
        if labels.txn_at(newer.txn)[0] != newer.txn:
            return None
        if newer.txn != txn:
            raise StorageError(f"{path}: the file is damaged: its last but one commit is missing. Restore a backup.")
        os.pwrite(fd, older.content, (txn & 1) * first.page_size + data_file.META_AT)
        os.fsync(fd)
    label = labels.read(txn)
    return label.redo if label.txn == txn else None
