"""How many items one transaction takes: fewer, when so many can't be read while it lives.

A transaction lives for five seconds, and an item may have eight megabytes. Asked for as many again after each time that
it was too old, a call would never come to an end.

>>> portion = AdaptiveLimit(100)
>>> for _ in range(4):
...     portion.note(FDBError(TRANSACTION_TOO_OLD))
>>> portion.limit
25
"""

from __future__ import annotations

from fdbqueue.engine.errors import TRANSACTION_TOO_OLD, FDBError

PATIENCE = 2
"""So many times it may have been the machine's fault, and not that of the items."""


class AdaptiveLimit:
    """What is left of a limit; halved each time that a transaction was too old, but for the first few times."""

    __slots__ = ("_too_old", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """How many to take in the next attempt, at least 1."""
        self._too_old = 0

    def note(self, error: FDBError) -> None:
        """Learn why an attempt is repeated."""
        if error.code == TRANSACTION_TOO_OLD:
            self._too_old += 1
            if self._too_old > PATIENCE:
                self.limit = max(1, self.limit // 2)
