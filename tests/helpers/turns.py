"""A consumer's turn of a session, step by step, and calls by position that change its items meanwhile."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fdbqueue import Position
from fdbqueue.layers import NewState, SessionLease, Sessions
from fdbqueue.layers.consumer._turns import TurnHold
from fdbqueue.layers.sessions.session.lease import TurnItem
from fdbqueue.layers.sessions.workers.read_ahead import SettledTurn
from fdbqueue.lowlevel import KeyValue, pack, run

VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "cancel": ("cancel", {}),
    "update": ("update", {"value": -3}),
    "update with the same value": ("update", {"value": -50}),
    "update of headers": ("update", {"headers": {"n": 1}}),
    "reschedule": ("reschedule", {"delay": 1_000}),
    "reschedule at once": ("reschedule", {"delay": 0}),
    "another level": ("reschedule", {"level": 0}),
}


def edit(sessions: Sessions[int], tr: Any, how: str, position: Position) -> Any:
    verb, terms = VERBS[how]
    return getattr(sessions, verb)(tr, "ann", position, **terms)


@dataclass
class Hand:
    """A consumer's turn of the session "ann", step by step: it adds each item to the session's state."""

    db: Any
    sessions: Sessions[int]
    hold: TurnHold = field(init=False)
    lease: SessionLease[int] | None = field(init=False)
    ahead: deque[KeyValue] = field(default_factory=deque)
    state: Any = None
    stored: bytes = b""

    def __post_init__(self) -> None:
        pointer: Any = self.sessions.staged.lease(self.db)
        assert pointer is not None
        self.hold = TurnHold(pointer)
        self.lease = run(self.sessions.turns.working.opened(self.db, pointer))
        assert self.lease is not None
        self.state = self.lease.state
        self._begun(TurnItem(self.lease.position, pack(self.lease.position)))

    def _begun(self, item: TurnItem | None) -> None:
        self.hold.progress = self.hold.progress._replace(current=item)

    def look(self, limit: int = 9) -> None:
        """Read items ahead."""
        progress, turns = self.hold.progress, self.sessions.turns
        done = progress._replace(current=None)
        found = run(
            self.sessions.queue.read(self.db, lambda tr: turns.look(tr, self.hold.lease, progress=done, limit=limit))
        )
        assert found is not None
        # As far as the item in progress, which is not done, is not read again.
        current = b"" if progress.current is None else progress.current.packed
        available = self.sessions.line.session(self.hold.lease.value.pointer.name).layout.available
        self.ahead = deque(row for row in found.rows if row.key != available.key(current))

    def finish(self) -> None:
        """The handler of the item in progress returns a new state."""
        assert self.lease is not None
        self.state = (self.state or 0) + self.lease.value
        encoded = self.sessions.turns.encoded(NewState(self.state))
        self.hold.add(TurnItem(self.lease.position, pack(self.lease.position), self.stored, encoded))
        self.lease = None

    def begin(self) -> SessionLease[int]:
        """Begin the next item that was read ahead."""
        row = self.ahead.popleft()
        turns, state = self.sessions.turns, self.sessions.turns.encoded(NewState(self.state))
        self.lease = lease = run(turns.item(self.db, self.hold.lease, row, state, self.hold.progress))
        self.stored = row.value
        self._begun(TurnItem(lease.position, pack(lease.position), row.value))
        return lease

    def settle(self, tr: Any = None) -> SettledTurn:
        """Ack what is done."""
        settlement, turns = self.hold.to_settle(), self.sessions.turns
        if tr is not None:
            return run(turns.settle(tr, [settlement]))[0]
        [settled] = run(self.sessions.queue.transact(self.db, lambda tr: turns.settle(tr, [settlement])))
        if settled.acked:
            self.hold.last_acked = settlement.progress.done[settled.acked - 1]
            self.hold.note_acked(self.hold.last_acked)
        return settled

    def leave(self) -> SettledTurn:
        self._begun(None)
        self.hold.leaving = "place"
        return self.settle()
