"""Waiters: consumers of subscriptions that wait for items; who is woken for an item, and who gets one at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from fdbqueue import FormatError, Position
from fdbqueue.lowlevel import (
    Future,
    KeyValue,
    Layout,
    Notes,
    Shown,
    Transaction,
    chunks_of,
    count,
    envelope,
    is_paused,
    new_random,
    pack,
    rows,
    started,
    value_of,
    with_notes,
    within,
)
from fdbqueue.moves.taking import ItemRow, Takes
from fdbqueue.writes.appending import append_item

from ..leases import LeaseHandle, Leases
from ..staged.requests import GRANT_SECONDS, Request, Requests, Wish
from .head import Accepts, Habit, SubscriptionHead
from .records import (
    DISPATCHER,
    NO_LIMIT,
    Credit,
    SubscriptionRecord,
    credit_left,
    pointer_key,
    record_in,
    registration_key,
)
from .selectors import wanted_by

# Waiters: consumers of subscriptions that wait for items, and which of them a transaction wakes.
#
# The waiting calls of one process and subscription share a request, which says how many they are. They register it in
# commit order, and one of them watches its key. The first waiter watches the counters that every arrival changes. It
# looks at the arrived items for all waiters. For each item it removes the request of the first waiter that wants it.
# So one enqueue wakes three waiters, however many wait: the first one, the one that wants the item, and the one that
# watched that request. The first waiter also wakes earlier waiters that may not take the item: those whose selector is
# a function, and those whose subscription has no credit for it. The progress of the first waiter is stored in a
# pointer like a subscription's. A subscription that ends, or changes, wakes its own waiters.

DISPATCH_LIMIT = 100
"""How many items one transaction dispatches."""
MOST_WAITERS = 2_000
"""How many waiters one transaction looks at."""
FEW_WAITERS = 16
"""How many it looks at first, and for each item one more; mostly these are enough."""


@dataclass(slots=True)
class ConsumerWant:
    """The items that the consumers of one subscription wait for."""

    test: Accepts | None
    """Accepts an item; None: all, as far as is known."""
    is_known: bool
    """Whether they want every accepted item; if False, only they can tell."""
    left: Credit
    """The credit left, less the items that they were woken for."""

    def accepts(self, key: bytes, stored: bytes) -> bool:
        """Return whether they may want the item with this key and value."""
        return self.test is None or self.test(key, stored)

    def takes(self, row: KeyValue) -> bool:
        """Return whether a waiter woken for an item will take it; if so, use credit for it."""
        left = self.left.less(row.value) if self.is_known else None
        self.left = left or self.left
        return left is not None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiter."""

    request: Request
    want: ConsumerWant


