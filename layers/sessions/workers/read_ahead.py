"""Turns of a consumer: it reads several items of a session ahead, and acks them in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from msgspec.structs import replace

from fdbqueue import Position
from fdbqueue.lowlevel import UNCHANGED, Database, KeyValue, Steps, Transaction, V, pack, started, value_of

from ...leases import FollowUp, Lease
from ..line.line import Line, PointerMoves
from ..line.slots import Where
from ..session.lease import SessionLease, Turn, TurnItem, TurnProgress, look_at_begun, read_turn
from ..session.records import Held
from ..session.session import Session, SessionHead
from .working import Working


@dataclass(frozen=True, slots=True)
class NewState:
    """Returned by a handler: the consumer writes this state of the session in the transaction of the ack."""

    value: Any
    """The new state; None removes it."""
    result: object = None
    """The result for the item's completion, as in `fdbqueue.layers.Done`."""
    then: FollowUp | Sequence[FollowUp] = ()
    """Items to enqueue in the transaction of the ack."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next items of a session that a consumer has leased."""

    rows: list[KeyValue]
    state: bytes | None
    """The session's stored state."""
    others: bool
    """Whether another session is ready, or a delayed item of this one."""
    leaves: bool
    """Whether the session was paused or blocked, a limit that was lowered stops it, or an item was changed that the
    consumer has done."""
    edits: int
    """How many calls had changed waiting items by their positions."""
    acked: bytes
    """The packed position of the last item that was acked in this turn; b"": unknown, or none was."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of a turn, to be written."""

    pointer: Lease[Held]
    progress: TurnProgress
    """The items to ack, and the one that is in progress now."""
    leaving: Where | None
    """Where the session goes; None: its turn goes on."""


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """The result of writing a settlement."""

    live: bool
    """Whether the lease was live. If not, nothing was written."""
    acked: int = 0
    """How many of the items that are done are acked now. The others are refused."""
    fenced: bool = False
    """Whether a call by position has changed or removed an item that the consumer has begun. The consumer leaves the
    session, which goes on with the first item that is refused, or the next one."""
    urgent: bool = False
    """Whether a more urgent item waits than the one in progress."""
    edits: int = 0
    """How many calls have changed waiting items by their positions."""
    leaves: bool = False
    """Whether the session was paused or blocked."""
    reason: str = ""
    """How a call by position took an item away that the consumer has begun; "" if none did, as far as is known."""


