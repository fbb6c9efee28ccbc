"""Whose turn it is to commit: of the threads of a process, and of the processes of a folder."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from threading import Lock, get_ident
from time import monotonic
from typing import Final, Protocol

from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.notification import open_page

# Schedule the threads of one process that commit at the same time.
#
# Python runs one thread at a time. If each thread committed for itself immediately, sixteen threads would switch
# the
# interpreter at every call into LMDB. They would be several times slower than one thread. So threads that can't run
# anyway sleep, and the leader commits for them too. There are two cases:
#
# - A commit waits for the disk: a commit with more requests is cheaper. See `Gathering`.
# - A commit does not wait: it is cheaper to keep the same thread for several commits. See `TimeSlices`.
#
# Both guess what the other threads will do next. After a wrong guess a thread has slept a moment in vain, and each
# failure makes the next try rarer. A thread that commits uncontended never sleeps.

GATHER_SECONDS: Final = 0.0002
"""How long to wait for others, per active thread."""
TURN_SECONDS: Final = 0.003
"""Length of a time slice: one thread commits this long before the next one."""
QUIET_SECONDS: Final = 0.0005
"""After this time without a commit, the other threads assume that the holder of the time slice has left."""
LONGEST_TRUST: Final = 0.004
"""Longest wait before the deputy checks that the holder of the time slice is still active.

The wait doubles after each check that finds the holder active, because a check takes the interpreter from it.
"""
LONGEST_SLEEP: Final = 0.01
"""Longest sleep while another thread leads: the thread that should wake the sleeper may be unable to run."""
LONGEST_LINE: Final = 0.25
"""Longest sleep before a thread's own time slice: about eighty time slices of others."""
LONGEST_HOLDOFF: Final = 1024


