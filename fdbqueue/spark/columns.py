"""Turns Arrow's record batches into rows, column by column."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from fdbqueue.arrow.tables import check_text
from fdbqueue.errors import CodecError
from fdbqueue.layers.common.levels import PRIORITY
from fdbqueue.layers.leases.lease import LONGEST_SECONDS
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.spark.appenders import levels_of, sessions_at
from fdbqueue.spark.options import Options
from fdbqueue.spark.waiting_rows import SparkRows, digests_of
from fdbqueue.stored.codecs import codec_named
from fdbqueue.stored.items import INLINE_BYTES, PLAIN, Notes, envelope, with_notes

_pack = msgspec.msgpack.Encoder().encode
# A column has one type for all rows, so that a timestamp may be stored as text. The codecs refuse that for a value.
_ENCODERS = {"json": msgspec.json.Encoder().encode, "msgpack": _pack}


class RowColumns:
    """Converts the batches of a job.

    Args:
        options: the sink's options.
        names: the columns that make up the values.
    """

    def __init__(self, options: Options, names: list[str]) -> None:
        self._options = options
        self._names = names
        self._encode: Callable[[Any], bytes] = _ENCODERS.get(options.codec) or codec_named(options.codec).encode
        self._payloads = self._payload_reader()
        self._levels = levels_of(options)
        self._places = None if options.session_column is None else Places(options)

    def rows(self, batch: pa.RecordBatch) -> tuple[SparkRows, int]:
        """Return the batch's rows, and the size of their encoded values in bytes.

        Raises:
            CodecError: the codec does not take a value. ItemTooLarge: a value is over the limit.
        """
        payloads = self._payloads(batch)
        headers = self._headers(batch)
        queues = self._queues(batch)
        sizes = list(map(len, payloads))
        large: list[bytes | None] | None = None
        if max(sizes, default=0) > INLINE_BYTES:
            large = [payload if len(payload) > INLINE_BYTES else None for payload in payloads]
        stored = _envelopes(payloads, headers, some_large=large is not None)
        digests = _digests(payloads, headers, queues)
        if self._options.delay_column is not None or self._options.ttl_column is not None:
            stored, digests = self._with_times(batch, stored, digests)
        sessions = self._sessions(batch)
        if sessions is not None:
            digests = digests_of(map(_pack, zip(digests, sessions, strict=True)))
        return SparkRows(stored, digests, queues, large, sessions), sum(sizes)

    def _payload_reader(self) -> Callable[[pa.RecordBatch], list[bytes]]:
        options = self._options
        if options.codec in ("bytes", "str"):
            return self._as_they_are
        if options.value_column is not None:
            return self._of_one_column
        return self._of_all_columns

    def _as_they_are(self, batch: pa.RecordBatch) -> list[bytes]:
        column = batch.column(self._names[0])
        if column.null_count:
            raise CodecError(
                f"The column {self._names[0]!r} has {column.null_count:,} nulls in {len(column):,} rows, and the codec"
                f" {self._options.codec} does not take them. Filter them out, or choose codec=json."
            )
        if self._options.codec == "str":
            check_text(column, self._names[0])
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        values: list[bytes] = column.to_pylist()
        return values

    def _of_one_column(self, batch: pa.RecordBatch) -> list[bytes]:
        values = _values(batch, self._names[0])
        return self._encoded((value,) for value in values) if self._options.codec == "tuple" else self._encoded(values)

    def _of_all_columns(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = [_values(batch, name) for name in self._names]
        records = zip(*columns, strict=True)
        if self._options.codec == "tuple":
            return self._encoded(records)
        names = self._names
        return self._encoded(dict(zip(names, record, strict=True)) for record in records)

    def _encoded(self, values: Iterable[object]) -> list[bytes]:
        encode = self._encode
        try:
            return [encode(value) for value in values]
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(f"The codec {self._options.codec} does not take a row: {error}.") from error

    def _headers(self, batch: pa.RecordBatch) -> list[Mapping[str, Any] | None] | None:
        name = self._options.headers_column
        headers = None if name is None else [value or None for value in _values(batch, name)]
        name, levels = self._options.priority_column, self._levels
        if name is None or levels is None:
            return headers
        priorities = _values(batch, name)
        for priority in {*priorities} - {None}:
            try:
                levels.rank_of(priority)
            except ValueError as error:
                raise CodecError(f"The column {name!r}: {error}") from error
        return [
            one if priority is None else {**(one or {}), PRIORITY: priority}
            for one, priority in zip(headers or [None] * len(priorities), priorities, strict=True)
        ]

    def _with_times(
        self, batch: pa.RecordBatch, stored: list[bytes], digests: list[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the envelopes with the times of delays and lives, and digests that include the seconds."""
        now_us = time.time_ns() // 1_000
        delays = self._seconds(batch, self._options.delay_column)
        lives = self._seconds(batch, self._options.ttl_column)
        noted = [
            with_notes(
                one,
                Notes(
                    enqueued_at_us=now_us,
                    visible_at_us=now_us + int(delay * 1e6) if delay else 0,
                    ttl_at_us=0 if life is None else now_us + int(life * 1e6),
                ),
            )
            for one, delay, life in zip(stored, delays, lives, strict=True)
        ]
        return noted, digests_of(map(_pack, zip(digests, delays, lives, strict=True)))

    def _seconds(self, batch: pa.RecordBatch, name: str | None) -> list[float | None]:
        if name is None:
            return [None] * batch.num_rows
        values: list[float | None] = _values(batch, name)
        for value in values:
            if value is not None and not 0 <= value <= LONGEST_SECONDS:
                raise CodecError(
                    f"The column {name!r} has {value!r}, and seconds are 0 to {LONGEST_SECONDS:.0e}, or null."
                )
        return values

    def _sessions(self, batch: pa.RecordBatch) -> list[tuple[bytes, int]] | None:
        name, priority = self._options.session_column, self._options.priority_column
        if self._places is None or name is None:
            return None
        column = batch.column(name)
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            check_text(column, name)
        return self._places.of(column.to_pylist(), None if priority is None else _values(batch, priority))

    def _queues(self, batch: pa.RecordBatch) -> list[str | None] | None:
        name = self._options.queue_column
        if name is None:
            return None
        column = batch.column(name)
        if column.null_count and not self._options.names_a_queue:
            raise CodecError(
                f"The column {name!r} names no queue in {column.null_count:,} of {len(column):,} rows. Say by the"
                " option queue where those go."
            )
        check_text(column, name)
        queues: list[str | None] = column.to_pylist()
        if "" in queues:
            raise CodecError(f"The column {name!r} names a queue by an empty text. Use null for the option queue's.")
        return queues


