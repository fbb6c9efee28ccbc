"""The line of ready sessions, as workers take from it: a queue of pointers.

A worker that finds no ready session waits as in `fdbqueue.layers.staged`.

Versions up to 0.2.0 could spread the line over *shards*. The first worker joins them. A pointer in a shard has the same
position in the line, by which its session's record and its slot name it. So its keys move, and nothing else changes; a
live lease goes on. The stored number of shards becomes one that those versions take for a newer version's: they refuse
the queue. What their producers still write meanwhile is found within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fdbqueue import CheckReport, Item, Position, Queue
from fdbqueue.engine.blocking import blocking
from fdbqueue.lowlevel import Database, Layout, Steps, Transaction, fdb_tuple, keep_out, rows, started, verb
from fdbqueue.moves.taking import Verdict

from ...leases import Disposition, Leases, ReclaimReport
from ...leases.taking import ITEMS_AT_ONCE, Allotment, HeadRead, Served, Taking
from ...leases.transitions import Overdue, Release, Retry, Transitions
from ...staged import StagedQueue
from ...staged.delivery import HeadDelivery
from ..session.records import INTEGERS, Held, HeldCodec, Keys

if TYPE_CHECKING:
    from .line import Line


def pointers_in(layout: Layout) -> Queue[Held]:
    """Return the queue of the pointers in the line."""
    queue: Queue[Held] = Queue(layout.space, codec=HeldCodec())
    queue.layout.known.is_part = layout.known.is_part = True  # the line is not registered
    queue.layout = queue.home = layout
    return queue


@dataclass(frozen=True, slots=True)
class PointerRetry(Retry):
    """What becomes of pointers, which stand for sessions: an attempt is that of a session's item in progress."""

    line: Line = field(kw_only=True)

    @property
    def home(self) -> Layout:
        return self.line.items.layout

    @property
    def release(self) -> Release:
        return self.line.release

    async def expire(self, tr: Transaction, moves: Transitions, overdue: Overdue, now_us: int) -> Disposition | None:
        packed, stored, _ = overdue
        return await self.line.expire(tr, moves, packed, stored, now_us)

    def about(self, packed: bytes, stored: bytes) -> tuple[Any, Position | None]:
        return self.line.about(packed, stored)


class LineTaking(Taking):
    """Takes pointers. Each is lent with the first item of its session."""

    __slots__ = ()

    async def deal(
        self, tr: Transaction, moves: Transitions, verdicts: list[Verdict], whose: list[Allotment], now_us: int
    ) -> None:
        line = cast(PointerRetry, self._retry).line
        lending = line.begin(tr, [verdict.row for verdict in verdicts], now_us) if len(verdicts) > 1 else {}
        for verdict, allotment in zip(verdicts, whose, strict=False):
            row, item = verdict.row, verdict.item
            packed = row.key[self._packed_at :]
            moves.leave_available(packed, verdict.notes, cleared=True)
            begun, value = lending.get(row.key), None if item is None else item.value
            stored, held = await (line.lend(tr, packed, row.value, now_us, value) if begun is None else begun)
            item = None if item is None else Item(item.position, held, item.headers)
            self.give(moves, allotment, item, packed, stored, verdict.notes, now_us)


class LineLeases(Leases[Held]):
    """Leases of the pointers in the line.

    Args:
        line: the line.
        clock: seconds since 1970.
    """

    def __init__(self, line: Line, clock: Callable[[], float]) -> None:
        super().__init__(pointers_in(line.layout), clock=clock)
        self.line = line
        self.retry = PointerRetry(self.layout, line=line)
        self.taking = self._taking(self.retry)

    @property
    def shown(self) -> Queue[Any]:
        return self.line.items

    def _taking(self, retry: Retry) -> Taking:
        return LineTaking(self.queue, self.head, retry, self.now_us)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Check all sessions: pointers alone do not say what should be stored of items."""
        from ..reading.check import check_sessions

        return blocking(lambda: check_sessions(tr, self.line))

    @verb
    async def reclaim(self, tr: Transaction | Database, *, limit: int = 500) -> ReclaimReport:
        """Fire due timers, up to `limit`."""
        await self.queue.read(tr, self.line.join)
        return await super().reclaim.steps(tr, limit=limit)


class LineDelivery(LineTaking, HeadDelivery):
    """Delivers pointers. Once a second it looks whether another version has written some elsewhere (`join_shards`)."""

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
        keeping = started(keep_out(tr, self._layout, self._clock_us))  # `see` asks this, and need not wait again
        joined = await self._line.join(tr)
        await keeping
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

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Check all sessions, as `LineLeases.check`."""
        return self.leases.check.steps(tr)


JOINED = 255
"""The number of shards that is stored instead. Versions up to 0.2.0 refuse all from 65 on."""
ROWS_AT_ONCE = 500
_COUNT = fdb_tuple.pack(("count",))
_MARK = fdb_tuple.pack((True,))


async def join_shards(tr: Transaction, keys: Keys) -> bool:
    """Move the first keys of shards into the line. Return whether there were any.

    *Conflicts:* with all that moves one of these pointers. *Cost:* one read, and two writes for each key.
    """
    begin = keys.shards.key()
    found = await rows(tr, *(begin + integer for integer in INTEGERS), limit=ROWS_AT_ONCE)
    for row in found:
        tail = row.key[len(begin) + row.key[len(begin)] - 0x13 :]  # behind the number
        key = keys.line.prefix + tail
        if tail.startswith(_COUNT):
            tr.add(key, row.value)  # waiting workers watch these counters
        elif tail == _MARK:
            tr.byte_max(key, row.value)
        else:
            tr.set(key, row.value)
        tr.clear(row.key)
    if found:
        tr.set(keys.shards.pack(("number",)), JOINED.to_bytes(8, "little"))
    return bool(found)
