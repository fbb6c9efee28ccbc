"""Serve calls of one process that are pending at the same time together.

Challenge
    Every transaction has its price, and transactions at the head of a queue conflict. The database should see
    processes, not their threads and tasks.

How
    Calls wait in a queue. The first one leads: it serves the calls that fit into one transaction, while the others
    wait. When it is done, the first call that arrived meanwhile leads. There is no separate thread, so that a single
    call runs without a switch. Threads and asyncio tasks share one queue. A call that finds no other one, and expects
    none, leads without joining the queue. Calls that arrive meanwhile wait as behind any leader.

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
from typing import Generic, TypeVar

from fdbqueue.engine.blocking import in_thread
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, TRANSACTION_TOO_LARGE
from fdbqueue.engine.waiting import Promise, first_of, until_changed
from fdbqueue.lowlevel import Database, FDBError, Future, Steps, value_of

from .waiting import finish

A = TypeVar("A")
R = TypeVar("R")
Alarm = tuple[list[Future[object]], float | None]
"""What a leader waits for before it serves again: one of these futures, or a number of seconds."""

GATHER_SECONDS = 0.001
"""Shortest wait of a leader for the calls that were served with the last ones."""
LONGEST_GATHER_SECONDS = 0.008
"""Longest such wait. Between both limits, a leader waits for the duration of the last batch."""
ANNOUNCED_SECONDS = 0.002
"""How long callers are expected that were served together in another queue."""

_FAULTS_OF_ONE = (TRANSACTION_TOO_LARGE, 2102, 2103)  # the others: a key or a value is too large; nothing was committed


class PendingCall(Generic[A, R]):
    """A call in the queue. Its promise `ready` is kept when the call is served, or when it must lead.

    Args:
        db: the database of the call.
        argument: the argument of the call.
        weight: the weight that it adds to a transaction.
        deadline: the time at which it gives up, by `time.monotonic`; None: never.
    """

    __slots__ = ("argument", "db", "deadline", "error", "gone", "leads", "ready", "result", "settled", "weight")

    def __init__(self, db: Database, argument: A, *, weight: int = 1, deadline: float | None = None) -> None:
        self.db = db
        self.argument = argument
        self.weight = weight
        self.deadline = deadline
        self.ready = Promise()
        self.leads = self.settled = self.gone = False
        self.result: R | None = None
        self.error: BaseException | None = None

    def seconds_left(self) -> float | None:
        """Return how many seconds it still waits; None: without limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def overdue(self) -> bool:
        """Return whether its deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


class LoneCall(Generic[A, R]):
    """A call that leads without joining the queue.

    If its caller has gone, the thread that finishes its work passes the lead on, and takes back the result.
    """

    __slots__ = ("_batcher", "_db", "handed_over", "results")

    def __init__(self, batcher: Batcher[A, R], db: Database) -> None:
        self._batcher = batcher
        self._db = db
        self.handed_over = False
        """Whether a thread, or a call in the queue, has taken over what is left to do."""
        self.results: list[R] = []
        """Its result; empty: it was not served."""

    async def inherit(self) -> None:
        """End the call for a caller that has gone. Calls that wait may get its result."""
        try:
            while self.results:
                await self._batcher.give_on(self._db, self.results.pop())
        finally:
            self._batcher.calls.end_alone(self)


class CallQueue(Generic[A, R]):
    """Calls that wait, and the leader among them. Its lock protects every decision about results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PendingCall[A, R]] = deque()
        self.led: object = False
        """The lone call that leads, or whether a call in the queue does."""
        self._working = False
        self.gathering: tuple[int, Promise] | None = None
        self._recent = 0
        self._announced = (0, 0.0)
        self._gathered_at = 0.0
        self._took = 0.0
        self._changed = Promise()

    def join(self, pending: PendingCall[A, R], lone: LoneCall[A, R] | None = None) -> None:
        """Join the end of the queue, and lead if there is no leader.

        Args:
            lone: what the call was, if it was tried alone before. It came before all calls in the queue, and leads on.
        """
        with self._lock:
            if lone is not None and self.led is lone:
                self._waiting.appendleft(pending)
                self.led = pending.leads = True
            else:
                self._waiting.append(pending)
            if not self.led:
                self.led = pending.leads = True
            if lone is not None:
                lone.handed_over = True
            gathered = self.gathering is not None and len(self._waiting) >= self.gathering[0]
        if gathered and self.gathering is not None:
            self.gathering[1].keep()

    def lead_alone(self, lone: LoneCall[A, R]) -> bool:
        """Lead without joining the queue. Return False if there is a leader, or if more calls are expected."""
        calls, until = self._announced
        if self.led or self._recent > 1 or (calls > 1 and time.monotonic() < until):
            return False
        with self._lock:
            if not self.led:
                self.led = lone
        return self.led is lone

    def end_alone(self, lone: LoneCall[A, R]) -> None:
        """Pass the lead of a lone call on to the first call that has come meanwhile. Repeating this does nothing."""
        with self._lock:
            if self.led is not lone:
                return
            if not self._waiting:
                self.led = False
                return
            successor = self._waiting[0]
            self.led = successor.leads = True
        successor.ready.keep()

    def is_led(self) -> bool:
        """Return whether there is a leader. Without one no call waits, and nothing is left behind."""
        return bool(self.led)

    def wake(self) -> None:
        """Make a waiting leader look again."""
        self._changed.keep()

    def new_change(self) -> Promise:
        """Return a new notifier, which `wake` keeps from now on.

        Get one before each look, so that a later call finds it. It is freed together with its waiters.
        """
        self._changed = Promise()
        return self._changed

    async def gather(self) -> None:
        """Wait for a moment, if there are fewer calls than were served last.

        Callers that were served together come again one after the other. Without this wait, the first of them would
        always be served alone. Some callers alternate between two calls, lease and ack. They come again after the other
        call, which takes about the time of this wait. Without it they would split into two halves, which alternate in
        opposite order.
        """
        with self._lock:
            calls, until = self._announced
            expected = max(self._recent, calls) if time.monotonic() < until else self._recent
            missing = len(self._waiting) < expected
            if missing:
                self.gathering = (expected, Promise())
        if missing and self.gathering is not None:
            seconds = min(max(self._took, GATHER_SECONDS), LONGEST_GATHER_SECONDS)
            await first_of([self.gathering[1]], seconds)
            self.gathering = None
        self._gathered_at = time.monotonic()

    def served(self, calls: int) -> None:
        """Note how many calls were served together.

        One small batch does not lower the estimate: callers that just missed it would stay split off.
        """
        self._recent = max(calls, self._recent - 1)
        self._took = time.monotonic() - self._gathered_at

    def announce(self, calls: int) -> None:
        """Note that so many callers, which another queue just served together, may come at once.

        This holds for a moment only: callers that have more to do before their next call are not waited for.
        """
        self._announced = (calls, time.monotonic() + ANNOUNCED_SECONDS)

    def waiting(self) -> list[PendingCall[A, R]]:
        """Return the calls that are not served yet, in order."""
        with self._lock:
            return list(self._waiting)

    def first(self, weight: int) -> list[PendingCall[A, R]]:
        """Return the first calls of one database, up to a total weight; at least one, if there is one.

        They stay in the queue until they have a result, so that none is lost if their leader is interrupted.
        """
        with self._lock:
            batch: list[PendingCall[A, R]] = []
            for pending in self._waiting:
                if pending.settled:
                    continue
                weight -= pending.weight
                if batch and (weight < 0 or pending.db is not batch[0].db):
                    break
                batch.append(pending)
            return batch

    def settle(self, pending: PendingCall[A, R], result: R | None, error: BaseException | None = None) -> bool:
        """Give a call its result. Return False if the call is gone, and did not get it."""
        with self._lock:
            if pending.gone or pending.settled:
                return False
            pending.result, pending.error, pending.settled = result, error, True
            self._forget(pending)
        pending.ready.keep()
        return True

    def begin(self) -> None:
        """Note that the leader's work begins. The lead stays until the work ends, even if the leader goes."""
        with self._lock:
            self._working = True

    def end(self, pending: PendingCall[A, R]) -> bool:
        """Note that the work has ended. Return True if the leader has gone, and the lead must be passed on."""
        with self._lock:
            self._working = False
            return pending.gone

    def leave(self, pending: PendingCall[A, R]) -> bool:
        """Leave the queue, served or not. Return True if the leaving call must pass the lead on."""
        with self._lock:
            pending.gone = True
            if not pending.settled:
                self._forget(pending)
            return pending.leads and not self._working

    def pass_on(self, leader: PendingCall[A, R]) -> bool:
        """Make the first call the leader, if the old leader still leads. Return False if there is no call."""
        with self._lock:
            if not leader.leads:
                return True
            successor = next((pending for pending in self._waiting if not pending.settled), None)
            if successor is None:
                self._waiting.clear()  # the leader that served these was interrupted before it removed them
                return False
            leader.leads, successor.leads = False, True
        successor.ready.keep()
        return True

    def disband(self, leader: PendingCall[A, R]) -> bool:
        """End the lead, so that the next call that comes leads. Return False if a call is waiting."""
        with self._lock:
            if self._waiting:
                return False
            leader.leads = self.led = False
            return True

    def _forget(self, pending: PendingCall[A, R]) -> None:
        if self._waiting and self._waiting[0] is pending:
            self._waiting.popleft()
        elif pending in self._waiting:
            self._waiting.remove(pending)


