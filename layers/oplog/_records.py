"""Records of an operation log: the changes of one transaction to a queue, and the process that made them.

A record is one byte for the format's version, then MessagePack. Values are stored as digests: a log shows where each
item went, without its contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from fdbqueue import FormatError, Position
from fdbqueue.engine.keys import is_within
from fdbqueue.lowlevel import (
    NO_NOTES,
    STATES,
    UNREADABLE,
    KeyValue,
    Layout,
    Notes,
    Place,
    Shown,
    Subspace,
    fdb_tuple,
    notes_of,
    with_notes,
)
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.places import CLAIMED
from fdbqueue.stored.positions import is_packed
from fdbqueue.stored.shapes import Shape

FORMAT_VERSION = 1
DIGEST_BYTES = 8
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))
_KEY = Shape("versionstamp")
"""A record's key. Several rows of one record differ in the user version."""
_SESSION_ITEMS: bytes = fdb_tuple.pack(("items",))
_SESSION_STATES = ("delayed", "dead")
_SHOWN_NAMES = ("request", "session", "line", "lines", "gate", "group", "upload")
_SHOWN: tuple[bytes, ...] = tuple(fdb_tuple.pack((name,)) for name in _SHOWN_NAMES)
"""Begins of keys whose whole values a record keeps: they hold no contents of items."""


class Change(NamedTuple):
    """One write to a queue's keys."""

    operation: str
    """"set", "clear", "clear_range", or the name of an atomic operation."""
    key: bytes
    """The key behind the queue's prefix. For a range, its begin."""
    param: bytes = b""
    """For "set" the value's digest; for "clear_range" the end, b"" for the queue's end; else the parameter."""
    notes: bytes = b""
    """For an item, its stored notes. For a request, a session's record, a gate, a pointer in the line, a group or an
    upload, its whole value."""
    content: bytes = b""
    """For an item, the digest of its headers and payload, which never change."""
    stamp_at: int = -1
    """The offset of the commit's versionstamp in `key`; -1 if the key has none."""


class Moved(NamedTuple):
    """An item that a transaction wrote to a place: one of the states."""

    position: Position
    state: str
    """"available", "leased", "delayed", "dead" or "claimed"."""
    token: bytes
    """The token of its lease; b"" unless it is leased."""
    attempt: int
    """The number of its leases so far."""


@dataclass(frozen=True, slots=True, repr=False)
class Record(Shown):
    """The changes of one transaction to a queue."""

    stamp: bytes
    """The versionstamp of its commit, 10 bytes. Records sort by it in commit order."""
    by: str
    """The name that was given to `OperationLog.of`."""
    call: str
    """The call's name, if given. If calls share a transaction, the name of the leading call."""
    arguments: bytes
    """The digest of its arguments, if given."""
    began_at_us: int
    """When the transaction began, by the clock of its process, in microseconds."""
    at_us: int
    """When it was sent to commit, by the same clock, in microseconds."""
    read_version: int
    """Its read version; 0 if it read nothing, or if the version is unknown."""
    call_version: int
    """The first read version of all the call's transactions; 0 if unknown, or if the call has no name."""
    changes: tuple[Change, ...]
    """Its writes, in order."""

    @property
    def version(self) -> int:
        """Return the version of its commit."""
        return int.from_bytes(self.stamp[:8], "big")

    def moves(self, layout: Layout) -> Iterator[Moved]:
        """Yield the items that it wrote to places, in the order of the writes."""
        for change in self.changes:
            found = place_of(layout, change.key) if change.operation == "set" else None
            if found is not None:
                notes = _decode_notes(change.notes) if change.notes else Notes()
                yield Moved(found[1], found[0], notes.token, notes.attempt)


class _StoredRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    by: str
    call: str
    arguments: bytes
    began_at_us: int
    at_us: int
    read_version: int
    call_version: int
    changes: list[Change]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_StoredRecord)
_decode_notes = msgspec.msgpack.Decoder(Notes).decode


def digest(value: bytes) -> bytes:
    """Return the digest of a value."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()


def content_of(stored: bytes) -> bytes:
    """Return the digest of an item's constant part: its envelope without the notes."""
    return digest(with_notes(stored, NO_NOTES))


def place_of(layout: Layout, key: bytes) -> tuple[str, Position] | None:
    """Return the state and position in an item's key, without the queue's prefix. None for other keys."""
    whole = layout.prefix + key
    for state in STATES:
        place: Place = getattr(layout, state)
        if place.begin <= whole < place.end:
            return state, place.position(whole)
    if is_within(whole, layout.claims.key()):
        claim = layout.claim_of(whole)
        return None if claim is None else (CLAIMED, claim[2])
    return None


def notes_beside(key: bytes, value: bytes) -> bytes:
    """Return the `notes` for a key that is not an item's: its whole value if that is shown, or b""."""
    return value if any(is_within(key, prefix) for prefix in _SHOWN) else b""


def session_place_of(key: bytes) -> tuple[bytes, int, str, Position] | None:
    """Return where a key, without the queue's prefix, puts an item of a session. None for other keys.

    Returns the session's packed name, its generation, the state, and the item's position.
    """
    if not is_within(key, _SESSION_ITEMS):
        return None
    parts = FAMILIES["items"].parts(key[len(_SESSION_ITEMS) :])
    if parts is None:
        return None
    name, generation, behind = parts
    state = next((state for state in _SESSION_STATES if is_within(behind, FAMILIES[state].packed)), "available")
    packed = behind if state == "available" else behind[len(FAMILIES[state].packed) :]
    if not is_packed(packed):
        return None
    position = Place(b"").position(packed)
    return None if position.rank is None else (fdb_tuple.pack((name,)), generation, state, position)


def set_change(layout: Layout, key: bytes, value: bytes) -> Change:
    """Return the change for a set of `key`, without the queue's prefix, to `value`."""
    if place_of(layout, key) is None and session_place_of(key) is None:
        return Change("set", key, digest(value), notes_beside(key, value))
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
    return _FIRST_BYTE + _encode(_StoredRecord(by, call, arguments, *times_us, *versions, changes))


def unpack_record(stamp: bytes, stored: bytes) -> Record:
    """Return the record in stored bytes.

    Raises:
        FormatError: this version of the library can't read them.
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
    """Yield the records in rows. A large record has several rows."""
    for stamp, group in groupby(_stamps_of(space, rows), key=itemgetter(0)):
        yield unpack_record(stamp, b"".join(value for _, value in group))


def _stamps_of(space: Subspace, rows: Iterable[KeyValue]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the stamps and values of rows, without foreign keys."""
    prefix = len(space.key())
    for row in rows:
        if (parts := _KEY.parts(row.key[prefix:])) is not None:
            yield parts[0].tr_version, row.value


def _stamped(change: Change, stamp: bytes) -> Change:
    at = change.stamp_at
    key = change.key[:at] + stamp + change.key[at + len(stamp) :]
    return change._replace(operation="set", key=key, stamp_at=-1)
