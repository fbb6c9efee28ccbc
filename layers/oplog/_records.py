"""Records of an operation log: what one transaction changed in a queue, and on whose behalf.

A record's bytes are one that says the format's version, and MessagePack. Values are kept as digests: a log tells which
item went where, and not what is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec

from fdbqueue import FormatError, Position
from fdbqueue.codecs import UNREADABLE
from fdbqueue.engine.api import KeyValue
from fdbqueue.engine.keys import Subspace
from fdbqueue.items import Notes, envelope_without_notes, notes_of
from fdbqueue.layout import Layout, Place

FORMAT_VERSION = 1
DIGEST_BYTES = 8
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))
STATES = ("available", "leased", "delayed", "dead")


class Change(NamedTuple):
    """One write to a queue's keys."""

    operation: str
    """"set", "clear", "clear_range", or the name of an atomic operation."""
    key: bytes
    """The key behind the queue's prefix; of a range its begin."""
    param: bytes = b""
    """Of "set" the stored value's digest; of "clear_range" the end, b"" for the queue's own; else the parameter."""
    notes: bytes = b""
    """Of an item, the library's notes on its life, as they are stored; of a request of staged calls, all of it."""
    content: bytes = b""
    """Of an item, the digest of what does not change in its life: headers and payload."""
    stamp_at: int = -1
    """Where in `key` the commit's versionstamp goes; -1: nowhere."""


class Moved(NamedTuple):
    """An item that was put into a place."""

    position: Position
    state: str
    """"available", "leased", "delayed" or "dead"."""
    token: bytes
    """Of its lease; b"" unless it is leased."""
    attempt: int
    """How often it was leased so far."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one transaction did to a queue."""

    stamp: bytes
    """The versionstamp of its commit, 10 bytes: records sort by it in commit order."""
    by: str
    """Who did it."""
    call: str
    """What was called, if that was said; of calls that share a transaction the one that led."""
    arguments: bytes
    """The digest of its arguments, if they were said."""
    began_at_us: int
    """When the transaction was begun, by the clock of whoever did it."""
    at_us: int
    """When it was sent to commit, by the same clock."""
    read_version: int
    """The version that it read; 0 if it read nothing, or that is not known."""
    call_version: int
    """The first version that the call read, in whichever of its transactions; 0 if unknown, or no call was named."""
    changes: tuple[Change, ...]
    """Its writes, in their order."""

    @property
    def version(self) -> int:
        """The version of its commit."""
        return int.from_bytes(self.stamp[:8], "big")

    def moves(self, layout: Layout) -> Iterator[Moved]:
        """Yield the items that it put into places, in the order of the writes."""
        for change in self.changes:
            found = place_of(layout, change.key) if change.operation == "set" else None
            if found is not None:
                notes = msgspec.msgpack.decode(change.notes, type=Notes) if change.notes else Notes()
                yield Moved(found[1], found[0], notes.token, notes.attempt)


class _Stored(msgspec.Struct, array_like=True, frozen=True, gc=False):
    by: str
    call: str
    arguments: bytes
    began_at_us: int
    at_us: int
    read_version: int
    call_version: int
    changes: list[Change]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Stored)


def digest(value: bytes) -> bytes:
    """Return what stands for a value in the log."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()


def content_of(stored: bytes) -> bytes:
    """Return the digest of what does not change in the life of an item: its envelope without the library's notes."""
    return digest(envelope_without_notes(stored))


def place_of(layout: Layout, key: bytes) -> tuple[str, Position] | None:
    """Return state and position in an item's key, given behind the queue's prefix; None if it is no item's."""
    whole = layout.prefix + key
    for state in STATES:
        place: Place = getattr(layout, state)
        if place.begin <= whole < place.end:
            return state, place.position(whole)
    return None


def notes_beside(layout: Layout, key: bytes, value: bytes) -> bytes:
    """Return what is noted of a key that is no item's: the value, if it is a request's."""
    return value if (layout.prefix + key).startswith(layout.requests.key()) else b""


def set_change(layout: Layout, key: bytes, value: bytes) -> Change:
    """Return what is logged when `value` is set under a key behind the queue's prefix."""
    if place_of(layout, key) is None:
        return Change("set", key, digest(value), notes_beside(layout, key, value))
    try:
        notes = msgspec.msgpack.encode(notes_of(value))
        return Change("set", key, digest(value), notes, content_of(value))
    except FormatError:
        return Change("set", key, digest(value))


def pack_record(
    by: str,
    call: str,
    arguments: bytes,
    times_us: tuple[int, int],
    versions: tuple[int, int],
    changes: list[Change],
) -> bytes:
    """Return a record's bytes."""
    return _FIRST_BYTE + _encode(_Stored(by, call, arguments, *times_us, *versions, changes))


def unpack_record(stamp: bytes, stored: bytes) -> Record:
    """Return the record in stored bytes.

    Raises:
        FormatError: they are none that this version of the library can read.
    """
    if stored[:1] != _FIRST_BYTE:
        raise FormatError(f"The log's record {stamp.hex()} is of another format than {FORMAT_VERSION}, or no record.")
    try:
        found = _decoder.decode(memoryview(stored)[1:])
    except UNREADABLE as error:
        raise FormatError(f"The log's record {stamp.hex()} can't be read: {error}.") from error
    changes = tuple(change if change.stamp_at < 0 else _stamped(change, stamp) for change in found.changes)
    return Record(
        stamp,
        found.by,
        found.call,
        found.arguments,
        found.began_at_us,
        found.at_us,
        found.read_version,
        found.call_version,
        changes,
    )


def joined(space: Subspace, rows: Iterable[KeyValue]) -> Iterator[Record]:
    """Yield the records in rows, of which a large record has several."""
    for stamp, group in groupby(rows, key=lambda row: space.unpack(row.key)[0].tr_version):
        yield unpack_record(stamp, b"".join(row.value for row in group))


def _stamped(change: Change, stamp: bytes) -> Change:
    at = change.stamp_at
    key = change.key[:at] + stamp + change.key[at + len(stamp) :]
    return change._replace(operation="set", key=key, stamp_at=-1)