class Waiters(Requests):
    """The waiters for items of one queue's subscriptions.

    A wish's `consumer` is the subscription's name, and `wanted` the number of calls that share the request. An item
    delivered to one of several calls leaves the request in its place, with one call less and the next client id. So
    the grants to its calls have successive keys, and an older version that delivers an item just removes the request.
    """

    __slots__ = ()

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, "waiting")

    def deliver(self, tr: Transaction, request: Request, lease: LeaseHandle, *, now_us: int) -> None:
        """Grant a lease to one of the calls that share a request. It conflicts if the request changes meanwhile."""
        wish = request.wish
        if wish.wanted == 1:
            self.fulfill(tr, request, [lease], now_us=now_us, given=1)
            return
        tr.add_read_conflict_key(request.key)
        self.put(tr, request.key, _without_first(wish, 1))
        self.grant(tr, wish, [lease], now_us=now_us)

    async def read_own(self, tr: Transaction, request: Request) -> tuple[list[tuple[bytes, bytes]], Request | None]:
        """Read the grants to the calls of a request, each with its client, in order; and the request as it is now.

        By plain reads: a concurrent transaction that grants items to these calls, or wakes them, conflicts.
        """
        client, behind = request.wish.client, _without_first(request.wish, request.wish.wanted).client
        granted = started(rows(tr, self.grant_key(client), self.grant_key(behind)))
        stored = await value_of(tr.get(request.key))
        grants = [(parts[0], row.value) for parts, row in self._layout.own_rows("grants", await granted)]
        return grants, Request(request.key, self.wish_in(request.key, bytes(stored))) if stored.present() else None

    def behind_grant(self, request: Request, client: bytes) -> Request:
        """Return a request as its calls know it after the grant to a client: with the later grants only."""
        return Request(request.key, _without_first(request.wish, _number(client) - _number(request.wish.client) + 1))

    def register(self, tr: Transaction, wish: Wish) -> Future[bytes]:
        """Do what `Requests.register` does; a concurrent `wake` of this subscription conflicts."""
        tr.add_write_conflict_key(self._joining(wish.consumer))
        return super().register(tr, wish)

    async def wake(self, tr: Transaction, name: str) -> None:
        """Remove all waiters of a subscription, so that they look again.

        The waiters are read by snapshot, so other changes among them do not conflict. That read misses a concurrent new
        waiter of this subscription, which would not wake. So both use a conflict on a key that stores nothing:
        `register` adds the write conflict, this method the read conflict.
        """
        tr.add_read_conflict_key(self._joining(name))
        for one in await self.first(tr, limit=0):
            if one.wish.consumer == name:
                self.remove(tr, one.key)

    def _joining(self, name: str) -> bytes:
        return self._layout.waiting.pack((name,))

    def fence_off(self, tr: Transaction, name: str) -> None:
        """Prevent that a pending transaction of a subscription's call commits after this transaction.

        Every such call reads the subscription's registration, so it conflicts with this one. If a call registers
        before this one commits, this one conflicts, and sees the request when it runs again.
        """
        tr.add_write_conflict_key(registration_key(self._layout, name))
        tr.add_read_conflict_key(self._joining(name))

    async def live(self, tr: Transaction, now_us: int, *, limit: int = MOST_WAITERS) -> tuple[list[Request], bool]:
        """Read the first live waiters in order, and remove the dead ones; return them, and whether any was dead."""
        standing = await self.first(tr, limit=limit)
        dead = {one.key for one in standing if one.is_dead(tr, now_us)}
        for key in dead:
            self.remove(tr, key)
        return [one for one in standing if one.key not in dead] if dead else standing, bool(dead)

    async def of_each(self, tr: Transaction, now_us: int) -> list[Request]:
        """Return live waiters in order, among them the first of each subscription that has one.

        A thousand consumers of a few subscriptions wait mostly in turns, so a few waiters are enough.
        """
        live, some_died = await self.live(tr, now_us, limit=FEW_WAITERS)
        if not some_died and len(live) < FEW_WAITERS:
            return live
        if not some_died:
            registered = await rows(tr.snapshot, *within(self._layout.subscriptions.key()), limit=FEW_WAITERS)
            names = {parts[0] for parts, _ in self._layout.own_rows("subscriptions", registered)}
            if len(registered) < FEW_WAITERS and names <= {one.wish.consumer for one in live}:
                return live
        return (await self.live(tr, now_us))[0]

    async def in_front_of(self, tr: Transaction, key: bytes) -> Request | None:
        """Read the request in front of a request; None if it is the first.

        The read is a snapshot read: a waiter that leaves at the same time changes its key, which wakes its watcher.
        """
        found = await rows(tr.snapshot, self.begin, key, limit=1, reverse=True)
        return Request(found[0].key, self.wish_in(found[0].key, found[0].value)) if found else None

    async def dispatch(self, tr: Transaction, now_us: int, habit: Habit) -> tuple[bool, bool, list[bytes]]:
        """Wake the waiters that want an arrived item.

        Return whether it wrote, whether to dispatch again, and the keys of the items that a woken waiter will take.

        The waiters and their selectors are read only if an item arrived. This read grows with the number of waiters
        only if none of the first ones wants the item.
        """
        head = SubscriptionHead(self._layout, DISPATCHER, now_us=now_us, habit=habit)
        await head.look(tr, fresh=True)
        found = await head.first(tr, limit=DISPATCH_LIMIT)
        if not found:
            return await head.finish(tr), head.more, []
        few = FEW_WAITERS + len(found)
        live, some_died = await self.live(tr, now_us, limit=few)
        woken = None
        if not some_died and len(live) == few:
            # If each item has a taker among them, no waiter behind them matters.
            woken = _woken_for_each(found, await self._with_wants(tr, live), only_if_taken=True)
        if woken is None:
            if some_died or len(live) == few:
                live, more_died = await self.live(tr, now_us)
                if some_died or more_died:
                    return True, True, []
            waiting = await self._with_wants(tr, live)
            head.accepts = lambda key, stored: any(one.want.accepts(key, stored) for one in waiting)
            found = await head.first(tr, limit=DISPATCH_LIMIT)
            woken = _woken_for_each(found, list(waiting)) or []
        offered = [row.key for row, of_it in zip(found, woken, strict=True) if any(one.want.is_known for one in of_it)]
        for of_it in woken:
            for one in of_it:
                self.remove(tr, one.request.key)
        if found:
            head.pass_by(found)
        noted = await head.finish(tr)
        return noted, head.more or len(found) == DISPATCH_LIMIT, offered

    async def any_left(self, tr: Transaction, offered: list[bytes]) -> bool:
        """Return whether one of the items that waiters were woken for is still there, by snapshot."""
        reads = [tr.snapshot.get(key) for key in offered]
        return any([(await value_of(read)).present() for read in reads])

    def look_anew(self, tr: Transaction) -> None:
        """Make the first waiter look at everything again: a woken waiter has left, and its item is still there."""
        tr.clear(pointer_key(self._layout, DISPATCHER))
        count(tr, self._layout, returned=1)

    async def _with_wants(self, tr: Transaction, live: list[Request]) -> list[Waiting]:
        names = {one.wish.consumer for one in live}
        reads = {name: started(self._want(tr, name)) for name in names}
        wants = {name: want for name, read in reads.items() if (want := await read) is not None}
        return [Waiting(one, wants[one.wish.consumer]) for one in live if one.wish.consumer in wants]

    async def _want(self, tr: Transaction, name: str) -> ConsumerWant | None:
        layout = self._layout
        try:
            registration = await record_in(layout, name, tr.snapshot.get(registration_key(layout, name)))
        except FormatError:
            return None  # its own consumers get the error
        if registration is None or registration.suspended:
            return None
        left = await credit_left(tr, layout, name, registration)
        if left != NO_LIMIT:
            # A concurrent lease of this subscription may use up the credit; it writes the pointer.
            tr.add_read_conflict_key(pointer_key(layout, name))
        return ConsumerWant(wanted_by(layout, registration), registration.selector is not None, left)


