"""The watchdog: gives back the items of crashed consumers, and reports these consumers.

Challenge
    The next lease call on a queue fires its due timers, and so ends expired leases. If a queue's only consumer has
    crashed, no call comes. Then another process has to end the leases, and to restart the consumer.

Keys
    None of its own.

Ordering
    As for leases: items keep their places.

Guarantees
    A timer fires at most `interval` seconds after it is due, by the watchdog's clock, while the watchdog runs. Any
    number of watchdogs may run: one of them reclaims each item and calls its hook.

Limits
    The watchdog calls the hook after the commit. It does not repeat the call if it dies in between: at most once per
    item.

Source
    The SCS Agent Queue protocol 0.01: "Watchdog Agent checks what is going on and tries to fix it, for example by
    restarting the crashed agent; the message is unlocked for processing."
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from fdbqueue.base.arguments import check_whole
from fdbqueue.lowlevel import Database, Named, Shown, attempts, only_database, verb
from fdbqueue.stored.shapes import Due

from ..common.composing import QueueWithLeases, given_leases
from ..common.handlers import call_back, fields, not_awaited
from ..common.waiting import Stop, long_wait
from ..leases import Leases, Reclaimed
from ..leases.done import EnqueuesInSessions, sessions_of
from ..leases.lease import positive

_log = logging.getLogger("fdbqueue.layers.consumer")
_IN_A_TRANSACTION = "In a transaction use Leases.reclaim(tr)."


@dataclass(slots=True, repr=False)
class WatchdogReport(Shown):
    """The report of a watchdog so far."""

    leases: int = 0
    """Expired leases that it ended."""
    delays: int = 0
    """Delays that were over."""
    expired: int = 0
    """Items that it removed because their time to live was over."""
    hook_errors: int = 0
    """Calls of the hook that raised; each was logged."""


class Watchdog(Named):
    """Fires a queue's timers as they become due.

    Its verbs make their own transactions: they take a database and refuse a transaction. Both have an awaitable form,
    ``await watchdog.run.aio(db)``.

    Args:
        leases: the leases of the queue, or a layer that has leases, such as a `PriorityQueue`; or `Sessions`. Their
            policy decides what happens to items whose leases expired.
        hook: called for each expired lease, after its item was given back. It gets the item, its former consumer and
            its disposition. Its exceptions are logged. It can't be a coroutine function, since it is not awaited.
        interval: the longest wait between two sweeps, in seconds. It is shorter if a timer is known to be due.
        batch: how many timers one transaction fires at most.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Leases, Watchdog
    >>> now = 1_000.0
    >>> leases = Leases(fdbqueue.Queue("orders"), clock=lambda: now)
    >>> with fdbqueue.open("memory:") as db:
    ...     position = leases.enqueue(db, b"x")
    ...     lease = leases.lease(db, duration=10, consumer="printer 3")
    ...     now += 11
    ...     Watchdog(leases, hook=lambda found: print("restart", found.consumer)).sweep(db).leases
    restart printer 3
    1
    """

    def __init__(
        self,
        leases: Leases | QueueWithLeases | EnqueuesInSessions,
        *,
        hook: Callable[[Reclaimed], object] | None = None,
        interval: float = 1.0,
        batch: int = 500,
    ) -> None:
        positive(interval, "interval")
        check_whole(batch, "batch is how many timers one transaction fires", least=1)
        sessions = sessions_of(leases)
        own = leases if sessions is None else sessions.line.leases
        self.leases: Leases = given_leases(cast("Leases | QueueWithLeases", own), "Watchdog", "or Sessions")
        if hook is not None and not callable(hook):
            raise TypeError(f"A watchdog's hook is called with what it reclaimed, and {hook!r} can't be.")
        not_awaited(hook, "A watchdog's hook")
        self.report = WatchdogReport()
        self._hook = hook
        self._interval = interval
        self._batch = batch
        self._stop = Stop()

    def __repr__(self) -> str:
        return f"Watchdog({self.leases!r}, interval={self._interval})"

    @verb
    async def sweep(self, db: Database) -> WatchdogReport:
        """Fire all due timers, in any number of bounded transactions, and return the report so far.

        *Conflicts:* with acks, extensions and leases of the same items; it then tries again. *Cost:* as
        `Leases.reclaim`.
        """
        only_database(db, "Watchdog.sweep", _IN_A_TRANSACTION)
        more = True
        while more and not self._stop.asked:
            found = await self.leases.reclaim.steps(db, limit=self._batch)
            more = found.more
            for reclaimed in found.reclaimed:
                self._note(reclaimed)
        return self.report

    @verb
    async def run(self, db: Database) -> WatchdogReport:
        """Sweep repeatedly until `stop` is called from another thread or task, or from the hook.

        *Conflicts:* as `sweep`. *Cost:* as `sweep`, and a read after each sweep for the time of the next.
        """
        only_database(db, "Watchdog.run", _IN_A_TRANSACTION)
        await long_wait("Watchdog.run")
        while not self._stop.asked:
            await self.sweep.steps(db)
            seconds = await self._seconds_to_wait(db)
            await self._stop.rest([], seconds)
        return self.report

    def stop(self) -> None:
        """Make `run` return after its current transaction."""
        self._stop.ask()

    def _note(self, reclaimed: Reclaimed) -> None:
        if reclaimed.kind == Due.LEASE:
            self.report.leases += 1
            self._call(reclaimed)
        elif reclaimed.fate == "expired":
            self.report.expired += 1
        else:
            self.report.delays += 1

    def _call(self, reclaimed: Reclaimed) -> None:
        if self._hook is None:
            return
        try:
            call_back(self._hook, reclaimed)
        except Exception:  # noqa: BLE001 - whatever a hook raises must not keep the others' items from coming back
            self.report.hook_errors += 1
            about = {"attempt": reclaimed.attempt, "consumer": reclaimed.consumer, "session": reclaimed.session}
            extra = fields(self.leases.queue, reclaimed.position, **about)
            _log.exception("The watchdog's hook failed for %s of %r.", reclaimed.position, self.leases, extra=extra)

    async def _seconds_to_wait(self, db: Database) -> float:
        now_us = self.leases.now_us()
        at_us = await attempts(db, self.leases.next_due_us)
        if at_us is None:
            return self._interval
        # Add one microsecond. Otherwise the next sweep would come just before the timer is due.
        return min(self._interval, max(0.0, (at_us + 1 - now_us) / 1e6))
