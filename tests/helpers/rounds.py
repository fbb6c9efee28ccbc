"""A database whose reads have round trips, as on a cluster, and that counts those that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.helpers.standin import StandIn

WRITES = {
    *("set", "clear", "clear_range", "clear_range_startswith", "append_if_fits", "compare_and_clear"),
    *("add", "bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min"),
    *("set_versionstamped_key", "set_versionstamped_value", "add_write_conflict_key", "add_write_conflict_range"),
}
"""What makes a commit go to the servers."""


class Rounds(StandIn):
    """Counts the round trips of one transaction after the other. Reads that begin together share one.

    A read version takes one, too, unless the transaction is given one, and so does a commit of writes. No read comes at
    once, and there are no turns, so that layers do what they do on a cluster.
    """

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.rounds = 0
        """How many answers, one after the other, the reads of the latest transaction have waited for."""
        self.trips = 0
        """How many trips, one after the other, were waited for: a clock. Those of two transactions may be together."""

    def create_transaction(self) -> Any:
        self.rounds = 0
        return _Transaction(self._db.create_transaction(), self, _Began())


class _Began:
    """How far a transaction is."""

    def __init__(self) -> None:
        self.version_at: int | None = None
        """When its read version comes, by the trips of the database."""
        self.has_written = False


class _Transaction:
    def __init__(self, tr: Any, db: Rounds, began: _Began) -> None:
        self._tr = tr
        self.db = db
        self._began = began

    def __getattr__(self, name: str) -> Any:
        if name == "next_turn":
            raise AttributeError(name)
        found = getattr(self._tr, name)
        if name == "snapshot":
            return _Transaction(found, self.db, self._began)
        if name in WRITES:
            self._began.has_written = True
        elif name in ("get", "get_key"):
            return lambda *args: _Read(found(*args), self.db, self._version_at())
        elif name == "get_range":
            return lambda *args, **terms: _Range(found(*args, **terms), self.db, self._version_at())
        elif name == "get_read_version":
            self.db.trips = self._version_at()
        elif name == "set_read_version":
            self._began.version_at = self.db.trips
        elif name == "commit" and self._began.has_written:
            self.db.trips = self._version_at() + 1
        elif name in ("reset", "on_error"):
            self._began.version_at, self._began.has_written = None, False
            self.db.rounds = 0
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._began.has_written = True
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        self._began.has_written = True
        del self._tr[key]

    def _version_at(self) -> int:
        """Return when a read can begin at a server."""
        if self._began.version_at is None:
            self._began.version_at = self.db.trips + 1
        return max(self._began.version_at, self.db.trips)


class _Read:
    """A read that was begun behind the answers that were waited for before."""

    def __init__(self, future: Any, db: Rounds, begins_at: int) -> None:
        self._future = future
        self._db = db
        self._round, self._comes_at = db.rounds + 1, begins_at + 1

    def is_ready(self) -> bool:
        return self._round <= self._db.rounds

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(self._answer, callback)

    def _answer(self, callback: Callable[[Any], None]) -> None:
        self._note()
        callback(self)

    def _note(self) -> None:
        self._db.rounds = max(self._db.rounds, self._round)
        self._db.trips = max(self._db.trips, self._comes_at)

    def present(self) -> bool:
        return bool(self._future.present())

    def __bytes__(self) -> bytes:
        return bytes(self._future)

    def wait(self) -> Any:
        self._note()
        return self._future.wait()


class _Range:
    def __init__(self, answer: Any, db: Rounds, begins_at: int) -> None:
        self._future = _Read(answer._future, db, begins_at)
