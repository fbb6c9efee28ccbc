"""Tables as values to enqueue: of pyarrow, pandas, polars, DuckDB, or anything else with ``__arrow_c_stream__``.

A row is a value: a dict by the names of the columns, or a tuple for the codec ``tuple``. With ``column`` the values of
that column are the items. A table with one unnamed column, such as a pandas Series, gives the values of that column.
A table is read a batch at a time, and a large batch in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import starmap
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fdbqueue.arrow.needs import TableRow
from fdbqueue.errors import CodecError
from fdbqueue.stored.codecs import BytesCodec, Codec, JsonCodec, MsgpackCodec, StrCodec, TupleCodec

SLICE_ROWS = 5_000
_ENCODERS = {JsonCodec: msgspec.json.Encoder().encode, MsgpackCodec: msgspec.msgpack.Encoder().encode}


class Input:
    """A table to enqueue.

    Args:
        table: the table.
        codec: the queue's.
        column: the column with the values; None: each row is a value.
        headers_column, priority_column, delay_column, ttl_column: the columns with the terms of the rows.

    Raises:
        ValueError: there is no such column, two have the same name, or the codec takes no rows.
    """

    def __init__(
        self,
        table: object,
        codec: Codec[Any],
        *,
        column: str | None = None,
        headers_column: str | None = None,
        priority_column: str | None = None,
        delay_column: str | None = None,
        ttl_column: str | None = None,
    ) -> None:
        self._codec = codec
        self._batches, schema, is_column = _opened(table)
        self._terms = (headers_column, priority_column, delay_column, ttl_column)
        options = ("column", "headers_column", "priority_column", "delay_column", "ttl_column")
        used = [name for name in self._terms if name is not None]
        for option, name in zip(options, (column, *self._terms), strict=True):
            if name is not None and schema.names.count(name) != 1:
                what = "no column" if name not in schema.names else "more than one column"
                raise ValueError(f"{option}: {name!r} is {what} of the table, which has {_told(schema.names)}.")
        index = _index_columns(schema)
        names = [name for name in schema.names if name not in used and name not in index]
        if len({*used}) < len(used) or column in used:
            raise ValueError(f"One column has one meaning, and {_told(used)} were named with {column!r}.")
        if column is None and not is_column:
            _check_rows(codec, names, schema)
        self._names = names if column is None else [column]
        self._is_column = is_column or column is not None

    def values(self) -> Iterator[Any]:
        """Yield the values as Python objects."""
        for batch in self._slices():
            yield from self._values(batch)

    def payloads(self, encode: Callable[[Any], bytes]) -> Iterator[list[bytes]]:
        """Yield the encoded values, in lists. Columns of simple types need no check of each value.

        Args:
            encode: encodes a value of any type, as the queue does.

        Raises:
            CodecError: the codec does not take a value.
        """
        for batch in self._slices():
            quick = self._quick(batch)
            yield [encode(value) for value in self._values(batch)] if quick is None else quick

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows with their terms."""
        for batch in self._slices():
            terms = [[None] * len(batch) if name is None else _listed(batch, name) for name in self._terms]
            terms[0] = [headers or None for headers in terms[0]]
            terms[1] = [_whole(priority) for priority in terms[1]]
            yield from map(TableRow, self._values(batch), *terms)

    def _slices(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            for at in range(0, len(batch), SLICE_ROWS):
                yield batch.slice(at, SLICE_ROWS)

    def _values(self, batch: pa.RecordBatch) -> Sequence[Any]:
        columns = [_listed(batch, name) for name in self._names]
        if self._is_column:
            return columns[0]
        if isinstance(self._codec, TupleCodec):
            return list(zip(*columns, strict=True))
        names = self._names
        return [dict(zip(names, record, strict=True)) for record in zip(*columns, strict=True)]

    def _quick(self, batch: pa.RecordBatch) -> list[bytes] | None:
        """Return the payloads if the types of the columns alone say that the codec takes all values."""
        kind = type(self._codec)
        if kind in (BytesCodec, StrCodec):
            column = batch.column(self._names[0])
            wanted = pa.types.is_binary if kind is BytesCodec else pa.types.is_string
            if column.null_count or not wanted(column.type):
                return None
            check_text(column, self._names[0])
            payloads: list[bytes] = (column if kind is BytesCodec else column.cast(pa.binary())).to_pylist()
            return payloads
        encoder = _ENCODERS.get(kind) if not getattr(self._codec, "typed", True) else None
        if encoder is None or not all(_is_simple(batch.column(name)) for name in self._names):
            return None
        columns = [_listed(batch, name) for name in self._names]
        if self._is_column:
            return list(map(encoder, columns[0]))
        return list(map(encoder, starmap(self._record, zip(*columns, strict=True))))

    @cached_property
    def _record(self) -> type[msgspec.Struct]:
        """A struct with the columns. It is made and encoded faster than a dict."""
        fields = [f"f{number}" for number in range(len(self._names))]
        return msgspec.defstruct("Record", fields, rename=dict(zip(fields, self._names, strict=True)), gc=False)


def _opened(table: object) -> tuple[Iterator[pa.RecordBatch], pa.Schema, bool]:
    """Return the batches of a table, its columns, and whether it is one column and no table."""
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except pa.ArrowInvalid:
        column = pa.chunked_array(table)
        schema = pa.schema([pa.field("value", column.type)])
        return (pa.RecordBatch.from_arrays([chunk], schema=schema) for chunk in column.chunks), schema, True
    return iter(reader), reader.schema, False


def _index_columns(schema: pa.Schema) -> set[str]:
    """Return the columns that a pandas index became. They are no columns of the DataFrame."""
    metadata = schema.pandas_metadata or {}
    return {name for name in metadata.get("index_columns", ()) if isinstance(name, str)}


def _check_rows(codec: Codec[Any], names: list[str], schema: pa.Schema) -> None:
    if isinstance(codec, BytesCodec | StrCodec):
        raise ValueError(
            f"The codec {codec.name!r} takes no rows: name the column with the values, as column={schema.names[0]!r}"
            f" of {_told(schema.names)}."
            if schema.names
            else f"The codec {codec.name!r} takes the values of a column, and the table has none."
        )
    if not names:
        raise ValueError("The table has no column left for the values.")
    if len({*names}) < len(names):
        raise ValueError(f"Two columns have the same name, and a row would lose one: {_told(names)}.")


def _is_simple(column: pa.Array) -> bool:
    """Return whether JSON and MessagePack give back every value of the column as it is."""
    kind = column.type
    types = pa.types
    if types.is_floating(kind):
        return not types.is_float16(kind) and bool(pc.all(pc.is_finite(column), min_count=0).as_py())
    return any(check(kind) for check in (types.is_integer, types.is_boolean, types.is_null, types.is_string))


def check_text(column: pa.Array, name: str) -> None:
    """Refuse bytes that are not UTF-8. Arrow allows them in a string, but no consumer could decode the item.

    Raises:
        CodecError: a value is not valid text.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CodecError(f"The column {name!r}, {column.type}, has a value that is not valid text: {error}.") from error


def _listed(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    try:
        nested = pa.types.is_nested(column.type)  # the argument makes the call ten times slower
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict") if nested else column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise CodecError(f"The column {name!r}, {column.type}, has a value that Python has not: {error}.") from error
    return values


def _whole(number: object) -> Any:
    """Return a whole number as an int. A column of pandas with numbers and nulls has floats."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _told(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no columns"