def _number(client: bytes) -> int:
    return int.from_bytes(client, "big")


def _without_first(wish: Wish, calls: int) -> Wish:
    """Return a wish without its first calls, which got an item: with the later client ids."""
    size = len(wish.client)
    client = (_number(wish.client) + calls) % (1 << 8 * size)
    return replace(wish, client=client.to_bytes(size, "big"), wanted=wish.wanted - calls)


def _woken_for_each(
    found: list[KeyValue], waiting: list[Waiting], *, only_if_taken: bool = False
) -> list[list[Waiting]] | None:
    """Return the waiters to wake for each item. If `only_if_taken`, return None if one of the items has no taker."""
    woken = []
    for row in found:
        of_it, is_taken = _woken_for(row, waiting)
        if only_if_taken and not is_taken:
            return None
        for one in of_it:
            waiting.remove(one)
        woken.append(of_it)
    return woken


def _woken_for(row: KeyValue, waiting: list[Waiting]) -> tuple[list[Waiting], bool]:
    """Return the waiters to wake for an item: the first that will take it, and earlier ones that may not take it.

    Return also whether one will take it. If a subscription's selector is a function, one of its waiters is enough to
    call it. If a subscription has no credit, all its waiters must deregister: a registered waiter does not notice when
    credit comes back.
    """
    woken: list[Waiting] = []
    for one in waiting:
        asked = not one.want.is_known and any(other.want is one.want for other in woken)
        if asked or not one.want.accepts(row.key, row.value):
            continue
        woken.append(one)
        if one.want.takes(row):
            return woken, True
    return woken, False


# Immediate delivery: an enqueue gives its item straight to a consumer that waits for it, if there is one.


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
        headers: Mapping[str, object] | None,
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
        head = SubscriptionHead(layout, name, now_us=now_us, exclusive_all=True)
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
        served_last, placing = tr.snapshot.get(self._layout.served_key), started(self._place(tr, new))
        live = await self._waiters.of_each(tr, now_us)
        serving = await value_of(served_last)
        await placing
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
            new.position = changed(new.position, index=index)

    async def _try(self, tr: Transaction, new: _New, request: Request, now_us: int) -> bool:
        """Deliver to a waiter if its subscription exists, wants the item, and wants no earlier item."""
        layout, name = self._layout, request.wish.consumer
        found = await record_in(layout, name, tr.snapshot.get(registration_key(layout, name)))
        if found is None:
            return False
        head = SubscriptionHead(layout, name, now_us=now_us, exclusive_all=found.exclusive_all)
        registration = await head.prepare(tr, fresh=False)
        head.accepts = wanted_by(layout, registration)
        if registration.selector is None:
            return False
        if head.accepts is not None and not head.accepts(layout.available.key(new.packed), new.stored):
            return False
        return await self._deliver(tr, new, request, head, registration, now_us)

    async def _deliver(
        self,
        tr: Transaction,
        new: _New,
        request: Request,
        head: SubscriptionHead,
        registration: SubscriptionRecord,
        now_us: int,
    ) -> bool:
        """Give an item to a waiter if its subscription may have it, and wants no earlier item."""
        layout, name = self._layout, request.wish.consumer
        if await self._is_out(tr, new, now_us):
            return False  # the next call that takes items removes it
        if registration.suspended or await is_paused(tr, layout):
            return False  # a waiter may have registered within a second after the pause
        if (await credit_left(tr, layout, name, registration)).less(new.stored) is None:
            return False
        first = await head.first(tr, limit=1)
        if head.more or (first and layout.available.packed(first[0].key) < new.packed):
            return False
        head.claim(tr, new.packed)
        await head.finish(tr)
        # It is leased in the subscription's name, until its consumer collects it or the grant expires.
        token, ends_at_us = new_random(), now_us + int(GRANT_SECONDS * 1e6)
        new.notes = replace(
            new.notes, attempt=1, token=token, expires_at_us=ends_at_us, consumer=name, subscription=name
        )
        self._waiters.deliver(tr, request, LeaseHandle(new.position, token), now_us=now_us)
        return True

    async def _is_out(self, tr: Transaction, new: _New, now_us: int) -> bool:
        queue = self._leases.queue
        if Takes.at_once(queue, new.stored, now_us):
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
