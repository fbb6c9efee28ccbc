"""One subscription, as a process uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Generic, cast

from msgspec.structs import replace

from fdbqueue import SubscriptionError
from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.lowlevel import (
    AdaptiveLimit,
    Database,
    Named,
    Permit,
    Steps,
    Transaction,
    V,
    attempts,
    check_limit,
    is_database,
    is_paused,
    started,
    value_of,
    verb,
)
from fdbqueue.stored.settings import refuse_renamed

from ..common.waiting import long_wait
from ..leases import Lease, LeaseRef, Leases
from ..leases.lease import check_timeout, check_waits, positive, this_consumer
from ..leases.taking import TOKEN_BYTES, Allotment, Taking
from ..leases.timers import FIRE_LIMIT, due_timers, fire_due
from ..leases.transitions import Transitions
from ..staged.requests import REQUEST_SECONDS
from ._awaiting import AwaitedTake, Awaiting, Taken
from .head import Habit, SubscriptionHead
from .records import (
    Credit,
    SubscriptionRecord,
    SubscriptionStats,
    credit_left,
    pack_record,
    read_one,
    record_in,
    registration_key,
)
from .selectors import ItemTest, Selects, wanted_by
from .waiters import Waiters


class Subscription(Named, Generic[V]):
    """A registered subscription of one queue; `Subscriptions` makes it.

    Its consumers hold ordinary leases: ack, nack, snooze and extend them by `Leases`. The calls of one process that
    wait for items share a request in the queue, and get items in their order.

    Args:
        leases: the queue's leases.
        name: the subscription's name.
        function: its selector, if that is a function.
        owner: the token that proves that this process owns an exclusive subscription.
        ownership_us: how long ownership lasts unless it is renewed.
        sole: whether it takes the short cut of a queue's only subscription that wants everything.
    """

    def __init__(
        self,
        leases: Leases[V],
        name: str,
        *,
        function: Selects | None,
        owner: bytes,
        ownership_us: int,
        exclusive_all: bool = False,
    ) -> None:
        self.leases = leases
        self.name = name
        self._layout = leases.layout
        self._function = function
        self._owner = owner
        self._ownership_us = ownership_us
        self._habit = Habit()
        self._exclusive_all = exclusive_all
        self._waiters = Waiters(leases.layout)
        self._waiting: dict[int, KeptBeside[Awaiting]] = {}
        """The waiting calls of each process in each database. A forked process starts with none."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_waiting": {}}  # a copy has other leases; its calls share nothing with these

    def __repr__(self) -> str:
        return f"Subscription({self._layout.describe()}, {self.name!r})"

    @verb
    async def lease(
        self,
        tr: Transaction | Database,
        *,
        duration: float = 30.0,
        consumer: str | None = None,
        timeout: float | None = 0.0,
    ) -> Lease[V] | None:
        """Lease the next available item that the selector accepts; None if there is none, or no credit for it.

        Given a database, a cancelled or interrupted call keeps nothing, even if that happens during its commit. The
        item goes back to its place, its credit comes back, and no attempt is counted. A thread does that if the commit
        is still pending.

        Args:
            tr: a transaction, or a database.
            duration: seconds until the lease expires, unless it is extended.
            consumer: the consumer's name, for monitoring; host name and process id by default.
            timeout: seconds to wait for an item; None: no limit. It needs a database.

        Raises:
            SubscriptionError: the subscription was removed, or another process owns it exclusively.
            FormatError, CodecError: the next item can't be read; it stays where it is.

        *Conflicts:* with other consumers of this subscription, with a transaction that takes the same item, and with an
        item placed in front of it. In a caller's transaction that finds nothing, with every arrival. *Cost:* three
        rounds of parallel reads, each of what the one before has told, and one more for about every 1,000 items passed
        over; one more, once a second, about pauses; four writes, and five per item. Given a transaction, it passes over
        at most 10,000 items, and stores its progress.
        """
        one = self.lease_many.steps(tr, limit=1, duration=duration, consumer=consumer, timeout=timeout)
        return next(iter(await one), None)

    @verb
    async def lease_many(
        self,
        tr: Transaction | Database,
        *,
        limit: int = 100,
        duration: float = 30.0,
        consumer: str | None = None,
        timeout: float | None = 0.0,
    ) -> list[Lease[V]]:
        """Lease up to `limit` next items, in order, within the credit; otherwise as `lease`."""
        check_limit(limit, "items to lease")
        check_timeout(timeout)
        if timeout != 0:
            check_waits(tr)
            await long_wait("Subscription.lease_many" if limit > 1 else "Subscription.lease")
        own_transactions = is_database(tr)
        terms = (positive(duration, "duration"), this_consumer(consumer))
        adaptive, token = AdaptiveLimit(limit), os.urandom(TOKEN_BYTES)

        def take(tr: Transaction) -> Steps[Taken]:
            own = Allotment(adaptive.limit, *terms, own=True, token=token)
            return self._take(tr, own, own_transactions)

        if not own_transactions:
            return (await take(cast(Transaction, tr))).leases
        db = cast(Database, tr)
        calls = self._apart() if timeout == 0 else self._waiting.setdefault(os.getpid(), KeptBeside(self._apart)).of(db)
        return await calls.steps(db, AwaitedTake(limit, *terms, take, adaptive.note, timeout))

    def _apart(self) -> Awaiting:
        # A waiting call looks, and so renews its ownership, whenever a third of the ownership time has passed.
        every = self._ownership_us / 3e6 if self._owner else REQUEST_SECONDS
        return Awaiting(
            self.leases,
            self._waiters,
            self.name,
            apart=self._apart,
            may_begin=self._may_begin,
            every=every,
            exclusive_all=self._exclusive_all,
        )

    @verb
    async def ack(self, tr: Transaction | Database, lease: LeaseRef) -> None:
        """Acknowledge an item, like `Leases.ack`; its credit comes back."""
        await self.leases.ack.steps(tr, lease)

    @verb
    async def suspend(self, tr: Transaction | Database) -> None:
        """Deliver nothing until `resume`; leased items stay leased.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* with concurrent leases of this subscription, and with calls that begin or end a wait for its items.
        *Cost:* one read, and one of all waiters; one write, and one for each waiter of this subscription.
        """

        async def body(tr: Transaction) -> None:
            await self._change(tr, lambda registration: replace(registration, suspended=True))
            # Registered waiters of a suspended subscription would miss arrivals. Unregistered ones wait for `resume`.
            await self._waiters.wake(tr, self.name)

        await self.leases.queue.transact(tr, body)

    @verb
    async def resume(self, tr: Transaction | Database) -> None:
        """Deliver again after `suspend`.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* with concurrent leases of this subscription. *Cost:* one read, one write.
        """
        await self._change(tr, lambda registration: replace(registration, suspended=False))

    @verb
    async def grant(self, tr: Transaction | Database, *, items: int | None, size_bytes: int | None = None) -> None:
        """Set how many items, and how many bytes of payload, the consumers may hold at the same time.

        Every end of a lease returns its credit. Items leased before count too. If they exceed the new credit, nothing
        is delivered until enough leases have ended.

        Args:
            tr: a transaction, or a database.
            items: the most items; None: no limit.
            size_bytes: the most bytes; None: no limit. A single item that is larger is not delivered, and blocks the
                items behind it.

        Raises, *Conflicts*, *Cost:* as `resume`.
        """
        for one in (items, size_bytes):
            if one is not None and (type(one) is not int or not 0 <= one < 2**63):
                raise ValueError(
                    "Credit is an integer from 0 on and less than 2^63, or None for no limit, not"
                    f" {items} items and {size_bytes} bytes."
                )
        await self._change(tr, lambda registration: replace(registration, credit=items, credit_bytes=size_bytes))

    @verb
    async def credit(self, tr: Transaction | Database) -> Credit:
        """Return the credit left.

        *Conflicts:* none, it uses snapshot reads. *Cost:* two reads; the second grows with the items that consumers
        hold.
        """
        return await self.leases.queue.read(tr, self._credit_now)

    @verb
    async def stats(self, tr: Transaction | Database) -> SubscriptionStats:
        """Return the stats of this subscription.

        Raises:
            SubscriptionError: the subscription was removed.

        *Conflicts:* none, it uses snapshot reads. *Cost:* two reads in parallel; one grows with the items that its
        consumers hold.
        """
        read = partial(read_one, layout=self._layout, now_us=self.leases.now_us(), name=self.name)
        found = await self.leases.queue.read(tr, read)
        if found is None:
            raise self._unsubscribed()
        return found

    def permit(self, db: Database) -> Permit:
        """Return the permit to begin items of this subscription; for layers.

        Its `ask` raises as `lease` does. Items may not begin while the queue is paused or the subscription is
        suspended.
        """
        layout = self._layout

        async def look(tr: Transaction) -> bool:
            stopped = tr.snapshot.get(layout.paused_key)
            registration = await self._registered(tr.snapshot)
            self._check_owned(registration)
            paused = await value_of(stopped)
            if paused.present():
                refuse_renamed(bytes(paused))
                layout.known.doubt()  # so that a lease reads it, too
            return not paused.present() and not registration.suspended

        return Permit(lambda: attempts(db, look))

    @property
    def ownership(self) -> float:
        """Seconds without a call after which another process may own it; 0: it is not exclusive."""
        return self._ownership_us / 1e6 if self._owner else 0.0

    @verb
    async def renew(self, tr: Transaction | Database) -> None:
        """Renew the ownership of an exclusive subscription, for an owner busy with its items; a lease does so too.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* as `resume`. *Cost:* one read, and one write if half of the ownership time is over.
        """

        async def body(tr: Transaction) -> None:
            self._renewed(tr, await self._registered(tr), self.leases.now_us())

        await self.leases.queue.read(tr, body)

    @verb
    async def close(self, tr: Transaction | Database) -> None:
        """Give up an exclusive subscription: it stays registered, and any process may own it next.

        *Conflicts:* as `resume`. *Cost:* one read, one write.
        """
        await self._change(tr, lambda registration: replace(registration, owned_until_us=0))

    async def _take(self, tr: Transaction, own: Allotment, strict: bool) -> Taken:
        """Take items for the allotment of a call.

        Args:
            strict: whether to look again while more timers are due, instead of taking items.
        """
        now_us = self.leases.now_us()
        head = SubscriptionHead(
            self._layout,
            self.name,
            now_us=now_us,
            habit=self._habit,
            exclusive_all=self._exclusive_all,
            wanted=own.wanted,
        )
        registration = await head.prepare(tr, fresh=strict)
        renewed = self._renewed(tr, registration, now_us) is not registration
        left = await credit_left(tr, self._layout, self.name, registration)
        settled = False
        short = left.size_bytes is not None or (left.items is not None and left.items < own.wanted)
        if short and left != Credit(registration.credit, registration.credit_bytes):
            # Expired leases use credit until a transaction reclaims them.
            moves = await self._fire_due(tr, now_us)
            head.came_back(moves.arrived)
            settled = moves.any
            left = await credit_left(tr, self._layout, self.name, registration)
        limit = own.wanted if left.items is None else min(own.wanted, left.items)
        suspended = registration.suspended or await is_paused(tr, self._layout)
        if suspended or not limit:
            # One transaction fires a limited number of timers; the rest may return credit too.
            return Taken([], settled and strict and not suspended, renewed or settled, may_have=False)
        head.bytes_left = left.size_bytes
        head.accepts = self._test(registration)
        own.wanted = limit
        leases = self.leases
        taking = Taking(leases.queue, head, leases.retry, leases.now_us, subscription=self.name)
        served = await taking.take(tr, taking.look(tr, limit=limit), [own], most=limit, strict=strict)
        if served.error is not None and not (strict and served.wrote):
            raise served.error
        noted = await head.finish(tr)
        if not own.got and not strict:
            head.found_nothing(tr)
        again = not own.got and (served.again or served.error is not None or head.more)
        wrote = served.wrote or noted or renewed or settled
        return Taken([got.given for got in own.got], again, wrote, may_have=not head.stuck)

    async def _may_begin(self, tr: Transaction) -> bool:
        """Return whether items that were granted to a waiting call may begin."""
        reading = started(self._registered(tr.snapshot))
        return not await is_paused(tr, self._layout) and not (await reading).suspended

    async def _fire_due(self, tr: Transaction, now_us: int) -> Transitions:
        """Fire due timers, and return the moves."""
        due = await due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT)
        moves = Transitions(tr, self._layout, now_us)
        try:
            await fire_due(tr, self._layout, moves, due, now_us=now_us, retry=self.leases.retry)
        finally:
            moves.finish()
        return moves

    async def _credit_now(self, tr: Transaction) -> Credit:
        return await credit_left(tr, self._layout, self.name, await self._registered(tr.snapshot))

    def _test(self, registration: SubscriptionRecord) -> ItemTest | None:
        if registration.selector is not None:
            return wanted_by(self._layout, registration)
        if self._function is None:
            raise SubscriptionError(
                f"The selector of {self!r} is a function, which is not stored: name it when you subscribe."
            )
        return ItemTest(self._layout, self._function)

    def _renewed(self, tr: Transaction, registration: SubscriptionRecord, now_us: int) -> SubscriptionRecord:
        """Check that this process owns an exclusive subscription; renew that in time, and return the registration."""
        self._check_owned(registration)
        if not registration.owner or registration.owned_until_us - now_us > self._ownership_us / 2:
            return registration
        owned = replace(registration, owned_until_us=now_us + self._ownership_us)
        tr.set(registration_key(self._layout, self.name), pack_record(owned))
        return owned

    def _check_owned(self, registration: SubscriptionRecord) -> None:
        """Refuse a browser, and an exclusive subscription of another process."""
        if registration.browser:
            raise SubscriptionError(
                f"{self.name!r} of {self._layout.describe()} is a browser, which takes nothing. Subscribe under another"
                " name."
            )
        if registration.owner != self._owner:
            raise SubscriptionError(
                f"{self!r} is exclusive, and another's, or was: this process does not own it, or was silent for too"
                " long. Subscribe again; an exclusive one can be taken over when its owner is gone."
            )

    async def _change(
        self, tr: Transaction | Database, change: Callable[[SubscriptionRecord], SubscriptionRecord]
    ) -> None:
        async def body(tr: Transaction) -> None:
            owned = self._renewed(tr, await self._registered(tr), self.leases.now_us())
            tr.set(registration_key(self._layout, self.name), pack_record(change(owned)))

        await self.leases.queue.transact(tr, body)

    async def _registered(self, view: ReadTransaction) -> SubscriptionRecord:
        found = await record_in(self._layout, self.name, view.get(registration_key(self._layout, self.name)))
        if found is None:
            raise self._unsubscribed()
        return found

    def _unsubscribed(self) -> SubscriptionError:
        return SubscriptionError(f"{self!r} was unsubscribed. Subscribe again.")
