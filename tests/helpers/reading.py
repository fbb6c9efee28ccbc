"""A database that counts what its transactions read."""

from __future__ import annotations

from typing import Any

from tests.helpers.faults import FaultyDatabase, FaultyTransaction


class Reading(FaultyDatabase):
    """Counts what its transactions read, and passes everything on."""

    def __init__(self, db: Any) -> None:
        super().__init__(db, lambda: None)
        self.reads = 0

    def create_transaction(self) -> FaultyTransaction:
        return ReadingTransaction(self._db.create_transaction(), self)


class ReadingTransaction(FaultyTransaction):
    """A transaction of a `Reading`."""

    def __init__(self, tr: Any, db: Reading) -> None:
        super().__init__(tr, db)
        self._reading = db

    def __getattr__(self, name: str) -> Any:
        if name.startswith("get_range") or name in ("get", "get_key", "get_read_version", "snapshot"):
            self._reading.reads += 1
        return getattr(self._tr, name)
