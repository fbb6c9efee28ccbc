"""Turns: how processes that want items from one head do not fight over it.

A process that finds nobody waiting takes its items directly. One that meets a conflict, or finds others waiting, or
finds nothing, registers a request. The first in request order fulfills the requests behind it together with its own,
in one transaction; the others wait by a watch on their own grant and on the request in front of them. Whoever is first
on an empty queue watches the counters, which every enqueue touches, and the timers; it alone.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, FDBError
from fdbqueue.engine.steps import Steps, started
from fdbqueue.layout import RANDOM_BYTES

from .combining import Alarm, Crew, Ticket
from .leases import Leases
from .requests import GRANT_SECONDS, REQUEST_SECONDS, Request, Requests, Wish
from .serving import ITEMS_AT_ONCE, Got, Look, Served, Serving, Share

REQUESTS_AT_ONCE = 100
"""How many requests one transaction looks at."""
TAKEOVER_SECONDS = 0.25
"""When the first in order has done nothing for so long though there are items, another fulfills in its place."""
AFTERMATH_SECONDS = 0.1
"""Who met others so lately registers at once, so that nobody has to fight for being noticed."""
_WATCHED = ("enqueued", "leased", "dead")
"""The counters that change whenever an item becomes available, but for those that a timer brings back."""


class Want(NamedTuple):
    """What a call wants."""

    limit: int
    """How many items at most."""
    patient: bool
    """Whether it waits when there are none."""


Caller = Ticket[Want, list[Got]]


@dataclass(slots=True)
class _Turn:
    """What a transaction of ours did."""

    callers: list[Caller]
    """Who was waiting when it began to read: nobody who came later is told that there is nothing."""
    got: list[Got] = field(default_factory=list)
    nothing: bool = False
    """Whether it saw the queue empty."""
    request: Request | None = None
    """Our request as it is now."""
    wish: Wish | None = None
    """What was registered, if it was."""
    stamp: Future[Any] | None = None
    """Under which versionstamp."""
    error: Exception | None = None
    """Why the first item can't be read."""
    alarm: Alarm | None = None
    """What to wait for before there is anything to do."""

    def asks(self) -> bool:
        """Say whether somebody wants to be told at once that there is nothing."""
        return any(not caller.argument.patient for caller in self.callers)


class _Leave(Exception):
    """Ends a transaction that has nothing to write."""

    def __init__(self, turn: _Turn) -> None:
        self.turn = turn


class _Contended(Exception):
    """Ends a direct transaction that met a conflict."""


@dataclass(slots=True)
class Meetings:
    """What calls met at the head."""

    looks: int = 0
    """How often a request was looked after."""
    conflicts: int = 0
    """How many commits met a conflict."""


