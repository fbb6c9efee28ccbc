"""One process at the head of a queue: its states, what one attempt did, and what it does with its requests."""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fdbqueue.engine.errors import NOT_COMMITTED
from fdbqueue.engine.optional import members_of, shares_turns
from fdbqueue.engine.waiting import Promise
from fdbqueue.lowlevel import Database, FDBError, Future, Shown, Transaction, keep_out, value_of
from fdbqueue.stored.positions import RANDOM_BYTES

from ..common.batcher import Alarm, PendingCall
from ..leases import Leases
from ..leases.taking import ITEMS_AT_ONCE, Allotment, Got, NothingWritten
from .delivery import HeadDelivery
from .recent import Prefetch, RecentLeases
from .requests import REQUEST_SECONDS, TAKE_SECONDS, Grant, Request, Requests, Wish, granted_us, wished

# The states of one process at the head of a queue, and the events that lead from one state to the next.

MOST_LOST_TURNS = 4
"""After so many conflicts, one after the other, a process registers a request even where processes take turns."""


class State(StrEnum):
    """What the next transaction of a process does."""

    direct = "direct"
    """It has no request. It fulfills the registered requests, and takes items for its own calls behind them."""
    registering = "registering"
    """It has no request yet, and registers one."""
    claiming = "claiming"
    """It has a request, and takes the items that are assigned to it."""
    waiting = "waiting"
    """It has a request, and collects what was granted to it. If nothing was, it waits. The first process in order
    fulfills all requests instead."""


class Event(StrEnum):
    """What one transaction of a process found or did."""

    conflict = "conflict"
    """Another process took the same items, or fulfilled this process's request."""
    registered = "registered"
    """It registered a request."""
    unassigned = "unassigned"
    """No item is assigned to its request, or it can't take its items by itself."""
    fulfilled = "fulfilled"
    """Its request got items, or expired and was removed."""
    starved = "starved"
    """It left the queue empty, and one of its calls waits for an item."""
    dismissed = "dismissed"
    """None of its calls is waiting any more."""


NEXT = {
    (State.direct, Event.conflict): State.registering,
    (State.direct, Event.starved): State.registering,
    (State.direct, Event.registered): State.claiming,  # it met other processes a moment ago, or found very many
    (State.direct, Event.dismissed): State.direct,
    (State.registering, Event.registered): State.claiming,  # a conflict only repeats the registration
    (State.registering, Event.dismissed): State.direct,
    (State.claiming, Event.conflict): State.claiming,
    (State.claiming, Event.unassigned): State.waiting,
    (State.claiming, Event.fulfilled): State.direct,
    (State.claiming, Event.dismissed): State.direct,
    (State.waiting, Event.conflict): State.claiming,
    (State.waiting, Event.fulfilled): State.direct,
    (State.waiting, Event.dismissed): State.direct,
}
"""All transitions; other events can't happen in a state. A process whose head has another order, or large items, never
claims: it waits instead."""
_WITH_REQUEST = (State.claiming, State.waiting)


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """The state of a process, and its request. It is replaced as a whole, so that an interruption can't split them."""

    state: State = State.direct
    request: Request | None = None
    """The registered request, exactly if it is claiming or waiting."""

    def after(self, event: Event, *, request: Request | None = None, claims: bool = True) -> HeadPlace:
        """Return the place after an event.

        Args:
            request: the new request, if it was registered.
            claims: whether processes take the items assigned to them by themselves.
        """
        state = NEXT[self.state, event]
        if state is State.claiming and not claims:
            state = State.waiting
        return HeadPlace(state, (request or self.request) if state in _WITH_REQUEST else None)

    def own_request(self) -> Request:
        """Return the request. Call this only in a state that has one."""
        if self.request is None:
            raise RuntimeError(f"A process that is {self.state} has no request.")
        return self.request

    def renewed(self, request: Request) -> HeadPlace:
        """Return this place with the request as it is stored now."""
        return HeadPlace(self.state, request)


class StallDetector:
    """Finds requests in front that do not move, because their process is dead or asleep."""

    __slots__ = ("_first", "_last", "_since")

    def __init__(self) -> None:
        self._first = self._last = b""
        self._since = 0.0

    def stuck(self, in_front: list[Request], seconds: float) -> list[Request]:
        """Return the requests in front, in order, that have been there for `seconds`. The list is often empty."""
        if not in_front:
            return []
        if self._first != in_front[0].key:
            self._first, self._last, self._since = in_front[0].key, in_front[-1].key, time.monotonic()
            return []
        late = time.monotonic() - self._since >= seconds
        return [one for one in in_front if late and one.key <= self._last]


