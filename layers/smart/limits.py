"""Limits: how many items of a queue, a type or a key there may be, and what happens to one more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias, cast

WhenFull: TypeAlias = Literal["refuse", "drop newest", "drop oldest", "wait"]
_CHOICES = ("refuse", "drop newest", "drop oldest", "wait")
MOST_COUNTED = 10_000
"""Largest limit of a type or a key: a limit check counts index entries, one per item."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most items that there may be, and what happens to one more.

    Raises:
        TypeError: `most` is not an integer.
        ValueError: `most` is less than 1, or `when_full` is not one of the choices.

    >>> from fdbqueue.layers import Limit
    >>> Limit(3).when_full
    'refuse'
    """

    most: int
    """How many items there may be; dead letters do not count."""
    when_full: WhenFull = "refuse"
    """What happens to one more item. "refuse" raises `QueueFull`. "drop newest" leaves the incoming item out, and
    deletes nothing for it. "drop oldest" deletes the first enqueued of the least urgent items; it means the same for
    the limit of a queue, a type and a key. "wait" waits for room if the call is given a database, else it refuses.

    The least urgent items are those with the highest rank; in a first in, first out queue that is all items. Positions
    tell which item was enqueued first, so a delayed item may be dropped too. A leased item is not dropped: the next one
    is dropped instead. The incoming item is not part of this choice. It is enqueued even if it is less urgent than all
    queued items."""

    def __post_init__(self) -> None:
        most: object = self.most
        if not isinstance(most, int) or isinstance(most, bool):
            raise TypeError(f"A limit is a whole number of items, as in Limit(100), not {self.most!r}.")
        if self.most < 1:
            raise ValueError(f"A limit is at least 1, not {self.most}.")
        if self.when_full not in _CHOICES:
            raise ValueError(f"when_full is one of {', '.join(map(repr, _CHOICES))}, not {self.when_full!r}.")


def check_bounds(limit: object, **bounds: float) -> None:
    """Raise an error if an argument of a smart queue is no limit, or no bound.

    Args:
        limit: how many items there may be.
        bounds: the other bounds by their names.
    """
    if limit is not None and not isinstance(limit, Limit):
        raise TypeError(f"limit is a Limit, as in Limit(100), not {limit!r}.")
    for name, bound in bounds.items():
        least = 0 if name == "check_seconds" else 1
        is_number = isinstance(cast(object, bound), Real) and not isinstance(bound, bool)
        if not is_number or not (bound > 0 and bound >= least) or bound == math.inf:
            raise ValueError(f"{name} is a bound, a number {'of at least 1' if least else 'over 0'}, not {bound!r}.")
