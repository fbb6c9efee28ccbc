"""What goes into commands: values, lines of standard input, and records of items.

**Values.** JSON has no bytes. In a queue of bytes a value that is UTF-8 is written as a string, any other as
``{"base64": "…"}``. Tuples, MessagePack and headers distinguish strings from bytes, so their bytes are always written
in base64. A blob in place of a value is written as its id and size.

>>> to_json(b"hello", CodecName.bytes), to_json(b"\\xff", CodecName.bytes), to_json((1, b"x"), CodecName.tuple)
('hello', {'base64': '/w=='}, [1, {'base64': 'eA=='}])
>>> from_json([1, {"base64": "eA=="}], CodecName.tuple)
(1, b'x')

**Lines** come in groups. A group ends when no line comes for a while. A command that handles a group as a whole keeps
no line back while it waits for more. So it also handles the lines of a pipe that never ends.

**Records** are items with their terms, each as one line of JSON: ``{"value": …, "headers": {…}, "delay": …, "at": …,
"ttl": …, "ttl_at": …, "rank": …}``, all but the value optional. A record's own terms override the options, which apply
to all records. `--records`, `lease` and `dead` print records too. A record keeps an item's end of life. A dead letter's
end of life is lifted, as by a redrive. A rank must be the one that the queue's order gives the item, otherwise the
record is refused. The old item's position, attempts and lease are ignored: the new item has its own.
"""

from __future__ import annotations

import base64
import binascii
import io
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fdbqueue.cli.errors import BadValue, refuse, refused
from fdbqueue.cli.opening import CodecName
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, run
from fdbqueue.errors import CodecError, FdbQueueError, ItemTooLarge, NestedQueue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.leases.lease import not_negative, positive, visible_at
from fdbqueue.moves.admission import note_interrupt
from fdbqueue.stored.items import Blob, envelope

JsonRecord: TypeAlias = dict[str, Any]
"""A record as JSON holds it."""


def parse(text: str, codec: CodecName, *, raw: bool = False) -> Any:
    """Return the value that `text` describes: as JSON or, if `raw`, the text itself.

    Raises:
        BadValue: `text` is not JSON, or the codec does not take it.
    """
    stored = text.encode("utf-8", "surrogateescape")
    if raw:
        if codec is CodecName.bytes:
            return stored
        try:
            return stored.decode()
        except UnicodeDecodeError as error:
            raise BadValue(f"{_shortened(text)} is not valid text: {error}. For bytes use --codec bytes.") from error
    try:
        decoded = msgspec.json.decode(stored)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadValue(f"{_shortened(text)} is not JSON: {error}. For plain text use --codec str and --raw.") from error
    return from_json(decoded, codec)


def from_json(decoded: object, codec: CodecName) -> Any:
    """Return the value for decoded JSON."""
    if codec is CodecName.bytes:
        return decoded.encode() if isinstance(decoded, str) else _bytes(decoded)
    if codec is CodecName.tuple:
        return _tuple(decoded)
    if codec is CodecName.msgpack:
        return _with_bytes(decoded)
    return decoded


def to_json(value: Any, codec: CodecName) -> Any:
    """Return a value in a form that JSON can hold."""
    if isinstance(value, Blob):
        return {"blob": value.id.hex(), "size_bytes": value.size_bytes}
    if codec is CodecName.bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _base64(value)
    if codec is CodecName.tuple:
        return _list(value)
    return _without_bytes(value)


def encode_json(decoded: object) -> str:
    """Return `decoded` as one line of JSON. A type that JSON lacks is written as text."""
    return msgspec.json.encode(decoded, enc_hook=str).decode()


