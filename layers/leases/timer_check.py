"""Check that every item with an end time has its timer, and every timer its item; with outcomes and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from fdbqueue import CheckReport, Queue
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, KeyValue, Layout, Notes, Transaction, pages
from fdbqueue.reads.check import check_queue, checked
from fdbqueue.stored.layout import DELAY, DROP, GO, GRANT, GROUP, HOLD, LEASE, SWEEP, TTL

from ._group_check import check_groups
from .outcome_check import OutcomeCheck, Tracked
from .transitions import Custody


class TimerCheck(ItemCheck):
    """Compares the timers, outcomes and groups of a queue with its items.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout.
        tracked: returns the items with a completion or a group, if they are not in this queue.

    *Cost:* reads all timers, outcomes and groups; memory for the keys of timers and of members of groups.
    """

    def __init__(
        self, tr: Transaction | Database, layout: Layout, tracked: Callable[[], Iterable[Tracked]] | None = None
    ) -> None:
        self._tr = tr
        self._layout = layout
        self._elsewhere = tracked
        self._here: list[Tracked] = []
        self._wanted: set[bytes] = set()

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the timers that an item should have."""
        if notes is None:
            return
        layout = self._layout
        if state == "leased":
            self._wanted.add(layout.timer_key(notes.expires_at_us, packed, LEASE))
        if state == "delayed":
            self._wanted.add(layout.timer_key(notes.visible_at_us, packed, DELAY))
        if state in ("available", "delayed") and notes.ttl_at_us:
            self._wanted.add(layout.timer_key(notes.ttl_at_us, packed, TTL))
        if self._elsewhere is None and is_tracked(notes):
            self._here.append((packed, state, notes))

    def problems(self) -> list[str]:
        """Return the problems, a sentence each."""
        layout = self._layout
        items = self._here if self._elsewhere is None else [*self._elsewhere()]
        outcomes = OutcomeCheck(self._tr, layout, items)
        wanted = self._wanted | outcomes.timers
        span = layout.timers.range()
        surplus = []
        for page in pages(self._tr, span.start, span.stop):
            for row in page:
                if row.key in wanted:
                    wanted.remove(row.key)
                elif layout.timer_of(row.key) is not None and not _may_be_left(layout, row.key):
                    surplus.append(row.key)
        return (
            [f"The timer {_told(layout, key)} is missing." for key in sorted(wanted)]
            + [f"The timer {_told(layout, key)} belongs to no item." for key in surplus]
            + outcomes.problems()
            + check_groups(self._tr, layout, items)
        )


def check_leases(
    tr: Transaction | Database,
    layout: Layout,
    *parts: Callable[[Transaction | Database], ItemCheck],
    custody: Custody | None = None,
) -> CheckReport:
    """Check a queue that has leases: all that `Queue.check` compares, timers, outcomes and groups.

    Args:
        parts: what further layers compare, in the same pass.
        custody: the layer whose items the items of this queue stand for. Blobs that are kept here belong to those, and
            are not checked.
    """

    def check(tr: Transaction | Database) -> CheckReport:
        tracked = None if custody is None else partial(custody.tracked, tr)
        more = (partial(make, tr) for make in parts)
        return check_queue(tr, layout, partial(TimerCheck, tr, layout, tracked), *more, with_contents=custody is None)

    return checked(tr, layout if custody is None else custody.items.layout, check)


def is_tracked(notes: Notes) -> bool:
    """Return whether an item has a completion or a group."""
    return bool(notes.keep_s or notes.group)


def _may_be_left(layout: Layout, key: bytes) -> bool:
    """Return whether a timer is a follow-up's, a grant's or a group's. It may be left over until the next consumer."""
    timer = layout.timer_of(key)
    return timer is not None and timer[2] in (GO, DROP, GRANT, GROUP, HOLD, SWEEP)


def _told(layout: Layout, key: bytes) -> str:
    timer = layout.timer_of(key)
    if timer is None:
        return f"{key!r}"
    at_us, position, kind = timer
    return f"of the {kind} of {position} at {at_us / 1e6:.6f}"


def _part(tr: Transaction | Database, queue: Queue) -> TimerCheck:
    return TimerCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("timers", "outcomes", "groups"))
"""What leases add to `fdbqueue.check`."""
