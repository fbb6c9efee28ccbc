"""How many items a consumer leases ahead of its handlers, by the rate at which they work.

A lease or an ack costs a transaction, for one item or for a hundred. If handlers are quick, a few items leased ahead
are gone before the next transaction ends, and most of the time goes into waits. So the consumer leases more ahead: as
many as its handlers begin in a tenth of a second. If handlers become slow, items that have waited for a second are
given back for other consumers, and none is leased ahead until handlers are quick again. (docs/adr/0121)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ._holds import BATCH_ITEMS

AHEAD_SECONDS = 0.1
"""A consumer leases ahead what its handlers begin in this time."""
WAIT_SECONDS = 1.0
"""After this time, items that were leased ahead and did not begin are given back."""
GATHER_SECONDS = 0.02
"""How long acks wait for each other if handlers are quick."""


class Pace:
    """The rate of one consumer's handlers.

    Args:
        concurrency: how many handlers run at once.
        capacity: how many items are leased at least before no more are leased, begun or not.
        adapts: whether that number grows with the rate.
        clock: returns the time in seconds; for tests.
    """

    __slots__ = ("_adapts", "_begun", "_clock", "_concurrency", "_floor", "_least", "_since", "capacity")

    def __init__(
        self, concurrency: int, capacity: int, *, adapts: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrency = concurrency
        self._least = self._floor = self.capacity = capacity
        """The number of items that are leased at most now, begun or not."""
        self._adapts = adapts
        self._clock = clock
        self._begun = 0
        self._since = clock()

    @property
    def is_quick(self) -> bool:
        """Whether handlers are so quick that more items are leased ahead than at first."""
        return self.capacity > self._least

    @property
    def least_room(self) -> int:
        """For how many items there must be room before more are leased, while others are ready."""
        return self.capacity // (2 if self.is_quick else 4)

    def slow_down(self) -> None:
        """Lease nothing ahead, until each handler ends in less than a second again."""
        self._floor = self.capacity = self._concurrency
        self._begun, self._since = 0, self._clock()

    def begin(self) -> None:
        """Note that a handler begins."""
        self._begun += 1

    def adapt(self) -> None:
        """Adapt the capacity to the rate since the last time, if that is long enough ago to tell."""
        if not self._adapts:
            return
        now = self._clock()
        seconds = now - self._since
        if self._begun < self._least and seconds < AHEAD_SECONDS:
            return
        rate = self._begun / max(seconds, 1e-6)
        if rate * WAIT_SECONDS > self._concurrency:
            self._floor = self._least
        ahead = min(BATCH_ITEMS, int(rate * AHEAD_SECONDS))
        self.capacity = max(self._floor, min(self._concurrency + ahead, 2 * self.capacity))
        self._begun, self._since = 0, now
