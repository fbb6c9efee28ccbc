"""List sessions and their items, count them, and show them on a queue's page, from a bounded number of reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from fdbqueue import FormatError
from fdbqueue.base.times import LONGEST_SECONDS
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import (
    UNREADABLE,
    Browser,
    Database,
    KeyValue,
    Layout,
    Notes,
    PagePart,
    Pages,
    Shown,
    Steps,
    TextTable,
    Transaction,
    notes_of,
    read_stats,
    rows,
    started,
    value_of,
)
from fdbqueue.stored.counters import signed
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.names import session_text
from fdbqueue.stored.settings import check_renamed

from ...leases.lease import seconds_or_none
from ..line.line import Line
from ..line.slots import Entries
from ..session.records import (
    OPEN,
    GateInfo,
    Keys,
    SessionName,
    SessionPointer,
    SessionRecord,
    name_of,
    pointer_of,
    unpack_gate_record,
    unpack_record,
)

Status: TypeAlias = Literal["ready", "busy", "gated", "waiting", "paused", "blocked", "idle"]
STATUSES: tuple[Status, ...] = ("ready", "busy", "gated", "waiting", "paused", "blocked", "idle")
_TOTALS = ("enqueued", "dequeued", "delayed", "dead", "expired", "purged", "deleted")


@dataclass(frozen=True, slots=True, repr=False)
class SessionInfo(Shown):
    """A session, as it was when it was read. Times are seconds by the clock of the process that wrote them."""

    session: SessionName
    """Its name."""
    status: Status
    """"ready": in the line; "busy": leased; "gated": it waits for a slot of one of its gates; "waiting": for a delay or
    a back-off; "paused"; "blocked"; "idle": it has no items, only dead letters."""
    items: int
    """Its available items, with the one in progress."""
    delayed: int
    """Its delayed items."""
    dead: int
    """Its dead letters."""
    consumer: str = ""
    """The worker that has it; "" if it is not busy."""
    since: float | None = None
    """When the worker took its present item; None if it is not busy."""
    until: float | None = None
    """When its lease expires, or until when it waits; None: neither."""
    reason: str = ""
    """Why it is blocked."""
    closing: bool = False
    """Whether it is being removed."""
    generation: int = 0
    """How often it was removed with later items kept for a new generation."""
    concurrency: int = 1
    """How many of its items run at once."""
    running: int = 0
    """How many of its items are in progress."""
    gate: SessionName | None = None
    """If it is gated: the gate at which its first item waits."""
    paused: bool = False
    """Whether it is paused, also while it is busy or blocked."""


@dataclass(frozen=True, slots=True, repr=False)
class SessionStats(Shown):
    """The numbers of sessions, and of items in all sessions."""

    ready: int
    """Sessions in the line."""
    busy: int
    """Sessions that a worker has. A dead worker's sessions count until another worker reclaims them."""
    waiting: int
    """Sessions that wait for a delay or a back-off."""
    available: int
    """Items that are available, with those in progress, also in paused and blocked sessions."""
    delayed: int
    """Items that wait for their time."""
    dead: int
    """Dead letters."""
    enqueued: int
    """Items enqueued in total."""
    dequeued: int
    """Items acked in total."""
    expired: int
    """Items removed in total because their time to live was over."""
    purged: int
    """Dead letters removed in total."""
    gated: int = 0
    """Items, at most one for each slot of a session, that wait for a slot of a gate."""


async def read_session_stats(tr: Transaction, keys: Keys) -> SessionStats:
    """Count the sessions of a queue, and the items in them, by snapshot.

    Raises:
        FormatError: a total can't be read.

    *Cost:* two reads in parallel; one more if there ever was a session.
    """
    span = keys.summed.range()
    summed = await rows(tr.snapshot, span.start, span.stop)
    if not summed:
        return SessionStats(*[0] * 10)
    line = await read_stats(tr, keys.line)
    sums = dict.fromkeys(_TOTALS, 0)
    for row in summed:
        parts = FAMILIES["summed"].parts(row.key[len(keys.summed.key()) :])
        if parts is None:
            continue
        counter: str = parts[0]
        sums[counter] = sums.get(counter, 0) + keys.layout.decode(row.key, row.value, signed)
    gated = sums.pop("gated", 0)
    gone = sum(sums.values()) - sums["enqueued"]
    return SessionStats(
        ready=line.available,
        busy=line.leased,
        waiting=line.delayed,
        available=sums["enqueued"] - gone,
        delayed=sums["delayed"],
        dead=sums["dead"],
        enqueued=sums["enqueued"],
        dequeued=sums["dequeued"],
        expired=sums["expired"],
        purged=sums["purged"],
        gated=gated,
    )


