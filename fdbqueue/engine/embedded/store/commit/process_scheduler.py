"""Schedule the processes that use one folder at the same time, in time slices of eight milliseconds.

Two kinds of work wait for a time slice:

- Commits that do not wait for the disk. If two processes commit all the time, LMDB's lock moves to the other process at
  every commit. Each time one of them sleeps and must be woken, which takes several times longer than the commit.
- Transactions that take items from the head of a queue, from their first read on (`ProcessScheduler.next_turn`). Two
  such transactions at the same time conflict, and one of them is lost work.

A page that all processes share, the file ``turns``, names the holder of the time slice. It is a hint and no lock: the
check for conflicts does not rely on it, and nothing must be released. A holder loses its time slice as soon as another
process looks, if it died, stopped, or has done nothing for a moment.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from fdbqueue.engine.embedded.store.notify.shared_page import open_page

TURN_NS: Final = 8_000_000
"""Length of a time slice. A switch costs about a millisecond: recently written data must move to the other core."""
QUIET_NS: Final = 1_000_000
"""After this time without a commit, the holder loses its time slice."""
LONGEST_WAIT_NS: Final = 40_000_000
MOST_BUSY_NS: Final = 50_000_000
"""Longest time that a piece of work is expected to take."""
BUSY_WAITS: Final = 16
"""The longest wait grows by so many times the expected duration of one piece of work."""
TICKETS: Final = 64
TICKET_NS: Final = 100_000_000
"""How long the ticket of a waiting process counts: the process may have died."""
DEFER_NS: Final = 200_000
MOST_DEFERS: Final = 5
"""A process lets those that wait longer go first: so often it waits once more, for so long."""

SHARED_NS: Final = 1_000_000_000
"""So long other processes are expected after they had the time slice."""

HOLDER: Final = 0
LAST: Final = 2
"""Places in the page's numbers: the holder of the time slice, and when it was last active."""
_PAGE: Final = struct.Struct("=QQQ")
_HOLDER: Final = struct.Struct("=Q")
_LAST: Final = struct.Struct("=Q")
_LAST_AT: Final = LAST * _LAST.size
_ARRIVED: Final = struct.Struct(f"={TICKETS}Q")
_ARRIVED_AT: Final = _PAGE.size
_NAME: Final = "turns"


class ProcessScheduler:
    """Schedules the processes that use one folder.

    A commit that does not wait for the disk asks itself whether this process holds the time slice, and notes that it
    goes on: ``numbers[HOLDER] == me``, ``numbers[LAST] = now()``. It calls `wait` only if it does not hold it.
    """

    __slots__ = ("_busy_ns", "_closed", "_met", "_page", "_ticket_at", "_trust_ns", "me", "now", "numbers")

    def __init__(self, path: str) -> None:
        self.me = os.getpid()
        self.now = time.monotonic_ns
        self._trust_ns = QUIET_NS
        self._met = -SHARED_NS
        self._ticket_at = _ARRIVED_AT + _LAST.size * (self.me % TICKETS)  # if two share one, their order is lost
        self._closed = False
        self._busy_ns = 0
        fd, self._page = open_page(path, _NAME, _PAGE.size + _ARRIVED.size)
        os.close(fd)
        self.numbers = memoryview(self._page).cast("Q")
        """The page. After `close` it can't be read."""

    @property
    def shared(self) -> bool:
        """Whether another process had the time slice lately."""
        return self.now() - self._met < SHARED_NS

    def next_turn(self) -> TimeSlice | None:
        """Return None if this process holds the time slice now, else the future of its next one."""
        numbers = self.numbers
        try:
            if numbers[HOLDER] == self.me:
                numbers[LAST] = self.now() + self._busy_ns
                return None
        except ValueError:
            if not self._closed:
                raise
            return None
        return TimeSlice(self.wait)

    def waited(self, took_ns: int) -> None:
        """Note that a commit of this process has just waited for the disk for so long.

        Other processes leave the holder so much more time for its next piece of work.
        """
        self._busy_ns = min(2 * took_ns, MOST_BUSY_NS)
        if _HOLDER.unpack_from(self._page)[0] == self.me:
            _LAST.pack_into(self._page, _LAST_AT, self.now())

    def wait(self) -> None:
        """Wait while another process holds the time slice, then take it."""
        try:
            self._wait(self._page)
        except ValueError:
            if not self._closed:
                raise

    def close(self) -> None:
        """Release the page. Threads that wait for a time slice go on, and find the store closed."""
        self._closed = True
        self.numbers.release()
        self._page.close()

    def _wait(self, page: mmap.mmap) -> None:
        now = self.now()
        holder, since, last = _PAGE.unpack_from(page)
        if holder == self.me:
            _LAST.pack_into(page, _LAST_AT, now + self._busy_ns)
            return
        if holder and now - last < SHARED_NS:
            self._met = now
        arrived, defers = now, MOST_DEFERS
        latest = now + LONGEST_WAIT_NS + BUSY_WAITS * self._busy_ns
        _LAST.pack_into(page, self._ticket_at, arrived)
        while True:
            while holder != self.me and since <= now < min(since + TURN_NS, last + QUIET_NS, latest):
                time.sleep((min(since + TURN_NS, last + self._trust_ns, latest) - now) / 1e9)
                now = self.now()
                holder, since, last = _PAGE.unpack_from(page)
                # Check an active holder less often: on a machine with few cores, each check interrupts its work.
                self._trust_ns = min(2 * self._trust_ns, TURN_NS) if now - last < QUIET_NS else QUIET_NS
            if holder == self.me or not defers or now >= latest or not self._is_behind(arrived, now):
                break
            defers -= 1
            time.sleep(DEFER_NS / 1e9)
            now = self.now()
            holder, since, last = _PAGE.unpack_from(page)
        _LAST.pack_into(page, self._ticket_at, 0)
        if holder != self.me:  # else another thread of this process took it meanwhile
            _PAGE.pack_into(page, 0, self.me, now, now + self._busy_ns)

    def _is_behind(self, arrived: int, now: int) -> bool:
        """Return whether another process waits longer than this one."""
        return any(now - TICKET_NS < other < arrived for other in _ARRIVED.unpack_from(self._page, _ARRIVED_AT))


class TimeSlice:
    """The future of a time slice: a thread that waits for it sleeps, an event loop gets a call back."""

    __slots__ = ("_over", "_wait")

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._over = False

    def wait(self) -> None:
        """Sleep until the time slice begins. It is over at any time: a second call returns at once."""
        if not self._over:
            self._over = True
            self._wait()

    def is_ready(self) -> bool:
        """Return whether the time slice has begun."""
        return self._over

    def on_ready(self, callback: Callable[[TimeSlice], object]) -> None:
        """Call `callback` when the time slice begins, in another thread."""

        def sleep() -> None:
            try:
                self.wait()
            finally:
                callback(self)

        try:
            threading.Thread(target=sleep, name="fdbqueue-turn", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            self._over = True
            callback(self)

    def cancel(self) -> None:
        """Do nothing: a time slice that is not used is lost soon."""
