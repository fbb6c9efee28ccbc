"""Clocks for what takes one."""

from __future__ import annotations

import time


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def slow() -> float:
    """Return the time of a clock that runs a hundred times slower, for leases that nobody may lose on a busy machine.

    Who holds a lease extends it by the time of the machine.
    """
    return time.time() / 100
