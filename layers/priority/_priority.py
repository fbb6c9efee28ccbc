"""`PriorityQueue`: the verbs of a queue with levels."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from fdbqueue import BulkReport, CheckReport, Item, Position, Queue
from fdbqueue.arrow.needs import ArrowTable
from fdbqueue.base.arguments import check_borders
from fdbqueue.base.beside import KeptBeside
from fdbqueue.lowlevel import (
    TAKEN,
    Browser,
    Database,
    Editing,
    KeyValue,
    Layout,
    Named,
    Shown,
    Steps,
    Transaction,
    V,
    pack,
    rows,
    started,
    verb,
)
from fdbqueue.stored.counters import read_level_counts
from fdbqueue.stored.order import MAX_RANK
from fdbqueue.stored.policies import check_policy

from ..common.composing import TakenFromFront
from ..common.levels import Levels, with_priority
from ..leases import Backoff, Head, Leases, LeaseStats
from ..leases.lease import not_negative

# A weighted head: every level gets turns, so that none starves.
#
# Each transaction that takes items has a turn. It begins with the turn's level, and continues by rank if that level
# has too few items. Each process has its own wheel of turns. A round of the wheel has as many turns as the sum of the
# weights. In it each level has exactly its weight in turns, spread evenly. A conflict uses up the attempt's turn.

MAX_WEIGHTS = 10_000


@dataclass(slots=True)
class _Turn:
    """The turn of one transaction. It holds until a read starts from the front after a take."""

    level: int
    taken: bool = False


class WeightedHead(Head):
    """Find the first items of the turn's level, and then of the other levels.

    Args:
        layout: the queue's layout.
        weights: one weight for each level, from rank 0 on: its number of turns in a round, at least 1.
        spin: returns a number below n, the wheel's first turn. It is random, so that processes that live for only one
            turn begin with different levels.
    """

    def __init__(
        self, layout: Layout, weights: Sequence[int], *, spin: Callable[[int], int] = random.randrange
    ) -> None:
        given: Sequence[object] = weights
        if not all(isinstance(one, int) and one >= 1 for one in given) or not 1 <= sum(weights) <= MAX_WEIGHTS:
            raise ValueError(f"Weights are integers from 1 on, up to {MAX_WEIGHTS:,} in all, not {list(weights)}.")
        super().__init__(layout)
        self._given = (weights, spin)
        self._wheel = tuple(wheel(weights))
        self._turns = itertools.count(spin(len(self._wheel)))
        self._begun: KeptBeside[_Turn | None] = KeptBeside(lambda: None)

    def __reduce__(self) -> tuple[object, ...]:
        weights, spin = self._given
        return partial(WeightedHead, weights=weights, spin=spin), (self._layout,)

    async def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> list[KeyValue]:
        turn = self._begun.get(tr)
        if turn is None or (turn.taken and after is None):
            turn = _Turn(self._wheel[next(self._turns) % len(self._wheel)])
            self._begun.put(tr, turn)
        own, *others = self._spans(turn.level, after)
        found = await rows(tr.snapshot, *own, limit=limit)
        if len(found) < limit:
            reads = [started(rows(tr.snapshot, *span, limit=limit - len(found))) for span in others]
            for read in reads:
                found += await read
        return found[:limit]

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items and end the turn.

        The conflict ranges are those of strict order within each level: from its begin to its last taken item. Items
        that arrive in another level meanwhile don't conflict, because the turn does not take from that level.
        """
        for begin, run in _runs(self._layout, taken):
            tr.add_read_conflict_range(begin, run[-1].key + b"\x00")
            tr.clear_range(run[0].key, run[-1].key + TAKEN)
        turn = self._begun.get(tr)
        if turn is not None:
            turn.taken = True

    def _spans(self, level: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of keys to read, in order, starting behind `after`."""
        begin, end = self._layout.level(level)
        for span in ((begin, end), (self._layout.begin, begin), (end, self._layout.end)):
            if after is None:
                yield span
            elif span[0] <= after < span[1]:
                yield after + b"\x00", span[1]
                after = None


def wheel(weights: Sequence[int]) -> Iterator[int]:
    """Yield each level as many times as its weight, spread evenly.

    >>> list(wheel([3, 2, 1]))
    [0, 1, 0, 2, 1, 0]
    """
    total = sum(weights)
    due = [0] * len(weights)
    for _ in range(total):
        due = [gained + weight for gained, weight in zip(due, weights, strict=True)]
        level = due.index(max(due))
        due[level] -= total
        yield level


def _runs(layout: Layout, taken: Iterable[KeyValue]) -> Iterator[tuple[bytes, list[KeyValue]]]:
    """Yield each run of adjacent items of one level, with the begin of that level."""
    for rank, run in itertools.groupby(taken, key=lambda row: layout.position_of(row.key).rank):
        yield layout.begin if rank is None else layout.level(rank)[0], list(run)


@dataclass(frozen=True, slots=True, repr=False)
class PriorityStats(Shown):
    """The contents of a priority queue."""

    items: LeaseStats
    """The numbers of items by state."""
    levels: tuple[int, ...]
    """The number of available items in each level, the soonest level first."""


class PriorityQueue(Named, TakenFromFront[V]):
    """A queue whose items have priorities.

    `leases` leases, acks and gives back its items, and every layer on top of the priority queue takes them. Every verb
    accepts a transaction to run in, or a database, and has an awaitable form. A dequeue conflicts with a consumer that
    takes the same item, and with an item that arrives in front of it. It costs two reads in parallel for all levels and
    four writes; with weights, two more reads if the turn's level has no item.

    Args:
        queue: the queue, without an order.
        levels: the number of levels, for priorities from 0, the soonest, on. Or `AmqpLevels` for the priorities of
            AMQP and JMS.
        weights: the number of turns of each level, the soonest level first. None: strictly by priority.
        max_attempts, backoff, clock: as for `Leases`.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import PriorityQueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = PriorityQueue(Queue("jobs", codec="str"), levels=3)
    >>> for value, priority in (("tidy up", 2), ("answer", 1), ("put out the fire", 0), ("answer again", 1)):
    ...     position = jobs.enqueue(db, value, priority=priority)
    >>> jobs.dequeue(db).value
    'put out the fire'
    >>> lease = jobs.leases.lease(db)
    >>> lease.value, lease.headers["priority"], jobs.stats(db).levels
    ('answer', 1, (0, 1, 1))
    >>> fate = jobs.leases.nack(db, lease)
    >>> [item.value for item in jobs.browse(db)]
    ['answer', 'answer again', 'tidy up']
    >>> db.close()
    """

    def __init__(
        self,
        queue: Queue[V],
        *,
        levels: Levels | int = 10,
        weights: Sequence[int] | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(queue, Queue):
            raise TypeError(
                f"A priority queue is made of a Queue, as in PriorityQueue(Queue('jobs')), not of {queue!r}. It takes"
                " max_attempts, backoff and clock itself; other layers are made of the priority queue."
            )
        if queue.order is not None:
            raise ValueError(f"{queue!r} has an order already; give the queue without one.")
        if not isinstance(levels, int | Levels):
            raise TypeError(f"levels is a number of levels, or Levels, as in levels=AmqpLevels(5), not {levels!r}.")
        self.levels = Levels(levels) if isinstance(levels, int) else levels
        if weights is not None and not isinstance(weights, Sequence):
            raise TypeError(f"weights has an integer for each level, as in weights=[3, 2, 1], not {weights!r}.")
        if weights is not None and len(weights) != self.levels.count:
            raise ValueError(f"{self.levels.count} levels want as many weights, not {len(weights)}.")
        known = queue.layout.known
        known.give(check_policy(max_attempts, backoff), repr(queue))
        self.queue = Queue(queue.layout.space, codec=queue.codec, order=self.levels)
        """The queue with this order."""
        layout = self.queue.layout
        layout.known.made = queue.layout.known.made  # a SmartQueue of the given queue refuses plain items here, too
        head = Head(layout) if weights is None else WeightedHead(layout, weights)
        layout.known.give(known.policy, repr(queue))
        self.leases = Leases(self.queue, clock=clock, head=head)
        """Leases of its items: lease, ack, nack and the rest."""

    def __repr__(self) -> str:
        return f"PriorityQueue({self.queue.layout.describe()}, levels={self.levels!r})"

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: V,
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> Position:
        """Append an item to its level.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec accepts.
            priority: a priority of `levels`, stored as the header "priority". None: the value of that header, or the
                default.
            delay, at, ttl, headers: as for `Leases.enqueue`.

        Raises:
            ValueError: the queue has no such priority.
            CodecError, ItemTooLarge, OrderError: as for `Queue.enqueue`. In all cases no key was changed.

        *Conflicts:* none for the enqueue. Consumers that take less urgent items at the same time conflict with it and
        retry. *Cost:* one read, four writes, and one write each for a delay and a time to live.
        """
        headers = with_priority(self.queue, headers, priority)
        return await self.leases.enqueue.steps(tr, value, delay=delay, at=at, ttl=ttl, headers=headers)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[V] | ArrowTable,
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        column: str | None = None,
        headers_column: str | None = None,
        priority_column: str | None = None,
        delay_column: str | None = None,
        ttl_column: str | None = None,
    ) -> BulkReport:
        """Append items in order, all with the same arguments, as `Leases.enqueue_many` does.

        To load values of many priorities, give `levels` an `of` function, or a table with a `priority_column` of whole
        numbers. A null there means `priority`. `queue.enqueue_many` is faster, but takes none of these arguments.
        """
        headers = with_priority(self.queue, headers, priority)
        return await self.leases.enqueue_rows(
            *(tr, values),
            terms={"delay": delay, "at": at, "ttl": ttl, "headers": headers},
            columns={
                "column": column,
                "headers_column": headers_column,
                "priority_column": priority_column,
                "delay_column": delay_column,
                "ttl_column": ttl_column,
            },
        )

    @verb
    async def next_item(self, tr: Transaction | Database, position: Position) -> Item[V] | None:
        """Return the next available item after a position, in its level or a later one, or None.

        Raises:
            TypeError: `position` is no Position.

        *Conflicts:* in a transaction, with writes that take the item or add one in between. *Cost:* one read.
        """
        Editing.place_of(position, "next_item")
        return await self.queue.read(tr, partial(self._next_item, position=position))

    def browse(
        self,
        tr: Transaction | Database,
        *,
        level: int | None = None,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
    ) -> Browser[Item[V]]:
        """Iterate over the available items of all levels in order, or of one (0: the soonest). See `Queue.browse`."""
        if level is not None:
            count = self.levels.count
            if not isinstance(cast(object, level), int) or not 0 <= level < count:
                raise ValueError(f"A level of this queue is an integer from 0 to {count - 1}, not {level!r}.")
            check_borders(after, before)
            begin, end = Position(0, b"", rank=level), Position(0, b"", rank=level + 1)
            after = begin if after is None else max(begin, after, key=pack)
            before = end if before is None else min(end, before, key=pack)
        return self.queue.browse(tr, after=after, before=before, limit=limit, reverse=reverse, duty_cycle=duty_cycle)

    @verb
    async def stats(self, tr: Transaction | Database) -> PriorityStats:
        """Return the number of items in each state, and in each level.

        *Conflicts:* none, because it reads by snapshot. *Cost:* four reads, for a queue of any size.
        """
        items = await self.leases.stats.steps(tr)
        counts = await self.queue.read(tr, partial(read_level_counts, layout=self.queue.layout))
        return PriorityStats(items, tuple(counts.get(rank, 0) for rank in range(self.levels.count)))

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read all that the queue owns and report contradictions, like `Leases.check`, with ranks and levels.

        *Conflicts:* none, because it reads by snapshot. *Cost:* as for `Leases.check`.
        """
        return self.leases.check.steps(tr)

    async def _next_item(self, tr: Transaction, position: Position) -> Item[V] | None:
        layout = self.queue.layout
        found = await rows(tr, layout.item_key(position) + b"\x00", layout.end, limit=1)
        for row in found:
            return await self.queue.item(tr, layout.position_of(row.key), row.value)
        return None


DEADLINE = "deadline"


class EarliestDeadline:
    """Earliest deadline first: an `fdbqueue.Order` by the header "deadline", in seconds since 1970.

    Challenge
        Items are due at different times, and a free consumer should take the one that is due first.

    Keys
        Those of a queue with an order, with the deadline in microseconds as rank.

    Ordering
        By deadline. Items of the same microsecond come in commit order, and items without a deadline after all others.
        The order is strict through an item's whole life.

    Guarantees
        Those of the queue and of every layer over it: this only adds an order, and overrides nothing.

    Limits
        Nothing happens when a deadline passes: the item is still the first one. A time to live removes it.

    Source
        Apache Qpid, "Queue Implementation" (a new list type by its order); Liu and Layland, 1973, for the rule.

    >>> import fdbqueue
    >>> from fdbqueue.layers import EarliestDeadline, Leases
    >>> with fdbqueue.open("memory:") as db:
    ...     flights = Leases(fdbqueue.Queue("flights", codec="str", order=EarliestDeadline()))
    ...     for value, deadline in (("to Rome", 1800000900.5), ("to Oslo", 1800000300.0)):
    ...         position = flights.enqueue(db, value, headers={"deadline": deadline})
    ...     lease = flights.lease(db)
    ...     (lease.value, lease.position.rank)
    ('to Oslo', 1800000300000000)
    """

    name = "earliest deadline"

    def __repr__(self) -> str:
        return "EarliestDeadline()"

    def rank(self, value: object, headers: Mapping[str, object] | None) -> int:
        """Return the deadline in microseconds, or the largest rank if there is none.

        Raises:
            ValueError: the header is not such a number.
        """
        if headers is None or DEADLINE not in headers:
            return MAX_RANK
        deadline = headers[DEADLINE]
        if not isinstance(deadline, int | float):
            raise ValueError(f"A deadline is a number of seconds since 1970, not {deadline!r}.")
        return not_negative(deadline, DEADLINE)
