"""Items and their stored envelopes.

An envelope is one byte and then the payload. The high half of the byte is the format version, and the low half lists
the parts that follow. A plain item costs its payload and one byte (docs/adr/0006)::

    0x10 payload                                          a plain item
    0x11 length(4, big-endian) msgpack-map payload        1: with the user's headers
    0x12 size(4, big-endian) crc32(4, big-endian)         2: the payload is in chunks
    0x14 length(2, big-endian) msgpack-map payload        4: with the library's notes on the item's life
    0x28 kind(1) size(8) crc32(4) id(16) payload          8: with a blob, in format version 2

The low halves add up, and the parts follow in the order notes, headers, blob, chunks or payload. The notes come first,
so that they can be replaced without parsing the rest (docs/adr/0030). Only the envelope of an item with a blob has
format version 2, so that older versions of the library refuse it and read all others.

>>> from fdbqueue.stored.items import Notes, envelope, notes_of, parse, with_notes
>>> parse(envelope(b"hello", {"n": 1})).payload
b'hello'
>>> notes_of(with_notes(envelope(b"hello"), Notes(attempt=2))).attempt
2
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, NamedTuple, NoReturn, TypeAlias, cast

import msgspec

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown, cut
from fdbqueue.base.times import LONGEST_SECONDS
from fdbqueue.base.typed import filled_by_slots
from fdbqueue.errors import CodecError, FormatError, ItemTooLarge
from fdbqueue.stored.codecs import UNREADABLE, V
from fdbqueue.stored.layout import MAX_PREFIX_BYTES
from fdbqueue.stored.positions import is_packed

FORMAT_VERSION = 1
BLOB_FORMAT_VERSION: Final = 2
"""The format version of an envelope with a blob; the newest that this library reads."""
MANY_ATTEMPTS = 3
"""An item that is at this attempt, or a later one, is worth a look. The list of troubles names it."""
INLINE_BYTES = 90_000
"""A payload up to this size is stored in the item's own value; FoundationDB limits a value to 100,000 bytes."""
CHUNK_BYTES = 90_000
MAX_ITEM_BYTES = 8_000_000
"""The largest payload. One transaction of at most 10,000,000 bytes must be able to write and read it."""
MAX_HEADER_BYTES = 8_000

MAX_NOTES_BYTES = 1_900
"""An inline payload, its headers and notes together stay under the database's 100,000 bytes for a value."""
ERROR_BYTES = 1_200
"""The number of bytes of an error's text that are stored."""
MAX_BLOB_BYTES = 2**31

# What stored numbers may be. Another program may have written others, and arithmetic with those leaves the range of a
# key or of an atomic add. So they are refused when they are read.
Micros: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
"""A stored time in microseconds. It is later than `HELD_US` for a held item, and a lease from then on still fits."""
Seconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=int(LONGEST_SECONDS))]
"""A stored duration in seconds."""
Attempts: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
"""A stored number of attempts."""
FollowUps: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Stored follow-ups: the prefix of each one's queue, and its packed position there. `check_follow_ups` checks them."""

_TEXT = b"\x02"  # type code of a text in a tuple
_HEADERS = 1
_CHUNKED = 2
_NOTES = 4
_BLOB = 8
_BLOB_PART = struct.Struct(">?QI16s")
BLOB_ID_BYTES = 16
_FIRST_BYTES = frozenset((BLOB_FORMAT_VERSION if flags & _BLOB else FORMAT_VERSION) << 4 | flags for flags in range(16))
"""The bytes that an envelope may begin with."""
PLAIN = bytes((FORMAT_VERSION << 4,))
"""The byte before the payload in the envelope of a plain item."""
_headers_encoder = msgspec.msgpack.Encoder()
_headers_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class Headers(dict[str, Any]):
    """An item's headers: an immutable dict, so that items can share it. It can be pickled and copied.

    >>> Headers(color="red")["color"]
    'red'
    """

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("An item's headers can't be changed; dict(item.headers) is a copy that can be.")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return Headers, (dict(self),)


_NO_HEADERS = Headers()


@filled_by_slots
@dataclass(frozen=True, slots=True, repr=False)
class Item(Shown, Generic[V]):
    """An item that was taken from a queue, or browsed."""

    position: Position
    """Its identity, and its place in the queue."""
    value: V
    """The value, decoded by the queue's codec."""
    headers: Mapping[str, Any] = field(default_factory=lambda: _NO_HEADERS)
    """The headers that were enqueued with the value."""


