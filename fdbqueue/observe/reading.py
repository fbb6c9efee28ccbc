"""Read the rows of many queues' figures, in few range reads that are under way together.

All strings of a queue's keys sort by name. So one range read from its pause to its timers has its streams, its
subscriptions and the totals of its sessions too. Another one has its requests and its schedules. A third one asks
whether it has levels or sessions at all. What a queue does not have is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.keys import Subspace, behind, is_within, stamped, within
from fdbqueue.engine.steps import Steps, rows, started, value_of
from fdbqueue.errors import FormatError
from fdbqueue.layers.schedules.schedules import stopped_at
from fdbqueue.layers.sessions import SessionStats
from fdbqueue.layers.sessions.line.slots import read_entry
from fdbqueue.layers.sessions.reading.listing import read_session_stats
from fdbqueue.layers.sessions.session.records import (
    Keys,
    SessionPointer,
    SessionRecord,
    name_of,
    pointer_of,
    unpack_record,
)
from fdbqueue.layers.sessions.session.states import read_codec_name
from fdbqueue.layers.staged.requests import Requests
from fdbqueue.layers.subscriptions.records import is_suspended
from fdbqueue.moves.admission import size_of
from fdbqueue.moves.ends import group_keys
from fdbqueue.reads.queue_rows import MOST_TIMERS, SESSIONS, QueueRows, stored_in
from fdbqueue.stored.catalogue import queues_around
from fdbqueue.stored.counters import read_counts, read_level_counts
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.layout import Layout, names_above
from fdbqueue.stored.names import session_told
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import Due

MOST_TOLD = 500
"""Rows of pause, streams, subscriptions, totals and timers that one read returns. With more, each has its own."""
MOST_REQUESTS = 200
MOST_LEASED = 16
"""How many leased items are read for the names of their consumers. They have their payloads with them."""
MOST_POINTERS = 200
MOST_FIRST = 8
"""Of how many ready sessions the first item is read for its age."""
MOST_SUBSCRIPTIONS = 100
MOST_STREAM_ROWS = 100
MOST_SCHEDULES = 100
MOST_ASKED = MOST_REQUESTS + MOST_SCHEDULES
"""Rows of requests and schedules that one read returns. With more, the schedules have their own."""
MOST_DELAYED = 16
"""How many delayed items, and timers of each line of sessions, are read for their attempts and for how long they wait.
"""
MOST_RECORDS, MOST_RECORDS_WITH_DEAD = 100, 1_000
"""Of how many sessions the records are read, the first by their names, to find blocked and paused ones: no key lists
these. The second number holds if the sessions have dead letters, which block a session."""
MOST_SLOTS = 100
"""How many slots of sessions are read, to find damaged ones."""
MOST_BLOCKED = 8
"""Of how many blocked sessions the items are counted."""


class OwnKeys(NamedTuple):
    """The keys of a queue, and of its sessions."""

    layout: Layout
    sessions: Keys
    deeper: tuple[bytes, bytes]
    """The begin and end of the counters of its levels, and the lines of its sessions: they lie side by side."""
    schedules: Subspace
    above: tuple[bytes, ...]
    """The prefixes of the names that its name is within, if they are queues."""


@lru_cache(maxsize=4_096)
def keys_of(prefix: bytes) -> OwnKeys:
    """Return the keys of the queue with this prefix."""
    layout = Layout.at(prefix)
    keys = Keys(layout)
    deeper = layout.level_counts.key(), behind(keys.shards.key())
    return OwnKeys(layout, keys, deeper, layout.space["schedule"], tuple(names_above(prefix)))


class BlockedSession(NamedTuple):
    """A blocked session."""

    name: bytes
    """Its packed name."""
    record: SessionRecord
    counts: dict[str, int]
    """Its counters."""
    dead: list[KeyValue]
    """Its first dead letter."""


class LongestWait(NamedTuple):
    """The session that waits longest."""

    pointer: SessionPointer
    until_us: int


@dataclass(slots=True)
class ReadRows(QueueRows):
    """The rows of one queue, and those that layers have in it."""

    own: OwnKeys = field(kw_only=True)
    problem: str = ""
    """The first thing that could not be read."""
    is_newer: bool = False
    """Whether a newer version of the library wrote that."""
    has_more: bool = False
    """Whether it has levels or sessions."""
    streams: list[KeyValue] = field(default_factory=list)
    subscriptions: list[KeyValue] = field(default_factory=list)
    due: list[KeyValue] = field(default_factory=list)
    """Timers that are due, also those of the lines of sessions."""
    first: list[KeyValue] = field(default_factory=list)
    """The first available item."""
    last: list[KeyValue] = field(default_factory=list)
    requests: list[KeyValue] = field(default_factory=list)
    """Calls that wait, also those at the lines of sessions."""
    waiting: list[KeyValue] = field(default_factory=list)
    """Consumers of subscriptions that wait."""
    pointers: list[KeyValue] = field(default_factory=list)
    """Pointers of subscriptions."""
    leased: list[KeyValue] = field(default_factory=list)
    """Leased items, and pointers of leased sessions."""
    first_of_sessions: list[KeyValue] = field(default_factory=list)
    """The first items of the sessions that are next."""
    dead_of_sessions: int = 0
    """How many items of sessions became dead letters in total."""
    size_bytes: int | None = None
    """About how large it is; None: it has no quota of bytes."""
    schedules: list[KeyValue] = field(default_factory=list)
    dead: list[KeyValue] = field(default_factory=list)
    """Its first dead letter."""
    delayed: list[KeyValue] = field(default_factory=list)
    """Some delayed items, also those of sessions that wait."""
    above: bytes = b""
    """The prefix of the longest registered name that its name is within; b"" if there is none."""
    blocked: list[BlockedSession] = field(default_factory=list)
    """Blocked sessions among the records that were read, of which `MOST_BLOCKED` have their counters."""
    session_pauses: list[bytes] = field(default_factory=list)
    """The packed names of the paused ones among them."""
    waits: LongestWait | None = None
    foreign: int = 0
    """Keys among the records of sessions that are not the library's."""
    damaged: bytes = b""
    """If the first thing that could not be read is a session's: its packed name."""

    @property
    def sessions(self) -> SessionStats | None:
        """Its sessions; None if it never had any, or if their totals can't be read."""
        return cast("SessionStats | None", self.added.get(SESSIONS))

    def fail(self, error: FormatError, *, session: bytes = b"") -> None:
        """Note the first thing that could not be read, and the packed name of the session whose it is."""
        if not self.problem:
            self.problem, self.is_newer, self.damaged = str(error), error.newer, session


