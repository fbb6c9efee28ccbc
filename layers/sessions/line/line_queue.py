"""The line of ready sessions, as workers take from it: a queue of pointers.

A worker that finds no ready session waits as in `fdbqueue.layers.staged`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from fdbqueue import Queue
from fdbqueue.lowlevel import Database, Layout, Steps, Transaction, verb

from ...leases import Leases, ReclaimReport
from ...leases.taking import ITEMS_AT_ONCE, Allotment, HeadRead, Served
from ...staged import StagedQueue
from ...staged.delivery import HeadDelivery
from ..session.records import Held, HeldCodec

if TYPE_CHECKING:
    from .line import Line


def pointers_in(layout: Layout) -> Queue[Held]:
    """Return the queue of the pointers in the line."""
    queue: Queue[Held] = Queue(layout.space, codec=HeldCodec())
    queue.layout.known.is_part = layout.known.is_part = True  # the line is not registered
    queue.layout = queue.home = layout
    return queue


class LineLeases(Leases[Held]):
    """Leases of the pointers in the line.

    Args:
        line: the line.
        clock: seconds since 1970.
    """

    def __init__(self, line: Line, clock: Callable[[], float]) -> None:
        super().__init__(pointers_in(line.layout), clock=clock)
        self.line = line

    @verb
    async def reclaim(self, tr: Transaction | Database, *, limit: int = 500) -> ReclaimReport:
        """Fire due timers, up to `limit`."""
        await self.queue.read(tr, self.line.join)
        return await super().reclaim.steps(tr, limit=limit)


class LineDelivery(HeadDelivery):
    """Delivers pointers. Once a second it looks whether another version has written some elsewhere (`joining.py`)."""

    remembers = False  # a session's ack reads its pointer

    __slots__ = ("_line",)

    def __init__(self, leases: LineLeases) -> None:
        super().__init__(leases)
        self._line = leases.line

    def take(
        self,
        tr: Transaction,
        look: HeadRead,
        allotments: list[Allotment],
        *,
        most: int = ITEMS_AT_ONCE,
        strict: bool = True,
    ) -> Steps[Served]:
        if monotonic() < self._line.joined_until:
            return super().take(tr, look, allotments, most=most)
        return self._join_and_take(tr, look, allotments, most)

    async def _join_and_take(self, tr: Transaction, look: HeadRead, allotments: list[Allotment], most: int) -> Served:
        joined = await self._line.join(tr)
        served = await super().take(tr, self.look(tr, limit=look.limit) if joined else look, allotments, most=most)
        served.wrote = served.wrote or joined
        served.drained = served.drained and not joined
        return served


class LineQueue(StagedQueue[Held]):
    """The line of ready sessions, as many workers take from it.

    Args:
        leases: the leases of the pointers.
        consumer: the name under which it takes leases.
    """

    delivery: ClassVar[Callable[[Any], HeadDelivery]] = LineDelivery

    def __init__(self, leases: LineLeases, *, consumer: str | None = None) -> None:
        super().__init__(leases, consumer=consumer)
        self.named = "Sessions"
