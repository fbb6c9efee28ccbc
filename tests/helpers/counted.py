"""A database that counts what its transactions do."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.helpers.standin import StandIn


class Counted(StandIn):
    """Counts the operations of its transactions, and notes the keys that they write."""

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.did: Counter[str] = Counter()
        self.written: set[bytes] = set()

    def create_transaction(self) -> Any:
        return _CountedTransaction(self._db.create_transaction(), self)


class _CountedTransaction:
    def __init__(self, tr: Any, db: Counted) -> None:
        self._tr = tr
        self._db = db

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tr, name)
        if name == "snapshot":
            return _CountedTransaction(found, self._db)
        if name in ("get", "get_range", "get_key"):
            self._db.did["reads"] += 1
        if name == "commit":
            return self._commit  # a layer also asks whether it is there
        if name in ("set", "clear", "clear_range", "add", "byte_max"):
            self._db.did["writes"] += 1

            def write(key: bytes, *args: Any) -> Any:
                self._db.written.add(key)
                return found(key, *args)

            return write
        return found

    def _commit(self) -> Any:
        self._db.did["commits"] += 1
        return self._tr.commit()
