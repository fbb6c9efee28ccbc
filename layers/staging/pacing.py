"""When to look, and as of when: what a process learns from its last turns, so that the next ones cost less.

Nothing here decides who gets what. A guess that is wrong costs a round trip, and no more.
"""

from __future__ import annotations

import time

RECENT_SECONDS = 1.0
"""A version stays good for conflict checks for five seconds on both engines; nobody needs an old one."""
_FIRST_SECONDS = 0.003
_SHORTEST_SECONDS = 0.0005
_LONGEST_SECONDS = 0.02
_AGAIN_SECONDS = 0.0007


class RecentVersion:
    """A version of the database that this process has seen lately.

    A transaction that reads nothing may begin there, and then needs no round trip to ask for a newer one: what it
    writes is ordered by its commit anyway.
    """

    __slots__ = ("_seen_at", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._seen_at = 0.0

    def note(self, version: int) -> None:
        """Remember a version that was committed or read just now; 0 or less: none."""
        if version > 0:
            self._version, self._seen_at = version, time.monotonic()

    def take(self) -> int:
        """Return it and forget it: an attempt that failed there wants another; 0: there is none."""
        version, self._version = self._version, 0
        return version if time.monotonic() - self._seen_at < RECENT_SECONDS else 0


class Pace:
    """How long to leave those in front alone before looking whether they served this one.

    Who was served by another the last time expects the same again. To look at once would find nothing, and to set
    watches and be woken by them is three round trips more than to look when the grant is there. The time is shortened a
    little by each first look that finds a grant, and lengthened by each that does not, which is soon made again.
    """

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = _FIRST_SECONDS

    def seconds(self) -> float:
        """Return how long to wait."""
        return self._seconds

    def found(self, *, first: bool) -> None:
        """Learn from a look that found a grant, the first one or a later one."""
        if first:
            self._seconds = max(0.95 * self._seconds, _SHORTEST_SECONDS)

    def again(self) -> float:
        """Return how long to wait after a look that found none, and learn from it."""
        self._seconds = min(self._seconds + 0.5 * _AGAIN_SECONDS, _LONGEST_SECONDS)
        return _AGAIN_SECONDS
