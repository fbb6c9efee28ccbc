"""`SmartSessions`: the verbs of sessions whose waiting items decide about incoming ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from msgspec.structs import asdict

from fdbqueue import CheckReport
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import (
    TAKEN,
    Database,
    Editing,
    Named,
    Standing,
    Steps,
    Transaction,
    check_values,
    pack,
    started,
    value_of,
    verb,
)

from ..leases.done import EnqueuesInSessions
from ..leases.transitions import Transitions
from ..sessions import Sessions
from ..sessions.line.line import Line, SessionEntry, enter_session, enter_sessions, generation_to_enter
from ..sessions.operators.editing import SessionEditing
from ..sessions.reading.check import check_sessions
from ..sessions.session.records import SessionName, SessionRecord, pack_name
from ..sessions.session.session import Session, SessionMoves
from ..smart import Limit, Messages, Outcome
from ..smart.admitting import Admitting, EnqueueTerms, Rewritten, SmartBatches, enqueue_terms
from ..smart.capacity import Capacity, Going, check_waiting, until_room
from ..smart.check_runner import CheckRunner, CheckTerms, Incoming
from ..smart.scanning import FoundItem, Scan, SmartIndex
from ..smart.smart import CHECK_SECONDS, MAX_SCAN_BYTES, MAX_SCAN_ITEMS, IndexCheck
from ..smart.types import Message

# The transaction of a smart enqueue into a session: as that of a smart queue, and the line stays right.
#
# An item in progress is among its session's available items, and its session's pointer, or that of a slot, is leased
# for it. To the checks it is a leased item. A decision conflicts with the lease that begins an item, and with the ack
# that ends it, over that pointer.


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
        leases = [(place, self._tr.snapshot.get(line.layout.leased.key(place))) for place in places]
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
            self._tr.add_read_conflict_key(self._line.layout.leased.key(place))
        if record.limit:
            for packed in met:
                self._tr.add_read_conflict_key(self._session.conflict_key(packed))

    def disturb(self, packed: bytes) -> None:
        """Make a transaction that begins or ends this item conflict with this one."""
        record, line = self._record, self._line.layout
        if record is None:
            return
        if record.limit:
            self._tr.add_write_conflict_key(self._session.conflict_key(packed))
        elif record.pointer:
            key = line.available.key(record.pointer)
            self._tr.add_write_conflict_key(key)
            self._tr.add_write_conflict_key(key + TAKEN)
        place = self.places.get(packed, b"" if record.limit else record.pointer)
        if place:
            self._tr.add_write_conflict_key(line.leased.key(place))


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

    async def next_window(self) -> list[FoundItem]:
        """Return the next items in queue order; none at the end."""
        window = await super().next_window()
        begun = self._capacity.begun = await self._begun.known()
        if not begun:
            return window
        return [
            FoundItem(one.packed, "leased", one.stored, one.opened, one.payload) if one.packed in begun else one
            for one in window
        ]


class SessionAdmitting(Admitting):
    """Decides about one incoming item of one session, and enqueues it.

    Args:
        entry: the session.
        level: the level of the incoming item.
        check_runner: asks the waiting items.
    """

    def __init__(
        self,
        tr: Transaction,
        line: Line,
        entry: SessionEntry,
        *,
        level: int,
        check_runner: CheckRunner,
    ) -> None:
        session, record, self._last_index = entry
        super().__init__(session.queue, line.leases, check_runner)
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
        begun = self.capacity.begun
        if by is not None or self._changed or (begun and (outcome.full or not begun.isdisjoint(met))):
            self._begun.depend(met)
        if by is not None:
            self._begun.disturb(by)  # a layer may mark the item, for its completion
        if outcome.position is not None:
            moves = self._line.moves(tr)
            await self._line.slots.arrived(
                tr, self._session, self._record, visible_at_us=terms.visible_at_us, moves=moves
            )
            moves.finish()
        editing = SessionEditing(self._line, self._session.name)
        for one in self._changed:
            await editing.see_to_the_line(tr, self._session, one, now_us)
        return outcome

    async def _ask_to_enter(self, tr: Transaction) -> Callable[[], int]:
        return lambda: 1 + self._last_index

    def _rank(self, message: Message, headers: Mapping[str, object] | None) -> int | None:
        return self._level

    def _scan(self, tr: Transaction, new: Incoming) -> Scan:
        self._scanned = SessionScan(
            *(tr, self._queue, self.index, new.type, new.key, self.check_runner.terms.bounds),
            begun=self._begun,
            capacity=self.capacity,
        )
        return self._scanned

    def _moves(self, tr: Transaction, now_us: int) -> Transitions:
        return SessionMoves(tr, self._session, now_us)

    def _address(self, packed: bytes) -> bytes:
        return self._session.address(packed)

    def _remove(self, moves: Transitions, going: Going) -> None:
        super()._remove(moves, going)
        for item in (*going.expired, *going.deleted):
            state = "available" if item.state == "leased" else item.state
            self._changed.append(Standing(item.packed, state, item.stored))

    def _rewrite(self, tr: Transaction, moves: Transitions, new: Rewritten) -> None:
        super()._rewrite(tr, moves, new)
        self._changed.append(new.by.standing)


Route: TypeAlias = bytes | Callable[[Message], SessionName]
"""The packed name of the session of all messages, or a function that returns a session's name from a message."""


