"""What consumers at one head do without staging, and with FoundationDB's own: from their descriptions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.engine import FDBError, KeySelector, Subspace
from fdbqueue.engine import tuple as fdb_tuple
from tests.helpers.standin import StandIn

T = TypeVar("T")
NOT_COMMITTED = 1020


class Counting:
    """Counts conflicts."""

    def __init__(self) -> None:
        self.conflicts = 0
        self._lock = threading.Lock()

    def note(self, error: FDBError) -> None:
        if error.code == NOT_COMMITTED:
            with self._lock:
                self.conflicts += 1

    def transact(self, db: Any, body: Callable[[Any], T]) -> T:
        """Run `body` until it commits."""
        tr = db.create_transaction()
        while True:
            try:
                result = body(tr)
                tr.commit().wait()
                return result
            except FDBError as error:
                self.note(error)
                tr.on_error(error.code).wait()


class CountingDatabase(StandIn):
    """A database that counts how many of its transactions' commits met a conflict; all else is the given one's."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.counted = Counting()

    def create_transaction(self) -> Any:
        return _CountedTransaction(self._db.create_transaction(), self.counted)


class _CountedTransaction:
    def __init__(self, tr: Any, counted: Counting) -> None:
        self._tr = tr
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def on_error(self, code: int) -> Any:
        self._counted.note(FDBError(code))
        return self._tr.on_error(code)


class PlainRecipe(Counting):
    """The recipe's dequeue: the first row, cleared."""

    def __init__(self, space: Subspace) -> None:
        super().__init__()
        self._items = space

    def dequeue(self, db: Any) -> bytes | None:
        return self.transact(db, self._pop)

    def fill(self, db: Any, amount: int, value: bytes) -> None:
        """Put items in."""
        _fill(db, self._items, amount, value)

    def _pop(self, tr: Any) -> bytes | None:
        span = self._items.range()
        for row in tr.get_range(span.start, span.stop, limit=1):
            tr.clear(row.key)
            value: bytes = fdb_tuple.unpack(row.value)[0]
            return value
        return None


class HighContention(Counting):
    """Requests in a semi-ordered set; everybody helps to fulfill the first hundred, then asks, waiting ever longer."""

    AT_ONCE = 100
    FIRST_PAUSE_S = 0.01
    LONGEST_PAUSE_S = 1.0

    def __init__(self, space: Subspace) -> None:
        super().__init__()
        self._items = space["item"]
        self._requests = space["request"]
        self._results = space["result"]

    def fill(self, db: Any, amount: int, value: bytes) -> None:
        """Put items in."""
        _fill(db, self._items, amount, value)

    def dequeue(self, db: Any) -> bytes | None:
        tr = db.create_transaction()
        try:
            request = self._register(tr, even_alone=False)
            value = None if request else self._first(tr)
            tr.commit().wait()
            if request is None:
                return value
        except FDBError as error:
            self.note(error)
            request = self.transact(db, lambda tr: self._register(tr, even_alone=True))
        return self._wait(db, request)

    def _first(self, tr: Any) -> bytes | None:
        for row in tr.get_range(self._items.range().start, self._items.range().stop, limit=1):
            tr.clear(row.key)
            value: bytes = fdb_tuple.unpack(row.value)[0]
            return value
        return None

    def _register(self, tr: Any, *, even_alone: bool) -> bytes | None:
        last = tr.snapshot.get_key(KeySelector.last_less_than(self._requests.range().stop))
        others = last >= self._requests.range().start
        if not others and not even_alone:
            return None
        index = self._requests.unpack(last)[0] + 1 if others else 0
        key: bytes = self._requests.pack((index, os.urandom(20)))
        tr.set(key, b"")
        return key

    def _wait(self, db: Any, request: bytes | None) -> bytes | None:
        result = self._results.pack((self._requests.unpack(request or b"")[1],))
        pause = self.FIRST_PAUSE_S
        while True:
            try:
                while not self._fulfill(db):
                    pass
            except FDBError as error:
                self.note(error)
            done, value = self.transact(db, lambda tr: self._ask(tr, request, result))
            if done:
                return value
            time.sleep(pause)
            pause = min(2 * pause, self.LONGEST_PAUSE_S)

    def _ask(self, tr: Any, request: bytes | None, result: bytes) -> tuple[bool, bytes | None]:
        standing, value = tr.get(request), tr.get(result)
        if standing.present():
            return False, None
        if not value.present():
            return True, None
        tr.clear(result)
        item: bytes = fdb_tuple.unpack(bytes(value))[0]
        return True, item

    def _fulfill(self, db: Any) -> bool:
        tr = db.create_transaction()
        span = self._requests.range()
        requests = tr.snapshot.get_range(span.start, span.stop, limit=self.AT_ONCE).to_list()
        span = self._items.range()
        items = tr.snapshot.get_range(span.start, span.stop, limit=self.AT_ONCE).to_list()
        for number, request in enumerate(requests):
            tr.add_read_conflict_key(request.key)
            tr.clear(request.key)
            if number < len(items):
                item = items[number]
                tr.add_read_conflict_key(item.key)
                tr.clear(item.key)
                tr.set(self._results.pack((self._requests.unpack(request.key)[1],)), item.value)
        tr.commit().wait()
        return len(requests) < self.AT_ONCE


def _fill(db: Any, items: Subspace, amount: int, value: bytes) -> None:
    for first in range(0, amount, 1000):
        tr = db.create_transaction()
        for index in range(first, min(amount, first + 1000)):
            tr.set(items.pack((index, os.urandom(20))), fdb_tuple.pack((value,)))
        tr.commit().wait()
