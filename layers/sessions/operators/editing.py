"""Look at items of sessions, cancel and change them by their positions, and keep the line of ready sessions right.

The item in progress is one whose session's pointer is leased for it. To change it is to end that lease. A consumer may
have read further items ahead, and begun some of them. Its acks compare these with what it has read. They refuse an item
that was changed or removed, and all that the consumer has begun behind it (`look_at_begun`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from fdbqueue import ChecksBypassed, Position, Queue, StoredItem
from fdbqueue.lowlevel import (
    STATES,
    UNCHANGED,
    Database,
    Editing,
    Envelope,
    Notes,
    Standing,
    Steps,
    Transaction,
    V,
    locate,
    new_random,
    pack,
    stored_item,
    value_of,
    verb,
)
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.positions import rank_of
from fdbqueue.verbs.editing import EditPlan, ItemChange, Unchanged

from ..line.line import Line, PointerMoves
from ..line.tracking import named_by
from ..session.lease import Turn
from ..session.records import RENEWING, SessionName, SessionPointer, SessionRecord, pack_name
from ..session.session import Session, SessionMoves
from .changes import Operating


class SessionHolder(NamedTuple):
    """The leased pointer of the item in progress."""

    packed: bytes
    """The pointer's packed position in the line."""
    pointer: SessionPointer
    notes: Notes
    """The notes of the lease."""


class There(NamedTuple):
    """An item of a session that was found."""

    session: Session
    one: Standing
    holder: SessionHolder | None
    """Its lease, if it is in progress."""

    def is_same(self, other: There) -> bool:
        """Return whether it is the same item."""
        return self.session.layout.prefix == other.session.layout.prefix and self.one.packed == other.one.packed


class OfSession(Editing[Any]):
    """Plans changes of one session's items, and writes them. The caller sees to the line."""

    def __init__(self, session: Session, holder: SessionHolder | None, level: int | None) -> None:
        super().__init__(session.queue)
        self._home = session.home
        self._session = session
        self._holder = holder
        self._level = level

    def _address(self, packed: bytes) -> bytes:
        return self._session.address(packed)

    async def revalued(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, now_us: int
    ) -> tuple[bytes, Notes, Any]:
        try:
            return await super().revalued(tr, one, opened, change, now_us)
        except ChecksBypassed as error:
            raise ChecksBypassed(
                f"The item {self._position(one.packed).text} of {self._session!r} is in the index of smart sessions,"
                " which another value may contradict. It was left as it is. Cancel the item, and enqueue the new"
                " message by SmartSessions."
            ) from error

    async def _packed(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, headers: Mapping[str, object]
    ) -> bytes:
        position = self._position(one.packed)
        if self._level is None or self._level == rank_of(one.packed):
            return one.packed
        self.check_movable(position, self._level, opened.notes)
        return pack(Position(position.index, position.random, rank=self._level))

    def _after(self, one: Standing, notes: Notes, change: ItemChange, now_us: int) -> tuple[str, Notes]:
        if self._holder is not None:
            consumer = self._holder.notes.consumer or "a consumer"
            notes = replace(notes, error=notes.cut_error(f"It was {change.verb} while {consumer} had it."))
        state, notes = super()._after(one, notes, change, now_us)
        if state == "dead":
            return state, notes
        # A consumer that has read the item ahead sees by the random token that it was changed, whatever was.
        return state, replace(notes, token=new_random())


