"""The watchdog: gives back what crashed consumers held, and tells who it was.

Challenge
    Leases that expired are settled by whoever leases next. A queue that nobody leases from, since its only consumer
    has crashed, needs somebody else; and somebody who restarts that consumer.

Keys
    None of its own.

Ordering
    As the leases': items stand where they stood.

Guarantees
    A timer is settled at most `interval` seconds after it is due, by the watchdog's clock, and as long as the watchdog
    runs. Any number of watchdogs may run: each item is reclaimed by one of them, which calls its hook.

Limits
    The hook is called after the commit, and not again if the watchdog dies in between: at most once per item.

Source
    The SCS Agent Queue protocol 0.01: "Watchdog Agent checks what is going on and tries to fix it, for example by
    restarting the crashed agent; the message is unlocked for processing."
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fdbqueue.engine.api import Database
from fdbqueue.engine.steps import Steps
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.layout import LEASE
from fdbqueue.verbs import verb

from ..common._composing import QueueWithLeases, given_leases
from ..common._handlers import call_back, not_awaited
from ..common._waiting import Stop
from ..leases._leases import Leases
from ..leases._timers import Reclaimed, next_due_us

_log = logging.getLogger(__name__)
_IN_A_TRANSACTION = "In a transaction use Leases.reclaim(tr)."


@dataclass(slots=True)
class WatchdogReport:
    """What a watchdog has done so far."""

    leases: int = 0
    """Expired leases that it ended."""
    delays: int = 0
    """Delays that were over."""
    expired: int = 0
    """Items that it removed because their time to live was over."""
    hook_errors: int = 0
    """Calls of the hook that raised; each was logged."""


class Watchdog:
    """Settles a queue's timers as they fall due.

    Its verbs make their own transactions: they take a database and refuse a transaction. Both have an awaitable form,
    ``await watchdog.run.aio(db)``.

    Args:
        leases: whose, or a layer that has leases, such as a `PriorityQueue`. Their policy decides what becomes of items
            whose leases expired.
        hook: called for each expired lease, after its item was given back, with the item, its former consumer and its
            fate. What it raises is logged. No coroutine function: it is not awaited.
        interval: seconds after which it looks again, at the latest; sooner if a timer is known to be due.
        batch: how many timers one transaction settles at most.

    >>> import fdbqueue
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
        leases: Leases | QueueWithLeases,
        *,
        hook: Callable[[Reclaimed], object] | None = None,
        interval: float = 1.0,
        batch: int = 500,
    ) -> None:
        if interval <= 0 or batch < 1:
            raise ValueError("A watchdog looks after some time, more than 0 seconds, and settles at least one timer.")
        self.leases = given_leases(leases, "Watchdog")
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
    def sweep(self, db: Database) -> Steps[WatchdogReport]:
        """Settle all timers that are due, in as many bounded transactions as it takes, and return what was done so far.

        *Conflicts:* with acks, extensions and leases of the same items, and then it tries again. *Cost:* as
        `Leases.reclaim`.
        """
        only_database(db, "Watchdog.sweep", _IN_A_TRANSACTION)
        more = True
        while more and not self._stop.asked:
            found = yield from self.leases.reclaim.steps(db, limit=self._batch)
            more = found.more
            for reclaimed in found.reclaimed:
                self._note(reclaimed)
        return self.report

    @verb
    def run(self, db: Database) -> Steps[WatchdogReport]:
        """Sweep, again and again, until `stop` is called from another thread or task, or from the hook.

        *Conflicts:* as `sweep`. *Cost:* as `sweep`, and a read after each to see when to come again.
        """
        only_database(db, "Watchdog.run", _IN_A_TRANSACTION)
        while not self._stop.asked:
            yield from self.sweep.steps(db)
            seconds = yield from self._seconds_to_wait(db)
            yield from self._stop.rest([], seconds)
        return self.report

    def stop(self) -> None:
        """Let `run` come back after the transaction that it is at."""
        self._stop.ask()

    def _note(self, reclaimed: Reclaimed) -> None:
        if reclaimed.kind == LEASE:
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
            _log.exception("The watchdog's hook failed for %s of %r.", reclaimed.position, self.leases)

    def _seconds_to_wait(self, db: Database) -> Steps[float]:
        now_us = self.leases.now_us()
        at_us = yield from attempts(db, partial(next_due_us, layout=self.leases.layout, now_us=now_us))
        if at_us is None:
            return self._interval
        # One microsecond more, or it would look again just before.
        return min(self._interval, max(0.0, (at_us + 1 - now_us) / 1e6))
