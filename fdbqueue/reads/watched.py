"""A database that is read in many transactions, and says whether a range of its keys changed meanwhile."""

from __future__ import annotations

import os
import time
from typing import Any

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import wait_in_thread

SPAN_S = 1.0
"""How long one transaction watches before the next one does. It lives for five seconds."""
_CHECKS = b"\xfdfdbqueue/check/"


class WatchedRange:
    """Makes transactions, and watches a range of keys from its own creation on.

    The engine itself watches, so no change is overlooked that another change undoes. A transaction begins before the
    reads, conflicts with every write to the range, and commits after them. The next one begins before that commit. They
    write nothing. A transaction without writes checks no conflicts, so each declares to write a key that is not there.

    Args:
        db: the database.
        begin, end: the range.
    """

    def __init__(self, db: Database, begin: bytes, end: bytes) -> None:
        self._db = db
        self._range = begin, end
        self._changed = False
        self._watch = self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Transaction:
        """Return a new transaction. It may wait for the commit of the last watch."""
        if time.monotonic() - self._since > SPAN_S:
            self._hand_over()
        return self._db.create_transaction()

    def changed(self) -> bool:
        """Return whether the range changed up to now; also True if that is not known."""
        self._hand_over()
        return self._changed

    def _begin(self) -> Transaction:
        self._since = time.monotonic()
        tr = self._db.create_transaction()
        wait_in_thread(tr.get_read_version())
        tr.add_read_conflict_range(*self._range)
        tr.add_write_conflict_key(_CHECKS + os.urandom(8))
        return tr

    def _hand_over(self) -> None:
        if self._changed:
            return
        try:
            before, self._watch = self._watch, self._begin()
            wait_in_thread(before.commit())
        except FDBError:
            self._changed = True  # a conflict, or an unknown outcome
