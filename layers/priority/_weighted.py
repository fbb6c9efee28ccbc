"""A weighted head: every level gets its turn, so that none starves.

Each transaction that takes items begins with the level whose turn it is, and goes on by rank when that one has too few.
Whose turn it is says a wheel, which each process turns by itself: of as many turns in a row as the weights' sum, every
level has exactly as many as its weight says, spread evenly. An attempt that meets a conflict has had its turn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.steps import Steps, rows, started
from fdbqueue.layout import TAKEN, Layout

from ..leases._head import Head

MAX_WEIGHTS = 10_000


@dataclass(slots=True)
class _Turn:
    """A level's turn in one transaction, for all its reads until they begin anew behind what was taken."""

    level: int
    taken: bool = False


class WeightedHead(Head):
    """The first items of the level whose turn it is, and then of the others.

    Args:
        layout: the queue's.
        weights: of each level, from rank 0 on; how many turns it has of as many as their sum, at least 1.
        spin: given n, a number below it: where the wheel begins. At random, so that processes that live for one turn
            don't all take the same.
    """

    def __init__(
        self, layout: Layout, weights: Sequence[int], *, spin: Callable[[int], int] = random.randrange
    ) -> None:
        given: Sequence[Any] = weights
        if not given or not all(isinstance(one, int) and one >= 1 for one in given) or sum(weights) > MAX_WEIGHTS:
            raise ValueError(f"Weights are integers from 1 on, up to {MAX_WEIGHTS:,} in all, not {list(weights)}.")
        super().__init__(layout)
        self._given = (weights, spin)
        self._wheel = tuple(wheel(weights))
        self._turns = itertools.count(spin(len(self._wheel)))
        self._begun: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        weights, spin = self._given
        return partial(WeightedHead, weights=weights, spin=spin), (self._layout,)

    def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> Steps[list[KeyValue]]:
        turn = self._begun.get(tr)
        if turn is None or (turn.taken and after is None):
            turn = self._begun[tr] = _Turn(self._wheel[next(self._turns) % len(self._wheel)])
        own, *others = self._spans(turn.level, after)
        found = yield from rows(tr.snapshot, *own, limit=limit)
        if len(found) < limit:
            reads = [started(rows(tr.snapshot, *span, limit=limit - len(found))) for span in others]
            for read in reads:
                found += yield from read
        return found[:limit]

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items, and with that end the turn.

        The conflict ranges are those of strict order within each level: from its begin to its last item that is taken.
        What comes to another level meanwhile is of no interest: it was not its turn.
        """
        for begin, run in _runs(self._layout, taken):
            tr.add_read_conflict_range(begin, run[-1].key + b"\x00")
            tr.clear_range(run[0].key, run[-1].key + TAKEN)
        turn = self._begun.get(tr)
        if turn is not None:
            turn.taken = True

    def _spans(self, level: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of keys to look at, in their order, from behind `after` on."""
        begin, end = self._layout.level(level)
        for span in ((begin, end), (self._layout.begin, begin), (end, self._layout.end)):
            if after is None:
                yield span
            elif span[0] <= after < span[1]:
                yield after + b"\x00", span[1]
                after = None


def wheel(weights: Sequence[int]) -> Iterator[int]:
    """Yield each level as often as its weight says, spread evenly.

    >>> list(wheel([3, 2, 1]))
    [0, 1, 0, 2, 1, 0]
    """
    total = sum(weights)
    due = [0] * len(weights)
    for _ in range(total):
        due = [gained + weight for gained, weight in zip(due, weights, strict=True)]
        level = due.index(max(due))
        due[level] -= total
        yield level


def _runs(layout: Layout, taken: Iterable[KeyValue]) -> Iterator[tuple[bytes, list[KeyValue]]]:
    """Yield the items of each level that are next to each other, with the begin of their level."""
    for rank, run in itertools.groupby(taken, key=lambda row: layout.position_of(row.key).rank):
        yield layout.begin if rank is None else layout.level(rank)[0], list(run)
