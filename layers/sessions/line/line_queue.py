"""The line of ready sessions, as workers take from it: a queue of pointers, in one shard or several.

A worker looks at one shard. Shards share no key, so that workers at different shards never conflict. The workers of a
process look at the same shard, since calls at one shard share their transactions. After some calls they go on to the
next shard. If a shard has no ready session, the worker reads all shards in one transaction, and takes from the first
that has one. So do its next calls, since few sessions are ready.

A worker that finds no ready session waits as in `fdbqueue.layers.staged`. All waiting workers stand in one order, in
the first shard. Only the first of them watches the counters of all shards. When it wakes, it takes from any shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fdbqueue import Queue
from fdbqueue.engine.steps import finished
from fdbqueue.lowlevel import Database, Layout, Steps, Transaction, verb
from fdbqueue.stored.rename_marks import check_renamed

from ...leases import Disposition, Lease, LeaseHandle, LeaseRef, Leases, ReclaimReport
from ...leases.transitions import Retry
from ...staged import StagedQueue
from ...staged.allotments import Allotment, Got, HeadRead, Served
from ...staged.delivery import ITEMS_AT_ONCE, HeadDelivery
from ..session.records import Held, HeldCodec
from .shards import LOOK_SECONDS, shard_at, shard_of

if TYPE_CHECKING:
    from .line import Line

MOST_SKIPS = 15
"""After calls that found nothing in one shard, at most so many look at all shards at once."""

ROUNDS_AT_A_SHARD = 8
"""How many calls look at a shard, for each further one that is pending. A lone caller goes on after each call."""


def pointers_in(layout: Layout) -> Queue[Held]:
    """Return the queue of the pointers in one shard."""
    queue: Queue[Held] = Queue(layout.space, codec=HeldCodec())
    queue.layout.known.is_part = layout.known.is_part = True  # the line is not registered
    queue.layout = queue.home = layout
    return queue


class LineLeases(Leases[Held]):
    """Leases of the pointers in all shards. Its own verbs are those of the first shard, unless they are given here.

    Args:
        line: the line.
        clock: seconds since 1970.
    """

    def __init__(self, line: Line, clock: Callable[[], float]) -> None:
        super().__init__(pointers_in(line.layout), clock=clock)
        self.line = line
        self._others: dict[int, Leases[Held]] = {}

    def _with_retry(self, retry: Retry) -> LineLeases:
        own = cast(LineLeases, super()._with_retry(retry))
        own._others = {}
        return own

    def of_shard(self, shard: int) -> Leases[Held]:
        """Return the leases of the pointers in one shard."""
        if not shard:
            return self
        known = self._others.get(shard)
        if known is None:
            plain: Leases[Held] = Leases(pointers_in(self.line.shards.layout(shard)), clock=self.clock)
            known = self._others.setdefault(shard, plain._with_retry(self.retry))
        return known

    def at(self, lease: LeaseRef) -> Leases[Held]:
        """Return the leases of a leased pointer's shard."""
        return self.of_shard(shard_at(lease.position))

    @verb
    async def extend_many(
        self, tr: Transaction | Database, leases: Iterable[Lease[Held]], *, duration: float = 30.0
    ) -> list[Lease[Held]]:
        """Extend leases of any shards, all or none."""
        held = list(leases)

        async def body(tr: Transaction) -> list[Lease[Held]]:
            extended: dict[int, Lease[Held]] = {}
            for own, places in self._by_shard(held):
                extend = super(LineLeases, self).extend_many if own is self else own.extend_many
                found = await extend.steps(tr, [held[at] for at in places], duration=duration)
                extended.update(zip(places, found, strict=True))
            return [extended[at] for at in range(len(held))]

        return await self.queue.transact(tr, body)

    @verb
    async def snooze_many(
        self, tr: Transaction | Database, leases: Iterable[LeaseRef], *, delay: float
    ) -> list[Disposition]:
        """Give back leases of any shards, all or none."""
        held = list(leases)

        async def body(tr: Transaction) -> list[Disposition]:
            given_back: dict[int, Disposition] = {}
            for own, places in self._by_shard(held):
                snooze = super(LineLeases, self).snooze_many if own is self else own.snooze_many
                found = await snooze.steps(tr, [held[at] for at in places], delay=delay)
                given_back.update(zip(places, found, strict=True))
            return [given_back[at] for at in range(len(held))]

        return await self.queue.transact(tr, body)

    @verb
    async def reclaim(self, tr: Transaction | Database, *, limit: int = 500) -> ReclaimReport:
        """Fire due timers of all shards, up to `limit` in each."""
        await self.queue.read(tr, self.line.shards.learn)
        report = await self._fire_timers(tr, limit)
        for shard in range(1, self.line.shards.number):
            further = await self.of_shard(shard)._fire_timers(tr, limit)
            report = ReclaimReport(report.reclaimed + further.reclaimed, report.more or further.more)
        if not report.reclaimed:
            await self.queue.read(tr, partial(check_renamed, layout=self.line.layout))
        return report

    async def next_due_us(self, tr: Transaction) -> int | None:
        """Return when the next timer of any shard is due, in microseconds; None if there is none."""
        first = await super().next_due_us(tr)
        for shard in range(1, self.line.shards.number):
            further = await self.of_shard(shard).next_due_us(tr)
            first = further if first is None or (further is not None and further < first) else first
        return first

    def _by_shard(self, held: Sequence[LeaseRef]) -> list[tuple[Leases[Held], list[int]]]:
        """Return the places of leases in a list, by their shards."""
        places: dict[int, list[int]] = {}
        for at, lease in enumerate(held):
            places.setdefault(shard_at(lease.position), []).append(at)
        return [(self.of_shard(shard), some) for shard, some in places.items()]