class Listing:
    """Reads the sessions of one line, by snapshot."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def browse(
        self,
        tr: Transaction | Database,
        *,
        status: Status | None,
        begin: bytes,
        limit: int | None,
    ) -> Browser[SessionInfo]:
        """Iterate over sessions by their names."""
        span = self._line.keys.records.range()

        async def look(row: KeyValue) -> SessionInfo | None:
            name = row.key[len(self._line.keys.record(b"")) :]
            info = await self._line.items.read(tr, partial(self.info, name=name))
            fits = info is None or status in (None, info.status) or (status == "paused" and info.paused)
            return info if fits else None

        return Browser(Pages(tr, max(span.start, begin), span.stop, layout=self._line.layout), look, limit=limit)

    async def info(self, tr: Transaction, name: bytes) -> SessionInfo | None:
        """Describe a session; None if it has nothing."""
        session = self._line.session(name)
        found = await rows(tr.snapshot, session.record_key, session.record_key + b"\x00", limit=1)
        if not found:
            await check_renamed(tr.snapshot, self._line.layout)
            return None
        record = unpack_record(self._line.items.layout, found[0].key, found[0].value)
        session = self._line.session(name, record.generation)
        slots = await self._line.slots.pointers(tr.snapshot, session, record)
        if record.slots:
            slots.pop(b"", None)  # it wakes delayed items, and the slots say what the session does
        reading = started(self._pointers(tr, slots))
        counted = await read_stats(tr, session.layout)
        of_slots = await reading
        # A session is busy if one of its slots is, and waits if all of them do.
        place = next((place for place, values in of_slots.items() if values), "")
        stage = min((slot.stage for slot in slots.values() if slot.stage >= 0), default=None)
        gate: SessionName | None = None
        if stage is not None and place in ("", "delayed"):
            place, gate = "gated", name_of(record.gates[stage][0])
        pointer = next(iter(of_slots.get(place, ())), b"")
        status, consumer, since, until = _where(record, place, pointer)
        running = sum(bool(pointer_of(value).current) for value in of_slots["leased"])
        return SessionInfo(
            name_of(name),
            status,
            counted.available,
            counted.delayed,
            counted.dead,
            consumer,
            since,
            until,
            record.blocked,
            record.closing != OPEN,
            record.generation,
            record.limit or 1,
            running,
            gate if status == "gated" else None,
            record.paused,
        )

    async def _pointers(self, tr: Transaction, slots: Entries) -> dict[str, list[bytes]]:
        """Read the pointers of a session's slots in the line, by their places there, all in parallel."""
        reading = {
            place: [
                started(self._one(tr, getattr(self._line.layout, place).key(slot.place))) for slot in slots.values()
            ]
            for place in ("leased", "available", "delayed")
        }
        found: dict[str, list[bytes]] = {}
        for place, steps in reading.items():
            values = [await one for one in steps]
            found[place] = [value for value in values if value]
        return found

    async def _one(self, tr: Transaction, key: bytes) -> bytes:
        """Return the stored pointer under a key, which can be read; b"" if there is none."""
        found = await rows(tr.snapshot, key, key + b"\x00", limit=1)
        for row in found:
            self._line.items.layout.decode(key, row.value, _notes_and_pointer)
        return found[0].value if found else b""

    async def stats(self, tr: Transaction) -> SessionStats:
        """Count sessions and items.

        Raises:
            QueueRenamed: there never was a session, and the queue has another name now.
        """
        stats = await read_session_stats(tr, self._line.keys)
        if not stats.enqueued:
            await check_renamed(tr.snapshot, self._line.layout)
        return stats

    def browse_gates(self, tr: Transaction | Database, *, begin: bytes, limit: int | None) -> Browser[GateInfo]:
        """Iterate over gates by their names."""
        keys = self._line.keys

        def look(row: KeyValue) -> Steps[GateInfo | None]:
            return self._line.items.read(tr, partial(self.gate, gate=row.key[len(keys.gate()) :]))

        found = Pages(tr, max(keys.gate(), begin), behind(keys.gate()), layout=self._line.layout)
        return Browser(found, look, limit=limit)

    async def gate(self, tr: Transaction, gate: bytes) -> GateInfo | None:
        """Describe a gate; None if nothing is stored of it."""
        keys = self._line.keys
        recording, counting = tr.snapshot.get(keys.gate(gate)), tr.snapshot.get(keys.waiters(gate))
        stored, waiters = await value_of(recording), await value_of(counting)
        if not stored.present():
            await check_renamed(tr.snapshot, self._line.layout)
            return None
        layout = self._line.items.layout
        record = unpack_gate_record(layout, keys.gate(gate), bytes(stored))
        waiting = layout.decode(keys.waiters(gate), bytes(waiters), signed) if waiters.present() else 0
        return GateInfo(name_of(gate), record.limit, record.held, waiting, record.kept)


def _notes_and_pointer(stored: bytes) -> tuple[Notes, SessionPointer]:
    return notes_of(stored), pointer_of(stored)


def _where(record: SessionRecord, place: str, pointer: bytes) -> tuple[Status, str, float | None, float | None]:
    """Return a session's status, its worker, since when and until when, from its foremost pointer."""
    if place == "leased":
        notes = notes_of(pointer)
        return "busy", notes.consumer, pointer_of(pointer).since_us / 1e6, notes.expires_at_us / 1e6
    if record.is_stopped:
        return ("blocked" if record.blocked else "paused"), "", None, None
    if place == "delayed":
        until = seconds_or_none(notes_of(pointer).visible_at_us)
        return "waiting", "", None, None if until == LONGEST_SECONDS else until  # it has held items only
    statuses: dict[str, Status] = {"gated": "gated", "available": "ready"}
    return statuses.get(place, "idle"), "", None, None


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
