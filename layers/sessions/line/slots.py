"""Several items of one session at once: each slot of the session is a pointer of its own in the line.

An entry among the session's keys says where the slot's pointer is, and which item it holds. The record says how many
slots there are. Every change of that number reads the record with a conflict and writes its guard, so that two
transactions never decide by the same number. A slot is lent with the first item that no other slot holds.

Delayed items have one more pointer, the waker. It holds no slot and no item. When it wakes, it adds slots for the items
that became available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from fdbqueue.engine.api import ReadTransaction
from fdbqueue.engine.keys import bytes_behind
from fdbqueue.lowlevel import (
    NO_NOTES,
    FormatError,
    KeyValue,
    Layout,
    Notes,
    Transaction,
    fdb_tuple,
    new_random,
    rows,
    value_of,
)
from fdbqueue.stored.names import session_told
from fdbqueue.stored.own_values import decoded

from ...leases import Disposition
from ..session.records import MENDED, WAKER, SessionPointer, SessionRecord, new_pointer, stored_pointer
from ..session.session import Session, SessionHead
from .gates import IN_LINE, RESTING, Gates

if TYPE_CHECKING:
    from .leased_pointer import Turn
    from .line import Line, PointerMoves, Where


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a slot's pointer is, and the item that it holds."""

    place: bytes
    """The pointer's packed position in the line."""
    current: bytes
    """The packed position of the item: in progress, or waiting for its back-off; b"": none."""
    stage: int = IN_LINE
    """Which slots of its session's gates it has (`gates.py`)."""


Entries: TypeAlias = dict[bytes, Entry]
"""Entries by the ids of their slots."""


