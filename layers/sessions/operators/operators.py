"""The verbs of operators: look at sessions, pause them, remove them, deal with their dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from fdbqueue import CheckReport, Position, Queue
from fdbqueue.base.deprecation import ALL, Everything, tell_of_none
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import (
    Browser,
    Database,
    KeyValue,
    Layout,
    Place,
    Steps,
    Transaction,
    V,
    check_limit,
    only_transaction,
    rows,
    value_of,
    verb,
)
from fdbqueue.stored.looks import refuse_others_keys
from fdbqueue.writes.appending import clear_keys

from ...leases import ReclaimReport, State, StoredItem
from ...leases.browsing import OnBad, check_on_bad, dead_positions, opened, or_unreadable
from ..line.line import Line
from ..line.tracking import named_by
from ..reading.check import check_sessions
from ..reading.listing import STATUSES, Listing, SessionInfo, SessionStats, Status
from ..session.lease import SessionRef
from ..session.records import (
    RENEWING,
    GateInfo,
    SessionName,
    check_concurrency,
    check_gate_limit,
    deprecated_shards,
    pack_gate,
    pack_name,
)
from ..workers.working import Working
from .changes import Later, Operating
from .editing import Items

T = TypeVar("T")
ITEMS_AT_ONCE = 100
_MOST_ROWS = 1 << 30
"""The limit of a range read is a number of 32 bits."""


class Operators(Items[V]):
    """The verbs of `Sessions` for operators and monitoring."""

    _working: Working[V]

    @verb
    async def pause(self, tr: Transaction | Database, session: SessionName) -> None:
        """Do no more items of a session, until `resume`. The item in progress ends as usual.

        A consumer that has read items ahead begins none of them later than a second after this is committed.

        Raises:
            NestedQueue: as `Queue.pause`. So do all verbs here that write.

        *Conflicts:* with enqueues into this session, and with a transaction that leases, acks or gives it back. *Cost:*
        a few reads and writes.
        """
        await self._write(tr, session, Operating(self.line).pause)

    @verb
    async def resume(self, tr: Transaction | Database, session: SessionName) -> None:
        """End a pause: the session goes to the end of the line. Mend what is stored of the session, if it is damaged.

        A record, a slot or a pointer that can't be read or is missing is written again from what is stored of the
        session. Its items, its state and leases of live workers stay. If the record is lost, so are a pause, a block
        and a number that `set_concurrency` has set.

        Raises:
            FormatError: a newer version of the library wrote one of them; or the session may have gates, and these
                sessions know none.

        *Conflicts:* and *Cost:* as `pause`; three reads more for each pointer of the session. If something of it is
        damaged, it reads the lines of all sessions, and conflicts with what moves one of the session's pointers.
        """
        await self._write(tr, session, Operating(self.line).resume)

    @verb
    async def set_concurrency(self, tr: Transaction | Database, session: SessionName, concurrency: int | None) -> None:
        """Set how many items of a session run at once. They begin in order. The setting stays until it is changed.

        More: the session's waiting items are ready at once. Fewer: items in progress end as usual, and no further one
        begins until there are fewer than the new number. A session that is strictly serial first ends its present turn.

        Args:
            tr: a transaction, or a database.
            session: its name. It need not have items.
            concurrency: 1 to 256; None: as many as these sessions have by default, and forget the setting.

        Raises:
            NestedQueue: as `Queue.pause`.

        *Conflicts:* as `pause`; with fewer items than the number, also with enqueues into this session. *Cost:* a few
        reads, and two writes for each item that becomes ready.
        """
        if concurrency is not None:
            check_concurrency(concurrency)
        await self._write(tr, session, Operating(self.line).set_concurrency, limit=concurrency)

    @verb
    async def set_limit(self, tr: Transaction | Database, gate: SessionName, limit: int | None) -> None:
        """Set how many items run at once that need a slot of a gate. The setting stays until it is changed.

        More: items that wait at the gate go on at once. Fewer: items in progress end as usual, and no further one
        begins until fewer than the new number run. A session that is ready for a worker waits, too.

        Args:
            tr: a transaction, or a database. A database uses transactions of 100 items that go on, one after the other.
            gate: its name. No item need have needed it yet.
            limit: 0 to 1,000,000; None: that of the function `gates`, and forget the setting.

        Raises:
            NestedQueue: as `Queue.pause`.

        *Conflicts:* with every transaction that takes or gives back a slot of this gate, or gives one to a waiting
        item. *Cost:* a few reads and writes, and about four reads and six writes for each item that goes on.
        """
        if limit is not None:
            check_gate_limit(limit)
        body = partial(self.line.slots.gates.set_limit, gate=pack_gate(gate), limit=limit, most=ITEMS_AT_ONCE)
        while await self.queue.transact(tr, body):
            pass

    @verb
    async def set_shards(self, tr: Transaction | Database, shards: int) -> None:
        """Deprecated: all ready sessions are in one line. It joins the shards that an earlier version has made.

        *Conflicts:* and *Cost:* as `reclaim`, if there are any.
        """
        deprecated_shards(shards, "Sessions.set_shards")
        await self.queue.transact(tr, self.line.join)

    @verb
    async def gate(self, tr: Transaction | Database, gate: SessionName) -> GateInfo | None:
        """Describe a gate; None if none of its slots is taken, no item waits for one, and no limit was set.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads in parallel.
        """
        return await self.queue.read(tr, partial(Listing(self.line).gate, gate=pack_gate(gate)))

    def gates(
        self, tr: Transaction | Database, *, after: SessionName | None = None, limit: int | None = None
    ) -> Browser[GateInfo]:
        """Iterate over the gates in use, and those whose limit was set, by their names, lazily.

        Args:
            tr: a transaction, or a database. A database reads each gate in a transaction of its own.
            after: only gates behind this name.
            limit: the maximum number; None: all.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads in parallel for each gate.
        """
        begin = b"" if after is None else self.line.keys.gate(pack_gate(after)) + b"\x00"
        return Listing(self.line).browse_gates(tr, begin=begin, limit=limit)

    @verb
    async def remove(self, tr: Transaction | Database, session: SessionName, *, later: Later = "refuse") -> None:
        """Remove a session when all its present items are done, with its state and its dead letters.

        `info` returns None when it is gone. A paused or blocked session has to be resumed or skipped first. A
        damaged one is mended, as by `resume`.

        Args:
            tr: a transaction, or a database.
            session: its name.
            later: how to treat items that are enqueued until it is gone. "refuse": raise `SessionClosed`. "renew":
                keep them, and begin the session again with them, without a state.

        Raises:
            NestedQueue: as `Queue.pause`.

        *Conflicts:* and *Cost:* as `resume`.
        """
        if later not in ("refuse", "renew"):
            raise ValueError(f"later is 'refuse' or 'renew', not {later!r}.")
        await self._write(tr, session, Operating(self.line).remove, later=later)

    @verb
    async def skip(self, tr: Transaction | Database, session: SessionName) -> bool:
        """Unblock a session. The item that blocked it stays a dead letter.

        Returns whether it was blocked. *Conflicts:* and *Cost:* as `pause`.
        """
        return await self._write(tr, session, Operating(self.line).skip)

    @verb
    def redrive(
        self,
        tr: Transaction | Database,
        session: SessionName,
        position: Position | Iterable[Position] | Everything = ALL,
        *,
        limit: int = ITEMS_AT_ONCE,
    ) -> Steps[int]:
        """Put dead letters back into their places, with no attempts counted. Return how many.

        A session that was blocked goes on with them. Dead letters that can't be read stay.

        Args:
            tr: a transaction, or a database.
            session: the session's name.
            position: only this one, or these; without it, the first ones.
            limit: the maximum number, in one transaction.

        *Conflicts:* as `pause`, and with a transaction that redrives or purges the same ones. *Cost:* one read and two
        writes each.
        """
        tell_of_none(position, "the position of Sessions.redrive")
        limit, wanted = _checked(limit, "dead letters"), self._wanted(session, position)
        return self._write(tr, session, Operating(self.line).redrive, positions=wanted, limit=limit)

    @verb
    def purge(
        self,
        tr: Transaction | Database,
        session: SessionName,
        position: Position | Iterable[Position] | Everything = ALL,
        *,
        limit: int = ITEMS_AT_ONCE,
    ) -> Steps[int]:
        """Remove dead letters for good, also those that can't be read. Return how many.

        Arguments, *Conflicts* and *Cost:* as `redrive`.
        """
        tell_of_none(position, "the position of Sessions.purge")
        limit, wanted = _checked(limit, "dead letters"), self._wanted(session, position)
        return self._write(tr, session, Operating(self.line).purge, positions=wanted, limit=limit)

    def _write(
        self, tr: Transaction | Database, session: SessionName, body: Callable[..., Steps[T]], **terms: object
    ) -> Steps[T]:
        return self.queue.transact(tr, partial(body, name=pack_name(session), **terms))

    def _wanted(
        self, session: SessionName, position: Position | Iterable[Position] | Everything | None
    ) -> list[Position] | None:
        """Return the positions of dead letters, or their addresses, as positions in their session."""
        if isinstance(position, Everything | None):
            return None
        wanted = dead_positions(position)
        layout, name = self.line.layout, pack_name(session)
        return [layout.position_of(layout.available.key(named_by(self.line, one, name)[1])) for one in wanted]

    @verb
    async def scheduled(
        self,
        tr: Transaction | Database,
        session: SessionName,
        *,
        limit: int = ITEMS_AT_ONCE,
        on_bad: OnBad = "fail",
    ) -> list[StoredItem[V]]:
        """Return the first items that wait in a session, in their order: urgent ones first.

        The item in progress does not wait. Delayed items come behind the available ones, in the order of their places.

        Args:
            on_bad: an item that can't be read: "fail" raises its error; "null" shows it without its value.

        *Conflicts:* none, it reads by snapshot. *Cost:* three reads.
        """
        limit = _checked(limit, "items")
        check_on_bad(on_bad)
        body = partial(_scheduled, line=self.line, name=pack_name(session), limit=limit, on_bad=on_bad)
        return await self.queue.read(tr, body)

    @verb
    async def dead(
        self,
        tr: Transaction | Database,
        session: SessionName,
        *,
        limit: int = ITEMS_AT_ONCE,
        on_bad: OnBad = "fail",
    ) -> list[StoredItem[V]]:
        """Return the first dead letters of a session, in the order of their places.

        Args:
            on_bad: a dead letter that can't be read: "fail" raises its error; "null" shows it without its value, and
                goes on. `purge` removes it.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads.
        """
        limit = _checked(limit, "items")
        check_on_bad(on_bad)
        name = pack_name(session)

        async def body(tr: Transaction) -> list[StoredItem[V]]:
            own, _ = await Operating(self.line).read(tr.snapshot, name)
            place = own.layout.dead
            found = await rows(tr.snapshot, place.begin, place.end, limit=limit)
            dead = []
            for row in found:
                item = await _shown(tr, own.queue, place, row, "dead", on_bad)
                dead.append(item)
            return dead

        return await self.queue.read(tr, body)

    def list(
        self,
        tr: Transaction | Database,
        *,
        status: Status | None = None,
        after: SessionName | None = None,
        limit: int | None = None,
    ) -> Browser[SessionInfo]:
        """Iterate over the sessions that have items, dead letters, or a pause, by their names, lazily.

        Args:
            tr: a transaction, or a database. A database reads each session in a transaction of its own.
            status: only sessions of this status; "paused": also those that are busy or blocked meanwhile.
            after: only sessions behind this name.
            limit: the maximum number; None: all.

        *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel for each session.
        """
        if status is not None and status not in STATUSES:
            raise ValueError(f"status is one of {', '.join(map(repr, STATUSES))}, not {status!r}.")
        begin = b"" if after is None else self.line.keys.guard(pack_name(after))
        return Listing(self.line).browse(tr, status=status, begin=begin, limit=limit)

    @verb
    async def info(self, tr: Transaction | Database, session: SessionName) -> SessionInfo | None:
        """Describe one session; None if it has no item, no dead letter and no pause.

        *Conflicts:* none, it reads by snapshot. *Cost:* five reads, four of them in parallel.
        """
        return await self.queue.read(tr, partial(Listing(self.line).info, name=pack_name(session)))

    @verb
    async def stats(self, tr: Transaction | Database) -> SessionStats:
        """Return the numbers of sessions and items.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads in parallel; it does not grow with the sessions.
        """
        return await self.queue.read(tr, Listing(self.line).stats)

    async def stored_at(
        self, tr: Transaction, item: SessionRef | Position, session: SessionName | None
    ) -> tuple[Layout, bytes]:
        """Return the layout of an item's keys and its stored bytes; for layers.

        Args:
            item: a live lease, or its handle; or a position, in any state.
            session: the session of a position; None: the position is an address, as that of a completion.

        Raises:
            LeaseLost: the lease is not live.
            LookupError: there is no such item.
            TypeError: an argument is of a wrong kind.
        """
        only_transaction(tr, "Sessions.stored_at")
        if not isinstance(item, Position):
            return await self._working.held(tr, item)
        named, packed = named_by(self.line, item, None if session is None else pack_name(session))
        if named is not None or session is None:
            found = [] if named is None else [named]
        else:
            own, record = await Operating(self.line).read(tr, pack_name(session))
            found = [own]
            if record is not None and record.closing == RENEWING:
                found.append(self.line.session(own.name, own.generation + 1))
        for one in found:
            for place in (one.layout.available, one.layout.delayed, one.layout.dead):
                value = await value_of(tr.get(place.key(packed)))
                if value.present():
                    return one.layout, bytes(value)
        raise LookupError(f"There is no item {item.text} in the sessions of {self.queue!r} any more.")

    def check_named(self, position: Position, session: SessionName | None) -> None:
        """Raise if it is not known in which session an item is; for layers.

        Raises:
            TypeError: it is not. ValueError: the position is the address of an item of another session, or of none.
        """
        if not isinstance(position, Position):
            raise TypeError(f"An item of a session is named by its Position, not by {position!r}.")
        name = None if session is None else pack_name(session)
        if name is None and position.rank is not None:
            raise TypeError(
                f"{position.text} does not say in which session the item is: give session= too, or its lease."
            )
        named_by(self.line, position, name)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the sessions own and compare: items, timers, counters, records, the line.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads all of it, a page at a time; memory for the sessions.
        """
        return blocking(lambda: check_sessions(tr, self.line))

    @verb
    async def reclaim(self, tr: Transaction | Database, *, limit: int = 500) -> ReclaimReport:
        """Give back sessions whose lease has expired, and wake those whose delay is over, up to `limit`.

        Every lease does this first. Use it, or a `Watchdog`, for monitoring. The report names the session and the item
        of an expired lease. For a delay it names the pointer in the line.

        *Conflicts:* and *Cost:* as `Leases.reclaim`.
        """
        return await self.line.leases.reclaim.steps(tr, limit=limit)

    @verb
    async def clear(self, tr: Transaction | Database) -> None:
        """Remove all sessions with their items, dead letters and states, and the limits of gates. The queue's plain
        items stay.

        Raises:
            NestedQueue: as `Queue.clear`.

        *Conflicts:* with every transaction that reads a session. *Cost:* eight writes; reads as `Queue.clear`.
        """

        async def body(tr: Transaction) -> None:
            await refuse_others_keys(tr, self.queue.layout, clears=True)
            clear_keys(tr, self.line.queue.layout)
            self.line.keys.clear(tr)

        await self.queue.read(tr, body)


