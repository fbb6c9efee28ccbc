"""Immediate delivery: an enqueue gives its item straight to a consumer that waits for it, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from fdbqueue import Position
from fdbqueue.lowlevel import (
    Notes,
    Shown,
    Transaction,
    chunks_of,
    envelope,
    is_paused,
    new_random,
    pack,
    started,
    value_of,
    with_notes,
)
from fdbqueue.moves.taking import ItemRow, Takes, taken_at_once
from fdbqueue.stored.items import kept_size_of
from fdbqueue.writes.appending import append_item

from ..leases import LeaseHandle, Leases
from ..staged.requests import GRANT_SECONDS, Request
from ._credit import credit_left
from ._cursor import Cursor, Habit
from ._exclusive_all import ExclusiveHead
from ._records import SubscriptionRecord, read_registration
from ._waiters import Waiters
from .selectors import ItemTest, Selector


@dataclass(frozen=True, slots=True, repr=False)
class Delivery(Shown):
    """The result of an enqueue."""

    position: Position
    """The item's position."""
    subscription: str | None
    """The subscription whose waiting consumer has it; None: the item is available to any consumer."""


@dataclass(slots=True)
class _New:
    position: Position
    """Its index is 0 until one is assigned."""
    stored: bytes
    notes: Notes

    @property
    def packed(self) -> bytes:
        """Its packed position."""
        return pack(self.position)


