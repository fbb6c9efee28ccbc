"""Calls that take items of a subscription, and wait for them if there are none.

The waiting calls of one process share a request (docs/adr/0068). The first of them leads: it looks for items, renews
the request and sets the watches. When it has items, or goes, it passes the request on to the next call. So what an idle
process does, and what an item costs, does not grow with the number of its calls. The request tells how many they are,
so that an immediate enqueue finds one of them as long as one waits. A process that took an item registers again, behind
the requests of others.

A call can be cancelled or interrupted at any moment, also during its commit. It then keeps nothing: it gives back the
items that it took or was granted, and if no other call waits, it removes the request. Each look notes what it takes
before it commits. A cancelled look runs to its end in a thread. Then the next leader, or else the thread, gives
everything back. An interruption (Ctrl-C) can also end a look in the middle. Then it is unknown whether its commit took
effect, or still will. The transaction that gives everything back writes a conflict on a key that every look reads. So
the look has committed before it, or never commits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from fdbqueue import LeaseLost
from fdbqueue.engine.optional import members_of
from fdbqueue.lowlevel import Database, FDBError, Future, Steps, Transaction, leaves_in_doubt, value_of
from fdbqueue.stored.positions import RANDOM_BYTES

from ..common.batcher import Alarm, Batcher, PendingCall
from ..leases import Lease, LeaseHandle, LeaseRef, Leases
from ..leases.taking import Allotment, commit_if_written
from ..leases.timers import next_due_us
from ..staged.delivery import HeadDelivery
from ..staged.grants import LOOK_SECONDS
from ..staged.requests import REQUEST_SECONDS, TAKE_SECONDS, Request, Wish, wished
from .head import Habit
from .records import registration_key
from .waiters import Waiters


class Taken(NamedTuple):
    """What one transaction took of a subscription."""

    leases: list[Lease]
    again: bool
    """Whether it could not clear all due timers and all items that are over, so that another one must look."""
    wrote: bool
    may_have: bool
    """Whether the subscription may have items at all."""


_WATCHED = ("enqueued", "returned")
"""Each arrival changes one of these counters."""


@dataclass(slots=True)
class _WaitLook:
    """What one transaction of a call did."""

    leases: list[Lease] = field(default_factory=list)
    request: Request | None = None
    """The current request of the calls."""
    wish: Wish | None = None
    """The value of the request that this transaction registered, if it did."""
    stamp: Future[bytes] | None = None
    """The versionstamp in the key of that request."""
    alarms: list[Future[object]] = field(default_factory=list)
    """The call waits for one of these futures before it looks again."""
    seconds: float = 0.0
    """The longest wait."""
    looks_anew: bool = False
    """Whether this transaction made other calls look whether the items that the call offered are taken."""
    is_last: bool = False
    """Whether the call ends with this look, even without items."""


Body = Callable[[Transaction], Steps[tuple[_WaitLook, bool]]]
"""Looks in one transaction; also returns whether it wrote."""


@dataclass(frozen=True, slots=True)
class AwaitedTake:
    """What a call wants."""

    limit: int
    """How many items to take."""
    duration_us: int
    """The duration of their leases."""
    consumer: str
    """Who takes them."""
    take: Callable[[Transaction], Steps[Taken]]
    """Takes items of the subscription, if there are some."""
    on_retry: Callable[[FDBError], None]
    """Called with the error before a transaction that takes items is repeated."""
    timeout: float | None
    """Seconds to wait; 0: do not wait; None: no limit."""


class _Waiting(PendingCall[AwaitedTake, list[Lease]]):
    """A pending call. While it leads, `Awaiting.serve` ends it, with the items granted by then."""

    __slots__ = ()

    def overdue(self) -> bool:
        return not self.leads and super().overdue()


class Awaiting(Batcher[AwaitedTake, list[Lease]]):
    """The calls of one process that take items of a subscription, in one database.

    Args:
        leases: the queue's leases.
        waiters: the waiters of the queue's subscriptions.
        name: the subscription's name.
        apart: makes an object like this one, for a call that shares nothing with the others.
        may_begin: returns whether granted items may begin: the queue is not paused, the subscription not suspended.
        every: the calls look again after this many seconds at the latest.
        exclusive_all: whether all waiting calls want the first item; the first waiter then looks for itself only.
    """

    def __init__(
        self,
        leases: Leases,
        waiters: Waiters,
        name: str,
        *,
        apart: Callable[[], Awaiting],
        may_begin: Callable[[Transaction], Steps[bool]],
        every: float = REQUEST_SECONDS,
        exclusive_all: bool = False,
    ) -> None:
        super().__init__()
        self._leases = leases
        self._layout = leases.layout
        self._name = name
        self._apart = apart
        self._may_begin = may_begin
        self._waiters = waiters
        self._delivery = HeadDelivery(leases, subscription=name)
        self._every = every
        self._exclusive_all = exclusive_all
        self._habit = Habit()
        self._awaited: AwaitedTake
        """What the leader wants."""
        self._deadline: float | None = None
        """When the leader's time is over, by `time.monotonic`."""
        self._request: Request | None = None
        self._looked = False
        """Whether it has looked for items since it registered its request, or renewed it."""
        self._offered: list[bytes] = []
        """The keys of items that it woke other calls for, as the first waiter."""
        self._offered_until = 0.0
        """When it looks whether these are taken, by `time.monotonic`."""
        self._tried = _WaitLook()
        """The last look before its commit: it may have taken these items, and registered a request."""
        self._in_doubt = False
        """Whether a look is under way, or ended and it is unknown if its commit took effect."""

    async def steps(self, db: Database, wanted: AwaitedTake) -> list[Lease]:
        """Return items once there are some; [] after the timeout.

        The items of a cancelled call go back to their places.
        """
        deadline = time.monotonic() + wanted.timeout if wanted.timeout else None
        pending = _Waiting(db, wanted, deadline=deadline)
        try:
            return await self.call(pending) or await self._look_once(pending)
        except BaseException:
            self.calls.wake()  # one call less waits
            raise

    async def _look_once(self, pending: PendingCall[AwaitedTake, list[Lease]]) -> list[Lease]:
        """Look for a call whose time was over before it led: others have looked, but perhaps before it began."""
        if pending.settled:
            return []
        self.calls.wake()
        return await self._apart().steps(pending.db, replace(pending.argument, timeout=0))

    def joined(self, pending: PendingCall[AwaitedTake, list[Lease]]) -> None:
        self.calls.wake()

    async def serve(self, leader: PendingCall[AwaitedTake, list[Lease]]) -> Alarm | None:
        self._awaited, self._deadline = leader.argument, leader.deadline
        changed = self.calls.new_change()
        try:
            if self._in_doubt or self._tried.leases:
                await self.dismiss(leader.db)  # the leader before was cancelled or interrupted
            look = await self._commit(leader.db, self._look)
            if not look.leases and not look.is_last:
                left = self._seconds_left()
                if left > 0:
                    if not look.alarms:
                        return None
                    return [*look.alarms, changed], max(0.001, min(left, look.seconds, self._every))
                if self._calls() == 1:
                    look = await self._commit(leader.db, self.leave_waiters)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.calls.settle(leader, None, error)
        else:
            if self.calls.settle(leader, look.leases):
                self._tried = _WaitLook()
        return None

    async def _commit(self, db: Database, body: Body) -> _WaitLook:
        """Run one transaction. If it fails, note whether its commit may have taken effect."""
        self._in_doubt = True
        try:
            look = await commit_if_written(self._leases.queue, db, body, on_retry=self._awaited.on_retry)
            if look.stamp is not None and look.wish is not None:
                look.request = await self._waiters.registered(self._leases.queue, db, look.stamp, look.wish)
        except Exception as error:
            if not leaves_in_doubt(error):
                self._in_doubt = False
                self._tried = _WaitLook()
            raise
        self._request = look.request
        self._in_doubt = False
        if look.stamp is not None:
            self._looked = False
        if look.looks_anew:
            self._offered = []
        return look

    async def dismiss(self, db: Database) -> None:
        """Remove the request for good; give back at once all items taken or granted, even unreadable ones."""
        if self._request is None and not self._tried.leases and not self._in_doubt:
            return
        # The caller gets another error already. If this fails, its request and its leases expire.
        with contextlib.suppress(Exception):
            await self._leases.queue.transact(db, self._undo)
        self._request, self._tried, self._offered, self._in_doubt = None, _WaitLook(), [], False

    async def put_back(self, db: Database, result: list[Lease]) -> None:
        with contextlib.suppress(Exception):  # as in `dismiss`
            await self._leases.queue.transact(db, partial(self._give_back, leases=result))

    def _seconds_left(self) -> float:
        return REQUEST_SECONDS if self._deadline is None else self._deadline - time.monotonic()

    def _calls(self) -> int:
        """Return how many calls wait. The leader's caller may have gone; then the leader still counts."""
        return max(1, len(self.calls.waiting()))

    async def _look(self, tr: Transaction) -> tuple[_WaitLook, bool]:
        """Collect granted items, or take items, or register a request, or dispatch as first waiter, or wait."""
        look = self._tried = _WaitLook(request=self._request)
        request, renewed = self._request, False
        stood = request is not None and self._looked
        if request is not None:
            grants, own = await self._waiters.read_own(tr, request)
            if grants:
                (client, stored), *later = grants
                look.leases = await self._collect(tr, self._granted(tr, client, stored))
                if later:
                    look.request = self._waiters.behind_grant(request, client)
                else:
                    self._leave_place(tr, look, request, registers=bool(look.leases))
                return look, True  # without leases after a pause, and so it looks again
            request = look.request = own
            if own is not None:
                if own.seconds_until_renewal(self._leases.now_us()) < 0 or own.wish.wanted != self._calls():
                    request = look.request = self._renewed(tr, own)
                    renewed = True
                elif self._looked:
                    in_front = await self._waiters.in_front_of(tr, own.key)
                    if in_front is not None and not in_front.is_dead(tr, self._leases.now_us()):
                        await self._stand_behind(tr, look, own, in_front)
                        return look, False
        taken = await self._awaited.take(tr)
        wrote, ready = taken.wrote, taken.may_have
        if taken.leases:
            look.leases = taken.leases
            # A process that did not wait may well find more items. It registers when it finds none.
            self._leave_place(tr, look, request, registers=stood)
            return look, True
        if self._awaited.timeout == 0:
            look.is_last = not taken.again
            return look, wrote
        if not ready and not wrote and not taken.again:
            return look, await self._stand_aside(tr, look, request) or renewed
        self._looked = request is not None and ready and not taken.again
        if wrote or renewed or taken.again:
            return look, wrote or renewed
        if request is None:
            self._register(tr, look, self._calls())
            return look, True
        return look, await self._stand(tr, look, request)

    def _register(self, tr: Transaction, look: _WaitLook, calls: int) -> None:
        look.wish = self._wish(tr, os.urandom(RANDOM_BYTES), calls)
        look.stamp = self._waiters.register(tr, look.wish)

    def _leave_place(self, tr: Transaction, look: _WaitLook, request: Request | None, *, registers: bool) -> None:
        """Remove the request, because the leader has items. If it `registers`, do so for the other calls that wait.

        In the same transaction: an immediate enqueue does not find that none of them waits.
        """
        look.request = None
        if request is not None:
            self._waiters.remove(tr, request.key)
            if self._offered:
                self._waiters.look_anew(tr)  # another call has to see whether the items that it offered are taken
                look.looks_anew = True
        others = self._calls() - 1
        if registers and others:
            self._register(tr, look, others)

    async def _stand(self, tr: Transaction, look: _WaitLook, request: Request) -> bool:
        """Act as a waiter; return whether anything was written. If nothing was, set the alarms."""
        now_us = self._leases.now_us()
        in_front = await self._waiters.in_front_of(tr, request.key)
        if in_front is not None:
            is_dead = in_front.is_dead(tr, now_us)
            if is_dead:
                self._waiters.remove(tr, in_front.key)
            else:
                await self._stand_behind(tr, look, request, in_front)
            return is_dead
        if not self._exclusive_all:
            if self._offered and time.monotonic() >= self._offered_until:
                offered, self._offered = self._offered, []
                if await self._waiters.any_left(tr, offered):  # a woken call may have died
                    self._waiters.look_anew(tr)
                    return True
            wrote, again, offered = await self._waiters.dispatch(tr, now_us, self._habit)
            if offered:
                self._offered += offered
                self._offered_until = time.monotonic() + TAKE_SECONDS
            if wrote or again:
                return wrote
        seconds = min(request.seconds_until_renewal(now_us), await self._next_due(tr))
        if self._offered:
            seconds = min(seconds, max(0.0, self._offered_until - time.monotonic()))
        counters = [self._layout.count_key(name) for name in _WATCHED]
        await self._set(tr, look, seconds, *counters, request.key)
        return False

    async def _stand_behind(self, tr: Transaction, look: _WaitLook, request: Request, in_front: Request) -> None:
        """Wait for the call in front.

        Only the first waiter looks at arrivals. A call that wakes because the call in front renewed its request does
        not look for items.
        """
        now_us = self._leases.now_us()
        # The first waiter may be dead. The second waiter is then the first to see that its request has expired.
        seconds = (in_front.wish.expires_at_us - now_us) / 1e6 + 0.001
        # A call of this process can't die alone. So a thousand calls of one process don't look at each other.
        if in_front.wish.process and in_front.wish.process != members_of(tr).own_id():
            seconds = min(seconds, LOOK_SECONDS)
        await self._set(tr, look, min(request.seconds_until_renewal(now_us), seconds), in_front.key, request.key)

    def _renewed(self, tr: Transaction, request: Request) -> Request:
        """Renew the request."""
        wish = self._wish(tr, request.wish.client, self._calls())
        self._waiters.put(tr, request.key, wish)
        return Request(request.key, wish)

    def _wish(self, tr: Transaction, client: bytes, calls: int) -> Wish:
        return wished(tr, client, calls, now_us=self._leases.now_us(), consumer=self._name)

    async def _stand_aside(self, tr: Transaction, look: _WaitLook, request: Request | None) -> bool:
        """Wait for credit, or for `resume`, without a request: else an item would wait for this call."""
        if request is not None:
            self._waiters.remove(tr, request.key)
            look.request = None
            return True
        returned = self._layout.returned.pack((self._name,))
        keys = (returned, registration_key(self._layout, self._name), self._layout.paused_key)
        await self._set(tr, look, min(REQUEST_SECONDS, await self._next_due(tr)), *keys)
        return False

    async def _set(self, tr: Transaction, look: _WaitLook, seconds: float, *keys: bytes) -> None:
        """Watch keys: the transaction wrote nothing, and its commit sets the watches at its own read version."""
        look.seconds = seconds
        look.alarms += map(tr.watch, keys)
        await value_of(tr.commit())

    async def _next_due(self, tr: Transaction) -> float:
        """Return the seconds until the next timer is due."""
        now_us = self._leases.now_us()
        due_us = await next_due_us(tr, self._layout, now_us)
        return REQUEST_SECONDS if due_us is None else max(0.0, (due_us - now_us) / 1e6)

    async def _collect(self, tr: Transaction, granted: list[LeaseHandle]) -> list[Lease]:
        """Move granted leases to the leader; leave out lost ones. Give them back if the queue is paused.

        The reads are plain: of a reclaim and this transaction, one commits.
        """
        if not granted:
            return []
        awaited = self._awaited
        # They may have been granted before a pause, or to calls that have gone.
        wanted = awaited.limit if await self._may_begin(tr) else 0
        own = Allotment(wanted, awaited.duration_us, awaited.consumer, own=True)
        return [got.given for got in await self._delivery.collect(tr, granted, own)]

    async def leave_waiters(self, tr: Transaction) -> tuple[_WaitLook, bool]:
        """Remove the request; collect the items granted by then."""
        look = self._tried = _WaitLook(is_last=True)
        if self._request is None:
            return look, False
        look.leases = await self._collect(tr, await self._step_out(tr, self._request))
        return look, True

    async def _undo(self, tr: Transaction) -> None:
        held: list[LeaseRef] = [*self._tried.leases]
        requests = [] if self._request is None else [self._request]
        if self._in_doubt:
            self._waiters.fence_off(tr, self._name)
            if self._tried.wish is not None:
                requests.append(await self._waiters.find(tr, self._tried.wish))
        for request in requests:
            held += await self._step_out(tr, request)
        await self._give_back(tr, held)

    async def _give_back(self, tr: Transaction, leases: Sequence[LeaseRef]) -> None:
        for lease in leases:
            with contextlib.suppress(LeaseLost):  # it was never committed, or was given back already
                await self._leases.snooze.steps(tr, lease, delay=0)

    def _granted(self, tr: Transaction, client: bytes, stored: bytes) -> list[LeaseHandle]:
        """Remove a grant, and return its leases."""
        grant = self._waiters.granted(client, stored)
        for key in self._waiters.taken_keys(client, grant):
            tr.clear(key)
        return grant.leases

    async def _step_out(self, tr: Transaction, request: Request) -> list[LeaseHandle]:
        """Remove a request; return granted leases. If it was woken for an item, offer that to other waiters."""
        grants, own = await self._waiters.read_own(tr, request)
        self._waiters.remove(tr, request.key)
        if ((own is None and not grants) or self._offered) and not self._exclusive_all:
            self._waiters.look_anew(tr)
        return [lease for client, stored in grants for lease in self._granted(tr, client, stored)]
