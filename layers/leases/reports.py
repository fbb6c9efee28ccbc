"""What leases tell of a queue: its stats, the columns of its items, and what their check finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeAlias

from fdbqueue import CheckReport, Queue, Stats
from fdbqueue.arrow.needs import Column
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    FormatError,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Transaction,
    notes_of,
    pages,
    read_stats,
    rows,
    started,
)
from fdbqueue.moves.ends import OutcomeRecord, group_keys
from fdbqueue.reads.check import check_queue, checked, read_in
from fdbqueue.reads.queue_rows import read_figures
from fdbqueue.reads.remembering import Ages
from fdbqueue.stored.counters import signed
from fdbqueue.stored.shapes import Due

from .timers import due_timers

# Check that every item with a completion has its record, and every record its item or its timer.

Tracked: TypeAlias = tuple[bytes, str, Notes]
"""An item with a completion or a group: its packed position, or address; its place; its notes."""


class OutcomeCheck:
    """What the check of one queue's outcomes finds.

    *Cost:* reads all records; memory for the positions of those with completions.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, tracked: Iterable[Tracked]) -> None:
        self._tr = tr
        self._layout = layout
        self.timers: set[bytes] = set()
        """The timers that remove outcomes."""
        self._problems: list[str] = []
        self._pending: set[bytes] = set()
        span = layout.completions
        for page in pages(tr, span.begin, span.end):
            for row in page:
                self._see(span.packed(row.key), row.value)
        self._waited_for = {packed for packed, state, notes in tracked if state != "dead" and notes.keep_s}

    def _see(self, packed: bytes, stored: bytes) -> None:
        try:
            record = OutcomeRecord.read(self._layout, self._layout.completions.key(packed), stored)
        except FormatError as error:
            self._problems.append(f"The outcome of {self._told(packed)} can't be read. {error}")
            return
        if record.how == "pending":
            self._pending.add(packed)
        else:
            self.timers.add(self._layout.timer_key(record.until_us, packed, Due.RESULT))

    def problems(self) -> list[str]:
        """Return the problems, a sentence each."""
        found = list(self._problems)
        with suppress(FormatError):  # a counter that can't be read: the check itself reports it
            counted, there = read_in(self._tr, partial(read_stats, layout=self._layout)).outcomes, len(self.timers)
            if counted != there:
                found.append(f"The counters say that {counted:,} outcomes are kept, but there are {there:,}.")
        lost = [self._told(packed) for packed in sorted(self._pending - self._waited_for)]
        bare = [self._told(packed) for packed in sorted(self._waited_for - self._pending)]
        found += [f"The completion of {item} is pending, but the item is not in the queue." for item in lost]
        found += [f"The item {item} has a completion, but no pending record." for item in bare]
        return found

    def _told(self, packed: bytes) -> str:
        return str(self._layout.available.position(self._layout.prefix + packed))


# Check that every member of a group has its key, and that the counters of groups are right.

_OPEN = {"available": "available", "leased": "leased", "claimed": "leased", "delayed": "delayed"}
"""The states of open members, and the counter of each: a member in a stream's batch is at work."""


def check_groups(tr: Transaction | Database, layout: Layout, tracked: Iterable[Tracked]) -> list[str]:
    """Return the problems of groups, a sentence each.

    *Cost:* reads all keys of groups; memory for the keys of members.
    """
    wanted: set[bytes] = set()
    there: Counter[tuple[str, str]] = Counter()
    for packed, state, notes in tracked:
        if notes.group and state in _OPEN:
            wanted.add(group_keys(layout, notes.group).members + packed)
            there[notes.group, _OPEN[state]] += 1
    surplus, damaged = [], []
    counted: Counter[tuple[str, str]] = Counter()
    span = layout.groups.range()
    for page in pages(tr, span.start, span.stop):
        for (name, kind, *rest), row in layout.own_rows("groups", page):
            if kind == "member":
                surplus += [] if row.key in wanted else [row.key]
                wanted.discard(row.key)
            elif kind == "record":
                try:
                    group_keys(layout, name).decode(row.value)
                except FormatError as error:
                    damaged.append(str(error))
            elif kind == "count" and rest[0] in _OPEN:
                try:
                    counted[name, rest[0]] = layout.decode(row.key, row.value, signed)
                except FormatError as error:
                    damaged.append(str(error))
    problems = damaged + [f"The member {key!r} of a group has no item in the queue." for key in surplus]
    problems += [f"The member {key!r} of a group is missing." for key in sorted(wanted)]
    for name, state in sorted(there.keys() | counted.keys()):
        if there[name, state] != counted[name, state]:
            problems.append(
                f"The counters say that {counted[name, state]:,} members of the group {name!r} are {state}, but there"
                f" are {there[name, state]:,}."
            )
    return problems


