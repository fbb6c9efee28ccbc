"""The sessions of a queue on its page: totals, workers, and the largest sessions, from a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fdbqueue import FormatError
from fdbqueue.lowlevel import (
    UNREADABLE,
    KeyValue,
    Layout,
    PagePart,
    Shown,
    TextTable,
    Transaction,
    notes_of,
    read_stats,
    rows,
    started,
)
from fdbqueue.stored.names import session_text

from ..session.records import Keys, SessionName, SessionRecord, name_of, pointer_of, unpack_record
from .listing import SessionStats, read_session_stats

MOST_BUSY = 100
"""Busy sessions that are read."""
MOST_COUNTED = 50
"""Sessions whose items are counted, from each end of the names."""
SHOWN = 10


@dataclass(frozen=True, slots=True, repr=False)
class BusySession(Shown):
    """A session that a worker has."""

    session: SessionName
    """Its name."""
    consumer: str
    """The worker."""
    since: float
    """When the worker took the session, or its present item."""
    expires_at: float
    """When its lease ends."""


@dataclass(frozen=True, slots=True, repr=False)
class LargeSession(Shown):
    """A session with many items."""

    session: SessionName
    """Its name."""
    available: int
    """Items that are available, with those in progress."""
    delayed: int
    """Items that wait for their time."""
    dead: int
    """Dead letters."""


@dataclass(frozen=True, slots=True, repr=False)
class SessionsPage(Shown):
    """The sessions of a queue, as `Queue.inspect` found them."""

    totals: SessionStats
    """The numbers of sessions, and of items in all of them."""
    busy: tuple[BusySession, ...]
    """Who works on what: the first busy sessions in the line, at most 100."""
    largest: tuple[LargeSession, ...]
    """The largest of the sessions that were counted, most items first, at most 10."""
    counted: int
    """How many sessions were counted for `largest`: the first and the last 50 by their names."""
    more: bool
    """Whether there are sessions that were not counted."""
    blocked: int = 0
    """How many of the sessions that were counted are blocked."""
    paused: int = 0
    """How many of the sessions that were counted are paused."""

    def facts(self) -> str:
        """Return the totals in one line."""
        told = self.totals
        gated = f", {told.gated:,} slots at a gate" if told.gated else ""
        blocked = f", {self.blocked:,} blocked" if self.blocked else ""
        paused = f", {self.paused:,} paused" if self.paused else ""
        return (
            f"sessions: {told.ready:,} ready, {told.busy:,} busy, {told.waiting:,} waiting{gated}{blocked}{paused}; in"
            f" them {told.available:,} items available or in progress, {told.delayed:,} delayed, {told.dead:,} dead;"
            f" {told.enqueued:,} enqueued and {told.dequeued:,} acked in total"
        )

    def tables(self) -> Iterator[TextTable]:
        """Yield the tables that have rows."""
        if self.busy:
            held = tuple(
                (session_text(one.session), one.consumer, one.since, one.expires_at) for one in self.busy[:SHOWN]
            )
            more = self.totals.busy > len(held)
            yield TextTable("who works on what", ("session", "consumer", "since_at", "expires_at"), held, more)
        if self.largest:
            part = f", of {self.counted:,} that were counted" if self.more else ""
            cells = tuple((session_text(one.session), one.available, one.delayed, one.dead) for one in self.largest)
            yield TextTable(f"largest sessions{part}", ("session", "items", "delayed", "dead"), cells)


async def read_page(tr: Transaction, layout: Layout) -> SessionsPage | None:
    """Read what a queue's page says of its sessions, by snapshot; None if it never had any.

    *Cost:* three reads; if it had sessions five more, and one for each session that is counted.
    """
    keys = Keys(layout)
    totals = await read_session_stats(tr, keys)
    if not totals.enqueued:
        return None
    view = tr.snapshot
    leased = keys.line.leased
    held = started(rows(view, leased.begin, leased.end, limit=MOST_BUSY))
    span = keys.records.range()
    first = started(rows(view, span.start, span.stop, limit=MOST_COUNTED + 1))
    last = started(rows(view, span.start, span.stop, limit=MOST_COUNTED, reverse=True))
    busy = [one for row in await held if (one := _busy(row)) is not None]
    head = await first
    found = {row.key: row for row in [*head[:MOST_COUNTED], *await last]}
    records = {key: record for key, row in found.items() if (record := _record(keys.layout, row)) is not None}
    counting = [started(_counted(tr, keys, key, record)) for key, record in records.items()]
    sizes = []
    for counted in counting:
        size = await counted
        if size is not None:
            sizes.append(size)
    sizes.sort(key=lambda one: -(one.available + one.delayed + one.dead))
    more = len(head) > MOST_COUNTED and len(found) == 2 * MOST_COUNTED
    blocked = sum(bool(record.blocked) for record in records.values())
    paused = sum(record.paused for record in records.values())
    return SessionsPage(totals, tuple(busy), tuple(sizes[:SHOWN]), len(sizes), more, blocked, paused)


async def read_totals(tr: Transaction, layout: Layout) -> SessionStats | None:
    """Read the totals for a list of queues, by snapshot; None if the queue never had a session.

    *Cost:* as `read_session_stats`.
    """
    totals = await read_session_stats(tr, Keys(layout))
    return totals if totals.enqueued else None


def _record(layout: Layout, row: KeyValue) -> SessionRecord | None:
    """Return the record of a session; None if it can't be read."""
    try:
        return unpack_record(layout, row.key, row.value)
    except FormatError:
        return None  # a check reports it


def _busy(row: KeyValue) -> BusySession | None:
    try:
        notes, pointer = notes_of(row.value), pointer_of(row.value)
        return BusySession(name_of(pointer.name), notes.consumer, pointer.since_us / 1e6, notes.expires_at_us / 1e6)
    except (FormatError, *UNREADABLE):
        return None  # a newer version wrote it, or it is damaged: a check reports it


async def _counted(tr: Transaction, keys: Keys, key: bytes, record: SessionRecord) -> LargeSession | None:
    packed = key[len(keys.record(b"")) :]
    try:
        name = name_of(packed)
        there = await read_stats(tr, keys.of_session(packed, record.generation))
    except (FormatError, *UNREADABLE):
        return None
    return LargeSession(name, there.available, there.delayed, there.dead)


PAGE_PART = PagePart(read_page, read_totals)
"""What sessions add to the page of a queue (`fdbqueue.lowlevel.add_to_page`)."""
