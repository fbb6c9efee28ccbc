"""A database whose reads have round trips, as on a cluster, and that counts those that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

from tests.helpers.standin import StandIn

WRITES = {
    *("set", "clear", "clear_range", "clear_range_startswith", "append_if_fits", "compare_and_clear"),
    *("add", "bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min"),
    *("set_versionstamped_key", "set_versionstamped_value", "add_write_conflict_key", "add_write_conflict_range"),
}
"""What makes a commit go to the servers."""


Comes: TypeAlias = tuple[int, int]
"""When an answer comes: by the round of its transaction, and by the trips of the database."""


def future_of(rows: Any) -> Any:
    """Return the future of the first page of a range that is read."""
    return rows._future


class Rounds(StandIn):
    """Counts the round trips of one transaction after the other. Reads that begin together share one.

    A read version takes one, too, unless the transaction is given one, and so does a commit of writes. No read comes at
    once, and there are no turns, so that layers do what they do on a cluster. What a transaction has read it reads
    again without a round trip, as from the cache of a cluster's client (seen on 7.3.79, behind a link of 20 ms).
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
        self.known: list[tuple[bytes, bytes, Comes]] = []
        """The begin and end of the ranges that were read, and when their answers come."""

    def comes(self, begin: bytes, end: bytes) -> Comes | None:
        """Return when a range is known; None if a part of it was not read."""
        latest = (0, 0)
        while begin < end:
            stop, at = max(
                ((stop, at) for start, stop, at in self.known if start <= begin < stop), default=(b"", latest)
            )
            if not stop:
                return None
            begin, latest = stop, max(latest, at)
        return latest


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
        elif name == "get":
            return lambda key: self._read(found(key), key, key + b"\x00")
        elif name == "get_key":
            return lambda selector: _Read(found(selector), self.db, self._next())
        elif name == "get_range":
            return lambda begin, end, **terms: self._range(found(begin, end, **terms), begin, end, **terms)
        elif name == "get_read_version":
            self.db.trips = self._version_at()
        elif name == "set_read_version":
            self._began.version_at = self.db.trips
        elif name == "commit" and self._began.has_written:
            self.db.trips = self._version_at() + 1
        elif name in ("reset", "on_error"):
            self._began.version_at, self._began.has_written = None, False
            self._began.known.clear()
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

    def _next(self) -> Comes:
        """Return when the answer of a read comes that begins now."""
        return self.db.rounds + 1, self._version_at() + 1

    def _read(self, future: Any, begin: bytes, end: bytes) -> _Read:
        comes = self._began.comes(begin, end) or self._next()
        self._began.known.append((begin, end, comes))
        return _Read(future, self.db, comes)

    def _range(self, answer: Any, begin: Any, end: Any, *, reverse: bool = False, **terms: Any) -> Any:
        future = future_of(answer)
        if not isinstance(begin, bytes) or not isinstance(end, bytes):
            return SimpleNamespace(_future=_Read(future, self.db, self._next()))
        rows, _, more = future.wait()
        if rows and (more or len(rows) == terms.get("limit")):
            begin, end = (rows[-1].key, end) if reverse else (begin, rows[-1].key + b"\x00")
        return SimpleNamespace(_future=self._read(future, begin, end))


class _Read:
    """A read that was begun behind the answers that were waited for before."""

    def __init__(self, future: Any, db: Rounds, comes: Comes) -> None:
        self._future = future
        self._db = db
        self._round, self._comes_at = comes

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
