"""The verbs for single items of sessions: get, cancel, update and reschedule them by their positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from fdbqueue import Position, Queue
from fdbqueue.lowlevel import UNCHANGED, Database, Editing, Steps, Transaction, V, verb
from fdbqueue.verbs.by_position import in_batches, packed_position, packed_positions, reschedule_of, update_of
from fdbqueue.verbs.editing import ItemChange, Unchanged

from ...leases import StoredItem
from ..line.line import Line
from ..session.records import SessionName, pack_name
from .editing import SessionEditing

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
        places = [packed_position(position, "get")]
        return (await in_batches(self.queue, tr, places, self._at(session, places).get, reads=True))[0]

    @verb
    async def get_many(
        self, tr: Transaction | Database, session: SessionName, positions: Iterable[Position]
    ) -> list[StoredItem[V] | None]:
        """Return the items at positions of a session, in their order; otherwise as `get`, for each."""
        places = packed_positions(positions, "get_many")
        return await in_batches(self.queue, tr, places, self._at(session, places).get, reads=True)

    @verb
    async def cancel(self, tr: Transaction | Database, session: SessionName, position: Position) -> bool:
        """Remove the item at a position of a session, whatever its state. Return whether it was there.

        If it is in progress, the lease of its session ends: the worker's next call raises `LeaseLost`, and the session
        goes on with its next item. A consumer may have begun it ahead of its acks. Then its ack, result, follow-ups and
        state are refused, and so are those of all items that the consumer has begun behind it. These run again.
        Otherwise as `Queue.cancel`.

        *Conflicts:* as `pause`. *Cost:* about ten reads and writes.
        """
        return (await self._cancel_at(tr, session, [packed_position(position, "cancel")]))[0]

    @verb
    async def cancel_many(
        self, tr: Transaction | Database, session: SessionName, positions: Iterable[Position]
    ) -> list[bool]:
        """Remove the items at positions of a session. Return for each whether it was there; otherwise as `cancel`.

        It returns False for a position that is given again.
        """
        return await self._cancel_at(tr, session, packed_positions(positions, "cancel_many"))

    @verb
    async def update(
        self,
        tr: Transaction | Database,
        session: SessionName,
        position: Position,
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
    ) -> Position | None:
        """Give the item at a position of a session another value, or other headers. Return its position, or None.

        If it is in progress, or a consumer has begun it ahead of its acks, its work is refused as by `cancel`, and it
        runs again with the new value. In smart sessions it refuses a new value. Otherwise as `Queue.update`.

        *Conflicts:* and *Cost:* as `cancel`.
        """
        change = update_of(self.editing(), value, headers)
        return (await self._change(tr, session, [packed_position(position, "update")], change, None))[0]

    @verb
    async def update_many(
        self,
        tr: Transaction | Database,
        session: SessionName,
        positions: Iterable[Position],
        *,
        value: V | Unchanged = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
    ) -> list[Position | None]:
        """Give the items at positions of a session the same new value, or the same headers; otherwise as `update`."""
        change = update_of(self.editing(), value, headers)
        return await self._change(tr, session, packed_positions(positions, "update_many"), change, None)

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
        return (await self._change(tr, session, [packed_position(position, "reschedule")], change, level))[0]

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
        return await self._change(tr, session, packed_positions(positions, "reschedule_many"), change, level)

    def level_of(self, level: int | None) -> int:
        """Return a level of these sessions; the last one for None.

        Raises:
            ValueError: there is no such level.
        """
        rank = self.levels - 1 if level is None else level
        if type(rank) is not int or not 0 <= rank < self.levels:
            raise ValueError(f"A level of these sessions is an integer from 0 to {self.levels - 1}, not {level!r}.")
        return rank

    def _at(self, session: SessionName, places: list[bytes], level: int | None = None) -> SessionEditing:
        editing = SessionEditing(self.line, pack_name(session), level=level)
        editing.check(places)
        return editing

    def _cancel_at(self, tr: Transaction | Database, session: SessionName, places: list[bytes]) -> Steps[list[bool]]:
        return in_batches(self.queue, tr, places, self._at(session, places).cancel, again=False)

    def _change(
        self,
        tr: Transaction | Database,
        session: SessionName,
        places: list[bytes],
        change: ItemChange,
        level: int | None,
    ) -> Steps[list[Position | None]]:
        return in_batches(self.queue, tr, places, partial(self._at(session, places, level).change, change=change))

    def _rescheduled(self, delay: float | None, at: float | None, level: int | None) -> ItemChange:
        self.level_of(level)
        if level is not None and delay is None and at is None:
            return self.editing().changed("rescheduled")
        return reschedule_of(self.editing(), delay, at, None)
