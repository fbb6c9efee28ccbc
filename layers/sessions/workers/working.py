"""The transactions of workers: append items, open leases, end items and leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Literal, TypeAlias, cast

from msgspec.structs import replace

from fdbqueue import (
    CheckFailed,
    CodecError,
    FormatError,
    Item,
    LeaseLost,
    OtherCodec,
    Position,
    Queue,
)
from fdbqueue.engine.blocking import in_thread
from fdbqueue.lowlevel import (
    NO_NOTES,
    STATES,
    Database,
    Editing,
    Layout,
    Notes,
    Steps,
    Transaction,
    V,
    is_chunked,
    is_database,
    keep_out,
    locate,
    notes_of,
    pack,
    rows,
    started,
    value_of,
)
from fdbqueue.moves.ends import encode_result
from fdbqueue.moves.taking import Takes
from fdbqueue.verbs.editing import Unchanged

from ...leases import Disposition, Lease
from ...leases import Done as ItemDone
from ...leases.enqueueing import Encoded
from ...leases.holding import mostly_lost
from ...leases.lease import seconds_or_none, this_consumer
from ..line.line import Line, PointerMoves, bypassed, enter_session, enter_sessions
from ..session.lease import (
    SessionHandle,
    SessionLease,
    SessionRef,
    Turn,
    TurnItem,
    TurnProgress,
    look_at_begun,
    read_turn,
)
from ..session.records import RENEWING, Held, SessionRecord, pack_name
from ..session.session import Session, SessionHead, SessionMoves
from ..session.states import State, States, write_state
from .keeping import KeptSession

Ack: TypeAlias = "tuple[Session, SessionRef, State, ItemDone]"
"""A lease and its session, the session's new encoded state, and the item's result and follow-ups."""
Looking: TypeAlias = "Steps[tuple[Turn, SessionHead]] | None"
"""What `turn` has begun to read; None: nothing yet."""
Entered: TypeAlias = "tuple[list[int], Session, SessionRecord | None, int]"
"""The places of some items in a list, and the `SessionEntry` of their session."""
Entering: TypeAlias = "Steps[list[Entered]] | None"
"""What `enter` has begun to read; None: nothing yet."""


MOVED = "cancelled or given another level"
"""What became of an item that is not in its place any more."""


class Working(Generic[V]):
    """The verbs of workers for the sessions of one queue, in transactions.

    Args:
        queue: the queue of the items.
        line: the line of ready sessions.
        states: the codec of states.
        consumer: the workers' name; None: host name and process id.
    """

    def __init__(self, queue: Queue[V], line: Line, states: States, consumer: str | None) -> None:
        self._queue = queue
        self._line = line
        self.states = states
        self._consumer = consumer
        self._bypassed = hasattr(queue.codec, "is_over")

    async def opened(self, tr: Transaction | Database, pointer: Lease[Held]) -> SessionLease[V] | None:
        """Return the lease of a session from the lease of its pointer.

        Returns None if the session had no item that is available, and puts its pointer where it belongs.

        Raises:
            FormatError, CodecError: as `lease`.
        """
        try:
            held = pointer.value
            if held.row is None and held.pointer.current:
                # Another process granted this lease, or it was read of the database.
                held = await self._queue.read(tr, partial(self._read_held, held=held))
            if held.row is not None:
                return await self.open(tr, pointer, held)
            await self._queue.transact(tr, partial(self._part, pointer=pointer, blocked=""))
        except (FormatError, CodecError, CheckFailed) as error:
            if not isinstance(error, OtherCodec):
                blocked = NO_NOTES.cut_error(str(error))
                await self._queue.transact(tr, partial(self._part, pointer=pointer, blocked=blocked))
            elif is_database(tr):  # the session is whole, and this object is not made for it
                await self._line.leases.snooze.steps(tr, pointer, delay=0.0)
            raise
        except BaseException:
            # The caller was cancelled or interrupted, and will never know this lease.
            if is_database(tr):
                in_thread(self._line.leases.snooze.steps(tr, pointer, delay=0.0))
            raise
        return None

    async def open(
        self, tr: Transaction | Database, pointer: Lease[Held], held: Held, behind: TurnProgress | None = None
    ) -> SessionLease[V]:
        """Return a session's lease with an item that was read."""
        session = self._line.session(held.pointer.name, held.pointer.generation)
        row = held.row
        if row is None:
            raise RuntimeError("a session's lease without an item can't be opened")
        if is_chunked(row.value):
            position = session.layout.position_of(row.key)
            item = await self._queue.read(tr, lambda tr: session.queue.item(tr, position, row.value))
        else:
            found = session.queue.look_at(tr, row)
            item = found if isinstance(found, Item) else cast(Item[V], await found)
        state = await self.states.decoded(tr, held.state)
        try:
            notes = notes_of(row.value)
        except FormatError as error:
            raise session.layout.unreadable_item(pack(item.position), error) from error
        Takes.check_taken(self._queue, item, notes, self._line.leases.now_us)
        return SessionLease(
            item.position,
            item.value,
            item.headers,
            pointer.token,
            pointer.expires_at,
            notes.attempt + 1,
            pointer.consumer,
            notes.error,
            seconds_or_none(notes.ttl_at_us) if notes.ttl_at_us else None,
            session=session.given_name,
            state=state,
            turn=pointer.position,
            generation=session.generation,
            behind=behind,
            wants_result=bool(notes.keep_s),
            group=notes.group,
            enqueued_at=notes.enqueued_at_us / 1e6 if notes.enqueued_at_us > 0 else None,
        )

    async def _read_held(self, tr: Transaction, held: Held) -> Held:
        """Read the item in progress, and the state, of a session that this process has leased."""
        session = self._line.session(held.pointer.name, held.pointer.generation)
        key = session.layout.available.key(held.pointer.current)
        stated, recorded = tr.snapshot.get(session.state_key), tr.snapshot.get(session.record_key)
        found = await rows(tr.snapshot, key, key + b"\x00", limit=1)
        state = await value_of(stated)
        record = session.record_if_readable(await value_of(recorded))
        # The session may have been paused after another process granted this lease.
        row = found[0] if found and record is not None and not record.is_stopped else None
        return Held(held.pointer, row, bytes(state) if state.present() else None)

    async def lease(self, tr: Transaction, duration: float) -> SessionLease[V] | None:
        """Lease the first ready session in the caller's transaction."""
        consumer = this_consumer(self._consumer)
        await self._line.join(tr)
        while pointer := await self._line.leases.lease.steps(tr, duration=duration, consumer=consumer):
            lease = await self.opened(tr, pointer)
            if lease is not None:
                return lease
        return None

    async def block(self, db: Database, pointer: Lease[Held], reason: str) -> None:
        """Block a session, and end its lease. Its items stay where they are."""
        body = partial(self._part, pointer=pointer, blocked=NO_NOTES.cut_error(reason) or "It can't be worked on.")
        await self._queue.transact(db, body)

    async def _part(self, tr: Transaction, pointer: Lease[Held], blocked: str) -> None:
        """End the lease of a session whose first item is missing or unreadable.

        A pointer that can't be read, or whose session's record or slots can't be, is put aside.
        """
        held = pointer.value.pointer
        if not held.name:
            error = FormatError(f"Its pointer {pointer.position.text} can't be read.")
            await self._line.put_aside(tr, pack(pointer.position), pointer.token, error)
            return
        session = self._line.session(held.name, held.generation)
        try:
            turn, head = await read_turn(tr, self._line, pack(pointer.position), session, limit=1)
            if turn is not None and turn.record.limit:
                await self._line.slots.entries(tr.snapshot, session)
        except FormatError as error:
            if error.newer:
                raise
            await self._line.put_aside(tr, pack(pointer.position), pointer.token, error)
            return
        if turn is None or turn.notes.token != pointer.token:
            return  # the lease has expired
        if blocked:
            turn.record = replace(turn.record, blocked=blocked)
        moves, now_us = self._line.moves(tr), self._line.leases.now_us()
        if not head.rows and head.is_due(now_us):
            head = await session.first(tr, now_us=now_us)  # it knows which timers can't be fired
        await self._line.slots.pass_on(tr, moves, turn, head, now_us=now_us)
        moves.finish()

    async def enter(self, tr: Transaction, items: list[Encoded], level: int) -> list[Entered]:
        """Read where items go, by the sessions that label them."""
        of_sessions: dict[bytes, list[int]] = {}
        for at, item in enumerate(items):
            of_sessions.setdefault(item.label, []).append(at)
        if self._bypassed:
            raise bypassed(self._queue)
        line, queue = self._line, self._queue
        entering = started(enter_sessions(tr, line, queue, smart=False))
        asked = [(places, started(enter_session(tr, line, queue, name, level))) for name, places in of_sessions.items()]
        await entering
        return [(places, *await entry) for places, entry in asked]

    async def append(
        self, tr: Transaction, /, *, items: list[Encoded], level: int, notes: Notes, entering: Entering = None
    ) -> list[Position]:
        """Append items to the sessions that label them."""
        entered = await (entering or self.enter(tr, items, level))
        line, moves = self._line, self._line.moves(tr)
        new = next((session for _, session, record, _ in entered if record is None), None)
        if new is not None and not line.rules.gates:  # with gates its pointer may have to wait there
            await line.find_end(tr, moves)
        # From here on it writes, and refuses nothing any more.
        positions: dict[int, Position] = {}
        for places, session, record, index in entered:
            appended = session.append(tr, index, [items[at][:2] for at in places], level, notes)
            positions.update(zip(places, appended, strict=True))
            await line.slots.arrived(
                tr, session, record, visible_at_us=notes.visible_at_us, moves=moves, items=len(places)
            )
        moves.finish()
        return [positions[at] for at in range(len(items))]

    async def session_for_enqueue(self, tr: Transaction, name: bytes) -> Session:
        """Return the generation of a session that items are enqueued into, by snapshot."""
        session = self._line.session(name)
        record = session.record_in(await value_of(tr.snapshot.get(session.record_key)))
        if record is None:
            return self._line.session(name)
        return self._line.session(name, record.generation + (record.closing == RENEWING))

    def session_of(self, ref: SessionRef) -> Session:
        """Return the session that a lease is about.

        Raises:
            TypeError: it is no lease of a session.
        """
        if not isinstance(ref, SessionLease | SessionHandle):
            raise TypeError(
                f"A session's lease was expected, as `lease` returns it, or its handle, not {ref!r}. (Where no session"
                " is ready, `lease` returns None.)"
            )
        return self._line.session(pack_name(ref.session), ref.generation)

    async def turn(
        self, tr: Transaction, session: Session, ref: SessionRef, *, limit: int = 1
    ) -> tuple[Turn, SessionHead]:
        """Read what a lease is about, and the session's first items. Ack what its consumer has done before.

        Raises:
            LeaseLost: it is not the session's present lease, or a call by position has changed the item, or one that
                its consumer has done before. Nothing was written.
        """
        behind = ref.behind if isinstance(ref, SessionLease) else None
        if behind is None:
            turn, head = await read_turn(tr, self._line, pack(ref.turn), session, limit=limit)
            if turn is None or turn.notes.token != ref.token or turn.pointer.current != pack(ref.position):
                raise await self._lost(tr, ref)
            return turn, head
        turn, head = await read_turn(tr, self._line, pack(ref.turn), session, limit=limit + len(behind.done))
        if turn is None or turn.notes.token != ref.token:
            raise await self._lost(tr, ref)
        compared = await look_at_begun(tr, turn, behind, head)
        if compared.changed is not None or not compared.rows:
            raise await self._lost(tr, ref, compared.changed)
        done = compared.rows[:-1]
        await self.remove_done(tr, session, behind.done[compared.acked :], done)
        acked = behind.done[-1].packed if behind.done else turn.pointer.acked
        used = turn.pointer.used + len(done)
        turn.pointer = replace(turn.pointer, current=pack(ref.position), used=used, acked=acked)
        return turn, head.without({key for key, _ in done})

    async def held(self, tr: Transaction, ref: SessionRef) -> tuple[Layout, bytes]:
        """Return the item of a live lease: the layout of its keys, and its stored bytes. It acks nothing.

        Raises:
            LeaseLost: it is not the session's present lease.

        *Conflicts:* with all that ends or extends the lease. *Cost:* two reads in parallel.
        """
        session, packed = self.session_of(ref), pack(ref.position)
        turn = pack(ref.turn)
        leased = tr.get(self._line.layout.leased.key(turn))
        reading = tr.get(session.layout.available.key(packed))
        stored, value = await value_of(leased), await value_of(reading)
        behind = ref.behind if isinstance(ref, SessionLease) else None
        if not (stored.present() and value.present()):
            raise await self._lost(tr, ref)
        if self._line.notes(turn, bytes(stored)).token != ref.token:
            raise await self._lost(tr, ref)
        if behind is None and self._line.pointer(turn, bytes(stored)).current != packed:
            raise await self._lost(tr, ref)
        item = None if behind is None else behind.current
        if item is not None and item.stored not in (b"", bytes(value)):
            raise await self._lost(tr, ref, item)
        return session.layout, bytes(value)

    async def _lost(self, tr: Transaction, ref: SessionRef, changed: TurnItem | None = None) -> LeaseLost:
        """Return the error of a lost lease. It says why it is lost, if that is known.

        Args:
            changed: the item of this turn that was changed or removed; None: none was.
        """
        session, packed = self.session_of(ref), pack(ref.position)
        taken = packed if changed is None else changed.packed
        reason = await self.why_taken(tr, session, [taken])
        why = mostly_lost(ref.position, taker="another worker has the session")
        if changed is not None and changed.packed != packed:
            item = session.layout.available.position(session.layout.prefix + changed.packed)
            why = f"a call by position changed the item {item.text}, which this worker had done before it"
        elif changed is not None:
            why = "a call by position changed the item, or removed it, when this worker had begun it"
        if reason and taken == packed:
            why = f"a call by position took the item away. {reason.rstrip('.')}"
        if changed is not None:
            reason = reason or await self.why_changed(tr, session, taken)
        return LeaseLost(
            f"The lease of the session {ref.session!r} for its item {ref.position.text} in {self._queue!r} is lost:"
            f" {why}. Undo what was done for the item, or let it be done again; extend leases whose work takes longer.",
            lost=[ref.position],
            reasons={session.layout.available.position(session.layout.prefix + taken): reason} if reason else {},
        )

    async def why_taken(self, tr: Transaction, session: Session, places: Sequence[bytes]) -> str:
        """Return how a call by position took away the first of some items that was in progress; "" if none did."""
        outcomes = {packed: session.home.completions.key(session.address(packed)) for packed in places}
        reasons = await Editing.why_lost(tr, session.layout, outcomes)
        return next((reasons[packed] for packed in places if packed in reasons), "")

    async def why_changed(self, tr: Transaction, session: Session, packed: bytes) -> str:
        """Return how a call by position changed an item that a worker has begun.

        The call did not know that it was begun, so it may have left no word.
        """
        if reason := await self.why_taken(tr, session, [packed]):
            return reason
        there = await locate(tr.snapshot, session.layout, [packed], STATES)
        return f"It was {'changed' if there else MOVED} while this consumer had it."

    async def ack(self, tr: Transaction, ack: Ack) -> None:
        """Remove the item in progress, and give the session back to the end of the line."""
        moves = self._line.moves(tr)
        if not ack[-1].follow_ups:  # these may append pointers themselves
            moves.ending = self._line.begin_to_find_end(tr)
        await self._ack(tr, moves, ack)
        moves.finish()

    async def _ack(self, tr: Transaction, moves: PointerMoves, ack: Ack, looking: Looking = None) -> None:
        """Ack as `ack`. The caller finishes the moves of the line. If the lease is lost, nothing was written."""
        turn, head = await self._done(tr, *ack, looking)
        await self._line.slots.pass_on(tr, moves, turn, head, now_us=self._line.leases.now_us(), to="tail")

    async def ack_all(self, db: Database, acks: list[Ack]) -> list[LeaseLost | None]:
        """Ack as `ack`, in one transaction for several calls. Each has its own error if its lease is lost."""
        refused: list[LeaseLost] = []

        async def body(tr: Transaction) -> list[LeaseLost | None]:
            moves = self._line.moves(tr)
            moves.ending = self._line.begin_to_find_end(tr)
            under_way = {}
            if len(acks) > 1:
                # Two acks of one session must see each other: the first of each looks together with the others. A read
                # behind a write is slower on the embedded engine.
                first = {session.name: at for at, (session, *_) in reversed(list(enumerate(acks)))}
                under_way = {at: started(self.turn(tr, *acks[at][:2], limit=2)) for at in sorted(first.values())}
            results: list[LeaseLost | None] = []
            refused.clear()
            for at, ack in enumerate(acks):
                try:
                    await self._ack(tr, moves, ack, under_way.get(at))
                except LeaseLost as error:
                    results.append(error)
                    refused.append(error)
                else:
                    results.append(None)
            if refused and len(refused) == len(acks):
                raise refused[0]  # so that no commit marker is written either
            moves.finish()
            return results

        try:
            return await self._queue.transact(db, body)
        except LeaseLost:
            return [*refused]

    async def ack_and_next(
        self, tr: Transaction, ref: SessionRef, state: State, done: ItemDone, duration_us: int
    ) -> Lease[Held] | None:
        """Remove the item in progress, and keep the session for its next one; None if its turn is over."""
        session = self.session_of(ref)
        stating = tr.snapshot.get(session.state_key) if isinstance(state, Unchanged) else None
        stopped = await keep_out(tr, self._line.layout, self._line.leases.now_us)
        turn, head = await self._done(tr, session, ref, state, done)
        now_us = self._line.leases.now_us()
        used = turn.pointer.used + 1
        row = await self._line.slots.following(tr, turn, head)
        over = used >= self._line.quota(ref.session)
        if over and row is not None and not head.is_due(now_us):
            over = await self._line.others_wait(tr, now_us, turn.record)
            used = used if over else 0
        moves = self._line.moves(tr)
        stopped = stopped or turn.record.is_stopped
        if row is None or over or stopped or await turn.session.is_out(tr, row, now_us):
            to: Literal["place", "tail"] = "tail" if over else "place"
            await self._line.slots.pass_on(tr, moves, turn, head, now_us=now_us, used=used, to=to)
            moves.finish()
            return None
        current = turn.session.layout.available.packed(row.key)
        if turn.pointer.slot:
            self._line.slots.take(tr, turn.session, turn.pointer.slot, turn.packed, row)
        kept = self._line.keep(tr, moves, turn, current, used, now_us + duration_us)
        moves.finish()
        if stating is not None:
            value = await value_of(stating)
            state = bytes(value) if value.present() else None
        held = Held(replace(turn.pointer, current=current), row, None if isinstance(state, Unchanged) else state)
        return Lease(ref.turn, held, {}, kept.token, kept.expires_at_us / 1e6, 1, kept.consumer)

    async def followed(
        self, tr: Transaction | Database, body: Callable[[Transaction], Steps[Lease[Held] | None]]
    ) -> SessionLease[V] | None:
        """Run a body as `ack_and_next`, and return the lease of the session's next item."""
        if is_database(tr):
            return await KeptSession(self, self._queue, cast(Database, tr), body).lease()
        pointer = await body(cast(Transaction, tr))
        return None if pointer is None else await self.opened(tr, pointer)

    async def give_back(self, db: Database, pointer: Lease[Held]) -> None:
        """End the lease of a session that was kept for a worker that has gone, uncounted.

        The commit that keeps it may have taken effect, may never do so, or may be still under way. Then it conflicts
        with this transaction.
        """

        async def body(tr: Transaction) -> None:
            packed = pack(pointer.position)
            key = self._line.layout.leased.key(packed)
            value = await value_of(tr.get(key))
            # The lease keeps its token, so the item tells whether that commit took effect.
            if value.present() and self._line.pointer(packed, bytes(value)).current == pointer.value.pointer.current:
                await self._part(tr, pointer, "")
            else:
                tr.add_write_conflict_key(key)

        await self._queue.transact(db, body)

    async def _done(
        self, tr: Transaction, session: Session, ref: SessionRef, state: State, done: ItemDone, looking: Looking = None
    ) -> tuple[Turn, SessionHead]:
        """Remove the item in progress. Return the lease, and the session's next items."""
        packed = pack(ref.position)
        key = session.layout.available.key(packed)
        turn, head = await (looking or self.turn(tr, session, ref, limit=2))
        stored = next((row.value for row in head.rows if row.key == key), b"")
        if not stored:  # urgent items are in front of it
            value = await value_of(tr.get(key))
            if not value.present():
                raise await self._lost(tr, ref)
            stored = bytes(value)
        try:
            result = encode_result(done.result) if notes_of(stored).keep_s else b""
        except FormatError as error:
            raise session.layout.unreadable_item(packed, error) from error
        await self.states.check_write(tr, state)
        for follow_up in done.follow_ups:
            await follow_up.carry_out(tr)
        if done.follow_ups:  # some may be in this session
            now, head = await read_turn(tr, self._line, turn.packed, session, limit=2)
            turn.record = turn.record if now is None else now.record
        left = head.without({key})
        ends = self._line.slots.ends(turn, left)
        if ends:
            session.add_conflicts_with_arrivals(tr)
            left.is_alone = True
        await remove(tr, session, [(key, stored)], {packed: result}, self._line.leases.now_us(), ends=ends)
        write_state(tr, session, state)
        if isinstance(ref, SessionLease) and ref.behind is not None:
            turn.pointer = replace(turn.pointer, acked=packed)
        return turn, left

    async def nack(self, tr: Transaction, ref: SessionRef, delay_us: int | None, error: str, last: bool) -> Disposition:
        """Count a failed attempt of the item in progress."""
        session = self.session_of(ref)
        reading = tr.get(session.layout.available.key(pack(ref.position)))
        turn, head = await self.turn(tr, session, ref, limit=2)
        value = await value_of(reading)
        if not value.present():
            raise await self._lost(tr, ref)
        moves = self._line.moves(tr)
        now_us = self._line.leases.now_us()
        fate = await self._line.fail(
            tr, moves, turn, bytes(value), head, now_us=now_us, delay_us=delay_us, error=error, last=last
        )
        moves.finish()
        return fate

    async def snooze(self, tr: Transaction, ref: SessionRef, delay_us: int) -> None:
        """Give the session back for some time."""
        turn, head = await self.turn(tr, self.session_of(ref), ref)
        moves = self._line.moves(tr)
        await self._line.slots.pass_on(tr, moves, turn, head, now_us=self._line.leases.now_us(), delay_us=delay_us)
        moves.finish()

    async def set_state(self, tr: Transaction, ref: SessionRef, state: State) -> None:
        """Write the state of a leased session."""
        await self.states.check_write(tr, state)
        turn, _ = await self.turn(tr, self.session_of(ref), ref)
        write_state(tr, turn.session, state)
        if isinstance(ref, SessionLease) and ref.behind is not None:
            moves = self._line.moves(tr)
            pointer = turn.pointer
            self._line.keep(tr, moves, turn, pointer.current, pointer.used, turn.notes.expires_at_us)
            moves.finish()

    async def extend(self, tr: Transaction, ref: SessionRef, duration_us: int) -> int:
        """Extend the lease. Return its new end."""
        turn, _ = await self.turn(tr, self.session_of(ref), ref)
        expires_at_us = self._line.leases.now_us() + duration_us
        moves = self._line.moves(tr)
        self._line.keep(tr, moves, turn, turn.pointer.current, turn.pointer.used, expires_at_us)
        moves.finish()
        return expires_at_us

    async def remove_done(
        self, tr: Transaction, session: Session, done: Sequence[TurnItem], rows: list[tuple[bytes, bytes]]
    ) -> None:
        """Remove items that a consumer has done. Store their results, and write their states.

        Args:
            rows: the keys and stored bytes of the first ones of `done`. The others stay.
        """
        results = {one.packed: one.result for one in done}
        for one in done[: len(rows)]:
            await self.states.check_write(tr, one.state)
        await remove(tr, session, rows, results, self._line.leases.now_us())
        for one in done[: len(rows)]:
            write_state(tr, session, one.state)


async def remove(
    tr: Transaction,
    session: Session,
    done: list[tuple[bytes, bytes]],
    results: dict[bytes, bytes],
    now_us: int,
    *,
    ends: bool = False,
) -> None:
    """Remove items that are done.

    Args:
        done: their keys and stored bytes.
        results: encoded results, by the items' packed positions.
        ends: whether the caller clears all keys of the session.
    """
    moves = SessionMoves(tr, session, now_us, ends=ends)
    for key, stored in done:
        packed = session.layout.available.packed(key)
        try:
            moves.leave_available(packed, notes_of(stored), cleared=ends)
        except FormatError as error:
            raise session.layout.unreadable_item(packed, error) from error
        moves.vanish(packed, stored, "dequeued", result=results.get(packed, b""))
    await moves.settle()
    moves.finish()
