"""Turns of a consumer: it reads several items of a session ahead, and acks them in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from msgspec.structs import replace

from fdbqueue import Position
from fdbqueue.lowlevel import UNCHANGED, Database, KeyValue, Steps, Transaction, V, pack, started

from ..leases._done import FollowUp
from ..leases._lease import Lease
from ..leases._transitions import Transitions
from ._lease import Behind, SessionLease
from ._line import Line, Where
from ._records import Held
from ._slots import is_out
from ._turn import Turn, read_turn
from ._working import Working, remove, rows_at


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
class Done:
    """An item whose handler has returned."""

    position: Position
    state: Any
    """The session's new state, encoded; `UNCHANGED`: none."""
    result: bytes = b""
    """The encoded result, for the item's completion."""
    stored: bytes = b""
    """The stored item as the consumer read it ahead; b"": it was leased."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next items of a session that a consumer has leased."""

    rows: list[KeyValue]
    state: bytes | None
    """The session's stored state."""
    others: bool
    """Whether another session is ready, or a delayed item of this one."""
    leaves: bool
    """Whether the session was paused or blocked, or a limit that was lowered stops it."""
    edits: int
    """How many calls had changed waiting items by their positions."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of a turn, to be written."""

    pointer: Lease[Held]
    done: list[Done]
    current: bytes
    """The packed position of the item that is in progress now; b"": none."""
    leaving: Where | None
    """Where the session goes; None: its turn goes on."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of writing a settlement."""

    live: bool
    """Whether the lease was live. If not, nothing was written."""
    urgent: bool = False
    """Whether a more urgent item waits than the one in progress."""
    edits: int = 0
    """How many calls have changed waiting items by their positions."""
    leaves: bool = False
    """Whether the session was paused or blocked."""


