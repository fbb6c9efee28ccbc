"""What processes that commit at the same time do about each other: they take turns of eight milliseconds.

LMDB's lock goes from one process to another at every commit, if both commit all the time; each time the one sleeps and
has to be woken, which takes several times as long as the commit. So a process that finds another one in the middle of
its turn lets it be. Whose turn it is stands in a page that all share, the file ``turns``. It is advice and no lock:
who dies or stops in the middle of a turn, or has nothing to commit for a moment, has lost it as soon as another looks.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

from fdbqueue.engine.embedded.store.notify.shared_page import open_page

TURN_NS: Final = 8_000_000
"""A change costs about a millisecond of work: what one process wrote last has to come to the other one's core."""
QUIET_NS: Final = 1_000_000
"""After how long without a commit the turn is lost."""
LONGEST_WAIT_NS: Final = 40_000_000

_PAGE: Final = struct.Struct("=QQQ")
_LAST: Final = struct.Struct("=Q")
_LAST_AT: Final = 16
_NAME: Final = "turns"


class ProcessScheduler:
    """The processes that commit to one folder without waiting for the disk."""

    __slots__ = ("_me", "_now", "_page", "_trust_ns")

    def __init__(self, path: str) -> None:
        self._me = os.getpid()
        self._now = time.monotonic_ns
        self._trust_ns = QUIET_NS
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
        while since <= now < min(since + TURN_NS, last + QUIET_NS, latest):
            time.sleep((min(since + TURN_NS, last + self._trust_ns, latest) - now) / 1e9)
            now = self._now()
            holder, since, last = _PAGE.unpack_from(page)
            # Who was there is looked after more rarely: where cores are few, each look keeps it from its work.
            self._trust_ns = min(2 * self._trust_ns, TURN_NS) if now - last < QUIET_NS else QUIET_NS
        _PAGE.pack_into(page, 0, self._me, now, now)

    def close(self) -> None:
        """Let the page go."""
        self._page.close()
