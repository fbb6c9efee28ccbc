"""The sessions of a queue on its page: totals, workers, and the largest sessions, from a bounded number of reads.

Layers write these keys (`fdbqueue/stored/layout.py`). The line of ready sessions is in one shard or several.
A pointer in the line is an array. Its second element is a session's packed name, and its sixth is the time since
when the worker has it. The third element of a session's record is its generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue.base.reprs import Shown, Table
from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import Steps, rows, started
from fdbqueue.errors import FormatError
from fdbqueue.stored.codecs import CODEC_ERRORS, UNREADABLE
from fdbqueue.stored.counters import read_stats
from fdbqueue.stored.items import notes_of, parse
from fdbqueue.stored.layout import Layout

MOST_BUSY = 100
"""Busy sessions that are read."""
MOST_SHARDS = 64
MOST_COUNTED = 50
"""Sessions whose items are counted, from each end of the names."""
SHOWN = 10
_OF_ITEMS = ("dequeued", "delayed", "dead", "expired", "purged", "deleted")
_OF_STATES = ("leased", *_OF_ITEMS)
_UNREADABLE = (FormatError, *UNREADABLE, *CODEC_ERRORS)


@dataclass(frozen=True, slots=True, repr=False)
class SessionTotals(Shown):
    """The sessions of a queue, and the items in all of them."""

    ready: int
    """Sessions in the line. One that runs several items at once counts once for each slot."""
    busy: int
    """Sessions that a worker has, counted in the same way."""
    waiting: int
    """Sessions that wait for a delay or a back-off."""
    available: int
    """Items that are available, with those in progress."""
    delayed: int
    """Items that wait for their time."""
    dead: int
    """Dead letters."""
    enqueued: int
    """Items enqueued in total."""
    dequeued: int
    """Items acked in total."""


@dataclass(frozen=True, slots=True, repr=False)
class BusySession(Shown):
    """A session that a worker has."""

    session: Any
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

    session: Any
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

    totals: SessionTotals
    """The numbers of sessions, and of items in all of them."""
    busy: tuple[BusySession, ...]
    """Who works on what: the first busy sessions in the line, at most 100."""
    largest: tuple[LargeSession, ...]
    """The largest of the sessions that were counted, most items first, at most 10."""
    counted: int
    """How many sessions were counted for `largest`: the first and the last 50 by their names."""
    more: bool
    """Whether there are sessions that were not counted."""

    def facts(self) -> str:
        """Return the totals in one line."""
        told = self.totals
        return (
            f"sessions: {told.ready:,} ready, {told.busy:,} busy, {told.waiting:,} waiting; in them {told.available:,}"
            f" items available or in progress, {told.delayed:,} delayed, {told.dead:,} dead; {told.enqueued:,} enqueued"
            f" and {told.dequeued:,} acked in total"
        )

    def tables(self) -> Iterator[Table]:
        """Yield the tables that have rows."""
        if self.busy:
            held = tuple((repr(one.session), one.consumer, one.since, one.expires_at) for one in self.busy[:SHOWN])
            more = self.totals.busy > len(held)
            yield Table("who works on what", ("session", "consumer", "since_at", "expires_at"), held, more)
        if self.largest:
            part = f", of {self.counted:,} that were counted" if self.more else ""
            cells = tuple((repr(one.session), one.available, one.delayed, one.dead) for one in self.largest)
            yield Table(f"largest sessions{part}", ("session", "items", "delayed", "dead"), cells)


def read_session_totals(tr: Transaction, layout: Layout) -> Steps[SessionTotals | None]:
    """Read the totals, by snapshot; None if the queue never had a session.

    *Cost:* two reads, then one for each shard.
    """
    summed = layout.space["summed"]
    span = summed.range()
    summing = started(rows(tr.snapshot, span.start, span.stop))
    counting = [started(read_stats(tr, line)) for line in (yield from _shards(tr, layout))]
    sums: dict[str, int] = {}
    for row in (yield from summing):
        name = summed.unpack(row.key)[0]
        sums[name] = sums.get(name, 0) + int.from_bytes(row.value, "little", signed=True)
    ready = busy = waiting = 0
    for steps in counting:
        line = yield from steps
        ready, busy, waiting = ready + line.available, busy + line.leased, waiting + line.delayed
    if not sums.get("enqueued"):
        return None
    return SessionTotals(
        ready=ready,
        busy=busy,
        waiting=waiting,
        available=sums["enqueued"] - sum(sums.get(name, 0) for name in _OF_ITEMS),
        delayed=sums.get("delayed", 0),
        dead=sums.get("dead", 0),
        enqueued=sums["enqueued"],
        dequeued=sums.get("dequeued", 0),
    )


def _shards(tr: Transaction, layout: Layout) -> Steps[list[Layout]]:
    """Return the keys of all shards of the line of ready sessions. *Cost:* one read by snapshot."""
    further = layout.space["lines"]
    stored = yield tr.snapshot.get(further.pack(("number",)))
    number = int.from_bytes(bytes(stored), "little") if stored.present() else 1
    return [Layout(layout.space["line"]), *(Layout(further[shard]) for shard in range(1, min(number, MOST_SHARDS)))]


def read_sessions_page(tr: Transaction, layout: Layout) -> Steps[SessionsPage | None]:
    """Read what a queue's page says of its sessions, by snapshot; None if it never had any.

    *Cost:* three reads; if it had sessions four more, one for each shard, and one for each session that is counted.
    """
    totals = yield from read_session_totals(tr, layout)
    if totals is None:
        return None
    view = tr.snapshot
    places = [line.leased for line in (yield from _shards(tr, layout))]
    held = [started(rows(view, place.begin, place.end, limit=MOST_BUSY)) for place in places]
    span = layout.space["session"].range()
    first = started(rows(view, span.start, span.stop, limit=MOST_COUNTED + 1))
    last = started(rows(view, span.start, span.stop, limit=MOST_COUNTED, reverse=True))
    busy: list[BusySession] = []
    for steps in held:
        busy += [one for row in (yield from steps) if (one := _busy(row)) is not None]
    head = yield from first
    found = {row.key: row for row in [*head[:MOST_COUNTED], *(yield from last)]}
    counting = [_counted(tr, layout, row) for row in found.values()]
    sizes = []
    for counted in [started(one) for one in counting]:
        size = yield from counted
        if size is not None:
            sizes.append(size)
    sizes.sort(key=lambda one: -(one.available + one.delayed + one.dead))
    more = len(head) > MOST_COUNTED and len(found) == 2 * MOST_COUNTED
    return SessionsPage(totals, tuple(busy[:MOST_BUSY]), tuple(sizes[:SHOWN]), len(sizes), more)


def _busy(row: KeyValue) -> BusySession | None:
    try:
        notes = notes_of(row.value)
        pointer = msgspec.msgpack.decode(parse(row.value).payload)
        name = fdb_tuple.unpack(pointer[1])[0]
        return BusySession(name, notes.consumer, pointer[5] / 1e6, notes.expires_at_us / 1e6)
    except _UNREADABLE:
        return None  # a newer version wrote it, or it is damaged: a check reports it


def _counted(tr: Transaction, layout: Layout, row: KeyValue) -> Steps[LargeSession | None]:
    packed = row.key[len(layout.space["session"].key()) :]
    try:
        name = fdb_tuple.unpack(packed)[0]
        generation: int = msgspec.msgpack.decode(row.value)[2]
    except _UNREADABLE:
        return None
    counts = Subspace(rawPrefix=layout.space["items"].key() + packed + fdb_tuple.pack((generation, "count")))
    span = counts.range()
    found = yield from rows(tr.snapshot, span.start, span.stop)
    kept = {counts.unpack(one.key)[0]: int.from_bytes(one.value, "little", signed=True) for one in found}
    gone = sum(kept.get(state, 0) for state in _OF_STATES)
    return LargeSession(name, kept.get("enqueued", 0) - gone, kept.get("delayed", 0), kept.get("dead", 0))
