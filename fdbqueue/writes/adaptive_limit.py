"""How many items one transaction takes: fewer, when they are too large for one, or too slow for its lifetime.

`AdaptiveLimit` is for calls that take items, `Halving` for calls that are given batches of them. A transaction lives
for five seconds, and an item may have eight megabytes. A call that asked for the same number after each
`transaction_too_old` would never end.

>>> adaptive = AdaptiveLimit(100)
>>> for _ in range(4):
...     adaptive.note(FDBError(TRANSACTION_TOO_OLD))
>>> adaptive.limit
25
>>> halving = Halving([[1, 2, 3], [4]])
>>> for batch in halving:
...     print(batch)
...     if len(batch) == 3:
...         halving.halve(FDBError(TRANSACTION_TOO_LARGE))
[1, 2, 3]
[1]
[2, 3]
[4]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from fdbqueue.engine.errors import TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD, FDBError

T = TypeVar("T")
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


class TooMuch:
    """Tells from the errors of a batch's attempts whether it is more than one transaction can do."""

    __slots__ = ("_too_old",)

    def __init__(self) -> None:
        self._too_old = 0

    def shows(self, error: FDBError) -> bool:
        """Return whether the batch should be cut. The first `transaction_too_old` may be the machine's fault."""
        self._too_old += error.code == TRANSACTION_TOO_OLD
        return error.code == TRANSACTION_TOO_LARGE or self._too_old > 1


class Halving(Generic[T]):
    """The batches of one call, in order. A batch that is too much for one transaction comes back as its halves.

    Args:
        batches: the batches, read one at a time.
    """

    __slots__ = ("_batch", "_further", "_too_much", "_waiting")

    def __init__(self, batches: Iterable[list[T]]) -> None:
        self._further = iter(batches)
        self._waiting: deque[list[T]] = deque()
        self._batch: list[T] = []
        self._too_much = TooMuch()

    def __iter__(self) -> Iterator[list[T]]:
        while True:
            batch = self._waiting.popleft() if self._waiting else next(self._further, None)
            if batch is None:
                return
            if batch:
                self._batch, self._too_much = batch, TooMuch()
                yield batch

    def note(self, error: FDBError) -> None:
        """Raise the error of an attempt if the present batch should not be tried again as a whole."""
        if len(self._batch) > 1 and self._too_much.shows(error):
            raise error

    def halve(self, error: FDBError | None = None) -> None:
        """Go on with the halves of the present batch.

        Raises:
            FDBError: `error`, if it has another reason, or if the batch is one item.
        """
        if error is not None and (
            error.code not in (TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD) or len(self._batch) == 1
        ):
            raise error
        middle = len(self._batch) // 2
        self.again(self._batch[middle:])
        self.again(self._batch[:middle])

    def again(self, batch: list[T]) -> None:
        """Go on with this batch."""
        self._waiting.appendleft(batch)
