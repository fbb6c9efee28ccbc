"""What threads that commit at the same time do about each other.

Python runs one thread at a time. Were each to commit for itself as soon as it could, sixteen threads would hand the
interpreter to and fro at every call into LMDB, and be several times slower than one. So those that can't run anyway
sleep, and whoever leads commits for them too. When a commit waits for the disk, it pays to have as many as possible in
it: `Gathering`. When it doesn't, it pays not to change threads at every commit: `TimeSlices`.

Both are guesses about what the other threads will do next. Guessed wrong, a thread sleeps a moment in vain, and the
more often that happens the more rarely it is tried again; a thread that commits alone never sleeps.
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
"""How long to wait for others, for each that is about."""
TURN_SECONDS: Final = 0.003
"""How long one thread commits before the next one's turn."""
QUIET_SECONDS: Final = 0.0005
"""After how long the one whose turn it is has gone away, as far as others can tell."""
LONGEST_TRUST: Final = 0.004
"""How long whoever looks whether the one whose turn it is has gone away waits at most until it looks.

Twice as long after each look that finds it there, since a look takes the interpreter from it.
"""
LONGEST_SLEEP: Final = 0.01
"""How long a thread sleeps at most while another one leads, as whoever is to wake it may be kept from running."""
LONGEST_LINE: Final = 0.25
"""How long a thread sleeps at most until its turn: those of some eighty others."""
LONGEST_HOLDOFF: Final = 1024


class CommitScheduler(Protocol):
    """When a thread leads, sleeps, and is woken."""

    def sleep(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> bool:
        """Sleep, if the calling thread had better not lead now; say whether it slept and has to look again."""

    def finished(self, batch: Sequence[CommitRequest]) -> None:
        """Wake those whose requests are done, now or when their turn comes."""

    def left(self, pending: Sequence[CommitRequest]) -> None:
        """Wake a thread to lead, as the lead was given up while requests are there."""


class Patience:
    """Tries what failed more and more rarely."""

    __slots__ = ("_holdoff", "_skip")

    def __init__(self) -> None:
        self._holdoff = 1
        self._skip = 0

    def lost(self) -> bool:
        """Say whether to leave it for this time."""
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
    """Those who have committed lately go together; the last one to come leads.

    A thread that finds others about who are not there yet sleeps until the last of them comes or a short time is over.
    Of those whose requests are done, each wakes the next one. All of them awake would only wait for the interpreter.
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
            # Whoever leads looks for gates after giving the lead up. If it is free now, that look may be over.
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
            return True  # they came, and are being committed
        # Some have left. Those who are still about will be noted again.
        self._threads = {}
        if len(pending) <= 1:
            self._patience.in_vain()
        return False

    def _sleep(self, request: CommitRequest, seconds: float) -> bool:
        """Sleep until woken, but not longer than `seconds`; say whether it was woken."""
        gate = request.close_gate()
        request.sleeper = get_ident()
        try:
            # Done before, it may have been seen without a sleeper, and nobody wakes it.
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
                behind.wake()  # the other one has just woken by itself, and may not have seen whom to wake
        if asleep:
            asleep[0].wake()

    def left(self, pending: Sequence[CommitRequest]) -> None:
        for request in list(pending):
            if request.wake():
                return


class TimeSlices:
    """One thread commits for all for three milliseconds, then it is the next one's turn.

    The others' requests are committed with its own as they come, but they themselves sleep on until it is their turn,
    or the one whose turn it is does something else. A turn that is over is handed on with the next commit, by a thread
    that sleeps right away.
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
            if not request.settled():  # else whoever finished it may have seen no sleeper, and will wake nobody
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
            # One of those who sleep looks whether the one whose turn it is has gone away. Who has got the turn looks no
            # more, and would have to wake another one for it.
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
        """Wake one of those who sleep, to be the deputy; its turn is yet to come."""
        for request in requests:
            if request.sleeper and request.wake():
                return

    def _take(self, me: int, now: float) -> None:
        self._holder = me
        self._since = self._last = now

    def _hand_on(self, now: float) -> bool:
        """Give the turn to the one who has slept longest; say whether there was one.

        Whoever does it sleeps right away, and has no snapshot open. Awake it would wait for the interpreter, for some
        milliseconds if it has bad luck, and none of the pages that become free meanwhile could be used again.
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
        pass  # whoever had the lead has the turn, and leads again
