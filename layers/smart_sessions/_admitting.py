"""The transaction of a smart enqueue into a session: as that of a smart queue, and the line stays right.

An item in progress is among its session's available items, and its session's pointer, or that of a slot, is leased for
it. To the checks it is a leased item. A decision conflicts with the lease that begins an item, and with the ack that
ends it, over that pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdbqueue.lowlevel import TAKEN, Standing, Steps, Transaction, pack, started, value_of

from ..leases.transitions import Transitions
from ..sessions.line.entering import SessionEntry
from ..sessions.line.line import Line
from ..sessions.operators.editing import SessionEditing
from ..sessions.session.records import SessionRecord
from ..sessions.session.session import Session, SessionMoves
from ..smart import Limit, Outcome
from ..smart.admitting import Admitting, EnqueueTerms, Rewritten, remedy
from ..smart.capacity import Capacity, Going
from ..smart.check_runner import CheckRunner, Incoming
from ..smart.index import SmartIndex
from ..smart.recipients import Recipients
from ..smart.scanning import Bounds, Found, Scan


class InProgress:
    """The items of a session that a worker has begun, as a transaction reads them.

    Args:
        record: the session's record; None: it has none, and so no item.
    """

    def __init__(self, tr: Transaction, line: Line, session: Session, record: SessionRecord | None) -> None:
        self._tr = tr
        self._line = line
        self._session = session
        self._record = record
        self._reading: Steps[dict[bytes, bytes]] | None = started(self._read())
        self.places: dict[bytes, bytes] = {}
        """The packed positions of their leased pointers, by their own ones; empty before `known`."""

    async def known(self) -> frozenset[bytes]:
        """Return their packed positions, by snapshot."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            self.places = await reading
        return frozenset(self.places)

    async def _read(self) -> dict[bytes, bytes]:
        record, line = self._record, self._line
        if record is None or record.generation != self._session.generation:
            return {}
        places = [record.pointer] if record.pointer else []
        if record.slots:
            entries = await line.slots.entries(self._tr.snapshot, self._session)
            places += [entry.place for entry in entries.values() if entry.current]
        leases = [(place, self._tr.snapshot.get(line.shards.at(place).leased.key(place))) for place in places]
        found = {}
        for place, reading in leases:
            leased = await value_of(reading)
            if leased.present() and (current := line.pointer(place, bytes(leased)).current):
                found[current] = place
        return found

    def depend(self, met: list[bytes]) -> None:
        """Conflict with a transaction that begins or ends one of these items, by their packed positions."""
        record = self._record
        if record is None:
            return
        self._tr.add_read_conflict_key(self._session.record_key)
        for place in ([record.pointer] if record.pointer else []) + list(self.places.values()):
            self._tr.add_read_conflict_key(self._line.shards.at(place).leased.key(place))
        if record.limit:
            for packed in met:
                self._tr.add_read_conflict_key(self._session.mark(packed))

    def disturb(self, packed: bytes) -> None:
        """Make a transaction that begins or ends this item conflict with this one."""
        record, shards = self._record, self._line.shards
        if record is None:
            return
        if record.limit:
            self._tr.add_write_conflict_key(self._session.mark(packed))
        elif record.pointer:
            key = shards.at(record.pointer).available.key(record.pointer)
            self._tr.add_write_conflict_key(key)
            self._tr.add_write_conflict_key(key + TAKEN)
        place = self.places.get(packed, b"" if record.limit else record.pointer)
        if place:
            self._tr.add_write_conflict_key(shards.at(place).leased.key(place))


class SessionScan(Scan):
    """Scans one session. Items in progress count as leased.

    Args:
        begun: the items in progress.
        capacity: is told which ones these are.
    """

    def __init__(self, *args: Any, begun: InProgress, capacity: Capacity) -> None:
        super().__init__(*args)
        self._begun = begun
        self._capacity = capacity

    @property
    def met(self) -> list[bytes]:
        """The packed positions of the items that were read."""
        return [found.packed for found in self._met]

    async def next_window(self) -> list[Found]:
        """Return the next items in queue order; none at the end."""
        window = await super().next_window()
        begun = self._capacity.begun = await self._begun.known()
        if not begun:
            return window
        return [found._replace(state="leased") if found.packed in begun else found for found in window]


class SessionAdmitting(Admitting):
    """Decides about one incoming item of one session, and enqueues it.

    Args:
        entry: the session.
        level: the level of the incoming item.
        limit: how many items the session may have.
    """

    def __init__(
        self,
        tr: Transaction,
        line: Line,
        entry: SessionEntry,
        *,
        level: int,
        check_runner: CheckRunner,
        limit: Limit | None,
        bounds: Bounds,
    ) -> None:
        session, record, self._last_index = entry
        index = SmartIndex(session.layout)
        capacity = Capacity(line.leases, index, limit, session.queue)
        super().__init__(session.queue, index, check_runner, capacity, Recipients(session.layout), bounds)
        self._home = session.home
        self._line = line
        self._session = session
        self._record = record
        self._level = level
        self._begun = InProgress(tr, line, session, record)
        self._changed: list[Standing] = []
        self._scanned: SessionScan | None = None

    async def admit(self, tr: Transaction, new: Incoming, terms: EnqueueTerms, now_us: int) -> Outcome:
        """Compare an incoming item with the items that its type sees, do what they decide, and see to the line."""
        outcome = await super().admit(tr, new, terms, now_us)
        met = self._scanned.met if self._scanned is not None else []
        by = None if outcome.by is None else pack(outcome.by)
        begun = self._capacity.begun
        if by is not None or self._changed or (begun and (outcome.full or not begun.isdisjoint(met))):
            self._begun.depend(met)
        if by is not None:
            self._begun.disturb(by)  # a layer may mark the item, for its completion
        if outcome.position is not None:
            moves = self._line.moves(tr)
            await self._line.arrived(tr, self._session, self._record, visible_at_us=terms.visible_at_us, moves=moves)
            moves.finish()
        editing = SessionEditing(self._line, self._session.name)
        for one in self._changed:
            await editing.see_to_the_line(tr, self._session, one, now_us)
        return outcome

    async def _next_index(self, tr: Transaction) -> int:
        return 1 + self._last_index

    def _rank(self, message: Any, headers: Mapping[str, Any] | None) -> int | None:
        return self._level

    def _scan(self, tr: Transaction, new: Incoming) -> Scan:
        spans = self._index.spans(new.type, new.key)
        self._scanned = SessionScan(
            *(tr, self._queue, spans, self._bounds, remedy(new.type)), begun=self._begun, capacity=self._capacity
        )
        return self._scanned

    def _moves(self, tr: Transaction, now_us: int) -> Transitions:
        return SessionMoves(tr, self._session, now_us)

    def _address(self, packed: bytes) -> bytes:
        return self._session.address(packed)

    def _remove(self, moves: Transitions, going: Going) -> None:
        super()._remove(moves, going)
        for item in (*going.expired, *going.deleted):
            self._changed.append(item._replace(state="available") if item.state == "leased" else item)

    def _rewrite(self, tr: Transaction, moves: Transitions, new: Rewritten) -> None:
        super()._rewrite(tr, moves, new)
        self._changed.append(new.by.standing)
