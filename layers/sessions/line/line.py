"""The line of ready sessions: a queue of pointers. It lends them, ends them, and fails the item in progress.

Which pointers a session has, `slots.py` decides. The way into a session is here too: whether the queue and the session
take an item, and behind which index. Plain and smart enqueues pass here; what they then write,
`fdbqueue.writes.appending` does. Each function is part of a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue import ChecksBypassed, FormatError, Position, Queue, SessionClosed
from fdbqueue.engine.optional import has_turns
from fdbqueue.lowlevel import (
    NO_NOTES,
    TAKEN,
    KeyValue,
    Notes,
    Steps,
    Transaction,
    new_random,
    notes_of,
    pack,
    register,
    rows,
    started,
    value_of,
    with_notes,
)
from fdbqueue.moves.admission import ask_smartness
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.known import LOOK_SECONDS
from fdbqueue.writes.appending import append_item

from ...common.handlers import fields
from ...leases import Disposition
from ...leases.timers import due_timers
from ...leases.transitions import Retry, Transitions
from ..session.lease import Turn
from ..session.records import (
    DAMAGED,
    REFUSING,
    RENEWING,
    Gate,
    Held,
    Keys,
    SessionPointer,
    SessionRecord,
    called,
    name_of,
    pack_record,
    pointer_of,
    stored_pointer,
    until,
)
from ..session.session import Session, SessionHead, SessionMoves, last_index
from .line_queue import LineLeases, join_shards
from .slots import Slots
from .tracking import release

_log = logging.getLogger("fdbqueue.layers.sessions")
MAX_KNOWN = 4_096
"""For how many sessions a process keeps what it has computed of their keys."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for turns and for failures."""

    quantum: int
    weight: Callable[[Any], int] | None
    retry: Retry
    blocks: bool
    """Whether a dead letter blocks its session."""
    holds: bool
    """Whether a delayed item holds up those behind it."""
    limit: int = 1
    """How many items of a session run at once, unless an operator has set another limit."""
    gates: Callable[[Any], Sequence[Gate]] | None = None
    """Returns the gates of a session, the outermost first."""


class PointerMoves(Transitions):
    """The moves of pointers in one transaction. Made by `Line.moves`."""

    last: int | None = None
    """The index of the last pointer that was appended. One transaction reads it once."""
    ending: Steps[int] | None = None
    """The read of that index, if it is under way."""

    def put_aside(self, packed: bytes, stored: bytes) -> None:
        """Add a pointer that has left its place to the dead letters of the line. No item has died."""
        self._tr.set(self._layout.dead.key(packed), stored)
        self.tally("dead", 1)


