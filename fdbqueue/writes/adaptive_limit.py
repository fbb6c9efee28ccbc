"""The number of items that one transaction takes. It shrinks when a transaction can't read so many in its lifetime.

A transaction lives for five seconds, and an item may have eight megabytes. A call that asked for the same number after
each `transaction_too_old` would never end.

>>> adaptive = AdaptiveLimit(100)
>>> for _ in range(4):
...     adaptive.note(FDBError(TRANSACTION_TOO_OLD))
>>> adaptive.limit
25
"""

from __future__ import annotations

from fdbqueue.engine.errors import TRANSACTION_TOO_OLD, FDBError

PATIENCE = 2
"""So many failures may be the machine's fault. Only later ones count against the number of items."""


class AdaptiveLimit:
    """The current limit. Each transaction that was too old halves it, except the first few."""

    __slots__ = ("_too_old", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """How many items to take in the next attempt, at least 1."""
        self._too_old = 0

    def note(self, error: FDBError) -> None:
        """Record the error that made an attempt fail."""
        if error.code == TRANSACTION_TOO_OLD:
            self._too_old += 1
            if self._too_old > PATIENCE:
                self.limit = max(1, self.limit // 2)