class Batcher(ABC, Generic[A, R]):
    """Serves calls together. Subclasses define how."""

    def __init__(self) -> None:
        self.calls: CallQueue[A, R] = CallQueue()

    @abstractmethod
    def serve(self, leader: PendingCall[A, R]) -> Steps[Alarm | None]:
        """Serve some calls; return what to wait for, if it has to wait. Give errors to the calls, and raise none."""

    def joined(self, pending: PendingCall[A, R]) -> None:
        """React to a new call."""

    async def dismiss(self, db: Database) -> None:
        """Clean up when no call waits any more."""

    async def serve_alone(self, db: Database, argument: A, results: list[R]) -> None:
        """Serve one call that is not in the queue, and append its result. Append nothing if it must join the queue."""

    async def put_back(self, db: Database, result: R) -> None:
        """Take back the result of a call whose caller was cancelled at that moment."""

    async def give_on(self, db: Database, result: R) -> None:
        """Give the result of a cancelled call to others that wait, or take it back."""
        await self.put_back(db, result)

    async def request(
        self, db: Database, argument: A, *, alone: bool = True, weight: int = 1, deadline: float | None = None
    ) -> R | None:
        """Serve a call at once if no other call waits or is expected. Else let it join the queue, as `call` does.

        Args:
            db: the database of the call.
            argument: its argument.
            alone: whether it may be served without the queue.
            weight: as of a `PendingCall`.
            deadline: as of a `PendingCall`.
        """
        if alone:
            lone = LoneCall(self, db)
            try:
                if self.calls.lead_alone(lone):
                    await finish(self.serve_alone(db, argument, lone.results), lone)
                    if lone.results:
                        self.calls.end_alone(lone)
                        return lone.results[0]
                joining: PendingCall[A, R] = PendingCall(db, argument, weight=weight, deadline=deadline)
                return await self.call(joining, lone)
            except GeneratorExit:
                if not lone.handed_over:
                    in_thread(lone.inherit())
                raise
            except BaseException:
                if not lone.handed_over:
                    await finish(lone.inherit())
                raise
        return await self.call(PendingCall(db, argument, weight=weight, deadline=deadline))

    async def call(self, pending: PendingCall[A, R], lone: LoneCall[A, R] | None = None) -> R | None:
        """Wait until the call is served or its deadline has passed. Return its result, or raise its error.

        Returns None if the deadline passed without a result. An interruption until the very return is noticed here, so
        that no result is lost.
        """
        try:
            self.calls.join(pending, lone)
            self.joined(pending)
            while not pending.settled and not pending.overdue():
                if not pending.leads:
                    if pending.deadline is None:
                        await value_of(pending.ready)
                    else:
                        await first_of([pending.ready], pending.seconds_left())
                    continue
                alarm = await finish(self._work(pending))
                if alarm is not None and not pending.settled:
                    alarms, seconds = alarm
                    await until_changed(alarms, seconds, pending.seconds_left())
            if pending.leads or not pending.settled:
                await finish(self._leave(pending))
            if pending.error is not None:
                raise pending.error
            return pending.result
        except GeneratorExit:
            in_thread(self._leave(pending, cancelled=True))
            raise
        except BaseException:
            await finish(self._leave(pending, cancelled=True))
            raise

    async def _work(self, leader: PendingCall[A, R]) -> Alarm | None:
        try:
            self.calls.begin()
            alarm = await self.serve(leader)
            gone = self.calls.end(leader)
        except BaseException:  # Ctrl-C can come anywhere in the main thread; the calls must not wait for ever then
            if self.calls.end(leader):
                in_thread(self._pass_on(leader))
            raise
        if gone:
            for future in alarm[0] if alarm is not None else ():
                future.cancel()
            await self._pass_on(leader)
        return alarm

    async def _leave(self, pending: PendingCall[A, R], *, cancelled: bool = False) -> None:
        if self.calls.leave(pending):
            await self._pass_on(pending)
        if cancelled and pending.settled and pending.error is None and pending.result is not None:
            await self.put_back(pending.db, pending.result)

    async def _pass_on(self, leader: PendingCall[A, R]) -> None:
        while not self.calls.pass_on(leader):
            # Ignore all errors: without a leader no call would ever be served. Stored requests expire.
            with contextlib.suppress(Exception):
                await self.dismiss(leader.db)
            if self.calls.disband(leader):
                return