@dataclass(slots=True)
class Hints:
    """What recent transactions suggest for the next one. A wrong hint costs a read or a conflict, never an item."""

    met: float = -math.inf
    """When this process last met another one, by `time.monotonic`."""
    fulfilled: int = 1
    """How many items it last gave to all requests."""
    reach: int = 1
    """How far from the head its own items were."""
    is_first: bool = True
    """Whether no request was in front of its own."""
    read_at: int = 0
    """The version of its registration, to read at once; 0: read at the newest version."""
    pause: float = 0.0
    """How many seconds it waits before it checks the request in front. Each look doubles them."""
    lost_turns: int = 0
    """How many direct attempts conflicted, one after the other, although processes take turns."""

    def take_turns(self, db: Database) -> bool:
        """Return whether to take items directly beside other processes.

        Where processes take turns, a conflict is rare, and a direct attempt costs half of a request and a claim.
        """
        return self.lost_turns < MOST_LOST_TURNS and shares_turns(db)


# One attempt: what a transaction at the head of a queue does for the calls of one process.


class Want(NamedTuple):
    """The terms of a call."""

    limit: int
    """Most items that it takes."""
    patient: bool
    """Whether it waits if the queue is empty."""


ONE = Want(1, patient=False)
"""One item, at once."""
Caller = PendingCall[Want, list[Got]]
_KEPT_BY_NONE = Promise()


@dataclass(slots=True)
class Attempt:
    """What a transaction of this process did."""

    tr: Transaction
    """The transaction."""
    callers: list[Caller]
    """The calls that waited when it began to read. It never tells a later call that the queue is empty."""
    got: list[Got] = field(default_factory=list)
    nothing: bool = False
    """Whether it saw the queue empty."""
    drained: bool = False
    """Whether it left the queue empty."""
    request: Request | None = None
    """Our present request."""
    wish: Wish | None = None
    """The terms that it registered, if any."""
    stamp: Future[bytes] | None = None
    """The versionstamp of that registration."""
    error: Exception | None = None
    """Why the first item can't be read."""
    alarm: Alarm | None = None
    """What to wait for before the next attempt."""
    version: int = 0
    """The version of its commit or, without one, of its reads; 0 or less: unknown."""
    old_grants: list[bytes] = field(default_factory=list)
    """The keys of grants that it removed."""
    unmarked: bytes = b""
    """The client id of a grant that it took without a mark and without a commit."""
    prefetch: Prefetch | None = None
    """The prediction that holds if it commits."""
    changed: Promise = _KEPT_BY_NONE
    """Kept by later calls that do not wait."""

    def asks(self) -> bool:
        """Return whether a caller wants to know at once that the queue is empty."""
        return any(not caller.argument.patient for caller in self.callers)


class Contended(Exception):
    """Ends a direct transaction that conflicted."""


@dataclass(slots=True, repr=False)
class ContentionStats(Shown):
    """Counts of what calls met at the head."""

    looks: int = 0
    """How many times a process looked after its request."""
    conflicts: int = 0
    """How many commits failed with a conflict."""

    def note(self, error: FDBError) -> None:
        """Count a failed commit, if it failed with a conflict."""
        self.conflicts += error.code == NOT_COMMITTED


def allotment_of(request: Request) -> Allotment:
    """Return the allotment of another process's request."""
    wish = request.wish
    return Allotment(wish.wanted, granted_us(wish.duration_us), wish.consumer)


def wanted_by(callers: list[Caller]) -> int:
    """Return how many items calls want together, up to what one transaction takes."""
    if len(callers) == 1:
        return min(ITEMS_AT_ONCE, callers[0].argument.limit)
    return max(1, min(ITEMS_AT_ONCE, sum(caller.argument.limit for caller in callers)))


LOOK_SECONDS = 0.5
"""How often the process behind another one looks whether that one is still alive, if the engine knows."""

DEPUTY_SECONDS = 0.25
"""How much later than the first process in order the second one fires a timer."""