def rows_of(prefix: bytes) -> ReadRows:
    """Return the record of a queue, with nothing read yet."""
    own = keys_of(prefix)
    return ReadRows(own.layout, own=own)


async def read_rows(tr: Transaction, found: Sequence[ReadRows], now_us: int, *, begun: bool = False) -> None:
    """Read the rows of some queues, by snapshot.

    Args:
        found: their records, to be filled.
        begun: whether `read_first` has read the first rows of each.
        now_us: timers that are due up to this time are read.

    *Cost:* six reads for each queue; one more if it has items, and one each if it has leases, delayed items or dead
    letters. A name of several parts adds one for each part but one, subscriptions two, and a quota of bytes the
    estimate of the queue's size (`fdbqueue/moves/admission.py`). Sessions add nine, and two
    for each blocked session, of eight at most, one for the slots, and one for the codec of states. A first item with a
    group adds one. The reads of all queues are under way together.
    """
    for phase in (read_first, _more, _sessions, _of_sessions)[begun:]:
        reading = [started(phase(tr, one, now_us)) for one in found]
        for steps in reading:
            await steps


async def read_first(tr: Transaction, one: ReadRows, now_us: int) -> None:
    """Read what every queue has."""
    view, layout = tr.snapshot, one.own.layout
    timers_end, requests, schedules = layout.timers_until(now_us)[1], Requests(layout), one.own.schedules.range()
    counting = started(read_counts(tr, layout))
    telling = started(rows(view, layout.paused_key, timers_end, limit=MOST_TOLD))
    asking = started(rows(view, requests.begin, schedules.stop, limit=MOST_ASKED))
    heading = started(rows(view, layout.begin, layout.end, limit=1))
    deeper = started(rows(view, *one.own.deeper, limit=1))
    typing = view.get(layout.type_key)
    around = started(queues_around(tr, one.own.above))
    await one.count(counting)
    if one.uncounted is not None:
        one.fail(one.uncounted)
    told = await telling
    if len(told) == MOST_TOLD:
        told = await _each(tr, layout, timers_end)
    for row in told:
        _sort(one, row)
    asked = await asking
    if len(asked) == MOST_ASKED:
        asked += await rows(view, max(asked[-1].key + b"\x00", schedules.start), schedules.stop, limit=MOST_SCHEDULES)
    one.requests = [row for row in asked if row.key < requests.end][:MOST_REQUESTS]
    one.schedules = [row for row in asked if row.key >= schedules.start][:MOST_SCHEDULES]
    one.first = await heading
    _note_damaged(one)
    one.has_more = bool(await deeper)
    one.type = await stored_in(typing)
    for prefix in await around:
        one.above = prefix


