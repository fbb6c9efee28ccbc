"""The columns of items, as Arrow's record batches: of `Queue.to_arrow`, and of Spark's looks and streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fdbqueue.arrow.needs import Column, column_parts
from fdbqueue.arrow.stored import Page, Stored, whole
from fdbqueue.base.position import Position
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.stored.codecs import CODEC_ERRORS, Codec, reason_of
from fdbqueue.stored.items import NO_NOTES, PLAIN, Notes, has_notes, headers_of, notes_of, salvaged_notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.order import MAX_INDEX, MAX_RANK
from fdbqueue.stored.positions import Place, is_packed

_BASE = 0x14
"""The type code of an integer without bytes; one more for each byte."""


class Positions(NamedTuple):
    """The columns of positions."""

    text: pa.Array
    rank: pa.Array
    index: pa.Array


def parsed(keys: Sequence[bytes], cut: int = 0) -> Positions:
    """Return the columns of the packed positions that begin in keys at `cut`.

    Positions of one shape, with integers of equal sizes and without escaped bytes, are parsed together.

    >>> from fdbqueue import Position
    >>> from fdbqueue.stored.layout import pack
    >>> found = parsed([pack(Position(7, b"random")), pack(Position(7, b"random", rank=300))])
    >>> found.text.to_pylist(), found.rank.to_pylist(), found.index.to_pylist()
    (['7:72616e646f6d', '300:7:72616e646f6d'], [None, 300], [7, 7])
    """
    if not keys:
        return Positions(pa.array([], pa.string()), pa.array([], pa.int64()), pa.array([], pa.int64()))
    if len({*map(len, keys)}) == 1:
        return _of_one_size(keys, cut)
    groups: dict[int, list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(len(key), []).append(at)
    parts = [_of_one_size([keys[at] for at in places], cut) for places in groups.values()]
    back = np.argsort(np.concatenate([np.asarray(places) for places in groups.values()]))
    return Positions(*(pa.concat_arrays([part[column] for part in parts]).take(pa.array(back)) for column in range(3)))


def _of_one_size(keys: Sequence[bytes], cut: int) -> Positions:
    cells = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)[:, cut:]
    first = keys[0][cut:]
    if not is_packed(first):
        return _one_by_one(keys, cut)  # the first one is foreign
    at = first[0] - _BASE + 1
    codes = [0]
    if first[at] != 1:
        codes.append(at)
        at += 1 + first[at] - _BASE
    random = cells[:, at + 1 : -1]
    heads = [*codes, at, -1]
    one_load = _all_equal(random)
    same = (cells[:, heads] == cells[0, heads]).all() and all(_are_numbers(cells, code) for code in codes)
    if not same or not (one_load or random.all()):
        return _one_by_one(keys, cut)
    numbers = [_integers(cells[:, code + 1 : code + 1 + first[code] - _BASE]) for code in codes]
    if one_load:
        tail = random[0].tobytes().replace(b"\x00\xff", b"\x00").hex()
        text = _with_one_tail(numbers[0], f":{tail}") if len(numbers) == 1 else None
        tails: pa.Array | pa.Scalar = pa.scalar(tail)
    else:
        text = None
        hexed = random.tobytes().hex().encode()
        ends = np.arange(len(keys) + 1, dtype=np.int32) * np.int32(2 * random.shape[1])
        tails = pa.Array.from_buffers(pa.string(), len(keys), [None, pa.py_buffer(ends), pa.py_buffer(hexed)])
    if text is None:
        text = pc.binary_join_element_wise(*(number.cast(pa.string()) for number in numbers), tails, ":")
    rank = numbers[0] if len(numbers) == 2 else pa.nulls(len(keys), pa.int64())
    return Positions(text, rank, numbers[-1])


def _are_numbers(cells: np.ndarray[tuple[int, int], np.dtype[np.uint8]], code: int) -> bool:
    """Return whether the integers behind a type code are packed as the library packs them, and fit into a column."""
    size = int(cells[0, code]) - _BASE
    return not size or bool(cells[:, code + 1].all() and (size < 8 or (cells[:, code + 1] < 0x80).all()))


def _integers(cells: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    """Return the integers whose bytes are the rows, the first byte highest."""
    wide = np.zeros((len(cells), 8), np.uint8)
    wide[:, 8 - cells.shape[1] :] = cells
    return pa.array(wide.view(">i8").reshape(-1).astype(np.int64))


def _all_equal(cells: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bool:
    """Return whether all rows have the same bytes."""
    if cells.shape[1] != 8:
        return bool((cells == cells[0]).all())
    words = np.ascontiguousarray(cells).view(np.uint64)  # one comparison for each row instead of eight
    return bool((words == words[0]).all())


def _with_one_tail(numbers: pa.Array, tail: str) -> pa.Array | None:
    """Return the decimal digits of `numbers`, each with the same tail; None if they are not of one length.

    It copies whole columns of characters. To join texts of any lengths takes Arrow three times as long.
    """
    digits = numbers.cast(pa.string())
    found = pc.min_max(numbers).as_py()
    size = len(str(found["max"]))
    if len(str(found["min"])) != size or found["min"] < 0:
        return None
    _, _, data = digits.buffers()
    amount, width = len(numbers), size + len(tail)
    cells = np.empty((amount, width), np.uint8)
    cells[:, :size] = np.frombuffer(data, np.uint8, amount * size).reshape(amount, size)
    cells[:, size:] = np.frombuffer(tail.encode(), np.uint8)
    ends = np.arange(amount + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.string(), amount, [None, pa.py_buffer(ends), pa.py_buffer(cells)])


def _one_by_one(keys: Sequence[bytes], cut: int) -> Positions:
    found = [_position(key, cut) for key in keys]
    return Positions(
        pa.array([one.text for one in found], pa.string()),
        pa.array([one.rank for one in found], pa.int64()),
        pa.array([one.index for one in found], pa.int64()),
    )


def _position(key: bytes, cut: int) -> Position:
    position = Place(key[:cut]).position(key)
    if position.index > MAX_INDEX or (position.rank or 0) > MAX_RANK:
        raise FormatError(
            f"The key {key!r} has the position {position.text}, whose numbers are over 2^63 - 1: fdbqueue did not give"
            " it, and a column can't hold it. Remove the item: cancel it."
        )
    return position


OnBad: TypeAlias = Literal["fail", "null"]
TEXTS = ("str", "json", "msgpack", "tuple")
"""The names of the codecs whose values are shown as text. All others are shown as bytes."""
_TIME = pa.timestamp("us", "UTC")
_KINDS = {"time": _TIME, "number": pa.int32(), "text": pa.string()}
_HEADERS = pa.map_(pa.string(), pa.string())
_to_json = msgspec.json.encode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


def look_fields(codec: str) -> pa.Schema:
    """Return the columns of items in all states."""
    return pa.schema(
        [
            pa.field("position", pa.string(), nullable=False),
            pa.field("rank", pa.int64()),
            pa.field("index", pa.int64(), nullable=False),
            pa.field("value", pa.string() if codec in TEXTS else pa.binary()),
            pa.field("headers", _HEADERS),
            pa.field("state", pa.string(), nullable=False),
            *(pa.field(one.name, _KINDS[one.kind], nullable=one.kind != "number") for one in _contributed().values()),
        ]
    )


@cache
def _contributed() -> dict[str, Column]:
    """Return the columns that layers add, by name."""
    return {column.name: column for columns in column_parts.all().values() for column in columns}


class Columns:
    """Makes record batches of stored items.

    Args:
        layout: the queue's.
        codec: the queue's.
        schema: the columns to make, of `look_fields`, ``queue`` and ``session``.
        on_bad: "null" shows an item that can't be read without its value.
        queue: the text of the column ``queue``.
        session_name: returns the text of the column ``session`` from a packed name.
    """

    def __init__(
        self,
        layout: Layout,
        codec: Codec[Any],
        schema: pa.Schema,
        *,
        on_bad: OnBad = "fail",
        queue: str = "",
        session_name: Callable[[bytes], str] = repr,
    ) -> None:
        self.schema = schema
        self._layout = layout
        self._codec = codec
        self._on_bad = on_bad
        self._queue = queue
        self._session_name = session_name
        self._names = schema.names
        self._constants: dict[tuple[Any, pa.DataType], pa.Array] = {}
        self._needs_positions = not {"position", "rank", "index"}.isdisjoint(self._names)
        self._needs_notes = not _contributed().keys().isdisjoint(self._names)

    @property
    def payloads(self) -> bool:
        """Whether payloads are needed at all."""
        return "value" in self._names

    def batch(self, items: Sequence[Stored]) -> pa.RecordBatch:
        """Return items as a record batch.

        Raises:
            CodecError, FormatError: an item can't be read, and `on_bad` is not "null".
        """
        page = Page.of(items)
        positions = parsed(page.keys, page.cut) if self._needs_positions else None
        plain = page.kinds <= {PLAIN[0]}
        notes = None
        if not plain and self._needs_notes:
            notes = [self._notes(page, at) for at in range(len(page))]
        arrays = [
            self._column(name, field.type, page, positions, notes, plain)
            for name, field in zip(self._names, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(
        self,
        name: str,
        kind: pa.DataType,
        page: Page,
        positions: Positions | None,
        notes: list[Notes] | None,
        plain: bool,
    ) -> pa.Array:
        if positions is not None and name in ("position", "rank", "index"):
            return {"position": positions.text, "rank": positions.rank, "index": positions.index}[name]
        if name == "value":
            return self._values(page, kind, plain)
        if name == "session":
            names = {packed: self._session_name(packed) for packed in {*page.sessions.values()}}
            return pa.array([names.get(page.sessions.get(at, b"")) for at in range(len(page))], kind)
        if name == "queue":
            return self._constant(self._queue, kind, len(page))
        if name == "state":
            one = isinstance(page.states, str)
            return self._constant(page.states, kind, len(page)) if one else pa.array(page.states, kind)
        if name == "headers":
            if plain:
                return self._constant(None, kind, len(page))
            return pa.array([self._headers(page, at) for at in range(len(page))], kind)
        column = _contributed()[name]
        claimed = page.streams if column.of_claimed else {}
        if notes is None and not claimed:
            return self._constant(column.of(NO_NOTES, ""), kind, len(page))
        states = repeat(page.states, len(page)) if isinstance(page.states, str) else page.states
        values = [*map(column.of, repeat(NO_NOTES) if notes is None else notes, states)]
        for at, stream in claimed.items():
            if column.of_claimed and at < len(values):
                values[at] = column.of_claimed(stream)
        return pa.array(values, kind)

    def _constant(self, value: object, kind: pa.DataType, size: int) -> pa.Array:
        """Return a column of one value. Pages share it."""
        known = self._constants.get((value, kind))
        if known is None or len(known) < size:
            known = pa.repeat(pa.scalar(value, kind), size)
            self._constants[value, kind] = known
        return known[:size]

    def _values(self, page: Page, kind: pa.DataType, plain: bool) -> pa.Array:
        if plain and not page.payloads:
            payloads = pc.binary_replace_slice(pa.array(page.values, pa.binary()), 0, 1, b"")
            name = self._codec.name
            if not pa.types.is_string(kind):
                return payloads.cast(kind)
            if name in ("str", "json"):
                try:
                    if name == "json":
                        deque(map(_check_json, payloads.to_pylist()), 0)  # a loop in C: it checks each, and keeps none
                    return payloads.cast(kind)
                except (pa.ArrowInvalid, *CODEC_ERRORS):
                    pass  # the loop below names the item
        return pa.array([self._value(item) for item in page], kind)

    def _value(self, item: Stored) -> Any:
        try:
            opened, payload = whole(item.value, item.payload)
            if opened.blob is not None and opened.blob.is_value:
                return None
            return self._shown(payload)
        except Exception as error:  # a codec may be code that is not ours
            if self._on_bad == "null":
                return None
            if isinstance(error, FormatError):
                raise self._unreadable(item.packed, error) from error
            raise CodecError(
                f"The item {text_of(item.packed)} of {self._layout.describe()} does not decode by the codec"
                f" {self._codec.name}: {reason_of(error)}. Read it with the codec bytes, or show it as null:"
                " on_bad='null', or Spark's option onBadItem.",
                position=position_of(item.packed),
            ) from error

    def _unreadable(self, packed: bytes, error: FormatError) -> FormatError:
        remedy = "Show it as null: on_bad='null', or Spark's option onBadItem. `Queue.cancel` removes it."
        return self._layout.unreadable_item(packed, error, remedy)

    def _shown(self, payload: bytes) -> Any:
        name = self._codec.name
        if name not in TEXTS:
            return payload
        value = self._codec.decode(payload)
        if name == "str":
            return value
        return payload.decode() if name == "json" else _to_json(value).decode()

    def _headers(self, page: Page, at: int) -> dict[str, str] | None:
        try:
            return shown_headers(headers_of(page.values[at]))
        except FormatError as error:
            if self._on_bad == "null":
                return None
            raise self._unreadable(page.packed(at), error) from error

    def _notes(self, page: Page, at: int) -> Notes:
        value = page.values[at]
        try:
            return notes_of(value) if has_notes(value) else NO_NOTES
        except FormatError as error:
            if self._on_bad == "null":
                return salvaged_notes(value)[0]
            raise self._unreadable(page.packed(at), error) from error


def shown_headers(headers: Mapping[str, object]) -> dict[str, str] | None:
    """Return headers as texts: a text as it is, anything else as JSON; None if there are none."""
    return {
        name: value if isinstance(value, str) else _to_json(value).decode() for name, value in headers.items()
    } or None


def text_of(packed: bytes) -> str:
    """Return the text of a packed position."""
    return position_of(packed).text


def position_of(packed: bytes) -> Position:
    """Return a packed position."""
    return _ANY.position_of(_ANY.prefix + packed)


_ANY = Layout("any")