class TransactionBatcher(Batcher[A, R]):
    """Serves calls by one body for all of them, which gives each its result.

    Args:
        body: takes a database and arguments, and commits them together. It returns a result or an error for each.
        weight: the total weight of arguments that fit into one transaction.
    """

    def __init__(self, body: Callable[[Database, list[A]], Steps[Sequence[R | Exception]]], *, weight: int) -> None:
        super().__init__()
        self._body = body
        self._weight = weight

    async def serve(self, leader: PendingCall[A, R]) -> Alarm | None:
        await self.calls.gather()
        batch = self.calls.first(self._weight)
        await self._serve_all(batch)
        self.calls.served(len(batch))
        return None

    async def serve_alone(self, db: Database, argument: A, results: list[R]) -> None:
        [result] = await self._body(db, [argument])
        if isinstance(result, Exception):
            raise result
        results.append(result)

    async def _serve_all(self, batch: list[PendingCall[A, R]]) -> None:
        if not batch:
            return
        try:
            results = await self._body(batch[0].db, [pending.argument for pending in batch])
        except FDBError as error:
            if len(batch) == 1 or error.code not in _FAULTS_OF_ONE:
                self._fail(batch, error)
                return
            # One call is wrong, or all are too large together. Each call must get its own error.
            await self._serve_all(batch[: len(batch) // 2])
            await self._serve_all(batch[len(batch) // 2 :])
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            self._fail(batch, FDBError(COMMIT_UNKNOWN_RESULT) if interrupted else error)
            if interrupted:
                raise
        else:
            for pending, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    self.calls.settle(pending, None, result)
                else:
                    self.calls.settle(pending, result)

    def _fail(self, batch: list[PendingCall[A, R]], error: BaseException) -> None:
        for pending in batch:
            self.calls.settle(pending, None, error)
