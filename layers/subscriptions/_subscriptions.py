"""`Subscriptions`: the verbs of a queue's named consumers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Generic

from msgspec.structs import replace

from fdbqueue import BulkReport, CheckReport, Item, Position, Queue, SubscriptionError
from fdbqueue.lowlevel import (
    Browser,
    Database,
    KeyValue,
    Pace,
    Pages,
    Steps,
    Transaction,
    V,
    made_exclusive,
    rows,
    verb,
)

from ..common._composing import QueueWithLeases, leases_of, strict
from ..common._handlers import not_awaited
from ..common._levels import with_priority
from ..leases._leases import Leases
from ..leases._times import positive, visible_at
from ._arguments import check_limit, check_name
from ._check import check_subscriptions
from ._immediate_delivery import Delivery, Pushing
from ._records import NO_LOOK, Pointer, Registration, pack_record, read_registration
from ._selectors import ItemTest, Selector, Selects
from ._spans import everything
from ._stats import SubscriptionStats, count_registrations, read_page
from ._subscription import Subscription
from ._waiters import DISPATCHER, WaitingLine

__all__ = ["SubscriptionStats", "Subscriptions"]

_STRICT = "Subscriptions go by the queue's order: give Leases(queue) without a head."
DUTY_CYCLE = 0.05
"""Which part of the time a browser reads, unless it is told otherwise."""


class Subscriptions(Generic[V]):
    """The subscriptions of one queue.

    Args:
        queue: the queue, its `Leases`, whose policy and clock it follows, or a layer that has leases, such as a
            `SmartQueue`. Leases with a head of their own, of weights or relaxed order, are refused.

    >>> import fdbqueue
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
        self._pushing = Pushing(self.leases)
        self._line = WaitingLine(self._layout)

    def __repr__(self) -> str:
        return f"Subscriptions({self._layout.describe()})"

    @verb
    def subscribe(
        self,
        tr: Transaction | Database,
        name: str,
        *,
        selector: str | Selects = "",
        exclusive: bool = False,
        ownership: float = 30.0,
    ) -> Steps[Subscription[V]]:
        """Register a subscription, or find the one of this name: any number of processes can serve one.

        A new one begins at the head of the queue; one whose selector is another than before begins there anew.

        Args:
            tr: a transaction, or a database.
            name: what it is called.
            selector: which items it wants, in the syntax of `fdbqueue.layers.subscriptions`, or as a function of their
                headers; "" for all.
            exclusive: whether it is to be this process' alone, and the queue's only consumer.
            ownership: after how many seconds without a call by its owner an exclusive one can be taken over; a call
                that waits for items keeps it.

        Raises:
            SelectorError: the selector is none; line and column say where.
            SubscriptionError: there is an exclusive one, whose owner lives; or this is to be, and there are others.

        *Conflicts:* with leases of the same one, with other changes of it and of the first two subscriptions by name,
        and with any change if there are fewer than two. *Cost:* two reads in parallel, which do not grow with the
        number of subscriptions, and four writes. A new selector for an old one: as `unsubscribe`.
        """
        check_name(name)
        text = Selector(selector).text if isinstance(selector, str) else None
        function = None if isinstance(selector, str) else selector
        not_awaited(function, "A selector")
        ownership_us = positive(ownership, "ownership")
        owner = os.urandom(8) if exclusive else b""
        until_us = self.leases.now_us() + ownership_us if exclusive else 0
        new = Registration(selector=text, owner=owner, owned_until_us=until_us, since_us=self.leases.now_us())
        yield from self._queue.transact(tr, partial(self._subscribe, name=name, new=new))
        if exclusive:
            made_exclusive()
        return Subscription(self.leases, name, function=function, owner=owner, ownership_us=ownership_us, sole=new.sole)

    def open(self, name: str, *, function: Selects | None = None) -> Subscription:
        """Return a subscription that was registered before, whatever its selector is; no key is touched.

        Args:
            name: what it is called.
            function: its selector, if that is a function.
        """
        check_name(name)
        not_awaited(function, "A selector")
        return Subscription(self.leases, name, function=function, owner=b"", ownership_us=0)

    @verb
    def unsubscribe(self, tr: Transaction | Database, name: str) -> Steps[bool]:
        """Remove a subscription; False if there was none. What its consumers have stays leased to them.

        Who waits for its items is woken by that, and told.

        *Conflicts:* as `subscribe`, and with calls that begin or end to wait for its items. *Cost:* three reads, of
        which one grows with the number of all calls that wait; four writes, and one for each call that is woken.
        """
        check_name(name)
        return (yield from self._queue.transact(tr, partial(self._unsubscribe, name=name)))

    @verb
    def enqueue(
        self,
        tr: Transaction | Database,
        value: V,
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
        immediate: bool = False,
    ) -> Steps[Delivery | None]:
        """Enqueue an item, straight into the hands of a consumer that waits for it, if there is one.

        Of several subscriptions that want it, the one gets it that comes behind the one served last. Its consumer is
        woken. An item that it does not collect within 10 seconds is available, in its place. An item with a delay is
        delivered to no consumer now: it becomes available at its time, which wakes a consumer that wants it.

        Args:
            tr: a transaction, or a database.
            value: what the queue's codec takes.
            priority: of a queue that has levels, as `PriorityQueue.enqueue`; None: its headers', or the default.
            delay: seconds until it becomes available, in the place that it gets now, as by `Leases.enqueue`.
            at: the same as a time of the clock.
            ttl: seconds after which it is removed, unless it is leased then, as by `Leases.enqueue`.
            headers: a small mapping kept beside the value.
            immediate: whether it is not to be enqueued at all, if no consumer waits for it: None is returned then.

        Raises:
            ValueError: the queue has no such priority, or no levels; both a delay and a time were given, or one for an
                immediate item. CodecError, ItemTooLarge, OrderError: as `Queue.enqueue`. In all cases no key was
                touched.

        *Conflicts:* with a consumer that waits, with other calls that serve or wake it, and with what comes to stand
        in front of the item and is wanted by the same subscription; none where no consumer waits. *Cost:* as
        `Queue.enqueue`, and a read of the line; for each subscription that is tried three rounds of reads, for a
        delivery about ten writes. If the queue's only subscription is exclusive and for all items, four reads in
        parallel instead.
        """
        headers = with_priority(self._queue, headers, priority)
        if visible_at(self.leases.now_us(), delay, at):
            if immediate:
                raise ValueError("An immediate item is delivered now or not at all: give it neither delay nor at.")
            later = self.leases.enqueue.steps(tr, value, delay=delay, at=at, ttl=ttl, headers=headers)
            return Delivery((yield from later), None)
        payload, rank = self._queue.encode(value), self._queue.rank(value, headers)
        ttl_us = 0 if ttl is None else positive(ttl, "ttl")
        body = partial(
            self._pushing.enqueue, payload=payload, headers=headers, rank=rank, ttl_us=ttl_us, immediate=immediate
        )
        return (yield from self._queue.transact(tr, body))

    @verb
    def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[V],
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Steps[BulkReport]:
        """Append items in their order, all with the same terms, as `Leases.enqueue_many`.

        They are not delivered one by one: consumers that wait are woken, and take what they want.

        Args:
            tr: a transaction, or a database.
            values: what the queue's codec takes.
            priority, delay, at, ttl, headers: as `enqueue`.

        Raises:
            ValueError: the queue has no such priority, or no levels; both a delay and a time were given. CodecError,
                ItemTooLarge, BulkInterrupted: as `Leases.enqueue_many`.

        *Conflicts*, *Cost:* as `Leases.enqueue_many`.
        """
        headers = with_priority(self._queue, headers, priority)
        return (yield from self.leases.enqueue_many.steps(tr, values, delay=delay, at=at, ttl=ttl, headers=headers))

    @verb
    def stats(
        self, tr: Transaction | Database, *, after: str | None = None, limit: int | None = None
    ) -> Steps[list[SubscriptionStats]]:
        """Return the stats of each subscription, by name. `Subscription.stats` returns those of one.

        Args:
            tr: a transaction, or a database.
            after: only subscriptions behind this name, to read them in pages.
            limit: how many at most; None: all.

        Raises:
            TypeError, ValueError: `after` is no name, or the limit is less than 1.

        *Conflicts:* none, it reads by snapshot. *Cost:* two range reads, which grow with the number of these
        subscriptions and of the items that their consumers have.
        """
        if after is not None:
            check_name(after)
        if limit is not None:
            check_limit(limit, "subscriptions to tell of")
        page = partial(read_page, layout=self._layout, now_us=self.leases.now_us(), after=after, limit=limit or 0)
        return (yield from self._queue.read(tr, page))

    @verb
    def count(self, tr: Transaction | Database, *, limit: int = 1_000) -> Steps[int]:
        """Return how many subscriptions there are; at most `limit` are counted.

        *Conflicts:* none, it reads by snapshot. *Cost:* one range read of up to `limit` rows.
        """
        check_limit(limit, "subscriptions to count")
        return (yield from self._queue.read(tr, partial(count_registrations, layout=self._layout, limit=limit)))

    def browse(
        self,
        tr: Transaction | Database,
        *,
        selector: str | Selects = "",
        after: Position | None = None,
        limit: int | None = None,
        duty_cycle: float = DUTY_CYCLE,
    ) -> Browser[Item[V]]:
        """Look at the available items that a selector accepts, in order, and take none: a browser.

        Lazily, as `Queue.browse`, with which it shares what it sees of items that come and go.

        Args:
            tr: a transaction, or a database.
            selector: as `subscribe`.
            after: only items behind this position.
            limit: how many at most; None: all.
            duty_cycle: given a database, the part of the time that it reads, over 0 and up to 1. A small one leaves the
                server to consumers; 1 is full speed.

        *Conflicts:* none, it reads by snapshot. *Cost:* as `Queue.browse` of all items that it passes by.
        """
        not_awaited(None if isinstance(selector, str) else selector, "A selector")
        begin = self._layout.begin if after is None else self._layout.item_key(after) + b"\x00"
        wants = ItemTest(self._layout, Selector(selector) if isinstance(selector, str) else selector)

        def look(row: KeyValue) -> Item[V] | Steps[Item[V] | None] | None:
            # Only what is wanted is opened. What can't be read is told where everything is wanted.
            return self._queue.look_at(tr, row) if selector == "" or wants(row.key, row.value) else None

        return Browser(Pages(tr, begin, self._layout.end, pace=Pace(duty_cycle)), look, limit=limit)

    def check(self, tr: Transaction | Database) -> CheckReport:
        """Read everything that the queue owns and compare: what `Leases.check` does, and subscriptions.

        *Conflicts:* none, it reads by snapshot. *Cost:* as `Leases.check`, and the available items once more for each
        subscription.
        """
        report = self.leases.check(tr)
        return dataclasses.replace(report, problems=(*report.problems, *check_subscriptions(tr, self.leases)))

    def _subscribe(self, tr: Transaction, name: str, new: Registration) -> Steps[None]:
        layout, now_us = self._layout, self.leases.now_us()
        registered = yield from self._registered(tr, name)
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
                tr.set(layout.subscriptions.pack((other,)), pack_record(replace(registration, owner=b"")))
        old = registered.get(name)
        if old is not None:
            new = replace(old, selector=new.selector, owner=new.owner, owned_until_us=new.owned_until_us)
        tr.set(layout.subscriptions.pack((name,)), pack_record(new))
        if old is None or old.selector != new.selector or new.sole:
            # The first look is at everything. A sole subscription leaves its pointer so, and when it is that no longer,
            # whatever came meanwhile is looked at.
            pointer = Pointer(everything(), 0, NO_LOOK, now_us)
            tr.set(layout.pointers.pack((name,)), pack_record(pointer))
        if old is not None and old.selector != new.selector:
            # Who waits is woken for what it wants; what was passed by for all of them may be wanted now.
            yield from self._line.wake(tr, name)
        if any(registration.owner for registration in registered.values()):
            # Who waits for a former owner is told at once, and nothing is delivered to it any more.
            span = layout.waiting.range()
            tr.clear_range(span.start, span.stop)
        if new.sole:
            self._forget_arrivals(tr)
        # From now on arrivals are noted, or not any more.
        tr.set(layout.subscribed_key, name.encode() if new.sole else b"")

    def _forget_arrivals(self, tr: Transaction) -> None:
        """Clear what was noted, and the pointer that relies on it whoever wakes the others."""
        span = self._layout.arrivals.range()
        tr.clear_range(span.start, span.stop)
        tr.clear(self._layout.pointers.pack((DISPATCHER,)))

    def _unsubscribe(self, tr: Transaction, name: str) -> Steps[bool]:
        layout = self._layout
        registered = yield from self._registered(tr, name)
        if name not in registered:
            return False
        tr.clear(layout.subscriptions.pack((name,)))
        tr.clear(layout.pointers.pack((name,)))
        tr.clear(layout.returned.pack((name,)))
        yield from self._line.wake(tr, name)
        if len(registered) == 1:
            self._forget_arrivals(tr)
            tr.clear(layout.subscribed_key)
        return True

    def _registered(self, tr: Transaction, name: str) -> Steps[dict[str, Registration]]:
        """Read a subscription, and the first two of all, by name.

        That is enough to know whether another is exclusive, and whether there is another at all: an exclusive one has
        no other beside it, so that it is among the first two. Plain reads: if there is only one, the whole range is
        read, and a call that registers another conflicts. If there are two, a call that removes one of them does.
        """
        layout = self._layout
        span = layout.subscriptions.range()
        own_key = layout.subscriptions.pack((name,))
        own = tr.get(own_key)
        first = yield from rows(tr, span.start, span.stop, limit=2)
        found = {row.key: row.value for row in first}
        stored = yield own
        if stored.present():
            found[own_key] = bytes(stored)
        names = {key: layout.subscriptions.unpack(key)[0] for key in found}
        return {names[key]: read_registration(layout, names[key], value) for key, value in found.items()}
