"""The end of a queue: which index the next item gets.

One more than the last available item's. An item that is away for a while, leased or delayed, must still come before
all that is enqueued meanwhile, also when no other item is left: who takes one away raises the queue's tail, below
which no new index is given.

In a queue with an order of its own (`order.py`) the last item of a rank says nothing about the other ranks. There
every enqueue raises the tail, and reads nothing else: one more than the highest index that was given, whatever the
rank. The tail says there also which order it is, so that a queue has one order only. (docs/adr/0060)

| value of the tail | in a queue |
| --- | --- |
| index (8, big-endian) | that is first in, first out |
| 0xff index (8, big-endian) name of the order | with an order |

Behind the tail stands ``(True, "type")`` if a queue is smart: then each enqueue has to pass the checks of its items
(`layers/smart`). An enqueue finds this key with the reads that it makes anyway, so that no door passes them by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fdbqueue.arrivals import wants_arrivals
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.selector import KeySelector
from fdbqueue.engine.steps import Steps, rows, started
from fdbqueue.errors import ChecksBypassed, OrderError
from fdbqueue.layout import Layout

_ORDERED = b"\xff"  # no index begins so; by `byte_max` it stays
SMART = b"smart"
"""The type of a smart queue, as it is stored."""

Door: TypeAlias = Literal["plain", "smart", "any"]
"""How an item comes into a queue: as it is; after the checks of the items there; or again, as it was there before."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What is stored as a queue's tail."""

    index: int
    """Up to here indices are not given again; 0: nothing is said."""
    order: str | None
    """The name of the queue's order; None: it is first in, first out, or nothing was ever enqueued."""

    @classmethod
    def parse(cls, value: Any) -> Tail:
        """Take what was read of the tail's key apart."""
        return cls.stored(bytes(value) if value.present() else b"")

    @classmethod
    def stored(cls, stored: bytes) -> Tail:
        """Take a stored tail apart; b"" for none."""
        if stored.startswith(_ORDERED):
            return cls(int.from_bytes(stored[1:9], "big"), stored[9:].decode("utf-8", "replace"))
        return cls(int.from_bytes(stored, "big"), None)


class LastIndex:
    """The last index that was given, on its way.

    By snapshot: were it a plain read, every enqueue would conflict with each that commits before it.

    Args:
        order: the name of the order in which something is to be enqueued; None: first in, first out.
        door: how it comes in.
        composed: whether the transaction may have written before. Then the last row is read and not the last key,
            which brings its value along: a key is looked for backwards beyond the begin of an empty queue, and to meet
            a versionstamped key of the transaction's own there, a log's for instance, makes it fail (1036).

    *Conflicts:* none. *Cost:* one read where items were never lent, and with an order; else two, which are issued at
    once but for the first time in a process.
    """

    __slots__ = ("_composed", "_door", "_item", "_layout", "_order", "_subscribed", "_tail", "_tr", "_type", "unmarked")

    def __init__(
        self,
        tr: Transaction,
        layout: Layout,
        order: str | None = None,
        *,
        door: Door = "plain",
        composed: bool = False,
    ) -> None:
        self._tr = tr
        self._composed = composed
        self._door: Door = door
        self._layout = layout
        self._order = order
        self.unmarked = False
        """Whether the queue is to be marked as smart, since it is not yet; known after `steps`."""
        has_tail = layout.has_tail or order is not None
        # Where there is no tail, the one read of the last key finds the keys behind it too. By snapshot: an enqueue
        # that misses the first subscription, as it comes at the same time, notes no arrival, and counters tell
        # (`arrivals.py`). One that misses the first smart enqueue has no entry in the index, and `check` tells.
        self._tail = self._subscribed = self._type = None
        if has_tail:
            view = tr.snapshot
            self._tail = view.get(layout.tail_key)
            self._subscribed = view.get(layout.subscribed_key)
            self._type = view.get(layout.type_key)
        end = layout.end if has_tail else layout.type_key + b"\x00"
        self._item: Steps[bytes] | None = None
        if order is None:
            self._item = started(_last_row(tr, layout.begin, end)) if composed else _last_key(tr, end)

    def steps(self) -> Steps[int]:
        """Wait for it.

        Raises:
            OrderError: the queue has another order.
            ChecksBypassed: it is smart, and the item comes in by the plain door.
        """
        layout = self._layout
        subscribed = None if self._subscribed is None else (yield self._subscribed)
        layout.subscribed, layout.sole = wants_arrivals(subscribed)
        is_smart = self._type is not None and (yield self._type).present()
        if is_smart and self._door == "plain":
            raise bypassed(layout)
        self.unmarked = self._door == "smart" and not is_smart
        if self._item is None:
            return (yield from self._in_order())
        key = yield from self._item
        if self._tail is None:
            if key in (layout.tail_key, layout.subscribed_key, layout.type_key):
                layout.has_tail = True
                again = LastIndex(self._tr, layout, door=self._door, composed=self._composed)
                last = yield from again.steps()
                self.unmarked = again.unmarked
                return last
            index = layout.index_of(key)
            if index is None:
                raise self._refusal((yield from read_tail(self._tr, layout)).order or "unknown")
            return index
        index, tail = layout.index_of(key), (yield self._tail)
        if not tail.present() and index is not None:
            return index
        lent = Tail.parse(tail)
        if index is None or lent.order is not None:
            raise self._refusal(lent.order or "unknown")
        return max(index, lent.index)

    def _in_order(self) -> Steps[int]:
        given = Tail.parse((yield self._tail))
        if given.order == self._order:
            return given.index
        if given.order is not None or given.index:
            raise self._refusal(given.order)
        # Nothing was enqueued in this order yet. By snapshot as all of this: of two that give a new queue two orders
        # at the same instant neither fails, and `check` tells.
        if (yield from rows(self._tr.snapshot, self._layout.begin, self._layout.end, limit=1)):
            raise self._refusal(None)
        return 0

    def _refusal(self, order: str | None) -> OrderError:
        def told(name: str | None) -> str:
            return "first in, first out" if name is None else f"in the order {name!r}"

        return OrderError(
            f"The items of {self._layout.describe()} stand {told(order)}, and nothing can be enqueued there"
            f" {told(self._order)}. Use the queue with its own order, or another queue."
        )


