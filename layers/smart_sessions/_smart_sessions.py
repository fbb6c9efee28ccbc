"""`SmartSessions`: the verbs of sessions whose waiting items decide about incoming ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from fdbqueue import CheckReport
from fdbqueue.base.arguments import check_flag
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import (
    Database,
    Editing,
    Named,
    Steps,
    Transaction,
    check_values,
    is_database,
    started,
    value_of,
    verb,
)
from fdbqueue.stored.items import check_headers

from ..leases.times import check_timeout, check_waits, positive, visible_at
from ..sessions import Sessions
from ..sessions.line.entering import enter_session, enter_sessions, generation_to_enter
from ..sessions.reading.check import check_sessions
from ..sessions.session.records import SessionName, pack_name
from ..smart import Limit, Messages, Outcome
from ..smart.admitting import EnqueueTerms
from ..smart.batches import SmartBatches, admit_all
from ..smart.capacity import Capacity, until_room
from ..smart.check import IndexCheck
from ..smart.check_runner import CheckRunner, Incoming
from ..smart.index import SmartIndex
from ..smart.limits import check_bounds
from ..smart.scanning import Bounds
from ..smart.smart import CHECK_SECONDS, MAX_SCAN_BYTES, MAX_SCAN_ITEMS
from ._admitting import SessionAdmitting

Route: TypeAlias = bytes | Callable[[Any], SessionName]
"""The packed name of the session of all messages, or a function that returns a session's name from a message."""


@dataclass(frozen=True, slots=True)
class Addressed(Incoming):
    """A message that is about to be enqueued into a session."""

    name: bytes
    """The session's packed name."""


class SmartSessions(Named):
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
        sessions: Sessions[Any],
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
        check_bounds(limit, max_items=max_items, max_bytes=max_bytes, check_seconds=check_seconds)
        check_flag(debug, "debug")
        self.sessions: Sessions[Any] = sessions
        """The sessions, with all other verbs."""
        self.queue = sessions.queue
        self.leases = sessions.line.leases
        """The leases of whole sessions, for layers."""
        self.messages = messages
        self._given: dict[str, Any] = {
            "limit": limit,
            "max_items": max_items,
            "max_bytes": max_bytes,
            "check_seconds": check_seconds,
            "debug": debug,
        }
        self._limit = limit
        self._bounds = Bounds(max_items, max_bytes)
        self._check_runner = CheckRunner(self.queue, messages, seconds=check_seconds, debug=debug)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SmartSessions, **self._given), (self.sessions,)

    def __repr__(self) -> str:
        return f"SmartSessions({self.queue.layout.describe()}, {self.messages!r})"

    def editing(self) -> Editing[Any]:
        """Return the changes of items by their addresses, as the sessions have them; for layers."""
        editing: Editing[Any] = self.sessions.editing()
        return editing

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: Any,
        *,
        session: SessionName,
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
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
        if not is_database(tr) and timeout is not None:
            check_waits(tr)
        check_timeout(timeout)
        terms = self._terms(delay, at, ttl, headers)
        new = self._incoming(value, route=pack_name(session))
        return await self._enqueue(tr, new, terms=terms, level=self._level(level), timeout=timeout)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[Any],
        *,
        session: SessionName | Callable[[Any], SessionName],
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
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

        Other arguments, errors, *Conflicts:* and *Cost:* as `enqueue`, for each message, without the commit. Given a
        transaction, a failing message fails the call, and those before it are written: roll it back.
        """
        if not is_database(tr) and timeout is not None:
            check_waits(tr)
        check_timeout(timeout)
        terms, rank = self._terms(delay, at, ttl, headers), self._level(level)
        check_values(values)
        incoming = partial(self._incoming, route=session if callable(session) else pack_name(session))
        admit = partial(self._admit, terms=terms, level=rank)
        if is_database(tr):
            alone = partial(self._enqueue, tr, terms=terms, level=rank, timeout=timeout)
            return await SmartBatches(self.queue, incoming, admit, alone).enqueue(cast(Database, tr), values)
        prepared: list[Incoming] = [incoming(message) for message in values]
        return await admit_all(cast(Transaction, tr), prepared, admit)

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

    def _terms(
        self, delay: float | None, at: float | None, ttl: float | None, headers: Mapping[str, Any] | None
    ) -> EnqueueTerms:
        if headers is not None:
            check_headers(headers)
        ttl_us = 0 if ttl is None else positive(ttl, "ttl")
        return EnqueueTerms(visible_at(self.leases.now_us(), delay, at), ttl_us, headers)

    def _incoming(self, message: Any, route: Route) -> Addressed:
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
        capacity = Capacity(line.leases, SmartIndex(own.layout), self._limit, own)
        await capacity.wait(db, new=new, limit=limit, seconds=seconds)

    async def _admit(self, tr: Transaction, new: Incoming, *, terms: EnqueueTerms, level: int) -> Outcome:
        line, name = self.sessions.line, cast(Addressed, new).name
        entry = started(enter_session(tr, line, self.queue, name, level))
        await enter_sessions(tr, line, self.queue, smart=True)
        admitting = SessionAdmitting(
            *(tr, line, await entry),
            level=level,
            check_runner=self._check_runner,
            limit=self._limit,
            bounds=self._bounds,
        )
        return await admitting.admit(tr, new, terms, self.leases.now_us())
