"""Gates: limits that many sessions share, as a tenant's or a user's.

A gate has as many slots as its limit. A session's pointer is in the line only with a slot of each of its gates. It
takes them inside out: the session's own first, then the user's, then the tenant's. Where there is none left, the
pointer waits in that gate's own line, and keeps the slots that it has. A transaction that gives a slot back moves the
first waiting pointer on. So a pointer in the main line has all its slots, and many waiting sessions of one gate cost
others nothing.

A gate's record holds how many slots are taken. It is read with a conflict, and written only if that number changes:
not where a slot goes from one session to another. A second key says how many slots are too many, since an operator
lowered the limit. It mostly does not exist. All that keeps a slot reads it with a conflict.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fdbqueue import FormatError, Position
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.lowlevel import NO_NOTES, KeyValue, Steps, Transaction, new_random, pack, rows, started, value_of
from fdbqueue.stored.counters import unsigned
from fdbqueue.stored.settings import check_renamed

from ...common.handlers import fields
from ..session.records import (
    GateRecord,
    SessionPointer,
    SessionRecord,
    called,
    check_gates,
    name_of,
    pack_gate,
    pack_gate_record,
    pointer_of,
    stored_pointer,
    unpack_gate_record,
)
from ..session.session import Session

if TYPE_CHECKING:
    from .line import Line, PointerMoves

_log = logging.getLogger("fdbqueue.layers.sessions")

IN_LINE, RESTING = -1, -2
"""A slot's stage: it has a slot of every gate; or, while its item waits for the next attempt, of none. From 0 on: it
waits at this gate of its chain, and has those before."""

Chain = tuple[tuple[bytes, int], ...]
"""The packed names and default limits of a session's gates, inside out."""


class WaitingPointer(NamedTuple):
    """A pointer that waits at a gate."""

    pointer: SessionPointer
    session: Session
    record: SessionRecord
    """The session's record."""
    stage: int
    """The gate of the session's chain."""


