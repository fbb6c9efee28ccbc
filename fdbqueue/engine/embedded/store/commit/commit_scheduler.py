"""Schedule the threads of one process that commit at the same time.

Python runs one thread at a time. If each thread committed for itself immediately, sixteen threads would switch the
interpreter at every call into LMDB. They would be several times slower than one thread. So threads that can't run
anyway sleep, and the leader commits for them too. There are two cases:

- A commit waits for the disk: a commit with more requests is cheaper. See `Gathering`.
- A commit does not wait: it is cheaper to keep the same thread for several commits. See `TimeSlices`.

Both guess what the other threads will do next. After a wrong guess a thread has slept a moment in vain, and each
failure makes the next try rarer. A thread that commits uncontended never sleeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import Lock, get_ident
from time import monotonic
from typing import Final, Protocol

from fdbqueue.engine.embedded.store.commit.request import CommitRequest

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

    __slots__ = ("_asleep", "_deputy", "_holder", "_last", "_patience", "_since", "_trust")

    def __init__(self) -> None:
        self._holder = 0
        self._since = 0.0
        self._last = 0.0
        self._asleep: deque[CommitRequest] = deque()
        self._deputy = 0
        self._trust = QUIET_SECONDS
        self._patience = Patience()

    def sleep(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> bool:
        me, now = get_ident(), monotonic()
        if me == self._holder:
            self._last = now
            if now - self._since <= TURN_SECONDS or not self._hand_on(now):
                return False
        elif now - self._last > QUIET_SECONDS or self._patience.lost():
            self._take(me, now)
            return False
        gate = request.close_gate()
        request.sleeper = me
        try:
            if not request.settled():  # else the thread that finished it may have seen no sleeper
                self._sleep(gate, me)
        finally:
            request.sleeper = 0
            if self._deputy == me:
                self._deputy = 0
                self._appoint([*self._asleep, *pending])
        return True

    def _sleep(self, gate: Lock, me: int) -> None:
        now = monotonic()
        until = now + LONGEST_LINE
        while now < until:
            # One of the sleeping threads, the deputy, checks whether the holder has left. A thread that has become the
            # holder stops checking. If it stayed the deputy, it would have to wake another thread for that.
            if self._deputy in (0, self._holder):
                self._deputy = me
            look_at = self._last + self._trust if self._deputy == me else until
            woken = gate.acquire(timeout=max(0, look_at - now))
            now = monotonic()
            if woken:
                if self._holder == me:
                    self._patience.worked()
                    return
            elif now - self._last > QUIET_SECONDS:
                self._patience.in_vain()
                self._trust = QUIET_SECONDS
                self._take(me, now)
                return
            elif self._deputy == me:
                self._trust = min(2 * self._trust, LONGEST_TRUST)

    def _appoint(self, requests: Iterable[CommitRequest]) -> None:
        """Wake one of the sleeping threads to become the deputy; its time slice does not start yet."""
        for request in requests:
            if request.sleeper and request.wake():
                return

    def _take(self, me: int, now: float) -> None:
        self._holder = me
        self._since = self._last = now

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
                self._take(sleeper, now)
                request.wake()
                return True
        return False

    def finished(self, batch: Sequence[CommitRequest]) -> None:
        asleep = self._asleep
        for request in batch:
            if request.sleeper:
                asleep.append(request)
        if asleep and not self._deputy:
            self._appoint(asleep)

    def left(self, pending: Sequence[CommitRequest]) -> None:
        pass  # the thread that had the lead still holds the time slice, and leads again
