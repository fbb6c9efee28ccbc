"""The log of a queue with sessions, replayed: their items, and the pointers in the line of ready sessions."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from fdbqueue import Position
from fdbqueue.layers.oplog._records import Change, Record, place_of, session_place_of
from fdbqueue.layers.sessions.session.records import (
    GateRecord,
    Keys,
    SessionPointer,
    pointer_of,
    unpack_gate_record,
    unpack_record,
)
from fdbqueue.layers.sessions.session.records import SessionRecord as SessionRecord
from fdbqueue.layers.staged.requests import Wish
from fdbqueue.lowlevel import fdb_tuple
from fdbqueue.stored.items import Notes, notes_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.shapes import Due
from tests.chaos.replay import Replay, Standing, Step

ItemKey = tuple[bytes, int, Position]
"""The packed name of a session, its generation, and the position of an item."""


class Pointed(NamedTuple):
    """A pointer in the line."""

    state: str
    notes: Notes
    pointer: SessionPointer

    @property
    def token(self) -> bytes:
        """The token of the session's lease; b"" if it is not leased."""
        return self.notes.token if self.state == "leased" else b""


@dataclass(slots=True)
class SessionStep(Step):
    """What one record did to sessions."""

    items: dict[ItemKey, tuple[Standing | None, Standing | None]] = field(default_factory=dict)
    """The items that it touched: where they were, and where they are."""
    pointers: dict[Position, tuple[Pointed | None, Pointed | None]] = field(default_factory=dict)
    """The pointers that it touched."""


