"""Lanes: the kinds of queues that tasks are enqueued into, and messages: what is in them, as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fdbqueue import CodecError, Position, Queue
from fdbqueue.lowlevel import Database, Named, Notes, Subspace, Transaction, locate, pack, rows, value_of, verb
from fdbqueue.moves.ends import OutcomeRecord, encode_result

from ..common.levels import Levels
from ..leases import Leases
from ..leases.done import EnqueuesInSessions, entered_at, mark
from ..middleware.token_bucket import TokenBucket
from ..priority import PriorityQueue
from ..results import Completion, Results
from ..results.results import end_outcome
from ..sessions import Sessions
from ..smart.scanning import SmartIndex
from ._arguments import Rate, Unique

NO_ARGUMENTS = msgspec.Raw(b"{}")
NO_CALL = msgspec.Raw(b"null")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a task, as it is stored: ``{"task": "send_mail", "args": {"to": "Ann"}}``."""

    task: str
    """The task's name, or one of its aliases."""
    args: msgspec.Raw = NO_ARGUMENTS
    """Its arguments by name, as JSON. Programs in other languages may also give a list."""
    then: tuple[Following, ...] = ()
    """What follows it when it is done."""
    problem: str = ""
    """Why the item is no message. It is never stored."""

    def __repr__(self) -> str:
        return self.problem or f"Message({self.task!r}, {bytes(self.args).decode(errors='replace')})"


class Following(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that is enqueued when the one before it is done."""

    task: str
    args: msgspec.Raw = NO_CALL
    """Its arguments; `NO_CALL`: the result of the task before it is its only argument."""
    then: tuple[Following, ...] = ()
    terms: dict[str, Any] = {}
    """Its delay, priority or time to live, if they are not the task's own."""


class MessageCodec:
    """JSON of messages. Its name is json: other programs, Spark and the command line enqueue JSON of the same form."""

    name = "json"

    def encode(self, value: object) -> bytes:
        try:
            return _encode(value if isinstance(value, Message) else _decoder.decode(msgspec.json.encode(value)))
        except (TypeError, msgspec.MsgspecError) as error:
            raise CodecError(f"A call of a task has 'task' and 'args'. {value!r} is none: {error}.") from error

    def decode(self, data: bytes) -> Message:
        """Return the message. An item that is none becomes a dead letter later, and blocks no other."""
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Message("", problem=f"{data[:200]!r} is no call of a task: {error}.")


def message_of(value: object) -> Message:
    """Return a leased value as a message, also of a queue with another codec."""
    if isinstance(value, Message):
        return value
    try:
        return MessageCodec().decode(value if isinstance(value, bytes) else msgspec.json.encode(value))
    except TypeError as error:  # a blob
        return Message("", problem=f"{value!r} is no call of a task: {error}.")


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Message)


NAMES = (str, tuple, Subspace)
"""The types of what names a queue."""
INDEX = "task"
"""The type of unique tasks in the index of relation keys. It is that of `SmartQueue`: an entry goes with its item."""


Source: TypeAlias = "Leases | PriorityQueue | Sessions"
"""What tasks are enqueued into."""
Terms: TypeAlias = "dict[str, Any]"
"""Arguments of an `enqueue`."""


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
    completion: Completion | None


class Lane(Named, EnqueuesInSessions):
    """One queue of tasks, taken in one way.

    Args:
        source: `Leases`, a `PriorityQueue`, or `Sessions`.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sessions = source if isinstance(source, Sessions) else None
        if isinstance(source, Leases):
            self.leases: Leases = source
        else:
            self.leases = source.line.leases if isinstance(source, Sessions) else source.leases
        self.queue: Queue = source.queue
        self.holder: Any = self.sessions or self.leases
        """What acks, and gives back."""
        self.has_messages = isinstance(self.queue.codec, MessageCodec)
        self.told = False
        """Whether a worker has warned that the queue's policy ends retries of its tasks."""

    def __repr__(self) -> str:
        return f"Lane({self.source!r})"

    def value(self, message: Message) -> object:
        """Return a message as a value of the queue."""
        if self.has_messages:
            return message
        data = MessageCodec().encode(message)
        return data if self.queue.codec.name == "bytes" else msgspec.json.decode(data)

    def plain_queue(self) -> Queue:
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

    def terms(self, priority: int | None, **terms: object) -> Terms:
        """Return the arguments of the source's `enqueue`."""
        if priority is not None:
            terms["priority" if self.sessions is None else "level"] = priority
        return {name: value for name, value in terms.items() if value is not None}

    @verb
    async def enqueue(
        self,
        /,
        tr: Transaction | Database,
        value: object,
        *,
        unique: UniqueKey | None = None,
        keep: float | None = None,
        **terms: object,
    ) -> Placed:
        """Enqueue a call, unless an equal one is there."""
        return await self.queue.transact(tr, partial(self._enqueue, value, unique, keep, terms))

    async def _enqueue(
        self, value: object, unique: UniqueKey | None, keep: float | None, terms: Terms, tr: Transaction
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

    def completion(self, position: Position) -> Completion:
        """Return the completion of an item; whether it has a record shows when it is read."""
        return Completion(self.leases, position)

    def bucket(self, name: tuple[str | int, ...], rate: Rate) -> TokenBucket:
        """Return the bucket of a rate."""
        count, seconds, burst = rate.count, rate.seconds, rate.burst
        return TokenBucket(self.queue, name, count=count, seconds=seconds, burst=burst, clock=self.leases.clock)

    async def _equal(self, tr: Transaction, unique: UniqueKey, session: object) -> Position | None:
        """Return an equal call. It conflicts with the enqueue and the end of one."""
        home = self.leases.layout
        if unique.terms.period is not None:
            key = home.completions.key(pack(_noted_at(unique.key)))
            noted = await value_of(tr.get(key))
            if noted.present():
                record = OutcomeRecord.read(home, key, bytes(noted))
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

    async def _note_unique(self, tr: Transaction, unique: UniqueKey, position: Position, terms: Terms) -> Position:
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
                OutcomeRecord.remove(tr, home, packed, OutcomeRecord.read(home, key, bytes(noted)).until_us)
            kept = Notes(keep_s=math.ceil(unique.terms.period))
            end_outcome(tr, home, packed, kept, "ignored", result=encode_result(at.name.text), now_us=now_us)
        return at.name if self.sessions is not None else position


def _noted_at(key: str) -> Position:
    return Position(1, key.encode())


def lane_of(given: object, *, levels: int | None, clock: Callable[[], float]) -> Lane:
    """Return the lane of a queue's name, or of leases, a priority queue or sessions.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(given, NAMES):
        queue: Queue = Queue(given, codec=MessageCodec())
        return Lane(Leases(queue, clock=clock) if levels is None else PriorityQueue(queue, levels=levels, clock=clock))
    if isinstance(given, Leases | PriorityQueue | Sessions):
        if (name := given.queue.codec.name) not in ("json", "bytes"):
            raise TypeError(f"Tasks are stored as JSON, not by the codec {name!r} of {given!r}. Give codec='json'.")
        return Lane(given)
    raise TypeError(
        f"Tasks are in a queue that is named, as in Tasks('mail'), or in its Leases, a PriorityQueue or Sessions, and"
        f" not in {given!r}. For other layers enqueue their items in app.transaction."
    )