class Slots:
    """The slots of the sessions in one line.

    Args:
        line: the line.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self.gates = Gates(line)
        """The gates that these slots pass."""

    async def entries(self, tr: ReadTransaction, session: Session) -> Entries:
        """Read the entries of a session."""
        begin = session.slots_prefix
        found = await rows(tr, *bytes_behind(begin))  # a slot's id is random bytes
        return {row.key[len(begin) :]: self._decoded(row.key, row.value) for row in found}

    async def entry(self, tr: ReadTransaction, session: Session, slot: bytes) -> Entry | None:
        """Read one entry of a session."""
        key = session.slots_prefix + slot
        value = await value_of(tr.get(key))
        return self._decoded(key, bytes(value)) if value.present() else None

    def _decoded(self, key: bytes, value: bytes) -> Entry:
        return read_entry(self._line.items.layout, key, value)

    def note(
        self,
        tr: Transaction,
        session: Session,
        slot: bytes,
        place: bytes,
        current: bytes = b"",
        stage: int = IN_LINE,
    ) -> None:
        """Write the entry of a slot."""
        staged = () if stage == IN_LINE else (stage,)
        tr.set(session.slots_prefix + slot, fdb_tuple.pack((place, current, *staged)))

    async def _free(self, tr: Transaction, session: Session, entries: Entries, *, limit: int = 1) -> SessionHead:
        """Read the first items that no slot holds, by snapshot."""
        held = _held(entries)
        head = await session.look(tr, limit=limit + len(held))
        return head.without({session.layout.available.key(packed) for packed in held})

    # --- lending

    async def lend(self, tr: Transaction, session: Session, pointer: SessionPointer, now_us: int) -> KeyValue | None:
        """Return the item that a slot is lent with, and note it; None if there is none for it."""
        recorded = tr.snapshot.get(session.record_key)
        try:
            entries = await self.entries(tr.snapshot, session)
        except FormatError:
            return None  # the worker puts the pointer aside
        record = session.record_if_readable(await value_of(recorded))
        own = entries.pop(pointer.slot, None)
        if own is None or record is None or record.paused or record.blocked or record.slots > record.limit:
            return None  # the worker takes the pointer out of the line
        if record.gates and (own.stage == RESTING or await self.gates.is_over(tr, record.gates)):
            return None  # the worker takes the slots of its gates, or gives them back
        row = None
        if own.current:  # it waited for its back-off
            key = session.layout.available.key(own.current)
            found = await rows(tr.snapshot, key, key + b"\x00", limit=1)
            row = found[0] if found and not await session.is_out(tr, found[0], now_us) else None
        if row is None:
            head = await session.first(tr, now_us=now_us, held=_held(entries))
            row = head.rows[0] if head.rows else None
        if row is not None:
            self.take(tr, session, pointer.slot, own.place, row)
        elif own.current:
            self.note(tr, session, pointer.slot, own.place)
        return row

    def take(self, tr: Transaction, session: Session, slot: bytes, place: bytes, row: KeyValue) -> None:
        """Note the item that a slot holds.

        *Conflicts:* with a transaction that gives the same item to another slot, or changes or removes it.
        """
        packed = session.layout.available.packed(row.key)
        tr.add_read_conflict_key(row.key)
        tr.add_read_conflict_key(session.mark(packed))
        tr.add_write_conflict_key(session.mark(packed))
        self.note(tr, session, slot, place, packed)

    async def following(self, tr: Transaction, turn: Turn) -> KeyValue | None:
        """Return the item that a slot goes on with; None if there is none, or the session has too many slots."""
        if not turn.pointer.slot or turn.record.slots > turn.record.limit:
            return None  # without a slot, this was the last turn of a session that was strictly serial
        if turn.record.gates and await self.gates.is_over(tr, turn.record.gates):
            return None
        entries = await self.entries(tr.snapshot, turn.session)
        entries.pop(turn.pointer.slot, None)
        head = await self._free(tr, turn.session, entries)
        return head.rows[0] if head.rows else None

    # --- the end of a lease

    async def pass_on(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, *, now_us: int, used: int, to: Where, delay_us: int
    ) -> Disposition:
        """End the lease of a slot: it goes back into the line, waits with its item, or is given up."""
        pointer, record, session = turn.pointer, turn.record, turn.session
        moves.leave_leased(turn.packed, turn.notes)
        runs = not record.paused and not record.blocked
        if pointer.slot in (b"", WAKER):
            return await self._convert(tr, moves, turn, now_us=now_us, delay_us=delay_us if runs else 0)
        rest = replace(pointer, since_us=0, used=used, edits=0, acked=b"")
        entries = await self.entries(tr.snapshot, session)
        own = entries.pop(pointer.slot, None)
        held = len(record.gates) if own is None or own.stage == IN_LINE else 0
        if not runs or record.slots > record.limit:
            self._drop(tr, moves, session, pointer.slot)
            self._line.write(tr, session, replace(record, slots=record.slots - 1))
            await self.gates.give_up(tr, moves, record.gates, 0, held)
            return Disposition.available
        if delay_us:
            moves.enter_delayed(turn.packed, stored_pointer(rest), _until(now_us + delay_us))
            if record.gates:
                self.note(tr, session, pointer.slot, turn.packed, pointer.current, RESTING)
                await self.gates.give_up(tr, moves, record.gates, 0, held)
            return Disposition.delayed
        rest = replace(rest, current=b"")
        idle = _idle(entries)
        head = await self._free(tr, session, entries, limit=idle + 1)
        if len(head.rows) > idle:
            await self._again(tr, moves, turn, replace(rest, used=0) if to == "tail" else rest, held, to)
            return Disposition.available
        session.add_conflicts_with_arrivals(tr)
        self._drop(tr, moves, session, pointer.slot)
        await self.gates.give_up(tr, moves, record.gates, 0, held)
        left = replace(record, slots=record.slots - 1)
        if left.slots or left.pointer:
            self._line.write(tr, session, left)
        else:
            await self.balance(tr, moves, session, left)
        return Disposition.available

    async def _again(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, rest: SessionPointer, held: int, to: Where
    ) -> None:
        """Put a slot's pointer back into the line, or let it wait at a gate."""
        record, session, gates = turn.record, turn.session, self.gates
        if held < len(record.gates):  # its item has waited for this attempt without their slots
            moves.tally("dequeued", 1)
            await gates.enter(tr, moves, session, record, rest)
            return
        stage = await gates.stop(tr, record.gates, ends=to == "tail") if record.gates else None
        if stage is not None:
            moves.tally("dequeued", 1)
            await gates.wait_at(tr, moves, session, record, replace(rest, used=0), stage)
            return
        place = turn.packed
        if to == "tail":
            moves.tally("dequeued", 1)
            place = await self._line.append(tr, moves, rest)
        else:
            moves.enter_available(place, stored_pointer(rest), NO_NOTES)
        self.note(tr, session, rest.slot, place)

    async def _convert(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, *, now_us: int, delay_us: int
    ) -> Disposition:
        """End the waker, or the last turn of a session that was strictly serial."""
        record = replace(turn.record, pointer=b"", asleep_until_us=0)
        waits = bool(delay_us and turn.pointer.current)
        if waits:
            record = self.gates.adopted(turn.session, record)
        if waits and not record.blocked:
            slot = new_random()
            waiting = replace(turn.pointer, slot=slot, since_us=0, edits=0, acked=b"")
            moves.enter_delayed(turn.packed, stored_pointer(waiting), _until(now_us + delay_us))
            resting = RESTING if record.gates else IN_LINE
            self.note(tr, turn.session, slot, turn.packed, turn.pointer.current, resting)
            record = replace(record, slots=record.slots + 1)
        else:
            moves.tally("dequeued", 1)
        await self.balance(tr, moves, turn.session, record)
        return Disposition.delayed if delay_us else Disposition.available

    def _drop(self, tr: Transaction, moves: PointerMoves, session: Session, slot: bytes) -> None:
        tr.clear(session.slots_prefix + slot)
        moves.tally("dequeued", 1)

    # --- the number of slots

    async def add(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, count: int
    ) -> SessionRecord:
        """Append pointers of new slots to the line. Return the record, which the caller writes."""
        for _ in range(count):
            pointer = new_pointer(session.name, session.generation, slot=new_random())
            await self.gates.enter(tr, moves, session, record, pointer)
        return replace(record, slots=record.slots + count)

    async def balance(self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord) -> None:
        """Add the slots that free items need, and a waker for delayed ones. End the session if it has nothing.

        The caller has read the record with a conflict. This writes it.
        """
        if record.paused or record.blocked or (record.pointer and not record.asleep_until_us):
            self._line.write(tr, session, record)  # in the last case a strictly serial turn ends first
            return
        entries = await self.entries(tr.snapshot, session)
        idle = _idle(entries)
        # Due timers make more items free.
        first = await session.first(tr, now_us=self._line.leases.now_us(), held=_held(entries))
        room = max(0, record.limit - record.slots)
        head = await self._free(tr, session, entries, limit=room + idle + 1)
        if head.rows or first.wake_at_us is not None:
            record = self.gates.adopted(session, record)
            if record.blocked:
                self._line.write(tr, session, record)
                return
        record = await self.add(tr, moves, session, record, max(0, min(room, len(head.rows) - idle)))
        if record.slots < record.limit:
            session.add_conflicts_with_arrivals(tr)
        else:
            # An item that is available finds all slots there. A delayed one may have relied on a waker that is gone.
            tr.add_read_conflict_range(session.layout.delayed.begin, session.layout.delayed.end)
        if first.wake_at_us is not None and not record.pointer:
            await self._line.enter(tr, moves, session, record, visible_at_us=max(1, first.wake_at_us))
        elif record.slots or record.pointer:
            self._line.write(tr, session, record)
        else:
            await self._line.end(tr, moves, session, record, dead=head.dead)

    async def withdraw(
        self,
        tr: Transaction,
        moves: PointerMoves,
        session: Session,
        record: SessionRecord,
        *,
        surplus: int | None = None,
    ) -> SessionRecord:
        """Take slots that are not leased out of the line. Return the record, which the caller writes.

        Args:
            surplus: how many at most, and then none that waits for its item's back-off; None: all.
        """
        entries = await self.entries(tr, session)
        given_back = []
        for slot, entry in entries.items():
            if surplus is not None and (surplus <= 0 or entry.current):
                continue
            if entry.stage >= 0:
                await self.gates.leave(tr, record.gates[entry.stage][0], session, entry.place)
            elif not await self._line.withdraw(tr, moves, replace(record, pointer=entry.place)):
                continue
            given_back.append(self.gates.held(record.gates, entry.stage))
            tr.clear(session.slots_prefix + slot)
            record = replace(record, slots=record.slots - 1)
            surplus = None if surplus is None else surplus - 1
        for held in given_back:  # behind the loop: the slots must not go to pointers that leave, too
            await self.gates.give_up(tr, moves, record.gates, 0, held)
        return record

    async def set_limit(
        self, tr: Transaction, session: Session, record: SessionRecord | None, limit: int | None
    ) -> None:
        """Set how many items of a session run at once; None: as many as the line's rules say."""
        wanted = self._line.rules.limit if limit is None else limit
        if record is None:
            if limit is not None:
                self._line.write(tr, session, SessionRecord(limit=wanted, kept=True))
            return
        moves = self._line.moves(tr)
        if not record.limit:
            if limit is None and wanted == 1:
                return
            if record.pointer:
                sleeping = await value_of(tr.get(self._line.layout.delayed.key(record.pointer)))
                failed = sleeping.present() and not record.asleep_until_us
                if not failed and await self._line.withdraw(tr, moves, record):
                    record = replace(record, pointer=b"")
                record = replace(record, asleep_until_us=0)
        record = replace(record, limit=wanted, kept=limit is not None)
        if record.slots > wanted:
            record = await self.withdraw(tr, moves, session, record, surplus=record.slots - wanted)
        await self.balance(tr, moves, session, record)
        moves.finish()


def read_entry(layout: Layout, key: bytes, stored: bytes) -> Entry:
    """Return the stored entry of a slot, from its key among those of a queue.

    Raises:
        FormatError: it can't be read. The message names the session, and the way out.
    """
    parts = layout.parts("slot", key)
    told = "" if parts is None else f"It is a slot of the session {session_told(parts[0])}. "
    return decoded(layout, key, stored, _entry, f"{told}{MENDED}")


def _entry(stored: bytes) -> Entry:
    place, current, *stage = fdb_tuple.unpack(stored)
    if not isinstance(place, bytes) or not isinstance(current, bytes) or not all(type(one) is int for one in stage):
        raise TypeError("it is no entry of a slot")
    return Entry(place, current, *stage)


def _held(entries: Entries) -> frozenset[bytes]:
    return frozenset(entry.current for entry in entries.values() if entry.current)


def _idle(entries: Entries) -> int:
    """Return how many slots wait in the line for an item."""
    return sum(not entry.current for entry in entries.values())


def _until(visible_at_us: int) -> Notes:
    return replace(NO_NOTES, visible_at_us=visible_at_us)
