"""A database as processes see a cluster: each read version, read and commit takes a time that is drawn.

It is the embedded engine in memory, shared by all processes. Its own code takes no time and is not interrupted, as on
another machine. What a cluster lacks is hidden, so that layers do what they do on one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from greenlet import getcurrent

from fdbqueue.engine import FDBError
from tests.helpers.rounds import WRITES
from tests.helpers.standin import StandIn
from tests.sim.fibers import Fiber, Process, outside, the

OWN: Final = ("next_turn", "shares_turns", "get_pairs", "conflict_since", "committed_version", "commits_in_flight")
"""What the embedded engine has, and a cluster does not have."""
CANCELLED: Final = 1101
AGAIN_S: Final = 0.05
"""How often a request is sent again while the network is down."""


class Network:
    """How long trips take, and who is cut off.

    Args:
        seed: decides about each trip.
        usual: the seconds of a trip, on average.
        slow: how many of the trips take up to a second.
    """

    def __init__(self, seed: str, *, usual: float = 0.0005, slow: float = 0.02) -> None:
        self.dice = random.Random(f"{seed}/network")
        self.cut: set[Process] = set()
        self._usual = usual
        self._slow = slow

    def trip(self) -> float:
        """Draw the seconds of a trip there and back."""
        if self.dice.random() < self._slow:
            return self.dice.uniform(0, 1)
        return self.dice.expovariate(1 / self._usual)

    def sent(self, process: Process) -> bool:
        """Return whether the last request of a process was sent before it was killed."""
        return process.alive or self.dice.random() < 0.5


class Answer:
    """A future whose answer comes later. Its value is used as the engine's own."""

    fpointer = None

    def __init__(self, engines: Any = None) -> None:
        self._engines = engines
        self._ready = False
        self._error: BaseException | None = None
        self._waiters: list[Fiber] = []
        self._callbacks: list[Callable[[Any], object]] = []

    def settle(self, error: BaseException | None = None) -> None:
        """Let the answer be there; only the first one counts."""
        if self._ready:
            return
        self._ready, self._error = True, error
        waiters, self._waiters = self._waiters, []
        callbacks, self._callbacks = self._callbacks, []
        for fiber in waiters:
            the().wake(fiber)
        for callback in callbacks:
            callback(self)

    def is_ready(self) -> bool:
        return self._ready

    def block_until_ready(self) -> None:
        fiber: Any = getcurrent()
        while not self._ready:
            self._waiters.append(fiber)
            try:
                the().block()
            finally:
                if fiber in self._waiters:
                    self._waiters.remove(fiber)

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        if self._ready:
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        self.settle(FDBError(CANCELLED))

    def answer(self) -> Any:
        """Wait, and return the engine's future, which is ready.

        Raises: what the answer says.
        """
        self.block_until_ready()
        if self._error is not None:
            raise self._error
        return self._engines

    def wait(self) -> Any:
        engines = self.answer()
        if engines is None:
            return None
        with outside():
            found = engines.wait()
        return self if found is engines else found

    @property
    def value(self) -> Any:
        return self.answer().value

    def present(self) -> bool:
        return bool(self.answer().present())

    def as_foundationdb_key(self) -> Any:
        return self.value

    def as_foundationdb_value(self) -> Any:
        return self.value

    def __bytes__(self) -> bytes:
        return bytes(self.answer())

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.answer())

    def __getitem__(self, at: Any) -> Any:
        return self.answer()[at]

    def __add__(self, other: Any) -> Any:
        return self.answer() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.answer()

    def __eq__(self, other: object) -> bool:
        return bool(self.answer() == other)

    def __ne__(self, other: object) -> bool:
        return bool(self.answer() != other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.answer() < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.answer() <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.answer() > other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.answer() >= other)

    __hash__ = None  # type: ignore[assignment]  # as that of the engine's own


class _Rows:
    def __init__(self, engines: Any, future: Any) -> None:
        self._engines = engines
        self._future = future

    def __iter__(self) -> Iterator[Any]:
        self._future.block_until_ready()
        with outside():
            return iter(list(self._engines))

    def to_list(self) -> list[Any]:
        return list(self)


