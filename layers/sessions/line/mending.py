"""Write what is stored about a session again, if its record, its slots or its pointers are damaged or missing.

`Sessions.resume` does it. The session's items and its state stay as they are. Pointers that are leased stay, so that
their workers go on, and so do those that a readable record, or a slot, names. All others are taken out of the lines.
The session gets new ones as if its items had just come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fdbqueue import FormatError
from fdbqueue.engine.keys import bytes_behind
from fdbqueue.lowlevel import STATES, Transaction, fdb_tuple, notes_of, rows, value_of, within
from fdbqueue.stored.items import notes_if_readable
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.places import IN_QUEUE

from ..session.records import (
    OPEN,
    RENEWING,
    WAKER,
    SessionPointer,
    SessionRecord,
    pointer_of,
    session_in_key,
    unpack_record,
)
from ..session.session import Session
from .gates import IN_LINE, RESTING
from .line_queue import join_shards
from .slots import Entries, Entry, read_entry

if TYPE_CHECKING:
    from .line import Line, PointerMoves


class _Found:
    """A pointer, as a scan has found it.

    Args:
        state: its place, or "gated".
        gate: the packed name of the gate at which it waits.
        packed: its packed position.

    Raises:
        FormatError: a newer version of the library wrote it.
    """

    __slots__ = ("gate", "key", "notes", "packed", "pointer", "state")

    def __init__(self, state: str, gate: bytes, key: bytes, packed: bytes, stored: bytes) -> None:
        self.state, self.gate, self.key, self.packed = state, gate, key, packed
        self.notes = notes_if_readable(stored)
        self.pointer = _readable(stored)
        """None: it is damaged."""


async def is_whole(tr: Transaction, line: Line, session: Session, record: SessionRecord) -> bool:
    """Return whether a session's record and slots fit together, and the pointers that they name are there.

    By snapshot. *Cost:* one range read, and three reads for each pointer; without one, those of its first items.
    """
    try:
        entries = await line.slots.entries(tr.snapshot, session)
    except FormatError:
        return False
    if len(entries) != record.slots:
        return False
    waiting = [(record.gates[entry.stage][0], entry.place) for entry in entries.values() if entry.stage >= 0]
    places = [entry.place for entry in entries.values() if entry.stage < 0]
    keys = [[line.keys.gated(gate).key(place)] for gate, place in waiting]
    keys += [
        [getattr(line.layout, state).key(place) for state in IN_QUEUE]
        for place in [*places, *([record.pointer] if record.pointer else [])]
    ]
    for some in keys:
        reads = [tr.snapshot.get(key) for key in some]
        values = [await value_of(read) for read in reads]
        stored = next((bytes(value) for value in values if value.present()), None)
        pointer = None if stored is None else _readable(stored)
        if pointer is None or (pointer.name, pointer.generation) != (session.name, session.generation):
            return False
    if keys or record.paused or record.blocked:
        return True
    head = await session.look(tr, limit=1)
    return not head.rows and head.wake_at_us is None


async def written_again(
    tr: Transaction, line: Line, moves: PointerMoves, name: bytes, known: SessionRecord | None
) -> tuple[Session, SessionRecord] | None:
    """Take a session's pointers out of the lines that it can't keep. Return its new record, which the caller writes.

    Returns None if nothing is stored of the session.

    Args:
        moves: the moves of the line, to be finished by the caller.
        known: the session's record, read with a conflict; None: there is none, or it can't be read.

    Raises:
        FormatError: the session may have gates, and these sessions know none; nothing was written.

    *Conflicts:* with a transaction that moves one of its pointers. *Cost:* reads the lines of all sessions.
    """
    while await join_shards(tr, line.keys):
        pass
    record = known or await _record_of(tr, line, name)
    if record is None:
        return None
    if known is None and line.rules.gates is None and await rows(tr.snapshot, *within(line.keys.gate()), limit=1):
        raise FormatError(
            f"The gates of the session are among what can't be read of it in {line.items.layout.describe()}. Give"
            " Sessions the function gates, and call Sessions.resume of that."
        )
    session = line.session(name, record.generation)
    if known is None:
        record = line.slots.gates.adopted(session, record)
    entries, damaged = await _entries(tr, line, session)
    places = {record.pointer} | {entry.place for entry in entries.values()}
    kept: dict[bytes, Entry] = {}
    serial, lost = b"", entries | {slot: Entry(b"", b"") for slot in damaged}
    async for one in _pointers(tr, line, name, places - {b""}):
        pointer = one.pointer
        if pointer is not None and pointer.generation == session.generation:
            is_serial = pointer.slot in (b"", WAKER)
            named = one.packed == record.pointer if is_serial else pointer.slot in lost
            if one.state == "leased" or (known is not None and named and one.state != "dead"):
                if is_serial:
                    serial = one.packed
                else:
                    old = entries.get(pointer.slot)
                    stage = old.stage if old is not None and old.place == one.packed else _stage(record, one)
                    kept[pointer.slot] = Entry(one.packed, pointer.current, stage)
                    lost.pop(pointer.slot, None)
                continue
            if pointer.slot in damaged:
                lost[pointer.slot] = Entry(one.packed, b"", _stage(record, one))
        _remove(tr, line, moves, session, one)
    tr.clear_range(*bytes_behind(session.slots_prefix))
    for slot, entry in kept.items():
        line.slots.note(tr, session, slot, entry.place, entry.current, entry.stage)
    asleep_until_us = record.asleep_until_us if serial == record.pointer else 0
    record = replace(record, pointer=serial, asleep_until_us=asleep_until_us, slots=len(kept))
    if kept and not record.limit:
        record = replace(record, limit=max(line.rules.limit, 1))
    line.write(tr, session, record)  # a pointer that gets a slot of a gate may be one of this session
    for entry in lost.values():
        await line.slots.gates.give_up(tr, moves, record.gates, 0, line.slots.gates.held(record.gates, entry.stage))
    return session, record


async def _record_of(tr: Transaction, line: Line, name: bytes) -> SessionRecord | None:
    """Return the record of a session whose own can't be read, as its items have it; None if it has no key of any."""
    begin, end = within(line.keys.items + name)
    generations = []
    for reverse in (False, True):
        for row in await rows(tr.snapshot, begin, end, limit=1, reverse=reverse):
            found = session_in_key(row.key[len(line.keys.items) :])
            if found is not None and found[0] == name:
                generations.append(found[1])
    there = await value_of(tr.get(line.keys.record(name)))
    if not generations:
        return SessionRecord() if there.present() else None
    closing = RENEWING if generations[-1] > generations[0] else OPEN
    return SessionRecord(generation=generations[0], closing=closing)


