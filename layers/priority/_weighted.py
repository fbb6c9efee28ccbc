"""A weighted head: every level gets turns, so that none starves.

Each transaction that takes items has a turn. It begins with the turn's level, and continues by rank if that level has
too few items. Each process has its own wheel of turns. A round of the wheel has as many turns as the sum of the
weights. In it each level has exactly its weight in turns, spread evenly. A conflict uses up the attempt's turn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.base.beside import KeptBeside
from fdbqueue.lowlevel import TAKEN, KeyValue, Layout, Transaction, rows, started

from ..leases import Head

MAX_WEIGHTS = 10_000


@dataclass(slots=True)
class _Turn:
    """The turn of one transaction. It holds until a read starts from the front after a take."""

    level: int
    taken: bool = False


class WeightedHead(Head):
    """Find the first items of the turn's level, and then of the other levels.

    Args:
        layout: the queue's layout.
        weights: one weight for each level, from rank 0 on: its number of turns in a round, at least 1.
        spin: returns a number below n, the wheel's first turn. It is random, so that processes that live for only one
            turn begin with different levels.
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
        self._begun: KeptBeside[_Turn | None] = KeptBeside(lambda: None)

    def __reduce__(self) -> tuple[Any, ...]:
        weights, spin = self._given
        return partial(WeightedHead, weights=weights, spin=spin), (self._layout,)

    async def first(self, tr: Transaction, *, limit: int, after: bytes | None = None) -> list[KeyValue]:
        turn = self._begun.get(tr)
        if turn is None or (turn.taken and after is None):
            turn = _Turn(self._wheel[next(self._turns) % len(self._wheel)])
            self._begun.put(tr, turn)
        own, *others = self._spans(turn.level, after)
        found = await rows(tr.snapshot, *own, limit=limit)
        if len(found) < limit:
            reads = [started(rows(tr.snapshot, *span, limit=limit - len(found))) for span in others]
            for read in reads:
                found += await read
        return found[:limit]

    def take(self, tr: Transaction, taken: Sequence[KeyValue]) -> None:
        """Clear items and end the turn.

        The conflict ranges are those of strict order within each level: from its begin to its last taken item. Items
        that arrive in another level meanwhile don't conflict, because the turn does not take from that level.
        """
        for begin, run in _runs(self._layout, taken):
            tr.add_read_conflict_range(begin, run[-1].key + b"\x00")
            tr.clear_range(run[0].key, run[-1].key + TAKEN)
        turn = self._begun.get(tr)
        if turn is not None:
            turn.taken = True

    def _spans(self, level: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of keys to read, in order, starting behind `after`."""
        begin, end = self._layout.level(level)
        for span in ((begin, end), (self._layout.begin, begin), (end, self._layout.end)):
            if after is None:
                yield span
            elif span[0] <= after < span[1]:
                yield after + b"\x00", span[1]
                after = None


def wheel(weights: Sequence[int]) -> Iterator[int]:
    """Yield each level as many times as its weight, spread evenly.

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
    """Yield each run of adjacent items of one level, with the begin of that level."""
    for rank, run in itertools.groupby(taken, key=lambda row: layout.position_of(row.key).rank):
        yield layout.begin if rank is None else layout.level(rank)[0], list(run)