class CommitScheduler(Protocol):
    """Decides when a thread leads, sleeps and wakes."""

    def sleep(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> bool:
        """Sleep if the calling thread should not lead now; return whether it slept and must check again."""

    def finished(self, batch: Sequence[CommitRequest]) -> None:
        """Wake the threads whose requests are done, now or at the start of their time slice."""

    def left(self, pending: Sequence[CommitRequest]) -> None:
        """Wake a thread to lead: the leader has released the lead while requests are pending."""


class Patience:
    """Makes retries rarer after each failure (exponential backoff)."""

    __slots__ = ("_holdoff", "_skip")

    def __init__(self) -> None:
        self._holdoff = 1
        self._skip = 0

    def lost(self) -> bool:
        """Return whether to skip this try."""
        if not self._skip:
            return False
        self._skip -= 1
        return True

    def in_vain(self) -> None:
        """Note a failure."""
        self._skip = self._holdoff
        self._holdoff = min(2 * self._holdoff, LONGEST_HOLDOFF)

    def worked(self) -> None:
        """Note a success."""
        self._holdoff = 1


class Gathering:
    """Threads that have committed recently commit together; the last one to arrive leads.

    A thread sleeps if other active threads have not handed in their requests yet. It wakes when the last of them
    arrives, or after a short time. When requests are done, each thread wakes the next one: if all woke at once, they
    would only wait for the interpreter.
    """

    __slots__ = ("_patience", "_threads")

    def __init__(self) -> None:
        self._threads: dict[int, None] = {}
        self._patience = Patience()

    def sleep(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> bool:
        threads = self._threads
        threads[get_ident()] = None
        if lead.locked():
            request.close_gate()
            # The leader looks for gates after it releases the lead. If the lead is free now, that look may be over.
            if lead.locked():
                self._sleep(request, LONGEST_SLEEP)
            return True
        if len(threads) == 1 or len(pending) >= len(threads) or self._patience.lost():
            return False
        if self._sleep(request, GATHER_SECONDS * len(threads)):
            if request.settled():
                self._patience.worked()
            return request.settled()
        if lead.locked():
            return True  # they arrived, and a leader commits them now
        # Some threads have left. Threads that are still active register again.
        self._threads = {}
        if len(pending) <= 1:
            self._patience.in_vain()
        return False

    def _sleep(self, request: CommitRequest, seconds: float) -> bool:
        """Sleep until woken, at most `seconds`; return whether the thread was woken."""
        gate = request.close_gate()
        request.sleeper = get_ident()
        try:
            # If the request was done earlier, its leader may have seen no sleeper, and will wake no thread.
            return request.settled() or gate.acquire(timeout=seconds)
        finally:
            request.sleeper = 0
            if request.behind is not None:
                request.behind.wake()

    def finished(self, batch: Sequence[CommitRequest]) -> None:
        asleep = [request for request in batch if request.sleeper]
        for request, behind in pairwise(asleep):
            request.behind = behind
            if not request.sleeper:
                behind.wake()  # the other thread has just woken on its own, and may not have seen `behind`
        if asleep:
            asleep[0].wake()

    def left(self, pending: Sequence[CommitRequest]) -> None:
        for request in list(pending):
            if request.wake():
                return


class TimeSlices:
    """One thread, the holder, commits for all threads for three milliseconds; then the next one becomes the holder.

    The holder commits the requests of others together with its own. The others sleep until they become the holder, or
    until the holder does something else. The holder passes on an expired time slice at its next commit, and then
    sleeps immediately.
    """

    __slots__ = ("_asleep", "_patience", "_since", "deputy", "holder", "last", "trust")

    def __init__(self) -> None:
        self.holder = 0
        self._since = 0.0
        self.last = 0.0
        self._asleep: deque[CommitRequest] = deque()
        self.deputy = 0
        self.trust = QUIET_SECONDS
        self._patience = Patience()

    def sleep(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> bool:
        me, now = get_ident(), monotonic()
        if me == self.holder:
            self.last = now
            if now - self._since <= TURN_SECONDS or not self._hand_on(now):
                return False
        elif now - self.last > QUIET_SECONDS or self._patience.lost():
            self.take(me, now)
            return False
        gate = request.close_gate()
        request.sleeper = me
        try:
            if not request.settled():  # else the thread that finished it may have seen no sleeper
                self.wait_for_turn(gate, me)
        finally:
            request.sleeper = 0
            if self.deputy == me:
                self.deputy = 0
                self._appoint([*self._asleep, *pending])
        return True

    def wait_for_turn(self, gate: Lock, me: int) -> None:
        now = monotonic()
        until = now + LONGEST_LINE
        while now < until:
            # One of the sleeping threads, the deputy, checks whether the holder has left. A thread that has become the
            # holder stops checking. If it stayed the deputy, it would have to wake another thread for that.
            if self.deputy in (0, self.holder):
                self.deputy = me
            look_at = self.last + self.trust if self.deputy == me else until
            woken = gate.acquire(timeout=max(0, look_at - now))
            now = monotonic()
            if woken:
                if self.holder == me:
                    self._patience.worked()
                    return
            elif now - self.last > QUIET_SECONDS:
                self._patience.in_vain()
                self.trust = QUIET_SECONDS
                self.take(me, now)
                return
            elif self.deputy == me:
                self.trust = min(2 * self.trust, LONGEST_TRUST)

    def _appoint(self, requests: Iterable[CommitRequest]) -> None:
        """Wake one of the sleeping threads to become the deputy; its time slice does not start yet."""
        for request in requests:
            if request.sleeper and request.wake():
                return

    def take(self, me: int, now: float) -> None:
        self.holder = me
        self._since = self.last = now

    def _hand_on(self, now: float) -> bool:
        """Pass the time slice to the thread that has slept longest; return whether there was one.

        The calling thread then sleeps immediately, and has no open snapshot. If it stayed awake, it would wait for the
        interpreter, in the worst case for some milliseconds. With an open snapshot, LMDB could reuse none of the pages
        that become free in that time.
        """
        asleep = self._asleep
        while asleep:
            request = asleep.popleft()
            sleeper = request.sleeper
            if sleeper:
                self.take(sleeper, now)
                request.wake()
                return True
        return False

    def finished(self, batch: Sequence[CommitRequest]) -> None:
        asleep = self._asleep
        for request in batch:
            if request.sleeper:
                asleep.append(request)
        if asleep and not self.deputy:
            self._appoint(asleep)

    def left(self, pending: Sequence[CommitRequest]) -> None:
        pass  # the thread that had the lead still holds the time slice, and leads again


# Schedule the processes that use one folder at the same time, in time slices of eight milliseconds.
#
# Two kinds of work wait for a time slice:
#
# - Commits that do not wait for the disk. If two processes commit all the time, LMDB's lock moves to the other
# process at
#   every commit. Each time one of them sleeps and must be woken, which takes several times longer than the commit.
# - Transactions that take items from the head of a queue, from their first read on (`ProcessScheduler.next_turn`).
# Two
#   such transactions at the same time conflict, and one of them is lost work.
#
# A page that all processes share, the file ``turns``, names the holder of the time slice. It is a hint and no lock:
# the
# check for conflicts does not rely on it, and nothing must be released. A holder loses its time slice as soon as
# another
# process looks, if it died, stopped, or has done nothing for a moment.

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
PAGE_HOLDER: Final = struct.Struct("=Q")
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

    __slots__ = ("_busy_ns", "_closed", "_met", "_ticket_at", "_trust_ns", "me", "now", "numbers", "page")

    def __init__(self, path: str) -> None:
        self.me = os.getpid()
        self.now = time.monotonic_ns
        self._trust_ns = QUIET_NS
        self._met = -SHARED_NS
        self._ticket_at = _ARRIVED_AT + _LAST.size * (self.me % TICKETS)  # if two share one, their order is lost
        self._closed = False
        self._busy_ns = 0
        fd, self.page = open_page(path, _NAME, _PAGE.size + _ARRIVED.size)
        os.close(fd)
        self.numbers = memoryview(self.page).cast("Q")
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
        if PAGE_HOLDER.unpack_from(self.page)[0] == self.me:
            _LAST.pack_into(self.page, _LAST_AT, self.now())

    def wait(self) -> None:
        """Wait while another process holds the time slice, then take it."""
        try:
            self._wait(self.page)
        except ValueError:
            if not self._closed:
                raise

    def close(self) -> None:
        """Release the page. Threads that wait for a time slice go on, and find the store closed."""
        self._closed = True
        self.numbers.release()
        self.page.close()

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
        return any(now - TICKET_NS < other < arrived for other in _ARRIVED.unpack_from(self.page, _ARRIVED_AT))


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
