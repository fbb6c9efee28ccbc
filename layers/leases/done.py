"""What an ack stores and enqueues beside the removal of its item: a result, and follow-ups."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import structs

from fdbqueue import ItemTooLarge, Position, Queue
from fdbqueue.base.times import HELD_US, LONGEST_SECONDS
from fdbqueue.lowlevel import (
    Layout,
    Notes,
    Place,
    Transaction,
    envelope,
    notes_of,
    only_transaction,
    pack,
    value_of,
    with_notes,
)
from fdbqueue.moves.ends import encode_result
from fdbqueue.stored.items import with_header
from fdbqueue.stored.shapes import Due

from .enqueueing import PRIORITY, enqueue_with_notes
from .lease import not_negative, positive, visible_at

if TYPE_CHECKING:
    from ..sessions import Sessions


# Mark items that were just enqueued, by any layer, in the same transaction.


class Marked(NamedTuple):
    """An item that was marked."""

    state: str
    """The place of its key: "available", "delayed" or "leased"."""
    notes: Notes
    """Its notes now."""


class Entered(NamedTuple):
    """Where an item is that was enqueued, and where its outcome and its group are kept."""

    layout: Layout
    """The layout of the item's keys."""
    packed: bytes
    """Its packed position."""
    home: Layout
    """The layout of outcomes and groups: the same, except for items of sessions."""
    address: bytes
    """How the item is named there, as a packed position."""

    @property
    def name(self) -> Position:
        """The address as a position."""
        return self.home.available.position(self.home.available.key(self.address))


class EnqueuesInSessions:
    """`Sessions`, and what may be a layer of them, as `Results`: it has them as `sessions`."""


def sessions_of(layer: object) -> Sessions | None:
    """Return the sessions that a layer's items go to; None: they are the queue's plain items."""
    return cast(Any, layer).sessions if isinstance(layer, EnqueuesInSessions) else None


async def entered_at(tr: Transaction, target: object, layout: Layout, position: Position, session: object) -> Entered:
    """Return where the item is that a layer has just enqueued in this transaction.

    Args:
        target: the layer.
        layout: the layout of the layer's queue.
        session: the item's session, if the layer has any.
    """
    if (sessions := sessions_of(target)) is not None:
        return await sessions.entered_at(tr, position, session)
    packed = pack(position)
    return Entered(layout, packed, layout, packed)


async def mark(
    tr: Transaction, layout: Layout, packed: bytes, *, delayed: bool = False, **changes: object
) -> Marked | None:
    """Change the notes of an item in any place of its queue. Return None if it is not there.

    An item that this transaction enqueued is read from the transaction itself, without a round trip. An item that was
    there before is read with a conflict: of this transaction and one that moves the item, one commits.

    Args:
        delayed: whether the item is probably delayed.
        changes: the changes by name.
    """
    states = ("delayed", "available", "leased") if delayed else ("available", "delayed", "leased")
    for state in states:
        place: Place = getattr(layout, state)
        value = await value_of(tr.get(place.key(packed)))
        if value.present():
            stored = bytes(value)
            was = layout.read_item(packed, stored, notes_of)
            notes = structs.replace(was, **changes)
            tr.set(place.key(packed), with_notes(stored, notes))
            if notes.visible_at_us != was.visible_at_us:
                tr.clear(layout.timer_key(was.visible_at_us, packed, Due.DELAY))
                tr.set(layout.timer_key(notes.visible_at_us, packed, Due.DELAY), b"")
            return Marked(state, notes)
    return None


FOLLOW_UPS_BYTES = 400
"""The size of all follow-ups in the notes of an item or a group: the names of their queues and their positions."""

NO_FOLLOW_UPS: Sequence[FollowUp] = ()
"""No follow-ups; the default of an ack, which is therefore known by its identity."""
POSITION_BYTES = 40
"""About how many bytes a packed position has at most."""


