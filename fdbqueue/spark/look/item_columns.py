"""The columns of items, for a look and for a stream, as Spark's types. `fdbqueue.arrow.columns` fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from fdbqueue.arrow.columns import Columns, look_fields
from fdbqueue.arrow.stored import Stored
from fdbqueue.layers.sessions.session.records import name_of
from fdbqueue.spark.options import NULL, Options
from fdbqueue.stored.codecs import CODEC_ERRORS, codec_named, reason_of
from fdbqueue.stored.names import queue_text, session_text


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