# Check that every item with an end time has its timer, and every timer its item; with outcomes and groups.


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
            self._wanted.add(layout.timer_key(notes.expires_at_us, packed, Due.LEASE))
        if state == "delayed":
            self._wanted.add(layout.timer_key(notes.visible_at_us, packed, Due.DELAY))
        if state in ("available", "delayed") and notes.ttl_at_us:
            self._wanted.add(layout.timer_key(notes.ttl_at_us, packed, Due.TTL))
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
) -> CheckReport:
    """Check a queue that has leases: all that `Queue.check` compares, timers, outcomes and groups.

    Args:
        parts: what further layers compare, in the same pass.
    """

    def check(tr: Transaction | Database) -> CheckReport:
        return check_queue(tr, layout, partial(TimerCheck, tr, layout), *(partial(make, tr) for make in parts))

    return checked(tr, layout, check)


def is_tracked(notes: Notes) -> bool:
    """Return whether an item has a completion or a group."""
    return bool(notes.keep_s or notes.group)


def _may_be_left(layout: Layout, key: bytes) -> bool:
    """Return whether a timer is a follow-up's, a grant's or a group's. It may be left over until the next consumer."""
    timer = layout.timer_of(key)
    return timer is not None and timer[2] in (Due.GO, Due.DROP, Due.GRANT, Due.GROUP, Due.HOLD, Due.SWEEP)


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


# What leases add to the columns of items as Arrow data.


def _when(us: int) -> int | None:
    return us or None


COLUMNS = (
    Column("enqueued_at", "time", lambda notes, state: _when(notes.enqueued_at_us)),
    Column("attempts", "number", lambda notes, state: notes.attempt),
    Column("visible_at", "time", lambda notes, state: _when(notes.visible_at_us)),
    Column("lease_expires_at", "time", lambda notes, state: _when(notes.expires_at_us) if state == "leased" else None),
    Column("ttl_at", "time", lambda notes, state: _when(notes.ttl_at_us)),
    Column("died_at", "time", lambda notes, state: _when(notes.died_at_us) if state == "dead" else None),
    Column("consumer", "text", lambda notes, state: notes.consumer or None, of_claimed=lambda stream: stream),
    Column("error", "text", lambda notes, state: notes.error or None),
)


# Stats of a queue with leases, and the age of its first item.

OVERDUE_LIMIT = 1_000


@dataclass(frozen=True, slots=True, repr=False)
class LeaseStats(Stats):
    """`fdbqueue.Stats`, with due timers and ages."""

    overdue: int
    """Due timers that have not fired yet, counted up to 1,000."""
    oldest_age_s: float | None
    """The time that the first available item has been in the queue. None without one, if it can't be read, or after a
    plain enqueue, which notes no time."""
    oldest_age_at_least_s: float | None
    """The same, or a lower bound if the age is unknown. This object derives the bound from the times at which it read
    stats of a database. The bound is 0 at the first time. None without an available item."""


async def read_lease_stats(tr: Transaction, layout: Layout, now_us: int, ages: Ages, *, remember: bool) -> LeaseStats:
    """Read a queue's `LeaseStats`.

    Args:
        ages: what earlier looks have seen.
        remember: whether to remember this look; not in a caller's transaction, which may have enqueued items itself.
    """
    overdue = started(due_timers(tr, layout, now_us, limit=OVERDUE_LIMIT))
    first = started(rows(tr.snapshot, layout.begin, layout.end, limit=1))
    counted = (await read_figures(tr, layout)).stats
    late = await overdue
    age_s = at_least_s = None
    found = await first
    packed = layout.available.packed(found[0].key) if found else b""
    if remember:
        ages.remember(counted, packed, now_us)
    for row in found:
        with suppress(FormatError):  # a call that takes it raises this, and a check reports it
            enqueued_at_us = notes_of(row.value).enqueued_at_us
            age_s = (now_us - enqueued_at_us) / 1e6 if enqueued_at_us else None
        at_least_s = ages.age_us(counted, packed, now_us) / 1e6 if age_s is None else age_s
    return LeaseStats(**asdict(counted), overdue=len(late), oldest_age_s=age_s, oldest_age_at_least_s=at_least_s)