class Notes(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The library's notes on an item's life, apart from the user's headers. A field that was never set takes no
    room."""

    attempt: Attempts = msgspec.field(default=0, name="a")
    """How many times it was leased so far, including the present lease. Snoozed leases do not count."""
    token: bytes = msgspec.field(default=b"", name="t")
    """The token of the present lease."""
    expires_at_us: Micros = msgspec.field(default=0, name="e")
    """When the present lease ends."""
    consumer: str = msgspec.field(default="", name="c")
    """The consumer that has, or last had, a lease of it."""
    visible_at_us: Micros = msgspec.field(default=0, name="v")
    """The time until which it is delayed."""
    enqueued_at_us: Micros = msgspec.field(default=0, name="q")
    ttl_at_us: Micros = msgspec.field(default=0, name="x")
    """When its time to live ends; 0: never."""
    subscription: str = msgspec.field(default="", name="s")
    """The subscription that its present lease belongs to."""
    error: str = msgspec.field(default="", name="m")
    """Why the last attempt failed."""
    died_at_us: Micros = msgspec.field(default=0, name="d")
    """When it became a dead letter."""
    beside: tuple[bytes, ...] = msgspec.field(default=(), name="b")
    """Its dependent keys, which are removed together with the item. Each entry is the part of such a key between the
    queue's prefix and the item's packed position (`Layout.dependent_keys`)."""
    keep_s: Seconds = msgspec.field(default=0, name="k")
    """How many seconds its outcome is kept for its completion; 0: it has no completion (`ends.py`)."""
    then: FollowUps = msgspec.field(default=(), name="n")
    """Its follow-ups: the prefix of each one's queue, and its packed position there (`ends.py`)."""
    held: bool = msgspec.field(default=False, name="h")
    """Whether it is a follow-up that still waits for another item or group."""
    group: str = msgspec.field(default="", name="g")
    """The group that it is a member of (`ends.py`)."""

    @property
    def is_tracked(self) -> bool:
        """Return whether somebody must learn of its end."""
        return bool(self.keep_s or self.then or self.group)

    @property
    def size_beside(self) -> int:
        """Return the size of what they list: dependent keys, follow-ups and the group."""
        listed = sum(len(prefix) + len(packed) for prefix, packed in self.then)
        return sum(map(len, self.beside)) + listed + len(self.group)

    def at_rest(self, **changes: object) -> Notes:
        """Return those of the item without a lease, with changes."""
        return msgspec.structs.replace(self, **{**_AT_REST, **changes})

    def as_new(self) -> Notes:
        """Return those of a dead letter that comes back: no attempts are counted, and its group counts it as dead."""
        return self.at_rest(attempt=0, ttl_at_us=0, group="")

    def cut_error(self, error: str, most: int = ERROR_BYTES) -> str:
        """Return the part of an error's text that fits into them, beside all that they list."""
        return cut(error, max(0, most - self.size_beside))


_AT_REST: dict[str, Any] = {"token": b"", "subscription": "", "held": False}
_AT_REST |= dict.fromkeys(("expires_at_us", "visible_at_us", "died_at_us"), 0)


NO_NOTES = Notes()
_notes_encoder = msgspec.msgpack.Encoder()
_notes_decoder = msgspec.msgpack.Decoder(Notes)
_any_fields_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_NOTES_FIELDS = frozenset(Notes.__struct_encode_fields__)


class Chunked(NamedTuple):
    """A payload that is stored in chunks."""

    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, repr=False)
class Blob(Shown):
    """Data of an item that are stored beside it, in pieces; `fdbqueue.layers.blobs` writes and reads them."""

    id: bytes
    """Names the keys of its pieces."""
    size_bytes: int
    crc32: int
    is_value: bool
    """Whether the data are the item's value, which is then this object. Otherwise the item has its own value."""


class Envelope(NamedTuple):
    """A parsed stored value."""

    payload: bytes
    """The payload, b"" if it is chunked."""
    headers: Mapping[str, Any]
    chunked: Chunked | None
    notes: Notes = NO_NOTES
    blob: Blob | None = None


NO_PARTS = Envelope(b"", _NO_HEADERS, None)
"""That of a plain item, without its payload."""