class FarDatabase(StandIn):
    """The database as one process has opened it."""

    def __init__(self, db: Any, network: Network, process: Process) -> None:
        self._db = self.wrapped = db
        self.network = network
        self.process = process
        self.options = db.options

    def create_transaction(self) -> FarTransaction:
        with outside():
            tr = self._db.create_transaction()
        return FarTransaction(tr, self, _Begun())

    def send(self, answer: Answer, error: BaseException | None = None) -> None:
        """Let an answer come, once the process is no longer cut off."""
        if not self.process.alive:
            return
        if self.process in self.network.cut:
            the().after(AGAIN_S, lambda: self.send(answer, error))
        else:
            answer.settle(error)

    def close(self) -> None:
        """Leave the database to the others."""


class _Begun:
    """How far a transaction is."""

    def __init__(self) -> None:
        self.versioned_at: float | None = None
        """When its read version comes."""
        self.wrote = False


class FarTransaction:
    """A transaction of a `FarDatabase`, or its snapshot."""

    def __init__(self, tr: Any, db: FarDatabase, begun: _Begun) -> None:
        self._tr = tr
        self._db = db
        self._begun = begun

    def __getattr__(self, name: str) -> Any:
        if name in OWN or name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._tr, name)
        self._begun.wrote = self._begun.wrote or name in WRITES
        return found

    @property
    def snapshot(self) -> FarTransaction:
        return FarTransaction(self._tr.snapshot, self._db, self._begun)

    def get(self, key: Any) -> Any:
        with outside():
            found = self._tr.get(key)
        return self._read(found)

    def get_key(self, selector: Any) -> Any:
        with outside():
            found = self._tr.get_key(selector)
        return self._read(found)

    def get_range(self, *args: Any, **terms: Any) -> Any:
        with outside():
            found = self._tr.get_range(*args, **terms)
        return _Rows(found, self._read(found))

    def get_range_startswith(self, *args: Any, **terms: Any) -> Any:
        with outside():
            found = self._tr.get_range_startswith(*args, **terms)
        return _Rows(found, self._read(found))

    def get_read_version(self) -> Any:
        with outside():
            found = self._tr.get_read_version()
        return self._at(self._versioned(), found)

    def set_read_version(self, version: int) -> None:
        self._begun.versioned_at = the().now
        self._tr.set_read_version(version)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._begun.wrote = True
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        self._begun.wrote = True
        del self._tr[key]

    def watch(self, key: Any) -> Any:
        with outside():
            engines = self._tr.watch(key)
        watch = _Watch(engines)
        engines.on_ready(lambda future: self._tell(watch, future))
        return watch

    def commit(self) -> Any:
        if not self._begun.wrote:
            with outside():
                return self._tr.commit()
        answer, network, process, tr = Answer(), self._db.network, self._db.process, self._tr

        def arrive() -> None:
            if process in network.cut:
                the().after(AGAIN_S, arrive)
            elif network.sent(process):
                tr.commit().on_ready(lambda future: self._tell(answer, future))

        the().at(self._versioned() + network.trip() / 2, arrive)
        return answer

    def on_error(self, error: Any) -> Any:
        self._renew()
        with outside():
            return self._tr.on_error(error)

    def reset(self) -> None:
        self._renew()
        self._tr.reset()

    def _renew(self) -> None:
        self._begun.versioned_at, self._begun.wrote = None, False

    def _versioned(self) -> float:
        """Return when the transaction has its read version."""
        if self._begun.versioned_at is None:
            self._begun.versioned_at = the().now + self._db.network.trip()
        return max(self._begun.versioned_at, the().now)

    def _read(self, engines: Any) -> Any:
        engines = getattr(engines, "_future", engines)  # of a range
        if getattr(engines, "_source", True) is None:
            return engines  # the transaction's own write, or what it has read before
        return self._at(self._versioned() + self._db.network.trip(), engines)

    def _at(self, when: float, engines: Any) -> Answer:
        answer = Answer(engines)
        the().at(when, lambda: self._db.send(answer))
        return answer

    def _tell(self, answer: Answer, future: Any) -> None:
        if not self._db.process.alive:
            return
        error = future.exception()
        the().after(self._db.network.trip() / 2, lambda: self._db.send(answer, error))


class _Watch(Answer):
    """A watch; it keeps the engine's, which ends when it is dropped."""

    def answer(self) -> None:
        super().answer()

    def cancel(self) -> None:
        self._engines.cancel()
        super().cancel()
