"""Versions that this process saw recently, so that its next reads or writes need fewer round trips.

Nothing here decides which process gets an item. A wrong guess costs one round trip.
"""

from __future__ import annotations

import time

RECENT_SECONDS = 1.0
"""How long a version is used. Both engines check conflicts for five seconds; older versions are never needed."""
PAUSE_CALLS = 64
"""After a read at a version failed, so many calls don't try again."""


class RecentVersion:
    """A version of the database that this process saw recently.

    A transaction that reads nothing may begin at it, without a round trip for a newer one. The commit orders its writes
    anyway.
    """

    __slots__ = ("_seen_at", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._seen_at = 0.0

    def note(self, version: int) -> None:
        """Remember a version that was just committed or read; 0 or less: there is none."""
        if version > 0:
            self._version, self._seen_at = version, time.monotonic()

    def take(self) -> int:
        """Return the version and forget it, so that a failed attempt gets a new one. Return 0 if there is none."""
        version, self._version = self._version, 0
        return version if time.monotonic() - self._seen_at < RECENT_SECONDS else 0


class OwnVersion:
    """Whether to read at the version of one's own registration, without a round trip for a newer version.

    A cluster serves that version for seconds, the embedded engine only until the next commit.
    """

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = 0

    def of(self, version: int) -> int:
        """Return the version to read at, after a registration that committed at `version`; 0: the newest."""
        if self._pause:
            self._pause -= 1
            return 0
        return max(version, 0)

    def was_refused(self) -> None:
        """Note that a read at that version failed."""
        self._pause = PAUSE_CALLS
