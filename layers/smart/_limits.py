"""Limits: how many items there may be, of a queue, a type or a key, and what happens when one more comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

WhenFull: TypeAlias = Literal["refuse", "drop newest", "drop oldest", "wait"]
_CHOICES = ("refuse", "drop newest", "drop oldest", "wait")
MOST_COUNTED = 10_000
"""A limit of a type or of a key is counted in the index, one key an item."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many items.

    Raises:
        TypeError: `most` is no integer.
        ValueError: `most` is less than 1, or `when_full` is no choice.

    >>> Limit(3).when_full
    'refuse'
    """

    most: int
    """How many items there may be; dead letters do not count."""
    when_full: WhenFull = "refuse"
    """With one more: "refuse" raises `QueueFull`. "drop newest" leaves the newcomer out, and deletes nothing for it.
    "drop oldest" deletes the item that was enqueued first among those that are least urgent; it means the same for the
    limit of a queue, a type and a key. "wait" waits for room if the call commits by itself, else it refuses.

    Least urgent are the items with the highest rank that there is; in a queue that is first in, first out, all items
    are. Which was enqueued first is told by their positions, so that a delayed item may be dropped, too. A leased item
    is not dropped: the next one goes. The newcomer is not compared, and comes in even if it is less urgent than all."""

    def __post_init__(self) -> None:
        most: object = self.most
        if not isinstance(most, int) or isinstance(most, bool):
            raise TypeError(f"A limit is a whole number of items, as in Limit(100), not {self.most!r}.")
        if self.most < 1:
            raise ValueError(f"A limit is at least 1, not {self.most}.")
        if self.when_full not in _CHOICES:
            raise ValueError(f"when_full is one of {', '.join(map(repr, _CHOICES))}, not {self.when_full!r}.")