async def _each(tr: Transaction, layout: Layout, timers_end: bytes) -> list[KeyValue]:
    """Read what `MOST_TOLD` rows did not hold, each in a read of its own."""
    view, spans = tr.snapshot, [getattr(layout, name).range() for name in ("streams", "subscriptions")]
    reading = [
        started(rows(view, layout.paused_key, layout.paused_key + b"\x00")),
        started(rows(view, spans[0].start, spans[0].stop, limit=MOST_STREAM_ROWS)),
        started(rows(view, spans[1].start, spans[1].stop, limit=MOST_SUBSCRIPTIONS)),
        started(rows(view, layout.timers_prefix, timers_end, limit=MOST_TIMERS)),
    ]
    found: list[KeyValue] = []
    for steps in reading:
        found += await steps
    return found


def _note_damaged(one: ReadRows) -> None:
    """Note a schedule and a subscription that can't be read."""
    layout = one.own.layout
    try:
        for _, row in layout.own_rows("schedule", one.schedules):
            stopped_at(layout, row.key, row.value, 0)
        for (name,), row in layout.own_rows("subscriptions", one.subscriptions):
            is_suspended(layout, name, row.value)
    except FormatError as error:
        one.fail(error)


async def _group(tr: Transaction, layout: Layout, first: Sequence[KeyValue]) -> None:
    """Read the groups of first items, by snapshot.

    Raises:
        FormatError: one can't be read. No call takes the items behind that first item.
    """
    names = {salvaged_notes(row.value)[0].group for row in first} - {""}
    reading = [(name, tr.snapshot.get(group_keys(layout, name).record)) for name in names]
    for name, value in reading:
        stored = await value_of(value)
        if stored.present():
            group_keys(layout, name).decode(bytes(stored))


def _sort(one: ReadRows, row: KeyValue) -> None:
    """Put a row of the read from the pause to the timers where it belongs."""
    layout = one.own.layout
    if is_within(row.key, layout.timers_prefix):
        if len(one.due) < MOST_TIMERS:
            one.due.append(row)
    elif row.key == layout.paused_key:
        one.pause = row.value
    elif is_within(row.key, layout.streams.key()):
        if len(one.streams) < MOST_STREAM_ROWS:
            one.streams.append(row)
    elif is_within(row.key, layout.subscriptions.key()) and len(one.subscriptions) < MOST_SUBSCRIPTIONS:
        one.subscriptions.append(row)


