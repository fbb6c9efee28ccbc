"""Parse many packed positions at a time: their ranks, their indices, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fdbqueue.base.position import Position
from fdbqueue.errors import FormatError
from fdbqueue.stored.layout import Place, is_packed
from fdbqueue.stored.order import MAX_INDEX, MAX_RANK

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