class SessionEditing(Editing[Any]):
    """Changes of items in the sessions of one line.

    Args:
        line: the line.
        name: the packed name of the items' session; None: all items are given by their addresses.
        level: the new level of items; None: the present one.
    """

    def __init__(self, line: Line, name: bytes | None = None, *, level: int | None = None) -> None:
        super().__init__(line.items, line.leases.now_us)
        self._line = line
        self._name = name
        self._level = level

    def check(self, places: list[bytes]) -> None:
        """Refuse positions that don't say where their items are.

        Raises:
            TypeError: it is not known in which session an item is.
            ValueError: a position is the address of an item of another session, or of none.
        """
        for place in places:
            self._place(place)

    def _place(self, place: bytes) -> tuple[Session | None, bytes]:
        position = self._line.layout.available.position(self._line.layout.prefix + place)
        return named_by(self._line, position, self._name)

    async def get(self, tr: Transaction, places: list[bytes]) -> dict[bytes, StoredItem[Any] | None]:
        """Return the items at packed positions, or addresses."""
        found: dict[bytes, StoredItem[Any] | None] = dict.fromkeys(places)
        for place in places:
            there = await self._find(tr, place)
            if there is None:
                continue
            session, one, holder = there
            item = await session.queue.item(tr, self._in(session, one.packed), one.stored)
            shown = stored_item(item, one.stored, one.state)
            if holder is not None:
                notes = holder.notes
                shown = dataclasses.replace(
                    shown,
                    state="leased",
                    attempt=shown.attempt + 1,
                    consumer=notes.consumer,
                    expires_at=notes.expires_at_us / 1e6,
                )
            found[place] = shown
        return found

    async def cancel(self, tr: Transaction, places: list[bytes]) -> dict[bytes, bool]:
        """Remove the items at packed positions, or addresses. Return which were there."""
        there = await self._find_all(tr, places)
        now_us = self.now_us()
        unique = dict.fromkeys(there.values())  # an item may be given by its position and by its address
        for session, one, holder in unique:
            own = SessionMoves(tr, session, now_us)
            found = await own.read_notes({one.packed: one.stored})
            own.cancel(one, found[one.packed], None if holder is None else holder.notes)
            await own.settle()
            own.finish()
            await self.see_to_the_line(tr, session, one, now_us, ends_wait=True)
        return {place: place in there for place in places}

    async def change(self, tr: Transaction, places: list[bytes], change: ItemChange) -> dict[bytes, Position | None]:
        """Change the items at packed positions, or addresses. Return their positions in their sessions afterwards."""
        there = await self._find_all(tr, places)
        await self.check_codec(tr, change)
        now_us = self.now_us()
        plans: dict[There, tuple[OfSession, EditPlan]] = {}
        for found in dict.fromkeys(there.values()):
            editing = OfSession(found.session, found.holder, self._level)
            plan = await editing.plan(tr, found.one, change, now_us)
            plans[found] = editing, plan
        for (session, _, _), (editing, plan) in plans.items():
            own = SessionMoves(tr, session, now_us)
            await editing.carry_out(tr, own, plan)
            await own.settle()
            own.finish()
            await self.see_to_the_line(tr, session, plan.one, now_us, ends_wait=change.has_time)
        after: dict[bytes, Position | None] = dict.fromkeys(places)
        for place, found in there.items():
            packed, session = plans[found][1].packed, found.session
            home = self._line.layout
            if rank_of(place) is None:
                after[place] = home.available.position(home.prefix + session.address(packed))
            else:
                after[place] = self._in(session, packed)
        return after

    # --- finding

    async def _find_all(self, tr: Transaction, places: list[bytes]) -> dict[bytes, There]:
        found: dict[bytes, There] = {}
        for place in places:
            there = await self._find(tr, place)
            if there is not None:
                found[place] = next((one for one in found.values() if one.is_same(there)), there)
        return found

    async def _find(self, tr: Transaction, place: bytes) -> There | None:
        """Find an item, and conflict with every transaction that moves or changes it, or leases its session."""
        named, packed = self._place(place)
        if named is not None or self._name is None:
            candidates = [] if named is None else [named]
        else:
            session = self._line.session(self._name)
            record = session.record_in(await value_of(tr.get(session.record_key))) or SessionRecord()
            last = record.generation + (record.closing == RENEWING)
            candidates = [self._line.session(self._name, number) for number in range(record.generation, last + 1)]
        for session in candidates:
            found = await locate(tr, session.layout, [packed], STATES)
            for one in found:
                holder = await self._holder(tr, session, one)
                return There(session, one, holder)
        return None

    async def _holder(self, tr: Transaction, session: Session, one: Standing) -> SessionHolder | None:
        """Return the leased pointer of an item in progress; None if it is not."""
        record = session.record_in(await value_of(tr.get(session.record_key)))
        if record is None or one.state != "available":
            return None
        found = await self._line.slots.holder(tr, session, record, one.packed)
        if found is None or not found.leased:
            return None
        place, stored = found
        return SessionHolder(place, self._line.pointer(place, stored), self._line.notes(place, stored))

    # --- the line

    async def see_to_the_line(
        self, tr: Transaction, session: Session, was: Standing, now_us: int, *, ends_wait: bool = False
    ) -> None:
        """Make the line fit a session one of whose items has changed: end its lease, wake it, or let it end.

        Args:
            ends_wait: whether the session waits for the item's back-off no longer.
        """
        record = session.record_in(await value_of(tr.get(session.record_key)))
        if record is None:
            return
        if record.blocked and not salvaged_notes(was.stored)[1]:
            # It was the item that blocked the session, or is behind one that will block it again.
            await Operating(self._line).go_on(tr, session, replace(record, blocked=""))
            return
        moves = self._line.moves(tr, now_us)
        holder = await self._holder(tr, session, was)
        if holder is not None:
            turn = Turn(holder.packed, holder.notes, holder.pointer, record, session)
            head = await session.look(tr, limit=2)
            await self._line.slots.pass_on(tr, moves, turn, head, now_us=now_us)
        elif was.state == "dead" and not record.pointer and not record.slots:
            await Operating(self._line).go_on(tr, session, record)
        elif ends_wait and (free := await self._without_wait(tr, moves, session, record, was)) is not None:
            await self._line.slots.balance(tr, moves, session, free)
        else:
            if record.pointer:
                await self._line.note_edit(tr, record.pointer)
            if await self._has_none(tr, session, record, now_us) and await self._line.withdraw(
                tr, moves, record.pointer
            ):
                alone = replace(record, pointer=b"", asleep_until_us=0)
                await self._line.slots.balance(tr, moves, session, alone)
            else:
                await self._line.slots.settle(tr, moves, session, record)
        moves.finish()

    async def _without_wait(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, was: Standing
    ) -> SessionRecord | None:
        """Take the pointer out of the line that waits for an item's back-off. Return the record without it; None if
        there is none."""
        if was.state != "available" or not salvaged_notes(was.stored)[0].attempt:
            return None
        slots = self._line.slots
        for slot, entry in (await slots.pointers(tr.snapshot, session, record)).items():
            is_its = entry.current == was.packed if slot else not (record.asleep_until_us or record.limit)
            if not is_its or not (await value_of(tr.get(self._line.layout.delayed.key(entry.place)))).present():
                continue
            await self._line.withdraw(tr, moves, entry.place)
            if slot:
                await slots.gates.give_up(tr, moves, record.gates, 0, slots.gates.held(record.gates, entry.stage))
            return slots.drop(tr, session, record, slot)
        return None

    async def _has_none(self, tr: Transaction, session: Session, record: SessionRecord, now_us: int) -> bool:
        """Return whether a session in the line has no item that can run now."""
        if not record.pointer or record.limit or session.generation != record.generation:
            return False
        head = await session.look(tr, limit=1)
        return not head.is_ready(now_us)

    def _in(self, session: Session, packed: bytes) -> Position:
        return session.layout.available.position(session.layout.prefix + packed)