class Turns(Generic[V]):
    """Turns of the sessions of one queue.

    Args:
        line: the line of ready sessions.
        working: the transactions of workers.
    """

    def __init__(self, line: Line, working: Working[V]) -> None:
        self._line = line
        self.working = working

    def session(self, pointer: Lease[Held]) -> Session:
        """Return the keys of a leased session."""
        held = pointer.value.pointer
        return self._line.session(held.name, held.generation)

    async def look(self, tr: Transaction, pointer: Lease[Held], *, progress: TurnProgress, limit: int) -> Ahead | None:
        """Read the next items of a leased session; None if the lease is lost. It writes nothing.

        Args:
            progress: what the consumer has done, and does not know to be acked.
            limit: how many items to read.
        """
        session, done = self.session(pointer), progress.done
        stated = tr.snapshot.get(session.state_key)
        now_us = self._line.leases.now_us()
        others = started(self._line.others_wait(tr, now_us, None))
        turn, head = await read_turn(tr, self._line, pack(pointer.position), session, limit=limit + len(done))
        wait = await others
        state = await value_of(stated)
        if turn is None or turn.notes.token != pointer.token:
            return None
        left = head.without({session.layout.available.key(one.packed) for one in done}).rows[:limit]
        # The next lease of the session removes an item whose life is over, or whose group was cancelled.
        over = len(left)
        for at, row in enumerate(left):
            # Of a session with slots, another slot may take the next item.
            if turn.record.limit or await session.is_out(tr, row, now_us):
                over = at
                break
        leaves = turn.record.is_stopped
        if turn.pointer.edits and done:  # the ack of these would be refused, and all that is done behind them
            compared = await look_at_begun(tr, turn, progress, head)
            leaves = leaves or compared.changed is not None
        if turn.pointer.slot and not leaves:
            leaves = turn.record.slots > turn.record.limit
            leaves = leaves or await self._line.slots.gates.is_over(tr, turn.record.gates)
        wait = wait or await self._line.slots.gates.others_wait(tr, turn.record.gates)
        others_wait = wait or head.is_due(now_us)
        stored = bytes(state) if state.present() else None
        return Ahead(left[:over], stored, others_wait, leaves, turn.pointer.edits, turn.pointer.acked)

    async def may_go_on(self, tr: Transaction, pointer: Lease[Held], *, first: bytes, edits: int) -> bool:
        """Return whether a turn may go on with items that were read ahead, at the end of a quantum.

        It may if no other session waits, no more urgent item has come, and nobody has changed the session or its items.

        Args:
            first: the key of the first item that the consumer has read and does not know to be acked.
            edits: how many calls had changed waiting items when these were read.

        *Conflicts:* none. *Cost:* five reads in parallel. The caller need not commit: that would wait until all it has
        read is on disk. If the power fails before, the consumer ends too, and begins no item by this answer.
        """
        session, now_us = self.session(pointer), self._line.leases.now_us()
        others = started(self._line.others_wait(tr, now_us, None))
        turn, head = await read_turn(tr, self._line, pack(pointer.position), session, limit=1)
        if await others or turn is None or turn.notes.token != pointer.token:
            return False
        if not head.rows or head.rows[0].key < first or head.is_due(now_us):
            return False
        return turn.pointer.edits == edits and not (turn.record.is_stopped or turn.record.limit)

    async def is_live(self, tr: Transaction, pointer: Lease[Held], position: Position) -> bool:
        """Return whether a lease is live, and one of its session's items is there.

        *Conflicts:* none. *Cost:* three reads in parallel.
        """
        session = self.session(pointer)
        reading = tr.snapshot.get(session.layout.available.key(pack(position)))
        turn, _ = await read_turn(tr, self._line, pack(pointer.position), session, limit=0)
        value = await value_of(reading)
        return turn is not None and turn.notes.token == pointer.token and value.present()

    async def why_taken(self, tr: Transaction, pointer: Lease[Held], begun: Sequence[TurnItem]) -> str:
        """Return how a call by position took away the first of some items that the consumer has begun; "" if none did.

        *Conflicts:* none. *Cost:* up to five reads for each.
        """
        session = self.session(pointer)
        return await self.working.why_taken(tr, session, [one.packed for one in begun])

    async def item(
        self, db: Database, pointer: Lease[Held], row: KeyValue, state: bytes | None, progress: TurnProgress
    ) -> SessionLease[V]:
        """Return the lease of a further item.

        Raises:
            FormatError, CodecError: it can't be read.
        """
        layout = self.session(pointer).layout
        item = TurnItem(layout.position_of(row.key), layout.available.packed(row.key), row.value)
        held = Held(pointer.value.pointer, row, state)
        return await self.working.open(db, pointer, held, progress._replace(current=item))

    def encoded(self, result: object) -> Any:
        """Return the new state, encoded, in what a handler returned; `UNCHANGED` if there is none.

        Raises:
            CodecError, ValueError: the state can't be stored.
        """
        return self.working.states.encoded(result.value) if isinstance(result, NewState) else UNCHANGED

    async def settle(self, tr: Transaction, settlements: list[Settlement]) -> list[SettledTurn]:
        """Ack the finished items of several turns, and end the turns that are over."""
        moves = self._line.moves(tr)
        # Two slots of one session must see each other: the first of each looks together with the others.
        first = {one.pointer.value.pointer.name: at for at, one in reversed(list(enumerate(settlements)))}
        under_way = {at: started(self._look(tr, settlements[at])) for at in sorted(first.values())}
        outcomes = []
        for at, one in enumerate(settlements):
            settled = await self._settle(tr, moves, one, *await (under_way.get(at) or self._look(tr, one)))
            outcomes.append(settled)
        moves.finish()
        return outcomes

    def _look(self, tr: Transaction, one: Settlement) -> Steps[tuple[Turn | None, SessionHead]]:
        packed, session = pack(one.pointer.position), self.session(one.pointer)
        limit = 0 if one.pointer.value.pointer.slot else len(one.progress.done) + 1  # a slot looks for its next itself
        return read_turn(tr, self._line, packed, session, limit=limit)

    async def _settle(
        self, tr: Transaction, moves: PointerMoves, one: Settlement, turn: Turn | None, head: SessionHead
    ) -> SettledTurn:
        session, (done, current, _) = self.session(one.pointer), one.progress
        begun, count = one.progress.begun, len(done)
        if turn is None or turn.notes.token != one.pointer.token:
            return SettledTurn(live=False, reason=await self.why_taken(tr, one.pointer, begun))
        compared = await look_at_begun(tr, turn, one.progress, head)
        fenced, before = compared.changed is not None, min(compared.acked, count)
        reason = ""
        if compared.changed is not None:
            reason = await self.working.why_changed(tr, session, compared.changed.packed)
        found = compared.rows[: count - before]
        await self.working.remove_done(tr, session, done[before:], found)
        acked = before + len(found)
        pointer = replace(turn.pointer, used=turn.pointer.used + len(found))
        left = head.without({key for key, _ in found})
        if one.leaving is not None:
            now_us = self._line.leases.now_us()
            await self._line.slots.pass_on(tr, moves, turn, left, now_us=now_us, used=pointer.used, to=one.leaving)
        elif found:
            # If nothing was found, a verb of a later item has acked these, and noted that item. An item is noted only
            # as it is stored: from then on a call that changes it ends the lease.
            packed = pointer.current if fenced or current is None else current.packed
            self._line.note(tr, turn, replace(pointer, current=packed, acked=begun[acked - 1].packed))
        urgent = bool(current and left.rows and left.rows[0].key < session.layout.available.key(current.packed))
        edits, leaves = turn.pointer.edits, turn.record.is_stopped
        return SettledTurn(True, acked, fenced, urgent, edits, leaves, reason)