def refuse_smart(tr: Transaction, layout: Layout) -> Steps[None]:
    """Refuse a queue that is smart, before anything is appended to it as it is.

    An enqueue need not call this: it finds out by itself (`LastIndex`). It is for those who ask early, as a job does.

    Raises:
        ChecksBypassed: it is.

    *Conflicts:* none. *Cost:* one read.
    """
    if (yield tr.snapshot.get(layout.type_key)).present():
        raise bypassed(layout)


def bypassed(layout: Layout) -> ChecksBypassed:
    """Return the error of an enqueue that would pass a smart queue's checks by."""
    return ChecksBypassed(
        f"The queue {layout.describe()} is smart: what is enqueued as it is would bypass its checks, limits and index."
        " Enqueue by fdbqueue.layers.SmartQueue(...).enqueue or enqueue_many, and from Spark with the option"
        " smart. Dequeue, lease and browse are as ever."
    )


def _last_key(tr: Transaction, end: bytes) -> Steps[bytes]:
    last = tr.snapshot.get_key(KeySelector.last_less_than(end))
    return _key_of(last)


def _key_of(last: Any) -> Steps[bytes]:
    return bytes((yield last))


def _last_row(tr: Transaction, begin: bytes, end: bytes) -> Steps[bytes]:
    found = yield from rows(tr.snapshot, begin, end, limit=1, reverse=True)
    return found[0].key if found else b""


def raise_tail(tr: Transaction, layout: Layout, index: int) -> None:
    """Let no later enqueue get an index up to `index`.

    Atomically and without a read, so that those who take items away don't conflict with each other here. An enqueue
    that read the tail before this commits saw the item itself, where it was, or its own index is higher. Where the
    queue has an order, every enqueue has raised the tail already, and this changes nothing.
    """
    tr.byte_max(layout.tail_key, index.to_bytes(8, "big"))


def give_up_to(tr: Transaction, layout: Layout, index: int, order: str | None) -> None:
    """Note that the indices up to `index` are given to items that this transaction enqueues.

    First in, first out, the items' own keys say so. Atomically and without a read, so that enqueues don't conflict:
    of those that run at the same time and read the same tail the items share indices, and their random parts decide.
    """
    if order is not None:
        tr.byte_max(layout.tail_key, _ORDERED + index.to_bytes(8, "big") + order.encode())


def mark_smart(tr: Transaction, layout: Layout) -> None:
    """Mark a queue as smart. A blind write, so that the first smart enqueues do not conflict over it."""
    tr.set(layout.type_key, SMART)


def read_tail(tr: Transaction, layout: Layout) -> Steps[Tail]:
    """Read the tail, by snapshot as everybody does."""
    return Tail.parse((yield tr.snapshot.get(layout.tail_key)))