async def remove_stray(tr: Transaction, line: Line) -> int:
    """Remove damaged pointers that no session's record and no slot names, and damaged records of sessions that have
    nothing. Return how many.

    *Conflicts:* with a transaction that moves one of them. *Cost:* reads the lines, the records and the slots of all
    sessions.
    """
    layout, keys = line.items.layout, line.keys
    places, bare, removed = set[bytes](), set[bytes](), 0
    for (name,), row in layout.own_rows("session", await rows(tr.snapshot, *within(keys.records.key()))):
        try:
            places.add(unpack_record(layout, row.key, row.value).pointer)
        except FormatError as error:
            packed = fdb_tuple.pack((name,))
            if not error.newer and not await rows(tr, *within(keys.items + packed), limit=1):
                bare.add(packed)
    for _, row in layout.own_rows("slot", await rows(tr.snapshot, *within(keys.slots))):
        with suppress(FormatError):
            places.add(read_entry(layout, row.key, row.value).place)
    moves = line.moves(tr)
    async for one in _all_pointers(tr, line):
        if one.pointer is not None:
            bare.discard(one.pointer.name)
        elif one.packed not in places:
            tr.add_read_conflict_key(one.key)
            _remove(tr, line, moves, line.session(b""), one)
            removed += 1
    for packed in bare:
        tr.add_read_conflict_key(keys.record(packed))
        tr.clear(keys.record(packed))
        tr.clear_range(*within(keys.slots + packed))
    moves.finish()
    return removed + len(bare)


async def _entries(tr: Transaction, line: Line, session: Session) -> tuple[Entries, set[bytes]]:
    """Return the entries of a session's slots, and the ids of those that can't be read."""
    begin = session.slots_prefix
    entries: Entries = {}
    damaged: set[bytes] = set()
    for row in await rows(tr, *bytes_behind(begin)):
        slot = row.key[len(begin) :]
        try:
            entries[slot] = read_entry(line.items.layout, row.key, row.value)
        except FormatError:
            damaged.add(slot)
    return entries, damaged


async def _pointers(tr: Transaction, line: Line, name: bytes, places: set[bytes]) -> AsyncIterator[_Found]:
    """Yield the pointers of a session, with a conflict for each: those with its name, and unreadable ones at places
    that its record or its slots name."""
    async for one in _all_pointers(tr, line):
        if one.pointer.name == name if one.pointer is not None else one.packed in places:
            tr.add_read_conflict_key(one.key)
            yield one


async def _all_pointers(tr: Transaction, line: Line) -> AsyncIterator[_Found]:
    """Yield all pointers in the lines, also those that were put aside, and those that wait at gates, by snapshot.

    Those that a newer version of the library wrote are passed by.
    """
    for state in STATES:
        place = getattr(line.layout, state)
        for row in await rows(tr.snapshot, place.begin, place.end):
            with suppress(FormatError):
                yield _Found(state, b"", row.key, place.packed(row.key), row.value)
    prefix = line.keys.gated().prefix
    for row in await rows(tr.snapshot, *within(prefix)):
        parts = FAMILIES["gate/line"].parts(row.key[len(prefix) :])
        if parts is not None:
            gate = fdb_tuple.pack((parts[0],))
            with suppress(FormatError):
                yield _Found("gated", gate, row.key, line.keys.gated(gate).packed(row.key), row.value)


def _remove(tr: Transaction, line: Line, moves: PointerMoves, session: Session, one: _Found) -> None:
    if one.state == "gated":
        line.slots.gates.remove(tr, one.gate, session, one.packed)
        return
    getattr(moves, f"leave_{one.state}")(one.packed, *([] if one.state == "dead" else [one.notes]))
    moves.tally("dequeued", 1)


def _stage(record: SessionRecord, one: _Found) -> int:
    """Return which slots of gates a pointer has whose entry can't be read."""
    if one.state == "gated":
        return next((at for at, (gate, _) in enumerate(record.gates) if gate == one.gate), RESTING)
    rests = record.gates and one.state != "leased" and one.pointer is not None and one.pointer.current
    return RESTING if rests else IN_LINE


def _readable(stored: bytes) -> SessionPointer | None:
    """Return a stored pointer; None if it is damaged.

    Raises:
        FormatError: a newer version of the library wrote it.
    """
    try:
        notes_of(stored)
        pointer = pointer_of(stored)
    except FormatError as error:
        if error.newer:
            raise
        return None
    return pointer if pointer.name else None