async def _more(tr: Transaction, one: ReadRows, _: int) -> None:
    """Read what the first rows call for."""
    view, layout = tr.snapshot, one.own.layout
    reads: dict[str, Steps[Any]] = {}
    totals: dict[str, Steps[Any]] = {}
    if one.first:
        reads["last"] = rows(view, layout.begin, layout.end, limit=1, reverse=True)
    if one.counts is None or one.counts.get("leased"):
        reads["leased"] = rows(view, layout.leased.begin, layout.leased.end, limit=MOST_LEASED)
    if one.counts is None or one.counts.get("delayed"):
        reads["delayed"] = rows(view, layout.delayed.begin, layout.delayed.end, limit=MOST_DELAYED)
    if one.counts is None or one.counts.get("dead"):
        reads["dead"] = rows(view, layout.dead.begin, layout.dead.end, limit=1)
    if one.subscriptions:
        span, waiting = layout.pointers.range(), stamped(layout.waiting.key())
        reads["pointers"] = rows(view, span.start, span.stop, limit=MOST_SUBSCRIPTIONS)
        reads["waiting"] = rows(view, *waiting, limit=MOST_REQUESTS)
    if one.has_more:
        reads["levels"] = read_level_counts(tr, layout)
        totals[SESSIONS] = started(read_session_stats(tr, one.own.sessions))
    else:
        one.added[SESSIONS] = None
    with suppress(FormatError):  # `judging.py` tells that it can't be read
        if one.quota is not None and one.quota.size_bytes is not None:
            reads["size_bytes"] = size_of(tr, layout)
    reading = {name: started(steps) for name, steps in reads.items()}
    for name, steps in reading.items():
        try:
            setattr(one, name, await steps)
        except FormatError as error:
            one.fail(error)
    await one.add(totals)
    if one.uncounted is not None:
        one.fail(one.uncounted)
    await _note(one, _group(tr, layout, one.first))


async def _note(one: ReadRows, steps: Steps[None]) -> None:
    """Note what steps can't read."""
    try:
        await steps
    except FormatError as error:
        one.fail(error)


async def _sessions(tr: Transaction, one: ReadRows, now_us: int) -> None:
    """Read the lines of its sessions, and the first items of the sessions that are next."""
    if one.sessions is not None and not one.sessions.enqueued:
        one.added[SESSIONS] = None
    if one.sessions is None:
        return
    view, line = tr.snapshot, one.own.sessions.line
    counting = started(read_counts(tr, one.own.sessions.line))
    span = one.own.sessions.records.range()
    most = MOST_RECORDS_WITH_DEAD if one.sessions.dead else MOST_RECORDS
    recording = started(rows(view, span.start, span.stop, limit=most))
    records = started(_slots_and_codec(tr, one.own.layout, one.own.sessions))
    pointers: list[KeyValue] = []
    aside: list[KeyValue] = []
    requests, due, timers = Requests(line), line.timers_until(now_us), line.timers.range()
    reading = [
        (one.due, started(rows(view, *due, limit=MOST_TIMERS))),
        (one.requests, started(rows(view, requests.begin, requests.end, limit=MOST_REQUESTS))),
        (one.leased, started(rows(view, line.leased.begin, line.leased.end, limit=MOST_POINTERS))),
        (pointers, started(rows(view, line.begin, line.end, limit=MOST_FIRST))),
        (aside, started(rows(view, line.dead.begin, line.dead.end, limit=MOST_FIRST))),
    ]
    waits = None
    if one.sessions.waiting:
        waits = started(rows(view, timers.start, timers.stop, limit=MOST_DELAYED, reverse=True))
    for into, steps in reading:
        into += await steps
    with suppress(FormatError):
        one.dead_of_sessions = (await counting).get("died", 0)
    firsts = [started(rows(view, *span, limit=1)) for span in _available(one, pointers[:MOST_FIRST])]
    for steps in firsts:
        one.first_of_sessions += await steps
    found = await recording
    _note_records(one, found)
    _note_pointers(one, found, [*aside, *pointers, *one.leased])
    await _note(one, records)
    await _note(one, _group(tr, one.own.sessions.line, one.first_of_sessions))
    if waits is not None:
        await _note_longest(tr, one, line, await waits)


async def _slots_and_codec(tr: Transaction, layout: Layout, keys: Keys) -> None:
    """Read some slots of sessions, and the codec of their states.

    Raises:
        FormatError: one can't be read.
    """
    slots, codec = started(rows(tr.snapshot, *within(keys.slots), limit=MOST_SLOTS)), tr.snapshot.get(keys.states)
    for _, row in layout.own_rows("slot", await slots):
        read_entry(layout, row.key, row.value)
    stored = await value_of(codec)
    if stored.present():
        read_codec_name(layout, keys.states, bytes(stored))


