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
        ValueError: `most` is less than 1, or `when_full` is no choice.

    >>> Limit(3).when_full
    'refuse'
    """

    most: int
    """How many items there may be; dead letters do not count."""
    when_full: WhenFull = "refuse"
    """With one more: "refuse" raises `QueueFull`; "drop newest" leaves the newcomer out, and deletes nothing
    for it; "drop oldest" deletes the first items that nobody has leased; "wait" waits for room, where the call commits
    by itself, else refuses."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"A limit is at least 1, not {self.most}.")
        if self.when_full not in _CHOICES:
            raise ValueError(f"when_full is one of {', '.join(map(repr, _CHOICES))}, not {self.when_full!r}.")