class Line:
    """The line of one queue's sessions.

    Args:
        queue: the queue.
        rules: the rules of its sessions.
        clock: seconds since 1970.
    """

    def __init__(self, queue: Queue, rules: Rules, clock: Callable[[], float]) -> None:
        self.keys = Keys(queue.layout)
        self.layout = self.keys.line
        """The keys of the pointers, and of the outcomes, groups and blobs of items."""
        self.joined_until = 0.0
        """Until when, by `time.monotonic`, this process need not look for shards that another version has written."""
        self.rules = rules
        self._clock = clock
        self.leases = LineLeases(self, clock)
        """Leases of the pointers: of whole sessions."""
        self.queue: Queue[Held] = self.leases.queue
        self.items = queue
        """The queue whose codec the items have, and whose transactions the sessions share."""
        self.slots = Slots(self)
        """The slots of sessions that run several items at once."""
        self._known: dict[tuple[bytes, int], Session] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Line, (self.items, self.rules, self._clock)

    def session(self, name: bytes, generation: int = 0) -> Session:
        """Return a session's keys, from its packed name."""
        known = self._known.get((name, generation))
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = Session(self.keys, self.items, name, generation, holds=self.rules.holds)
            self._known[name, generation] = known
        return known

    # --- what takes part in the leases of pointers

    async def lend(
        self, tr: Transaction, packed: bytes, stored: bytes, now_us: int, value: Held | None = None
    ) -> tuple[bytes, Any]:
        """Read the first item of a session whose pointer is being leased, and note it as the one in progress.

        *Conflicts:* none: an urgent item that is enqueued at this moment comes next. *Cost:* three reads in parallel.
        """
        try:
            pointer = self.pointer(packed, stored) if value is None else value.pointer
        except FormatError as error:
            if error.newer:
                raise
            pointer = DAMAGED
        if pointer is DAMAGED:  # its worker puts it aside
            return stored_pointer(pointer), Held(pointer)
        session = self.session(pointer.name, pointer.generation)
        view = tr.snapshot
        recorded: Any = view.get(session.record_key)
        stated: Any = view.get(session.state_key)
        first = await self.slots.lend(tr, session, pointer, recorded, now_us)
        row = first[0] if first else None
        state = await value_of(stated)
        current = session.layout.available.packed(row.key) if row else b""
        lent = replace(pointer, current=current, since_us=now_us, edits=0, acked=b"")
        return stored_pointer(lent), Held(lent, row, bytes(state) if state.present() else None, len(first) < 2)

    def begin(self, tr: Transaction, found: Sequence[KeyValue], now_us: int) -> dict[bytes, Steps[tuple[bytes, Any]]]:
        """Begin to lend several pointers of different sessions, so that their reads share a round trip.

        Only the reads before the first answer begin. They are of a session's own keys, which no other session's lend
        writes. Two slots of one session must see each other, so that only the first of each begins.

        *Cost:* none beyond that of `lend`. Where reads have no round trips, nothing begins.
        """
        if has_turns(tr):
            return {}
        names: set[bytes] = set()
        under_way = {}
        for row in found:
            try:
                pointer = pointer_of(row.value)
            except FormatError:
                continue  # opening the item raises the error
            if pointer.name not in names:
                names.add(pointer.name)
                under_way[row.key] = started(self.lend(tr, b"", row.value, now_us, Held(pointer)))
        return under_way

    async def expire(
        self, tr: Transaction, moves: Transitions, packed: bytes, stored: bytes, now_us: int
    ) -> Disposition | None:
        """Count a failed attempt of the item in progress, and give the session back to its place.

        Returns None, and puts the pointer aside, if it, its record or its slots can't be read: an error would keep all
        other timers from being fired. An item that can't be read blocks its session.
        """
        own = self.moves(tr, now_us)
        try:
            turn, value, head = await self._read_expired(tr, packed, stored)
        except FormatError as error:
            if not error.newer:
                self._put_aside(own, packed, stored, error)
                own.finish()
                moves.any = True
            return None
        fate = await self._expire(tr, own, turn, value, head, now_us)
        own.finish()
        moves.any = True
        return fate

    async def _read_expired(self, tr: Transaction, packed: bytes, stored: bytes) -> tuple[Turn, bytes, SessionHead]:
        """Return the turn of an expired lease, its item in progress, or b"" if that is gone, and the first items."""
        notes, pointer = self.notes(packed, stored), self.pointer(packed, stored)
        session = self.session(pointer.name, pointer.generation)
        reading = tr.get(session.record_key)
        item = tr.get(session.layout.available.key(pointer.current)) if pointer.current else None
        looking = started(session.look(tr, limit=2))
        turn = Turn(packed, notes, pointer, session.record_in(await value_of(reading)) or SessionRecord(), session)
        if turn.record.limit:
            await self.slots.entries(tr.snapshot, session)  # before the first write: one may be unreadable
        value = None if item is None else await value_of(item)
        return turn, bytes(value) if value is not None and value.present() else b"", await looking

    async def _expire(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, value: bytes, head: SessionHead, now_us: int
    ) -> Disposition:
        if not value:
            return await self.slots.pass_on(tr, moves, turn, head, now_us=now_us)
        error = f"The lease of {turn.notes.consumer or 'a consumer'} expired."
        try:
            attempt = turn.session.notes(turn.pointer.current, value).attempt + 1
        except FormatError as unreadable:  # as if a worker could not read it
            turn.record = replace(turn.record, blocked=NO_NOTES.cut_error(str(unreadable)))
            return await self.slots.pass_on(tr, moves, turn, head, now_us=now_us)
        policy = await self.rules.retry.known(tr)
        delay_us = policy.delay_left_us(attempt, since_us=turn.notes.expires_at_us, now_us=now_us)
        return await self.fail(tr, moves, turn, value, head, now_us=now_us, delay_us=delay_us, error=error)

    async def put_aside(self, tr: Transaction, packed: bytes, token: bytes, error: FormatError) -> None:
        """Put a leased pointer aside, whose session can't be worked on: it goes to the dead letters of the line.

        `Sessions.resume` gives the session new pointers. Nothing is written if the lease is over.
        """
        value = await value_of(tr.get(self.layout.leased.key(packed)))
        if value.present() and self.notes(packed, bytes(value)).token == token:
            moves = self.moves(tr)
            self._put_aside(moves, packed, bytes(value), error)
            moves.finish()

    def _put_aside(self, moves: PointerMoves, packed: bytes, stored: bytes, error: FormatError) -> None:
        notes = self.notes(packed, stored)
        moves.leave_leased(packed, notes)
        told = notes.at_rest(error=NO_NOTES.cut_error(str(error)), died_at_us=self.leases.now_us())
        moves.put_aside(packed, with_notes(stored, told))
        _log.error("A session of %r can't be worked on. %s", self.items, error, extra=fields(self.items))

    def about(self, packed: bytes, stored: bytes) -> tuple[Any, Position | None]:
        """Return a session's name and its item in progress, from its leased pointer."""
        pointer = self.pointer(packed, stored)
        available = self.session(pointer.name, pointer.generation).layout.available
        item = available.position(available.key(pointer.current)) if pointer.current else None
        return name_of(pointer.name), item

    async def release(self, tr: Transaction, moves: Transitions, address: Position, kind: str, now_us: int) -> bool:
        """Release or remove one item of a session, named by its address."""
        own = self.moves(tr, now_us)
        there = await release(tr, self, own, address, kind, now_us)
        own.finish()
        moves.any = moves.any or own.any
        return there

    def moves(self, tr: Transaction, now_us: int | None = None) -> PointerMoves:
        """Return the moves of pointers in a transaction, to be finished by the caller."""
        return PointerMoves(tr, self.layout, now_us)

    async def join(self, tr: Transaction) -> bool:
        """Move pointers into the line that another version has written elsewhere. Return whether there were any.

        *Conflicts:* and *Cost:* once a second, as `join_shards`.
        """
        if monotonic() < self.joined_until:
            return False
        joined = await join_shards(tr, self.keys)
        self.joined_until = 0.0 if joined else monotonic() + LOOK_SECONDS
        return joined

    # --- the item in progress

    async def fail(
        self,
        tr: Transaction,
        moves: PointerMoves,
        turn: Turn,
        stored: bytes,
        head: SessionHead,
        *,
        now_us: int,
        delay_us: int | None,
        error: str,
        last: bool = False,
    ) -> Disposition:
        """Count a failed attempt of the item in progress: it stays in its place, or becomes a dead letter.

        Its session waits as long as the item has to. No other session does.
        """
        policy = await self.rules.retry.known(tr, last=last)
        session, packed = turn.session, turn.pointer.current
        notes = session.notes(packed, stored)
        failed = replace(
            notes,
            attempt=notes.attempt + 1,
            consumer=turn.notes.consumer,
            error=notes.cut_error(error),
        )
        if delay_us is None:
            delay_us = policy.delay_us(failed.attempt)  # before the first write: a policy may raise
        own = SessionMoves(tr, session, now_us)
        gone = head.without({session.layout.available.key(packed)})
        used = turn.pointer.used + 1
        if Takes.removed_if_over(own, packed, stored, notes, now_us):
            own.leave_available(packed, notes)
            fate = Disposition.expired
        elif policy.is_last(failed.attempt):
            own.leave_available(packed, notes)
            own.enter_dead(packed, stored, failed.at_rest(died_at_us=now_us))
            fate, gone.dead = Disposition.dead, True
            if self.rules.blocks:
                turn.record = replace(turn.record, blocked=failed.error or "Its item failed for the last time.")
        else:
            own.rewrite(session.layout.available, packed, stored, notes, failed)
            if notes.group:
                own.returned_groups |= {notes.group}
            await own.settle()
            own.finish()
            await self.slots.pass_on(tr, moves, turn, head, now_us=now_us, delay_us=delay_us)
            return Disposition.delayed if delay_us else Disposition.available
        await own.settle()
        own.finish()
        await self.slots.pass_on(tr, moves, turn, gone, now_us=now_us, used=used)
        return fate

    # --- pointers and records

    def pointer(self, packed: bytes, stored: bytes) -> SessionPointer:
        """Return a stored pointer of the line. The error names it if it can't be read."""
        return self.layout.read_item(packed, stored, pointer_of)

    def notes(self, packed: bytes, stored: bytes) -> Notes:
        """Return the notes of a stored pointer of the line. The error names it if they can't be read."""
        return self.layout.read_item(packed, stored, notes_of)

    def keep(
        self, tr: Transaction, moves: PointerMoves, turn: Turn, current: bytes, used: int, expires_at_us: int
    ) -> Notes:
        """Keep a session for its next item. Return the notes of its lease."""
        now_us = self.leases.now_us()
        notes = replace(turn.notes, expires_at_us=expires_at_us)
        moves.leave_leased(turn.packed, turn.notes)
        kept = replace(turn.pointer, current=current, used=used, since_us=now_us)
        moves.enter_leased(turn.packed, stored_pointer(kept), notes)
        return notes

    def note(self, tr: Transaction, turn: Turn, pointer: SessionPointer) -> None:
        """Store a leased pointer with other contents."""
        tr.set(self.layout.leased.key(turn.packed), with_notes(stored_pointer(pointer), turn.notes))

    async def note_edit(self, tr: Transaction, packed: bytes) -> None:
        """Note that a call has changed or removed an item of the session with this pointer that is not in progress.

        A lease that has seen this item reads the pointer by snapshot, and conflicts with this. If the pointer is
        leased, a consumer may have begun this item too. Its next ack conflicts with this, and then compares what it has
        begun.
        """
        key = self.layout.available.key(packed)
        tr.add_write_conflict_key(key)
        tr.add_write_conflict_key(key + TAKEN)
        value = await value_of(tr.get(self.layout.leased.key(packed)))
        if value.present():
            pointer, notes = self.pointer(packed, bytes(value)), self.notes(packed, bytes(value))
            edited = with_notes(stored_pointer(replace(pointer, edits=pointer.edits + 1)), notes)
            tr.set(self.layout.leased.key(packed), edited)

    async def others_wait(self, tr: Transaction, now_us: int, record: SessionRecord | None) -> bool:
        """Return whether another session is ready, or waits at a gate of this one, by its record.

        By snapshot: one that comes at this moment waits for a quantum.
        """
        due = started(due_timers(tr, self.layout, now_us, limit=1))
        ready = await rows(tr.snapshot, self.layout.begin, self.layout.end, limit=1)
        if await due or ready:
            return True
        return record is not None and await self.slots.gates.others_wait(tr, record.gates)

    def quota(self, name: Any) -> int:
        """Return how many items of a session are done in one turn while others wait.

        Raises:
            ValueError: the function `weights` raised, or did not return a whole number from 1 on.
        """
        if self.rules.weight is None:
            return self.rules.quantum
        weight = called("weights", self.rules.weight, name)
        if type(weight) is not int or weight < 1:
            raise ValueError(f"The weight of a session is a whole number, at least 1, and that of {name!r} {weight!r}.")
        return weight * self.rules.quantum

    async def withdraw(self, tr: Transaction, moves: PointerMoves, place: bytes) -> bool:
        """Take a pointer out of the line. Return False if it is leased: its worker will see the record."""
        ready = tr.get(self.layout.available.key(place))
        sleeping = await value_of(tr.get(self.layout.delayed.key(place)))
        value = await value_of(ready)
        if value.present():
            moves.leave_available(place, self.notes(place, bytes(value)))
        elif sleeping.present():
            moves.leave_delayed(place, self.notes(place, bytes(sleeping)))
        else:
            return False
        moves.tally("dequeued", 1)
        return True

    async def append(
        self, tr: Transaction, moves: PointerMoves, pointer: SessionPointer, *, visible_at_us: int = 0
    ) -> bytes:
        """Append a pointer to the line. Return its packed position."""
        if moves.last is None:
            await self.find_end(tr, moves)
        moves.last = (moves.last or 0) + 1
        position = Position(moves.last, new_random())
        notes = until(visible_at_us) if visible_at_us else NO_NOTES
        # It is counted as enqueued: waiting workers watch this counter.
        append_item(tr, self.layout, position, stored_pointer(pointer), (), notes, moves)
        return pack(position)

    async def find_end(self, tr: Transaction, moves: PointerMoves) -> None:
        """Read where the next pointer is appended.

        A transaction that has written nothing yet reads it faster on the embedded engine.
        """
        # Not `Queue.next_index`, which asks for a versionstamp to remember the index for further calls.
        moves.last = await (moves.ending or last_index(tr, self.layout, self.layout.begin, self.layout.end))

    def begin_to_find_end(self, tr: Transaction) -> Steps[int] | None:
        """Begin to read where the next pointer is appended, beside other reads; None where reads have no round trips.

        *Cost:* two reads in parallel, in vain if none is appended.
        """
        return None if has_turns(tr) else started(last_index(tr, self.layout, self.layout.begin, self.layout.end))

    def write(self, tr: Transaction, session: Session, record: SessionRecord) -> None:
        """Write a record. It conflicts with enqueues into the session."""
        tr.set(session.record_key, pack_record(record))
        tr.add_write_conflict_key(session.guard_key)


