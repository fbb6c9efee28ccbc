"""Which pointers a session has in the line: one for each of its slots, and one that sleeps while items are delayed.

A session does as many items at once as it has slots. **A serial session is one of one slot.** Its record names the
pointer of that slot, whose id is b"". Nothing else is stored of it: a lease and an ack read one key less. All other
slots have an entry each among the session's keys, also the one of a session with gates. It says where the slot's
pointer is, and which item it holds; the record says how many there are. Every change of that number reads the record
with a conflict and writes its guard, so that two transactions never decide by the same number. A slot is lent with the
first item that no other slot holds.

Delayed items have one more pointer, the waker, if no slot is left to come to them. It holds no slot and no item. When
it wakes, it adds slots for the items that became available. The waker of a serial session is its slot's, asleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from fdbqueue.engine.api import ReadTransaction
from fdbqueue.engine.keys import bytes_behind
from fdbqueue.lowlevel import (
    NO_NOTES,
    FormatError,
    KeyValue,
    Layout,
    Transaction,
    fdb_tuple,
    new_random,
    rows,
    value_of,
)
from fdbqueue.stored.names import session_told

from ...leases import Disposition
from ..session.records import (
    MENDED,
    OPEN,
    RENEWING,
    WAKER,
    SessionPointer,
    SessionRecord,
    new_pointer,
    pack_record,
    stored_pointer,
    until,
)
from ..session.session import Session, SessionHead
from .gates import IN_LINE, RESTING, Gates
from .tracking import drop_dead_letters

if TYPE_CHECKING:
    from ..session.lease import Turn
    from .line import Line, PointerMoves

Where = Literal["place", "tail"]


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


class SlotHolder(NamedTuple):
    """The slot that has an item."""

    place: bytes
    """The packed position of its pointer in the line."""
    leased: bytes
    """Its stored pointer, if the item is in progress; b"": the item waits there for its back-off."""


class Slots:
    """The slots of the sessions in one line.

    Args:
        line: the line.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self.gates = Gates(line)
        """The gates that these slots pass."""

    # --- what is stored

    async def entries(self, tr: ReadTransaction, session: Session) -> Entries:
        """Read the entries of a session."""
        begin = session.slots_prefix
        found = await rows(tr, *bytes_behind(begin))  # a slot's id is random bytes
        return {row.key[len(begin) :]: self._decoded(row.key, row.value) for row in found}

    async def pointers(self, tr: ReadTransaction, session: Session, record: SessionRecord | None) -> Entries:
        """Return where all pointers of a session are. That which its record names has the id b""."""
        found: Entries = {}
        if record is not None and record.pointer:
            found[b""] = Entry(record.pointer, b"")
        return found if record is None or not record.slots else found | await self.entries(tr, session)

    async def entry(self, tr: ReadTransaction, session: Session, slot: bytes) -> Entry | None:
        """Read one entry of a session."""
        key = session.slots_prefix + slot
        value = await value_of(tr.get(key))
        return self._decoded(key, bytes(value)) if value.present() else None

    async def holder(
        self, tr: Transaction, session: Session, record: SessionRecord, packed: bytes
    ) -> SlotHolder | None:
        """Return the slot that has an item, in progress or, in a session of several slots, waiting for its back-off.

        *Conflicts:* with a transaction that leases the item, or ends its lease.
        """
        if record.slots:
            tr.add_read_conflict_key(session.conflict_key(packed))
        for slot, entry in (await self.pointers(tr.snapshot, session, record)).items():
            if slot and entry.current != packed:
                continue
            value = await value_of(tr.get(self._line.layout.leased.key(entry.place)))
            leased = bytes(value) if value.present() else b""
            if leased and self._line.pointer(entry.place, leased).current != packed:
                leased = b""
            if leased or slot:
                return SlotHolder(entry.place, leased)
        return None

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

    def _place(self, tr: Transaction, session: Session, record: SessionRecord, slot: bytes, place: bytes) -> None:
        """Note that a slot's pointer is in the line, with no item."""
        if record.limit:
            self.note(tr, session, slot, place)
        elif record.asleep_until_us:
            self._line.write(tr, session, replace(record, pointer=place, asleep_until_us=0))
        elif place != record.pointer:  # enqueues need not know that it moved
            tr.set(session.record_key, pack_record(replace(record, pointer=place)))

    def drop(self, tr: Transaction, session: Session, record: SessionRecord, slot: bytes) -> SessionRecord:
        """Take a slot away whose pointer has left the line. Return the record, which the caller writes."""
        if not slot:
            return replace(record, pointer=b"", asleep_until_us=0)
        tr.clear(session.slots_prefix + slot)
        return replace(record, slots=record.slots - 1)

    async def _free(self, tr: Transaction, session: Session, entries: Entries, *, limit: int = 1) -> SessionHead:
        """Read the first items that no slot holds, by snapshot."""
        held = _held(entries)
        head = await session.look(tr, limit=limit + len(held))
        return head.without({session.layout.available.key(packed) for packed in held})

    # --- lending

    async def lend(
        self, tr: Transaction, session: Session, pointer: SessionPointer, recorded: Any, now_us: int
    ) -> list[KeyValue]:
        """Return the item that a slot is lent with, and note it; of a serial session also the one behind it, if any.

        Args:
            recorded: the read of the session's record, by snapshot, which is under way.
        """
        if not pointer.slot:
            head, entries = await session.first(tr, now_us=now_us), dict[bytes, Entry]()
        else:
            try:
                head, entries = SessionHead(), await self.entries(tr.snapshot, session)
            except FormatError:
                return []  # the worker puts the pointer aside
        record = session.record_if_readable(await value_of(recorded))
        # A pointer that was put back unused may still be in the line of a session that was paused meanwhile.
        if record is None or record.is_stopped or record.slots > record.limit:
            return []  # the worker takes the pointer out of the line
        if not pointer.slot:
            return [] if record.limit else head.rows
        own = entries.pop(pointer.slot, None)
        if own is None:
            return []
        if record.gates and (own.stage == RESTING or await self.gates.is_over(tr, record.gates)):
            return []  # the worker takes the slots of its gates, or gives them back
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
        return [] if row is None else [row]

    def take(self, tr: Transaction, session: Session, slot: bytes, place: bytes, row: KeyValue) -> None:
        """Note the item that a slot holds.

        *Conflicts:* with a transaction that gives the same item to another slot, or changes or removes it.
        """
        packed = session.layout.available.packed(row.key)
        tr.add_read_conflict_key(row.key)
        tr.add_read_conflict_key(session.conflict_key(packed))
        tr.add_write_conflict_key(session.conflict_key(packed))
        self.note(tr, session, slot, place, packed)

    async def following(self, tr: Transaction, turn: Turn, head: SessionHead) -> KeyValue | None:
        """Return the item that a slot goes on with; None if there is none, or the session has too many slots."""
        record, session = turn.record, turn.session
        if record.limit:
            if turn.is_unnumbered or record.slots > record.limit:
                return None
            if record.gates and await self.gates.is_over(tr, record.gates):
                return None
            entries = await self.entries(tr.snapshot, session)
            entries.pop(turn.pointer.slot, None)
            head = await self._free(tr, session, entries)
        return head.rows[0] if head.rows else None

    # --- the end of a lease

    async def pass_on(
        self,
        tr: Transaction,
        moves: PointerMoves,
        turn: Turn,
        head: SessionHead,
        *,
        now_us: int,
        used: int | None = None,
        to: Where = "place",
        delay_us: int = 0,
    ) -> Disposition:
        """End the lease of a session's slot: its pointer goes back into the line, to sleep, or away.

        Args:
            moves: the moves of the line, to be finished by the caller.
            head: the session's first items, without those that are gone. With other slots it is read again.
            used: how many items of the present turn are done; None: as before.
            to: where in the line an unfinished session goes.
            delay_us: how long the slot waits, whatever the session holds.
        """
        pointer, record, session = turn.pointer, turn.record, turn.session
        moves.leave_leased(turn.packed, turn.notes)
        if record.limit and turn.is_unnumbered:
            return await self._number(tr, moves, turn, now_us=now_us, delay_us=0 if record.is_stopped else delay_us)
        slot, used = pointer.slot, pointer.used if used is None else used
        rest = replace(pointer, since_us=0, used=used, edits=0, acked=b"")
        idle = held = 0
        entries: Entries = {}
        if slot:
            entries = await self.entries(tr.snapshot, session)
            own = entries.pop(slot, None)
            held = len(record.gates) if own is None or own.stage == IN_LINE else 0
        if record.is_stopped or record.slots > record.limit:
            moves.tally("dequeued", 1)
            self._line.write(tr, session, self.drop(tr, session, record, slot))
            await self.gates.give_up(tr, moves, record.gates, 0, held)
            return Disposition.available
        if delay_us:
            waiting = rest if slot else replace(rest, current=b"")
            moves.enter_delayed(turn.packed, stored_pointer(waiting), until(now_us + delay_us))
            if not slot:
                self._place(tr, session, record, slot, turn.packed)
            elif record.gates:
                self.note(tr, session, slot, turn.packed, pointer.current, RESTING)
                await self.gates.give_up(tr, moves, record.gates, 0, held)
            return Disposition.delayed
        rest = replace(rest, current=b"")
        if slot:
            idle = _idle(entries)
            head = await self._free(tr, session, entries, limit=idle + 1)
            if not head.rows and head.is_due(now_us):
                head = await session.first(tr, now_us=now_us, held=_held(entries))
        if len(head.rows) > idle or (not slot and head.is_due(now_us)):
            await self._again(tr, moves, turn, rest, held, to)
            return Disposition.available
        if not head.is_alone:
            session.add_conflicts_with_arrivals(tr)
        left = self.drop(tr, session, record, slot)
        if left.slots or left.pointer or head.wake_at_us is None:
            moves.tally("dequeued", 1)
            await self.gates.give_up(tr, moves, record.gates, 0, held)
            if left.slots or left.pointer:
                self._line.write(tr, session, left)
            else:
                await self.end(tr, moves, session, left, dead=head.dead)
            return Disposition.available
        self._line.write(tr, session, replace(left, pointer=turn.packed, asleep_until_us=head.wake_at_us))
        waker = replace(rest, used=0, slot=WAKER if slot else b"")
        moves.enter_delayed(turn.packed, stored_pointer(waker), until(head.wake_at_us))
        await self.gates.give_up(tr, moves, record.gates, 0, held)
        return Disposition.delayed

    def ends(self, turn: Turn, head: SessionHead) -> bool:
        """Return whether `pass_on` clears all keys of a session's items: it has none that it may go on with."""
        record = turn.record
        stays = head.rows or head.wake_at_us is not None or head.dead
        return not (stays or record.limit or record.is_stopped)

    async def _again(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, rest: SessionPointer, held: int, to: Where
    ) -> None:
        """Put a slot's pointer back into the line, or let it wait at a gate."""
        record, session, gates, place = turn.record, turn.session, self.gates, turn.packed
        if held < len(record.gates):  # its item has waited for this attempt without their slots
            moves.tally("dequeued", 1)
            await gates.enter(tr, moves, session, record, replace(rest, used=0) if to == "tail" else rest)
            return
        if record.gates and (stage := await gates.stop(tr, record.gates, ends=to == "tail")) is not None:
            moves.tally("dequeued", 1)
            await gates.wait_at(tr, moves, session, record, replace(rest, used=0), stage)
            return
        if to == "tail":
            moves.tally("dequeued", 1)
            place = await self._line.append(tr, moves, replace(rest, used=0))
        else:
            moves.enter_available(place, stored_pointer(rest), NO_NOTES)
        self._place(tr, session, record, rest.slot, place)

    async def _number(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, *, now_us: int, delay_us: int
    ) -> Disposition:
        """End the waker, or the last turn of a session that was serial: its slots have entries from now on."""
        record = replace(turn.record, pointer=b"", asleep_until_us=0)
        waits = bool(delay_us and turn.pointer.current)
        if waits:
            record = self.gates.adopted(turn.session, record)
        if waits and not record.blocked:
            slot = new_random()
            waiting = replace(turn.pointer, slot=slot, since_us=0, edits=0, acked=b"")
            moves.enter_delayed(turn.packed, stored_pointer(waiting), until(now_us + delay_us))
            resting = RESTING if record.gates else IN_LINE
            self.note(tr, turn.session, slot, turn.packed, turn.pointer.current, resting)
            record = replace(record, slots=record.slots + 1)
        else:
            moves.tally("dequeued", 1)
        await self.balance(tr, moves, turn.session, record)
        return Disposition.delayed if delay_us else Disposition.available

    # --- the number of slots

    def begun(self, session: Session, record: SessionRecord) -> SessionRecord:
        """Return the record of a session that begins to work, with its gates, and the rules' limit unless it has one.

        A session with gates has entries, also if it runs one item at a time. It is blocked if its gates are not known.
        """
        if record.pointer or record.slots:
            return record
        record = self.gates.adopted(session, record)
        if record.kept:
            return record
        limit = self._line.rules.limit
        return replace(record, limit=limit if limit > 1 or record.gates else 0)

    async def arrived(
        self,
        tr: Transaction,
        session: Session,
        record: SessionRecord | None,
        *,
        visible_at_us: int,
        moves: PointerMoves,
        items: int = 1,
    ) -> None:
        """See to the pointers of a session that got items, which are available at a time; 0: now."""
        if record is not None and (record.is_stopped or record.generation != session.generation):
            return
        record = self.begun(session, record or SessionRecord(generation=session.generation))
        if record.blocked:
            self._line.write(tr, session, record)
            return
        if record.pointer and visible_at_us and not visible_at_us < record.asleep_until_us:
            return
        if not (visible_at_us or record.room):
            return
        if record.pointer and (visible_at_us or not record.limit):  # it sleeps too long
            if not await self.woken(tr, moves, record):
                return  # its timer has fired
            record = replace(record, pointer=b"", asleep_until_us=0)
        if visible_at_us:
            await self._sleep(tr, moves, session, record, visible_at_us)
        else:
            self._line.write(tr, session, await self.add(tr, moves, session, record, min(record.room, items)))

    async def add(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, count: int
    ) -> SessionRecord:
        """Append pointers of new slots to the line. Return the record, which the caller writes."""
        if count and not record.limit:
            return replace(
                record, pointer=await self._line.append(tr, moves, new_pointer(session.name, session.generation))
            )
        for _ in range(count):
            await self.gates.enter(
                tr, moves, session, record, new_pointer(session.name, session.generation, slot=new_random())
            )
        return replace(record, slots=record.slots + count) if count else record

    async def _sleep(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, until_us: int
    ) -> None:
        """Append a waker. This writes the record."""
        pointer = new_pointer(session.name, session.generation, slot=WAKER if record.limit else b"")
        place = await self._line.append(tr, moves, pointer, visible_at_us=until_us)
        self._line.write(tr, session, replace(record, pointer=place, asleep_until_us=until_us))

    async def balance(self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord) -> None:
        """Add the slots that free items need, and a waker for delayed ones. End the session if it has nothing.

        The caller has read the record with a conflict. This writes it.
        """
        if record.is_stopped or (record.pointer and not (record.limit and record.asleep_until_us)):
            self._line.write(tr, session, record)  # a serial turn ends first
            return
        entries = await self.entries(tr.snapshot, session) if record.slots else {}
        idle = _idle(entries)
        # Due timers make more items free.
        first = await session.first(tr, now_us=self._line.leases.now_us(), held=_held(entries))
        if first.rows or first.wake_at_us is not None:
            record = self.begun(session, record)
            if record.blocked:
                self._line.write(tr, session, record)
                return
        head = await self._free(tr, session, entries, limit=record.room + idle + 1)
        record = await self.add(tr, moves, session, record, max(0, min(record.room, len(head.rows) - idle)))
        if record.room:
            session.add_conflicts_with_arrivals(tr)
        else:
            # An item that is available finds all slots there. A delayed one may have relied on a waker that is gone.
            tr.add_read_conflict_range(session.layout.delayed.begin, session.layout.delayed.end)
        if first.wake_at_us is not None and not record.pointer:
            await self._sleep(tr, moves, session, record, max(1, first.wake_at_us))
        elif record.slots or record.pointer:
            self._line.write(tr, session, record)
        else:
            await self.end(tr, moves, session, record, dead=head.dead)

    async def settle(self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord) -> None:
        """Make the line fit a session with an item that was moved or removed, and is not in progress.

        Args:
            moves: the moves of the line, to be finished by the caller.
            record: the session's record, read with a conflict.
        """
        if session.generation != record.generation:
            return
        if record.asleep_until_us and await self.woken(tr, moves, record):
            record = replace(record, pointer=b"", asleep_until_us=0)
        elif not record.limit:
            return
        await self.balance(tr, moves, session, record)

    async def woken(self, tr: Transaction, moves: PointerMoves, record: SessionRecord) -> bool:
        """Take the pointer that sleeps out of the line. Return False if its timer has fired."""
        sleeping = await value_of(tr.get(self._line.layout.delayed.key(record.pointer)))
        if sleeping.present():
            moves.leave_delayed(record.pointer, self._line.notes(record.pointer, bytes(sleeping)))
            moves.tally("dequeued", 1)
        return bool(sleeping.present())

    async def withdraw(
        self,
        tr: Transaction,
        moves: PointerMoves,
        session: Session,
        record: SessionRecord,
        *,
        surplus: int | None = None,
    ) -> SessionRecord:
        """Take pointers that are not leased out of the line. Return the record, which the caller writes.

        Args:
            surplus: how many slots at most, and then none that waits for its item's back-off; None: all pointers.
        """
        pointers = await self.pointers(tr, session, record)
        given_back = []
        for slot, entry in pointers.items():
            if surplus is not None and (surplus <= 0 or entry.current or not slot):
                continue
            if entry.stage >= 0:
                await self.gates.leave(tr, record.gates[entry.stage][0], session, entry.place)
            elif not await self._line.withdraw(tr, moves, entry.place):
                continue
            if slot:
                given_back.append(self.gates.held(record.gates, entry.stage))
            record = self.drop(tr, session, record, slot)
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
                if not failed and await self._line.withdraw(tr, moves, record.pointer):
                    record = replace(record, pointer=b"")
                record = replace(record, asleep_until_us=0)
        record = replace(record, limit=wanted, kept=limit is not None)
        if record.slots > wanted:
            record = await self.withdraw(tr, moves, session, record, surplus=record.slots - wanted)
        await self.balance(tr, moves, session, record)
        moves.finish()

    # --- the end of a session

    async def end(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, *, dead: bool
    ) -> None:
        """End a session that has no items. It keeps dead letters and its state, and nothing else.

        A session that is being removed loses these too. Then its next generation begins, if it has items.
        """
        if record.closing == OPEN:
            if not dead:
                self._clear(tr, session)
            if dead or record.kept:
                limit = record.limit if record.kept else 0
                self._line.write(
                    tr, session, SessionRecord(generation=session.generation, limit=limit, kept=record.kept)
                )
            return
        if dead:
            await drop_dead_letters(tr, session)
        self._clear(tr, session)
        tr.clear(session.state_key)
        if record.closing == RENEWING:
            following = self._line.session(session.name, session.generation + 1)
            await self.balance(tr, moves, following, SessionRecord(generation=following.generation))

    def _clear(self, tr: Transaction, session: Session) -> None:
        """Clear the record of an empty session and what its items left behind: counters and the high-water mark."""
        tr.clear(session.record_key)
        tr.clear_range(*session.layout.whole_range())
        tr.add_write_conflict_key(session.guard_key)


def read_entry(layout: Layout, key: bytes, stored: bytes) -> Entry:
    """Return the stored entry of a slot, from its key among those of a queue.

    Raises:
        FormatError: it can't be read. The message names the session, and the way out.
    """
    parts = layout.parts("slot", key)
    told = "" if parts is None else f"It is a slot of the session {session_told(parts[0])}. "
    return layout.decode(key, stored, _entry, f"{told}{MENDED}")


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