class SessionReplay(Replay):
    """A queue with sessions as the log tells it."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._line = Keys(layout).line
        self._line_prefix = self._line.prefix[len(layout.prefix) :]
        self.of_sessions: dict[ItemKey, dict[str, Standing]] = {}
        self.arrived: dict[ItemKey, int] = {}
        """The version at which each available item came to be available."""
        self.ready: dict[tuple[bytes, int], list[Position]] = {}
        """The available items of each session and generation, in their order."""
        self.pointers: dict[Position, dict[str, Pointed]] = {}
        self.ready_since: dict[Position, int] = {}
        """The version since which each pointer is available."""
        self._requests: dict[bytes, tuple[int, int | None]] = {}
        """How many sessions each request in the line wants, and the version at which it was removed."""
        self.records: dict[bytes, SessionRecord] = {}
        """The record of each session, by its packed name."""
        self.leased: dict[bytes, set[Position]] = {}
        """The leased pointers of each session."""
        self.gates: dict[bytes, GateRecord] = {}
        """The record of each gate, by its packed name."""
        self.gated: dict[bytes, dict[bytes, SessionPointer]] = {}
        """The pointers that wait at each gate, by their keys."""
        self._touched_items: dict[ItemKey, Standing | None] = {}
        self._touched_pointers: dict[Position, Pointed | None] = {}
        self._version = 0
        self._request_prefix = self._line_prefix + fdb_tuple.pack(("request",))
        gates = layout.space["gate"]
        self._gate_prefix, self._gated_prefix = (gates[name].key()[len(layout.prefix) :] for name in ("limit", "line"))
        self._record_prefix = layout.space["session"].key()[len(layout.prefix) :]

    def step(self, record: Record) -> SessionStep:
        """Apply a record."""
        self._touched_items, self._touched_pointers, self._version = {}, {}, record.version
        step = super().step(record)
        return SessionStep(
            record,
            step.before,
            step.after,
            step.twice,
            step.counts,
            step.served,
            step.grants,
            {key: (before, _only(self.of_sessions.get(key))) for key, before in self._touched_items.items()},
            {place: (before, _only(self.pointers.get(place))) for place, before in self._touched_pointers.items()},
        )

    def pointers_of(self, name: bytes) -> list[Position]:
        """Return the pointers of a session."""
        return [at for at, places in self.pointers.items() for one in places.values() if one.pointer.name == name]

    def line_requests(self, *, since: int) -> int:
        """Return how many sessions were wanted by the requests that were in the line at a version, or came later."""
        return sum(wanted for wanted, removed in self._requests.values() if removed is None or removed > since)

    def _set(self, change: Change, before: dict[Position, Standing | None]) -> None:
        super()._set(change, before)
        if change.key.startswith(self._line_prefix):
            self._set_pointer(change)
            return
        if change.key.startswith(self._record_prefix):
            self.records[change.key[len(self._record_prefix) :]] = unpack_record(self.layout, change.key, change.notes)
            return
        if change.key.startswith(self._gate_prefix):
            self.gates[change.key[len(self._gate_prefix) :]] = unpack_gate_record(self.layout, change.key, change.notes)
            return
        if change.key.startswith(self._gated_prefix):
            self.gated.setdefault(self._gate_of(change.key), {})[change.key] = pointer_of(change.notes)
            return
        found = session_place_of(change.key)
        if found is None:
            return
        name, generation, state, position = found
        key = name, generation, position
        self._touched_items.setdefault(key, _only(self.of_sessions.get(key)))
        places = self.of_sessions.setdefault(key, {})
        if state == "available" and state not in places:
            insort(self.ready.setdefault((name, generation), []), position)
            self.arrived[key] = self._version
        notes = msgspec.msgpack.decode(change.notes, type=Notes) if change.notes else Notes()
        places[state] = Standing(state, notes, change.content)

    def _clear(self, key: bytes, before: dict[Position, Standing | None]) -> None:
        was_there = key in self.values
        super()._clear(key, before)
        if not was_there:
            return
        if key.startswith(self._line_prefix):
            self._clear_pointer(key)
            return
        if key.startswith(self._record_prefix):
            del self.records[key[len(self._record_prefix) :]]
            return
        if key.startswith(self._gate_prefix):
            del self.gates[key[len(self._gate_prefix) :]]
            return
        if key.startswith(self._gated_prefix):
            del self.gated[self._gate_of(key)][key]
            return
        found = session_place_of(key)
        if found is None:
            return
        name, generation, state, position = found
        item = name, generation, position
        self._touched_items.setdefault(item, _only(self.of_sessions.get(item)))
        places = self.of_sessions[item]
        del places[state]
        if state == "available":
            self.ready[name, generation].remove(position)
            del self.arrived[item]
        if not places:
            del self.of_sessions[item]

    def _place_of(self, key: bytes) -> tuple[str, Position] | None:
        """Return the state and position in the key of a pointer. None for other keys."""
        return place_of(self._line, key[len(self._line_prefix) :])

    def _gate_of(self, key: bytes) -> bytes:
        gate: bytes = fdb_tuple.pack(fdb_tuple.unpack(key[len(self._gated_prefix) :])[:1])
        return gate

    def _set_pointer(self, change: Change) -> None:
        if change.key.startswith(self._request_prefix):
            wanted = msgspec.msgpack.decode(change.notes, type=Wish).wanted
            self._requests[change.key] = wanted, None
        found = self._place_of(change.key)
        if found is None:
            return
        state, position = found
        self._touched_pointers.setdefault(position, _only(self.pointers.get(position)))
        pointed = Pointed(state, notes_of(change.notes), pointer_of(change.notes))
        if state == "available":
            self.ready_since.setdefault(position, self._version)
        self.pointers.setdefault(position, {})[state] = pointed
        if state == "leased":
            self.leased.setdefault(pointed.pointer.name, set()).add(position)

    def _clear_pointer(self, key: bytes) -> None:
        if key in self._requests:
            self._requests[key] = self._requests[key][0], self._version
        line, rest = self._line, key[len(self._line_prefix) :]
        if (line.prefix + rest).startswith(line.timers.key()):
            timer = line.timer_of(line.prefix + rest)
            assert timer is not None
            at_us, _, kind = timer
            if kind == Due.GRANT:
                self._grants.append(at_us)
        found = self._place_of(key)
        if found is None:
            return
        state, position = found
        self._touched_pointers.setdefault(position, _only(self.pointers.get(position)))
        places = self.pointers[position]
        gone = places.pop(state)
        if state == "available":
            del self.ready_since[position]
        if state == "leased":
            self.leased[gone.pointer.name].discard(position)
        if not places:
            del self.pointers[position]


def _only(places: dict[str, Any] | None) -> Any:
    return next(iter(places.values())) if places else None
