"""An item as a line of a file.

A line is a JSON object. Its payload is exact under one of three names: ``value``, JSON as it is stored; ``text``; or
``base64``. Headers are ``headers`` if JSON gives them back as they are; otherwise ``headers_base64``, in MessagePack.
Times are microseconds since 1970. The first line describes the queue. The last line has the number of the items and
their digest::

    {"fdbqueue":1,"queue":"'orders'","codec":"json","order":null,"last_index":7}
    {"position":"7:72616e646f6d","state":"available","value":{"sku":7}}
    {"items":1,"digest":"6d7…"}
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from fdbqueue.arrow.stored import Page, whole
from fdbqueue.base.position import Position
from fdbqueue.errors import FormatError, TransferError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.items import MAX_HEADER_BYTES, MAX_ITEM_BYTES, Notes, blob_of, envelope, headers_of, notes_of
from fdbqueue.stored.items import with_notes as with_notes_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.states import ALL_STATES
from fdbqueue.transfer.marks import marks_of, refusal, unreadable

FORMAT = 1
DIGEST_BYTES = 16
_to_json = msgspec.json.encode
_to_msgpack = msgspec.msgpack.encode


class FileHeader(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a file."""

    fdbqueue: int
    """The format."""
    queue: str
    codec: str
    order: str | None
    """The name of the queue's order."""
    last_index: int
    """The highest index that the queue had given."""
    where: str = ""
    """The condition that its items fit; "": the file has all items."""


class Footer(msgspec.Struct, forbid_unknown_fields=True):
    """The last line of a file."""

    items: int
    digest: str


decode_header = msgspec.json.Decoder(FileHeader).decode
decode_footer = msgspec.json.Decoder(Footer).decode


class FileRecord(msgspec.Struct, frozen=True, gc=False):
    """An item in a file."""

    position: str
    state: str
    payload: bytes
    headers: bytes = b""
    """Its headers in MessagePack; b"" without any."""
    attempts: int = 0
    enqueued_at_us: int = 0
    visible_at_us: int = 0
    ttl_at_us: int = 0
    died_at_us: int = 0
    consumer: str = ""
    error: str = ""
    marks: tuple[str, ...] = ()

    def notes(self) -> Notes:
        """Return the notes that an item with this record has when it rests."""
        return Notes(
            attempt=self.attempts,
            enqueued_at_us=self.enqueued_at_us,
            visible_at_us=self.visible_at_us if self.state == "delayed" else 0,
            ttl_at_us=self.ttl_at_us,
            died_at_us=self.died_at_us if self.state == "dead" else 0,
            consumer=self.consumer,
            error=self.error,
        )

    def stored(self) -> bytes:
        """Return the item's envelope."""
        headers = msgspec.msgpack.decode(self.headers) if self.headers else None
        return with_notes_of(envelope(self.payload, headers), self.notes())

    def digest(self) -> int:
        """Return the digest of the record."""
        return int.from_bytes(blake2b(_to_msgpack(self), digest_size=DIGEST_BYTES).digest())


class Digest:
    """The number of records and a digest of them all, which does not depend on their order."""

    __slots__ = ("items", "total")

    def __init__(self, items: int = 0, total: int = 0) -> None:
        self.items = items
        self.total = total

    def add(self, digest: int) -> None:
        """Add an item by its own digest."""
        self.items += 1
        self.total = (self.total + digest) % (1 << 8 * DIGEST_BYTES)

    @property
    def hex(self) -> str:
        """The digest as text."""
        return self.total.to_bytes(DIGEST_BYTES).hex()


def records_of(
    page: Page,
    layout: Layout,
    wanted: Callable[[bytes, bytes], bool] | None = None,
    skipped: list[Position] | None = None,
) -> list[FileRecord]:
    """Return the records of a page of items.

    Args:
        wanted: a test of a key and a value; None: all items are wanted.
        skipped: gets the positions of items that can't be read; None: such an item is an error.

    Raises:
        TransferError: an item has a blob.
        FormatError: an item can't be read; the message names it.
    """
    records = []
    for at in range(len(page)):
        packed = page.packed(at)
        try:
            _, payload = whole(page.values[at], page.payloads.get(at))
            if wanted is None or wanted(layout.available.key(packed), page.values[at]):
                records.append(_record(page, at, layout, payload))
        except FormatError as error:
            if skipped is None:
                remedy = "Leave it out: on_bad='skip'. `Queue.cancel` removes it."
                raise unreadable(layout, packed, error, remedy) from error
            skipped.append(layout.position_of(layout.prefix + packed))
    return records


