"""A database whose first commit is not answered: a caller that goes does not know whether it took effect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.engine.blocking import unfinished
from tests.helpers.held import TransactionOf
from tests.helpers.standin import StandIn


def let_threads_end() -> None:
    """Wait until the work for callers that have gone is done."""
    for thread in unfinished():
        thread.join()


class UnansweredDatabase(StandIn):
    """Wraps a database. Its first commit is not answered. A caller that blocks gets an error there, as by Ctrl-C.

    Args:
        db: the database.
        takes_effect: whether that commit takes effect at once. Otherwise the test sends it later: `sent`.
        error: what ends the wait of a caller that blocks.
    """

    def __init__(self, db: Any, *, takes_effect: bool, error: BaseException | None = None) -> None:
        self._db = db
        self._takes_effect = takes_effect
        self._error = KeyboardInterrupt() if error is None else error
        self.sent: Any = None
        """The transaction of the first commit."""
        self.committing = threading.Event()

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        return tr if self.sent is not None else _FirstTransaction(self, tr)

    def commit(self, tr: Any) -> Any:
        self.sent = tr
        if self._takes_effect:
            tr.commit().wait()
        self.committing.set()
        return _Unanswered(self._error)

    def on_error(self) -> Any:
        return _Unanswered(self._error)


class _FirstTransaction(TransactionOf):
    """Its commit stays under way after an error, so `on_error` must not end it."""

    def on_error(self, error: object) -> Any:
        return self._db.on_error()


class _Unanswered:
    """The future of that commit."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error

    def is_ready(self) -> bool:
        return False

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Never call back."""

    def cancel(self) -> None:
        """Leave it under way."""