async def _shown(
    tr: Transaction, queue: Queue[Any], place: Place, row: KeyValue, state: State, on_bad: OnBad
) -> StoredItem[Any]:
    position = place.position(row.key)  # first: a foreign key has none, and nothing would await the steps
    found = opened(tr, queue, place, row, state)
    return await (found if on_bad == "fail" else or_unreadable(found, position, row.value, state))


async def _scheduled(tr: Transaction, line: Line, name: bytes, limit: int, on_bad: OnBad) -> list[StoredItem[Any]]:
    session, record = await Operating(line).read(tr.snapshot, name)
    places_in_line = [one.place for one in (await line.slots.pointers(tr.snapshot, session, record)).values()]
    current = set()
    leasing = [(packed, tr.snapshot.get(line.layout.leased.key(packed))) for packed in places_in_line]
    for packed, read in leasing:
        leased = await value_of(read)
        if leased.present():
            current.add(line.pointer(packed, bytes(leased)).current)
    places: list[tuple[State, Place]] = [
        ("available", session.layout.available),
        ("delayed", session.layout.delayed),
    ]
    waiting: list[StoredItem[Any]] = []
    for state, place in places:
        found = await rows(tr.snapshot, place.begin, place.end, limit=limit + len(current))
        for row in found:
            if len(waiting) < limit and place.packed(row.key) not in current:
                item = await _shown(tr, session.queue, place, row, state, on_bad)
                waiting.append(item)
    return waiting


def _checked(limit: int, what: str) -> int:
    """Return a checked limit, as much of it as the client takes, which is more than a transaction can read."""
    check_limit(limit, what)
    return min(limit, _MOST_ROWS)