class Gates:
    """The gates of the sessions in one line.

    Args:
        line: the line.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._keys = line.keys

    def chain(self, name: bytes) -> Chain:
        """Return the gates of a session, by its packed name.

        Raises:
            TypeError, ValueError: the function `gates` raised, or did not return a list of gates.
        """
        function = self._line.rules.gates
        if function is None:
            return ()
        session = name_of(name)
        given = check_gates(session, called("gates", function, session))
        return tuple((pack_gate(gate.name), gate.limit) for gate in reversed(given))

    def adopted(self, session: Session, record: SessionRecord) -> SessionRecord:
        """Return the record of a session that begins to work, with its gates. They stay until it has no pointer.

        If the function `gates` fails, the session is blocked, and no other is: this may be the transaction of another
        session's item. An enqueue calls the function before, and is refused.
        """
        if record.pointer or record.slots or (self._line.rules.gates is None and not record.gates):
            return record
        try:
            return replace(record, gates=self.chain(session.name))
        except (TypeError, ValueError) as error:
            name = name_of(session.name)
            _log.exception("The session %r is blocked.", name, extra=fields(self._line.items, session=name))
            return replace(record, gates=(), blocked=NO_NOTES.cut_error(str(error)))

    # --- the slots of one pointer

    async def enter(
        self, tr: Transaction, moves: PointerMoves, session: Session, record: SessionRecord, pointer: SessionPointer
    ) -> None:
        """Take a slot of each gate for a new pointer, and append it to the line; or let it wait at the first full one.

        *Conflicts:* with a transaction that changes how many slots of these gates are taken.
        """
        await self._go_on(tr, moves, WaitingPointer(pointer, session, record, 0), [])

    async def stop(self, tr: Transaction, chain: Chain, *, ends: bool) -> int | None:
        """Return the first gate at which a pointer that has all slots must wait; None: it keeps them.

        Args:
            ends: whether its turn is over, so that another session that waits there comes first.
        """
        surplus = [tr.get(self._keys.surplus(gate)) for gate, _ in chain]
        waiting = [started(self._first(tr.snapshot, gate)) for gate, _ in chain] if ends else []
        for at, reading in enumerate(surplus):
            if (await value_of(reading)).present() or (ends and await waiting[at]):
                return at
        return None

    async def is_over(self, tr: Transaction, chain: Chain) -> bool:
        """Return whether one of the gates has too many slots taken, since its limit was lowered.

        *Conflicts:* with a change of the limit that makes them too many.
        """
        return await self.stop(tr, chain, ends=False) is not None

    async def others_wait(self, tr: Transaction, chain: Chain) -> bool:
        """Return whether another session waits at one of the gates. By snapshot."""
        found = [started(self._first(tr.snapshot, gate)) for gate, _ in chain]
        for reading in found:
            if await reading:
                return True
        return False

    async def wait_at(
        self,
        tr: Transaction,
        moves: PointerMoves,
        session: Session,
        record: SessionRecord,
        pointer: SessionPointer,
        stage: int,
    ) -> None:
        """Give up the slots of a gate and of those outside of it, and wait at that gate behind all others."""
        await self.give_up(tr, moves, record.gates, stage, len(record.gates))
        await self._park(tr, WaitingPointer(pointer, session, record, stage))

    async def leave(self, tr: Transaction, gate: bytes, session: Session, place: bytes) -> None:
        """Take a waiting pointer out of a gate's line, and not to the next one."""
        self.remove(tr, gate, session, place)
        record = await self._record(tr, gate) or GateRecord()
        if not record.held:  # it has kept the record because of this pointer
            await self._write(tr, gate, record)

    async def give_up(self, tr: Transaction, moves: PointerMoves, chain: Chain, begin: int, end: int) -> None:
        """Give back the slots of gates of a chain. Each goes to the first pointer that waits there.

        *Conflicts:* with a transaction that moves the same waiting pointer. Where none waits, with every change of how
        many slots of the gate are taken, and with a session that begins to wait.
        """
        left = [gate for gate, _ in chain[begin:end]]
        while left:
            gate = left.pop(0)
            surplus = await self._surplus(tr, gate)
            if surplus:
                self._set_surplus(tr, gate, surplus - 1)
            elif (waiting := await self._pop(tr, gate)) is not None:
                await self._go_on(tr, moves, waiting._replace(stage=waiting.stage + 1), left)
                continue
            record = await self._record(tr, gate)
            if record is not None:
                await self._write(tr, gate, replace(record, held=record.held - 1))

    def held(self, chain: Chain, stage: int) -> int:
        """Return of how many gates of a chain a pointer has slots, by its stage."""
        return {IN_LINE: len(chain), RESTING: 0}.get(stage, stage)

    # --- one gate

    async def set_limit(self, tr: Transaction, gate: bytes, limit: int | None, *, most: int) -> bool:
        """Set a gate's limit, and move up to `most` waiting pointers on. Return whether more could go on.

        Args:
            limit: the limit; None: that of the function `gates`.
        """
        await check_renamed(tr, self._line.layout)
        record = await self._record(tr, gate) or GateRecord()
        wanted = record.default if limit is None else limit
        held, moved = record.held, 0
        moves = self._line.moves(tr)
        while held < wanted and moved < most and (waiting := await self._pop(tr, gate)) is not None:
            held, moved = held + 1, moved + 1
            await self._go_on(tr, moves, waiting._replace(stage=waiting.stage + 1), [])
        moves.finish()
        # As long as a pointer waits, the gate must be full.
        more = held < wanted and moved == most and bool(await self._first(tr, gate))
        self._set_surplus(tr, gate, max(0, held - wanted))
        changed = replace(record, limit=held if more else wanted, held=held, kept=limit is not None)
        await self._write(tr, gate, changed)
        return more

    async def _take(self, tr: Transaction, gate: bytes, default: int) -> bool:
        """Take a slot of a gate. Return False if there is none left."""
        stored = await self._record(tr, gate)
        record = stored or GateRecord(limit=default)
        free = record.held < record.limit
        taken = replace(record, held=record.held + free, default=default if free else record.default or default)
        if taken != stored:
            tr.set(self._keys.gate(gate), pack_gate_record(taken))
        return free

    async def _record(self, tr: Transaction, gate: bytes) -> GateRecord | None:
        key = self._keys.gate(gate)
        value = await value_of(tr.get(key))
        return unpack_gate_record(self._line.items.layout, key, bytes(value)) if value.present() else None

    async def _write(self, tr: Transaction, gate: bytes, record: GateRecord) -> None:
        """Write a gate's record. A gate without slots, waiting pointers and a limit of its own leaves no key."""
        if not record.held and not await self._first(tr, gate):
            tr.clear(self._keys.waiters(gate))  # it is 0
            if not record.kept:
                tr.clear(self._keys.gate(gate))
                return
        tr.set(self._keys.gate(gate), pack_gate_record(record))

    async def _surplus(self, tr: Transaction, gate: bytes) -> int:
        key = self._keys.surplus(gate)
        value = await value_of(tr.get(key))
        return self._line.items.layout.decode(key, bytes(value), unsigned) if value.present() else 0

    def _set_surplus(self, tr: Transaction, gate: bytes, surplus: int) -> None:
        if surplus:
            tr.set(self._keys.surplus(gate), surplus.to_bytes(8, "little"))
        else:
            tr.clear(self._keys.surplus(gate))

    # --- the pointers that wait

    def _first(self, tr: ReadTransaction, gate: bytes) -> Steps[list[KeyValue]]:
        line = self._keys.gated(gate)
        return rows(tr, line.begin, line.end, limit=1)

    async def _pop(self, tr: Transaction, gate: bytes) -> WaitingPointer | None:
        """Take the first waiting pointer out of a gate's line; None if there is none."""
        while found := await self._first(tr, gate):
            place = self._keys.gated(gate).packed(found[0].key)
            pointer = self._line.items.layout.decode(found[0].key, found[0].value, pointer_of)
            session = self._line.session(pointer.name, pointer.generation)
            self.remove(tr, gate, session, place)
            # By snapshot: a transaction that takes the slot away also clears the key that was just read.
            recorded = tr.snapshot.get(session.record_key)
            entry = started(self._line.slots.entry(tr.snapshot, session, pointer.slot))
            stored = await value_of(recorded)
            try:
                record, own = session.record_in(stored), await entry
            except FormatError as error:
                if error.newer:
                    raise
                continue  # `Sessions.resume` gives the session new pointers
            if record is not None and own is not None and own.place == place:
                return WaitingPointer(pointer, session, record, own.stage)
        return None

    def remove(self, tr: Transaction, gate: bytes, session: Session, place: bytes) -> None:
        """Take a waiting pointer out of a gate's line. The caller sees to the gate's record."""
        tr.clear(self._keys.gated(gate).key(place))
        self._count(tr, gate, session, -1)

    async def _go_on(self, tr: Transaction, moves: PointerMoves, one: WaitingPointer, spare: list[bytes]) -> None:
        """Take the slots of further gates for a pointer, and append it to the line; or let it wait at the next gate.

        Args:
            one: the pointer. Its stage is the first gate whose slot it lacks.
            spare: gates whose slots the transaction gives back. Where no other pointer waits, this one gets the slot,
                and the gate's record need not change.
        """
        chain = one.record.gates
        for stage in range(one.stage, len(chain)):
            gate, default = chain[stage]
            if gate in spare and await self.stop(tr, (chain[stage],), ends=True) is None:
                spare.remove(gate)
            elif not await self._take(tr, gate, default):
                await self._park(tr, one._replace(stage=stage))
                return
        place = await self._line.append(tr, moves, one.pointer)
        self._line.slots.note(tr, one.session, one.pointer.slot, place)

    async def _park(self, tr: Transaction, one: WaitingPointer) -> None:
        """Append a pointer to the line of the gate at which it waits."""
        gate, _ = one.record.gates[one.stage]
        line = self._keys.gated(gate)
        # By snapshot: sessions that begin to wait at once share an index, and their random parts decide.
        last = await rows(tr.snapshot, line.begin, line.end, limit=1, reverse=True)
        index = line.position(last[0].key).index if last else 0
        place = pack(Position(index + 1, new_random()))
        tr.set(line.key(place), stored_pointer(one.pointer))
        self._count(tr, gate, one.session, 1)
        self._line.slots.note(tr, one.session, one.pointer.slot, place, stage=one.stage)

    def _count(self, tr: Transaction, gate: bytes, session: Session, change: int) -> None:
        tr.add(self._keys.waiters(gate), change.to_bytes(8, "little", signed=True))
        session.count_all(tr, gated=change)