class ImmediateDelivery:
    """Enqueues into one queue.

    Args:
        leases: the queue's leases.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._layout = leases.layout
        self._waiters = Waiters(leases.layout)

    async def enqueue(
        self,
        tr: Transaction,
        payload: bytes,
        headers: Mapping[str, Any] | None,
        rank: int | None,
        *,
        ttl_us: int,
        immediate: bool,
    ) -> Delivery | None:
        """Deliver an item to a waiter, or enqueue it; if it is `immediate`, deliver it or do nothing.

        All of it is one transaction. It conflicts if the waiter leaves, if the subscription loses its credit, or if an
        item is placed before this one. So no other consumer sees or takes the item between its enqueue and its lease.
        """
        now_us = self._leases.now_us()
        position = Position(0, new_random(), rank=rank)
        new = _New(
            position,
            envelope(payload, headers),
            Notes(enqueued_at_us=now_us, ttl_at_us=now_us + ttl_us if ttl_us else 0),
        )
        taker = await self._to_exclusive_all(tr, new, now_us)
        if taker is None:
            taker = await self._to_one_of_many(tr, new, now_us)
        if not taker and immediate:
            return None
        append_item(tr, self._layout, new.position, new.stored, chunks_of(payload), new.notes)
        return Delivery(new.position, taker or None)

    async def _to_exclusive_all(self, tr: Transaction, new: _New, now_us: int) -> str | None:
        """Deliver to the queue's sole subscription: return its name; "" if it takes nothing; None if there is none.

        This process knows the name from an earlier read, so it reads everything in parallel. The subscription's own
        key tells whether the name is still right.
        """
        layout, name = self._layout, self._layout.known.exclusive_all
        if name is None:
            return None
        head = ExclusiveHead(layout, name, wanted=1)
        waiters = started(self._waiters.first(tr, limit=1))
        registered = started(head.registration(tr))
        await self._place(tr, new)
        first, registration = await waiters, await registered
        if registration is None or not registration.exclusive_all:
            return None
        if not first:
            return ""
        [request] = first
        if request.wish.consumer != name or request.is_dead(tr, now_us):
            return None  # the first waiter is dead: look at all waiters
        head.fence(tr)
        return name if await self._deliver(tr, new, request, head, registration, now_us) else ""

    async def _to_one_of_many(self, tr: Transaction, new: _New, now_us: int) -> str:
        """Deliver to a waiter, beginning after the subscription served last; return its subscription, or "".

        The subscription served last is a hint for the next enqueue, and a snapshot read. If two concurrent enqueues
        serve the same waiter, one conflicts on that waiter's request. It then begins after that subscription.
        """
        live = await self._waiters.of_each(tr, now_us)
        serving = await value_of(tr.snapshot.get(self._layout.served_key))
        await self._place(tr, new)
        served = bytes(serving).decode("utf-8", "replace") if serving.present() else ""
        for request in _in_turn(live, served):
            if await self._try(tr, new, request, now_us):
                tr.set(self._layout.served_key, request.wish.consumer.encode())
                return request.wish.consumer
        return ""

    async def _place(self, tr: Transaction, new: _New) -> None:
        """Give the item its index, if it has none yet."""
        if not new.position.index:
            index = await self._leases.queue.next_index(tr, 1)
            new.position = replace(new.position, index=index)

    async def _try(self, tr: Transaction, new: _New, request: Request, now_us: int) -> bool:
        """Deliver to a waiter if its subscription exists, wants the item, and wants no earlier item."""
        layout, name = self._layout, request.wish.consumer
        stored = await value_of(tr.snapshot.get(layout.subscriptions.pack((name,))))
        if not stored.present():
            return False
        head: Cursor | ExclusiveHead
        if read_registration(layout, name, bytes(stored)).exclusive_all:
            head = ExclusiveHead(layout, name, wanted=1)
        else:
            head = Cursor(layout, name, now_us=now_us, habit=Habit())
        registration = await head.prepare(tr, fresh=False)
        if registration.selector is None:
            return False
        if isinstance(head, Cursor) and registration.selector:
            head.accepts = ItemTest(layout, Selector.of_stored(registration.selector))
            if not head.accepts(layout.available.key(new.packed), new.stored):
                return False
        return await self._deliver(tr, new, request, head, registration, now_us)

    async def _deliver(
        self,
        tr: Transaction,
        new: _New,
        request: Request,
        head: Cursor | ExclusiveHead,
        registration: SubscriptionRecord,
        now_us: int,
    ) -> bool:
        """Give an item to a waiter if its subscription may have it, and wants no earlier item."""
        layout, name = self._layout, request.wish.consumer
        if await self._is_out(tr, new, now_us):
            return False  # the next call that takes items removes it
        if registration.suspended or await is_paused(tr, layout):
            return False  # a waiter may have registered within a second after the pause
        left = await credit_left(tr, layout, name, registration)
        if left.items == 0 or (left.size_bytes is not None and left.size_bytes < kept_size_of(new.stored)):
            return False
        first = await head.first(tr, limit=1)
        if head.more or (first and layout.available.packed(first[0].key) < new.packed):
            return False
        head.claim(tr, new.packed)
        await head.finish(tr)
        # It is leased in the subscription's name, until its consumer collects it or the grant expires.
        token, ends_at_us = new_random(), now_us + int(GRANT_SECONDS * 1e6)
        new.notes = structs.replace(
            new.notes, attempt=1, token=token, expires_at_us=ends_at_us, consumer=name, subscription=name
        )
        self._waiters.deliver(tr, request, LeaseHandle(new.position, token), now_us=now_us)
        return True

    async def _is_out(self, tr: Transaction, new: _New, now_us: int) -> bool:
        queue = self._leases.queue
        if taken_at_once(queue, new.stored, now_us):
            return False
        row = ItemRow(self._layout.available.key(new.packed), with_notes(new.stored, new.notes))
        return await Takes(tr, queue, now_us).is_out(row)


def _in_turn(live: list[Request], served: str) -> Iterator[Request]:
    """Yield the first waiter of each subscription, by name, beginning after the subscription served last."""
    first_of_each: dict[str, Request] = {}
    for request in live:
        first_of_each.setdefault(request.wish.consumer, request)
    names = sorted(first_of_each)
    for name in [*(name for name in names if name > served), *(name for name in names if name <= served)]:
        yield first_of_each[name]
