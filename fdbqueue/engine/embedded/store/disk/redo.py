"""The redo: data beside a commit's meta page to repeat the commit, so that one wait for the disk is enough.

LMDB makes a commit durable with two waits: for its pages, then for the meta page that makes them the database. With one
wait for both, a power cut may leave the meta page on the disk without all of the pages. LMDB does not use the rest of
the meta page, so that part takes a *label*, written right before the commit. The label holds the commit's number and,
if they fit, its writes: the *redo*. The label begins in the meta page's own sector, so the disk writes both or neither.

After a power cut, do not trust the newer meta page if it has a label with its own number. The older one is complete. No
page of a commit is written before the previous commit is on the disk. LMDB never overwrites pages of the last two
states. `roll_back` makes the older state the database again, and the commit is repeated from the redo. If there is no
complete redo, no caller was told that the commit succeeded.

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
from fdbqueue.engine.embedded.store.commit.stacks import Mutation
from fdbqueue.engine.embedded.store.disk import data_file, folder
from fdbqueue.engine.errors import StorageError

LABEL_AT: Final = 256
NONE: Final = 0xFFFFFFFF
"""The length that means that there is no redo."""
MOST_MUTATIONS: Final = 256
"""Maximum number of mutations in a redo: more would hardly ever fit."""

_LABEL: Final = struct.Struct("<8sQQII")
_MAGIC: Final = b"fdbqredo"
NUMBER_AT: Final = LABEL_AT + 16
"""Offset of the number of the commit that a label belongs to."""
_encode: Final = msgspec.msgpack.Encoder().encode


class Redo(msgspec.Struct, array_like=True, frozen=True):
    """A commit of one or more requests, in the form that repeats it."""

    version: bytes
    time_us: int
    """The time of the commit. No conflict check needs its write set: no transaction outlives a roll-back."""
    requests: list[list[tuple[int, bytes, bytes]]]
    """The mutations of each request."""


_decode: Final = msgspec.msgpack.Decoder(Redo).decode


def encode(version: bytes, time_us: int, requests: Sequence[CommitRequest], room: int) -> bytes | None:
    """Return the redo of a commit; None if it has more than `room` bytes or too many mutations."""
    mutations: list[list[Mutation]] = []
    size = 0
    for request in requests:
        size += request.size()
        if size > MOST_MUTATIONS:
            return None
        mutations.append(request.all_mutations())
    redo = _encode((version, time_us, mutations))
    return redo if len(redo) <= room else None


def decode(redo: bytes) -> Redo:
    """Return the commit that `encode` was given."""
    return _decode(redo)


def room(page_size: int) -> int:
    """Return the maximum size of a redo in bytes."""
    return page_size - LABEL_AT - _LABEL.size


@dataclass(frozen=True, slots=True)
class Label:
    """The label beside a meta page."""

    txn: int
    """The number of the commit that it belongs to, whichever meta page it is beside; 0 if there is no label."""
    redo: bytes | None
    """The redo of the commit; None if there is no complete one."""


class Labels:
    """The labels of an open data file."""

    __slots__ = ("_fd", "_identity", "_page_size", "room")

    def __init__(self, fd: int, page_size: int) -> None:
        self._fd = fd
        self._page_size = page_size
        self._identity = os.fstat(fd).st_ino  # ignore labels in a copied file: its older state may be torn
        self.room = room(page_size)

    def write(self, txn: int, redo: bytes | None) -> None:
        """Label the commit `txn`, which is about to be made."""
        head = _LABEL.pack(
            _MAGIC, self._identity, txn, NONE if redo is None else len(redo), zlib.crc32(redo or b"", txn)
        )
        self._put(txn, head + (redo or b""))

    def clear(self, txn: int) -> None:
        """Remove the label of the commit `txn`."""
        self._put(txn, bytes(_LABEL.size))

    def txn_at(self, txn: int) -> tuple[int, bool]:
        """Return the number of the commit whose label is in the place of `txn`'s, and whether it claims to have a redo.

        The number is 0 if there is no label.
        """
        magic, identity, found, length, _ = _LABEL.unpack(os.pread(self._fd, _LABEL.size, self._at(txn)))
        return (found, length != NONE) if magic == _MAGIC and identity == self._identity else (0, False)

    def read(self, txn: int) -> Label:
        """Return the label that is in the place of `txn`'s."""
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


def labelled(path: str) -> bool:
    """Return whether the data file of the folder `path` has a label: then it is ours, and may need `roll_back`."""
    try:
        with os.fdopen(folder.open_file(path, folder.DATA, create=False, write=False), "rb", 0) as file:
            first = data_file.meta(file.fileno(), 0)
            if first is None or os.fstat(file.fileno()).st_size < 2 * first.page_size:
                return False
            labels = Labels(file.fileno(), first.page_size)
            return any(labels.txn_at(txn)[0] for txn in (0, 1))
    except OSError:
        return False  # `data_file.check` will report it


def roll_back(path: str) -> bytes | None:
    """Go back to the last state that is certainly complete; return the redo of the commit after it, or None.

    No process may have the folder `path` open. After an interrupt, the next call finishes the work.

    Raises:
        StorageError: there is no complete state, or the file can't be written.
    """
    try:
        fd = folder.open_file(path, folder.DATA, create=False)
    except FileNotFoundError:
        return None
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
        return None  # LMDB itself will report what the file is
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
