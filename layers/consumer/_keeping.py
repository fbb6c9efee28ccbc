"""Keep the leases that a consumer holds: extend them in time, and tell of lost ones."""

from __future__ import annotations

import logging
import time

from fdbqueue import Position
from fdbqueue.lowlevel import Database, run

from ..common.logs import item_fields
from ..leases import Leases
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
            lease = hold.lease
            words = "The lease of the item %s of %r, attempt %d of consumer %s, %s."
            queue = self._leases.queue
            told_of = (lease.position.text, queue, lease.attempt, lease.consumer, told)
            _log.warning(words, *told_of, extra=item_fields(queue, lease))

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
    return f"{reason[0].lower()}{reason[1:]}, and is {follows}"