def _note_records(one: ReadRows, found: list[KeyValue]) -> None:
    """Note which sessions are blocked or paused."""
    begin = len(one.own.sessions.record(b""))
    own = list(one.own.layout.own_rows("session", found))
    one.foreign += len(found) - len(own)
    for _, row in own:
        try:
            record = unpack_record(one.own.layout, row.key, row.value)
        except FormatError as error:
            one.fail(error, session=row.key[begin:])
            continue
        if record.blocked:
            one.blocked.append(BlockedSession(row.key[begin:], record, {}, []))
        elif record.paused:
            one.session_pauses.append(row.key[begin:])


def _note_pointers(one: ReadRows, records: list[KeyValue], pointers: list[KeyValue]) -> None:
    """Note a pointer that is damaged, or was put aside, with its session if that is among the records."""
    keys, owners = one.own.sessions, dict[bytes, bytes]()
    for _, row in one.own.layout.own_rows("session", records):
        with suppress(FormatError):
            owners[unpack_record(one.own.layout, row.key, row.value).pointer] = row.key[len(keys.record(b"")) :]
    for row in pointers:
        line = keys.line
        if one.problem or not is_within(row.key, line.prefix):
            continue
        is_aside = line.dead.begin <= row.key < line.dead.end
        place = line.dead if is_aside else line.leased if row.key < line.begin else line.available
        packed = place.packed(row.key)
        try:
            pointer = pointer_of(row.value)
            name = pointer.name or owners.get(packed, b"")
            if is_aside:
                whose = f"The session {session_told(name_of(name))}" if name else "A session"
                told = f"{whose} was put out of the line, since something of it was damaged."
                one.fail(FormatError(f"{told} Sessions.resume enters it again."), session=name)
        except FormatError as error:
            name = owners.get(packed, b"")
            whose = f"It is that of the session {session_told(name_of(name))}. " if name else ""
            remedy = f"{whose}Sessions.resume enters its session again."
            one.fail(line.unreadable_item(packed, error, remedy), session=name)


async def _note_longest(tr: Transaction, one: ReadRows, line: Layout, timers: list[KeyValue]) -> None:
    """Note the session of a line that waits longest, and read its first items."""
    for timer in timers:
        with suppress(FormatError):  # no timer: a check reports it
            parts = line.timer_of(timer.key)
            if parts is None:
                continue
            at_us, position, kind = parts
            stored = await value_of(tr.snapshot.get(line.delayed.key(pack(position))))
            if kind != Due.DELAY or not stored.present():
                continue
            pointer = pointer_of(bytes(stored))
            if one.waits is None or at_us > one.waits.until_us:
                one.waits = LongestWait(pointer, at_us)
            return


async def _of_sessions(tr: Transaction, one: ReadRows, _: int) -> None:
    """Read the items of some blocked sessions, and those of the one that waits longest."""
    view, keys = tr.snapshot, one.own.sessions
    reading = []
    for session in one.blocked[:MOST_BLOCKED]:
        layout = keys.of_session(session.name, session.record.generation)
        letters = started(rows(view, layout.dead.begin, layout.dead.end, limit=1))
        reading.append((session, started(read_counts(tr, layout)), letters))
    if one.waits is not None:
        pointer = one.waits.pointer
        layout = keys.of_session(pointer.name, pointer.generation)
        one.delayed += await rows(view, layout.begin, layout.end, limit=1)
    for session, counting, letters in reading:
        session.dead.extend(await letters)
        try:
            session.counts.update(await counting)
        except FormatError as error:
            one.fail(error)


def _available(one: ReadRows, pointers: Sequence[KeyValue]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ranges of the available items of some sessions."""
    for row in pointers:
        with suppress(FormatError):
            pointer = pointer_of(row.value)
            layout = one.own.sessions.of_session(pointer.name, pointer.generation)
            yield layout.begin, layout.end
