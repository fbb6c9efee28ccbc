"""An app of tasks that processes of tests share, and points at which a process stops to be."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import fdbqueue
from fdbqueue import FDBError, Transaction
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import Tasks, Unique, Worker, immediately
from tests.helpers.clock import Clock
from tests.helpers.faults import Dying, When
from tests.helpers.processes import stop_here
from tests.helpers.standin import StandIn

POINTS = ("begun", "in the transaction", "after the transaction", "in the last call")
"""Where a worker may stop. "in the last call": after its writes, before the ack."""
TICKS = 1_000
"""The number of the calls that a schedule enqueues."""
LATER_SECONDS = 100.0
"""How far the clocks of those are ahead that take over: all leases have ended there."""


def dead_errors(app: Tasks, db: Any) -> list[str]:
    """Return the errors of dead calls."""
    return [letter.error for letter in app.lane.leases.dead.browse(db)]


def fire_in(tr: Any, app: Tasks) -> None:
    """Fire the first schedule of an app in a transaction that somebody commits later, or never."""
    run(app.schedules._fire(tr, app.plans[0]))


def run_out(app: Tasks, db: Any, clock: Clock) -> None:
    """Run all attempts of all calls."""
    for _ in range(10):
        app.run_due(db)
        clock.now += 1_000


def later() -> float:
    """Be a clock by which a dead worker's leases have ended."""
    return time.time() + LATER_SECONDS


def make(
    space: Subspace,
    reached: Callable[[str], object] = lambda here: None,
    point: str = "never",
    *,
    clock: Callable[[], float] = time.time,
) -> Tasks:
    """Return the app. Its tasks call `reached` once, when they are at the point."""
    app = Tasks(space["queue"], retries=50, backoff=immediately, clock=clock)
    left = threading.Semaphore(1)

    def at(here: str) -> None:
        if here == point and left.acquire(blocking=False):
            reached(here)

    def add(tr: Any, *name: str | int) -> None:
        tr.add(space.pack(name), (1).to_bytes(8, "little"))

    @app.task(keep_result=600)
    def exactly_once(number: int) -> int:
        at("begun")

        def body(tr: Transaction) -> int:
            add(tr, "sum", number)
            at("in the transaction")
            return number

        result = app.transaction(body)
        at("after the transaction")
        return result

    @app.task(keep_result=600)
    def at_least_once(number: int) -> int:
        add(app.current.db, "least", number)
        at("in the last call")
        return number

    @app.task(keep_result=600)
    def follows(number: int) -> None:
        app.transaction(lambda tr: add(tr, "followed", number))

    @app.task(unique=Unique("key"))
    async def enqueues(key: int, number: int) -> int:
        async def body(tr: Transaction) -> int:
            add(tr, "unique", key)
            follows.enqueue(tr, number)
            return number

        return await app.transaction.aio(body)

    @app.task(session="customer", keep_result=600)
    def in_order(customer: str, number: int) -> None:
        def body(tr: Transaction) -> None:
            last = tr[space.pack(("last", customer))]
            assert int.from_bytes(bytes(last) if last.present() else b"", "little") == number
            tr[space.pack(("last", customer))] = (number + 1).to_bytes(8, "little")

        app.transaction(body)

    return app


def work(url: str, key: bytes, reached: Any, point: str) -> None:
    """Run a worker with short leases. At one of `POINTS` it says so, and stops until SIGCONT."""

    def at(here: str) -> None:
        reached.put((here, os.getpid()))
        reached.close()
        reached.join_thread()  # it is in the pipe by then
        with gated.gate:
            stop_here()

    with fdbqueue.open(url) as db:
        gated = Gated(db)
        Worker(make(Subspace(rawPrefix=key), at, point), duration=1.0, concurrency=4).run(gated)


class Gated(StandIn):
    """A database that commits one transaction at a time, and none while `gate` is held.

    On the embedded engine others would wait for a process that is stopped in a commit.
    """

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.gate = threading.Lock()

    def create_transaction(self) -> CommitsBy:
        return CommitsBy(self._db.create_transaction(), self.commit)

    def add(self, key: bytes, param: bytes) -> None:
        with self.gate:
            self._db.add(key, param)

    def commit(self, tr: Any) -> Any:
        with self.gate:
            future = tr.commit()
            with contextlib.suppress(FDBError):
                future.wait()
            return future


class CommitsBy:
    """A transaction that a function commits."""

    def __init__(self, tr: Any, commit: Callable[[Any], Any]) -> None:
        self._tr = tr
        self._commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def commit(self) -> Any:
        return self._commit(self._tr)


def work_and_die(url: str, key: bytes, number: int, when: When) -> None:
    """Work until nothing is left, or until the commit at which the process is killed."""
    with fdbqueue.open(url) as db:
        app = make(Subspace(rawPrefix=key))
        app.periodic(every=LATER_SECONDS / 4, catch_up="all")(app.tasks["follows"].call(TICKS))
        Worker(app, concurrency=1, signals=False).drain(Dying(db, number, when))
