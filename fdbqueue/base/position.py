"""Positions: the identity of an item, and its place in the queue's order."""

from __future__ import annotations

from dataclasses import dataclass, field

from fdbqueue.base.reprs import Shown


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

    @property
    def text(self) -> str:
        """The position as text: ``INDEX:RANDOM`` or ``RANK:INDEX:RANDOM``, the random part in hexadecimal.

        >>> from fdbqueue import Position
        >>> Position(7, b"random").text, Position(7, b"random", rank=3).text
        ('7:72616e646f6d', '3:7:72616e646f6d')
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
                return cls(int(numbers[-1]), bytes.fromhex(random), rank=rank)
        except ValueError:
            pass  # not in hex, or too many digits
        raise ValueError(f"{text!r} is not a position. A position looks like INDEX:RANDOM or RANK:INDEX:RANDOM.")
