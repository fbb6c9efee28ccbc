"""Back-off policies: how long an item that failed waits before its next attempt.

A policy is a function of the number of the attempt that failed, from 1, to seconds. Any function of one's own will do.

>>> [exponential(first=1, factor=2, longest=5)(attempt) for attempt in (1, 2, 3, 4)]
[1, 2, 4, 5]
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

Backoff: TypeAlias = Callable[[int], float]


def immediately(attempt: int) -> float:
    """Let the item stand in its old place at once, in front of all that came after it."""
    return 0.0


def constant(seconds: float) -> Backoff:
    """Wait the same time after every failure."""
    return lambda attempt: seconds


def exponential(*, first: float = 1.0, factor: float = 2.0, longest: float = 3_600.0, jitter: float = 0.0) -> Backoff:
    """Wait `first` seconds, then `factor` times as long after each further failure, up to `longest`.

    Args:
        jitter: each wait is made longer by a random part of itself up to this one, so that items that failed together
            do not come back together; 0.1 is up to a tenth.
    """

    def seconds(attempt: int) -> float:
        try:
            wait = min(longest, first * factor ** (attempt - 1))
        except OverflowError:
            wait = longest
        return wait * (1 + random.uniform(0, jitter)) if jitter else wait

    return seconds
