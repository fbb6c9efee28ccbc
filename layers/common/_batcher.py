"""Combining: calls of one process that are pending at the same time are served together.

Challenge
    Every transaction has its price, and transactions at the head of a queue conflict. The database should see
    processes, not their threads and tasks.

How
    Calls stand in a line. The first one leads: it serves as many of the calls behind it as fit, in one transaction,
    while the others wait. When it is done, the first that came meanwhile leads. There is no thread of its own, so that
    a lone call is served by itself, without a switch. Threads and asyncio tasks stand in the same line.

Guarantees
    A call that is cancelled, or whose input is bad, does not fail the others. A leader that is cancelled or interrupted
    leaves its transaction to a thread, which finishes it and passes the lead on.

Source
    Flat combining (Hendler et al., SPAA 2010); group commit in databases.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from fdbqueue.engine.api import Database, Future
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, TRANSACTION_TOO_LARGE, FDBError
from fdbqueue.engine.steps import Steps

from ._waiting import Promise, alarmed, finish, first_of, in_thread

A = TypeVar("A")
R = TypeVar("R")
Alarm = tuple[list[Future[Any]], float | None]
"""What a leader waits for before it serves again: one of these, or so many seconds."""

GATHER_SECONDS = 0.001
"""How long a leader waits at least for those who were served with the ones before it."""
LONGEST_GATHER_SECONDS = 0.008
"""And at most; between them, as long as the last turn took."""
ANNOUNCED_SECONDS = 0.002
"""For how long those are expected who were served together in another line."""

_FAULTS_OF_ONE = (TRANSACTION_TOO_LARGE, 2102, 2103)  # and a key or a value that is too large: nothing was committed


class PendingCall(Generic[A, R]):
    """A call in the line. Becomes ready when it is served, or when it is to lead.

    Args:
        db: where it is to be served.
        argument: of the call.
        weight: what it adds to a transaction.
        deadline: when it gives up, by `time.monotonic`; None: never.
    """

    __slots__ = ("argument", "db", "deadline", "error", "gone", "leads", "result", "settled", "turn", "weight")

    def __init__(self, db: Database, argument: A, *, weight: int = 1, deadline: float | None = None) -> None:
        self.db = db
        self.argument = argument
        self.weight = weight
        self.deadline = deadline
        self.turn = Promise()
        self.leads = self.settled = self.gone = False
        self.result: R | None = None
        self.error: BaseException | None = None

    def seconds_left(self) -> float | None:
        """Return how long it still waits; None: as long as it takes."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def overdue(self) -> bool:
        """Say whether it has waited for long enough."""
        return self.deadline is not None and time.monotonic() >= self.deadline