class SessionEntry(NamedTuple):
    """Where the items of an enqueue go."""

    session: Session
    """The generation of the session that takes them."""
    record: SessionRecord | None
    """The session's record, read by snapshot; None: it has none."""
    last_index: int
    """The last index of the level."""


async def enter_sessions(tr: Transaction, line: Line, queue: Queue, *, smart: bool) -> None:
    """Ask whether items may enter the sessions of a queue, after smart checks or without.

    Raises:
        OtherCodec, QueueRenamed, NestedQueue: as `register`.
        ChecksBypassed: the queue has a quota. Or its sessions make smart checks, and these items pass none.
    """
    asking = None if smart else started(ask_smartness(tr, line.layout, smart=False))  # the other may write a mark
    await register(tr, queue.layout)
    if not await (asking or ask_smartness(tr, line.layout, smart=True)):
        raise bypassed(queue)


async def enter_session(tr: Transaction, line: Line, queue: Queue, name: bytes, level: int) -> SessionEntry:
    """Return where the items for a session go.

    Raises:
        SessionClosed: it takes none.

    *Conflicts:* with a change of the session. *Cost:* three reads in parallel.
    """
    session = line.session(name)
    # By snapshot: the record also says where the pointer is, which changes nothing for an enqueue. All other changes of
    # the record also write the guard.
    tr.add_read_conflict_key(session.guard_key)
    recorded = tr.snapshot.get(session.record_key)
    last = started(session.last_index(tr, level))
    record = session.record_in(await value_of(recorded))
    if record is not None and (generation := generation_to_enter(queue, name, record)):
        session = line.session(name, generation)
        last = started(session.last_index(tr, level))
    return SessionEntry(session, record, await last)


def generation_to_enter(queue: Queue, name: bytes, record: SessionRecord) -> int:
    """Return the generation of a session that its new items belong to.

    Raises:
        SessionClosed: the session is being removed.
    """
    if record.closing == REFUSING:
        raise SessionClosed(
            f"The session {name_of(name)!r} of {queue!r} is being removed and takes no more items. Enqueue again when"
            " it is gone; or remove it with later='renew', which keeps later items for a new generation."
        )
    return record.generation + (record.closing == RENEWING)


def bypassed(queue: Queue) -> ChecksBypassed:
    """Return the error of an enqueue that would bypass the smart checks of a queue's sessions."""
    return ChecksBypassed(
        f"The sessions of {queue!r} make smart checks, which this enqueue would bypass. Nothing was written. Enqueue by"
        " fdbqueue.layers.SmartSessions(sessions).enqueue or enqueue_many. Lease, ack and all other verbs are as ever."
    )
