"""`Sessions`: the verbs of items that are done one at a time within their session."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

from fdbqueue import BulkReport, Position, Queue
from fdbqueue.base.arguments import check_whole
from fdbqueue.lowlevel import (
    UNCHANGED,
    Database,
    Layout,
    Named,
    Notes,
    Transaction,
    V,
    is_database,
    only_transaction,
    pack,
    verb,
)
from fdbqueue.stored.policies import check_policy

from ..common.batcher import TransactionBatcher
from ..leases import Backoff, Disposition, Done, FollowUp
from ..leases.done import EnqueuesInSessions, Entered, done_of
from ..leases.enqueueing import enqueue_with_notes
from ..leases.lease import check_timeout, check_waits, not_negative, positive, this_consumer, visible_at
from ..leases.transitions import Retry, check_failure
from .line.line import Line, Rules
from .line.line_queue import LineQueue
from .line.tracking import at_address
from .operators.operators import Operators
from .session.lease import SessionLease, SessionRef
from .session.records import (
    Gate,
    SessionName,
    check_choice,
    check_concurrency,
    deprecated_shards,
    pack_name,
)
from .session.states import States
from .workers.read_ahead import Turns
from .workers.working import Ack, Working

QUANTUM = 10
MAX_LEVELS = 256
ACKS_AT_ONCE = 100
QUEUE_BYTES = 6_500
"""The most bytes of the name of a queue with sessions, as a key."""


class Sessions(Named, EnqueuesInSessions, Operators[V]):
    """Items in sessions: one worker a session, one item at a time, and a fair turn for each session.

    A verb takes a transaction, composes and commits nothing. Or it takes a database, and then commits on its own,
    exactly once. Every verb has an awaitable form, ``await sessions.lease.aio(db)``.

    The rules belong to this object and are not stored. Give all processes the same.

    Args:
        queue: the queue, without an order. Its plain items are not touched.
        levels: how many levels of urgency a session has, for items of level 0, the most urgent, on.
        concurrency: how many items of a session run at once. They begin in order. 1: strictly one after the other. It
            takes effect when a session begins to have items; `set_concurrency` changes it for one session.
        gates: returns the gates of a session from its name, the outermost first: limits that many sessions share, as
            ``lambda name: (Gate(("tenant", name[0]), limit=10),)``. They take effect when a session begins to have
            items; `set_limit` changes the limit of one gate. None: there are none.
        quantum: how many items of a session are done in one turn while other sessions wait; 10 to 50 are good values.
        weights: returns how many quanta a session has in one turn, from its name; None: one each.
        max_attempts: the number of failed attempts (nacks and expiries) after which an item becomes a dead letter;
            None: no limit.
        backoff: the wait of a failed item, and so of its session, before the next attempt. None: a `Consumer` waits as
            `exponential` does, and every other give-back takes effect at once.
        on_dead: after a dead letter, "go on" with the session's next item, or "block" the session until an operator
            calls `redrive` or `skip`.
        delays: whether later items of the session "pass" a delayed item, or it does "hold" them up.
        state_codec: the codec of the states of sessions, as the queue's. The first state that is written stores its
            name. Another codec is then refused while any session has a state; ``bytes`` reads all of them.
        shards: deprecated, and without an effect: all ready sessions are in one line.
        consumer: the name under which it takes leases, for monitoring; host name and process id by default.
        clock: seconds since 1970, as `time.time`.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import Sessions
    >>> db = fdbqueue.open("memory:")
    >>> sessions = Sessions(Queue("mails", codec="str"))
    >>> for value, name in (("first", "ann"), ("second", "ann"), ("other", "bob")):
    ...     position = sessions.enqueue(db, value, session=name)
    >>> ann, bob = sessions.lease(db), sessions.lease(db)
    >>> ann.session, ann.value, bob.session, bob.value
    ('ann', 'first', 'bob', 'other')
    >>> sessions.lease(db) is None       # both sessions are at work
    True
    >>> sessions.ack(db, ann)
    >>> sessions.lease(db).value
    'second'
    >>> db.close()
    """

    taken_by = (
        "Sessions are taken by their own verbs, and by a Consumer: Consumer(sessions, handler). Their verb `reclaim`,"
        " or a Watchdog(sessions), gives back what dead workers held."
    )
    """The remedy in the message of a layer that can't be made of sessions."""

    def __init__(
        self,
        queue: Queue[V],
        *,
        levels: int = 2,
        concurrency: int = 1,
        gates: Callable[[Any], Sequence[Gate]] | None = None,
        quantum: int = QUANTUM,
        weights: Callable[[Any], int] | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        on_dead: Literal["go on", "block"] = "go on",
        delays: Literal["pass", "hold"] = "pass",
        state_codec: object = "bytes",
        shards: int | None = None,
        consumer: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        given = locals()
        self._arguments = {name: given[name] for name in given.keys() - {"self", "queue", "shards"}}
        if not isinstance(queue, Queue):
            raise TypeError(
                f"Sessions are of a Queue, as in Sessions(Queue('orders')), not of {queue!r}. Sessions have leases and"
                " levels of their own, and take max_attempts, backoff and clock themselves."
            )
        if queue.order is not None:
            raise ValueError(f"{queue!r} has an order, and sessions have levels: give the queue without an order.")
        check_whole(levels, "levels is the number of levels of a session", least=1, most=MAX_LEVELS)
        check_whole(quantum, "quantum is how many items a session does in one turn", least=1)
        policy = check_policy(max_attempts, backoff)
        functions: dict[str, object] = {"clock": clock, "weights": weights, "gates": gates}
        for told, function in functions.items():
            if not callable(function) and (function is not None or told == "clock"):
                raise TypeError(f"{told} is a function, not {function!r}.")
        this_consumer(consumer)
        if len(queue.layout.prefix) > QUEUE_BYTES:
            raise ValueError(
                f"The queue's name has {len(queue.layout.prefix):,} bytes as a key. That of a queue with sessions may"
                f" have {QUEUE_BYTES:,}, since names of sessions follow. Give a shorter one, such as a hash of it."
            )
        check_choice(on_dead, "on_dead", ("go on", "block"))
        check_choice(delays, "delays", ("pass", "hold"))
        check_concurrency(concurrency)
        if shards is not None:
            deprecated_shards(shards, "Sessions(shards=…)")
        self.queue = queue
        self.layout = queue.layout
        self.has_messages = hasattr(queue.codec, "is_over")
        """Whether the items are messages, which smart checks may rewrite until a worker begins them."""
        self.levels = levels
        queue.layout.known.give(policy, repr(queue))
        blocks, holds = on_dead == "block", delays == "hold"
        rules = Rules(quantum, weights, Retry(queue.layout), blocks, holds, concurrency, gates)
        self.line = Line(queue, rules, clock)
        """The line of ready sessions, for layers and tools."""
        self._working: Working[V] = Working(queue, self.line, States(queue, state_codec), consumer)
        self.turns: Turns[V] = Turns(self.line, self._working)
        """How a consumer works through the turns of sessions."""
        self.staged = LineQueue(self.line.leases, consumer=consumer)
        """The line, as waiting workers take from it."""
        self._batchers: dict[int, TransactionBatcher[Ack, None]] = {}

    @property
    def sessions(self) -> Sessions[V]:
        """These sessions. `Results` and `Groups` of sessions have this too, for layers."""
        return self

    async def entered_at(self, tr: Transaction, position: Position, session: Any) -> Entered:
        """Return where an item is that this transaction has enqueued; for layers.

        Args:
            position: what `enqueue` returned, or an address.
            session: the item's session.

        Raises:
            TypeError, ValueError: an argument is of a wrong kind, or the position names another session.
        """
        only_transaction(tr, "Sessions.entered_at")
        self.check_named(position, session)
        home = self.line.layout
        if position.rank is None:
            own, packed = at_address(self.line, position)
            return Entered(own.layout, packed, home, pack(position))
        own = await self._working.session_for_enqueue(tr, pack_name(session))
        packed = pack(position)
        return Entered(own.layout, packed, home, own.address(packed))

    async def layout_for(self, tr: Transaction, session: Any) -> Layout:
        """Return the keys of the items of a session that this transaction enqueues into; for layers."""
        only_transaction(tr, "Sessions.layout_for")
        own = await self._working.session_for_enqueue(tr, pack_name(session))
        return own.layout

    def address_bytes(self, session: Any) -> int:
        """Return about how many bytes a follow-up in a session takes in the notes of another item; for layers."""
        return len(self.line.layout.prefix) + len(pack_name(session))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Sessions, **self._arguments), (self.queue,)

    def __repr__(self) -> str:
        return f"Sessions({self.layout.describe()}, quantum={self.line.rules.quantum})"

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: V,
        *,
        session: SessionName,
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> Position:
        """Append an item to its session.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec encodes.
            session: the session's name. The session begins to exist with its first item.
            level: 0 is the most urgent; None: the last level. An item comes behind the items of its level, and in front
                of all less urgent ones. It never interrupts the item in progress.
            delay, at, ttl, headers: as for `Leases.enqueue`.

        Raises:
            SessionClosed: the session is being removed.
            CodecError, ItemTooLarge: as `Queue.enqueue`; no key was touched.
            ChecksBypassed: the sessions make smart checks; use `SmartSessions.enqueue`.
            TypeError, ValueError: the session's name can't be a key, there is no such level, or the function `gates`
                returned no gates.

        *Conflicts:* with the transaction that creates, ends, pauses or blocks this session, or lets it sleep. It
        conflicts with no other enqueue into a session that has items, and with no lease. The first item of a session
        with gates also conflicts with changes of how many slots of them are taken. *Cost:* four reads in parallel; a
        write for the item and two for counters. For the first item of a session two more reads behind these, since most
        items need none of the line's end, and four writes.
        """
        if callable(session):
            raise TypeError(
                f"session is the name of the item's session, not the function {session!r}. Give the name:"
                " session=function(value). Sessions.enqueue_many takes a function."
            )
        report = await self.enqueue_many.steps(
            tr, [value], session=session, level=level, delay=delay, at=at, ttl=ttl, headers=headers
        )
        return cast(Position, report.first)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[V],
        *,
        session: SessionName | Callable[[V], SessionName],
        level: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> BulkReport:
        """Append items in their order, each as `enqueue` does, and all with the same terms.

        Given a database, it uses transactions of about 1 MB, one after the other, each exactly once.

        Args:
            session: the name of the session of all values, or a function that returns it from a value.

        Raises:
            SessionClosed, CodecError, ItemTooLarge: of a value; given a transaction, no key was touched.
            BulkInterrupted: given a database, a batch failed after other items were enqueued.

        *Conflicts:* and *Cost:* as `enqueue`, of each session.
        """
        rank = self.level_of(level)
        now_us = self.line.leases.now_us()
        notes = Notes(
            enqueued_at_us=now_us,
            visible_at_us=visible_at(now_us, delay, at),
            ttl_at_us=0 if ttl is None else now_us + positive(ttl, "ttl"),
        )
        if callable(session):
            route = session

            def label(value: V) -> bytes:
                name = pack_name(route(value))
                self.line.slots.gates.chain(name)  # its errors come before the first write
                return name
        else:
            name = pack_name(session)
            self.line.slots.gates.chain(name)

            def label(value: V) -> bytes:
                return name

        append = partial(self._working.append, level=rank, notes=notes)
        return await enqueue_with_notes(tr, self.queue, values, notes, headers, append=append, label=label)

    @verb
    async def lease(
        self, tr: Transaction | Database, *, duration: float = 30.0, timeout: float | None = 0.0
    ) -> SessionLease[V] | None:
        """Lease the first ready session, with its first item; None if no session is ready.

        While the lease lives, no other worker gets an item of this session.

        Args:
            tr: a transaction, or a database.
            duration: seconds after which the session is ready again, unless the lease is extended. The item in progress
                then has failed an attempt.
            timeout: seconds to wait for a session; None: no limit. It needs a database.

        Raises:
            FormatError, CodecError: the session's first item can't be read. Given a database, the session is blocked
                until an operator calls `skip`; other sessions go on.

        *Conflicts:* as `StagedQueue.lease`, over sessions; in a transaction as `Leases.lease`. If Ctrl-C interrupts a
        call that blocks in the moment of its return, or its commit stays in doubt (1021, 1031), the session may stay
        leased until the lease expires. *Cost:* as there, and behind these reads three in parallel for the record, the
        item and the state of the session that they name; once a second, a look at the codec in a transaction by itself.
        """
        at_once = type(timeout) is type(duration) is float and not timeout and duration > 0
        if at_once and (known := self.staged.known(tr, duration)) is not None:
            duration_us = known.duration_us
        else:
            known = None
            duration_us = positive(duration, "duration")
            check_timeout(timeout)
        if known is None and not is_database(tr):
            if timeout != 0:
                check_waits(tr)
            return await self._working.lease(cast(Transaction, tr), duration_us / 1e6)
        db: Any = tr
        deadline = time.monotonic() + timeout if timeout else None
        while True:
            left = timeout if deadline is None else max(0.0, deadline - time.monotonic())
            pointer = await self.staged.take_one(db, "lease", left, duration_us)
            if pointer is None:
                return None
            lease = await self._working.opened(db, pointer)
            if lease is not None:
                return lease

    @verb
    async def ack(
        self,
        tr: Transaction | Database,
        lease: SessionRef,
        *,
        state: object = UNCHANGED,
        result: object = None,
        then: FollowUp | Sequence[FollowUp] = (),
    ) -> None:
        """Remove the item: its work is done. The session goes to the end of the line if it has more.

        In one transaction with the caller's own writes, both happen or neither. Given a database, acks that are pending
        together share a transaction.

        Args:
            tr: a transaction, or a database.
            lease: the lease, or its handle.
            state: the session's new state; None: remove it.
            result: the result for the item's completion, as in `Leases.ack`; or a `Done`.
            then: items to enqueue in the same transaction.

        Raises:
            LeaseLost: it is not the session's present lease; nothing was written. Roll your own writes back with it.
            CodecError, ItemTooLarge, ValueError: the state or the result can't be stored; nothing was written.

        *Conflicts:* with a transaction that extends or reclaims this lease. If it was the last item, with an enqueue
        into this session. *Cost:* six reads in parallel, and about eight writes.
        """
        encoded = self._working.states.encoded(state)
        own = self._working.session_of(lease)  # a wrong argument must not fail the calls that share the transaction
        done = _checked(result, then)
        ack = (own, lease, encoded, done)
        if not is_database(tr) or done.follow_ups:
            await self.queue.transact(tr, partial(self._working.ack, ack=ack))
            return
        await self._acks().request(cast(Database, tr), ack)

    def _acks(self) -> TransactionBatcher[Ack, None]:
        pid = os.getpid()  # a forked process starts with its own
        known = self._batchers.get(pid)
        if known is None:
            new: TransactionBatcher[Ack, None] = TransactionBatcher(self._working.ack_all, weight=ACKS_AT_ONCE)
            known = self._batchers.setdefault(pid, new)  # atomic: of two threads, one wins
        return known

    @verb
    async def ack_and_next(
        self,
        tr: Transaction | Database,
        lease: SessionRef,
        *,
        state: object = UNCHANGED,
        result: object = None,
        then: FollowUp | Sequence[FollowUp] = (),
        duration: float = 30.0,
    ) -> SessionLease[V] | None:
        """Remove the item as `ack`, and lease the session's next one; None if the session's turn is over.

        A turn is over when the session has no item, or when its quantum is used up and another session is ready. The
        session then goes to the end of the line. If no other is ready, the worker goes on with this one. A pause of the
        session, or of the queue, ends the turn, too; the session then keeps its place.

        A call with a database that is cancelled goes on in a thread. So the ack takes effect all the same, unless it
        fails. The turn ends then: the session is ready again with its next item, and no attempt is counted. After an
        error that leaves the commit in doubt (1021, 1031) the item may be acked, and then the turn ends likewise.

        Args:
            tr, lease, state, result, then: as for `ack`.
            duration: seconds that the lease lasts from now on.

        Raises:
            LeaseLost, CodecError, ItemTooLarge, ValueError: as `ack`.

        *Conflicts:* as `ack`. If Ctrl-C interrupts a call that blocks in the moment of its return, the session stays
        leased until the lease expires. *Cost:* as `ack`; one more read when the quantum is used up; once a second,
        three reads in parallel about a pause.
        """
        encoded = self._working.states.encoded(state)
        duration_us = positive(duration, "duration")
        done = _checked(result, then)
        body = partial(self._working.ack_and_next, ref=lease, state=encoded, done=done, duration_us=duration_us)
        return await self._working.followed(tr, body)

    @verb
    async def nack(
        self,
        tr: Transaction | Database,
        lease: SessionRef,
        *,
        delay: float | None = None,
        error: str | None = None,
        last: bool = False,
    ) -> Disposition:
        """Give the item back: this attempt has failed. The session waits with it, and no other session does.

        Args:
            tr: a transaction, or a database.
            lease: the lease, or its handle.
            delay: seconds until the next attempt; None: the back-off policy decides.
            error: the reason, kept for the next attempt and, if this was the last one, with the dead letter.
            last: whether the item becomes a dead letter now, whatever `max_attempts` is.

        Returns:
            the item's disposition. Its session is in its old place in the line, or waits for the delay.

        Raises:
            LeaseLost: it is not the session's present lease; nothing was written.

        *Conflicts:* as `ack`, and with leases of sessions behind it. *Cost:* four reads in parallel, about eight
        writes.
        """
        delay_us = None if delay is None else not_negative(delay, "delay")
        check_failure(error, last)
        why = error or "It was given back."
        body = partial(self._working.nack, ref=lease, delay_us=delay_us, error=why, last=last)
        return await self.queue.transact(tr, body)

    @verb
    async def snooze(self, tr: Transaction | Database, lease: SessionRef, *, delay: float) -> None:
        """Give the session back for `delay` seconds without counting an attempt; otherwise as `nack`."""
        delay_us = not_negative(delay, "delay")
        await self.queue.transact(tr, partial(self._working.snooze, ref=lease, delay_us=delay_us))

    @verb
    async def extend(
        self, tr: Transaction | Database, lease: SessionLease[V], *, duration: float = 30.0
    ) -> SessionLease[V]:
        """Extend the lease to `duration` seconds from now. Return it with its new end.

        Raises:
            LeaseLost: it is not the session's present lease; nothing was written.

        *Conflicts:* as `ack`. *Cost:* three reads in parallel, three writes.
        """
        body = partial(self._working.extend, ref=lease, duration_us=positive(duration, "duration"))
        expires_at_us = await self.queue.transact(tr, body)
        return dataclasses.replace(lease, expires_at=expires_at_us / 1e6)

    @verb
    async def state(self, tr: Transaction | Database, session: SessionName) -> Any:
        """Return a session's state; None if it has none.

        Raises:
            CodecError, OtherCodec: it can't be decoded, or states have another codec.

        *Conflicts:* in a transaction, with every write of the state. *Cost:* two reads in parallel, or three.
        """
        key = self.line.session(pack_name(session)).state_key
        return await self.queue.read(tr, partial(self._working.states.read, key=key))

    @verb
    async def set_state(self, tr: Transaction | Database, lease: SessionRef, state: object) -> None:
        """Write the state of a session that the caller has leased; None removes it.

        Raises:
            LeaseLost: it is not the session's present lease; nothing was written.
            CodecError, ValueError: the state can't be stored; nothing was written.

        *Conflicts:* as `ack`. *Cost:* three reads in parallel, one write.
        """
        encoded = self._working.states.encoded(state)

        await self.queue.transact(tr, partial(self._working.set_state, ref=lease, state=encoded))
        if isinstance(lease, SessionLease):
            lease.used.append("set_state")


def _checked(result: object, then: FollowUp | Sequence[FollowUp]) -> Done:
    """Return the arguments of an ack as a `Done`, before the first read.

    Raises:
        CodecError, ItemTooLarge: the result can't be stored. TypeError: as `done_of`.
    """
    done = done_of(result, then)
    done.check()
    return done