class OwnRequests:
    """What a process does with its requests for leases of one duration: it registers, waits, collects and withdraws.

    Args:
        leases: the leases of the queue.
        delivery: its delivery.
        recent_leases: the recent leases of this process.
        duration_us: the duration of the leases; 0: items are taken out.
        consumer: the name of the consumer that takes the leases.
    """

    __slots__ = (
        *("_client", "_consumer", "_delivery", "_duration_us", "_leases", "_recent_leases", "_registrations"),
        *("requests", "swept"),
    )

    def __init__(
        self,
        leases: Leases,
        delivery: HeadDelivery,
        recent_leases: RecentLeases,
        duration_us: int,
        consumer: str,
    ) -> None:
        self._leases = leases
        self._delivery = delivery
        self._recent_leases = recent_leases
        self._duration_us = duration_us
        self._consumer = consumer
        self._client = os.urandom(RANDOM_BYTES)
        self._registrations = 0
        self.requests = Requests(leases.layout)
        """The requests of the queue."""
        self.swept = False
        """Whether it has swept old grants, which it does once. Later registrations read nothing."""

    async def register(self, tr: Transaction, wanted: int) -> tuple[Wish, Future[bytes]]:
        """Register a request behind all earlier ones, by a blind write. Return it, and its versionstamp's future."""
        if not self.swept:
            self.swept = True
            await self.requests.sweep_grants(tr, self._client, self._leases.now_us())
        # Each registration has its own grant key. Work on an old grant never meets a new one.
        self._registrations += 1
        wish = self.wish(tr, wanted)
        return wish, self.requests.register(tr, wish)

    def wish(self, tr: Transaction, wanted: int) -> Wish:
        """Return the terms of the latest registration, valid from now on."""
        client = self._client + self._registrations.to_bytes(4, "big")
        now_us = self._leases.now_us()
        return wished(tr, client, wanted, now_us=now_us, duration_us=self._duration_us, consumer=self._consumer)

    async def collect(self, tr: Transaction, attempt: Attempt, request: Request, grant: Grant) -> None:
        """Take the granted leases. Usable leases need no commit. (docs/adr/0076)

        If the queue is paused, the items go back instead.

        Raises:
            NothingWritten: there is nothing to commit.
        """
        # The grant may be older than a pause: this process may have stood still in between.
        paused = await keep_out(tr, self._leases.layout, self._leases.now_us)
        client = request.wish.client
        attempt.request = None
        if paused:
            await self._return(tr, client, grant)
            return
        if self._duration_us == granted_us(self._duration_us) and not grant.again:
            good = await self._delivery.accept(tr, grant.leases, self._duration_us)
            if good is not None and self._has_time(tr, attempt, client, grant):
                attempt.got = good
                attempt.version = await value_of(tr.get_read_version())
                self._recent_leases.leave_grant(self.requests.taken_keys(client, grant))
                raise NothingWritten(attempt)
        own = Allotment(wanted_by(attempt.callers), self._duration_us, self._consumer, own=True)
        attempt.got = await self._delivery.collect(tr, grant.leases, own)
        self._forget(tr, client, grant)

    def _has_time(self, tr: Transaction, attempt: Attempt, client: bytes, grant: Grant) -> bool:
        """Note that this process takes a grant, and return whether that needs no commit now.

        A process puts the leases back when the grant's time is over, unless it sees a mark, or the grant's key is gone.
        A mark is visible at once, so it counts if it was set before that time. Without marks a commit of this process
        removes the key soon, together with an ack or alone.
        """
        if not grant.take_until_us:
            return True
        if grant.process and grant.process == members_of(tr).own_id() and members_of(tr).mark(client):
            return self._leases.now_us() < grant.take_until_us  # the clock is read after the mark
        if grant.take_until_us - self._leases.now_us() < TAKE_SECONDS / 2 * 1e6:
            return False
        attempt.unmarked = client
        return True

    def _forget(self, tr: Transaction, client: bytes, grant: Grant) -> None:
        for key in self.requests.taken_keys(client, grant):
            tr.clear(key)

    async def withdraw(self, tr: Transaction, request: Request) -> None:
        """Remove a request, and give back the items that were granted to it."""
        # A plain read: a grant at the same time conflicts with it, and then this transaction reads again.
        grant = await self._granted(tr, request)
        self.requests.remove(tr, request.key)
        if grant is not None:
            await self._return(tr, request.wish.client, grant)

    async def forget(self, tr: Transaction, request: Request) -> None:
        """Remove what this transaction itself granted to a request of this process: nothing, so that it looks again."""
        grant = await self._granted(tr, request)
        if grant is not None:
            self._forget(tr, request.wish.client, grant)

    async def _granted(self, tr: Transaction, request: Request) -> Grant | None:
        client = request.wish.client
        value = await value_of(tr.get(self.requests.grant_key(client)))
        return self.requests.granted(client, bytes(value)) if value.present() else None

    async def _return(self, tr: Transaction, client: bytes, grant: Grant) -> None:
        """Put granted items back in their places, uncounted."""
        unwanted = Allotment(0, self._duration_us, self._consumer, own=True)
        await self._delivery.collect(tr, grant.leases, unwanted)
        self._forget(tr, client, grant)

    async def alarm(
        self, attempt: Attempt, request: Request, in_front: list[Request], now_us: int, hints: Hints
    ) -> Alarm:
        """Set the watches that wake this process, at this transaction's own read version, so that it misses nothing.

        The transaction wrote nothing. Its commit only sets the watches, and the conflict range of a watch does no harm.
        """
        tr = attempt.tr
        seconds = request.seconds_until_renewal(now_us)
        watches: list[Future[object]] = [tr.watch(self.requests.grant_key(request.wish.client))]
        due_us = await self._delivery.next_due_us(tr) if len(in_front) < 2 else None
        if in_front:
            watches.append(tr.watch(in_front[-1].key))
            # The second in order checks the first one soonest, then the third, and so on.
            seconds = min(seconds, len(in_front) * hints.pause * random.uniform(0.8, 1.2))
            hints.pause = min(2 * hints.pause, LOOK_SECONDS if in_front[-1].wish.process else REQUEST_SECONDS)
            seconds = min(seconds, (in_front[-1].wish.expires_at_us - now_us) / 1e6 + 0.001)
            if due_us is not None:  # the first one should fire this timer
                seconds = min(seconds, max(0.0, (due_us - now_us) / 1e6) + DEPUTY_SECONDS)
        else:
            watches += map(tr.watch, self._delivery.watched())
            if due_us is not None:
                seconds = min(seconds, (due_us - now_us) / 1e6)
        await value_of(tr.commit())
        return [*watches, attempt.changed], max(seconds, 0.001)
