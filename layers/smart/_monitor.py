"""Monitors: they tell a handler of deadlines that are missed, and another one of those that are near.

What is guaranteed stands in `layers/smart/_deadlines.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.lowlevel import Database, Future, Steps, Transaction, attempts, only_database, verb

from ..common._handlers import call_back, not_awaited
from ..common._waiting import Stop
from ..leases._times import not_negative, positive
from ._deadlines import BATCH, Claim, Deadline, Deadlines

_log = logging.getLogger(__name__)
_IN_A_TRANSACTION = "In a transaction use Deadlines.claim(tr)."


@dataclass(slots=True)
class MonitorReport:
    """What a monitor has done so far."""

    missed: int = 0
    """Missed deadlines for which its handler returned."""
    near: int = 0
    """Warnings that it gave."""
    errors: int = 0
    """Calls of handlers that raised; each was logged."""


class Monitor:
    """Looks after the deadlines of a smart queue.

    Its verbs make their own transactions: they take a database and refuse a transaction.

    Args:
        deadlines: which.
        handler: called with each `Deadline` that is missed. No coroutine function: it is not awaited.
        near: called with each that is about to be, `lead` seconds before; None: nobody is warned.
        lead: how many seconds before.
        interval: seconds after which it looks again, at the latest; sooner when something is due, or is set.
        claim_seconds: how long a handler may take before another monitor calls its own.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        handler: Callable[[Deadline], object],
        *,
        near: Callable[[Deadline], object] | None = None,
        lead: float = 0.0,
        interval: float = 60.0,
        claim_seconds: float = 60.0,
    ) -> None:
        if not isinstance(deadlines, Deadlines):
            raise TypeError(
                f"A monitor looks after Deadlines, as in Monitor(Deadlines(smart), handler), not after {deadlines!r}."
            )
        for function in (handler, *([] if near is None else [near])):
            if not callable(function):
                raise TypeError(f"A monitor's handler is called with each deadline, and {function!r} can't be.")
        not_awaited(handler, "A monitor's handler")
        not_awaited(near, "A monitor's handler of near deadlines")
        self.deadlines = deadlines
        self.report = MonitorReport()
        self._queue = deadlines.smart.queue
        self._handler = handler
        self._near = near
        self._lead_us = None if near is None else not_negative(lead, "lead")
        self._interval_us = positive(interval, "interval")
        self._claim_us = positive(claim_seconds, "claim_seconds")
        self._stop = Stop()

    def __repr__(self) -> str:
        return f"Monitor({self.deadlines!r})"

    @verb
    def sweep(self, db: Database) -> Steps[MonitorReport]:
        """Tell of all that is missed or near now, and return what was done so far.

        *Conflicts:* with other monitors for the same deadlines, and then it looks again. *Cost:* as `Deadlines.claim`
        for those that are near; a transaction for each missed one, and one more.
        """
        only_database(db, "Monitor.sweep", _IN_A_TRANSACTION)
        while self._near is not None and not self._stop.asked:
            warned = yield from self.deadlines.claim.steps(db, lead=(self._lead_us or 0) / 1e6)
            for deadline in warned:
                self.report.near += self._told(self._near, deadline)
            if len(warned) < BATCH:
                break
        begun_us = self._now_us()  # a claim of this sweep that lapses, since its handler failed, is for the next one
        ended: Claim | None = None
        while not self._stop.asked:
            # One at a time, or those behind a slow handler would be another's before they are told of here.
            until_us = self._now_us() + self._claim_us
            body = partial(self.deadlines.claim_next, until_us=until_us, lapsed_us=begun_us, ended=ended)
            claim = yield from self._queue.transact(db, body)
            ended = None
            if claim is None:
                break
            if self._told(self._handler, claim.deadline):
                self.report.missed += 1
                ended = claim
        if ended is not None:
            yield from self._queue.read(db, partial(self.deadlines.end, claim=ended))
        return self.report

    @verb
    def run(self, db: Database) -> Steps[MonitorReport]:
        """Sweep whenever something is due, until `stop` is called, from another thread or from a handler."""
        only_database(db, "Monitor.run", _IN_A_TRANSACTION)
        while not self._stop.asked:
            watch, wait_us = yield from attempts(db, self._watch)
            if watch is not None:
                yield from self._stop.rest([watch], wait_us / 1e6)
                watch.cancel()
            if not self._stop.asked:
                yield from self.sweep.steps(db)
        return self.report

    def stop(self) -> None:
        """Let `run` come back after what it is at."""
        self._stop.ask()

    def _watch(self, tr: Transaction) -> Steps[tuple[Future[Any] | None, int]]:
        """Return a watch on deadlines that are set, and for how many microseconds to wait; none where one is due."""
        due_us = yield from self.deadlines.next_us(tr, lead_us=self._lead_us)
        wait_us = self._interval_us if due_us is None else min(self._interval_us, due_us - self._now_us())
        # What is set after this transaction's view changes the key, and wakes this.
        return (tr.watch(self._queue.layout.alarm_key) if wait_us > 0 else None), wait_us

    def _now_us(self) -> int:
        return self.deadlines.smart.leases.now_us()

    def _told(self, handler: Callable[[Deadline], object], deadline: Deadline) -> bool:
        try:
            call_back(handler, deadline)
        except Exception:  # noqa: BLE001 - whatever a handler raises must not keep the other deadlines from being told
            self.report.errors += 1
            _log.exception("The handler failed for the deadline of %s of %r.", deadline.position, self.deadlines)
            return False
        return True
