"""Queues side by side, behind the four calls that all of them have: ours, and FoundationDB's own.

Each item is put in, and taken out, by a call that has committed, to disk, when it returns. The others are in
`contenders_sqlite.py` and `contenders_servers.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.staged import StagedQueue
from tests.benchmarks.contended import HighContention, PlainRecipe
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import Sample, for_seconds
from tests.benchmarks.peers import RecipeQueue
from tests.benchmarks.processes import cpu_seconds, running

SPACE = Subspace(("fdbqueue bench", "side by side", os.environ.get("FDBQUEUE_BENCH_RUN", "alone")))

PROCESSES = 4
"""Over so many processes consumers are spread."""


class Contender(Protocol):
    """A queue, opened in this process, for any number of its threads."""

    conflicts: int
    """How many transactions failed with a conflict so far."""

    def connect(self) -> None:
        """Get ready for calls from this thread."""

    def disconnect(self) -> None:
        """Let go of what this thread needed."""

    def fill(self, amount: int, value: bytes) -> None:
        """Put items in, as fast as may be."""

    def enqueue(self, value: bytes) -> None:
        """Put an item in at the end."""

    def dequeue(self) -> bytes | None:
        """Take the first item out; None if there is none."""

    def clear(self) -> None:
        """Take all items out."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a contender is to be found, by any process of this machine."""

    name: str
    kind: str
    """Module and class."""
    where: str
    processes: int = PROCESSES
    """Over how many processes its consumers may be spread."""
    server: tuple[str, ...] = ()
    """What the server's processes have in their command lines, or are children of such; empty: there is no server."""

    def open(self) -> Any:
        """Return the contender, for this process."""
        module, name = self.kind.split(":")
        return getattr(importlib.import_module(f"tests.benchmarks.{module}"), name)(self.where)

    def server_seconds(self) -> float | None:
        """Return the CPU time that the server has used; None without one."""
        if not self.server:
            return None
        processes = list(running())
        marks = [mark.encode() for mark in self.server]
        heads = {process.pid for process in processes if all(mark in process.command for mark in marks)}
        return cpu_seconds(heads | {process.pid for process in processes if process.parent in heads})


class OneForAllThreads:
    """What needs nothing for a thread."""

    def connect(self) -> None:
        """Do nothing."""

    def disconnect(self) -> None:
        """Do nothing."""


class Plain(OneForAllThreads):
    """This library's queue by itself."""

    def __init__(self, where: str) -> None:
        self._db = fdbqueue.open(where)
        self._queue = Queue(SPACE["fdbqueue"])

    @property
    def conflicts(self) -> int:
        return 0  # nobody competes with the one thread that it is measured with

    def fill(self, amount: int, value: bytes) -> None:
        self._queue.enqueue_many(self._db, (value for _ in range(amount)))

    def enqueue(self, value: bytes) -> None:
        self._queue.enqueue(self._db, value)

    def dequeue(self) -> bytes | None:
        item = self._queue.dequeue(self._db)
        return None if item is None else item.value

    def clear(self) -> None:
        self._queue.clear(self._db)

    def close(self) -> None:
        self._db.close()


class Staged(Plain):
    """This library's layer for many consumers."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._staged = StagedQueue(self._queue)

    @property
    def conflicts(self) -> int:
        return self._staged.contention_stats().conflicts

    def dequeue(self) -> bytes | None:
        item = self._staged.dequeue(self._db)
        return None if item is None else item.value


class _OfFoundationDB(OneForAllThreads):
    """What FoundationDB describes, on either engine."""

    def __init__(self, where: str, space: Subspace, kind: type[PlainRecipe] | type[HighContention]) -> None:
        self._db = fdbqueue.open(where)
        self._space = space
        self._kind = kind
        self._queue = kind(space)
        self._recipe = RecipeQueue(space["item"] if kind is HighContention else space)
        self._enqueue = self._recipe.enqueue

    @property
    def conflicts(self) -> int:
        return self._queue.conflicts

    def fill(self, amount: int, value: bytes) -> None:
        self._queue.fill(self._db, amount, value)

    def enqueue(self, value: bytes) -> None:
        self._enqueue(self._db, value)

    def dequeue(self) -> bytes | None:
        return self._queue.dequeue(self._db)

    def clear(self) -> None:
        self._db.clear_range_startswith(self._space.key())

    def close(self) -> None:
        self._db.close()


class Recipe(_OfFoundationDB):
    """FoundationDB's queue recipe."""

    def __init__(self, where: str) -> None:
        super().__init__(where, SPACE["recipe"], PlainRecipe)


class Contended(_OfFoundationDB):
    """FoundationDB's high-contention queue."""

    def __init__(self, where: str) -> None:
        super().__init__(where, SPACE["high contention"], HighContention)


def ours(where: str, *, staged: bool) -> Stand:
    """Return this library on an engine."""
    kind = "Staged" if staged else "Plain"
    return Stand("fdbqueue, staged" if staged else "fdbqueue", f"contenders:{kind}", where)


def on_a_cluster(url: str, *, staged: bool) -> list[Stand]:
    """Return this library and FoundationDB's own queues on a cluster."""
    # The CPU time is that of the servers that are on this machine.
    address = Path(url.removeprefix("fdb:")).read_text().split("@")[-1].strip()
    stands = [
        ours(url, staged=staged),
        Stand("FoundationDB's recipe", "contenders:Recipe", url),
        Stand("FoundationDB's high-contention queue", "contenders:Contended", url),
    ]
    return [replace(stand, server=("fdbserver", address)) for stand in stands]


class CallQueue:
    """A contender that takes part: opened in this process, and in those of its consumers once they are needed."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.here: Contender = stand.open()
        self._crowd: Crowd | None = None

    def consume(self, consumers: int, seconds: float, *, processes: int) -> Sample:
        """Let so many consumers take items out, one each at a time, as threads over so many processes."""
        members = min(consumers, processes)
        if self._crowd is None:
            self._crowd = Crowd(self.stand, self.stand.processes, opener=Stand.open)
        crowd = self._crowd
        return self._with_server(lambda: crowd.run(take_out, consumers // members, seconds, members=members))

    def pass_through(self, value: bytes, seconds: float) -> Sample:
        """Let one thread put an item in at the end and take one out at the head, in turn."""
        return self._with_server(lambda: pass_through(self.here, value, seconds))

    def close(self) -> None:
        """End its processes, and let go of it."""
        if self._crowd is not None:
            self._crowd.close()
        self.here.clear()
        self.here.close()

    def _with_server(self, work: Callable[[], Sample]) -> Sample:
        before = self.stand.server_seconds()
        sample = work()
        after = self.stand.server_seconds()
        if before is not None and after is not None:
            sample.server_cpu_seconds = after - before
        return sample


def take_out(contender: Contender, threads: int, seconds: float) -> Sample:
    """Take items out in so many threads of this process."""
    return _measured(contender, threads, seconds, contender.dequeue)


def pass_through(contender: Contender, value: bytes, seconds: float) -> Sample:
    """Put items in and take items out, in turn."""

    def both() -> bytes | None:
        contender.enqueue(value)
        return contender.dequeue()

    return _measured(contender, 1, seconds, both)


def _measured(contender: Contender, threads: int, seconds: float, call: Callable[[], object | None]) -> Sample:
    before = contender.conflicts
    sample = for_seconds(threads, seconds, call, connect=contender.connect, disconnect=contender.disconnect)
    sample.conflicts = contender.conflicts - before
    return sample