def envelope(payload: bytes, headers: Mapping[str, object] | None = None) -> bytes:
    """Return the stored value of an item. A payload over `INLINE_BYTES` is chunked, a smaller one is inline.

    Raises:
        ItemTooLarge: the payload is over `MAX_ITEM_BYTES`, or the headers are over `MAX_HEADER_BYTES`.
        CodecError: the headers are not a mapping from str to values that MessagePack can hold.
    """
    if headers is None and len(payload) <= INLINE_BYTES:
        return PLAIN + payload
    flags = 0
    parts = []
    if headers is not None and (packed := _pack_headers(headers)):
        flags |= _HEADERS
        parts.append(struct.pack(">I", len(packed)) + packed)
    if len(payload) <= INLINE_BYTES:
        parts.append(payload)
    elif len(payload) <= MAX_ITEM_BYTES:
        flags |= _CHUNKED
        parts.append(struct.pack(">II", len(payload), zlib.crc32(payload)))
    else:
        raise ItemTooLarge(
            f"An encoded item of {len(payload):,} bytes is over the limit of {MAX_ITEM_BYTES:,}. Store the payload"
            " elsewhere, in pieces under keys of your own or in a file, and enqueue where it is."
        )
    return bytes((FORMAT_VERSION << 4 | flags,)) + b"".join(parts)


def chunks_of(payload: bytes) -> list[bytes]:
    """Cut a payload over `INLINE_BYTES` into its chunks; an inline one has none."""
    if len(payload) <= INLINE_BYTES:
        return []
    return [payload[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES)]


def parse(value: bytes) -> Envelope:
    """Parse a stored value.

    Raises:
        FormatError: it is not an envelope that this version of the library can read.
    """
    if value[:1] == PLAIN:
        return Envelope(value[1:], _NO_HEADERS, None)
    notes, at = _split_notes(value)
    try:
        return _parse_parts(value, at, notes)
    except (struct.error, *UNREADABLE) as error:
        raise FormatError(f"It is damaged: {error}.") from error


def notes_of(value: bytes) -> Notes:
    """Return the notes in a stored value without parsing the rest.

    Raises:
        FormatError: it is not an envelope that this version of the library can read.
    """
    return NO_NOTES if value[:1] == PLAIN else _split_notes(value)[0]


def notes_if_readable(value: bytes) -> Notes:
    """Return the notes of an item; those of a plain item if a newer version wrote them."""
    try:
        return notes_of(value)
    except FormatError:
        return NO_NOTES  # opening the item raises the error


def salvaged_notes(value: bytes) -> tuple[Notes, bool]:
    """Return the notes in a stored value, and whether they could be read. Otherwise return what is left of them.

    For calls that remove an item that can't be read: its notes name the keys that go with it.
    """
    try:
        return notes_of(value), True
    except FormatError:
        pass
    if len(value) > 2 and value[0] & _NOTES:
        try:
            fields = _any_fields_decoder.decode(value[3 : 3 + int.from_bytes(value[1:3], "big")])
        except UNREADABLE:
            return NO_NOTES, False
        return msgspec.convert(dict(filter(_is_good_field, fields.items())), Notes), False
    return NO_NOTES, False


def _is_good_field(field: tuple[str, object]) -> bool:
    """Return whether this version knows a field of notes, and its value is in range."""
    name, value = field
    if name not in _NOTES_FIELDS:
        return False
    try:
        _check_notes(msgspec.convert({name: value}, Notes))
    except (msgspec.ValidationError, FormatError):
        return False
    return True


def headers_of(value: bytes) -> Mapping[str, Any]:
    """Return the headers in a stored value without parsing the rest.

    Raises:
        FormatError: it is not an envelope that this version of the library can read.
    """
    if value[:1] == PLAIN:
        return _NO_HEADERS
    _check_first_byte(value)
    if not value[0] & _HEADERS:
        return _NO_HEADERS
    at = _after_notes(value)
    size = int.from_bytes(value[at : at + 4], "big")
    try:
        headers: dict[str, Any] = _headers_decoder.decode(value[at + 4 : at + 4 + size])
    except UNREADABLE as error:
        raise FormatError(f"Its headers are damaged: {error}.") from error
    return headers


def with_notes(value: bytes, notes: Notes) -> bytes:
    """Return a stored value with other notes; `NO_NOTES`: the part that does not change in the item's life.

    Its own notes are not read: the caller has read them.

    Raises:
        FormatError: it is not an envelope that this version of the library can read.
        ItemTooLarge: the notes are over `MAX_NOTES_BYTES`.
    """
    packed = _notes_encoder.encode(notes)
    if len(packed) == 1:  # only defaults
        _, at = _split_notes(value)
        return bytes((value[0] & ~_NOTES,)) + value[at:]
    at = _notes_end(value)
    if len(packed) > MAX_NOTES_BYTES:
        raise ItemTooLarge(f"Notes of {len(packed):,} bytes are over the limit of {MAX_NOTES_BYTES:,}.")
    return b"%c%b%b%b" % (value[0] | _NOTES, len(packed).to_bytes(2, "big"), packed, value[at:])


