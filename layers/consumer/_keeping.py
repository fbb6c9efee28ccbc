"""Keep the leases that a consumer holds: extend them in time, and tell of lost ones."""

from __future__ import annotations

import logging
import time
from typing import Any

from fdbqueue import Position
from fdbqueue.lowlevel import Database, run

from ..common.logs import item_fields
from ..leases import Leases
from ..sessions.workers.working import MOVED
from ._background import Background
from ._holds import BATCH_ITEMS, Hold, all_not_lost
from ._terms import ConsumerReport, ConsumerTerms

_log = logging.getLogger("fdbqueue.layers.consumer")


class Keeping:
    """The leases that one run of a consumer holds.

    Args:
        db: the database.
        terms: the settings of the consumer.
        report: its report.
    """

    _leases: Leases
    _extending: Background

    def __init__(self, db: Database, terms: ConsumerTerms, report: ConsumerReport) -> None:
        self._db = db
        self._terms = terms
        self._report = report
        self._held: dict[Hold, None] = {}
        """All leases that are held, in order."""
        self._extend_all = False
        """Whether to extend all held leases at once, whenever they were leased."""

    def _extend_in_time(self) -> None:
        """Extend each lease when a third of its duration has passed, so that two more tries are left."""
        terms = self._terms
        all_of_them, self._extend_all = self._extend_all, False
        old = time.monotonic() - terms.duration / 3
        due = []
        for hold in list(self._held):
            if hold.overdue():
                self._tell(
                    hold, f"is not extended any more, since its handler takes more than {terms.handler_timeout} s"
                )
            elif not hold.told and (all_of_them or hold.extended_at <= old):
                due.append(hold)
        for start in range(0, len(due), BATCH_ITEMS):
            # Some may have been acked just now.
            batch = [hold for hold in due[start : start + BATCH_ITEMS] if hold in self._held]
            now = time.monotonic()
            extend = self._leases.extend_many.steps
            lost = run(all_not_lost(self._db, self._leases, extend, batch, duration=terms.duration))
            self._report.extended += len(batch) - len(lost)
            for hold in batch:
                hold.extended_at = now
            for hold in lost:
                self._note_missing(hold)

    def _note_missing(self, hold: Hold) -> None:
        if hold.settling or hold not in self._held:
            return
        # A running handler may have acked its own lease. It has a third of the duration to return ACKED.
        if hold.missing or not hold.begun:
            self._tell(hold, f"is lost: {taken_away(hold) or 'it ran out, or it was taken away'}")
        hold.missing = True

    def _lost(self, hold: Hold) -> None:
        """Count a lease that was lost before it could be acked or given back."""
        self._report.lost += 1
        told = taken_away(hold) or "the item may be handled again"
        self._tell(hold, f"was lost before it could be settled: {told}")

    def _tell(self, hold: Hold, told: str) -> None:
        if not hold.told:
            hold.told = True
            words, names, extra = self._held_what(hold)
            _log.warning(f"The lease of {words}, %s.", *names, told, extra=extra)

    def _held_what(self, hold: Hold) -> tuple[str, tuple[object, ...], dict[str, Any]]:
        """Return what a hold is of: words for the log, what goes into them, and the record's fields."""
        lease, queue = hold.lease, self._leases.queue
        names = (lease.position.text, queue, lease.attempt, lease.consumer)
        return "the item %s of %r, attempt %d of consumer %s", names, item_fields(queue, lease)

    def _relies_on(self, position: Position, token: bytes) -> bool:
        """Return whether this consumer holds a lease that has expired. If so, it extends the lease."""
        for hold in list(self._held):
            if hold.lease.position == position and hold.lease.token == token and not hold.overdue():
                self._extend_all = True
                self._extending.wake()
                return True
        return False


def taken_away(hold: Hold) -> str:
    """Return how a call by position took an item away, and what comes of it; "" if none did."""
    if not hold.reason:
        return ""
    reason = hold.reason.rstrip(".")
    follows = "not handled again" if reason.startswith("It was cancelled") else "handled again as it is now"
    follows = "not handled again in its old place" if MOVED in reason else follows
    return f"{reason[0].lower()}{reason[1:]}, and is {follows}"
