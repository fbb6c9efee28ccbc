"""The columns of items, for a look and for a stream, built as Arrow's record batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from fdbqueue.codecs import CODEC_ERRORS, codec_named
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.items import NO_NOTES, PLAIN, Notes, has_notes, headers_of, notes_of, parse
from fdbqueue.layout import Layout
from fdbqueue.spark.looking import Stored
from fdbqueue.spark.readoptions import NULL, LookOptions, ReadOptions
from fdbqueue.spark.sessionlooking import shown_name

_WITHOUT_NOTES = {"session", "position", "rank", "index", "value", "headers", "state", "queue"}
_HEADERS = t.MapType(t.StringType(), t.StringType())
_to_json = msgspec.json.encode


def look_schema(options: LookOptions) -> t.StructType:
    """Return the columns of a look."""
    session = [t.StructField("session", t.StringType())] if options.sessions else []
    return t.StructType(
        [
            *session,
            t.StructField("position", t.StringType(), False),
            t.StructField("rank", t.LongType()),
            t.StructField("index", t.LongType(), False),
            t.StructField("value", _value_type(options)),
            t.StructField("headers", _HEADERS),
            t.StructField("state", t.StringType(), False),
            t.StructField("enqueued_at", t.TimestampType()),
            t.StructField("attempts", t.IntegerType(), False),
            t.StructField("visible_at", t.TimestampType()),
            t.StructField("lease_expires_at", t.TimestampType()),
            t.StructField("ttl_at", t.TimestampType()),
            t.StructField("died_at", t.TimestampType()),
            t.StructField("consumer", t.StringType()),
            t.StructField("error", t.StringType()),
        ]
    )


def stream_schema(options: ReadOptions, *, headers: bool) -> t.StructType:
    """Return the columns of a stream."""
    fields = [
        t.StructField("value", _value_type(options)),
        t.StructField("queue", t.StringType()),
        t.StructField("position", t.StringType(), False),
        t.StructField("enqueued_at", t.TimestampType()),
        t.StructField("attempts", t.IntegerType(), False),
    ]
    return t.StructType([*fields, t.StructField("headers", _HEADERS)] if headers else fields)


def _value_type(options: ReadOptions) -> t.DataType:
    return t.BinaryType() if options.codec == "bytes" else t.StringType()


def check_schema(given: t.StructType, whole: t.StructType) -> None:
    """Refuse a user's schema that has other columns than there are. A schema with fewer columns reads only those.

    Raises:
        ValueError: a column is unknown, comes twice, or has another type.
    """
    kinds = {field.name: field.dataType for field in whole.fields}
    names = [field.name for field in given.fields]
    for field in given.fields:
        if field.name not in kinds:
            raise ValueError(f"There is no column {field.name!r}. There are {', '.join(kinds)}.")
        if field.dataType.simpleString() != kinds[field.name].simpleString():
            raise ValueError(
                f"The column {field.name!r} is {kinds[field.name].simpleString()}, not {field.dataType.simpleString()}."
                " The type of value follows from the option codec; cast it afterwards."
            )
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"A schema names columns, and each once: {', '.join(names) or 'it has none'}.")


class Table:
    """Builds record batches with the columns of a schema.

    Args:
        options: the options of the look or the stream.
        schema: the columns to build.
    """

    def __init__(self, options: ReadOptions, schema: t.StructType) -> None:
        self._options = options
        self._layout = options.layout()
        self._names = schema.fieldNames()
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._queue = self._layout.describe() if isinstance(options.queue, bytes) else options.queue
        self._codec = codec_named(options.codec)
        self._needs_notes = not {*self._names} <= _WITHOUT_NOTES

    @property
    def payloads(self) -> bool:
        """Whether payloads are needed at all."""
        return "value" in self._names

    def batch(self, items: Sequence[Stored]) -> pa.RecordBatch:
        """Return the items as a record batch.

        Raises:
            CodecError, FormatError: an item can't be read, and ``onBadItem`` is ``fail``.
        """
        notes = [self._notes(item) for item in items] if self._needs_notes else []
        arrays = [
            pa.array(self._column(name, items, notes), type=field.type)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, items: Sequence[Stored], notes: list[Notes]) -> list[Any]:
        if name in _OF_NOTES:
            of_notes = _OF_NOTES[name]
            return [of_notes(one, item.state) for one, item in zip(notes, items, strict=True)]
        if name == "value":
            return self._values(items)
        if name == "headers":
            return [self._headers(item) for item in items]
        if name == "queue":
            return [self._queue] * len(items)
        if name == "state":
            return [item.state for item in items]
        if name == "session":
            names = {item.session: shown_name(item.session) if item.session else None for item in items}
            return [names[item.session] for item in items]
        if name == "consumer":
            return [item.stream or one.consumer or None for one, item in zip(notes, items, strict=True)]
        if name == "position":
            return [_text(item.packed) for item in items]
        positions = [self._layout.available.position(self._layout.prefix + item.packed) for item in items]
        return [position.rank if name == "rank" else position.index for position in positions]

    def _values(self, items: Sequence[Stored]) -> list[Any]:
        if self._options.codec == "bytes":
            plain = [item.value[1:] if item.value[:1] == PLAIN else None for item in items]
            return [self._value(item) if value is None else value for item, value in zip(items, plain, strict=True)]
        return [self._value(item) for item in items]

    def _value(self, item: Stored) -> Any:
        try:
            opened = parse(item.value)
            if opened.blob is not None and opened.blob.is_value:
                return None
            return self._shown(opened.payload if item.payload is None else item.payload)
        except (FormatError, *CODEC_ERRORS) as error:
            if self._options.on_bad == NULL:
                return None
            kind = FormatError if isinstance(error, FormatError) else CodecError
            raise kind(
                f"The item {_text(item.packed)} of {self._layout.describe()} does not decode by the codec"
                f" {self._options.codec}: {error}. Read it with codec=bytes, or set onBadItem."
            ) from error

    def _shown(self, payload: bytes) -> Any:
        codec = self._options.codec
        if codec == "bytes":
            return payload
        value = self._codec.decode(payload)
        if codec == "str":
            return value
        return payload.decode() if codec == "json" else _to_json(value).decode()

    def _headers(self, item: Stored) -> dict[str, str] | None:
        try:
            return shown_headers(headers_of(item.value))
        except FormatError:
            if self._options.on_bad == NULL:
                return None
            raise

    def _notes(self, item: Stored) -> Notes:
        try:
            return notes_of(item.value) if has_notes(item.value) else NO_NOTES
        except FormatError:
            if self._options.on_bad == NULL:
                return NO_NOTES
            raise


def bad_payload(codec: str) -> Callable[[bytes], str]:
    """Return a function that says why a payload does not decode; "" if it does."""
    decode = codec_named(codec).decode

    def bad(payload: bytes) -> str:
        try:
            decode(payload)
        except CODEC_ERRORS as error:
            return f"It does not decode by the codec {codec}: {error}."
        return ""

    return bad


def shown_headers(headers: Mapping[str, Any]) -> dict[str, str] | None:
    """Return headers as texts: a text as it is, anything else as JSON; None if there are none."""
    return {
        name: value if isinstance(value, str) else _to_json(value).decode() for name, value in headers.items()
    } or None


def _text(packed: bytes) -> str:
    """Return the text of a packed position; quicker than by a `Position`."""
    end = packed[0] - 0x13
    if packed[end] == 1:
        return f"{int.from_bytes(packed[1:end], 'big')}:{packed[end + 1 : -1].replace(_NUL, _ZERO).hex()}"
    return _ANY.available.position(_ANY.prefix + packed).text


_NUL, _ZERO = b"\x00\xff", b"\x00"
_ANY = Layout("any")


def _when(us: int) -> int | None:
    return us or None


_OF_NOTES: dict[str, Callable[[Notes, str], Any]] = {
    "enqueued_at": lambda notes, state: _when(notes.enqueued_at_us),
    "attempts": lambda notes, state: notes.attempt,
    "visible_at": lambda notes, state: _when(notes.visible_at_us),
    "lease_expires_at": lambda notes, state: _when(notes.expires_at_us) if state == "leased" else None,
    "ttl_at": lambda notes, state: _when(notes.ttl_at_us),
    "died_at": lambda notes, state: _when(notes.died_at_us) if state == "dead" else None,
    "error": lambda notes, state: notes.error or None,
}
