"""A database that counts what its transactions do."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.helpers.standin import StandIn


class Counted(StandIn):
    """Counts the operations of its transactions, and notes the keys that they read and write.

    Of a range, that is its beginning.
    """

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.did: Counter[str] = Counter()
        self.transactions = 0
        self.read: set[bytes] = set()
        self.written: set[bytes] = set()

    def create_transaction(self) -> Any:
        self.transactions += 1
        return _CountedTransaction(self._db.create_transaction(), self)


class _CountedTransaction:
    def __init__(self, tr: Any, db: Counted) -> None:
        self._tr = tr
        self._db = db

    def __getattr__(self, name: str) -> Any:
        if name == "db":
            return self._db  # as of a binding's transaction
        found = getattr(self._tr, name)
        if name == "snapshot":
            return _CountedTransaction(found, self._db)
        if name == "commit":
            return self._commit  # a layer also asks whether it is there
        if name in ("get", "get_range", "get_key"):
            return self._noting("reads", self._db.read, found)
        if name in ("set", "clear", "clear_range", "add", "byte_max"):
            return self._noting("writes", self._db.written, found)
        return found

    def _noting(self, kind: str, keys: set[bytes], operation: Any) -> Any:
        def noted(key: Any, *args: Any, **terms: Any) -> Any:
            self._db.did[kind] += 1
            keys.add(bytes(getattr(key, "key", key)))  # a key, or a selector of one
            return operation(key, *args, **terms)

        return noted

    def _commit(self) -> Any:
        self._db.did["commits"] += 1
        return self._tr.commit()