@dataclass(slots=True)
class ReadOfAll(HeadRead):
    """A read of the heads of all shards that is under way."""

    parts: list[tuple[HeadDelivery, HeadRead]] = field(default_factory=list)


class FirstDelivery(HeadDelivery):
    """Delivers the pointers of the first shard. A waiting worker may have granted this process one of another shard."""

    remembers = False  # a session's ack reads its pointer

    __slots__ = ("_large", "_line", "_parts")

    def __init__(self, leases: LineLeases) -> None:
        self._line = leases.line
        self._parts: dict[int, HeadDelivery] = {}
        super().__init__(leases)

    @property
    def large(self) -> bool:
        """Whether the first process in order takes items for all others. Others do not know the items in front."""
        return self._large or self._line.shards.number > 1

    @large.setter
    def large(self, large: bool) -> None:
        self._large = large

    def _part(self, shard: int) -> HeadDelivery:
        known = self._parts.get(shard)
        if known is None:
            leases: Any = self._leases
            known = self._parts.setdefault(shard, HeadDelivery(leases.of_shard(shard)))
        return known

    async def collect(self, tr: Transaction, granted: list[LeaseHandle], allotment: Allotment) -> list[Got]:
        got: list[Got] = []
        for shard, some in _by_shard(granted).items():
            left = replace(allotment, wanted=allotment.wanted - len(got))
            got += await self._part(shard).collect(tr, some, left)
        return got

    async def accept(self, tr: Transaction, granted: list[LeaseHandle], duration_us: int) -> list[Got] | None:
        got: list[Got] = []
        for shard, some in _by_shard(granted).items():
            good = await self._part(shard).accept(tr, some, duration_us)
            if good is None:
                return None
            got += good
        return got

    async def put_back(self, tr: Transaction, unclaimed: list[Got]) -> None:
        places: dict[int, list[Got]] = {}
        for got in unclaimed:
            places.setdefault(shard_of(got.packed), []).append(got)
        for shard, some in places.items():
            await self._part(shard).put_back(tr, some)


