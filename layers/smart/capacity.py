"""Limits: whether there is room for an incoming item, and which items are removed for it.

A limit of a type or a key is counted in the index, so it may be declared, raised or lowered while the queue is in use.
A limit of the queue is counted by its counters. Both are plain reads: of two incoming items for one free place, one
conflicts. That is the cost of an exact limit, for all enqueues within it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast

from fdbqueue import Queue, QueueFull
from fdbqueue.engine.optional import has_turns
from fdbqueue.engine.waiting import until_changed
from fdbqueue.lowlevel import (
    Database,
    Future,
    Standing,
    Steps,
    Transaction,
    attempts,
    is_database,
    locate,
    pack,
    read_counts,
    rows,
    started,
    within,
)
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.places import InQueue
from fdbqueue.stored.positions import rank_of
from fdbqueue.stored.shapes import Due

from ..common.waiting import long_wait
from ..leases import Leases
from ..leases.lease import check_timeout, check_waits
from ..leases.timers import FIRE_LIMIT, due_timers, next_due_us, readable
from .check_runner import Incoming
from .scanning import Entries, SmartIndex, begun_entries, place_of
from .types import MOST_COUNTED, Limit

R = TypeVar("R")

WATCHED_ENTRIES = 100
"""Up to this many items, a waiting call watches each; above, it watches the counters, which each removal changes."""
_AT_LEAST_SECONDS = 0.01
_GONE = ("dequeued", "expired", "purged", "deleted", "dead")
_UNLEASED: tuple[InQueue, ...] = ("available", "delayed")


@dataclass(slots=True)
class Going:
    """The items that this transaction is going to remove."""

    expired: list[Standing] = field(default_factory=list)
    deleted: list[Standing] = field(default_factory=list)
    packed: set[bytes] = field(default_factory=set)

    def expire(self, items: Iterable[Standing]) -> None:
        """Add outdated items."""
        for item in items:
            self.expired.append(item)
            self.packed.add(item.packed)

    def delete(self, *items: Standing) -> None:
        """Add items that an incoming item overrides or cancels, or that make room for it."""
        for item in items:
            self.deleted.append(item)
            self.packed.add(item.packed)

    def spare(self) -> None:
        """Keep the items that would be deleted for an incoming item, since it is left out."""
        self.packed.difference_update(item.packed for item in self.deleted)
        self.deleted.clear()


class Capacity:
    """The limits of one queue.

    Args:
        queue: the queue.
        leases: its leases, for their clock. `wait` fires their timers.
        index: its index.
        limit: the limit of all its items.
    """

    def __init__(self, queue: Queue, leases: Leases, index: SmartIndex, limit: Limit | None) -> None:
        self._leases = leases
        self._queue = queue
        self._layout = self._queue.layout
        self._index = index
        self._limit = limit
        self.begun: frozenset[bytes] = frozenset()
        """Packed positions of items of a session that a worker has begun. Their keys are those of available items, and
        they are not dropped. In a plain queue there are none."""

    async def make(
        self, tr: Transaction, new: Incoming, going: Going, now_us: int, ahead: Iterable[Steps[object]] = ()
    ) -> bool:
        """Return whether there is room for an incoming item; add items that are dropped for it to `going`.

        Args:
            ahead: what `ahead` has begun.

        Raises:
            QueueFull: a limit that refuses is reached, or no item can be dropped.

        *Conflicts:* with every item that enters or leaves within the same limit. *Cost:* for each limit, one read of
        the counters, or of up to that many keys; if the limit is reached, one more read of the items.
        """
        for one in ahead:
            await one
        for limit, span in self._of_index(new):
            if not await self._in_index(tr, limit, span, going, now_us, new):
                return False
        return self._limit is None or await self._in_queue(tr, self._limit, going, now_us, new)

    async def wait(self, db: Database, new: Incoming, limit: Limit, seconds: float | None) -> None:
        """Wait until an item that `limit` counts has left, or `seconds` have passed.

        *Cost:* a transaction that watches up to 100 keys; it wakes when one of them changes, or an item expires.
        """
        if await until_changed_or_due(db, partial(self._watch, new=new, limit=limit), self._leases.now_us, seconds):
            # No other process may fire the timer, and an expired item must make room.
            await self._leases.reclaim.steps(db)

    def spans(self, batch: Sequence[Incoming]) -> dict[Entries, int]:
        """Return the entries that count for the limits of incoming items, and how many of each `make` may read."""
        return {span: limit.most + len(batch) for new in batch for limit, span in self._of_index(new)}

    def counted(self, tr: Transaction) -> list[Steps[dict[str, int]]]:
        """Begin to count what the queue has, by snapshot, if it has a limit."""
        return [] if self._limit is None else [started(read_counts(tr, self._layout))]

    def ahead(self, tr: Transaction, new: Incoming) -> list[Steps[object]]:
        """Begin to read by snapshot what `make` reads first, so that a cluster's client has it by then."""
        if has_turns(tr):
            return []
        return [*self.counted(tr), *(read for _, read in begun_entries(tr, self.spans((new,))))]

    def _of_index(self, new: Incoming) -> list[tuple[Limit, Entries]]:
        limits = []
        if new.type.key_limit is not None:
            limits.append((new.type.key_limit, self._index.key_span(new.type.name, new.key)))
        if new.type.limit is not None:
            limits.append((new.type.limit, self._index.span(new.type.name)))
        return limits

    async def _in_index(
        self, tr: Transaction, limit: Limit, span: Entries, going: Going, now_us: int, new: Incoming
    ) -> bool:
        most = limit.most + len(going.packed)
        entries = await rows(tr, span.begin, span.end, limit=most)
        if len([row for row in entries if span.packed(row.key) not in going.packed]) < limit.most:
            return True
        entries = await rows(tr, span.begin, span.end, limit=max(MOST_COUNTED, most))
        there = sorted(packed for row in entries if (packed := span.packed(row.key)) not in going.packed)
        items = await locate(tr.snapshot, self._layout, there)
        for item in items:
            # An item that is leased or comes back meanwhile keeps its entry. Only the item's own key shows this.
            tr.add_read_conflict_key(place_of(self._layout, item.state).key(item.packed))
        items = self._seen(items)
        over = Takes.outdated(items, now_us)
        going.expire(over)
        surplus = len(items) - len(over) - limit.most + 1
        free = [item for item in items if item.state != "leased" and item.packed not in going.packed]
        free.sort(key=_to_drop_first)
        return self._settle(limit, surplus, free, going, new)

    async def _in_queue(self, tr: Transaction, limit: Limit, going: Going, now_us: int, new: Incoming) -> bool:
        surplus = await self._count(tr) - len(going.packed) - limit.most + 1
        if surplus <= 0:
            return True
        surplus -= await self._expire(tr, surplus, going, now_us)
        free: list[Standing] = []
        if surplus > 0 and limit.when_full == "drop oldest":
            free = await self._to_drop(tr, surplus, going)
        return self._settle(limit, surplus, free, going, new)

    def _settle(self, limit: Limit, surplus: int, free: list[Standing], going: Going, new: Incoming) -> bool:
        if surplus <= 0:
            return True
        if limit.when_full == "drop newest":
            return False
        if limit.when_full == "drop oldest" and len(free) >= surplus:
            going.delete(*free[:surplus])
            return True
        leased = " and those that could be dropped are leased" if limit.when_full == "drop oldest" else ""
        raise QueueFull(
            f"{self._queue!r} has no room for a new {new.type.name!r}: {limit} is reached{leased}. Nothing was written."
            " Come again when some have gone, or let the limit drop items or wait.",
            limit=limit,
        )

    async def _expire(self, tr: Transaction, wanted: int, going: Going, now_us: int) -> int:
        """Add outdated items to `going`, until they reach the wanted number; return how many."""
        due = await due_timers(tr, self._layout, now_us, limit=MOST_COUNTED)
        positions = [position for _, position, kind in readable(self._layout, due) if kind == Due.TTL]
        ended = [packed for packed in dict.fromkeys(map(pack, positions)) if packed not in going.packed]
        gone = 0
        for start in range(0, len(ended), FIRE_LIMIT):
            there = await locate(tr.snapshot, self._layout, sorted(ended[start : start + FIRE_LIMIT]))
            over = Takes.outdated(self._seen(there), now_us)
            for item in over:
                tr.add_read_conflict_key(place_of(self._layout, item.state).key(item.packed))
            going.expire(over)
            gone += len(over)
            if gone >= wanted:
                break
        return gone

    async def _to_drop(self, tr: Transaction, wanted: int, going: Going) -> list[Standing]:
        """Return at least `wanted` items, the first to drop first. Return fewer if the others are leased.

        It reads one rank after the other, from the least urgent on. Without an order, all items have the same rank.
        """
        free: list[Standing] = []
        before: int | None = None
        while len(free) < wanted:
            ends = [self._span(state, below=before) for state in _UNLEASED]
            lasts = []
            for state, (begin, end) in zip(_UNLEASED, ends, strict=True):
                found = await rows(tr, begin, end, limit=1, reverse=True)
                lasts += [place_of(self._layout, state).packed(row.key) for row in found]
            if not lasts:
                break
            rank = rank_of(max(lasts))
            there: list[Standing] = []
            for state in _UNLEASED:
                place = place_of(self._layout, state)
                begin, end = self._span(state, rank=rank)
                most = wanted - len(free) + len(going.packed) + len(self.begun)
                found = await rows(tr, begin, end, limit=most)
                there += [Standing(place.packed(row.key), state, row.value) for row in found]
            there.sort(key=_to_drop_first)
            free += [item for item in self._seen(there) if item.state != "leased" and item.packed not in going.packed]
            if rank is None:
                break
            before = rank
        return free

    def _seen(self, items: list[Standing]) -> list[Standing]:
        """Return items, those that a worker has begun as leased ones."""
        if not self.begun:
            return items
        return [Standing(one.packed, "leased", one.stored) if one.packed in self.begun else one for one in items]

    def _span(self, state: InQueue, *, rank: int | None = None, below: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of the items of one state; of one rank, or of all ranks below one."""
        place = place_of(self._layout, state)
        if below is not None:
            return place.begin, place.level(below)[0]
        if rank is not None:
            return place.level(rank)
        return place.begin, place.end

    async def _count(self, tr: Transaction) -> int:
        # A plain read: the limit is exact, so an item that enters or leaves meanwhile makes this transaction run again.
        tr.add_read_conflict_range(*within(self._layout.counts.key()))
        counts = await read_counts(tr, self._layout)
        return counts.get("enqueued", 0) - sum(counts.get(name, 0) for name in _GONE)

    async def _watch(self, tr: Transaction, new: Incoming, limit: Limit) -> Watches:
        """Return watches on keys that change when there is room, and the next due time; no watch if there is room."""
        due_us = await next_due_us(tr, self._layout, self._leases.now_us())
        return [tr.watch(key) for key in await self._full(tr, new, limit)], due_us

    async def _full(self, tr: Transaction, new: Incoming, limit: Limit) -> list[bytes]:
        """Return keys such that one of them changes when there is room; none if there is room already.

        The same limit may be given for a type, its keys and the queue; each is counted separately.
        """
        counters = [self._layout.count_key(name) for name in _GONE]
        for own, span in self._of_index(new):
            if own is limit:
                # A snapshot read: the watches compare with the values that this transaction saw, so they miss nothing.
                entries = await rows(tr.snapshot, span.begin, span.end, limit=limit.most)
                if len(entries) >= limit.most:
                    return [row.key for row in entries] if len(entries) <= WATCHED_ENTRIES else counters
        return counters if limit is self._limit and await self._count(tr) >= limit.most else []


Watches: TypeAlias = tuple[list[Future[None]], int | None]
"""Watches on keys that change when a call may go on, none if it may now; and when the next timer is due."""


async def until_changed_or_due(
    db: Database,
    watch: Callable[[Transaction], Steps[Watches]],
    now_us: Callable[[], int],
    seconds: float | None,
) -> bool:
    """Wait until a watched key changes, a timer is due, or `seconds` have passed. Return whether a timer is due."""
    watches, due_us = await attempts(db, watch)
    if not watches:
        return False
    until_due = None if due_us is None else max(_AT_LEAST_SECONDS, (due_us + 1 - now_us()) / 1e6)
    began = time.monotonic()
    await until_changed(watches, seconds, until_due)
    return until_due is not None and time.monotonic() - began >= until_due


def check_waiting(tr: Transaction | Database, timeout: float | None) -> None:
    """Check a call that may wait for room.

    Raises:
        TypeError, ValueError: the timeout is none, or was given with a transaction.
    """
    if not is_database(tr) and timeout is not None:
        check_waits(tr)
    check_timeout(timeout)


class Wait(Protocol):
    """Waits until an item that a limit counts has left."""

    def __call__(self, db: Database, /, *, limit: Limit, seconds: float | None) -> Steps[None]: ...


async def until_room(
    queue: Queue,
    tr: Transaction | Database,
    admit: Callable[[Transaction], Steps[R]],
    wait: Wait,
    timeout: float | None,
    verb: str,
) -> R:
    """Admit an incoming item. If a limit says "wait", and the call has a database, wait for room and try again.

    Args:
        admit: a transaction that admits it.
        timeout: how many seconds to wait; None: no limit.
        verb: the name of the verb, for messages.

    Raises:
        QueueFull: there was no room.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return await queue.transact(tr, admit)
        except QueueFull as error:
            left = None if deadline is None else deadline - time.monotonic()
            limit = cast(Limit, error.limit)
            if limit.when_full != "wait" or not is_database(tr) or (left is not None and left <= 0):
                raise
            await long_wait(verb)
            await wait(cast(Database, tr), limit=limit, seconds=left)


def _to_drop_first(item: Standing) -> tuple[int, bytes]:
    """Return the sort key in the order of "drop oldest": the least urgent items first, and of these the oldest."""
    return -(rank_of(item.packed) or 0), item.packed
