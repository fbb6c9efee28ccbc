"""`StagedQueue`: the verbs of a queue whose head many consumers share."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

from fdbqueue import CheckReport, Item, LeaseLost, Position, Queue, QueueFull
from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine.blocking import blocking
from fdbqueue.engine.optional import committed_version, conflict_since, has_turns
from fdbqueue.lowlevel import (
    ByPosition,
    Database,
    Editing,
    Named,
    Shown,
    Steps,
    Transaction,
    V,
    append_items,
    check_limit,
    chunks_of,
    envelope,
    new_random,
    only_database,
    verb,
)
from fdbqueue.moves.admission import Admission

from ..common.batcher import TransactionBatcher
from ..common.composing import QueueWithLeases, leases_of
from ..common.waiting import long_wait
from ..leases import Lease, LeaseRef, Leases, LeaseStats
from ..leases.holding import REF_TYPES, check_refs
from ..leases.lease import check_timeout, positive, this_consumer
from ..leases.reports import check_leases
from .delivery import HeadDelivery
from .grants import ONE, ContentionStats, Want
from .head_coordinator import HeadCoordinator
from .recent import RecentLeases, RecentVersion
from .requests import RequestCheck, Requests

BATCH_BYTES = 1_000_000
"""About how many bytes the enqueues of one transaction write."""
_OVERHEAD_BYTES = 1_000  # an enqueue's weight beside its payload: at most 1,000 share a transaction
_ACKS_AT_ONCE = 500
MOST_TERMS = 16
"""The number of lease durations for which a process keeps its state. Durations that are in use now come on top."""


@dataclass(frozen=True, slots=True, repr=False)
class StagedStats(Shown):
    """The items in a queue, and the requests that wait for items."""

    items: LeaseStats
    """The items, by state."""
    requests: int
    """Registered requests; up to 1,000 are counted."""
    wanted: int
    """Items that these requests want."""


class StagedQueue(Named, ByPosition[V]):
    """A queue for many consumers at once, in many processes, threads and tasks.

    Its verbs make their own transactions: they take a database and refuse a transaction. Only `stats`, `check` and the
    verbs by position take either. Calls of one process that are pending at the same time share transactions. Every verb
    has an awaitable form, ``await staged.dequeue.aio(db)``.

    Args:
        queue: the queue, its `Leases`, whose policy and clock it follows, or a layer that has leases, such as a
            `PriorityQueue`.
        consumer: the name under which it takes leases, for monitoring; host name and process id by default.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import StagedQueue
    >>> db = fdbqueue.open("memory:")
    >>> staged = StagedQueue(Queue("orders", codec="str"))
    >>> position = staged.enqueue(db, "first")
    >>> staged.dequeue(db).value
    'first'
    >>> staged.dequeue(db, timeout=0.01) is None
    True
    >>> db.close()
    """

    delivery: ClassVar[Callable[[Any], HeadDelivery]] = HeadDelivery
    """Makes the object that takes the items, from the leases; for layers."""

    def __init__(self, queue: Queue[V] | Leases[V] | QueueWithLeases[V], *, consumer: str | None = None) -> None:
        if consumer is not None:
            this_consumer(consumer)
        self.leases = leases_of(queue, "StagedQueue")
        self.queue = self.leases.queue
        self.named = "StagedQueue"
        """Whose verbs its warnings name, for layers."""
        self._consumer = consumer
        self._states: dict[int, ProcessState] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return partial(StagedQueue, consumer=self._consumer), (self.leases,)

    def __repr__(self) -> str:
        return f"StagedQueue({self.queue.layout.describe()})"

    @verb
    async def enqueue(self, db: Database, value: V, *, headers: Mapping[str, object] | None = None) -> Position:
        """Append an item and return its position; enqueues that are pending together share a transaction.

        Args:
            db: a database.
            value: a value that the queue's codec encodes.
            headers: a small mapping stored beside the value.

        Raises:
            CodecError, ItemTooLarge: of this value. Other calls are not affected, and no key was touched.

        *Conflicts:* none. *Cost:* a share of one read and one commit.
        """
        only_database(db, "StagedQueue.enqueue", "In a transaction use Queue.enqueue(tr, value).")
        payload = self.queue.encode(value)
        argument = (envelope(payload, headers), chunks_of(payload), self.queue.rank(value, headers))
        weight = len(payload) + _OVERHEAD_BYTES
        return cast(Position, await self._state().enqueues.request(db, argument, weight=weight))

    @verb
    def dequeue(self, db: Database, *, timeout: float | None = 0.0) -> Steps[Item[V] | None]:
        """Take the first item out. Returns None if there is none for this call within its time.

        Args:
            db: a database.
            timeout: seconds to wait for an item; 0: do not wait on an empty queue, but wait for requests in front;
                None: wait without limit.

        Raises:
            FormatError, CodecError: the first item can't be read; the message names it, and it stays in its place.
            SubscriptionError: the queue has an exclusive subscription.

        *Conflicts:* at the first meeting with another process, after a wrong prediction of an uncontended process, and
        with changes of the order in front of the items assigned to this process. *Cost:* uncontended, a share of one
        read and one commit, as the plain dequeue. At a cluster, repeated single dequeues cost only the commit. Under
        contention a share of two commits, and a read of all items up to its own, if they are small.
        """
        if type(timeout) is float and not timeout and (known := self.known(db, 0.0)) is not None:
            return _first_of(known.coordinator, db)
        only_database(db, "StagedQueue.dequeue", "In a transaction use Leases.lease(tr) or Queue.dequeue(tr).")
        return self.take_one(db, "dequeue", timeout, 0)

    @verb
    def dequeue_many(self, db: Database, *, limit: int = 100, timeout: float | None = 0.0) -> Steps[list[Item[V]]]:
        """Take up to `limit` first items out, in order, once there is at least one; otherwise as `dequeue`."""
        only_database(
            db, "StagedQueue.dequeue_many", "In a transaction use Leases.lease_many(tr) or Queue.dequeue_many(tr)."
        )
        return self._take(db, "dequeue_many", limit, timeout, 0)

    @verb
    def lease(self, db: Database, *, duration: float = 30.0, timeout: float | None = 0.0) -> Steps[Lease[V] | None]:
        """Lease the first item. Returns None if there is none for this call within its time.

        Args:
            db: a database.
            duration: seconds after which the item is available again, unless the lease is extended.
            timeout: as `dequeue`.

        Raises:
            FormatError, CodecError, SubscriptionError: as `dequeue`.

        *Conflicts:* and *Cost:* as `dequeue`, and two more writes.
        """
        at_once = type(timeout) is type(duration) is float and not timeout and duration > 0
        if at_once and (known := self.known(db, duration)) is not None:
            return _first_of(known.coordinator, db)
        only_database(db, "StagedQueue.lease", "In a transaction use Leases.lease(tr).")
        return self.take_one(db, "lease", timeout, positive(duration, "duration"))

    @verb
    def lease_many(
        self, db: Database, *, limit: int = 100, duration: float = 30.0, timeout: float | None = 0.0
    ) -> Steps[list[Lease[V]]]:
        """Lease up to `limit` first items, in order, once there is at least one; otherwise as `lease`."""
        only_database(db, "StagedQueue.lease_many", "In a transaction use Leases.lease_many(tr).")
        return self._take(db, "lease_many", limit, timeout, positive(duration, "duration"))

    @verb
    def ack(self, db: Database, lease: LeaseRef) -> Steps[None]:
        """Remove the item; acks that are pending together share a transaction.

        Raises:
            LeaseLost: of this lease. Other calls are not affected. TypeError: it is no lease, or a session's.

        *Conflicts:* as `Leases.ack`. *Cost:* a share of one commit. A lease that was not taken here within the last
        seconds is also read, in parallel with the others.
        """
        only_database(db, "StagedQueue.ack", "In a transaction use Leases.ack(tr, lease).")
        if type(lease) not in REF_TYPES:
            check_refs([lease])  # here: it must not fail the calls that share the transaction
        return self._state().acks.request(db, lease)

    @verb
    async def stats(self, tr: Transaction | Database) -> StagedStats:
        """Return the number of items in each state, and of waiting requests.

        *Conflicts:* none, it reads by snapshot. *Cost:* a few reads; it grows with the number of waiting processes.
        """
        items = await self.leases.stats.steps(tr)
        requests = await self.queue.read(tr, partial(Requests(self.queue.layout).first, limit=1_000))
        return StagedStats(items, len(requests), sum(request.wish.wanted for request in requests))

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare: all that `Leases.check` compares, requests and grants.

        *Conflicts:* none, it reads by snapshot. *Cost:* as `Leases.check`, and two reads.
        """
        layout = self.leases.layout
        return blocking(lambda: check_leases(tr, layout, lambda tr: RequestCheck(tr, layout)))

    def contention_stats(self) -> ContentionStats:
        """Return counts of what the calls of this object met at the head so far, for measurements."""
        return self._state().contention_stats

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        return self.leases.editing()

    async def _take(self, db: Database, verb: str, limit: int, timeout: float | None, duration_us: int) -> list[Any]:
        check_limit(limit, "items to take")
        check_timeout(timeout)
        if timeout != 0:
            await long_wait(f"{self.named}.{verb}")
        want = Want(limit, patient=timeout != 0)
        deadline = time.monotonic() + timeout if timeout else None
        coordinator = self._state().coordinator(db, duration_us)
        got = await coordinator.request(db, want, alone=limit == 1, deadline=deadline)
        return [one.given for one in got or ()]

    def take_one(self, db: Database, verb: str, timeout: float | None, duration_us: int) -> Steps[Any]:
        """Take the first item out, or lease it if there is a duration; for layers.

        Args:
            db: a database.
            verb: the verb's name, for warnings.
            timeout: as for `dequeue`.
            duration_us: the duration of the lease, checked by the caller; 0: the item is taken out.

        Raises:
            TypeError, ValueError: an argument is of a wrong kind.
        """
        only_database(db, f"StagedQueue.{verb}", "In a transaction use Leases.lease(tr) or Queue.dequeue(tr).")
        if type(duration_us) is not int:
            raise TypeError(f"duration_us is a number of microseconds, an integer, not {duration_us!r}.")
        if not 0 <= duration_us < 2**63:
            raise ValueError(f"duration_us is a number of microseconds from 0 on, less than 2^63, not {duration_us}.")
        if type(timeout) is float and not timeout:
            return _first_of(self._state().coordinator(db, duration_us), db)
        return self._wait_for_one(db, verb, timeout, duration_us)

    async def _wait_for_one(self, db: Database, verb: str, timeout: float | None, duration_us: int) -> Any:
        items = await self._take(db, verb, 1, timeout, duration_us)
        return items[0] if items else None

    def known(self, db: object, seconds: float) -> Latest | None:
        """Return the terms of the last call if it had this database and duration, which were checked then; for layers.

        Args:
            seconds: of the lease; 0: a call that takes items out.
        """
        state = self._states.get(os.getpid())
        latest = None if state is None else state.latest
        if latest is None or latest.seconds != seconds or latest.db() is not db:
            return None
        return latest

    def _state(self) -> ProcessState:
        pid = os.getpid()  # a forked process starts with a state of its own
        state = self._states.get(pid)
        if state is None:
            consumer = this_consumer(self._consumer)
            new = ProcessState(self.leases, consumer, type(self).delivery)
            state = self._states.setdefault(pid, new)  # atomic: of two threads, one wins
        return state


