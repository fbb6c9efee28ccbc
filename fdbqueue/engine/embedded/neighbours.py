"""What processes that commit at the same time do about each other: they take turns of four milliseconds.

LMDB's lock goes from one process to another at every commit, if both commit all the time; each time the one sleeps and
has to be woken, which takes several times as long as the commit. So a process that finds another one in the middle of
its turn lets it be. Whose turn it is stands in a page that all share, the file ``turns``. It is advice and no lock:
who dies or stops in the middle of a turn, or has nothing to commit for a moment, has lost it.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

from fdbqueue.engine.embedded.sharedpage import open_page

TURN_NS: Final = 4_000_000
QUIET_NS: Final = 1_000_000
"""After how long without a commit the turn is lost."""
LONGEST_WAIT_NS: Final = 20_000_000

_PAGE: Final = struct.Struct("=QQQ")
_LAST: Final = struct.Struct("=Q")
_LAST_AT: Final = 16
_NAME: Final = "turns"


class Neighbours:
    """The processes that commit to one folder without waiting for the disk."""

    __slots__ = ("_me", "_now", "_page")

    def __init__(self, path: str) -> None:
        self._me = os.getpid()
        self._now = time.monotonic_ns
        fd, self._page = open_page(path, _NAME, _PAGE.size)
        os.close(fd)

    def wait(self) -> None:
        """Wait while it is another process' turn; then it is this one's."""
        page, now = self._page, self._now()
        holder, since, last = _PAGE.unpack_from(page)
        if holder == self._me:
            _LAST.pack_into(page, _LAST_AT, now)
            return
        latest = now + LONGEST_WAIT_NS
        while since <= now < (until := min(since + TURN_NS, last + QUIET_NS, latest)):
            time.sleep((until - now) / 1e9)
            now = self._now()
            holder, since, last = _PAGE.unpack_from(page)
        _PAGE.pack_into(page, 0, self._me, now, now)

    def close(self) -> None:
        """Let the page go."""
        self._page.close()
