"""A database whose commits wait until a test lets them go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.engine.waiting import Promise
from tests.helpers.standin import StandIn


class HeldDatabase(StandIn):
    """Wraps a database; while `held`, its commits have no effect until `release`, for threads and tasks alike."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.gate = Promise()
        self.commits = 0
        self.committing = threading.Event()
        """Set when a commit waits."""

    def create_transaction(self) -> TransactionOf:
        return TransactionOf(self, self._db.create_transaction())

    def hold(self) -> None:
        """Let commits wait from now on."""
        self.gate = Promise()
        self.committing.clear()

    def release(self) -> None:
        """Let them go, and those that come."""
        self.gate.keep()

    def commit(self, tr: Any) -> _Held:
        self.commits += 1
        self.committing.set()
        return _Held(self.gate, tr)


class TransactionOf:
    """A transaction that a database commits in its own way; all but `commit` is the wrapped one's."""

    def __init__(self, db: Any, tr: Any) -> None:
        self._db = db
        self._tr = tr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def commit(self) -> Any:
        return self._db.commit(self._tr)


class _Held:
    """The future of a commit that has not begun yet."""

    def __init__(self, gate: Promise, tr: Any) -> None:
        self.gate = gate
        self._tr = tr

    def wait(self) -> None:
        self.gate.wait()
        self._tr.commit().wait()

    def is_ready(self) -> bool:
        return self.gate.is_ready()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self.gate.on_ready(callback)

    def cancel(self) -> None:
        """Leave it waiting: a commit that was cancelled here never was sent."""