def with_headers(value: bytes, headers: Mapping[str, object]) -> bytes:
    """Return a stored value with other headers.

    Raises:
        FormatError: as `notes_of`. CodecError, ItemTooLarge: as `envelope`.
    """
    _split_notes(value)
    start, end = _after_notes(value), _after_headers(value)
    packed = _pack_headers(headers)
    part = struct.pack(">I", len(packed)) + packed if packed else b""
    first = bytes((value[0] & ~_HEADERS | (_HEADERS if packed else 0),))
    return b"%b%b%b%b" % (first, value[1:start], part, value[end:])


def with_blob(value: bytes, blob: Blob) -> bytes:
    """Return a stored value, which has no blob, with one.

    Raises:
        FormatError: as `notes_of`.
    """
    _check_first_byte(value)
    at = _after_headers(value)
    first = bytes((BLOB_FORMAT_VERSION << 4 | value[0] & 0x0F | _BLOB,))
    part = _BLOB_PART.pack(blob.is_value, blob.size_bytes, blob.crc32, blob.id)
    return b"%b%b%b%b" % (first, value[1:at], part, value[at:])


def blob_of(value: bytes) -> Blob | None:
    """Return the blob of a stored value without parsing the rest; None if it has none.

    Raises:
        FormatError: as `notes_of`.
    """
    if value[:1] == PLAIN:
        return None
    _check_first_byte(value)
    return _read_blob(value, _after_headers(value)) if value[0] & _BLOB else None


def has_parts(value: bytes) -> bool:
    """Return whether some of the item's data are under other keys: chunks of its payload, or a blob."""
    return bool(value[:1] and value[0] & (_CHUNKED | _BLOB))


def has_notes(value: bytes) -> bool:
    """Return whether a stored value has notes."""
    return bool(value[:1] and value[0] & _NOTES)


def is_chunked(value: bytes) -> bool:
    """Return whether the payload of a stored value is in chunks."""
    return bool(value[:1] and value[0] & _CHUNKED)


def size_of(value: bytes) -> int:
    """Return the approximate size of the payload of a stored value in bytes, chunks included."""
    if is_chunked(value):
        size_bytes: int = struct.unpack_from(">I", value, len(value) - 8)[0] if len(value) > 8 else 0
        return size_bytes
    return len(value)


def kept_size_of(value: bytes) -> int:
    """Return the same as `size_of` without notes and blob. The number is the same in every state of the item."""
    if is_chunked(value):
        return size_of(value)
    size_bytes = len(value)
    if has_notes(value):
        size_bytes -= 2 + int.from_bytes(value[1:3], "big")
    return size_bytes - _BLOB_PART.size if value[:1] and value[0] & _BLOB else size_bytes


def chunked_of(value: bytes) -> Chunked:
    """Return what a stored value, whose payload is in chunks, says of them.

    Raises:
        FormatError: it is not an envelope that this version of the library can read.
    """
    chunked = parse(value).chunked
    if chunked is None:
        raise FormatError("Its payload is not in chunks.")
    return chunked


def join_chunks(chunked: Chunked, chunks: list[bytes]) -> bytes:
    """Join the chunks of a payload.

    Raises:
        FormatError: a chunk is missing or was changed.
    """
    payload = b"".join(chunks)
    if len(payload) != chunked.size_bytes or zlib.crc32(payload) != chunked.crc32:
        raise FormatError(
            f"Its {chunked.size_bytes:,} bytes in chunks are damaged: {len(chunks)} chunks with"
            f" {len(payload):,} bytes were found."
        )
    return payload


def check_headers(headers: Mapping[str, object] | None) -> None:
    """Refuse headers that are neither None nor a mapping whose keys are str.

    Raises:
        CodecError: they are something else, such as an empty text.
    """
    if headers is None:
        return
    a_mapping = type(headers) is dict or isinstance(cast(object, headers), Mapping)
    if not a_mapping or not all(isinstance(name, str) for name in headers):
        raise CodecError(f"Headers are a mapping whose keys are str, not {headers!r}.")


def with_header(headers: Mapping[str, object] | None, name: str, value: object) -> Mapping[str, Any]:
    """Return headers with one more.

    Raises:
        CodecError: they are neither None nor a mapping whose keys are str.
    """
    check_headers(headers)
    return {**(headers or {}), name: value}


def _pack_headers(headers: Mapping[str, object]) -> bytes:
    """Return headers as they are stored, b"" if there are none."""
    check_headers(headers)
    if not headers:
        return b""
    try:
        packed = _headers_encoder.encode(dict(headers))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"Headers must be what MessagePack can hold: {error}.") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise ItemTooLarge(f"Headers of {len(packed):,} bytes are over the limit of {MAX_HEADER_BYTES:,}.")
    return packed