R = TypeVar("R")


class Items(Generic[V]):
    """The verbs of `Sessions` that name items by their positions."""

    queue: Queue[V]
    line: Line
    levels: int

    def editing(self) -> Editing[V]:
        """Return the changes of items by their addresses; for layers."""
        return SessionEditing(self.line)

    @verb
    async def get(self, tr: Transaction | Database, session: SessionName, position: Position) -> StoredItem[V] | None:
        """Return the item at a position of a session, whatever its state; None if it has left the session.

        The position is what `enqueue` returned, or that of the item's completion. All verbs by position take both.
        The item in progress is "leased", by the session's worker. Otherwise as `Queue.get`.

        *Conflicts:* in a transaction, with every change of the item, and with leases of the session. *Cost:* three
        rounds of reads.
        """
        places = [Editing.place_of(position, "get")]
        return (await self._at(session).get_all(tr, places))[0]

    @verb
    async def get_many(
        self, tr: Transaction | Database, session: SessionName, positions: Iterable[Position]
    ) -> list[StoredItem[V] | None]:
        """Return the items at positions of a session, in their order; otherwise as `get`, for each."""
        places = Editing.places_of(positions, "get_many")
        return await self._at(session).get_all(tr, places)

    @verb
    async def cancel(self, tr: Transaction | Database, session: SessionName, position: Position) -> bool:
        """Remove the item at a position of a session, whatever its state. Return whether it was there.

        If it is in progress, the lease of its session ends: the worker's next call raises `LeaseLost`, and the session
        goes on with its next item. A consumer may have begun it ahead of its acks. Then its ack, result, follow-ups and
        state are refused, and so are those of all items that the consumer has begun behind it. These run again.
        Otherwise as `Queue.cancel`.

        *Conflicts:* as `pause`. *Cost:* about ten reads and writes.
        """
        return (await self._cancel_at(tr, session, [Editing.place_of(position, "cancel")]))[0]

    @verb
    async def cancel_many(
        self, tr: Transaction | Database, session: SessionName, positions: Iterable[Position]
    ) -> list[bool]:
        """Remove the items at positions of a session. Return for each whether it was there; otherwise as `cancel`.

        It returns False for a position that is given again.
        """
        return await self._cancel_at(tr, session, Editing.places_of(positions, "cancel_many"))

    @verb
    async def update(
        self,
        tr: Transaction | Database,
        session: SessionName,
        position: Position,
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, object] | None = None,
    ) -> Position | None:
        """Give the item at a position of a session another value, or other headers. Return its position, or None.

        If it is in progress, or a consumer has begun it ahead of its acks, its work is refused as by `cancel`, and it
        runs again with the new value. In smart sessions it refuses a new value. Otherwise as `Queue.update`.

        *Conflicts:* and *Cost:* as `cancel`.
        """
        change = self.editing().updated(value, headers)
        return (await self._change(tr, session, [Editing.place_of(position, "update")], change, None))[0]

    @verb
    async def update_many(
        self,
        tr: Transaction | Database,
        session: SessionName,
        positions: Iterable[Position],
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, object] | None = None,
    ) -> list[Position | None]:
        """Give the items at positions of a session the same new value, or the same headers; otherwise as `update`."""
        change = self.editing().updated(value, headers)
        return await self._change(tr, session, Editing.places_of(positions, "update_many"), change, None)

    @verb
    async def reschedule(
        self,
        tr: Transaction | Database,
        session: SessionName,
        position: Position,
        *,
        delay: float | None = None,
        at: float | None = None,
        level: int | None = None,
    ) -> Position | None:
        """Make the item at a position of a session available at another time, or give it another level.

        Returns its position, which another level changes; None if it is not there. If it is in progress, or a consumer
        has begun it ahead of its acks, its work is refused as by `cancel`. A dead letter comes back. If the session
        waits for the item's back-off, another time ends that wait. Otherwise as `Queue.reschedule`.

        Args:
            tr: a transaction, or a database.
            session: the session's name.
            position: the item's position.
            delay: seconds until it becomes available; 0: now.
            at: the same as a time of the clock.
            level: its new level; 0 is the most urgent.

        Raises:
            ValueError: no term was given, or both a delay and a time; there is no such level, or the position can't
                change. Nothing was written.

        *Conflicts:* and *Cost:* as `cancel`.
        """
        change = self._rescheduled(delay, at, level)
        return (await self._change(tr, session, [Editing.place_of(position, "reschedule")], change, level))[0]

    @verb
    async def reschedule_many(
        self,
        tr: Transaction | Database,
        session: SessionName,
        positions: Iterable[Position],
        *,
        delay: float | None = None,
        at: float | None = None,
        level: int | None = None,
    ) -> list[Position | None]:
        """Make the items at positions of a session available at another time, or give them a level; as `reschedule`."""
        change = self._rescheduled(delay, at, level)
        return await self._change(tr, session, Editing.places_of(positions, "reschedule_many"), change, level)

    def level_of(self, level: int | None) -> int:
        """Return a level of these sessions; the last one for None.

        Raises:
            ValueError: there is no such level.
        """
        rank = self.levels - 1 if level is None else level
        if type(rank) is not int or not 0 <= rank < self.levels:
            raise ValueError(f"A level of these sessions is an integer from 0 to {self.levels - 1}, not {level!r}.")
        return rank

    def _at(self, session: SessionName, level: int | None = None) -> SessionEditing:
        return SessionEditing(self.line, pack_name(session), level=level)

    def _cancel_at(self, tr: Transaction | Database, session: SessionName, places: list[bytes]) -> Steps[list[bool]]:
        return self._at(session).cancel_all(tr, places)

    def _change(
        self,
        tr: Transaction | Database,
        session: SessionName,
        places: list[bytes],
        change: ItemChange,
        level: int | None,
    ) -> Steps[list[Position | None]]:
        return self._at(session, level).change_all(tr, places, change)

    def _rescheduled(self, delay: float | None, at: float | None, level: int | None) -> ItemChange:
        self.level_of(level)
        if level is not None and delay is None and at is None:
            return self.editing().changed("rescheduled")
        return self.editing().rescheduled(delay, at, None)
