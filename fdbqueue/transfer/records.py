"""An item as a line of a file.

A line is a JSON object. Its payload is exact under one of three names: ``value``, JSON as it is stored; ``text``; or
``base64``. Headers are ``headers`` if JSON gives them back as they are; otherwise ``headers_base64``, in MessagePack.
Times are microseconds since 1970. The first line describes the queue. The last line has the number of the items and
their digest::

    {"fdbqueue":1,"queue":"orders","codec":"json","order":null,"last_index":7}
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
from fdbqueue.engine.api import Transaction
from fdbqueue.errors import FormatError, TransferError
from fdbqueue.moves.admission import refuse_smart
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.items import MAX_HEADER_BYTES, MAX_ITEM_BYTES, Notes, blob_of, envelope, headers_of, notes_of
from fdbqueue.stored.items import with_notes as with_notes_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.order import MAX_INDEX, MAX_NAME_BYTES, MAX_RANK
from fdbqueue.stored.places import ALL_STATES, refuse_own_items
from fdbqueue.stored.positions import pack
from fdbqueue.stored.settings import check_renamed
from fdbqueue.verbs.queue import Queue

REMEDY = {
    "blob": "Read the blob by fdbqueue.layers.Blobs, and ack the item",
    "completion": "Let its consumer end it first",
    "follow-ups": "Let its consumer end it first",
    "group": "Let the group end first, or cancel it",
    "held": "Let the item that it follows end first",
    "dependent keys": "Let the layer that wrote them take the item first",
}


def marks_of(notes: Notes, *, has_blob: bool = False) -> tuple[str, ...]:
    """Return the marks of an item.

    >>> marks_of(Notes(group="nightly", keep_s=60)), marks_of(Notes(attempt=3))
    (('completion', 'group'), ())
    """
    found = {
        "blob": has_blob,
        "completion": bool(notes.keep_s),
        "follow-ups": bool(notes.then),
        "group": bool(notes.group),
        "held": notes.held,
        "dependent keys": bool(notes.beside),
    }
    return tuple(name for name, there in found.items() if there)


def refusal(what: str, position: str, layout: Layout, marks: tuple[str, ...]) -> TransferError:
    """Return the error for an item with marks."""
    return TransferError(
        f"The item {position} of {layout.describe()} has {', '.join(marks)}, which {what} can't take along. It was"
        f" left there. {REMEDY[marks[0]]}."
    )


async def refuse_layers(tr: Transaction, layout: Layout, what: str) -> None:
    """Refuse a queue whose items belong to a layer: one with sessions, and a smart one.

    Raises:
        StreamError, ChecksBypassed: it is such a queue. QueueRenamed: it has another name now.

    *Conflicts:* none. *Cost:* three reads.
    """
    await check_renamed(tr.snapshot, layout)
    await refuse_own_items(tr, layout, what)
    await refuse_smart(tr, layout)


def check_is_queue(queue: object, verb: str) -> None:
    """Refuse an argument that is no queue.

    Raises:
        TypeError: it is a layer, or something else.
    """
    if not isinstance(queue, Queue):
        raise TypeError(
            f"{verb} takes a Queue, as Queue('orders', codec='json'), not {queue!r}. Of a layer give its `queue`."
        )


FORMAT = 1
DIGEST_BYTES = 16
MAX_RANDOM_BYTES = 64
_MAX_POSITION = 2 * MAX_RANDOM_BYTES + 2 * 21
MAX_LINE_BYTES = 6 * MAX_ITEM_BYTES + 1_000_000
"""The longest line: JSON takes at most 6 bytes for a byte of a value. The rest is small."""
_MAX_HEADERS_JSON = 10 * MAX_HEADER_BYTES
_MAX_MARKS_JSON = 1_000
_MAX_TOLD = 200
"""How much of a file's own text an error repeats."""
_to_json = msgspec.json.encode
_to_msgpack = msgspec.msgpack.encode