@dataclass(frozen=True, slots=True)
class Addressed(Incoming):
    """A message that is about to be enqueued into a session."""

    name: bytes
    """The session's packed name."""


class SmartSessions(Named, EnqueuesInSessions):
    """Sessions whose waiting items decide about incoming items of their session.

    Lease, ack, pause and look with the verbs of the sessions: ``smart.sessions.lease(db)``. A `Consumer` and a
    `Watchdog` take this object in their place, and so do `Results` and `Groups`.

    Args:
        sessions: sessions of a queue whose codec is a `Messages`.
        limit: how many items a session may have.
        max_items: how many waiting items an incoming item may be compared with.
        max_bytes: how large these items may be together.
        check_seconds: how long the checks of up to 1,000 items may take together.
        debug: run each check twice, and refuse a check whose two answers differ.

    >>> import fdbqueue
    >>> from dataclasses import dataclass
    >>> from fdbqueue.layers import OWN_TYPE, Decision, Messages, MessageType, Sessions, SmartSessions
    >>> @dataclass
    ... class Seat:
    ...     row: int
    ...     def check(self, new):
    ...         self.row = new.row
    ...         return Decision.ignore
    >>> messages = Messages(MessageType("seat", Seat, sees=OWN_TYPE))
    >>> smart = SmartSessions(Sessions(fdbqueue.Queue("seats", codec=messages)))
    >>> with fdbqueue.open("memory:") as db:
    ...     for name, row in ("Ann", 1), ("Bob", 2), ("Ann", 3):
    ...         print(smart.enqueue(db, Seat(row), session=name).decision)
    ...     print(*(smart.sessions.lease(db).value for _ in range(2)))
    queue
    queue
    ignore
    Seat(row=3) Seat(row=2)
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        limit: Limit | None = None,
        max_items: int = MAX_SCAN_ITEMS,
        max_bytes: int = MAX_SCAN_BYTES,
        check_seconds: float = CHECK_SECONDS,
        debug: bool = False,
    ) -> None:
        if not isinstance(sessions, Sessions):
            raise TypeError(
                "SmartSessions are made of Sessions, as in SmartSessions(Sessions(Queue('orders', codec=Messages(…)))),"
                f" not {sessions!r}. Results and Groups take the SmartSessions."
            )
        messages = sessions.queue.codec
        if not isinstance(messages, Messages):
            raise TypeError(
                f"The codec of smart sessions is a Messages, not {messages.name!r}: Sessions(Queue(…, codec=…))."
            )
        for own in messages.types.values():
            if own.deadline is not None or own.confirms is not None:
                rule = "deadline" if own.deadline is not None else "confirms"
                raise TypeError(
                    f"The message type {own.name!r} has the rule {rule!r}, which sessions do not have. Leave it out; an"
                    " item may have a `ttl`. Or make a SmartQueue of the queue, and let the keys of its types name the"
                    " session: MessageType('bid', Bid, key=lambda bid: (bid.customer, bid.lot), sees=OWN_KEY)."
                )
        terms = CheckTerms(limit, max_items, max_bytes, check_seconds, debug)
        self.sessions: Sessions = sessions
        """The sessions, with all other verbs."""
        self.queue = sessions.queue
        self.leases = sessions.line.leases
        """The leases of whole sessions, for layers."""
        self.messages = messages
        self._check_runner = CheckRunner(self.queue, messages, terms)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(SmartSessions, **asdict(self._check_runner.terms)), (self.sessions,)

    def __repr__(self) -> str:
        return f"SmartSessions({self.queue.layout.describe()}, {self.messages!r})"

    def editing(self) -> Editing[Message]:
        """Return the changes of items by their addresses, as the sessions have them; for layers."""
        editing: Editing = self.sessions.editing()
        return editing

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: Message,
        *,
        session: SessionName,
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """Compare a message with the waiting items of its session that its type sees, and append it if they let it in.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a message of a registered type.
            session: the session's name, as for `Sessions.enqueue`.
            level: its level, if it is appended: 0 is the most urgent; None: the last level.
            delay, at, ttl, headers: as for `SmartQueue.enqueue`.
            timeout: seconds to wait for room if a limit says "wait"; None: no limit. It needs a database.

        If a waiting item changes to its values, these terms are dropped, as in `SmartQueue.enqueue`. An item in
        progress can't change.

        Raises:
            CodecError, ItemTooLarge, CheckFailed, QueueFull, ScanTooLarge: as `SmartQueue.enqueue`.
            SessionClosed: the session is being removed.
            TypeError, ValueError: the session's name can't be a key, there is no such level, or the function `gates`
                returned no gates. In all cases nothing was written.

        *Conflicts:* as `Sessions.enqueue`, and as `SmartQueue.enqueue` within the session. If an item decides, or one
        of those that it must see is in progress, also with a transaction that begins or ends an item of the session.
        *Cost:* three rounds of parallel reads; the writes of both.
        """
        check_waiting(tr, timeout)
        terms = enqueue_terms(self.leases.now_us(), delay, at, ttl, headers)
        new = self._incoming(value, route=pack_name(session))
        return await self._enqueue(tr, new, terms=terms, level=self._level(level), timeout=timeout)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[Message],
        *,
        session: SessionName | Callable[[Message], SessionName],
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Enqueue messages in order, all with the same terms; each is also compared with those before it.

        Given a transaction, it enqueues all of them in it. Given a database, it uses transactions of up to 100
        messages, each exactly once.

        Args:
            session: the name of the session of all messages, or a function that returns it from a message.

        Raises:
            BulkInterrupted: given a database, a message failed after others were enqueued.
            TypeError: `values` is one str, bytes or mapping; no key was touched.

        Other arguments, errors and *Conflicts:* as `enqueue`, for each message. Given a transaction, a failing message
        fails the call, and those before it are written: roll it back. *Cost:* as `SmartQueue.enqueue_many`; two more
        rounds of reads for each message that a waiting item merges with.
        """
        check_waiting(tr, timeout)
        terms, rank = enqueue_terms(self.leases.now_us(), delay, at, ttl, headers), self._level(level)
        check_values(values)
        incoming = partial(self._incoming, route=session if callable(session) else pack_name(session))
        alone = partial(self._enqueue, tr, terms=terms, level=rank, timeout=timeout)
        admit, ahead = partial(self._admit, terms=terms, level=rank), partial(self._read_ahead, level=rank)
        return await SmartBatches(self.queue, incoming, admit, ahead, alone).enqueue(tr, values)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the sessions own and compare: do what `Sessions.check` does, and rescan for the index.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads all of it once, a page at a time; memory for the
        sessions, and for the dependent keys of one session's items.
        """
        line, messages = self.sessions.line, self.messages
        return blocking(lambda: check_sessions(tr, line, lambda tr, layout: IndexCheck(tr, layout, messages)))

    def _level(self, level: int | None) -> int:
        levels = self.sessions.levels
        rank = levels - 1 if level is None else level
        if type(rank) is not int or not 0 <= rank < levels:
            raise ValueError(f"A level of these sessions is an integer from 0 to {levels - 1}, not {level!r}.")
        return rank

    def _incoming(self, message: Message, route: Route) -> Addressed:
        new = self._check_runner.incoming(message, self.leases.now_us())
        name = pack_name(route(message)) if callable(route) else route
        self.sessions.line.slots.gates.chain(name)  # its errors come before the first write
        return Addressed(new.message, new.type, new.given, new.payload, name)

    def _enqueue(
        self, tr: Transaction | Database, new: Incoming, *, terms: EnqueueTerms, level: int, timeout: float | None
    ) -> Steps[Outcome]:
        admit = partial(self._admit, new=new, terms=terms, level=level)
        return until_room(self.queue, tr, admit, partial(self._wait, new=new), timeout, "SmartSessions.enqueue")

    async def _wait(self, db: Database, /, *, new: Incoming, limit: Limit, seconds: float | None) -> None:
        """Wait until a session has room."""
        line, name = self.sessions.line, cast(Addressed, new).name

        async def body(tr: Transaction) -> int:
            session = line.session(name)
            record = session.record_in(await value_of(tr.snapshot.get(session.record_key)))
            return 0 if record is None else generation_to_enter(self.queue, name, record)

        own = line.session(name, await self.queue.read(db, body)).queue
        capacity = Capacity(own, line.leases, SmartIndex(own.layout), self._check_runner.terms.limit)
        await capacity.wait(db, new=new, limit=limit, seconds=seconds)

    async def _read_ahead(self, tr: Transaction, batch: Sequence[Incoming], *, level: int) -> None:
        """Read together what messages of several sessions are going to read, as `Admitting.read_ahead` does."""
        of_sessions: dict[bytes, list[Incoming]] = {}
        for new in batch:
            of_sessions.setdefault(cast(Addressed, new).name, []).append(new)
        line, runner = self.sessions.line, self._check_runner
        entries = [
            (own, started(enter_session(tr, line, self.queue, name, level))) for name, own in of_sessions.items()
        ]
        admitting = [
            (own, SessionAdmitting(tr, line, await entry, level=level, check_runner=runner)) for own, entry in entries
        ]
        for reading in [started(one.read_ahead(tr, own)) for own, one in admitting]:
            await reading

    async def _admit(self, tr: Transaction, new: Incoming, *, terms: EnqueueTerms, level: int) -> Outcome:
        line, name = self.sessions.line, cast(Addressed, new).name
        entry = started(enter_session(tr, line, self.queue, name, level))
        await enter_sessions(tr, line, self.queue, smart=True)
        admitting = SessionAdmitting(tr, line, await entry, level=level, check_runner=self._check_runner)
        return await admitting.admit(tr, new, terms, self.leases.now_us())
