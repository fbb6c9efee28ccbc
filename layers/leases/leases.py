"""`Leases`: the verbs of leased items."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from fdbqueue import BulkReport, CheckReport, Position, Queue
from fdbqueue.arrow.needs import ArrowTable, check_columns, table_rows
from fdbqueue.base.reprs import function_text
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import (
    AdaptiveLimit,
    Browser,
    ByPosition,
    Database,
    Editing,
    Named,
    Notes,
    Steps,
    Transaction,
    V,
    check_limit,
    is_database,
    only_transaction,
    verb,
)
from fdbqueue.reads.remembering import Ages
from fdbqueue.stored.policies import Backoff, check_policy
from fdbqueue.stored.settings import check_renamed

from .browsing import DeadLetters, State, StoredItem, browse
from .done import NO_FOLLOW_UPS, Done, FollowUp, done_of
from .enqueueing import RowTerms, check_names, enqueue_with_notes
from .holding import Holding, Live, several
from .lease import (
    LONGEST_SECONDS,
    Disposition,
    Lease,
    LeaseRef,
    clock_us,
    not_negative,
    positive,
    this_consumer,
    visible_at,
)
from .reports import LeaseStats, check_leases, read_lease_stats
from .taking import Head, Taking, commit_if_written
from .timers import ReclaimReport, next_due_us, reclaim
from .transitions import Retry, check_failure

T = TypeVar("T")


class Leases(Named, ByPosition[V]):
    """Leases of one queue's items.

    A verb takes a transaction, composes and commits nothing. Or it takes a database, and then commits on its own,
    exactly once. Every verb has an awaitable form, ``await leases.lease.aio(db)``.

    The policy, `max_attempts` and `backoff`, belongs to the queue and is stored with it. The first object that gives
    one sets it, and all objects of the queue follow it, in every process. One that gives another is told so once, by a
    RuntimeWarning. `Queue.register` changes the policy.

    Args:
        queue: the queue.
        max_attempts: the number of failed attempts (nacks and expiries) after which an item becomes a dead letter;
            None: no limit.
        backoff: the wait of a failed item before its next attempt: `exponential`, `constant`, `immediately`, or a
            function from the number of the attempt to seconds. None: a `Consumer` waits as `exponential` does, and
            every other give-back takes effect at once.
        clock: seconds since 1970, as `time.time`.
        head: the order of taking items.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import Leases
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(Queue("orders", codec="str"), max_attempts=3)
    >>> position = leases.enqueue(db, "first")
    >>> lease = leases.lease(db, duration=60)
    >>> lease.value, lease.attempt
    ('first', 1)
    >>> leases.nack(db, lease, error="the printer is on fire").value
    'available'
    >>> lease = leases.lease(db)
    >>> lease.attempt, lease.error
    (2, 'the printer is on fire')
    >>> leases.ack(db, lease)
    >>> leases.lease(db) is None
    True
    """

    def __init__(
        self,
        queue: Queue[V],
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
        head: Head | None = None,
    ) -> None:
        policy = check_policy(max_attempts, backoff)
        if not isinstance(queue, Queue):
            raise TypeError(
                f"Leases are of a Queue, as in Leases(Queue('orders')), not of {queue!r}. A layer over a queue has"
                " leases already: use those."
            )
        self.queue = queue
        self.layout = queue.layout
        self.retry = Retry(queue.layout)
        if not callable(clock):
            raise TypeError(f"clock is a function that returns the time, as time.time, not {clock!r}.")
        self.clock = clock
        if not isinstance(head, Head | None):
            raise TypeError(f"head is a Head, the order of taking items, or None, not {head!r}.")
        self.head = head or Head(queue.layout)
        self.taking = self._taking(self.retry)
        """Takes the first items; for layers."""
        self.dead = DeadLetters(queue, self.now_us)
        """The dead letters: browse, redrive, purge."""
        self._holding = Holding(queue, self.retry)
        self._ages = Ages()
        self._given = policy
        queue.layout.known.give(policy, repr(queue))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for layout in (self.layout, self.queue.layout):  # of leases that were sent, these are two objects
            if not layout.known.given:
                layout.known.give(self._given, repr(self.queue))

    def sparing(self, spares: Callable[[Position, bytes], bool]) -> Leases[V]:
        """Return a copy of these leases, for layers. It reclaims no expired lease for which `spares` is true."""
        return self.in_custody(dataclasses.replace(self.retry, spares=spares))

    def in_custody(self, custody: Retry) -> Leases[V]:
        """Return a copy of these leases, for layers, whose expired leases end as `custody` says."""
        own = copy.copy(self)
        own.retry = custody
        own.taking = self._taking(custody)
        return own

    @property
    def shown(self) -> Queue[Any]:
        """The queue that messages name: whose items these are, or stand for."""
        return self.queue

    def _taking(self, retry: Retry) -> Taking:
        return self.head.taking(self.queue, retry, self.now_us)

    def __repr__(self) -> str:
        policy = self.retry.policy
        backoff = "" if policy.backoff is None else f", backoff={function_text(policy.backoff)}"
        return f"Leases({self.layout.describe()}, max_attempts={policy.max_attempts}{backoff})"

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: V,
        *,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> Position:
        """Append an item, with an optional delay and time to live.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec encodes.
            delay: seconds until it becomes available, in the place that it gets now.
            at: the same as a time of the clock.
            ttl: seconds after which it is removed. An item that is leased then is removed only if it is given back
                later.
            headers: a small mapping stored beside the value.

        Raises:
            CodecError, ItemTooLarge: as `Queue.enqueue`; no key was touched.

        *Conflicts:* none. *Cost:* as `Queue.enqueue`, and a write each for a delay and a time to live.
        """
        notes = self._notes(self.now_us(), delay, at, ttl)
        report = await enqueue_with_notes(tr, self.queue, [value], notes, headers)
        return cast(Position, report.first)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[V] | ArrowTable,
        *,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        column: str | None = None,
        headers_column: str | None = None,
        delay_column: str | None = None,
        ttl_column: str | None = None,
    ) -> BulkReport:
        """Append items in their order, each as `enqueue` does, and all with the same terms.

        Given a database, it uses transactions of about 1 MB, one after the other, each exactly once.
        `Queue.enqueue_many` loads millions of items without terms faster: it keeps several transactions under way.

        Args:
            values: the values, or a table as for `Queue.enqueue_many`.
            column: as for `Queue.enqueue_many`.
            headers_column: a column of the table with the headers of each row: maps, structs or nulls.
            delay_column, ttl_column: columns with seconds as numbers. A null means `delay` or `ttl`.

        Raises:
            CodecError, ItemTooLarge: of a value; given a transaction, no key was touched.
            ValueError, TypeError: a column is not valid, or a row has a term that is not.
            BulkInterrupted: given a database, a batch failed after other items were enqueued.

        *Conflicts:* none. *Cost:* one round trip per transaction; a write each, and one more for a delay and a time to
        live.
        """
        columns = {"column": column, "headers_column": headers_column}
        columns |= {"delay_column": delay_column, "ttl_column": ttl_column}
        terms = {"delay": delay, "at": at, "ttl": ttl, "headers": headers}
        return await self.enqueue_rows(tr, values, terms=terms, columns=columns)

    async def enqueue_rows(
        self,
        tr: Transaction | Database,
        values: Iterable[V] | ArrowTable,
        *,
        terms: Mapping[str, Any],
        columns: Mapping[str, str | None],
    ) -> BulkReport:
        """Append values or the rows of a table, as `enqueue_many` does. This is for layers.

        Args:
            terms: ``delay``, ``at``, ``ttl`` and ``headers`` of all.
            columns: the names of the table's columns, by the option.

        Raises:
            TypeError: `terms` or `columns` have other names.
        """
        check_names(terms, columns)
        is_table = check_columns(values, **columns)
        now_us, headers = self.now_us(), terms["headers"]
        notes = self._notes(now_us, terms["delay"], terms["at"], terms["ttl"])
        if not is_table:
            return await enqueue_with_notes(tr, self.queue, cast(Iterable[V], values), notes, headers)
        rows = table_rows(values, self.queue.codec, **columns)
        of_row = RowTerms(now_us, notes, headers).of_row
        return await enqueue_with_notes(tr, self.queue, rows, notes, headers, row=of_row)

    def _notes(self, now_us: int, delay: float | None, at: float | None, ttl: float | None) -> Notes:
        return Notes(
            enqueued_at_us=now_us,
            visible_at_us=visible_at(now_us, delay, at),
            ttl_at_us=0 if ttl is None else now_us + positive(ttl, "ttl"),
        )

    @verb
    async def lease(
        self,
        tr: Transaction | Database,
        *,
        duration: float = 30.0,
        consumer: str | None = None,
    ) -> Lease[V] | None:
        """Lease the first available item; None if there is none.

        A call with a database that is cancelled, interrupted by Ctrl-C, or ends with an error that leaves its commit in
        doubt (1021, 1031), keeps nothing: a thread gives the item back to its place a moment later, and no attempt is
        counted.

        Args:
            tr: a transaction, or a database.
            duration: seconds after which the item is available again, unless the lease is extended.
            consumer: the consumer's name, for monitoring; host name and process id by default.

        Raises:
            FormatError, CodecError: the first item can't be read; the message names it, and it stays in its place.
            SubscriptionError: the queue has an exclusive subscription.

        *Conflicts:* with another lease or dequeue of the same item, and with an item that appears in front of it. In a
        caller's transaction that finds nothing, with any item that appears. *Cost:* two reads in parallel, four writes;
        once for this object, when it meets a first timer, two more reads behind these; for each due timer, up to 64,
        one read and about four writes.
        """
        terms = positive(duration, "duration"), this_consumer(consumer)
        one: Steps[list[Lease[V]]] = self.taking.first(tr, 1, *terms)
        return next(iter(await one), None)  # on the line of the wait: Ctrl-C behind it would lose the lease

    @verb
    async def lease_many(
        self,
        tr: Transaction | Database,
        *,
        limit: int = 100,
        duration: float = 30.0,
        consumer: str | None = None,
    ) -> list[Lease[V]]:
        """Lease the first `limit` available items, in order; fewer if there are no more. They share a token.

        One call leases only a few large items, about 2 MB in all. Given a database, it leases still fewer if it can't
        read so many in the five seconds of a transaction.

        Args, errors, *Conflicts* and *Cost:* as `lease`, of each item. The list ends before an item that can't be read.
        If that is the first item, its error is raised.
        """
        check_limit(limit, "items to lease")
        terms = positive(duration, "duration"), this_consumer(consumer)
        return await self.taking.first(tr, limit, *terms)

    @verb
    def ack(
        self,
        tr: Transaction | Database,
        lease: LeaseRef,
        *,
        result: object = None,
        then: FollowUp | Sequence[FollowUp] = NO_FOLLOW_UPS,
    ) -> Steps[None]:
        """Remove the item: its work is done.

        In one transaction with the caller's own writes, both happen or neither.

        Args:
            tr: a transaction, or a database.
            lease: the lease, or its handle.
            result: the result, stored if the item has a completion (`fdbqueue.layers.results`): anything that
                MessagePack can hold, up to 90,000 bytes. Also a `Done`.
            then: items to enqueue in the same transaction.

        Raises:
            LeaseLost: it is not the item's present lease; nothing was written. Roll your own writes back with it.
            CodecError, ItemTooLarge: the result can't be stored, whether the item has a completion or not; nothing was
                read or written.

        *Conflicts:* with a transaction that gives back, extends or reclaims this item. *Cost:* one read, four writes;
        three more writes for a completion.
        """
        done = [] if result is None and then is NO_FOLLOW_UPS else [done_of(result, then)]
        return self.queue.transact(tr, lambda tr: self._holding.ack(tr, [lease], done, now_us=self.now_us()))

    @verb
    async def ack_many(
        self, tr: Transaction | Database, leases: Iterable[LeaseRef], *, results: Iterable[object] = ()
    ) -> None:
        """Remove the items, all or none.

        Args:
            tr: a transaction, or a database.
            leases: the leases, or their handles.
            results: as many results, each as for `ack`; none: all of them None.

        Raises:
            LeaseLost: some leases are lost, and the error names them; none was acked.
            CodecError, ItemTooLarge: as `ack`, of one of them; none was acked.
            ValueError: there are more leases than results, or fewer. TypeError: `leases` or `results` is no list.

        *Conflicts:* as `ack`, of each. *Cost:* one read, in parallel, and two writes each.
        """
        if isinstance(results, str | bytes | Mapping) or not isinstance(results, Iterable):
            raise TypeError(f"results are one for each lease, as a list, not {results!r}.")
        held, done = several(leases, "ack_many"), [Done.of(result) for result in results]
        if done and len(done) != len(held):
            raise ValueError(f"Give a result for each lease, or none at all: {len(held)} leases, {len(done)} results.")
        await self.queue.transact(tr, lambda tr: self._holding.ack(tr, held, done, now_us=self.now_us()))

    def ack_unchanged(self, tr: Transaction, live: Iterable[Live]) -> None:
        """Ack leases without a read, in a transaction that begins at the version at which they were live.

        Raises:
            TypeError: they are no `Live`.

        It can't commit if another transaction has ended or taken away one of them since. For layers.

        *Conflicts:* as `ack`, of each. *Cost:* four writes each.
        """
        only_transaction(tr, "Leases.ack_unchanged")
        given: Any = live
        chosen = list(given) if isinstance(given, Iterable) else [given]
        for one in chosen:
            if not isinstance(one, Live):
                raise TypeError(f"A lease to ack unread is a Live, as a layer has looked at it, not {one!r}.")
        self._holding.ack_unchanged(tr, chosen, now_us=self.now_us())

    @verb
    async def nack(
        self,
        tr: Transaction | Database,
        lease: LeaseRef,
        *,
        delay: float | None = None,
        error: str | None = None,
        last: bool = False,
    ) -> Disposition:
        """Give the item back: this attempt has failed.

        Args:
            tr: a transaction, or a database.
            lease: the lease, or its handle.
            delay: seconds until it is available again; None: the back-off policy decides.
            error: the reason, kept for the next attempt and, if this was the last one, with the dead letter.
            last: whether the item becomes a dead letter now, whatever `max_attempts` is.

        Returns:
            the item's disposition. `Disposition.available` is its old place, before all later items.

        Raises:
            LeaseLost: it is not the item's present lease; nothing was written.

        *Conflicts:* as `ack`, and with leases of items behind it. *Cost:* one read, five writes.
        """
        return (await self.nack_many.steps(tr, [lease], delay=delay, error=error, last=last))[0]

    @verb
    async def nack_many(
        self,
        tr: Transaction | Database,
        leases: Iterable[LeaseRef],
        *,
        delay: float | None = None,
        error: str | None = None,
        last: bool = False,
    ) -> list[Disposition]:
        """Give back items whose attempts have failed, all or none. Return the disposition of each, as `nack`.

        One transaction writes all of them again, which limits the number of large items.

        Raises:
            LeaseLost: some leases are lost, and the error names them; none was given back.

        *Conflicts:* as `nack`, of each. *Cost:* one read, in parallel, and about four writes each.
        """
        held = several(leases, "nack_many")
        delay_us = None if delay is None else not_negative(delay, "delay")
        check_failure(error, last)
        why = error or "It was given back."

        def body(tr: Transaction) -> Steps[list[Disposition]]:
            return self._holding.nack(tr, held, now_us=self.now_us(), delay_us=delay_us, error=why, last=last)

        return await self.queue.transact(tr, body)

    @verb
    async def snooze(self, tr: Transaction | Database, lease: LeaseRef, *, delay: float) -> Disposition:
        """Give the item back for `delay` seconds without counting an attempt; otherwise as `nack`."""
        return (await self.snooze_many.steps(tr, [lease], delay=delay))[0]

    @verb
    async def snooze_many(
        self, tr: Transaction | Database, leases: Iterable[LeaseRef], *, delay: float
    ) -> list[Disposition]:
        """Give items back without counting an attempt, all or none; otherwise as `nack`."""
        held, delay_us = several(leases, "snooze_many"), not_negative(delay, "delay")

        def body(tr: Transaction) -> Steps[list[Disposition]]:
            return self._holding.snooze(tr, held, now_us=self.now_us(), delay_us=delay_us)

        return await self.queue.transact(tr, body)

    @verb
    async def extend(self, tr: Transaction | Database, lease: Lease[V], *, duration: float = 30.0) -> Lease[V]:
        """Extend the lease to `duration` seconds from now. Return it with its new end. The old lease object stays valid
        too.

        Raises:
            LeaseLost: it is not the item's present lease; nothing was written.

        *Conflicts:* as `ack`. *Cost:* one read, three writes.
        """
        return (await self.extend_many.steps(tr, [lease], duration=duration))[0]

    @verb
    async def extend_many(
        self, tr: Transaction | Database, leases: Iterable[Lease[V]], *, duration: float = 30.0
    ) -> list[Lease[V]]:
        """Extend leases, all or none, as `extend`."""
        held, duration_us = several(leases, "extend_many"), positive(duration, "duration")

        def body(tr: Transaction) -> Steps[list[Lease[V]]]:
            return self._holding.extend(tr, held, expires_at_us=self.now_us() + duration_us)

        return await self.queue.transact(tr, body)

    @verb
    async def reclaim(self, tr: Transaction | Database, *, limit: int = 500) -> ReclaimReport:
        """Fire up to `limit` due timers: of expired leases, delays that are over, and items whose life is over.

        Every lease does this before it takes an item. Use it for queues without consumers, and for monitoring.

        Raises:
            QueueRenamed: no timer is due, and the queue has another name now.

        *Conflicts:* with a transaction that fires, acks, gives back or extends one of these items. *Cost:* one read,
        and one read and about four writes per timer; a second read if no timer is due.
        """
        report = await self._fire_timers(tr, limit)
        if not report.reclaimed:
            await self.queue.read(tr, partial(check_renamed, layout=self.layout))
        return report

    async def _fire_timers(self, tr: Transaction | Database, limit: int) -> ReclaimReport:
        """Fire due timers, as `reclaim`, of a queue that is known to have this name."""
        check_limit(limit, "timers to fire")
        if is_database(tr):
            adaptive = AdaptiveLimit(limit)

            def fire_some(tr: Transaction) -> Steps[tuple[ReclaimReport, bool]]:
                return reclaim(tr, self.layout, limit=adaptive.limit, now_us=self.now_us(), retry=self.retry)

            return await commit_if_written(self.queue, cast(Database, tr), fire_some, on_retry=adaptive.note)
        own = cast(Transaction, tr)
        report, _ = await reclaim(own, self.layout, limit=limit, now_us=self.now_us(), retry=self.retry)
        return report

    def browse(
        self,
        tr: Transaction | Database,
        *,
        state: State = "available",
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
    ) -> Browser[StoredItem[V]]:
        """Iterate over the items of one state with all their stored notes, in order, lazily.

        Args:
            tr: a transaction, or a database. A database reads each page in a transaction of its own.
            state: "available", "leased", "delayed" or "dead".
            after, before, limit, reverse, duty_cycle: as for `Queue.browse`.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read per page; memory for a page.
        """
        return browse(
            tr,
            self.queue,
            state=state,
            after=after,
            before=before,
            limit=limit,
            reverse=reverse,
            duty_cycle=duty_cycle,
        )

    @verb
    async def stats(self, tr: Transaction | Database) -> LeaseStats:
        """Return the number of items in each state, how many came and went, and the age of the first one.

        *Conflicts:* none, it reads by snapshot. *Cost:* three reads in parallel; it does not grow with the queue.
        """
        read = partial(
            read_lease_stats,
            layout=self.layout,
            now_us=self.now_us(),
            ages=self._ages,
            remember=is_database(tr),
        )
        return await self.queue.read(tr, read)

    def next_due_us(self, tr: Transaction) -> Steps[int | None]:
        """Return when the next timer is due, in microseconds; None if there is none. For layers."""
        only_transaction(tr, "Leases.next_due_us")
        return next_due_us(tr, self.layout, self.now_us())

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare: all that `Queue.check` compares, timers and outcomes.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads the whole queue once, a page at a time; memory for the
        keys of timers.
        """
        return blocking(lambda: check_leases(tr, self.layout))

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        return Editing(self.queue, self.now_us)

    def now_us(self) -> int:
        """Return the time by this object's clock, in microseconds.

        Raises:
            TypeError, ValueError: the clock returned no time.
        """
        now = self.clock()
        return int(now * 1e6) if type(now) is float and 0 <= now <= LONGEST_SECONDS else clock_us(now)