class FileHeader(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a file."""

    fdbqueue: int
    """The format."""
    queue: str
    """The text of the queue's name. Older versions wrote the name as Python has it."""
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


_decode_header = msgspec.json.Decoder(FileHeader).decode
decode_footer = msgspec.json.Decoder(Footer).decode


def decode_header(data: bytes) -> FileHeader:
    """Return the header of a file.

    Raises:
        TransferError: its order or its last index is none that a queue can have.
        msgspec.DecodeError: it is no header.
    """
    header = _decode_header(data)
    order = header.order
    if order is not None and not (order.isprintable() and 1 <= len(order.encode()) <= MAX_NAME_BYTES):
        raise TransferError(
            f"the name of its order has 1 to {MAX_NAME_BYTES} bytes that can be printed, not {shortened(repr(order))}"
        )
    if not 0 <= header.last_index <= MAX_INDEX:
        raise TransferError(f"its last_index is a number from 0 to 2^63 - 1, not {header.last_index}")
    return header


def shortened(text: str) -> str:
    """Return a text of a file as an error repeats it."""
    return text if len(text) <= _MAX_TOLD else f"{text[:_MAX_TOLD]}… ({len(text):,} characters)"


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
                raise layout.unreadable_item(packed, error, remedy) from error
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
    for name in (*_REST, "marks"):
        if value := getattr(record, name):
            fields[name] = value
    return _to_json(fields)


_REST = ("attempts", "enqueued_at_us", "visible_at_us", "ttl_at_us", "died_at_us", "consumer", "error")


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


def _headers(headers: object, packed: bytes) -> dict[str, Any]:
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
    headers: msgspec.Raw = msgspec.Raw()
    headers_base64: str | None = None
    attempts: int = 0
    enqueued_at_us: int = 0
    visible_at_us: int = 0
    ttl_at_us: int = 0
    died_at_us: int = 0
    consumer: str = ""
    error: str = ""
    marks: msgspec.Raw = msgspec.Raw()


_POSITION = re.compile(rb'"position":\s?"([0-9]{1,20}(?::[0-9a-f]{1,128}){1,2})"')
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_decode_marks = msgspec.json.Decoder(tuple[str, ...]).decode


def from_line(line: bytes) -> FileRecord:
    """Return the record in a line. `check_record` says whether it can be restored.

    Raises:
        TransferError: it has none. The message says what is wrong.
    """
    try:
        found = _decode_line(line)
        headers = b""
        if given := _small(found.headers, _MAX_HEADERS_JSON, "headers"):
            headers = _to_msgpack(_decode_headers(given))
        marks = _small(found.marks, _MAX_MARKS_JSON, "marks")
        if found.headers_base64 is not None:
            headers = base64.b64decode(found.headers_base64, validate=True)
        payloads = [bytes(found.value)] if len(bytes(found.value)) else []
        payloads += [] if found.text is None else [found.text.encode()]
        payloads += [] if found.base64 is None else [base64.b64decode(found.base64, validate=True)]
        if len(payloads) != 1:
            raise TransferError("an item has one of value, text and base64")
        rest = {name: getattr(found, name) for name in _REST}
        told_marks = _decode_marks(marks) if marks else ()
        return FileRecord(found.position, found.state, payloads[0], headers, **rest, marks=told_marks)
    except (binascii.Error, UnicodeEncodeError, *UNREADABLE) as error:
        named = _POSITION.search(line)
        told = f"the item {named[1].decode()} can't be read" if named else "it is no item"
        raise TransferError(f"{told}: {shortened(str(error))}") from error


def _small(raw: msgspec.Raw, most: int, name: str) -> bytes:
    """Return JSON that is not decoded yet, b"" for none or null. What is too long is refused before it is decoded."""
    size = memoryview(raw).nbytes if raw else 0
    if size > most:
        raise TransferError(f"its {name} have {size:,} bytes, over the limit of {most:,}")
    given = bytes(raw)
    return b"" if given == b"null" else given


def check_record(record: FileRecord, *, ranked: bool) -> bytes:
    """Refuse a record that no queue can have. Return its packed position.

    Args:
        ranked: whether the file's queue has an order, so that each position has a rank.

    Raises:
        TransferError: a field is not valid.
    """
    position = _position(record.position)
    if (position.rank is not None) != ranked:
        rank, others = ("a", "none") if position.rank is not None else ("no", "one")
        raise TransferError(f"the item {record.position} has {rank} rank, and others have {others}")
    if record.state not in ALL_STATES:
        told = shortened(repr(record.state))
        raise TransferError(f"state is one of {', '.join(ALL_STATES)}, not {told}")
    if len(record.payload) > MAX_ITEM_BYTES:
        raise TransferError(f"its value has {len(record.payload):,} bytes, over the limit of {MAX_ITEM_BYTES:,}")
    times = (record.enqueued_at_us, record.visible_at_us, record.ttl_at_us, record.died_at_us)
    if not all(0 <= number < 1 << 63 for number in (record.attempts, *times)):
        raise TransferError("attempts and times are numbers from 0 on")
    if record.state == "delayed" and not record.visible_at_us:
        raise TransferError("a delayed item needs visible_at_us")
    if len(record.headers) > MAX_HEADER_BYTES:
        raise TransferError(f"its headers have {len(record.headers):,} bytes, over the limit of {MAX_HEADER_BYTES:,}")
    if foreign := [mark for mark in record.marks if mark not in REMEDY]:
        raise TransferError(f"a mark is one of {', '.join(REMEDY)}, not {shortened(repr(foreign[0]))}")
    try:
        stored = record.stored()
        notes_of(stored), headers_of(stored)  # as any reader will read them
    except (ValueError, FormatError, *UNREADABLE) as error:  # e.g. headers that are no map, notes that are too large
        raise TransferError(shortened(str(error)).rstrip(".")) from error
    return pack(position)


def _position(text: str) -> Position:
    if len(text) > _MAX_POSITION:
        raise TransferError(f"a position has at most {_MAX_POSITION} characters, not {shortened(text)}")
    try:
        position = Position.parse(text)
    except ValueError as error:
        raise TransferError(str(error).rstrip(".")) from error
    if position.text != text:
        raise TransferError(f"{text!r} is the position {position.text}. Write it so")
    if position.index > MAX_INDEX or (position.rank or 0) > MAX_RANK:
        raise TransferError(f"the numbers of the position {text} are over 2^63 - 1")
    if not 1 <= len(position.random) <= MAX_RANDOM_BYTES:
        raise TransferError(f"the random part of the position {text} has 1 to {MAX_RANDOM_BYTES} bytes")
    return position
