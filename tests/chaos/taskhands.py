"""Processes of a round with tasks: callers that enqueue calls of every sort, and workers that run them.

Each call counts its effect in its own last transaction, under its name. The promises are about these counts
(`taskpromises.py`). What must hold at one moment is looked at in a transaction, and noted if it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fdbqueue
from fdbqueue import Transaction
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Call, Concurrency, Sessions, Tasks, Unique, Worker, constant
from tests.chaos.hand import DURATION_S, Hand, Tools
from tests.chaos.history import History

KEYS = 3
"""Of calls that are unique, and of those with a limit: few, so that they meet."""
LIMIT = 2
TICK_S = 5.0
"""Between ticks: clocks are minutes ahead and behind, so that many are due at once."""
RETRIES = 1_000
"""No call dies: each attempt may end with its process."""
ONE = (1).to_bytes(8, "little")


class TaskSpaces:
    """Where a round keeps what its calls did."""

    def __init__(self, space: Subspace) -> None:
        self.tasks = space["tasks"]
        self.effects = space["own"]["effects"]
        self.open = space["own"]["open"]
        self.broken = space["own"]["broken"]


def app_of(space: Subspace, clock: Callable[[], float], *, ticks: bool = True) -> Tasks:
    """Return the app of a round.

    Args:
        ticks: whether it has the schedule.
    """
    spaces = TaskSpaces(space)
    app = Tasks(spaces.tasks, retries=RETRIES, backoff=constant(0.1), clock=clock)

    def done(tr: Any, name: str) -> None:
        tr.add(spaces.effects.pack((name,)), ONE)

    @app.task
    def work(name: str, fails: bool = False) -> str:
        if fails and app.current.attempt == 1:
            raise ValueError("chaos")
        app.transaction(lambda tr: done(tr, name))
        return name

    @app.task(unique=Unique("key"))
    def once(key: int, name: str) -> None:
        def body(tr: Transaction) -> None:
            done(tr, name)
            tr.clear(spaces.open.pack((key,)))

        app.transaction(body)

    @app.task(limits=[Concurrency(LIMIT, by="key")])
    def limited(key: int, name: str) -> None:
        time.sleep(0.02)  # so that calls of a key meet
        app.transaction(lambda tr: done(tr, name))

    @app.task
    async def tick() -> str:
        at = app.current.tick

        async def body(tr: Transaction) -> str:
            done(tr, f"tick {at}")
            return at

        return await app.transaction.aio(body)

    if ticks:
        app.periodic(every=TICK_S, catch_up="all")(tick)
    return app


class TaskHand(Hand):
    """A hand with the app of its round."""

    ticks = False

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self.app = app_of(tools.space, tools.clock, ticks=self.ticks)


class Caller(TaskHand):
    """Enqueues calls, and looks at the gates of limits."""

    VERBS: ClassVar[dict[str, int]] = {
        "work one": 6,
        "chain": 3,
        "group": 2,
        "once": 8,
        "limited": 3,
        "look at gates": 1,
        "pause": 6,
    }

    def _names(self, count: int) -> list[str]:
        return [self.name() for _ in range(count)]

    def _work(self, name: str) -> Call[str]:
        call: Call[str] = self.app.tasks["work"].call(name, fails=self.dice.random() < 0.3)
        return call

    def _enqueue(self, verb: str, names: list[str], act: Callable[[], dict[str, Any] | None]) -> None:
        self.call(verb, {"calls": names}, act)

    def work_one(self) -> None:
        names = self._names(1)
        self._enqueue("call", names, lambda: _nothing(self._work(names[0]).enqueue(self.db)))

    def chain(self) -> None:
        names = self._names(3)
        first, second, third = map(self._work, names)
        self._enqueue("chain", names, lambda: _nothing(first.then(second.then(third)).enqueue(self.db)))

    def group(self) -> None:
        names = self._names(4)
        *members, last = map(self._work, names)
        self._enqueue("group of calls", names, lambda: _nothing(self.app.group(members).then(last).enqueue(self.db)))

    def limited(self) -> None:
        names, key = self._names(4), self.dice.randrange(KEYS)
        calls = [self.app.tasks["limited"].call(key, name) for name in names]
        self._enqueue("limited", names, lambda: _nothing([call.enqueue(self.db) for call in calls]))

    def once(self) -> None:
        """Enqueue a unique call, and note in the same transaction that one of its key is under way."""
        [name], key = self._names(1), self.dice.randrange(KEYS)
        spaces = TaskSpaces(self.tools.space)

        @fdbqueue.transactional
        def enqueue(tr: Transaction) -> bool:
            handle = self.app.tasks["once"].enqueue(tr, key, name)
            if handle.is_new:
                if tr.get(spaces.open.pack((key,))).wait().present():
                    tr.set(spaces.broken.pack(("a unique call has an equal one beside it", name)), b"")
                tr.set(spaces.open.pack((key,)), b"")
            return handle.is_new

        self._enqueue("once", [name], lambda: {"is_new": enqueue(self.db)})

    def look_at_gates(self) -> None:
        def act() -> dict[str, Any]:
            gates = gates_of_calls(self.app, self.db)
            over = [f"{one.gate}: {one.taken} of {LIMIT}" for one in gates if one.taken > LIMIT]
            others = [f"{len(gates)} gates for {KEYS} keys"] if len(gates) > KEYS else []
            return {"broken": over + others}

        self.call("look at gates", {}, act)


class TaskWorker(TaskHand):
    """Runs calls, and enqueues ticks."""

    ticks = True

    def work(self, stop: Path) -> None:
        while not stop.exists():
            with contextlib.suppress(FDBError):  # as after a crash, it begins again
                asyncio.run(self._serve(stop))

    async def _serve(self, stop: Path) -> None:
        async with Worker(self.app, concurrency=4, signals=False, duration=DURATION_S).running(self.db):
            while not stop.exists():  # noqa: ASYNC240 - it is in memory, or on a local disk
                self.tools.clock.maybe_jump()
                await asyncio.sleep(0.05)


def gates_of_calls(app: Tasks, db: Any) -> list[Any]:
    """Return the gates of all calls with a limit."""
    lanes = [lane for lane in app.lanes_of(None) if isinstance(lane.sessions, Sessions)]
    return [one for lane in lanes if lane.sessions for one in lane.sessions.gates(db)]


def drain_tasks(db: Any, space: Subspace, clock: Callable[[], float], history: History) -> list[str]:
    """Run all calls that are left, as a worker whose clock says that all times have come. Return what can't be."""
    for later in range(20):
        app = app_of(space, lambda later=later: clock() + 60.0 * later, ticks=False)  # type: ignore[misc]
        number = history.begin("drain tasks", {})
        report = Worker(app, concurrency=4, signals=False).drain(db)
        history.end(number, "ok", {"acked": report.acked})
        left = [lane.leases.stats(db) for lane in app.lanes_of(None)]
        if not report.acked and not any(one.available + one.leased + one.delayed + one.dead for one in left):
            return []
    return [f"Calls are left when all are drained: {left}."]


def _nothing(handle: object) -> None:
    """Leave out a handle: a history keeps none."""