class Turns(Crew[Want, list[Got]]):
    """One process' calls for items of one queue in one database, on the same terms.

    Args:
        leases: of the queue.
        duration_us: of the leases that the calls want; 0: they take items out.
        consumer: for whom.
        meetings: what is counted.
    """

    def __init__(self, leases: Leases, *, duration_us: int, consumer: str, meetings: Meetings) -> None:
        super().__init__()
        self._leases = leases
        self._queue = leases.queue
        self._requests = Requests(leases.layout)
        self._serving = Serving(leases)
        self._duration_us = duration_us
        self._consumer = consumer
        self._client = os.urandom(RANDOM_BYTES)
        self._grant_key = self._requests.grant_key(self._client)
        self._request: Request | None = None
        self._contended = False
        self._swept = False
        self._pause = TAKEOVER_SECONDS
        self._in_front = (b"", 0.0)
        self._fulfilled = 1
        self._met = -AFTERMATH_SECONDS
        self._ahead = True
        self._meetings = meetings

    def serve(self, leader: Caller) -> Steps[Alarm | None]:
        try:
            return (yield from self._serve(leader.db))
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            for caller in self.line.waiting():
                self.line.settle(caller, None, FDBError(COMMIT_UNKNOWN_RESULT) if interrupted else error)
            if interrupted:
                raise
        return None

    def dismiss(self, db: Database) -> Steps[None]:
        """Withdraw the request; what was granted meanwhile goes back."""
        request, self._request, self._contended = self._request, None, False
        if request is None:
            return
        try:
            yield from self._queue.transact(db, lambda tr: self._withdraw(tr, request))
        except FDBError:
            return  # it expires, and so does a grant

    def unclaimed(self, ticket: Caller) -> Steps[None]:
        yield from self._put_back(ticket.db, ticket.result or [])

    def _serve(self, db: Database) -> Steps[Alarm | None]:
        if self._request is None:
            yield from self.line.gather()
        alone = not self._contended and time.monotonic() - self._met > AFTERMATH_SECONDS
        body = self._look if self._request else self._direct if alone else self._register
        try:
            turn = yield from self._queue.transact(db, body, on_retry=self._on_retry)
        except _Contended:
            self._contended = True
            return None
        except _Leave as left:
            turn = left.turn
        if turn.wish is not None and turn.stamp is not None:
            turn.request = yield from self._registered(db, turn.stamp, turn.wish)
        if self._request is not None and turn.request is None:
            self._contended = False
        self._request = turn.request
        yield from self._deal(db, turn)
        return turn.alarm

    def _on_retry(self, error: FDBError) -> None:
        if error.code == NOT_COMMITTED:
            self._meetings.conflicts += 1
            self._met = time.monotonic()
            if self._request is None and not self._contended:
                raise _Contended

    def _deal(self, db: Database, turn: _Turn) -> Steps[None]:
        """Give what was got to those who wait, in order; what nobody wants any more goes back."""
        got = turn.got
        served = 0
        for caller in self.line.waiting():
            if not got:
                break
            if self.line.settle(caller, got[: caller.argument.limit]):
                got = got[caller.argument.limit :]
                served += 1
        if served:
            self.line.served(served)
        yield from self._put_back(db, got)
        if turn.error is not None and not turn.got:
            for caller in turn.callers:
                if self.line.settle(caller, None, turn.error):
                    break
        if turn.nothing:
            for caller in turn.callers:
                if not caller.argument.patient:
                    self.line.settle(caller, [])
            # Whoever still waits does it with a request.
            self._contended = any(caller.argument.patient for caller in self.line.waiting())

    def _put_back(self, db: Database, got: list[Got]) -> Steps[None]:
        if got:
            yield from self._queue.transact(db, lambda tr: self._serving.put_back(tr, got))

    def _direct(self, tr: Transaction) -> Steps[_Turn]:
        """Take items if nobody waits; else register, in the same transaction."""
        turn = _Turn(self.line.waiting())
        last = self._requests.last(tr)
        share = self._share(turn)
        look = self._serving.look(tr, limit=share.wanted)
        # By snapshot: a request that is registered while this commits stands behind it.
        if self._requests.is_key(bytes((yield last))):
            if turn.asks() and not (yield from look.head):
                turn.nothing = True
                raise _Leave(turn)
            self._met = time.monotonic()
            return (yield from self._register(tr))
        served = yield from self._serving.take(tr, look, [share])
        turn.got, turn.error = share.got, served.error
        turn.nothing = not (served.items or served.again or served.error)
        if not served.wrote:
            raise _Leave(turn)
        return turn

    def _register(self, tr: Transaction) -> Steps[_Turn]:
        """Register behind all who did before, by a blind write."""
        turn = _Turn(self.line.waiting())
        self._ahead = True  # if it is, it is served the sooner
        if not self._swept:
            self._swept = True
            yield from self._requests.sweep_grants(tr, self._client, self._leases.now_us())
        turn.wish = self._wish(turn)
        turn.stamp = self._requests.register(tr, turn.wish)
        self._pause = TAKEOVER_SECONDS
        return turn

    def _wish(self, turn: _Turn) -> Wish:
        expires_at_us = self._leases.now_us() + int(REQUEST_SECONDS * 1e6)
        return Wish(self._client, _wanted(turn.callers), expires_at_us, self._duration_us, self._consumer)

    def _registered(self, db: Database, stamp: Future[Any], wish: Wish) -> Steps[Request | None]:
        """Return our request as it was registered."""
        try:
            return Request(self._requests.key(bytes((yield stamp))), wish)
        except FDBError:
            # It took an unknown outcome to register it, and with that went the versionstamp.
            return (yield from self._queue.read(db, partial(self._requests.of_client, client=self._client)))

    def _look(self, tr: Transaction) -> Steps[_Turn]:
        """Collect what was granted, or fulfill, if it is this one's turn, or wait."""
        self._meetings.looks += 1
        request = self._request
        if request is None:
            raise RuntimeError("there is no request to look after")
        turn = _Turn(self.line.waiting(), request=request)
        # Plain reads: who fulfills, withdraws or collects this request at the same time conflicts with it.
        granted, own = tr.get(self._grant_key), tr.get(request.key)
        reading = started(self._requests.first(tr, limit=REQUESTS_AT_ONCE))
        look = None
        if self._ahead:  # who expects to be the first reads the items at the same time, the others if they need to
            look = self._serving.look(tr, limit=max(self._fulfilled, _wanted(turn.callers)))
        value = yield granted
        if value.present():
            turn.got = yield from self._serving.collect(tr, self._requests.granted(bytes(value)), self._share(turn))
            tr.clear(self._grant_key)
            if (yield own).present():  # the grant was for one whose registration came through without an answer
                tr.clear(request.key)
            turn.request = None
            self._met = time.monotonic()
            return turn
        if not (yield own).present():  # it expired while this process slept, and was removed
            turn.request = None
            raise _Leave(turn)
        standing = yield from reading
        if len(standing) > 1:
            self._met = time.monotonic()
        return (yield from self._act(tr, turn, look, request, standing))

    def _act(
        self, tr: Transaction, turn: _Turn, look: Look | None, request: Request, standing: list[Request]
    ) -> Steps[_Turn]:
        now_us = self._leases.now_us()
        live = [one for one in standing if one.key == request.key or one.wish.expires_at_us > now_us]
        in_front = [one for one in live if one.key < request.key]
        self._ahead = not in_front
        if not in_front or self._is_stuck(in_front[0]):
            dead = [one for one in standing if one not in live]
            served = yield from self._fulfill(tr, turn, look, request, live, dead)
            if served.wrote or dead:
                return turn
            turn.nothing = served.error is None
            if served.error is not None:
                raise _Leave(turn)
        elif turn.asks():
            turn.nothing = not (yield from self._leases.head.first(tr, limit=1))
        if turn.nothing and turn.asks():
            raise _Leave(turn)  # they are answered first; the others look again
        if request.wish.expires_at_us - now_us < REQUEST_SECONDS / 2 * 1e6:
            tr.add_read_conflict_key(request.key)
            turn.request = Request(request.key, self._wish(turn))
            self._requests.put(tr, request.key, turn.request.wish)
            turn.nothing = False
            return turn
        turn.alarm = yield from self._set_alarm(tr, request, in_front, now_us)
        turn.nothing = False
        raise _Leave(turn)

    def _fulfill(
        self,
        tr: Transaction,
        turn: _Turn,
        look: Look | None,
        request: Request,
        live: list[Request],
        dead: list[Request],
    ) -> Steps[Served]:
        """Give the first items to the requests in order, ours among them."""
        own = self._share(turn)
        shares = [own if one.key == request.key else _share_of(one) for one in live]
        if look is None:
            look = self._serving.look(tr, limit=min(ITEMS_AT_ONCE, sum(share.wanted for share in shares)))
        served = yield from self._serving.take(tr, look, shares)
        turn.got, turn.error = own.got, served.error
        self._fulfilled = served.items
        for one in dead:
            self._requests.remove(tr, one.key)
        for one, share in zip(live, shares, strict=True):
            if share is own and own.got:
                tr.clear(request.key)
                turn.request = None
            elif share.handles:
                self._requests.fulfill(tr, one, share.handles, now_us=self._leases.now_us())
        return served

    def _is_stuck(self, first: Request) -> bool:
        """Say whether the first in order has stood there for too long, as far as this one has seen."""
        key, since = self._in_front
        if key != first.key:
            self._in_front = (first.key, time.monotonic())
            return False
        return time.monotonic() - since >= TAKEOVER_SECONDS

    def _set_alarm(self, tr: Transaction, request: Request, in_front: list[Request], now_us: int) -> Steps[Alarm]:
        """Watch what this one has to wake for, by this transaction's own view, so that nothing is missed.

        The transaction wrote nothing: its commit only sets the watches off, and the conflict that a watch adds harms
        nobody.
        """
        seconds = (request.wish.expires_at_us - now_us) / 1e6 - REQUEST_SECONDS / 2
        watches: list[Future[Any]] = [tr.watch(self._grant_key)]
        if in_front:
            watches.append(tr.watch(in_front[-1].key))
            # The second in order is the first to look after the first one, and so on.
            seconds = min(seconds, len(in_front) * self._pause * random.uniform(0.8, 1.2))
            self._pause = min(2 * self._pause, REQUEST_SECONDS)
        else:
            due_us = yield from self._serving.next_due_us(tr)
            watches += [tr.watch(self._leases.layout.count_key(name)) for name in _WATCHED]
            if due_us is not None:
                seconds = min(seconds, (due_us - now_us) / 1e6)
        bell = self.line.bell
        yield tr.commit()
        return [*watches, bell], max(seconds, 0.001)

    def _withdraw(self, tr: Transaction, request: Request) -> Steps[None]:
        # A plain read: whoever grants at the same time conflicts, and this looks again.
        value = yield tr.get(self._grant_key)
        self._requests.remove(tr, request.key)
        if value.present():
            unwanted = Share(0, self._duration_us, self._consumer, own=True)
            yield from self._serving.collect(tr, self._requests.granted(bytes(value)), unwanted)
            tr.clear(self._grant_key)

    def _share(self, turn: _Turn) -> Share:
        return Share(_wanted(turn.callers), self._duration_us, self._consumer, own=True)


def _share_of(request: Request) -> Share:
    granted_us = int(GRANT_SECONDS * 1e6)
    wish = request.wish
    return Share(wish.wanted, min(wish.duration_us or granted_us, granted_us), wish.consumer)


def _wanted(callers: list[Caller]) -> int:
    return max(1, min(ITEMS_AT_ONCE, sum(caller.argument.limit for caller in callers)))