def _bytes(decoded: object) -> bytes:
    if not (isinstance(decoded, dict) and decoded.keys() == {"base64"}):
        raise BadValue(f'{_shortened(encode_json(decoded))} is neither a string nor {{"base64": "…"}}, as bytes are.')
    try:
        return base64.b64decode(decoded["base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadValue(f"{_shortened(encode_json(decoded))} is not base64: {error}") from error


def _tuple(decoded: object) -> tuple[object, ...]:
    if not isinstance(decoded, list):
        raise BadValue(f"{_shortened(encode_json(decoded))} is not a JSON array, and a tuple must be one.")
    return tuple(_tuple_part(part) for part in decoded)


def _tuple_part(part: object) -> object:
    if isinstance(part, list):
        return _tuple(part)
    return _bytes(part) if isinstance(part, dict) else part


def _list(value: tuple[object, ...]) -> list[object]:
    return [
        _list(part) if isinstance(part, tuple) else _base64(part) if isinstance(part, bytes) else part for part in value
    ]


def _without_bytes(value: object) -> object:
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, dict):
        return {str(key): _without_bytes(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_bytes(part) for part in value]
    return value


def _with_bytes(decoded: object) -> object:
    if isinstance(decoded, dict):
        if decoded.keys() == {"base64"}:
            return _bytes(decoded)
        return {key: _with_bytes(part) for key, part in decoded.items()}
    if isinstance(decoded, list):
        return [_with_bytes(part) for part in decoded]
    return decoded


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


PAUSE_SECONDS = 0.5
_READ_BYTES = 65_536


class InputFailed(FdbQueueError):
    """Standard input can't be read."""


def is_terminal(stream: Any) -> bool:
    """Return whether a standard stream is a terminal. A closed stream is not."""
    return stream is not None and stream.isatty()


def groups_of_lines(wanted: str, hint: str) -> Iterator[Iterator[bytes]]:
    """Return the groups of lines, without the line feeds. Consume each group before the next.

    Args:
        wanted: what to give as arguments instead.
        hint: the name of these arguments.

    Raises:
        BadParameter: standard input is closed, or it is a terminal.
        InputFailed: it can't be read. It is raised while the lines are read.
    """
    if sys.stdin is None or sys.stdin.isatty():
        refuse(f"give {wanted}, or pipe lines into standard input", hint)
    return _groups(_lines(sys.stdin.buffer))


def _groups(lines: Iterator[bytes | None]) -> Iterator[Iterator[bytes]]:
    for first in lines:
        if first is not None:
            yield chain([first], iter(partial(next, lines, None), None))


def _lines(file: object) -> Iterator[bytes | None]:
    """Yield the lines, and None for each pause."""
    unfinished: list[bytes] = []
    try:
        while chunk := read_some(file):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield b"".join([*unfinished, end])
                unfinished.clear()
            if rest:
                unfinished.append(rest)
            if not _comes_soon(file):
                yield None
    except OSError as error:
        raise InputFailed(f"Standard input can't be read: {error.strerror}.") from error
    if unfinished:
        yield b"".join(unfinished)


def read_some(file: Any) -> bytes:
    """Wait for bytes, and return some; b"" at the end. Every read of items passes here."""
    wait_for_input(file)
    some: bytes = file.read1(_READ_BYTES)
    return some


def wait_for_input(file: Any) -> None:
    """Wait until something can be read. Every read of standard input comes behind this.

    Python handles a signal that comes just before a read blocks after that read, and perhaps no input follows. So this
    waits for a moment at a time.
    """
    while not _comes_soon(file):
        pass


def _comes_soon(file: Any) -> bool:
    try:
        return bool(select.select([file], [], [], PAUSE_SECONDS)[0])
    except io.UnsupportedOperation:
        return True  # it is in memory, so there is nothing to wait for


SHORTEST_SECONDS = 1e-6
WRONG_TERMS = (msgspec.DecodeError, RecursionError, CodecError, ItemTooLarge, ValueError)
"""What a text that describes terms or a record may raise."""


@dataclass(frozen=True, slots=True)
class ItemTerms:
    """The terms of an item.

    Raises:
        ValueError, ItemTooLarge: an item can't have such terms.
    """

    headers: Mapping[str, object] | None = None
    delay: float | None = None
    at: float | None = None
    ttl: float | None = None
    ttl_at: float | None = None
    """The end of its life, in seconds since 1970, instead of `ttl`."""

    def __post_init__(self) -> None:
        visible_at(0, self.delay, self.at)
        if self.ttl is not None:
            positive(self.ttl, "ttl")
        if self.ttl_at is not None:
            not_negative(self.ttl_at, "ttl_at")
            if self.ttl is not None:
                raise ValueError("Give ttl or ttl_at, not both.")
        envelope(b"", self.headers)

    def over(self, others: ItemTerms) -> ItemTerms:
        """Return these terms, with the others' terms for those that these lack. Headers are merged one by one."""
        waits = self if self.delay is not None or self.at is not None else others
        lives = self if self.ttl is not None or self.ttl_at is not None else others
        headers = {**(others.headers or {}), **(self.headers or {})}
        return ItemTerms(headers or None, waits.delay, waits.at, lives.ttl, lives.ttl_at)

    def arguments(self, now: float) -> dict[str, Any]:
        """Return the terms as the library's verbs take them; `now` is in seconds since 1970."""
        # An item whose life is over is enqueued and expires at once. So the counters include it.
        ttl = self.ttl if self.ttl_at is None else max(self.ttl_at - now, SHORTEST_SECONDS)
        return {"headers": self.headers, "delay": self.delay, "at": self.at, "ttl": ttl}


def terms_of(headers: str | None, delay: float | None, at: float | None, ttl: float | None) -> ItemTerms:
    """Return the terms that the options describe."""
    with refused("--headers", WRONG_TERMS):
        decoded = None if headers is None else msgspec.json.decode(headers, type=dict[str, Any])
        named = ItemTerms(None if decoded is None else from_json(decoded, CodecName.msgpack))
    with refused(None, WRONG_TERMS):
        return ItemTerms(named.headers, delay, at, ttl)


class Way(NamedTuple):
    """How the items of a batch are enqueued."""

    enqueue: Callable[..., Steps[Any]]
    """Enqueues one item in a transaction."""
    begin: Callable[[Transaction], Steps[None]] | None = None
    """Called first in the transaction of each batch."""


BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000
"""About the size of one transaction, in bytes of the lines."""


@dataclass(frozen=True, slots=True)
class ItemToEnqueue:
    """An item to enqueue."""

    where: str
    """The place where it was read, for the front of error messages."""
    size_bytes: int
    """The size of its line."""
    value: Any
    terms: ItemTerms
    rank: int | None = None
    """The rank that it had in its former queue."""


class _InputLine(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that a record may have. Any other name is an error, since it is probably mistyped."""

    value: Any
    headers: dict[str, Any] | None = None
    delay: float | None = None
    at: float | None = None
    ttl: float | None = None
    ttl_at: float | None = None
    rank: int | None = None
    # What another command printed, and a new item has of its own.
    index: object = None
    random: object = None
    item: object = None
    lease: object = None
    attempt: object = None
    attempts: object = None
    expires_at: object = None
    consumer: object = None
    error: object = None
    wants_result: object = None
    died_at: object = None


_decode_line = msgspec.json.Decoder(_InputLine).decode


def record_of(text: str, codec: CodecName, where: str = "") -> ItemToEnqueue:
    """Return the record that a line describes.

    Raises:
        BadValue: it describes no record.
    """
    stored = text.encode("utf-8", "surrogateescape")
    try:
        line = _decode_line(stored)
        headers = None if line.headers is None else from_json(line.headers, CodecName.msgpack)
        terms = ItemTerms(headers, line.delay, line.at, line.ttl, line.ttl_at)
        return ItemToEnqueue(where, len(stored), from_json(line.value, codec), terms, line.rank)
    except WRONG_TERMS as error:
        raise BadValue(f"{where}This is not an item's record: {error}") from error


def enqueue_records(
    db: Database, leases: Leases, records: Iterable[ItemToEnqueue], terms: ItemTerms, way: Way | None = None
) -> Iterator[list[Any]]:
    """Enqueue records in their order, batch by batch, each exactly once. Yield what was enqueued by each batch.

    Args:
        leases: the leases of the queue.
        terms: the terms for records that do not have their own.
        way: how they are enqueued; None: by the leases.

    Raises:
        BadValue: a record can't be enqueued; nothing of its batch was.
    """
    way = way or Way(leases.enqueue.steps)
    for batch in batches_of(records):
        try:
            entered = run(leases.queue.transact(db, partial(_append, leases=leases, batch=batch, terms=terms, way=way)))
        except KeyboardInterrupt as stop:
            note_interrupt(stop, len(batch))
            raise
        yield entered


async def _append(tr: Transaction, leases: Leases, batch: list[ItemToEnqueue], terms: ItemTerms, way: Way) -> list[Any]:
    entered = []
    if way.begin is not None:
        await way.begin(tr)
    for one in batch:
        arguments = one.terms.over(terms).arguments(leases.clock())
        try:
            _check_rank(one, leases.queue.rank(one.value, arguments["headers"]))
            entered.append(await way.enqueue(tr, one.value, **arguments))
        except NestedQueue:
            raise  # it is about the queue, and not about this value
        except (CodecError, ItemTooLarge, ValueError) as error:
            raise BadValue(f"{one.where}{error}") from error
    return entered


def _check_rank(record: ItemToEnqueue, here: int | None) -> None:
    if record.rank is None or record.rank == here:
        return
    if here is None:
        told = "this queue has no order: name the levels of the queue that the record comes from, as in --levels 3"
    else:
        told = f"would get the rank {here} here: give it the header 'priority', or the queue the same levels"
    raise ValueError(f"The record has the rank {record.rank}, and {told}. Or take the rank out: jq -c 'del(.rank)'.")


def batches_of(records: Iterable[ItemToEnqueue]) -> Iterator[list[ItemToEnqueue]]:
    batch: list[ItemToEnqueue] = []
    size = 0
    for one in records:
        if batch and (len(batch) >= BATCH_ITEMS or size + one.size_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size_bytes
    if batch:
        yield batch
