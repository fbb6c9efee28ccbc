"""Back-off policies: the time that a failed item waits before its next attempt.

A policy is a function. It takes the number of the attempt that failed, from 1, and returns seconds. Any such function
works. The policies here compare equal if their settings are equal, and can be pickled.

>>> from fdbqueue.layers import exponential
>>> [exponential(first=1, factor=2, longest=5)(attempt) for attempt in (1, 2, 3, 4)]
[1, 2, 4, 5]
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .times import not_negative, positive

Backoff: TypeAlias = Callable[[int], float]


def immediately(attempt: int) -> float:
    """Return 0: the item is in its old place at once, in front of all later items."""
    return 0.0


@dataclass(frozen=True, slots=True)
class _Constant:
    seconds: float

    def __call__(self, attempt: int) -> float:
        return self.seconds

    def __repr__(self) -> str:
        return f"constant({self.seconds})"


@dataclass(frozen=True, slots=True)
class _Exponential:
    first: float
    factor: float
    longest: float
    jitter: float

    def __call__(self, attempt: int) -> float:
        try:
            wait = min(self.longest, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            wait = self.longest
        return wait * (1 + random.uniform(0, self.jitter)) if self.jitter else wait

    def __repr__(self) -> str:
        return f"exponential(first={self.first}, factor={self.factor}, longest={self.longest}, jitter={self.jitter})"


def constant(seconds: float) -> Backoff:
    """Return a policy that waits the same time after every failure.

    Raises:
        TypeError, ValueError: `seconds` is no number of seconds, 0 or more.
    """
    not_negative(seconds, "seconds")
    return _Constant(seconds)


def exponential(*, first: float = 1.0, factor: float = 2.0, longest: float = 3_600.0, jitter: float = 0.0) -> Backoff:
    """Return a policy whose waits grow from `first` seconds by `factor` per failure, up to `longest`.

    Args:
        first: seconds before the second attempt, more than 0.
        factor: by how much each wait is longer than the one before, at least 1.
        longest: the longest wait in seconds, more than 0.
        jitter: the largest random part that is added to each wait. Items that failed together then do not come
            back together; 0.1 is up to a tenth.

    Raises:
        TypeError, ValueError: an argument is no such number.
    """
    positive(first, "first")
    positive(longest, "longest")
    bounds: tuple[tuple[str, Any, int], ...] = (("factor", factor, 1), ("jitter", jitter, 0))
    for name, number, least in bounds:
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise TypeError(f"{name} is a number, not {number!r}.")
        if not least <= number < math.inf:
            finite = ", and finite" if number == math.inf else ""
            raise ValueError(f"{name} is a number, {least} or more{finite}, not {number}.")
    return _Exponential(first, factor, longest, jitter)
