"""One subscription, in the hands of a process that serves it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from fdbqueue import SubscriptionError
from fdbqueue.lowlevel import AdaptiveLimit, Database, Steps, Transaction, V, is_database, verb

from ..leases._lease import Lease, LeaseRef
from ..leases._leases import Leases, this_consumer
from ..leases._taking import Taken, Taking, Terms
from ..leases._timers import FIRE_LIMIT, due_timers, fire_due
from ..leases._times import check_timeout, check_waits, positive
from ..leases._transitions import Moves
from ..staged._requests import REQUEST_SECONDS
from ._arguments import check_limit
from ._awaiting import Awaiting
from ._credit import Credit, credit_left
from ._cursor import Habit, Pointing
from ._exclusive_all import SoleHead
from ._records import Registration, pack_record, read_registration
from ._selectors import ItemTest, Selector, Selects
from ._stats import SubscriptionStats, read_one
from ._waiters import WaitingLine

T = TypeVar("T")
TOKEN_BYTES = 8


class Subscription(Generic[V]):
    """A registered subscription of one queue; `Subscriptions` makes it.

    What its consumers have is leased: ack it, give it back and extend it by `Leases`, as any lease.

    Args:
        leases: of the queue.
        name: the subscription's.
        function: its selector, if that is a function.
        owner: what this process proves with that an exclusive subscription is its own.
        ownership_us: for how long it is, without being renewed.
        sole: whether it takes the short cut of the queue's only one, which wants everything.
    """

    def __init__(
        self,
        leases: Leases[V],
        name: str,
        *,
        function: Selects | None,
        owner: bytes,
        ownership_us: int,
        sole: bool = False,
    ) -> None:
        self.leases = leases
        self.name = name
        self._layout = leases.layout
        self._function = function
        self._owner = owner
        self._ownership_us = ownership_us
        self._habit = Habit()
        self._sole = sole
        self._line = WaitingLine(leases.layout)

    def __repr__(self) -> str:
        return f"Subscription({self._layout.describe()}, {self.name!r})"

    @verb
    def lease(
        self,
        tr: Transaction | Database,
        *,
        duration: float = 30.0,
        consumer: str | None = None,
        timeout: float | None = 0.0,
    ) -> Steps[Lease[V] | None]:
        """Lease the next available item that the selector accepts; None if there is none, or no credit for it.

        Given a database, a call that is cancelled or interrupted keeps nothing, also while its commit is under way:
        what it took goes back to its place, with its credit and without counting an attempt. A thread does that if the
        commit is not answered yet.

        Args:
            tr: a transaction, or a database.
            duration: after how many seconds it is anybody's again, unless it is extended.
            consumer: who takes it, for those who look on; host name and process id by default.
            timeout: how many seconds to wait for an item; None: as long as it takes. It needs a database.

        Raises:
            SubscriptionError: it was unsubscribed, or is another's exclusively.
            FormatError, CodecError: the next item can't be read; it stays where it is.

        *Conflicts:* with other consumers of this subscription, with another who takes the same item, and with what
        comes to stand in front of it; in a caller's transaction that finds nothing, with whatever comes. *Cost:* two
        rounds of parallel reads, one more for each 1,000 items or so that are passed by; four writes, and five per
        item. Given a transaction, it passes by at most 10,000 items, and notes how far it came.
        """
        one = self.lease_many.steps(tr, limit=1, duration=duration, consumer=consumer, timeout=timeout)
        return next(iter((yield from one)), None)

    @verb
    def lease_many(
        self,
        tr: Transaction | Database,
        *,
        limit: int = 100,
        duration: float = 30.0,
        consumer: str | None = None,
        timeout: float | None = 0.0,
    ) -> Steps[list[Lease[V]]]:
        """Lease up to `limit` next items, in order, as far as there are some and credit lasts; otherwise as `lease`."""
        check_limit(limit, "items to lease")
        check_timeout(timeout)
        if timeout != 0:
            check_waits(tr)
        terms = Terms(
            limit,
            positive(duration, "duration"),
            this_consumer(consumer),
            os.urandom(TOKEN_BYTES),
            strict=is_database(tr),
            subscription=self.name,
        )
        if not is_database(tr):
            return (yield from self._take(cast(Transaction, tr), terms))[0].leases
        db = cast(Database, tr)
        portion = AdaptiveLimit(limit)

        def take(tr: Transaction) -> Steps[tuple[Taken, bool, bool]]:
            return self._take(tr, dataclasses.replace(terms, limit=portion.limit))

        # A call that waits renews its ownership each time that it looks, when a third of its time has passed.
        every = self._ownership_us / 3e6 if self._owner else REQUEST_SECONDS
        call = Awaiting(self.leases, self._line, terms, take, timeout, portion.note, every=every, sole=self._sole)
        return (yield from call.steps(db))

    @verb
    def ack(self, tr: Transaction | Database, lease: LeaseRef) -> Steps[None]:
        """Let an item be gone, as `Leases.ack`; its credit comes back."""
        yield from self.leases.ack.steps(tr, lease)

    @verb
    def suspend(self, tr: Transaction | Database) -> Steps[None]:
        """Deliver nothing until `resume`; what is leased stays leased.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* with this subscription's leases, and whoever begins or ends to wait for its items, at the same
        time. *Cost:* one read, and one of all who wait; one write, and one for each who waits for its items.
        """

        def body(tr: Transaction) -> Steps[None]:
            yield from self._change(tr, lambda registration: replace(registration, suspended=True))
            # While it is suspended, what comes is passed by for those in the line; out of it they wait to be resumed.
            yield from self._line.wake(tr, self.name)

        yield from self.leases.queue.transact(tr, body)

    @verb
    def resume(self, tr: Transaction | Database) -> Steps[None]:
        """Deliver again.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* with this subscription's leases at the same time. *Cost:* one read, one write.
        """
        yield from self._change(tr, lambda registration: replace(registration, suspended=False))

    @verb
    def grant(self, tr: Transaction | Database, *, items: int | None, size_bytes: int | None = None) -> Steps[None]:
        """Say how many items, and how many bytes of payload, its consumers may have at the same time.

        Whatever ends a lease gives its credit back. What is leased already counts; if that is more than is granted,
        nothing is delivered until enough of it has come back.

        Args:
            tr: a transaction, or a database.
            items: at most so many; None: any number.
            size_bytes: at most so many; None: any number. An item that is larger by itself is not delivered, nor
                what stands behind it.

        Raises, *Conflicts*, *Cost:* as `resume`.
        """
        given: tuple[Any, ...] = (items, size_bytes)
        if not all(one is None or (isinstance(one, int) and not isinstance(one, bool) and one >= 0) for one in given):
            raise ValueError(
                f"Credit is an integer from 0 on, or None for no limit, not {items} items and {size_bytes} bytes."
            )
        yield from self._change(tr, lambda registration: replace(registration, credit=items, credit_bytes=size_bytes))

    @verb
    def credit(self, tr: Transaction | Database) -> Steps[Credit]:
        """Return what may still be delivered.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads; the second grows with what consumers have.
        """
        return (yield from self.leases.queue.read(tr, self._credit_now))

    @verb
    def stats(self, tr: Transaction | Database) -> Steps[SubscriptionStats]:
        """Return the stats of this subscription.

        Raises:
            SubscriptionError: it was unsubscribed.

        *Conflicts:* none, it reads by snapshot. *Cost:* two reads in parallel; one grows with what its consumers have.
        """
        read = partial(read_one, layout=self._layout, now_us=self.leases.now_us(), name=self.name)
        found = yield from self.leases.queue.read(tr, read)
        if found is None:
            raise self._unsubscribed()
        return found

    @property
    def ownership(self) -> float:
        """After how many seconds without a call another may own it; 0: it is not exclusive."""
        return self._ownership_us / 1e6 if self._owner else 0.0

    @verb
    def renew(self, tr: Transaction | Database) -> Steps[None]:
        """Keep an exclusive subscription, for an owner that is busy with what it has: every lease does so on its way.

        Raises:
            SubscriptionError: as `lease`.

        *Conflicts:* as `resume`. *Cost:* one read, and one write when half of the ownership's time is over.
        """

        def body(tr: Transaction) -> Steps[None]:
            stored = yield tr.get(self._layout.subscriptions.pack((self.name,)))
            self._hold(tr, self._registration(stored), self.leases.now_us())

        yield from self.leases.queue.read(tr, body)

    @verb
    def close(self, tr: Transaction | Database) -> Steps[None]:
        """Give up an exclusive subscription: it stays registered, and anybody may take it over.

        *Conflicts:* as `resume`. *Cost:* one read, one write.
        """
        yield from self._change(tr, lambda registration: replace(registration, owned_until_us=0))

    def _take(self, tr: Transaction, terms: Terms) -> Steps[tuple[Taken, bool, bool]]:
        """Take items; say also whether anything was written, and whether it may have items at all."""
        now_us = self.leases.now_us()
        head = self._head(terms, now_us)
        registration = yield from head.prepare(tr, alone=terms.strict)
        renewed = self._hold(tr, registration, now_us) is not registration
        left = yield from credit_left(tr, self._layout, self.name, registration)
        settled = False
        short = left.size_bytes is not None or (left.items is not None and left.items < terms.limit)
        if short and left != Credit(registration.credit, registration.credit_bytes):
            # What its consumers let expire is theirs until somebody comes by.
            moves = yield from self._fire_due(tr, now_us)
            head.came_back(moves.arrived)
            settled = moves.any
            left = yield from credit_left(tr, self._layout, self.name, registration)
        limit = terms.limit if left.items is None else min(terms.limit, left.items)
        if registration.suspended or not limit:
            # More may be due than one transaction settles, and give credit back.
            return Taken([], again=settled and terms.strict and not registration.suspended), renewed or settled, False
        head.bytes_left = left.size_bytes
        if isinstance(head, Pointing):
            head.accepts = self._test(registration)
        taking = Taking(self.leases.queue, head, self.leases.retry)
        taken, wrote = yield from taking.take(tr, dataclasses.replace(terms, limit=limit), now_us)
        noted = yield from head.finish(tr)
        if not taken.leases and not terms.strict:
            head.found_nothing(tr)
        again = taken.again or (head.more and not taken.leases)
        return Taken(taken.leases, again), wrote or noted or renewed or settled, not head.stuck

    def _head(self, terms: Terms, now_us: int) -> Pointing | SoleHead:
        if self._sole:
            return SoleHead(self._layout, self.name, wanted=terms.limit)
        return Pointing(self._layout, self.name, now_us=now_us, habit=self._habit)

    def _fire_due(self, tr: Transaction, now_us: int) -> Steps[Moves]:
        """Settle what is due, and return what that moved."""
        due = yield from due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT)
        moves = Moves(tr, self._layout)
        try:
            yield from fire_due(tr, self._layout, moves, due, now_us=now_us, retry=self.leases.retry)
        finally:
            moves.finish()
        return moves

    def _credit_now(self, tr: Transaction) -> Steps[Credit]:
        stored = yield tr.snapshot.get(self._layout.subscriptions.pack((self.name,)))
        return (yield from credit_left(tr, self._layout, self.name, self._registration(stored)))

    def _test(self, registration: Registration) -> Callable[[bytes, bytes], bool]:
        if registration.selector is None:
            if self._function is None:
                raise SubscriptionError(
                    f"The selector of {self!r} is a function, which is not stored: name it when you subscribe."
                )
            return ItemTest(self._layout, self._function)
        if not registration.selector:
            return lambda key, stored: True
        return ItemTest(self._layout, Selector(registration.selector))

    def _hold(self, tr: Transaction, registration: Registration, now_us: int) -> Registration:
        """Make sure that an exclusive subscription is this process' own; renew that in time, and return what it is."""
        if registration.owner != self._owner:
            raise SubscriptionError(
                f"{self!r} is exclusive, and another's, or was: this process does not own it, or was silent for too"
                " long. Subscribe again; an exclusive one can be taken over when its owner is gone."
            )
        if not registration.owner or registration.owned_until_us - now_us > self._ownership_us / 2:
            return registration
        owned = replace(registration, owned_until_us=now_us + self._ownership_us)
        tr.set(self._layout.subscriptions.pack((self.name,)), pack_record(owned))
        return owned

    def _change(self, tr: Transaction | Database, change: Callable[[Registration], Registration]) -> Steps[None]:
        def body(tr: Transaction) -> Steps[None]:
            key = self._layout.subscriptions.pack((self.name,))
            registration = self._registration((yield tr.get(key)))
            owned = self._hold(tr, registration, self.leases.now_us())
            tr.set(key, pack_record(change(owned)))

        yield from self.leases.queue.transact(tr, body)

    def _registration(self, stored: Any) -> Registration:
        if not stored.present():
            raise self._unsubscribed()
        return read_registration(self._layout, self.name, bytes(stored))

    def _unsubscribed(self) -> SubscriptionError:
        return SubscriptionError(f"{self!r} was unsubscribed. Subscribe again.")
