"""Positions: the identity of an item, and its place in the queue's order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from fdbqueue.base.reprs import Shown
from fdbqueue.base.typed import filled_by_slots

NUMBER_BITS = 64
"""An index and a rank are below 2^64."""


@filled_by_slots
@dataclass(frozen=True, slots=True, order=True, repr=False)
class Position(Shown):
    """An item's identity and its place in the queue's order. It is assigned once, at the item's enqueue."""

    rank: int | None = field(default=None, kw_only=True)
    """The item's rank in a queue with its own order, smaller is sooner; None in any other queue."""

    index: int
    """One more than the last index that the enqueueing transaction saw; starts at 1 on an empty queue."""

    random: bytes
    """Makes the key unique if concurrent producers took the same index."""

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f"rank={self.rank}, "
        return f"Position({rank}index={self.index}, random={self.random!r})"

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The position as text: ``INDEX:RANDOM`` or ``RANK:INDEX:RANDOM``, the random part in hexadecimal.

        >>> from fdbqueue import Position
        >>> Position(7, b"random").text, Position(7, b"random", rank=3).text
        ('7:72616e646f6d', '3:7:72616e646f6d')
        >>> print(Position(7, b"random"))
        7:72616e646f6d
        """
        rank = "" if self.rank is None else f"{self.rank}:"
        return f"{rank}{self.index}:{self.random.hex()}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position that `text` describes.

        Raises:
            ValueError: it describes no position. TypeError: it is no text.

        >>> from fdbqueue import Position
        >>> Position.parse("3:7:72616e646f6d")
        Position(rank=3, index=7, random=b'random')
        """
        if not isinstance(text, str):
            raise TypeError(f"The text of a position is a str, as `Position.text` makes it, not {text!r}.")
        *numbers, random = text.split(":")
        try:
            if 1 <= len(numbers) <= 2 and all(number.isdecimal() for number in numbers):
                rank = int(numbers[0]) if len(numbers) == 2 else None
                position = cls(int(numbers[-1]), bytes.fromhex(random), rank=rank)
                check_position(position)
                return position
        except ValueError:
            pass  # not in hex, or too large
        raise ValueError(f"{text!r} is not a position. A position looks like INDEX:RANDOM or RANK:INDEX:RANDOM.")


def check_position(position: Position) -> None:
    """Refuse a position that no item can have.

    `Position` itself checks nothing, since one is made for every item that is read.

    Raises:
        TypeError: a part of it is of a wrong kind. ValueError: a number is negative, or too large.
    """
    remedy = "Take the position that enqueue returned, or Position.parse(text)."
    for name, number in (("index", position.index), ("rank", position.rank)):
        if number is None and name == "rank":
            continue
        if type(number) is not int:
            raise TypeError(f"The {name} of a position is a whole number, not {number!r}. {remedy}")
        if number < 0 or number.bit_length() > NUMBER_BITS:
            told = number if number.bit_length() <= 2 * NUMBER_BITS else f"one of {number.bit_length():,} bits"
            raise ValueError(f"The {name} of a position is 0 or more, and below 2^{NUMBER_BITS}, not {told}. {remedy}")
    if not isinstance(cast(object, position.random), bytes):
        raise TypeError(f"The random part of a position is bytes, not {position.random!r}. {remedy}")


# The report of a bulk enqueue.


@dataclass(frozen=True, slots=True, repr=False)
class BulkReport(Shown):
    """The result of a bulk enqueue."""

    items: int
    """Values that are in the queue now."""
    size_bytes: int
    """Bytes of their payloads, encoded."""
    first: Position | None
    """The position of the first one; None if there are none."""
    last: Position | None
    """The position of the last one."""
    transactions: int = 0
    """Commits that took effect; 0 in a caller's transaction."""
    conflicts: int = 0
    """Commits that failed with 1020 and were repeated."""
    retries: int = 0
    """Commits that failed and were repeated, conflicts included."""
    seconds: float = 0.0
    """The time from the first value to the last commit."""
