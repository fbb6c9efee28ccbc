"""Relaxed order: consumers pick among the first K items, and so seldom conflict.

Challenge
    Strict order has its price: all consumers want the same item. A consumer that accepts nearly-first items need not
    wait for others, register, or fulfill requests, and can take items inside its own transactions.

Ordering
    In the view of its transaction, a taken item was among the first K available items. So at most K - 1 items were in
    front of it. Each take skips the first item with probability (K - 1) / K at most. The takes skip it n times with
    probability ((K - 1) / K) ** n; there is no bound. A single consumer sees items out of order too. A run of items
    that is taken together keeps its order.

    In a queue with an order the window ends with the first item's rank. So levels stay strict: an item is taken only if
    no item has a smaller rank. If each item has its own rank, as with `EarliestDeadline`, the order is strict.

Guarantees
    As `Leases`: at most one live lease per item, exactly once for calls that commit on their own. Two takes conflict if
    they picked a common item. Then one commits and the other picks again. With n takes at once, about n / K of their
    commits conflict.

Limits
    It reads half of K items, on average, to take one. Its calls do not wait for items: `StagedQueue` waits, and is
    strict.

Source
    The relaxed queues of the literature (k-FIFO: Kirsch et al., 2013), and every hash that spreads a hot key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

from fdbqueue import Queue
from fdbqueue.lowlevel import TAKEN, KeyValue, Layout, Named, Transaction, V, rows, started
from fdbqueue.stored.positions import rank_of

from ..common.composing import QueueWithLeases, TakenFromFront, leases_of, strict
from ..leases import Head, Leases
from ..leases.taking import HeadRead, Taking
from ..leases.transitions import Retry
from .delivery import TRY_AGAIN_LOOKS

WINDOW = 32


class RelaxedHead(Head):
    """A run of the first K items that starts at a random one. With an order, all are of the first item's rank.

    Args:
        layout: the layout of the queue.
        window: K, at least 1; 1 is strict.
        choose: returns a number below n; for tests.
    """

    def __init__(
        self, layout: Layout, *, window: int = WINDOW, choose: Callable[[int], int] = random.randrange
    ) -> None:
        if not isinstance(cast(object, window), int) or isinstance(window, bool):
            raise TypeError(f"window is among how many first items to pick, an integer, not {window!r}.")
        if window < 1:
            raise ValueError(f"window is among how many first items to pick, at least 1, not {window}.")
        super().__init__(layout)
        self._window = window
        self._choose = choose

    async def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> list[KeyValue]:
        if after is not None:
            # Right behind it. Taken items form one run: items between two runs would be cleared with them.
            return await super().first(tr, limit=limit, after=after)
        start = self.start(limit)
        return self.pick(await super().first(tr, limit=start + limit), start, limit)

    def taking(self, queue: Queue, retry: Retry, clock_us: Callable[[], int]) -> RelaxedTaking:
        return RelaxedTaking(queue, self, retry, clock_us)

    def start(self, limit: int) -> int:
        """Return how many of the first items are in front of a run of `limit`, if there are so many.

        It is chosen before the read, so that the items behind the run are not read.
        """
        start: int = self._choose(max(1, self._window - limit + 1))
        return start

    def pick(self, found: list[KeyValue], start: int, limit: int) -> list[KeyValue]:
        """Return a run of up to `limit` of the items that were read: from `start`, or from another one if they end
        before, or if their rank does."""
        among = self._among(found)
        if among < start + limit:
            start = self._choose(max(1, among - limit + 1))
        return found[start : start + limit]

    def _among(self, found: Sequence[KeyValue]) -> int:
        """Return the number of first items to pick from: those that have the first item's rank."""
        if not found or self._rank(found[0]) == self._rank(found[-1]):  # they are sorted by rank
            return len(found)
        return sum(self._rank(row) == self._rank(found[0]) for row in found)

    def _rank(self, row: KeyValue) -> int | None:
        return rank_of(self._layout.available.packed(row.key))

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear a run of items.

        The conflict range is the run alone: changes in front of it do not matter here.
        """
        begin, last = taken[0].key, taken[-1].key
        tr.add_read_conflict_range(begin, last + b"\x00")
        tr.clear_range(begin, last + TAKEN)


class RelaxedTaking(Taking):
    """Takes items of a relaxed head, with one read for them and for the timers, in a queue without timers."""

    __slots__ = ("_looks", "_relaxed", "_without_timers")

    def __init__(self, queue: Queue, head: RelaxedHead, retry: Retry, clock_us: Callable[[], int]) -> None:
        super().__init__(queue, head, retry, clock_us)
        self._relaxed = head
        self._looks = 0
        self._without_timers = True
        """Whether the last look found no due timer, and no timer behind it."""

    def look(self, tr: Transaction, *, limit: int) -> HeadRead:
        self._looks += 1
        if not self._without_timers and self._looks % TRY_AGAIN_LOOKS:
            return super().look(tr, limit=limit)
        now_us = self._clock_us()
        return HeadRead(now_us, None, limit, started(self._timers_and_run(tr, now_us, limit)))

    async def _timers_and_run(self, tr: Transaction, now_us: int, limit: int) -> list[KeyValue]:
        """Return a run of items. If there are timers, return them first: `see` looks again then."""
        begin, _ = self._layout.timers_until(now_us)
        start = self._relaxed.start(limit)
        found = await rows(tr.snapshot, begin, self._layout.end, limit=start + limit)
        self._without_timers = not found or found[0].key >= self._layout.begin
        return self._relaxed.pick(found, start, limit) if self._without_timers else found


class RelaxedQueue(Named, TakenFromFront[V]):
    """A queue whose consumers pick among its first items.

    Its verbs take a database, or a transaction that they become part of; every verb has an awaitable form. A dequeue
    conflicts with a transaction that takes the same item. It costs one read of 1 to K items, or two in parallel in a
    queue with timers, and two writes.

    Args:
        queue: the queue, its `Leases`, whose policy and clock it follows, or a layer that has leases, such as a
            `PriorityQueue` without weights.
        window: the number of first items to pick from. A larger window means fewer conflicts and less order.

    Raises:
        TypeError: `queue` is not a Queue, Leases or such a layer.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import RelaxedQueue
    >>> with fdbqueue.open("memory:") as db:
    ...     relaxed = RelaxedQueue(Queue("q", codec="json"), window=3)
    ...     report = relaxed.queue.enqueue_many(db, [0, 1, 2, 3])
    ...     relaxed.dequeue(db).value in (0, 1, 2)
    True
    """

    def __init__(self, queue: Queue[V] | Leases[V] | QueueWithLeases[V], *, window: int = WINDOW) -> None:
        given = strict(leases_of(queue, "RelaxedQueue"), "RelaxedQueue", "A queue has one head: give Leases(queue).")
        self.queue = given.queue
        head = RelaxedHead(self.queue.layout, window=window)
        self.leases = Leases(self.queue, clock=given.clock, head=head)
        """The leases of items that are picked in this way: lease, ack, nack and the rest."""
        self._window = window

    def __repr__(self) -> str:
        return f"RelaxedQueue({self.queue.layout.describe()}, window={self._window})"