class FollowUp:
    """An item to enqueue when another item, or a group, is done.

    Args:
        target: where to enqueue it: a `Queue`, its `Leases`, or a layer whose `enqueue` takes a transaction.
        value: its value.
        terms: other arguments of the target's `enqueue`. A delay begins when the other item is done.

    Raises:
        TypeError: the target can't enqueue in a transaction, or its `enqueue` has no such argument.
        CodecError, ItemTooLarge: the target's queue does not take the value or the headers.
        ValueError: the target has no such level or priority, or no such time, delay or time to live can be.

    >>> from fdbqueue import Queue
    >>> from fdbqueue.layers import FollowUp
    >>> FollowUp(Queue("receipts", codec="str"), "for Ann")
    FollowUp(Queue('receipts', codec='str'), 'for Ann')
    """

    __slots__ = ("_terms", "target", "value")

    def __init__(self, target: Any, value: Any, **terms: Any) -> None:
        if not takes_transactions(target):
            remedy = " Give its leases." if hasattr(target, "leases") else ""
            raise TypeError(
                f"A follow-up is enqueued in a transaction, by a Queue, its Leases or a layer of them, not by"
                f" {target!r}.{remedy}"
            )
        try:
            inspect.signature(target.enqueue).bind(None, value, **terms)
        except TypeError as error:
            raise TypeError(
                f"A follow-up has the arguments of its target's enqueue, and {target!r}: {error}. Give those that it"
                " takes."
            ) from error
        envelope(queue_of(target).encode(value), terms.get("headers"))
        _check_terms(target, value, terms)
        self.target = target
        self.value = value
        self._terms = terms
        _ = self.size_bytes  # it raises if the session's name can't be a key

    def __repr__(self) -> str:
        terms = "".join(f", {name}={value!r}" for name, value in self._terms.items())
        return f"FollowUp({self.target!r}, {self.value!r}{terms})"

    async def carry_out(self, tr: Transaction) -> Any:
        """Enqueue it now. Return what the target's `enqueue` returns."""
        only_transaction(tr, "FollowUp.carry_out")
        return await self.target.enqueue.steps(tr, self.value, **self._terms)

    async def hold(self, tr: Transaction) -> list[tuple[bytes, bytes]]:
        """Enqueue it now, delayed until another item releases it. Return the prefix of its queue, and its packed
        position; nothing if a smart queue did not take it.

        Raises:
            ValueError: it has a time at which it becomes available.
        """
        only_transaction(tr, "FollowUp.hold")
        check_follow_ups([self])
        terms = dict(self._terms)
        delay_us = not_negative(terms.pop("delay", None) or 0.0, "delay")
        target = self.target
        if isinstance(target, Queue):
            notes = Notes(enqueued_at_us=time.time_ns() // 1_000, visible_at_us=HELD_US)
            report = await enqueue_with_notes(tr, target, [self.value], notes, terms.get("headers"))
            position = report.first
        else:
            position = position_in(await target.enqueue.steps(tr, self.value, at=LONGEST_SECONDS, **terms))
        if position is None:
            return []
        at = await entered_at(tr, target, queue_of(target).layout, position, terms.get("session"))
        await mark(tr, at.layout, at.packed, delayed=True, held=True, visible_at_us=HELD_US + delay_us)
        return [(at.home.prefix, at.address)]

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes in the notes of the item that it follows."""
        sessions = sessions_of(self.target)
        if sessions is not None:
            size: int = sessions.address_bytes(self._terms.get("session"))
            return size + POSITION_BYTES
        return len(queue_of(self.target).layout.prefix) + POSITION_BYTES


def _check_terms(target: object, value: object, terms: dict[str, Any]) -> None:
    """Refuse now what the target's enqueue would refuse later, when the item that it follows is done.

    Raises:
        TypeError: the session is missing.
        ValueError: there is no such level or priority, or no such time, delay or time to live can be.
    """
    visible_at(0, terms.get("delay"), terms.get("at"))
    if terms.get("ttl") is not None:
        positive(terms["ttl"], "ttl")
    sessions = sessions_of(target)
    if sessions is not None:
        if terms.get("session") is None:
            raise TypeError(f"{target!r} enqueues into sessions: give session=, as in FollowUp(…, session='ann').")
        sessions.level_of(terms.get("level"))
    elif terms.get("priority") is not None:
        if queue_of(target).order is None:
            raise ValueError(
                f"{target!r} has no levels, and so no priorities. Follow up by the leases of a PriorityQueue, or leave"
                " priority out."
            )
        queue_of(target).rank(value, with_header(terms.get("headers"), PRIORITY, terms["priority"]))


@dataclass(frozen=True, slots=True, init=False)
class Done:
    """What the handler of an item returns, or an ack is given, to store a result and enqueue follow-ups.

    The handler of a `Consumer` returns it in place of a plain result if it also has follow-ups.

    Raises:
        TypeError: `then` has something else than follow-ups.
    """

    result: object = None
    """The result for the item's completion: anything that MessagePack can hold, up to 90,000 bytes."""
    then: FollowUp | Sequence[FollowUp] = NO_FOLLOW_UPS
    """Items to enqueue in the transaction of the ack."""

    def __init__(self, result: object = None, then: FollowUp | Sequence[FollowUp] = NO_FOLLOW_UPS) -> None:
        # Each ack makes one: a check in __post_init__ would be one call more for all that have no follow-ups.
        if then is not NO_FOLLOW_UPS:
            follow_ups_of(then)
        object.__setattr__(self, "result", result)
        object.__setattr__(self, "then", then)

    @property
    def follow_ups(self) -> Sequence[FollowUp]:
        """Return the follow-ups as a sequence."""
        return follow_ups_of(self.then)

    @classmethod
    def of(cls, result: object) -> Done:
        """Return the result of a handler as a `Done`."""
        return result if isinstance(result, Done) else cls(result)

    def check(self) -> None:
        """Raise if the result can't be stored.

        Raises:
            CodecError: MessagePack can't hold it. ItemTooLarge: it is too large.
        """
        encode_result(self.result)


def done_of(result: object, then: FollowUp | Sequence[FollowUp]) -> Done:
    """Return the arguments of an ack as a `Done`.

    Raises:
        TypeError: `then` has something else than follow-ups.
    """
    done = Done.of(result)
    follow_ups = follow_ups_of(then)
    return Done(done.result, [*done.follow_ups, *follow_ups]) if follow_ups else done


def follow_ups_of(then: object) -> Sequence[FollowUp]:
    """Return follow-ups as a sequence.

    Raises:
        TypeError: they are something else.
    """
    if then is NO_FOLLOW_UPS:
        return NO_FOLLOW_UPS
    found = (then,) if isinstance(then, FollowUp) else then
    a_list = isinstance(found, Sequence) and not isinstance(found, str | bytes)
    if not a_list or not all(isinstance(one, FollowUp) for one in cast(Sequence[object], found)):
        raise TypeError(f"`then` is a FollowUp, as in FollowUp(mails, 'receipt'), or a list of them, not {then!r}.")
    return cast(Sequence[FollowUp], found)


def takes_transactions(target: object) -> bool:
    """Return whether an object has an `enqueue` that takes a transaction, and commits nothing."""
    enqueue = getattr(target, "enqueue", None)
    return enqueue is not None and next(iter(inspect.signature(enqueue).parameters), "") == "tr"


def check_follow_ups(follow_ups: Sequence[FollowUp]) -> None:
    """Raise if follow-ups can't wait for an item, before any key is touched.

    Raises:
        ItemTooLarge: they are too many for its notes.
        ValueError: one has a time at which it becomes available.
    """
    if timed := [other for other in follow_ups if other._terms.get("at") is not None]:
        raise ValueError(f"{timed[0]!r} can't have a time `at`: it becomes available after another item. Give a delay.")
    size_bytes = sum(one.size_bytes for one in follow_ups)
    if size_bytes > FOLLOW_UPS_BYTES:
        raise ItemTooLarge(
            f"{len(follow_ups)} follow-ups take about {size_bytes:,} bytes of notes, over the limit of"
            f" {FOLLOW_UPS_BYTES}. Enqueue the others in the handler of one follow-up, or use shorter names of queues."
        )


def queue_of(target: Any) -> Queue:
    """Return the queue that a layer enqueues into."""
    if isinstance(target, Queue):
        return target
    queue: Queue = (target if hasattr(target, "queue") else target.leases).queue
    return queue


def position_in(entered: object) -> Position | None:
    """Return the position in what a layer's `enqueue` returned; None if the item was not enqueued."""
    position = entered if isinstance(entered, Position) else getattr(entered, "position", None)
    return position if isinstance(position, Position) else None