_Stored = tuple[bytes, list[bytes], int | None]
"""Envelope, chunks and rank."""


class Latest(NamedTuple):
    """A coordinator, and the calls that it serves."""

    db: Callable[[], object]
    """A weak reference to their database."""
    duration_us: int
    seconds: float
    """The duration of their leases; 0: they take items out."""
    coordinator: HeadCoordinator


async def _first_of(coordinator: HeadCoordinator, db: Database) -> Any:
    """Take the first item for a call that does not wait."""
    got = await coordinator.request(db, ONE)
    return got[0].given if got else None


class ProcessState:
    """Serves the calls of one process."""

    def __init__(self, leases: Leases, consumer: str, delivery: Callable[[Any], HeadDelivery]) -> None:
        self.leases = leases
        self.delivery = delivery
        self._queue = leases.queue
        self.consumer = consumer
        self.contention_stats = ContentionStats()
        self.recent_leases = RecentLeases()
        self._versions = KeptBeside(RecentVersion)
        self.coordinators: KeptBeside[dict[int, HeadCoordinator]] = KeptBeside(dict)
        self.latest: Latest | None = None
        """The coordinator of the last call."""
        self.enqueues: TransactionBatcher[_Stored, Position] = TransactionBatcher(self._enqueue, weight=BATCH_BYTES)
        self.acks: TransactionBatcher[LeaseRef, None] = TransactionBatcher(self._ack, weight=_ACKS_AT_ONCE)

    def coordinator(self, db: Database, duration_us: int) -> HeadCoordinator:
        """Return the coordinator that serves calls with one duration in a database."""
        latest = self.latest
        if latest is not None and latest.duration_us == duration_us and latest.db() is db:
            return latest.coordinator
        by_terms = self.coordinators.of(db)
        coordinator = by_terms.get(duration_us)
        if coordinator is None:
            if len(by_terms) >= MOST_TERMS:
                for terms in [terms for terms, known in list(by_terms.items()) if not known.calls.is_led()]:
                    by_terms.pop(terms, None)
            new = HeadCoordinator(self, db, duration_us)
            coordinator = by_terms.setdefault(duration_us, new)  # atomic: of two threads, one wins
        self.latest = Latest(weakref.ref(db), duration_us, duration_us / 1e6, coordinator)
        return coordinator

    def version_of(self, db: Database) -> RecentVersion:
        """Return the version of a database that this process saw last."""
        return self._versions.of(db)

    async def _enqueue(self, db: Database, values: list[_Stored]) -> list[Position | Exception]:
        random = new_random()
        layout, order = self._queue.layout, self._queue.order_name
        all_stored = [stored for stored, _, _ in values]
        ranks = [rank for _, _, rank in values if rank is not None]
        large = [(at, chunks) for at, (_, chunks, _) in enumerate(values) if chunks]

        async def body(tr: Transaction) -> list[Position | Exception]:
            last = await Admission(tr, layout, order).steps(len(all_stored))
            append_items(tr, layout, last + 1, random, all_stored, ranks=ranks or None, large=large, order=order)
            return [Position(last + 1 + at, random, rank=rank) for at, (_, _, rank) in enumerate(values)]

        try:
            return await self._queue.transact(db, body)
        except QueueFull as error:
            if len(values) == 1:
                return [error]
        found: list[Position | Exception] = []
        for value in values:  # calls that shared this transaction: some may have room
            found += await self._enqueue(db, [value])
        return found

    async def _ack(self, db: Database, leases: list[LeaseRef]) -> list[Exception | None]:
        old_grants: list[bytes] = []
        last: list[Transaction] = []
        saves_reads = not has_turns(db)

        async def body(tr: Transaction) -> list[Exception | None]:
            last[:] = [tr]
            # This forgets the leases, so that an attempt after a failed one reads them.
            live = self.recent_leases.take(leases, saves_reads=saves_reads)
            old_grants[:] = self.recent_leases.clear_grants(tr)
            if not live:
                return await self._ack_each(tr, leases)
            conflict_since(tr, live[0].version)
            self.leases.ack_unchanged(tr, live)
            return [None] * len(leases)

        results = await self._queue.transact(db, body, on_retry=self.contention_stats.note)
        if old_grants:
            self.recent_leases.forget_grants(old_grants)
        if saves_reads:
            self.version_of(db).note(committed_version(last[0]))
        return results

    async def _ack_each(self, tr: Transaction, leases: list[LeaseRef]) -> list[Exception | None]:
        first_of_each = {lease.position: lease for lease in reversed(leases)}
        lost: set[Position] = set()
        try:
            await self.leases.ack_many.steps(tr, first_of_each.values())
        except LeaseLost as error:
            lost.update(error.lost)
            good = [lease for lease in first_of_each.values() if lease.position not in lost]
            await self.leases.ack_many.steps(tr, good)
        results: list[Exception | None] = []
        for lease in leases:
            if first_of_each[lease.position] is lease and lease.position not in lost:
                results.append(None)
            else:
                results.append(await self._refuse(tr, lease))
        return results

    async def _refuse(self, tr: Transaction, lease: LeaseRef) -> Exception | None:
        """Ack one lease alone, so that it has its own error if it is lost. A stale lease may come before a good one."""
        try:
            await self.leases.ack.steps(tr, lease)
        except LeaseLost as error:
            return error
        return None