class Turns(Generic[V]):
    """Turns of the sessions of one queue.

    Args:
        line: the line of ready sessions.
        working: the transactions of workers.
    """

    def __init__(self, line: Line, working: Working[V]) -> None:
        self._line = line
        self._working = working

    def begin(self, db: Database, pointer: Lease[Held]) -> Steps[SessionLease[V] | None]:
        """Return the lease of a session's first item; None if it has none.

        Raises:
            FormatError, CodecError: the item can't be read, and the session is blocked.
        """
        return (yield from self._working.opened(db, pointer))

    def quota(self, lease: SessionLease[V]) -> int:
        """Return how many items the session's turn has.

        Raises:
            ValueError: the function `weights` raised, or returned no weight.
        """
        return self._line.quota(lease.session)

    def block(self, db: Database, pointer: Lease[Held], reason: str) -> Steps[None]:
        """Block a leased session, of whose turn no item has begun."""
        yield from self._working.block(db, pointer, reason)

    def key(self, pointer: Lease[Held], done: Done) -> bytes:
        """Return the key of an item that is done."""
        held = pointer.value.pointer
        return self._line.session(held.name, held.generation).layout.available.key(pack(done.position))

    def look(self, tr: Transaction, pointer: Lease[Held], *, done: list[Done], limit: int) -> Steps[Ahead | None]:
        """Read the next items of a leased session; None if the lease is lost. It writes nothing."""
        held = pointer.value.pointer
        session = self._line.session(held.name, held.generation)
        stated = tr.snapshot.get(session.state_key)
        now_us = self._line.leases.now_us()
        others = started(self._line.others_wait(tr, now_us, None))
        turn, head = yield from read_turn(tr, self._line, pack(pointer.position), session, limit=limit + len(done))
        wait = yield from others
        state = yield stated
        if turn is None or turn.notes.token != pointer.token:
            return None
        left = head.without({session.layout.available.key(pack(one.position)) for one in done}).rows[:limit]
        # The next lease of the session removes an item whose life is over, or whose group was cancelled.
        over = len(left)
        for at, row in enumerate(left):
            # Of a session with slots, another slot may take the next item.
            if turn.record.limit or (yield from is_out(tr, session, row, now_us)):
                over = at
                break
        leaves = _is_stopped(turn)
        if turn.pointer.slot and not leaves:
            leaves = turn.record.slots > turn.record.limit
            leaves = leaves or (yield from self._line.slots.gates.is_over(tr, turn.record.gates))
        wait = wait or (yield from self._line.slots.gates.others_wait(tr, turn.record.gates))
        others_wait = wait or head.is_due(now_us)
        return Ahead(left[:over], bytes(state) if state.present() else None, others_wait, leaves, turn.pointer.edits)

    def item(
        self, db: Database, pointer: Lease[Held], row: KeyValue, state: bytes | None, behind: Behind
    ) -> Steps[SessionLease[V]]:
        """Return the lease of a further item.

        Raises:
            FormatError, CodecError: it can't be read.
        """
        held = Held(pointer.value.pointer, row, state)
        return (yield from self._working.open(db, pointer, held, behind))

    def encoded(self, result: Any) -> Any:
        """Return the new state, encoded, in what a handler returned; `UNCHANGED` if there is none.

        Raises:
            CodecError, ValueError: the state can't be stored.
        """
        return self._working.encoded_state(result.value) if isinstance(result, NewState) else UNCHANGED

    def settle(self, tr: Transaction, settlements: list[Settlement]) -> Steps[list[Settled]]:
        """Ack the finished items of several turns, and end the turns that are over."""
        moves = self._line.moves(tr)
        # Two slots of one session must see each other: the first of each is done together with the others.
        first = {one.pointer.value.pointer.name: at for at, one in reversed(list(enumerate(settlements)))}
        under_way = {at: started(self._settle(tr, moves, settlements[at])) for at in sorted(first.values())}
        outcomes = []
        for at, one in enumerate(settlements):
            settled = yield from under_way.get(at) or self._settle(tr, moves, one)
            outcomes.append(settled)
        moves.finish()
        return outcomes

    def _settle(self, tr: Transaction, moves: Transitions, one: Settlement) -> Steps[Settled]:
        held = one.pointer.value.pointer
        session = self._line.session(held.name, held.generation)
        places = [pack(done.position) for done in one.done]
        packed = pack(one.pointer.position)
        limit = 0 if held.slot else len(places) + 1  # a slot looks for its next item itself
        reading = started(read_turn(tr, self._line, packed, session, limit=limit))
        seen = {place: done.stored for place, done in zip(places, one.done, strict=True)}
        turn, head = yield from reading
        if turn is None or turn.notes.token != one.pointer.token:
            return Settled(live=False)
        found = yield from rows_at(tr, session, places, seen, head)
        keys = {key for key, _ in found}
        results = dict(zip(places, (done.result for done in one.done), strict=True))
        yield from remove(tr, session, found, results, self._line.leases.now_us())
        # An item that is gone was acked by its handler, which also wrote the states of those before it.
        for done, place in zip(one.done, places, strict=True):
            if session.layout.available.key(place) in keys:
                self._working.write_state(tr, session, done.state)
        used = turn.pointer.used + len(found)
        left = head.without(keys)
        if one.leaving is not None:
            now_us = self._line.leases.now_us()
            yield from self._line.pass_on(tr, moves, turn, left, now_us=now_us, used=used, to=one.leaving)
        elif one.current and found:
            # If nothing was found, a verb of a later item has acked these, and noted that item.
            self._line.note(tr, turn, replace(turn.pointer, current=one.current, used=used))
        current = session.layout.available.key(one.current)
        urgent = bool(one.current and left.rows and left.rows[0].key < current)
        return Settled(live=True, urgent=urgent, edits=turn.pointer.edits, leaves=_is_stopped(turn))


def _is_stopped(turn: Turn) -> bool:
    """Return whether a turn must end after the item in progress."""
    return turn.record.paused or bool(turn.record.blocked)