class Places:
    """Makes the session and the level of each row from their columns.

    Args:
        options: the sink's options.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._levels = sessions_at(options, options.layout()).levels

    def of(self, names: Sequence[object], levels: Sequence[int | None] | None) -> list[tuple[bytes, int]]:
        """Return packed names and levels.

        Raises:
            CodecError: a value is no session's name, or no level.
        """
        packed = {name: self._name(name) for name in set(names)}
        found = {level: self._level(level) for level in set(levels or (None,))}
        return [(packed[name], found[level]) for name, level in zip(names, levels or repeat(None), strict=False)]

    def _name(self, name: object) -> bytes:
        column = self._options.session_column
        if name is None:
            raise CodecError(f"The column {column!r} has a null, and each row needs a session. Filter those rows out.")
        try:
            return pack_name(name)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise CodecError(f"The column {column!r}: {error}") from error

    def _level(self, level: int | None) -> int:
        if level is None:
            return self._levels - 1
        if not 0 <= level < self._levels:
            raise CodecError(
                f"The column {self._options.priority_column!r}: a level of these sessions is 0 to {self._levels - 1},"
                f" not {level}. The option levels says how many there are."
            )
        return level


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    wanted = _in_utc(column.type)
    if wanted != column.type:
        column = column.cast(wanted)
    # Asked for maps as dicts, Arrow converts value by value: five to ten times slower for numbers, texts and bytes.
    asked = {"maps_as_pydicts": "strict"} if _has_map(wanted) else {}
    try:
        values: list[Any] = column.to_pylist(**asked)
    except (ValueError, OverflowError) as error:
        raise CodecError(f"The column {name!r}, {column.type}, has a value that Python has not: {error}.") from error
    return values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(at).type) for at in range(kind.num_fields))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with all its timestamps in UTC. Spark gives them in the session's time zone, which may change."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _envelopes(
    payloads: list[bytes], headers: list[Mapping[str, object] | None] | None, *, some_large: bool
) -> list[bytes]:
    if headers is None and not some_large:
        return [PLAIN + payload for payload in payloads]
    beside = headers or [None] * len(payloads)
    return [envelope(payload, one) for payload, one in zip(payloads, beside, strict=True)]


def _digests(
    payloads: list[bytes], headers: list[Mapping[str, object] | None] | None, queues: list[str | None] | None
) -> list[bytes]:
    if headers is None and queues is None:
        return digests_of(payloads)
    names = queues or [None] * len(payloads)
    beside = headers or [None] * len(payloads)
    return digests_of(map(_pack, zip(names, beside, payloads, strict=True)))
