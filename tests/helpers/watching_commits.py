"""A database that counts the commits that changed no key."""

from __future__ import annotations

from typing import Any, Self

from fdbqueue import FDBError
from fdbqueue.engine.transactional import TRANSACTIONS
from fdbqueue.stored.key_table import FAMILIES
from tests.helpers.standin import StandIn

ONE_KEY = {"set", "clear", "add", "bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min"}
ONE_KEY |= {"append_if_fits", "compare_and_clear"}


class WatchedCommits(StandIn):
    """Compares what a transaction writes with what is there, at its commit.

    Commit markers don't count: they say that something was done.
    """

    def __init__(self, db: Any) -> None:
        self.wrapped = db
        self.commits = 0
        self.idle = 0
        """How many commits wrote, and changed nothing."""

    def create_transaction(self) -> Any:
        return _Transaction(self.wrapped.create_transaction(), self)

    def begin(self) -> None:
        """Count anew."""
        self.commits = self.idle = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stay open: a command closes the database that it has opened, and this is the test's."""


class _Transaction:
    def __init__(self, tr: Any, db: WatchedCommits) -> None:
        self._tr = tr
        self._db = db
        self._wrote: list[tuple[bytes, bytes]] = []
        self._stamped = False

    def __getattr__(self, name: str) -> Any:
        if name == "db":
            return self._db
        found = getattr(self._tr, name)
        if name in ONE_KEY:
            return self._noting(found)
        if name == "clear_range":
            return self._noting_range(found)
        if name.startswith("set_versionstamped"):
            self._stamped = True
        return self._commit if name == "commit" else found

    def _noting(self, write: Any) -> Any:
        def noted(key: Any, *args: Any) -> Any:
            self._wrote.append((bytes(key), bytes(key) + b"\x00"))
            return write(key, *args)

        return noted

    def _noting_range(self, clear: Any) -> Any:
        def noted(begin: Any, end: Any) -> Any:
            self._wrote.append((bytes(begin), bytes(end)))
            return clear(begin, end)

        return noted

    def _commit(self) -> Any:
        self._db.commits += 1
        if self._wrote and not self._stamped and not self._changes():
            self._db.idle += 1
        self._wrote.clear()
        self._stamped = False
        return self._tr.commit()

    def _changes(self) -> bool:
        before = self._db.wrapped.create_transaction().snapshot
        try:
            for begin, end in self._wrote:
                is_marker = begin.startswith(TRANSACTIONS) or FAMILIES["markers"].packed in begin
                if not is_marker and _rows(before, begin, end) != _rows(self._tr.snapshot, begin, end):
                    return True
        except FDBError:
            return True  # the commit will tell
        return False


def _rows(tr: Any, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in tr.get_range(begin, end, limit=100)]
