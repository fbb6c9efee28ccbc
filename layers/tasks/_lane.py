"""Lanes: the kinds of queues that tasks are enqueued into, by one verb."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fdbqueue import Position, Queue
from fdbqueue.lowlevel import Database, Named, Notes, Subspace, Transaction, locate, pack, rows, value_of, verb
from fdbqueue.moves.outcomes import encode_result, read_record
from fdbqueue.moves.outcomes import remove as remove_outcome

from ..common.levels import Levels
from ..common.token_bucket import TokenBucket
from ..leases import Leases
from ..leases.marking import entered_at, mark
from ..priority import PriorityQueue
from ..results import Completion, Results
from ..results.ends import end_outcome
from ..sessions import Sessions
from ..smart.scanning import SmartIndex
from ._message import Message, MessageCodec
from ._options import Rate, Unique

NAMES = (str, tuple, Subspace)
"""The types of what names a queue."""
INDEX = "task"
"""The type of unique tasks in the index of relation keys. It is that of `SmartQueue`: an entry goes with its item."""


class UniqueKey(NamedTuple):
    """What makes a call equal to others."""

    terms: Unique
    key: str


class Placed(NamedTuple):
    """Where a call is."""

    position: Position
    """Its item; the address of an item in a session."""
    is_new: bool
    """Whether it was enqueued. Otherwise an equal one was there."""
    completion: Completion[Any] | None


class Lane(Named):
    """One queue of tasks, taken in one way.

    Args:
        source: `Leases`, a `PriorityQueue`, or `Sessions`.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.sessions: Sessions[Any] | None = source if isinstance(source, Sessions) else None
        leases: Leases[Any]
        if isinstance(source, Leases):
            leases = source
        elif self.sessions is not None:
            leases = self.sessions.line.leases
        else:
            leases = source.leases
        self.leases = leases
        self.queue: Queue[Any] = source.queue
        self.holder: Any = self.sessions or leases
        """What acks, and gives back."""
        self.has_messages = isinstance(self.queue.codec, MessageCodec)

    def __repr__(self) -> str:
        return f"Lane({self.source!r})"

    def value(self, message: Message) -> Any:
        """Return a message as a value of the queue."""
        if self.has_messages:
            return message
        data = MessageCodec().encode(message)
        return data if self.queue.codec.name == "bytes" else msgspec.json.decode(data)

    def plain_queue(self) -> Queue[Any]:
        """Return the queue without an order: that of its sessions."""
        return Queue(self.queue.layout.space, codec=MessageCodec())

    def check_priority(self, priority: int) -> None:
        """Refuse a priority that the queue does not have.

        Raises:
            TypeError: it has none. ValueError: it has others.
        """
        if self.sessions is not None:
            self.sessions.level_of(priority)
        elif isinstance(self.queue.order, Levels):
            self.queue.order.rank_of(priority)
        else:
            raise TypeError(f"{self.queue!r} has no priorities. Give the tasks some, as in Tasks('mail', levels=3).")

    def terms(self, priority: int | None, **terms: Any) -> dict[str, Any]:
        """Return the arguments of the source's `enqueue`."""
        if priority is not None:
            terms["priority" if self.sessions is None else "level"] = priority
        return {name: value for name, value in terms.items() if value is not None}

    @verb
    async def enqueue(
        self,
        /,
        tr: Transaction | Database,
        value: Any,
        *,
        unique: UniqueKey | None = None,
        keep: float | None = None,
        **terms: Any,
    ) -> Placed:
        """Enqueue a call, unless an equal one is there."""
        return await self.queue.transact(tr, partial(self._enqueue, value, unique, keep, terms))

    async def _enqueue(
        self, value: Any, unique: UniqueKey | None, keep: float | None, terms: Mapping[str, Any], tr: Transaction
    ) -> Placed:
        session = terms.get("session")
        if unique is not None and (found := await self._equal(tr, unique, session)) is not None:
            return Placed(found, False, self.completion(found))
        target = self.source if keep is None else Results(self.source, keep=keep)
        entered = await target.enqueue.steps(tr, value, **terms)
        completion = entered if isinstance(entered, Completion) else None
        position: Any = entered if completion is None else completion.position
        if unique is not None:
            position = await self._note_unique(tr, unique, position, terms)
        return Placed(position, True, completion)

    def completion(self, position: Position) -> Completion[Any]:
        """Return the completion of an item; whether it has a record shows when it is read."""
        return Completion(self.leases, position)

    def bucket(self, name: tuple[Any, ...], rate: Rate) -> TokenBucket:
        """Return the bucket of a rate."""
        terms: Any = {"count": rate.count, "seconds": rate.seconds, "burst": rate.burst}
        return TokenBucket(self.queue, name, clock=self.leases.clock, **terms)

    async def _equal(self, tr: Transaction, unique: UniqueKey, session: Any) -> Position | None:
        """Return an equal call. It conflicts with the enqueue and the end of one."""
        home = self.leases.layout
        if unique.terms.period is not None:
            key = home.completions.key(pack(_noted_at(unique.key)))
            noted = await value_of(tr.get(key))
            if noted.present():
                record = read_record(home, key, bytes(noted))
                if self.leases.now_us() < record.until_us:
                    return Position.parse(msgspec.msgpack.decode(record.result))
        layout = home if self.sessions is None else await self.sessions.layout_for(tr, session)
        span = SmartIndex(layout).key_span(INDEX, unique.key)
        for row in await rows(tr, span.begin, span.end):
            packed = span.packed(row.key)
            if unique.terms.until == "started":
                found = await locate(tr, layout, [packed])
                if not found or found[0].state == "leased":
                    continue
            position = layout.available.position(layout.available.key(packed))
            return (await entered_at(tr, self, layout, position, session)).name
        return None

    async def _note_unique(
        self, tr: Transaction, unique: UniqueKey, position: Position, terms: Mapping[str, Any]
    ) -> Position:
        """Add an enqueued call to the index, which its end leaves; and note it for a period."""
        at = await entered_at(tr, self, self.queue.layout, position, terms.get("session"))
        part = SmartIndex(at.layout).part(INDEX, unique.key)
        delayed = "delay" in terms or "at" in terms
        await mark(tr, at.layout, at.packed, delayed=delayed, beside=(part,))
        for key in at.layout.dependent_keys((part,), at.packed):
            tr.set(key, b"")
        if unique.terms.period is not None:
            # An outcome that is kept for the period, under a position made of the key. A timer removes it.
            packed, home, now_us = pack(_noted_at(unique.key)), self.leases.layout, self.leases.now_us()
            key = home.completions.key(packed)
            noted = await value_of(tr.get(key))
            if noted.present():
                remove_outcome(tr, home, packed, read_record(home, key, bytes(noted)).until_us)
            kept = Notes(keep_s=math.ceil(unique.terms.period))
            end_outcome(tr, home, packed, kept, "ignored", result=encode_result(at.name.text), now_us=now_us)
        return at.name if self.sessions is not None else position


def _noted_at(key: str) -> Position:
    return Position(1, key.encode())


def lane_of(given: Any, *, levels: int | None, clock: Callable[[], float]) -> Lane:
    """Return the lane of a queue's name, or of leases, a priority queue or sessions.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, NAMES):
        queue: Queue[Any] = Queue(given, codec=MessageCodec())
        return Lane(Leases(queue, clock=clock) if levels is None else PriorityQueue(queue, levels=levels, clock=clock))
    if isinstance(given, Leases | PriorityQueue | Sessions):
        if (name := given.queue.codec.name) not in ("json", "bytes"):
            raise TypeError(f"Tasks are stored as JSON, not by the codec {name!r} of {given!r}. Give codec='json'.")
        return Lane(given)
    raise TypeError(
        f"Tasks are in a queue that is named, as in Tasks('mail'), or in its Leases, a PriorityQueue or Sessions, and"
        f" not in {given!r}. For other layers enqueue their items in app.transaction."
    )
