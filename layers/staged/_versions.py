"""Versions: as of when to look or to write, by what a process has seen in its last turns, so that the next cost less.

Nothing here decides who gets what. A guess that is wrong costs a round trip, and no more.
"""

from __future__ import annotations

import time

RECENT_SECONDS = 1.0
"""A version stays good for conflict checks for five seconds on both engines; nobody needs an old one."""
PAUSE_CALLS = 64
"""After a version could not be looked at, so many calls don't try."""


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


class OwnVersion:
    """Whether to look as of one's own registration, which spares the round trip that asks for a newer version.

    A cluster shows that state for seconds, the embedded engine only as long as nobody else commits.
    """

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = 0

    def of(self, version: int) -> int:
        """Return the version to look at after a registration that was committed at `version`; 0: the newest."""
        if self._pause:
            self._pause -= 1
            return 0
        return max(version, 0)

    def was_refused(self) -> None:
        """Learn that it could not be looked at."""
        self._pause = PAUSE_CALLS
