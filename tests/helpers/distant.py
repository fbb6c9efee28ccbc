"""A database whose round trips take time, as on a cluster far away: a model over an embedded one.

The first read or commit of a transaction asks for a read version, which takes a trip. A read takes one after that, and
so does a commit of writes. Reads that begin together share one. There are no turns, so that layers do what they do on a
cluster. What the servers themselves need is not modelled.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.helpers.rounds import WRITES, future_of
from tests.helpers.standin import StandIn

_EMBEDDED_ONLY = {"next_turn", "shares_turns", "get_pairs", "conflict_since", "committed_version", "commits_in_flight"}


class _Timer:
    """A thread that calls functions at their times."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def call_at(self, at: float, function: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (at, next(self._numbers), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(max(0.0, self._due[0][0] - time.monotonic()) if self._due else None)
                function = heapq.heappop(self._due)[2]
            function()


_timer = _Timer()


class Distant(StandIn):
    """A database that is `seconds` away and back."""

    def __init__(self, db: Any, seconds: float) -> None:
        self._db = self.wrapped = db
        self.seconds = seconds

    def create_transaction(self) -> Any:
        return _Transaction(self._db.create_transaction(), self, _Began())


class _Began:
    """How far a transaction is."""

    def __init__(self) -> None:
        self.version_at: float | None = None
        self.has_written = False

    def read_at(self, seconds: float) -> float:
        """Return when a read can begin at a server."""
        if self.version_at is None:
            self.version_at = time.monotonic() + seconds
        return max(self.version_at, time.monotonic())


class _Transaction:
    def __init__(self, tr: Any, db: Distant, began: _Began) -> None:
        self._tr, self.db, self._began = tr, db, began

    def __getattr__(self, name: str) -> Any:
        if name in _EMBEDDED_ONLY:
            raise AttributeError(name)
        found = getattr(self._tr, name)
        if name == "snapshot":
            return _Transaction(found, self.db, self._began)
        if name in WRITES:
            self._began.has_written = True
        elif name in ("get", "get_key"):
            return lambda *args: self._late(found(*args))
        elif name == "get_range":
            return lambda *args, **terms: _Range(self._late(future_of(found(*args, **terms))))
        elif name == "get_read_version":
            return lambda: _Late(found(), self._began.read_at(self.db.seconds))
        elif name == "set_read_version":
            self._began.version_at = time.monotonic()
        elif name in ("reset", "on_error"):
            self._began.version_at, self._began.has_written = None, False
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._began.has_written = True
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        self._began.has_written = True
        del self._tr[key]

    def _late(self, future: Any) -> _Late:
        return _Late(future, self._began.read_at(self.db.seconds) + self.db.seconds)

    def commit(self) -> Any:
        if not self._began.has_written:
            return self._tr.commit()
        arrives_at = self._began.read_at(self.db.seconds) + self.db.seconds / 2
        commit = _Commit(self._tr, arrives_at + self.db.seconds / 2)
        _timer.call_at(arrives_at, commit.begin)
        return commit


class _Late:
    """A future that is ready at a time."""

    def __init__(self, future: Any, at: float) -> None:
        self._future, self._at = future, at

    def __getattr__(self, name: str) -> Any:
        if name in ("is_answer", "fpointer"):
            raise AttributeError(name)
        self.block_until_ready()
        return getattr(self._future, name)

    def block_until_ready(self) -> None:
        time.sleep(max(0.0, self._at - time.monotonic()))

    def is_ready(self) -> bool:
        return time.monotonic() >= self._at

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        _timer.call_at(self._at, lambda: callback(self))

    def cancel(self) -> None:
        self._future.cancel()

    def __bytes__(self) -> bytes:
        self.block_until_ready()
        return bytes(self._future)

    def wait(self) -> Any:
        self.block_until_ready()
        return self._future.wait()


class _Range:
    def __init__(self, future: _Late) -> None:
        self._future = future


class _Commit:
    """A commit that reaches the servers later, and whose answer comes later still."""

    def __init__(self, tr: Any, at: float) -> None:
        self._tr, self._at = tr, at
        self._answer: Any = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], None]] = []

    def begin(self) -> None:
        self._answer = self._tr.commit()
        self._answer.on_ready(lambda _: _timer.call_at(max(self._at, time.monotonic()), self._settle))

    def _settle(self) -> None:
        with self._lock:
            self._done.set()
        for callback in self._callbacks:
            callback(self)

    def is_ready(self) -> bool:
        return self._done.is_set()

    def block_until_ready(self) -> None:
        self._done.wait()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> None:
        """Do nothing: it may take effect."""

    def wait(self) -> Any:
        self._done.wait()
        return self._answer.wait()
