"""A database that others change while it is read: at each read of a range, before the engine does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import TRANSACTION_TOO_OLD
from tests.helpers.standin import StandIn


class Busy(StandIn):
    """Wraps a database of either engine.

    Args:
        db: the database.
        meanwhile: commits a change. It must not read by this object.
        long: whether what is read is too long for one transaction: the first one is too old at its third range.
    """

    def __init__(self, db: Any, meanwhile: Callable[[], object] = lambda: None, *, long: bool = False) -> None:
        self._db = db
        self._meanwhile = meanwhile
        self._ranges_left = 3 if long else None
        self.transactions = 0

    def create_transaction(self) -> Any:
        self.transactions += 1
        return _Transaction(self._db.create_transaction(), self)

    def note_range(self) -> None:
        if self._ranges_left is not None and self.transactions == 1:
            self._ranges_left -= 1
            if not self._ranges_left:
                raise FDBError(TRANSACTION_TOO_OLD)
        self._meanwhile()


class _Transaction:
    def __init__(self, tr: Any, db: Busy) -> None:
        self._tr = tr
        self._busy = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    @property
    def snapshot(self) -> Any:
        return _View(self._tr.snapshot, self._busy)


class _View:
    def __init__(self, view: Any, db: Busy) -> None:
        self._view = view
        self._busy = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def get_range(self, *args: Any, **kwargs: Any) -> Any:
        self._busy.note_range()
        return self._view.get_range(*args, **kwargs)
