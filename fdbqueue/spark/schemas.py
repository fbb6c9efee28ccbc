"""Check, on the driver, that a DataFrame's schema fits the options; and the columns of items, for looks and streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from fdbqueue.arrow.columns import Columns, look_fields
from fdbqueue.arrow.stored import Stored
from fdbqueue.layers.sessions.session.records import name_of
from fdbqueue.spark.options import NULL, OPTIONS, Options
from fdbqueue.spark.partition_log import JobHeader
from fdbqueue.stored.codecs import CODEC_ERRORS, codec_named, reason_of
from fdbqueue.stored.names import queue_text, session_text

_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_NUMBERS = (*_INTEGERS, t.FloatType, t.DoubleType)
_IN_TUPLES = (t.NullType, t.BooleanType, t.StringType, t.BinaryType, *_NUMBERS)
_IN_RECORDS = (*_IN_TUPLES, t.DecimalType, t.DateType, t.TimestampType, t.TimestampNTZType, t.DayTimeIntervalType)
_MAP_KEYS = (t.StringType, t.ByteType, t.ShortType, t.IntegerType, t.LongType)


def header_of(options: Options, schema: t.StructType) -> JobHeader:
    """Check `schema` and return the header, which must be the same when the job is submitted again.

    Raises:
        ValueError: a column is missing or has a type that the codec doesn't take.
    """
    columns = value_columns(options, schema)
    for field in columns:
        _check_value(options, field)
    others = []
    if options.queue_column is not None:
        others.append(_named(schema, options, "queue_column"))
        if not isinstance(others[-1].dataType, t.StringType):
            raise _wrong(others[-1], "which names queues, must be a string")
    if options.headers_column is not None:
        others.append(_named(schema, options, "headers_column"))
        _check_headers(others[-1])
    if options.session_column is not None:
        others.append(_named(schema, options, "session_column"))
        if not isinstance(others[-1].dataType, (t.StringType, t.BinaryType)):
            raise _wrong(others[-1], "which names sessions, must be a string or binary; cast it")
    if options.priority_column is not None:
        others.append(_named(schema, options, "priority_column"))
        if not isinstance(others[-1].dataType, _INTEGERS):
            raise _wrong(others[-1], "which has priorities, must be a whole number")
    for attribute in ("delay_column", "ttl_column"):
        if getattr(options, attribute) is not None:
            others.append(_named(schema, options, attribute))
            if not isinstance(others[-1].dataType, _NUMBERS):
                raise _wrong(others[-1], "which has seconds, must be a number")
    names = [field.name for field in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"Two columns have the same name: {', '.join(names)}.")
    if not columns:
        raise ValueError("There is no column left for the values.")
    if options.value_column is not None:
        unused = set(schema.fieldNames()) - {field.name for field in [*columns, *others]}
        if unused:
            raise ValueError(
                f"The columns {', '.join(sorted(unused))} would be lost: the values come from {options.value_column!r}."
                " Select the columns to enqueue, or make them one record with codec=json."
            )
    return JobHeader(
        delivery=options.delivery,
        partitions=options.partitions,
        codec=options.codec,
        value_column=options.value_column,
        queue_column=options.queue_column,
        headers_column=options.headers_column,
        columns=tuple((field.name, field.dataType.simpleString()) for field in [*columns, *others]),
        smart=options.smart,
        priority_column=options.priority_column,
        levels=None if options.priority_column is options.session_column is None else options.levels,
        delay_column=options.delay_column,
        ttl_column=options.ttl_column,
        session_column=options.session_column,
        sessions=options.sessions,
    )


def value_columns(options: Options, schema: t.StructType) -> list[t.StructField]:
    """Return the columns that make up the values."""
    if options.value_column is not None:
        return [_named(schema, options, "value_column")]
    return [field for field in schema.fields if field.name not in options.other_columns]


def _named(schema: t.StructType, options: Options, attribute: str) -> t.StructField:
    """Return the column that is named by an option, given its field."""
    return field_of(
        schema, next(row.name for row in OPTIONS if row.attribute == attribute), getattr(options, attribute)
    )


def field_of(schema: t.StructType, option: str, name: str) -> t.StructField:
    """Return the column that an option names.

    Raises:
        ValueError: there is none of that name, or more than one.
    """
    found = [field for field in schema.fields if field.name == name]
    if len(found) == 1:
        return found[0]
    has = ", ".join(schema.fieldNames()) or "none"
    what = "is no column" if not found else "names more than one column"
    raise ValueError(f"{option}: {name!r} {what} of the DataFrame, which has {has}.")


def _check_value(options: Options, field: t.StructField) -> None:
    codec, kind = options.codec, field.dataType
    if codec == "bytes" and not isinstance(kind, t.BinaryType):
        raise _wrong(field, "must be binary for the codec bytes; or choose codec=str, json, msgpack or tuple")
    if codec == "str" and not isinstance(kind, t.StringType):
        raise _wrong(field, "must be a string for the codec str")
    if codec == "tuple" and not isinstance(kind, _IN_TUPLES):
        raise _wrong(field, "has no place in a tuple: numbers, strings, binary, booleans and nulls have")
    if codec in ("json", "msgpack") and not _fits_record(kind):
        raise _wrong(field, f"has a type that the codec {codec} does not take")


def _check_headers(field: t.StructField) -> None:
    kind = field.dataType
    if not (isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType) and _fits_record(kind.valueType)):
        raise _wrong(field, "which has headers, must be a map from string to what MessagePack can hold")


def _fits_record(kind: t.DataType) -> bool:
    if isinstance(kind, t.ArrayType):
        return _fits_record(kind.elementType)
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, _MAP_KEYS) and _fits_record(kind.valueType)
    if isinstance(kind, t.StructType):
        return all(_fits_record(field.dataType) for field in kind.fields)
    return isinstance(kind, _IN_RECORDS)


def _wrong(field: t.StructField, what: str) -> ValueError:
    return ValueError(f"The column {field.name!r}, {field.dataType.simpleString()}, {what}.")


def look_schema(options: Options) -> t.StructType:
    """Return the columns of a look."""
    fields = _fields(options)
    session = [t.StructField("session", t.StringType())] if options.include_sessions else []
    return t.StructType([*session, *fields])


def stream_schema(options: Options, *, headers: bool) -> t.StructType:
    """Return the columns of a stream."""
    look = _fields(options)
    queue = t.StructField("queue", t.StringType())
    names = ("position", "enqueued_at", "attempts", *(("headers",) if headers else ()))
    return t.StructType([look["value"], queue, *(look[name] for name in names)])


def _fields(options: Options) -> t.StructType:
    return from_arrow_schema(look_fields(options.codec))


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


class ItemTable:
    """Builds record batches with the columns of a schema.

    Args:
        options: the options of the look or the stream.
        schema: the columns to build.
    """

    def __init__(self, options: Options, schema: t.StructType) -> None:
        layout = options.layout()
        self._columns = Columns(
            layout,
            codec_named(options.codec),
            to_arrow_schema(schema, timezone="UTC"),
            on_bad="null" if options.on_bad_item == NULL else "fail",
            queue=queue_text(layout.prefix),
            session_name=_session,
        )

    @property
    def payloads(self) -> bool:
        """Whether payloads are needed at all."""
        return self._columns.payloads

    def batch(self, items: Sequence[Stored]) -> pa.RecordBatch:
        """Return the items as a record batch.

        Raises:
            CodecError, FormatError: an item can't be read, and ``onBadItem`` is ``fail``.
        """
        return self._columns.batch(items)


def _session(packed: bytes) -> str:
    return session_text(name_of(packed))


def bad_payload(codec: str) -> Callable[[bytes], str]:
    """Return a function that says why a payload does not decode; "" if it does."""
    decode = codec_named(codec).decode

    def bad(payload: bytes) -> str:
        try:
            decode(payload)
        except CODEC_ERRORS as error:
            return f"It does not decode by the codec {codec}: {reason_of(error)}."
        return ""

    return bad
