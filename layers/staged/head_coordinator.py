"""Coordinate the calls of one process with other processes that take items from the same head.

An uncontended process fulfills the registered requests in their order, and takes its own items behind them, in one
transaction. Where processes take turns (`fdbqueue.engine.optional`), each of them does that. Elsewhere a process that
meets a conflict, or met others lately, registers a request by a blind write. The requests
and the items in front of a request assign items to it. The process takes these items while other processes take theirs,
and these transactions do not conflict (docs/adr/0078). A process without assigned items waits. It watches its own grant
and the request in front of its own. Only the first process in order on an empty queue watches the counters, which every
enqueue changes, and the timers. When it wakes, it fulfills the sleeping requests behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING

from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, TRANSACTION_TOO_OLD, predicates
from fdbqueue.engine.optional import conflict_since, has_turns
from fdbqueue.lowlevel import AdaptiveLimit, Database, FDBError, Steps, Transaction, started, value_of

from ..common.batcher import Alarm, Batcher
from ..leases import Head
from ..leases.taking import ITEMS_AT_ONCE, Allotment, Got, HeadRead, NothingWritten, Served
from .grants import (
    Attempt,
    Caller,
    Contended,
    Event,
    HeadPlace,
    Hints,
    OwnRequests,
    StallDetector,
    State,
    Want,
    allotment_of,
    wanted_by,
)
from .recent import OwnVersion, Uncontended, Unforeseen
from .requests import Request

if TYPE_CHECKING:
    from ._staged import ProcessState

REQUESTS_AT_ONCE = 100
"""Most requests that one transaction reads."""
REACH_ITEMS = 1_000
"""How far from the head a process takes its own items. A request that is farther away waits until it is nearer."""
TAKEOVER_SECONDS = 0.25
"""Seconds after which another process fulfills a request that has not moved although items are available."""
AFTERMATH_SECONDS = 0.1
"""A process that met others within this time registers at once. It need not win a conflict to be noticed."""


class HeadCoordinator(Batcher[Want, list[Got]]):
    """Serves the calls of one process for items of one queue in one database, for one duration of leases.

    The state of the process decides what its next transaction does (`grants.py`).

    Args:
        process: the process, with what its calls share.
        db: the database of the calls.
        duration_us: the duration of the leases that the calls want; 0: the calls take items out.
    """

    def __init__(self, process: ProcessState, db: Database, duration_us: int) -> None:
        super().__init__()
        self._leases = leases = process.leases
        self._delivery = delivery = process.delivery(leases)
        self._duration_us = duration_us
        self._consumer = process.consumer
        self._announce = process.acks.calls.announce
        # Whether reads have round trips, which are worth saving.
        self._saves_reads = saves_reads = not has_turns(db)
        self._remembers = duration_us > 0 and delivery.remembers
        self._committed_version: Callable[[Transaction], int] = methodcaller(
            "get_committed_version" if saves_reads else "committed_version"
        )
        self.own_requests = OwnRequests(leases, delivery, process.recent_leases, duration_us, process.consumer)
        self._requests = self.own_requests.requests
        self._uncontended = Uncontended(delivery, leases.layout, self._requests.begin, may_prefetch=saves_reads)
        self._place = HeadPlace()
        self._hints = Hints()
        self._stall_detector = StallDetector()
        self._adaptive_limit = AdaptiveLimit(ITEMS_AT_ONCE)
        self._version = process.version_of(db)
        self._own_version = OwnVersion()
        self._retried = False
        """Whether the present transaction is not the first attempt."""
        self._contention_stats = process.contention_stats
        self._recent_leases = process.recent_leases

    async def serve(self, leader: Caller) -> Alarm | None:
        try:
            return await self._serve(leader.db)
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            for caller in self.calls.waiting():
                self.calls.settle(caller, None, FDBError(COMMIT_UNKNOWN_RESULT) if interrupted else error)
            if interrupted:
                raise
        return None

    async def dismiss(self, db: Database) -> None:
        """Withdraw the request, and put back the items that were granted meanwhile."""
        request, self._place = self._place.request, self._place.after(Event.dismissed)
        if request is not None:
            await self._leases.queue.transact(db, lambda tr: self.own_requests.withdraw(tr, request))

    def joined(self, caller: Caller) -> None:
        """Make the leader look again for a call that does not wait. The leader may be resting on an empty queue."""
        if not caller.leads and not caller.argument.patient:
            self.calls.wake()

    async def serve_alone(self, db: Database, argument: Want, results: list[list[Got]]) -> None:
        """Take one item directly. Anything else is done for calls in the queue."""
        if self._place.state is not State.direct or self._met_lately(db):
            return
        attempt = await self._try(db, self._direct_alone, met_lately=False)
        if attempt is None:
            return
        if attempt.got or (attempt.nothing and not argument.patient):
            results.append(attempt.got)
        elif attempt.error is not None:
            raise attempt.error

    async def give_on(self, db: Database, result: list[Got]) -> None:
        """Give items to the waiting calls, in order. Put unclaimed items back."""
        served = 0
        for caller in self.calls.waiting():
            if not result:
                break
            if self.calls.settle(caller, result[: caller.argument.limit]):
                result = result[caller.argument.limit :]
                served += 1
        if served:
            self.calls.served(served)
        await self.put_back(db, result)

    async def put_back(self, db: Database, result: list[Got]) -> None:
        if result:
            await self._leases.queue.transact(db, lambda tr: self._delivery.put_back(tr, result))

    async def _serve(self, db: Database) -> Alarm | None:
        if self._place.request is None:
            await self.calls.gather()
        if self._place.state is not State.waiting:  # a waiting request keeps a reduced limit
            self._adaptive_limit = AdaptiveLimit(ITEMS_AT_ONCE)
        met_lately = self._met_lately(db)
        attempt = await self._try(db, self._body(met_lately), met_lately=met_lately)
        if attempt is None:
            return None
        if attempt.wish is not None and attempt.stamp is not None:
            request = await self._requests.registered(self._leases.queue, db, attempt.stamp, attempt.wish)
            self._hints.read_at = self._own_version.of(attempt.version) if self._saves_reads else 0
            self._advance(Event.registered, request)
        elif attempt.request is not None:
            self._place = self._place.renewed(attempt.request)
        elif self._place.request is not None:
            self._advance(Event.fulfilled)
        await self._deal(db, attempt)
        return attempt.alarm

    def _met_lately(self, db: Database) -> bool:
        """Return whether to register at once, since this process has just met others and they do not take turns."""
        return time.monotonic() - self._hints.met <= AFTERMATH_SECONDS and not self._hints.take_turns(db)

    async def _try(
        self, db: Database, body: Callable[[Transaction], Steps[Attempt]], *, met_lately: bool
    ) -> Attempt | None:
        """Run one transaction. Return what it did; None if another one has to follow at once."""
        self._uncontended.guessed = self._retried = False
        try:
            attempt = await self._leases.queue.transact(
                db, body, on_retry=self._on_retry, takes=self._place.state is State.direct
            )
        except Contended:
            if self._place.state is State.direct and self._hints.take_turns(db):
                self._hints.lost_turns += 1
            else:
                self._advance(Event.conflict)
            return None
        except Unforeseen:
            return None
        except NothingWritten as left:
            attempt = left.result
            if attempt.unmarked:
                self._recent_leases.confirm_soon(db, attempt.unmarked)
        else:
            leased = self._duration_us and (self._saves_reads or self._remembers)
            if leased or met_lately or attempt.wish is not None or attempt.prefetch is not None:
                # Only where reads have round trips will this process read at that version.
                attempt.version = self._committed_version(attempt.tr)
            if attempt.prefetch is not None:
                self._uncontended.committed(attempt.prefetch, attempt.version)
            if attempt.old_grants:
                self._recent_leases.forget_grants(attempt.old_grants)
        self._hints.lost_turns = 0
        if attempt.version > 0 and self._saves_reads:
            self._version.note(attempt.version)
        if self._remembers:
            self._recent_leases.add(attempt.version, attempt.got)
        return attempt

    def _body(self, lately: bool) -> Callable[[Transaction], Steps[Attempt]]:
        """Return what the next transaction does."""
        match self._place.state:
            case State.direct:
                return self._register_at_once if lately else self._direct
            case State.registering:
                return self._register_at_once
            case State.claiming:
                return self._claim
            case State.waiting:
                return self._look

    def _advance(self, event: Event, request: Request | None = None) -> None:
        # A process takes its own items. If they are large, or in another order, the first one fulfills all requests.
        claims = not self._delivery.large and type(self._leases.head) is Head
        self._place = self._place.after(event, request=request, claims=claims)

    def _on_retry(self, error: FDBError) -> None:
        self._retried = True
        self._contention_stats.note(error)
        self._adaptive_limit.note(error)
        guessed, self._uncontended.guessed = self._uncontended.guessed, False
        if guessed:
            self._uncontended.was_wrong()
            if predicates.retryable_not_committed(error):
                raise Unforeseen
        if error.code == TRANSACTION_TOO_OLD:
            self._own_version.was_refused()
        if error.code == NOT_COMMITTED:
            self._hints.met = time.monotonic()
            if self._place.state is not State.registering:
                # Another process took these items, or served this process as well. This process looks at once.
                raise Contended

    async def _deal(self, db: Database, attempt: Attempt) -> None:
        """Give the waiting calls what an attempt brought."""
        if self._duration_us and attempt.got:
            self._announce(min(len(attempt.got), len(attempt.callers)))  # before the callers ack
        await self.give_on(db, attempt.got)
        if attempt.error is not None and not attempt.got:
            for caller in attempt.callers:
                if self.calls.settle(caller, None, attempt.error):
                    break
        if attempt.nothing:
            for caller in attempt.callers:
                if not caller.argument.patient:
                    self.calls.settle(caller, [])
        emptied = (attempt.nothing or attempt.drained) and self._place.state is State.direct
        if emptied and any(caller.argument.patient for caller in self.calls.waiting()):
            self._advance(Event.starved)

    async def _direct(self, tr: Transaction) -> Attempt:
        """Fulfill the registered requests, and take items for our own callers behind them, without a request."""
        attempt = Attempt(tr, self.calls.waiting())
        limit = min(self._adaptive_limit.limit, wanted_by(attempt.callers))
        look = None
        standing: list[Request] = []
        # This process has met no other one lately, and expects neither requests nor timers.
        if limit == 1 and not self._duration_us:
            look = await self._uncontended.take(tr, attempt)
            if attempt.got:
                return attempt
        else:
            look = await self._delivery.look_uncontended(tr, self._requests.begin, limit=limit)
        if look is None:
            # By snapshot: a request that is registered while this commits is behind this transaction.
            reading = started(self._requests.first(tr, limit=REQUESTS_AT_ONCE))
            look = self._delivery.look(tr, limit=limit)
            standing = await reading
        if len(standing) == REQUESTS_AT_ONCE:  # there may be more, also in front of this call
            return await self._register(tr)
        dead = [one for one in standing if one.is_dead(tr, look.now_us)]
        live = [one for one in standing if one not in dead]
        if standing:
            self._hints.met = time.monotonic()
        served = await self._fulfill(tr, attempt, look, None, live, dead)
        attempt.nothing = not attempt.got and served.drained
        if not served.wrote and not dead:
            raise NothingWritten(attempt)
        return attempt

    async def _direct_alone(self, tr: Transaction) -> Attempt:
        """Take one item for a call that is not in the queue, or find nothing. Leave requests to calls in the queue."""
        attempt = Attempt(tr, [])
        if self._duration_us:
            look = await self._delivery.look_uncontended(tr, self._requests.begin, limit=1)
        else:
            look = await self._uncontended.take(tr, attempt)
            if attempt.got:
                return attempt
        if look is None:
            if await self._requests.first(tr, limit=1):
                raise NothingWritten(attempt)
            look = self._delivery.look(tr, limit=1)  # not before: where a look counts as a turn, none is lost
        own = Allotment(1, self._duration_us, self._consumer, own=True)
        served = await self._delivery.take(tr, look, [own], most=1)
        attempt.got, attempt.error = own.got, served.error
        attempt.nothing = not own.got and served.drained
        if not served.wrote:
            raise NothingWritten(attempt)
        return attempt

    async def _register_at_once(self, tr: Transaction) -> Attempt:
        """Register a request without a look for other processes first."""
        # Only at the first attempt. A later attempt may have read the commit marker already, and then has a read
        # version. A version that was seen meanwhile does not help it.
        recent = 0 if self._retried else self._version.take()
        if recent and self.own_requests.swept:
            conflict_since(tr, recent)
        return await self._register(tr)

    async def _register(self, tr: Transaction) -> Attempt:
        """Register a request behind all earlier ones, by a blind write."""
        attempt = Attempt(tr, self.calls.waiting())
        attempt.wish, attempt.stamp = await self.own_requests.register(tr, wanted_by(attempt.callers))
        attempt.old_grants = self._recent_leases.clear_grants(tr)
        self._hints.pause = TAKEOVER_SECONDS
        return attempt

    async def _claim(self, tr: Transaction) -> Attempt:
        """Take the items that are assigned to our request, or collect the leases granted to it.

        The requests in front of it take their own items.
        """
        self._contention_stats.looks += 1
        request = self._place.own_request()
        attempt = Attempt(tr, self.calls.waiting(), request=request)
        registered_at, self._hints.read_at = self._hints.read_at, 0
        grant_key = self._requests.grant_key(request.wish.client)
        granted = None
        if registered_at:
            tr.set_read_version(registered_at)  # no process can have granted anything at this version
        else:
            granted = tr.get(grant_key)
        looking = started(
            self._delivery.look_behind(
                tr,
                self._requests.begin,
                self._requests.end,
                limit=max(self._hints.reach, request.wish.wanted),
                others=REQUESTS_AT_ONCE,
            )
        )
        if granted is not None and (value := await value_of(granted)).present():
            await self._collect(tr, attempt, bytes(value))
            return attempt
        found, look = await looking
        standing = self._requests.opened([row for row in found if row.key <= request.key])
        in_front = [one for one in standing if one.key < request.key]
        if in_front:
            self._hints.met = time.monotonic()
        dead = [one for one in in_front if one.is_dead(tr, look.now_us)]
        if dead:
            for one in dead:
                self._requests.remove(tr, one.key)
            return attempt
        if standing and standing[-1].key == request.key:
            stuck = self._stall_detector.stuck(in_front, TAKEOVER_SECONDS)
            if stuck:
                if await self._serve_some(tr, look, stuck, [allotment_of(one) for one in stuck], []):
                    return attempt
            else:
                allotment = self._allotment(attempt, request)
                if await self._serve_some(tr, look, [request], [allotment], in_front):
                    attempt.request, attempt.got = None, allotment.got
                    return attempt
        # The request is gone or one of very many, or has no assigned item, or a plain take is not enough.
        self._advance(Event.unassigned)
        raise NothingWritten(attempt)

    async def _serve_some(
        self,
        tr: Transaction,
        look: HeadRead,
        requests: list[Request],
        allotments: list[Allotment],
        in_front: list[Request],
    ) -> bool:
        """Give requests the items assigned to them behind those in front. Return False, with nothing written, if it
        can't."""
        offset = sum(one.wish.wanted for one in in_front)
        end = offset + sum(allotment.wanted for allotment in allotments)
        self._hints.reach = min(end, REACH_ITEMS)
        if end > REACH_ITEMS or self._adaptive_limit.limit < ITEMS_AT_ONCE:
            return False
        if not await self._delivery.take_own(tr, look, allotments, offset=offset):
            return False
        self._requests.go_past(tr, in_front)
        for one, allotment in zip(requests, allotments, strict=True):
            given = len(allotment.got or allotment.handles)
            if given:
                self._requests.fulfill(
                    tr,
                    one,
                    allotment.handles,
                    now_us=look.now_us,
                    given=given,
                    again=allotment.again,
                    in_turn=True,
                )
        return True

    async def _look(self, tr: Transaction) -> Attempt:
        """Collect the granted leases. Else fulfill if our request is the first in order, or else wait."""
        self._contention_stats.looks += 1
        request = self._place.own_request()
        changed = self.calls.new_change()
        attempt = Attempt(tr, self.calls.waiting(), request=request, changed=changed)
        grant_key = self._requests.grant_key(request.wish.client)
        # With conflicts: a process that fulfills, withdraws or collects this request meanwhile conflicts with it.
        # A read of its key apart would make the embedded engine read the range slowly.
        granted = tr.get(grant_key)
        tr.add_read_conflict_key(request.key)
        reading = started(self._requests.first(tr, limit=REQUESTS_AT_ONCE))
        look = None
        if self._hints.is_first:
            limit = max(self._hints.fulfilled, wanted_by(attempt.callers))
            look = self._delivery.look(tr, limit=min(self._adaptive_limit.limit, limit))
        value = await value_of(granted)
        if value.present():
            await self._collect(tr, attempt, bytes(value))
            return attempt
        standing = await reading
        is_there = any(one.key == request.key for one in standing)
        if not is_there and len(standing) == REQUESTS_AT_ONCE:  # it may be behind these
            is_there = (await value_of(tr.get(request.key))).present()
        if not is_there:  # the request expired while this process slept, and was removed
            attempt.request = None
            raise NothingWritten(attempt)
        if len(standing) > 1:
            self._hints.met = time.monotonic()
        return await self._act(tr, attempt, look, request, standing)

    async def _collect(self, tr: Transaction, attempt: Attempt, stored: bytes) -> None:
        self._hints.met = time.monotonic()
        request = self._place.own_request()
        await self.own_requests.collect(tr, attempt, request, self._requests.granted(request.wish.client, stored))

    async def _act(
        self, tr: Transaction, attempt: Attempt, look: HeadRead | None, request: Request, standing: list[Request]
    ) -> Attempt:
        now_us = self._leases.now_us()
        live = [one for one in standing if one.key == request.key or not one.is_dead(tr, now_us)]
        in_front = [one for one in live if one.key < request.key]
        self._hints.is_first = not in_front
        if not in_front or self._stall_detector.stuck(in_front, TAKEOVER_SECONDS):
            dead = [one for one in standing if one not in live]
            served = await self._fulfill(tr, attempt, look, request, live, dead)
            if served.wrote or dead:
                return attempt
            attempt.nothing = served.error is None
            if served.error is not None:
                raise NothingWritten(attempt)
        elif attempt.asks():
            attempt.nothing = not await self._delivery.has_items(tr)
        if attempt.nothing and attempt.asks():
            raise NothingWritten(attempt)  # these calls are answered first; the others look again
        if request.seconds_until_renewal(now_us) < 0:
            tr.add_read_conflict_key(request.key)
            attempt.request = Request(request.key, self.own_requests.wish(tr, wanted_by(attempt.callers)))
            self._requests.put(tr, request.key, attempt.request.wish)
            attempt.nothing = False
            return attempt
        attempt.alarm = await self.own_requests.alarm(attempt, request, in_front, now_us, self._hints)
        attempt.nothing = False
        raise NothingWritten(attempt)

    async def _fulfill(
        self,
        tr: Transaction,
        attempt: Attempt,
        look: HeadRead | None,
        request: Request | None,
        live: list[Request],
        dead: list[Request],
    ) -> Served:
        """Give the first items to the requests in order, including ours. Without a request, our callers come last."""
        is_last = request is None or live[-1].key == request.key
        own = self._allotment(attempt, None if is_last else request)
        allotments = [own if request and one.key == request.key else allotment_of(one) for one in live]
        if request is None:
            allotments.append(own)
        if look is None:
            limit = sum(allotment.wanted for allotment in allotments)
            look = self._delivery.look(tr, limit=min(self._adaptive_limit.limit, limit))
        served = await self._delivery.take(tr, look, allotments, most=self._adaptive_limit.limit)
        attempt.got, attempt.error, attempt.drained = own.got, served.error, served.drained
        self._hints.fulfilled = served.items
        for one in dead:
            self._requests.remove(tr, one.key)
        if own.got:
            attempt.request = None
            if served.untaken and request is not None:
                await self.own_requests.forget(tr, request)
        for one, allotment in zip(live, allotments, strict=False):
            if allotment.got or allotment.handles:
                given = len(allotment.got or allotment.handles)
                self._requests.fulfill(
                    tr, one, allotment.handles, now_us=look.now_us, given=given, again=allotment.again
                )
        return served

    def _allotment(self, attempt: Attempt, request: Request | None) -> Allotment:
        """Return the allotment of our callers: all that they want, or at most the number that `request` wants."""
        wanted = wanted_by(attempt.callers)
        if request is not None:
            wanted = min(wanted, request.wish.wanted)
        return Allotment(wanted, self._duration_us, self._consumer, own=True)
