"""`Subscriptions`: the verbs of a queue's named consumers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from fdbqueue import BulkReport, CheckReport, Item, Position, Queue, SubscriptionError
from fdbqueue.base.arguments import check_borders, check_flag
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import (
    Browser,
    ByPosition,
    Database,
    Editing,
    KeyValue,
    Named,
    Pages,
    Steps,
    Transaction,
    V,
    check_limit,
    is_database,
    is_paused,
    only_database,
    rows,
    value_of,
    verb,
    within,
)
from fdbqueue.reads.browse import BrowsePace
from fdbqueue.stored.items import check_headers
from fdbqueue.stored.looks import check_decodes, made_exclusive
from fdbqueue.stored.settings import check_renamed
from fdbqueue.stored.shapes import check_name

from ..common.composing import QueueWithLeases, leases_of, strict
from ..common.handlers import not_awaited
from ..common.levels import with_priority
from ..leases import Leases
from ..leases.lease import positive, visible_at
from ..leases.reports import check_leases
from .following import KEEP_SECONDS, FirstPointer, Follower, Start, check_start, new_name
from .head import SubscriptionCheck, everything
from .records import (
    DISPATCHER,
    NO_LOOK,
    Browses,
    SubscriptionPointer,
    SubscriptionRecord,
    SubscriptionStats,
    count_registrations,
    pack_record,
    pointer_key,
    read_page,
    read_registration,
    registration_key,
)
from .selectors import ItemTest, Selector, Selects
from .subscription import Subscription
from .waiters import Delivery, ImmediateDelivery, Waiters

__all__ = ["SubscriptionStats", "Subscriptions"]

T = TypeVar("T")

_STRICT = "Subscriptions go by the queue's order: give Leases(queue) without a head."


class Subscriptions(Named, ByPosition[V]):
    """The subscriptions of one queue.

    Args:
        queue: the queue; or its `Leases`, with their policy and clock; or a layer that has leases, such as a
            `SmartQueue`. Leases with a head of their own (weights, relaxed order) are refused.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import Subscriptions
    >>> db = fdbqueue.open("memory:")
    >>> subscriptions = Subscriptions(Queue("paints", codec="str"))
    >>> red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    >>> rest = subscriptions.subscribe(db, "rest", selector="color <> 'red' OR color IS NULL")
    >>> for value, color in [("sky", "blue"), ("rose", "red"), ("blood", "red")]:
    ...     position = subscriptions.leases.enqueue(db, value, headers={"color": color})
    >>> [lease.value for lease in red.lease_many(db)], rest.lease(db).value
    (['rose', 'blood'], 'sky')
    """

    def __init__(self, queue: Queue[V] | Leases[V] | QueueWithLeases[V]) -> None:
        self.leases = strict(leases_of(queue, "Subscriptions"), "Subscriptions", _STRICT)
        self._queue = self.leases.queue
        self._layout = self.leases.layout
        self._immediate_delivery = ImmediateDelivery(self.leases)
        self._waiters = Waiters(self._layout)

    def __repr__(self) -> str:
        return f"Subscriptions({self._layout.describe()})"

    @verb
    async def subscribe(
        self,
        tr: Transaction | Database,
        name: str,
        *,
        selector: str | Selects | None = None,
        exclusive: bool = False,
        ownership: float = 30.0,
    ) -> Subscription[V]:
        """Register a subscription, or find the one with this name; any number of processes can serve it.

        A new subscription begins at the head of the queue. If the selector changes, it begins there again.

        Args:
            tr: a transaction, or a database.
            name: the subscription's name.
            selector: the items that it wants, in the syntax of `fdbqueue.layers.subscriptions`, or as a function of
                their headers; None: all.
            exclusive: whether only this process may use it, as the queue's only consumer.
            ownership: seconds without a call by its owner after which another process can own it; a call that waits
                for items keeps it.

        Raises:
            SelectorError: the selector is empty, or no condition; line and column mark the fault.
            SubscriptionError: the queue has an exclusive subscription with a live owner. Or this one would be
                exclusive, and the queue has others.
            QueueRenamed: the queue has another name now. NestedQueue: as `Queue.pause`.

        *Conflicts:* with leases of the same subscription, with other changes of it and of the first two subscriptions
        by name. With any change if there are fewer than two. *Cost:* two reads in parallel, which do not grow with the
        number of subscriptions, and four writes. If the selector changes: both as `unsubscribe`.
        """
        check_name(name, "subscription")
        check_flag(exclusive, "exclusive")
        text, function = _selector_of(selector)
        ownership_us = positive(ownership, "ownership")
        owner = os.urandom(8) if exclusive else b""
        until_us = self.leases.now_us() + ownership_us if exclusive else 0
        new = SubscriptionRecord(selector=text, owner=owner, owned_until_us=until_us, since_us=self.leases.now_us())
        await self._queue.transact(tr, partial(self._subscribe, name=name, new=new))
        if exclusive:
            made_exclusive()
        return Subscription(
            self.leases,
            name,
            function=function,
            owner=owner,
            ownership_us=ownership_us,
            exclusive_all=new.exclusive_all,
        )

    @verb
    async def follow(
        self,
        db: Database,
        name: str | None = None,
        *,
        selector: str | Selects | None = None,
        start: Start = "head",
        keep: float | None = None,
    ) -> Follower[V]:
        """Return a browser that stays: it is told of each item that becomes available, and takes none.

        ``for item in …`` and ``async for item in …`` wait for later arrivals. A browser with a name keeps its place
        when its process ends, and goes on there.

        Args:
            db: a database; a browser makes its own transactions.
            name: its name; None: it has no place to keep, and is removed when it is closed.
            selector: as `subscribe`.
            start: "head": with the items that are available now; "tail": with the next arrival. A browser that has a
                place goes on there instead.
            keep: seconds for which arrivals are kept for a browser that does not look; then its place is lost. None: a
                day, or ten minutes without a name. `unsubscribe` removes a browser that has a name.

        Raises:
            SelectorError: as `subscribe`.
            SubscriptionError: a subscription has this name, or the queue has an exclusive subscription with a live
                owner.
            OtherCodec: the queue is registered with another codec.

        *Conflicts:* as `subscribe`. *Cost:* as `subscribe`, and three reads; one more in a minute. As long as a
        queue has a browser or subscriptions, each enqueue also notes where its items are.

        >>> import fdbqueue
        >>> from fdbqueue.layers import Subscriptions
        >>> db = fdbqueue.open("memory:")
        >>> orders = fdbqueue.Queue("orders", codec="str")
        >>> with Subscriptions(orders).follow(db) as seen:
        ...     position = orders.enqueue(db, "teapot")
        ...     next(seen).value, orders.stats(db).available
        ('teapot', 1)
        """
        only_database(db, "Subscriptions.follow", "In a transaction use Subscriptions.browse(tr).")
        if name is not None:
            check_name(name, "subscription")
        check_start(start)
        text, _ = _selector_of(selector)
        kind: Browses = "passing" if name is None else "named"
        keep_us = positive(KEEP_SECONDS[kind] if keep is None else keep, "keep")
        name = new_name() if name is None else name
        await check_decodes(db, self._layout)
        now_us = self.leases.now_us()
        first = FirstPointer(self._layout, now_us=now_us, keep_us=keep_us, start=start)
        new = SubscriptionRecord(selector=text, browser=kind, since_us=now_us)
        await self._queue.transact(db, partial(self._subscribe, name=name, new=new, first=first))
        return Follower(self.leases, name, db, selector=selector, first=first, keep_us=keep_us)

    def open(self, name: str, *, function: Selects | None = None) -> Subscription:
        """Return a subscription that was registered before, with any selector; touch no key.

        Args:
            name: the subscription's name.
            function: its selector, if that is a function.
        """
        check_name(name, "subscription")
        not_awaited(function, "A selector")
        return Subscription(self.leases, name, function=function, owner=b"", ownership_us=0)

    @verb
    async def unsubscribe(self, tr: Transaction | Database, name: str) -> bool:
        """Remove a subscription; return False if there was none. Its consumers keep their leases.

        Calls that wait for its items wake, and raise.

        *Conflicts:* as `subscribe`, and with calls that begin or end a wait for its items. *Cost:* three reads; one of
        them grows with the number of all waiters. Four writes, and one for each call that is woken.
        """
        check_name(name, "subscription")
        return await self._queue.transact(tr, partial(self._unsubscribe, name=name))

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
        immediate: bool = False,
    ) -> Delivery | None:
        """Enqueue an item; deliver it straight to a consumer that waits for it, if there is one.

        If several subscriptions want it, the next one by name after the subscription served last gets it. Its consumer
        wakes. If the consumer does not collect the item within 0.75 seconds, the item is available, in its place, and
        no attempt counts. An item with a delay is not delivered now. It becomes available at its time, which wakes a
        consumer that wants it.

        Args:
            tr: a transaction, or a database.
            value: a value that the queue's codec takes.
            priority: as `PriorityQueue.enqueue`, for a queue with levels; None: from its headers, or the default.
            delay: seconds until it becomes available, in the place that it gets now, as by `Leases.enqueue`.
            at: the same as a time of the clock.
            ttl: seconds after which it is removed, unless it is leased then, as by `Leases.enqueue`.
            headers: a small mapping stored beside the value.
            immediate: whether to enqueue nothing, and return None, if no consumer waits for the item.

        Raises:
            ValueError: the queue has no such priority, or no levels; both a delay and a time were given, or one for an
                immediate item. CodecError, ItemTooLarge, OrderError: as `Queue.enqueue`. In all cases no key was
                touched.

        *Conflicts:* with a consumer that waits, and with other calls that serve or wake it. Also with an item that is
        placed in front and that the same subscription wants. None if no consumer waits. *Cost:* as `Queue.enqueue`,
        and reads of up to 16 waiters and as many subscriptions. If there are more subscriptions, or one of them has no
        waiter among these, a read of up to 2,000 waiters. Three rounds of reads for each subscription that it tries,
        and about ten writes for a delivery. If the queue's only subscription is exclusive and for all items: four reads
        in parallel instead.
        """
        is_database(tr)  # it raises for anything that is neither a database nor a transaction
        if immediate is not False:
            check_flag(immediate, "immediate")
        if headers is not None:
            check_headers(headers)
        headers = with_priority(self._queue, headers, priority)
        if visible_at(self.leases.now_us(), delay, at):
            if immediate:
                raise ValueError("An immediate item is delivered now or not at all: give it neither delay nor at.")
            later = self.leases.enqueue.steps(tr, value, delay=delay, at=at, ttl=ttl, headers=headers)
            return Delivery(await later, None)
        payload, rank = self._queue.encode(value), self._queue.rank(value, headers)
        ttl_us = 0 if ttl is None else positive(ttl, "ttl")
        body = partial(
            self._immediate_delivery.enqueue,
            payload=payload,
            headers=headers,
            rank=rank,
            ttl_us=ttl_us,
            immediate=immediate,
        )
        return await self._queue.transact(tr, body)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[V],
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> BulkReport:
        """Append items in their order, all with the same terms, like `Leases.enqueue_many`.

        They are not delivered one by one. Waiting consumers wake, and take the items that they want.

        Args:
            tr: a transaction, or a database.
            values: values that the queue's codec takes.
            priority, delay, at, ttl, headers: as `enqueue`.

        Raises:
            ValueError: the queue has no such priority, or no levels; both a delay and a time were given. CodecError,
                ItemTooLarge, BulkInterrupted: as `Leases.enqueue_many`.

        *Conflicts*, *Cost:* as `Leases.enqueue_many`.
        """
        headers = with_priority(self._queue, headers, priority)
        return await self.leases.enqueue_many.steps(tr, values, delay=delay, at=at, ttl=ttl, headers=headers)

    @verb
    async def stats(
        self, tr: Transaction | Database, *, after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionStats]:
        """Return the stats of each subscription, by name. `Subscription.stats` returns those of one.

        Args:
            tr: a transaction, or a database.
            after: only subscriptions after this name, to read them in pages.
            limit: how many at most; None: all.

        Raises:
            TypeError, ValueError: `after` is no name, or the limit is less than 1.
            QueueRenamed: there is none, and the queue has another name now.

        *Conflicts:* none, it uses snapshot reads. *Cost:* two range reads, which grow with the number of these
        subscriptions and of the items that their consumers hold.
        """
        if after is not None:
            check_name(after, "subscription")
        if limit is not None:
            check_limit(limit, "subscriptions to tell of")
        page = partial(read_page, layout=self._layout, now_us=self.leases.now_us(), after=after, limit=limit or 0)
        return await self._queue.read(tr, partial(self._unless_renamed, page))

    @verb
    async def count(self, tr: Transaction | Database, *, limit: int = 1_000) -> int:
        """Return the number of subscriptions, counted up to `limit`.

        Raises:
            QueueRenamed: there is none, and the queue has another name now.

        *Conflicts:* none, it uses snapshot reads. *Cost:* one range read of up to `limit` rows.
        """
        check_limit(limit, "subscriptions to count")
        counted = partial(count_registrations, layout=self._layout, limit=limit)
        return await self._queue.read(tr, partial(self._unless_renamed, counted))

    def browse(
        self,
        tr: Transaction | Database,
        *,
        selector: str | Selects | None = None,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
    ) -> Browser[Item[V]]:
        """Iterate over the available items that a selector accepts, in order, and take none: a browser.

        It is lazy, and sees items that come and go in the same way as `Queue.browse`.

        Args:
            tr: a transaction, or a database.
            selector: as `subscribe`.
            after, before, limit, reverse: as for `Queue.browse`.
            duty_cycle: given a database, the part of the time that it may read, over 0 and up to 1. A small value, such
                as 0.05, leaves the server to consumers.

        *Conflicts:* none, it uses snapshot reads. *Cost:* as `Queue.browse`, for all items that it passes over.
        """
        _selector_of(selector)
        check_borders(after, before)
        check_limit(limit, "items to look at", least=0, optional=True)
        begin = self._layout.begin if after is None else self._layout.item_key(after) + b"\x00"
        end = self._layout.end if before is None else self._layout.item_key(before)
        wants = None if selector is None else ItemTest(self._layout, selector)

        def look(row: KeyValue) -> Item[V] | Steps[Item[V] | None] | None:
            # This opens only accepted items. So only a browser without a selector reports an unreadable item.
            return self._queue.look_at(tr, row) if wants is None or wants(row.key, row.value) else None

        found = Pages(tr, begin, end, reverse=reverse, pace=BrowsePace(duty_cycle), layout=self._layout)
        return Browser(found, look, limit=limit)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare: do what `Leases.check` does, and check subscriptions.

        *Conflicts:* none, it uses snapshot reads. *Cost:* as `Leases.check`, and a few reads for each subscription.
        """
        layout, leases = self._layout, self.leases
        return blocking(lambda: check_leases(tr, layout, lambda tr: SubscriptionCheck(tr, layout, leases.now_us())))

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        return self.leases.editing()

    async def _subscribe(
        self, tr: Transaction, name: str, new: SubscriptionRecord, first: FirstPointer | None = None
    ) -> None:
        """Register a subscription, or a browser, whose first place `first` reads."""
        layout, now_us = self._layout, self.leases.now_us()
        await is_paused(tr, layout)  # refuses a queue that was renamed
        registered = await self._registered(tr, name)
        for other, registration in registered.items():
            if registration.owner and registration.owned_until_us > now_us:
                raise SubscriptionError(
                    f"The subscription {other!r} of {layout.describe()} is exclusive until"
                    f" {registration.owned_until_us / 1e6:.0f}, or longer. Try again then."
                )
            if other != name and new.owner:
                raise SubscriptionError(
                    f"{layout.describe()} has the subscription {other!r}, so that {name!r} can't be exclusive there."
                )
            if other != name and registration.owner:
                tr.set(registration_key(layout, other), pack_record(replace(registration, owner=b"")))
        old = registered.get(name)
        if old is not None and bool(old.browser) != bool(new.browser):
            kind = "a browser" if old.browser else "a subscription"
            raise SubscriptionError(f"{name!r} of {layout.describe()} is {kind}. Give another name.")
        if old is not None:
            new = replace(old, selector=new.selector, owner=new.owner, owned_until_us=new.owned_until_us)
        tr.set(registration_key(layout, name), pack_record(new))
        if first is not None:
            await first(tr, name, is_new=old is None)
        elif old is None or old.selector != new.selector or new.exclusive_all:
            # The first look is at everything. A sole subscription never changes this pointer. When it is no longer the
            # sole one, it looks at all items that came meanwhile.
            pointer = SubscriptionPointer(everything(), 0, NO_LOOK, now_us)
            tr.set(pointer_key(layout, name), pack_record(pointer))
        if old is not None and old.selector != new.selector:
            # The first waiter has passed over items that this subscription may want now. So its own waiters look again.
            await self._waiters.wake(tr, name)
        if any(registration.owner for registration in registered.values()):
            # Calls of a former owner that wait raise at once, and get no further delivery.
            tr.clear_range(*within(layout.waiting.key()))
        if new.exclusive_all:
            self._forget_arrivals(tr)
        # From now on producers record arrivals; for a sole subscription they stop that.
        tr.set(layout.subscribed_key, name.encode() if new.exclusive_all else b"")

    async def _unless_renamed(self, read: Callable[[Transaction], Steps[T]], tr: Transaction) -> T:
        """Return what a read finds. If that is nothing, refuse the old name of a queue."""
        found = await read(tr)
        if not found:
            await check_renamed(tr.snapshot, self._layout)
        return found

    def _forget_arrivals(self, tr: Transaction) -> None:
        """Clear the arrivals, and the pointer of the first waiter, which relies on them."""
        tr.clear_range(*within(self._layout.arrivals.key()))
        tr.clear(pointer_key(self._layout, DISPATCHER))

    async def _unsubscribe(self, tr: Transaction, name: str) -> bool:
        layout = self._layout
        registered = await self._stored(tr, name)  # not decoded: this is the way out for one that can't be read
        if name not in registered:
            await check_renamed(tr.snapshot, layout)
            return False
        tr.clear(registration_key(layout, name))
        tr.clear(pointer_key(layout, name))
        tr.clear(layout.returned.pack((name,)))
        await self._waiters.wake(tr, name)
        if len(registered) == 1:
            self._forget_arrivals(tr)
            tr.clear(layout.subscribed_key)
        return True

    async def _registered(self, tr: Transaction, name: str) -> dict[str, SubscriptionRecord]:
        found = await self._stored(tr, name)
        return {one: read_registration(self._layout, one, stored) for one, stored in found.items()}

    async def _stored(self, tr: Transaction, name: str) -> dict[str, bytes]:
        """Read the stored registrations of a subscription, and of the first two subscriptions by name.

        That is enough to know whether there is another, and whether another is exclusive: an exclusive subscription is
        the only one, so it is among the first two. The reads are plain. If there is only one subscription, the whole
        range is read, and a call that registers another conflicts. If there are two, a call that removes one conflicts.
        """
        layout = self._layout
        own_key = registration_key(layout, name)
        own = tr.get(own_key)
        first = await rows(tr, *within(layout.subscriptions.key()), limit=2)
        found = {row.key: row.value for row in first}
        stored = await value_of(own)
        if stored.present():
            found[own_key] = bytes(stored)
        return {layout.own_parts("subscriptions", key)[0]: value for key, value in found.items()}


def _selector_of(selector: str | Selects | None) -> tuple[str | None, Selects | None]:
    """Return a selector as its text, "" for none, or as its function.

    Raises:
        TypeError: it is neither. SelectorError: it is empty, or no condition.
    """
    if selector is None:
        return "", None
    if not isinstance(selector, str) and not callable(selector):
        raise TypeError(f"A selector is a condition, as in \"color = 'red'\", or a function, not {selector!r}.")
    function = None if isinstance(selector, str) else selector
    not_awaited(function, "A selector")
    return Selector(selector).text if isinstance(selector, str) else None, function