class LineDelivery(FirstDelivery):
    """Delivers pointers of all shards to the workers that wait, from one shard in each transaction."""

    __slots__ = ("_seen",)

    def __init__(self, leases: LineLeases) -> None:
        super().__init__(leases)
        self._seen = 1
        """How many shards the present transaction has looked at. Another thread may learn of more meanwhile."""

    def look(self, tr: Transaction, *, limit: int) -> HeadRead:
        if self._line.shards.number == 1:
            return super().look(tr, limit=limit)
        parts = [(part, part.look(tr, limit=limit)) for part in map(self._part, self._line.shards.order())]
        return ReadOfAll(parts[0][1].now_us, None, limit, finished([]), parts=parts)

    def look_uncontended(self, tr: Transaction, begin: bytes, *, limit: int) -> Steps[HeadRead | None]:
        shards = self._line.shards
        if shards.number == 1 and time.monotonic() - shards.looked < LOOK_SECONDS:
            return super().look_uncontended(tr, begin, limit=limit)
        return finished(None)  # `take` learns the number

    def take(
        self, tr: Transaction, look: HeadRead, allotments: list[Allotment], *, most: int = ITEMS_AT_ONCE
    ) -> Steps[Served]:
        self._seen = 1
        if self._line.shards.number == 1 and time.monotonic() - self._line.shards.looked < LOOK_SECONDS:
            return super().take(tr, look, allotments, most=most)
        return self._take_of_all(tr, look, allotments, most)

    async def _take_of_all(self, tr: Transaction, look: HeadRead, allotments: list[Allotment], most: int) -> Served:
        # It stores no number: a worker would sleep on the version at which it stores it.
        await self._line.shards.learn(tr)
        if self._line.shards.number == 1:
            return await super().take(tr, look, allotments, most=most)
        read = look if isinstance(look, ReadOfAll) else self.look(tr, limit=look.limit)
        parts = read.parts if isinstance(read, ReadOfAll) else []
        self._seen = len(parts)
        served = Served(drained=True)
        for part, own in parts:
            some = await part.take(tr, own, allotments, most=most)
            served.items += some.items
            served.wrote = served.wrote or some.wrote
            served.again = served.again or some.again
            served.drained = served.drained and some.drained
            if some.items or some.error is not None:
                # The workers that are left look again: the other shards may have more.
                served.error, served.drained = some.error, False
                break
        if served.wrote and not served.items:
            served.drained = False  # a timer of the last shards may have made an item of the first ones available
        return served

    async def has_items(self, tr: Transaction) -> bool:
        for shard in self._line.shards.order():
            if await self._part(shard).has_items(tr):
                return True
        return False

    async def next_due_us(self, tr: Transaction) -> int | None:
        await self._line.shards.learn(tr, seconds=0.0)
        if self._line.shards.number != self._seen:
            return self._leases.now_us()  # it looks again at once
        return await self._leases.next_due_us(tr)

    def watched(self) -> list[bytes]:
        return [key for shard in range(self._seen) for key in self._part(shard).watched()]


def _by_shard(granted: list[LeaseHandle]) -> dict[int, list[LeaseHandle]]:
    handles: dict[int, list[LeaseHandle]] = {}
    for one in granted:
        handles.setdefault(shard_at(one.position), []).append(one)
    return handles


class FirstQueue(StagedQueue[Held]):
    """The first shard, as workers take from it that do not wait."""

    delivery: ClassVar[Callable[[Any], HeadDelivery]] = FirstDelivery


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
        self._line = leases.line
        self._of_shards: dict[int, StagedQueue[Held]] = {}
        self._skips = 0
        """How many calls to come look at all shards at once, since most of these have no ready session."""
        self._missed = 0
        self._pending = 0
        """How many calls look at one shard just now."""
        self._shard = 0
        self._left = 0
        """How many calls to come look at that shard."""

    def _of_shard(self, shard: int) -> StagedQueue[Held]:
        known = self._of_shards.get(shard)
        if known is None:
            leases: Any = self.leases
            new = (StagedQueue if shard else FirstQueue)(leases.of_shard(shard), consumer=self._consumer)
            known = self._of_shards.setdefault(shard, new)
        return known

    def take_one(self, db: Database, verb: str, timeout: float | None, duration_us: int) -> Steps[Any]:
        if self._line.shards.number == 1:
            return super().take_one(db, verb, timeout, duration_us)
        return self._take_one_of_shards(db, verb, timeout, duration_us)

    async def _take_one_of_shards(self, db: Database, verb: str, timeout: float | None, duration_us: int) -> Any:
        found = await self._take_of_shards(db, verb, 1, timeout, duration_us)
        return found[0] if found else None

    def _take(self, db: Database, verb: str, limit: int, timeout: float | None, duration_us: int) -> Steps[list[Any]]:
        if self._line.shards.number == 1:
            return super()._take(db, verb, limit, timeout, duration_us)
        return self._take_of_shards(db, verb, limit, timeout, duration_us)

    async def _take_of_shards(
        self, db: Database, verb: str, limit: int, timeout: float | None, duration_us: int
    ) -> list[Any]:
        """Take from one shard, if its turn has come; otherwise from any."""
        if time.monotonic() - self._line.shards.looked >= LOOK_SECONDS:
            await self.queue.read(db, self._line.shards.learn)
        self._skips -= 1
        if self._skips < 0:
            self._pending += 1
            try:
                found = await self._of_shard(self._next_shard())._take(db, verb, limit, 0.0, duration_us)
            finally:
                self._pending -= 1
            self._missed = 0 if found else min(2 * self._missed + 1, MOST_SKIPS)
            self._skips = self._missed
            if found:
                return found
        return await super()._take(db, verb, limit, timeout, duration_us)

    def _next_shard(self) -> int:
        """Return the shard that a call looks at."""
        self._left -= 1
        if self._left < 0:
            self._shard, self._left = self._line.shards.order()[0], ROUNDS_AT_A_SHARD * (self._pending - 1)
        return self._shard