def _record(page: Page, at: int, layout: Layout, payload: bytes) -> FileRecord:
    value = page.values[at]
    position = layout.position_of(layout.prefix + page.packed(at)).text
    notes = notes_of(value)
    if blob_of(value) is not None:
        raise refusal("an export", position, layout, ("blob",))
    headers = headers_of(value)
    return FileRecord(
        position=position,
        state=page.state(at),
        payload=payload,
        headers=_to_msgpack(dict(headers)) if headers else b"",
        attempts=notes.attempt,
        enqueued_at_us=notes.enqueued_at_us,
        visible_at_us=notes.visible_at_us,
        ttl_at_us=notes.ttl_at_us,
        died_at_us=notes.died_at_us,
        consumer=page.streams.get(at, notes.consumer),
        error=notes.error,
        marks=marks_of(notes),
    )


def to_line(record: FileRecord, codec: str) -> bytes:
    """Return a record as a line, without the line feed."""
    fields: dict[str, Any] = {"position": record.position, "state": record.state, **_payload(record.payload, codec)}
    if record.headers:
        headers = msgspec.msgpack.decode(record.headers)
        fields |= _headers(headers, record.headers)
    for name in _REST:
        if value := getattr(record, name):
            fields[name] = value
    return _to_json(fields)


_REST = ("attempts", "enqueued_at_us", "visible_at_us", "ttl_at_us", "died_at_us", "consumer", "error", "marks")


def _payload(payload: bytes, codec: str) -> dict[str, Any]:
    if codec in ("json", "str"):
        try:
            text = payload.decode()
            if codec == "str":
                return {"text": text}
            if "\n" not in text and "\r" not in text and text == text.strip():
                msgspec.json.decode(payload)
                return {"value": msgspec.Raw(payload)}
        except UNREADABLE:
            pass
    return {"base64": base64.b64encode(payload).decode()}


def _headers(headers: Any, packed: bytes) -> dict[str, Any]:
    try:
        text = _to_json(headers)
        if _to_msgpack(msgspec.json.decode(text)) == packed:
            return {"headers": msgspec.Raw(text)}
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    return {"headers_base64": base64.b64encode(packed).decode()}


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    position: str
    state: str
    value: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    headers: dict[str, Any] | None = None
    headers_base64: str | None = None
    attempts: int = 0
    enqueued_at_us: int = 0
    visible_at_us: int = 0
    ttl_at_us: int = 0
    died_at_us: int = 0
    consumer: str = ""
    error: str = ""
    marks: tuple[str, ...] = ()


_POSITION = re.compile(rb'"position":\s?"([0-9]+(?::[0-9a-f]+)+)"')
_decode_line = msgspec.json.Decoder(_Line).decode


def from_line(line: bytes) -> FileRecord:
    """Return the record in a line.

    Raises:
        TransferError: it has none. The message says what is wrong.
    """
    try:
        found = _decode_line(line)
        headers = b"" if found.headers is None else _to_msgpack(found.headers)
        if found.headers_base64 is not None:
            headers = base64.b64decode(found.headers_base64, validate=True)
        payloads = [bytes(found.value)] if len(bytes(found.value)) else []
        payloads += [] if found.text is None else [found.text.encode()]
        payloads += [] if found.base64 is None else [base64.b64decode(found.base64, validate=True)]
        if len(payloads) != 1:
            raise TransferError("an item has one of value, text and base64")
        rest = {name: getattr(found, name) for name in _REST}
        return checked(FileRecord(found.position, found.state, payloads[0], headers, **rest))
    except (binascii.Error, UnicodeEncodeError, *UNREADABLE) as error:
        named = _POSITION.search(line)
        told = f"the item {named[1].decode()} can't be read" if named else "it is no item"
        raise TransferError(f"{told}: {error}") from error


def checked(record: FileRecord) -> FileRecord:
    """Return a record that can be restored.

    Raises:
        TransferError: a field is not valid.
    """
    try:
        Position.parse(record.position)
    except ValueError as error:
        raise TransferError(str(error).rstrip(".")) from error
    if record.state not in ALL_STATES:
        raise TransferError(f"state is one of {', '.join(ALL_STATES)}, not {record.state!r}")
    if len(record.payload) > MAX_ITEM_BYTES:
        raise TransferError(f"its value has {len(record.payload):,} bytes, over the limit of {MAX_ITEM_BYTES:,}")
    times = (record.enqueued_at_us, record.visible_at_us, record.ttl_at_us, record.died_at_us)
    if not all(0 <= number < 1 << 63 for number in (record.attempts, *times)):
        raise TransferError("attempts and times are numbers from 0 on")
    if record.state == "delayed" and not record.visible_at_us:
        raise TransferError("a delayed item needs visible_at_us")
    if len(record.headers) > MAX_HEADER_BYTES:
        raise TransferError(f"its headers have {len(record.headers):,} bytes, over the limit of {MAX_HEADER_BYTES:,}")
    try:
        record.stored()
    except (ValueError, *UNREADABLE) as error:  # headers that are no map of texts, or notes that are too large
        raise TransferError(str(error).rstrip(".")) from error
    return record
