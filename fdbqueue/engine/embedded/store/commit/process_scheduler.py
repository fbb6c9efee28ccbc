"""Schedule the processes that commit to one folder at the same time, in time slices of eight milliseconds.

If two processes commit all the time, LMDB's lock moves to the other process at every commit. Each time one of them
sleeps and must be woken, which takes several times longer than the commit. So a process waits if another process is
in the middle of its time slice.

A page that all processes share, the file ``turns``, names the holder of the time slice. It is a hint and no lock. A
holder loses its time slice as soon as another process looks, if it died, stopped, or has not committed for a moment.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

from fdbqueue.engine.embedded.store.notify.shared_page import open_page

TURN_NS: Final = 8_000_000
"""Length of a time slice. A switch costs about a millisecond: recently written data must move to the other core."""
QUIET_NS: Final = 1_000_000
"""After this time without a commit, the holder loses its time slice."""
LONGEST_WAIT_NS: Final = 40_000_000

_PAGE: Final = struct.Struct("=QQQ")
_LAST: Final = struct.Struct("=Q")
_LAST_AT: Final = 16
_NAME: Final = "turns"


class ProcessScheduler:
    """Schedules the processes that commit to one folder without waiting for the disk."""

    __slots__ = ("_me", "_now", "_page", "_trust_ns")

    def __init__(self, path: str) -> None:
        self._me = os.getpid()
        self._now = time.monotonic_ns
        self._trust_ns = QUIET_NS
        fd, self._page = open_page(path, _NAME, _PAGE.size)
        os.close(fd)

    def wait(self) -> None:
        """Wait while another process holds the time slice, then take it."""
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
            # Check an active holder less often: on a machine with few cores, each check interrupts its work.
            self._trust_ns = min(2 * self._trust_ns, TURN_NS) if now - last < QUIET_NS else QUIET_NS
        _PAGE.pack_into(page, 0, self._me, now, now)

    def close(self) -> None:
        """Release the page."""
        self._page.close()
