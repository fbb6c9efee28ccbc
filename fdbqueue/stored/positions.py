"""Positions as bytes: the end of an item's key, and the place in front of it that is the item's state."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.base.position import Position, check_position
from fdbqueue.errors import FormatError

RANDOM_BYTES = 8
TAKEN = b"\x00\x00"
"""Added to the key of a taken item, this ends the range that is cleared with the item.

The range is a little more than the key. While other consumers take the items ahead, each its own, a claimer reads the
gaps between those items, not their keys. It conflicts with an out-of-turn take, which also clears these two bytes, and
never with an in-turn take. (docs/adr/0078)
"""
FIRST_INTEGER = b"\x14"  # type code of 0, the first integer that is not negative
AFTER_INTEGERS = b"\x1d"
_BYTES = [bytes((byte,)) for byte in range(256)]


_INTEGER = b"(?:\\x14|%b)" % b"|".join(
    b"%b[^\\x00].{%d}" % (re.escape(bytes((0x14 + size,))), size - 1) for size in range(1, 9)
)
_is_packed = re.compile(b"%b{1,2}\\x01[^\\x00]*(?:\\x00\\xff[^\\x00]*)*\\x00" % _INTEGER, re.DOTALL).fullmatch

REMOVE_FOREIGN = "Remove it by fdbqueue.check(db, queue, remove_foreign=True), or by fdbqueue check --remove-foreign."
"""What to do about a foreign key."""


class Place:
    """The keys of the items of one state. An item's keys in two places differ only before its position.

    Args:
        prefix: the bytes before the packed position.
    """

    __slots__ = ("begin", "end", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.begin = prefix + FIRST_INTEGER
        self.end = prefix + AFTER_INTEGERS

    def key(self, packed: bytes) -> bytes:
        """Return the key of an item from its packed position."""
        return self.prefix + packed

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in a key. Another place's `key` makes the item's key there from it."""
        return key[len(self.prefix) :]

    def level(self, rank: int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the items of one rank."""
        begin = self.prefix + pack_integer(rank)
        return begin + FIRST_INTEGER, begin + AFTER_INTEGERS

    def position(self, key: bytes) -> Position:
        """Return the position in a key.

        Raises:
            FormatError: the key is foreign.
        """
        at = len(self.prefix)
        end = key[at] - 0x13 + at
        number = int.from_bytes(key[at + 1 : end])
        raw = key[end + 1 : -1]
        # True for few keys. A search for a number takes a quarter of the time of one for bytes.
        if key[end : end + 1] != b"\x01" or key[-1] or not key[at + 1] or 0 in raw:
            if not is_packed(key, at):
                raise foreign_item(key)
            if key[end : end + 1] != b"\x01":
                return _ranked(number, key, end)
            raw = raw.replace(b"\x00\xff", b"\x00")
        position: Position = _new(Position)
        _set_rank(position, None)
        _set_index(position, number)
        _set_random(position, raw)
        return position


def foreign_item(key: bytes) -> FormatError:
    """Return the error for a foreign key among the items."""
    return FormatError(
        f"The key {key!r} is among the items of a queue, and has no position: fdbqueue did not write it."
        f" {REMOVE_FOREIGN}"
    )


# Every item that is read gets its position. The generated `__init__` of a frozen dataclass sets each attribute by name.
# Setting them through the slots takes half the time.
_new: Any = object.__new__
_set_rank, _set_index, _set_random = (vars(Position)[name].__set__ for name in ("rank", "index", "random"))


def _ranked(rank: int, key: bytes, at: int) -> Position:
    """Return the position in a key whose rank has been read up to `at`."""
    end = at + 1 + max(0, key[at] - 0x14 if at < len(key) else 0)
    random = key[end + 1 : -1].replace(b"\x00\xff", b"\x00")
    return Position(int.from_bytes(key[at + 1 : end], "big"), random, rank=rank)


def pack(position: Position) -> bytes:
    """Return a position packed as the end of a key: the tuple ``(index, random)`` or ``(rank, index, random)``.

    Raises:
        TypeError, ValueError: no item can have it, and the caller made it.
    """
    try:
        in_level = b"%b\x01%b\x00" % (pack_integer(position.index), position.random.replace(b"\x00", b"\x00\xff"))
        return in_level if position.rank is None else pack_integer(position.rank) + in_level
    except (AttributeError, TypeError, ValueError, OverflowError):
        check_position(position)
        raise


def is_packed(packed: bytes, at: int = 0) -> bool:
    """Return whether bytes, from `at` on, are a packed position: exactly what `pack` returns for the position in them.

    >>> is_packed(pack(Position(7, b"random"))), is_packed(pack(Position(7, b"random"))[:-1])
    (True, False)
    """
    return _is_packed(packed, at) is not None


def rank_of(packed: bytes) -> int | None:
    """Return the rank in a packed position; None if it has none.

    >>> rank_of(pack(Position(7, b"random"))), rank_of(pack(Position(7, b"random", rank=3)))
    (None, 3)
    """
    end = packed[0] - 0x13
    return None if packed[end : end + 1] == b"\x01" else int.from_bytes(packed[1:end], "big")


def keys_in_a_row(prefix: bytes, index: int, amount: int, random: bytes) -> list[bytes]:
    """Return packed positions behind `prefix`. Runs of up to 256 differ only in the last byte of the index."""
    tail = b"\x01%b\x00" % random.replace(b"\x00", b"\x00\xff")
    if amount == 1:
        return [prefix + pack_integer(index) + tail]
    ends = [last + tail for last in _BYTES] if amount > len(_BYTES) else []
    end = index + amount
    keys: list[bytes] = []
    if not index and amount:
        keys.append(prefix + FIRST_INTEGER + tail)  # 0 has no byte at all
        index = 1
    while index < end:
        head = prefix + pack_integer(index)[:-1]
        first = index & 0xFF
        if ends:
            found = [head + last for last in ends[first : first + end - index]]
        else:
            found = [head + last + tail for last in _BYTES[first : first + end - index]]
        keys += found
        index += len(found)
    return keys


def pack_integer(number: int) -> bytes:
    """Return an integer packed, from 0 on."""
    size = (number.bit_length() + 7) // 8
    return bytes((0x14 + size,)) + number.to_bytes(size, "big")


new_random: Callable[[], bytes] = partial(os.urandom, RANDOM_BYTES)
"""Return the random part of a key; `RANDOM_BYTES` bytes."""
