"""Back-off policies: the time that a failed item waits before its next attempt.

A policy is a function. It takes the number of the attempt that failed, from 1, and returns seconds. Any such function
works.

>>> [exponential(first=1, factor=2, longest=5)(attempt) for attempt in (1, 2, 3, 4)]
[1, 2, 4, 5]
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

Backoff: TypeAlias = Callable[[int], float]


def immediately(attempt: int) -> float:
    """Return 0: the item is in its old place at once, in front of all later items."""
    return 0.0


def constant(seconds: float) -> Backoff:
    """Return a policy that waits the same time after every failure."""
    return lambda attempt: seconds


def exponential(*, first: float = 1.0, factor: float = 2.0, longest: float = 3_600.0, jitter: float = 0.0) -> Backoff:
    """Return a policy whose waits grow from `first` seconds by `factor` per failure, up to `longest`.

    Args:
        jitter: the largest random extension of each wait, as a fraction. Items that failed together then do not come
            back together; 0.1 is up to a tenth.
    """

    def seconds(attempt: int) -> float:
        try:
            wait = min(longest, first * factor ** (attempt - 1))
        except OverflowError:
            wait = longest
        return wait * (1 + random.uniform(0, jitter)) if jitter else wait

    return seconds