def _split_notes(value: bytes) -> tuple[Notes, int]:
    """Return the notes, and the offset of the part that follows them."""
    at = _notes_end(value)
    if at == 1:
        return NO_NOTES, 1
    try:
        notes = _notes_decoder.decode(value[3:at])
    except UNREADABLE as error:
        raise FormatError(f"Its notes are damaged, or of a newer version of fdbqueue: {error}.") from error
    if notes.then or notes.beside:
        _check_notes(notes)
    return notes, at


def _check_notes(notes: Notes) -> None:
    """Refuse notes whose keys are none of a queue.

    Raises:
        FormatError: a follow-up or a dependent key is no key that the library writes.
    """
    check_follow_ups(notes.then, "Its notes are damaged")
    for part in notes.beside:
        if part[:1] != _TEXT:  # its family's name
            raise FormatError(f"Its notes are damaged: {part!r} begins no dependent key.")


def check_follow_ups(then: FollowUps, what: str) -> None:
    """Refuse stored follow-ups that no queue can have.

    Raises:
        FormatError: a prefix is empty, too long or behind all keys of a program, or a position is none.
    """
    for prefix, packed in then:
        if not prefix or prefix[:1] == b"\xff" or len(prefix) > MAX_PREFIX_BYTES or not is_packed(packed):
            raise FormatError(f"{what}: no queue has a follow-up at {prefix + packed!r}.")


def _notes_end(value: bytes) -> int:
    """Return the offset of the part that follows the notes, without reading them; 1 if there are none."""
    first = value[0] if value else 0
    if first not in _FIRST_BYTES:
        _check_first_byte(value)
    if not first & _NOTES:
        return 1
    at = 3 + int.from_bytes(value[1:3], "big")
    if at > len(value):
        raise FormatError("It is damaged: its notes are cut off.")
    if at > MAX_NOTES_BYTES + 3:
        raise FormatError(f"It is damaged: notes of {at - 3:,} bytes are over the limit of {MAX_NOTES_BYTES:,}.")
    return at


def _check_first_byte(value: bytes) -> None:
    if not value:
        raise FormatError("The stored value is empty, which no envelope is.")
    version, flags = value[0] >> 4, value[0] & 0x0F
    if version > (BLOB_FORMAT_VERSION if flags & _BLOB else FORMAT_VERSION):
        raise FormatError(
            f"It was written in format {version} by a newer version of fdbqueue; this one reads formats up to"
            f" {BLOB_FORMAT_VERSION}. Update fdbqueue here.",
            newer=True,
        )
    if version < 1 or (flags & _BLOB and version < BLOB_FORMAT_VERSION):
        raise FormatError(f"Its first byte, {value[0]:#04x}, is not that of an envelope: fdbqueue did not write it.")


def _parse_parts(value: bytes, at: int, notes: Notes) -> Envelope:
    headers = _NO_HEADERS
    if value[0] & _HEADERS:
        (size,) = struct.unpack_from(">I", value, at)
        at += 4 + size
        if at > len(value):
            raise FormatError("It is damaged: its headers are cut off.")
        headers = Headers(_headers_decoder.decode(value[at - size : at]))
    blob = None
    if value[0] & _BLOB:
        blob = _read_blob(value, at)
        at += _BLOB_PART.size
    if value[0] & _CHUNKED:
        chunked = Chunked(*struct.unpack_from(">II", value, at))
        if at + 8 != len(value):
            raise FormatError("It is damaged: there are extra bytes at its end.")
        if not INLINE_BYTES < chunked.size_bytes <= MAX_ITEM_BYTES:
            raise FormatError(f"It is damaged: no payload of {chunked.size_bytes:,} bytes is in chunks.")
        return Envelope(b"", headers, chunked, notes, blob)
    return Envelope(value[at:], headers, None, notes, blob)


def _after_notes(value: bytes) -> int:
    return 3 + int.from_bytes(value[1:3], "big") if value[0] & _NOTES else 1


def _after_headers(value: bytes) -> int:
    at = _after_notes(value)
    return at + 4 + int.from_bytes(value[at : at + 4], "big") if value[0] & _HEADERS else at


def _read_blob(value: bytes, at: int) -> Blob:
    try:
        is_value, size_bytes, crc32, id = _BLOB_PART.unpack_from(value, at)
    except struct.error as error:
        raise FormatError("It is damaged: its blob's description is cut off.") from error
    if size_bytes > MAX_BLOB_BYTES:
        raise FormatError(f"It is damaged: a blob of {size_bytes:,} bytes is over the limit of {MAX_BLOB_BYTES:,}.")
    return Blob(id, size_bytes, crc32, is_value)
