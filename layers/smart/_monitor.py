"""Monitors: they call one handler for each missed deadline, and another for each near one.

For the guarantees see `layers/smart/_deadlines.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.lowlevel import Database, Future, Shown, Transaction, attempts, only_database, verb

from ..common.handlers import call_back, not_awaited
from ..common.logs import fields
from ..common.waiting import Stop, long_wait
from ..leases.times import not_negative, positive
from ._deadlines import BATCH, ClaimedDeadline, Deadline, Deadlines

_log = logging.getLogger("fdbqueue.layers.smart")
_IN_A_TRANSACTION = "In a transaction use Deadlines.claim(tr)."


@dataclass(slots=True, repr=False)
class MonitorReport(Shown):
    """The work of a monitor so far."""

    missed: int = 0
    """Missed deadlines for which its handler returned."""
    near: int = 0
    """Warnings of near deadlines."""
    errors: int = 0
    """Handler calls that raised; each was logged."""


class Monitor:
    """Monitors the deadlines of a smart queue.

    Its verbs make their own transactions: they take a database and refuse a transaction.

    Args:
        deadlines: the deadlines of the queue.
        handler: called with each missed `Deadline`. It can't be a coroutine function: it is not awaited.
        near: called with each near `Deadline`, `lead` seconds before the time; None: no warnings.
        lead: seconds of warning.
        interval: longest time in seconds between two looks; it looks sooner if a deadline is due or is set.
        claim_seconds: seconds that a handler may take before another monitor calls its own.
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
    async def sweep(self, db: Database) -> MonitorReport:
        """Report all deadlines that are missed or near now, and return the report so far.

        *Conflicts:* with other monitors for the same deadlines; then it looks again. *Cost:* as `Deadlines.claim` for
        the near ones; a transaction for each missed one, and one more.
        """
        only_database(db, "Monitor.sweep", _IN_A_TRANSACTION)
        while self._near is not None and not self._stop.asked:
            warned = await self.deadlines.claim.steps(db, lead=(self._lead_us or 0) / 1e6)
            for deadline in warned:
                self.report.near += self._told(self._near, deadline)
            if len(warned) < BATCH:
                break
        begun_us = self._now_us()  # a claim of this sweep whose handler failed lapses: the next sweep claims it
        ended: ClaimedDeadline | None = None
        while not self._stop.asked:
            # One at a time: a slow handler would let the claims of later deadlines lapse before it reports them.
            until_us = self._now_us() + self._claim_us
            body = partial(self.deadlines.claim_next, until_us=until_us, lapsed_us=begun_us, ended=ended)
            claim = await self._queue.transact(db, body)
            ended = None
            if claim is None:
                break
            if self._told(self._handler, claim.deadline):
                self.report.missed += 1
                ended = claim
        if ended is not None:
            await self._queue.read(db, partial(self.deadlines.end, claim=ended))
        return self.report

    @verb
    async def run(self, db: Database) -> MonitorReport:
        """Sweep whenever a deadline is due, until another thread or a handler calls `stop`."""
        only_database(db, "Monitor.run", _IN_A_TRANSACTION)
        await long_wait("Monitor.run")
        while not self._stop.asked:
            watch, wait_us = await attempts(db, self._watch)
            if watch is not None:
                await self._stop.rest([watch], wait_us / 1e6)
            if not self._stop.asked:
                await self.sweep.steps(db)
        return self.report

    def stop(self) -> None:
        """Make `run` return after its current step."""
        self._stop.ask()

    async def _watch(self, tr: Transaction) -> tuple[Future[Any] | None, int]:
        """Return a watch on new deadlines, and the microseconds to wait; no watch if one is due."""
        due_us = await self.deadlines.next_us(tr, lead_us=self._lead_us)
        wait_us = self._interval_us if due_us is None else min(self._interval_us, due_us - self._now_us())
        # A deadline set after this transaction's read version changes the key, and wakes the monitor.
        return (tr.watch(self._queue.layout.alarm_key) if wait_us > 0 else None), wait_us

    def _now_us(self) -> int:
        return self.deadlines.smart.leases.now_us()

    def _told(self, handler: Callable[[Deadline], object], deadline: Deadline) -> bool:
        try:
            call_back(handler, deadline)
        except Exception:  # noqa: BLE001 - an error of a handler must not stop the reports of the other deadlines
            self.report.errors += 1
            extra = fields(self._queue, deadline.position)
            words = "The handler failed for the deadline of %s of %r."
            _log.exception(words, deadline.position, self.deadlines, extra=extra)
            return False
        return True
