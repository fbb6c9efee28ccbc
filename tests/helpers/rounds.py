"""A database whose reads have round trips, as on a cluster, and that counts those that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.helpers.standin import StandIn


class Rounds(StandIn):
    """Counts the round trips of one transaction after the other. Reads that begin together share one.

    No read comes at once, and there are no turns, so that layers do what they do on a cluster.
    """

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.rounds = 0
        """How many answers, one after the other, the reads of the latest transaction have waited for."""

    def create_transaction(self) -> Any:
        self.rounds = 0
        return _Transaction(self._db.create_transaction(), self)


class _Transaction:
    def __init__(self, tr: Any, db: Rounds) -> None:
        self._tr = tr
        self.db = db

    def __getattr__(self, name: str) -> Any:
        if name == "next_turn":
            raise AttributeError(name)
        found = getattr(self._tr, name)
        if name == "snapshot":
            return _Transaction(found, self.db)
        if name in ("get", "get_key"):
            return lambda *args: _Read(found(*args), self.db)
        if name == "get_range":
            return lambda *args, **terms: _Range(found(*args, **terms), self.db)
        return found


class _Read:
    """A read that was begun behind the answers that were waited for before."""

    def __init__(self, future: Any, db: Rounds) -> None:
        self._future = future
        self._db = db
        self._round = db.rounds + 1

    def is_ready(self) -> bool:
        return self._round <= self._db.rounds

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(self._answer, callback)

    def _answer(self, callback: Callable[[Any], None]) -> None:
        self._db.rounds = max(self._db.rounds, self._round)
        callback(self)

    def present(self) -> bool:
        return bool(self._future.present())

    def __bytes__(self) -> bytes:
        return bytes(self._future)

    def wait(self) -> Any:
        self._db.rounds = max(self._db.rounds, self._round)
        return self._future.wait()


class _Range:
    def __init__(self, answer: Any, db: Rounds) -> None:
        self._future = _Read(answer._future, db)