class CallQueue(Generic[A, R]):
    """Calls that wait, and which of them leads. All that decides who gets what is done under its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PendingCall[A, R]] = deque()
        self._led = False
        self._working = False
        self._gathering: tuple[int, Promise] | None = None
        self._recent = 0
        self._announced = (0, 0.0)
        self._gathered_at = 0.0
        self._took = 0.0
        self._bell = Promise()

    def join(self, ticket: PendingCall[A, R]) -> None:
        """Stand at the end, and lead if nobody does."""
        with self._lock:
            self._waiting.append(ticket)
            if not self._led:
                self._led = ticket.leads = True
            gathered = self._gathering is not None and len(self._waiting) >= self._gathering[0]
        if gathered and self._gathering is not None:
            self._gathering[1].keep()

    def is_led(self) -> bool:
        """Say whether there is a leader; where there is none nobody waits, and nothing is left behind."""
        return self._led

    def ring(self) -> None:
        """Let a leader that waits look again."""
        self._bell.keep()

    def new_bell(self) -> Promise:
        """Return what is kept by whoever rings from now on.

        One for each look, asked for in front of it: who comes later rings it, and it goes with all who waited for it.
        """
        self._bell = Promise()
        return self._bell

    def gather(self) -> Steps[None]:
        """Wait for a moment, if there are fewer calls than were served last.

        Callers who were served together come again one after the other; without this the first of them would go off
        alone, every time. Those who do two things in turn, lease and ack, come after the other one, which takes about
        as long as this: else they fall apart into halves, of which each does the one while the other does the other.
        """
        with self._lock:
            calls, until = self._announced
            expected = max(self._recent, calls) if time.monotonic() < until else self._recent
            missing = len(self._waiting) < expected
            if missing:
                self._gathering = (expected, Promise())
        if missing and self._gathering is not None:
            seconds = min(max(self._took, GATHER_SECONDS), LONGEST_GATHER_SECONDS)
            yield from first_of([self._gathering[1]], seconds)
            self._gathering = None
        self._gathered_at = time.monotonic()

    def served(self, calls: int) -> None:
        """Note how many calls were served together.

        One turn with fewer is not believed at once: else those who came too late for a turn would be served apart from
        the others ever after.
        """
        self._recent = max(calls, self._recent - 1)
        self._took = time.monotonic() - self._gathered_at

    def announce(self, calls: int) -> None:
        """Note that so many callers may come at once, who were served together in another line just now.

        For a moment only: those who have more to do before they come are not waited for.
        """
        self._announced = (calls, time.monotonic() + ANNOUNCED_SECONDS)

    def waiting(self) -> list[PendingCall[A, R]]:
        """Return those who are not served yet, in order."""
        with self._lock:
            return list(self._waiting)

    def first(self, weight: int) -> list[PendingCall[A, R]]:
        """Return the first ones of one database, up to a weight in all; at least one, if there is one.

        They stand there until they are settled, so that none is lost when whoever serves them is interrupted.
        """
        with self._lock:
            batch: list[PendingCall[A, R]] = []
            for ticket in self._waiting:
                if ticket.settled:
                    continue
                weight -= ticket.weight
                if batch and (weight < 0 or ticket.db is not batch[0].db):
                    break
                batch.append(ticket)
            return batch

    def settle(self, ticket: PendingCall[A, R], result: R | None, error: BaseException | None = None) -> bool:
        """Serve a call; False if it is gone, and did not get it."""
        with self._lock:
            if ticket.gone or ticket.settled:
                return False
            ticket.result, ticket.error, ticket.settled = result, error, True
            self._forget(ticket)
        ticket.turn.keep()
        return True

    def begin(self) -> None:
        """Note that the leader works for the line: whoever it is, the lead is not passed on until it ends."""
        with self._lock:
            self._working = True

    def end(self, ticket: PendingCall[A, R]) -> bool:
        """Note that the work has ended; True if the leader is gone meanwhile, and the lead is to be passed on."""
        with self._lock:
            self._working = False
            return ticket.gone

    def leave(self, ticket: PendingCall[A, R]) -> bool:
        """Go, served or not; True if the lead is to be passed on by whoever goes."""
        with self._lock:
            ticket.gone = True
            if not ticket.settled:
                self._forget(ticket)
            return ticket.leads and not self._working

    def pass_on(self, leader: PendingCall[A, R]) -> bool:
        """Let the first one lead, if the leader still does; False if there is none."""
        with self._lock:
            if not leader.leads:
                return True
            heir = next((ticket for ticket in self._waiting if not ticket.settled), None)
            if heir is None:
                self._waiting.clear()  # whoever settled these was interrupted before they were forgotten
                return False
            leader.leads, heir.leads = False, True
        heir.turn.keep()
        return True

    def disband(self, leader: PendingCall[A, R]) -> bool:
        """Let nobody lead, and the next one who comes; False if somebody has come."""
        with self._lock:
            if self._waiting:
                return False
            leader.leads = self._led = False
            return True

    def _forget(self, ticket: PendingCall[A, R]) -> None:
        if self._waiting and self._waiting[0] is ticket:
            self._waiting.popleft()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)


class Batcher(ABC, Generic[A, R]):
    """Serves calls together. What serving is, its subclasses say."""

    def __init__(self) -> None:
        self.line: CallQueue[A, R] = CallQueue()

    @abstractmethod
    def serve(self, leader: PendingCall[A, R]) -> Steps[Alarm | None]:
        """Serve some of the line; return what to wait for, if it has to wait. Never raises: tickets get the errors."""

    def joined(self, ticket: PendingCall[A, R]) -> None:
        """Do what is to be done when a call has come."""

    def dismiss(self, db: Database) -> Steps[None]:
        """Leave nothing behind, as nobody waits any more."""
        yield from ()

    def unclaimed(self, ticket: PendingCall[A, R]) -> Steps[None]:
        """Take back what a call got whose caller was cancelled at that moment."""
        yield from ()

    def call(self, ticket: PendingCall[A, R]) -> Steps[PendingCall[A, R]]:
        """Wait until the call is served or its time is over; return it as it then is."""
        try:
            self.line.join(ticket)
            self.joined(ticket)
            while not ticket.settled and not ticket.overdue():
                if not ticket.leads:
                    if ticket.deadline is None:
                        yield ticket.turn
                    else:
                        yield from first_of([ticket.turn], ticket.seconds_left())
                    continue
                alarm = yield from finish(self._work(ticket))
                if alarm is not None and not ticket.settled:
                    yield from self._rest(ticket, *alarm)
            if ticket.leads or not ticket.settled:
                yield from finish(self._leave(ticket))
        except GeneratorExit:
            in_thread(self._leave(ticket, cancelled=True))
            raise
        except BaseException:
            yield from finish(self._leave(ticket, cancelled=True))
            raise
        return ticket

    def _work(self, leader: PendingCall[A, R]) -> Steps[Alarm | None]:
        try:
            self.line.begin()
            alarm = yield from self.serve(leader)
            gone = self.line.end(leader)
        except BaseException:  # Ctrl-C comes anywhere in the main thread, and the line is not to wait for ever then
            if self.line.end(leader):
                in_thread(self._pass_on(leader))
            raise
        if gone:
            yield from self._pass_on(leader)
        return alarm

    def _rest(self, leader: PendingCall[A, R], alarms: list[Future[Any]], seconds: float | None) -> Steps[None]:
        left = leader.seconds_left()
        if left is not None:
            seconds = left if seconds is None else min(left, seconds)
        try:
            yield from alarmed(alarms, seconds)
        finally:
            for alarm in alarms:
                alarm.cancel()

    def _leave(self, ticket: PendingCall[A, R], *, cancelled: bool = False) -> Steps[None]:
        if self.line.leave(ticket):
            yield from self._pass_on(ticket)
        if cancelled and ticket.settled and ticket.error is None:
            yield from self.unclaimed(ticket)

    def _pass_on(self, leader: PendingCall[A, R]) -> Steps[None]:
        while not self.line.pass_on(leader):
            # Whatever goes wrong: without a leader nobody would ever be served. What is left behind expires.
            with contextlib.suppress(Exception):
                yield from self.dismiss(leader.db)
            if self.line.disband(leader):
                return


class TransactionBatcher(Batcher[A, R]):
    """Serves calls by one body for all of them, which gives each its result.

    Args:
        body: given a database and arguments, returns as many results, or errors in their place, having committed them
            together.
        weight: of arguments that fit in one transaction.
    """

    def __init__(self, body: Callable[[Database, list[A]], Steps[Sequence[R | Exception]]], *, weight: int) -> None:
        super().__init__()
        self._body = body
        self._weight = weight

    def serve(self, leader: PendingCall[A, R]) -> Steps[Alarm | None]:
        yield from self.line.gather()
        batch = self.line.first(self._weight)
        yield from self._serve_all(batch)
        self.line.served(len(batch))
        return None

    def _serve_all(self, batch: list[PendingCall[A, R]]) -> Steps[None]:
        if not batch:
            return
        try:
            results = yield from self._body(batch[0].db, [ticket.argument for ticket in batch])
        except FDBError as error:
            if len(batch) == 1 or error.code not in _FAULTS_OF_ONE:
                self._fail(batch, error)
                return
            # One of them is wrong, or all of them are too much together: that is for each to know, not for all.
            yield from self._serve_all(batch[: len(batch) // 2])
            yield from self._serve_all(batch[len(batch) // 2 :])
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            self._fail(batch, FDBError(COMMIT_UNKNOWN_RESULT) if interrupted else error)
            if interrupted:
                raise
        else:
            for ticket, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    self.line.settle(ticket, None, result)
                else:
                    self.line.settle(ticket, result)

    def _fail(self, batch: list[PendingCall[A, R]], error: BaseException) -> None:
        for ticket in batch:
            self.line.settle(ticket, None, error)


def result_of(ticket: PendingCall[Any, R]) -> R | None:
    """Return what a call got, or raise what went wrong; None if it got nothing in its time."""
    if ticket.error is not None:
        raise ticket.error
    return ticket.result
