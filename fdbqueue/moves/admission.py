"""The admission of new items: whether they may enter a queue, and which index the next one gets.

The index is one more than the last available item's index. A leased or delayed item is away for a while. It must
still come before all items that are enqueued meanwhile, even if no other item is left. So a transaction that takes such
an item away raises the queue's high-water mark. New items get higher indices.

In a queue with its own order (`order.py`) the last item of a rank says nothing about the other ranks. There every
enqueue raises the high-water mark to the highest index that it gave, whatever the rank. It reads nothing else. The mark
there also names the order, so that a queue has one order only. (docs/adr/0060)

| value of the mark | in a queue |
| --- | --- |
| index (8, big-endian) | that is first in, first out |
| 0xff index (8, big-endian) name of the order | with an order |

The key ``(True, "type")`` follows the mark if a queue is smart. Then each enqueue has to pass the checks of the queued
items (`layers/smart`). An enqueue reads this key along with its other reads, so no enqueue can bypass the checks. The
key also says that the queue was renamed, or how many items it may have (`stored/settings.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps, columns, rows, started, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.engine.waiting import until_changed
from fdbqueue.errors import ChecksBypassed, FormatError, OrderError, QueueFull
from fdbqueue.moves.moves import wants_arrivals
from fdbqueue.stored.catalogue import write_about
from fdbqueue.stored.counters import read_counts
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import QueueSettings, look, must_register
from fdbqueue.stored.order import MAX_INDEX
from fdbqueue.stored.settings import (
    NO_TERMS,
    SMART,
    HighWaterMark,
    QueueTerms,
    Quota,
    read_high_water_mark,
    read_terms,
    terms_of,
)

# Quotas: how many items, or about how many bytes, a queue may have.
#
# A quota is stored where each enqueue reads the queue's type (`admission.py`), so that all processes know it at
# once, and an enqueue of a queue without quota pays nothing.
#
# An enqueue of a queue with a quota of items also reads the counters, by snapshot: with plain reads every enqueue
# would
# conflict with all others. So the quota may be exceeded, by the items of other enqueueing transactions that are
# open at
# the same time. Of n producers that each enqueue one item, the last ones to read see the same number, and exceed it
# by
# n - 1 at most.
#
# Nothing counts a queue's bytes: that would cost every enqueue and every dequeue a write. An enqueue of a queue
# with a
# quota of bytes asks the database how large the queue's keys are. A cluster estimates that, and the embedded engine
# reads
# them. So a process asks again only after 20 times as long as the last answer took, and believes that answer until
# then.

MEASURING_SHARE = 20
"""For how many times as long as it took to measure a queue's size that size is believed."""
_GONE = ("dequeued", "expired", "purged", "deleted")
_LOOK_SECONDS = 0.5
"""How long a waiting enqueue waits at most before it looks again: no watch sees the size, or another quota."""


async def check_room(tr: Transaction, layout: Layout, quota: Quota, wanted: int) -> None:
    """Refuse an enqueue that would exceed a quota.

    Raises:
        QueueFull: it would.

    *Conflicts:* none. *Cost:* one read for a quota of items. For one of bytes an estimate of the queue's size, which
    the embedded engine makes by reading the queue; at most a twentieth of the time.
    """
    there = 0 if quota.items is None else await _items(tr, layout)
    if quota.items is not None and there + wanted > quota.items:
        more = "another" if wanted == 1 else f"{wanted:,} more"
        left_out = "It was not written." if wanted == 1 else "None of these was written."
        items = "1 item" if there == 1 else f"{there:,} items"
        raise QueueFull(
            f"The queue {layout.describe()} has {items} and no room for {more}: its quota is {quota.items:,}."
            f" {left_out} {_what_fits(quota.items, there, wanted)} Or raise the"
            " quota: Queue.set_quota.",
            limit=quota,
            wanted=wanted,
            prefix=layout.prefix,
            room=max(0, quota.items - there),
        )
    if quota.size_bytes is not None and (size := await size_of(tr, layout)) >= quota.size_bytes:
        raise QueueFull(
            f"The queue {layout.describe()} has about {size:,} bytes, and its quota is {quota.size_bytes:,} bytes."
            " Nothing was written. Come again when consumers have taken some items, or raise the quota:"
            " Queue.set_quota.",
            limit=quota,
            wanted=wanted,
            prefix=layout.prefix,
        )


def _what_fits(most: int, there: int, wanted: int) -> str:
    """Return a sentence that says what can succeed."""
    room = max(0, most - there)
    if wanted > most:
        return f"A transaction that enqueues {wanted:,} never fits: enqueue {most:,} at a time at most, now {room:,}."
    if room:
        return f"There is room for {room:,} now, and for more when consumers have taken some."
    return "Come again when consumers have taken some."


def may_fit_in_parts(error: QueueFull, items: int) -> bool:
    """Return whether to split so many items that a quota refused together: one part has room, or waits for it."""
    quota = error.limit
    if items < 2 or not isinstance(quota, Quota) or not quota.items:
        return False
    return error.room > 0 or quota.when_full == "wait"


async def wait_for_room(db: Database, error: QueueFull) -> None:
    """Wait until the items of a refused enqueue have room.

    Raises:
        QueueFull: the quota refuses, or the items of one transaction are more than the quota.

    *Cost:* two reads for each look. It looks when an item has gone, and each half second.
    """
    quota = error.limit
    if not isinstance(quota, Quota) or quota.when_full != "wait":
        raise error
    if quota.items is not None and error.wanted > quota.items:
        raise error
    look = partial(_watch_while_full, layout=Layout(Subspace(rawPrefix=error.prefix)), wanted=error.wanted)
    try:
        while watches := await attempts(db, look):
            await until_changed(watches, _LOOK_SECONDS)
    except KeyboardInterrupt as stop:
        stop.add_note(_NO_ROOM.format(error.wanted))
        raise


_NO_ROOM = "It waited for room in the queue for {:,} items: they are not in, nor is what follows."


def note_interrupt(stop: KeyboardInterrupt, items: int) -> None:
    """Add to an interrupted commit's error whether its items are in. If they waited for room, they are not."""
    if not any(note.startswith(_NO_ROOM[:20]) for note in getattr(stop, "__notes__", ())):
        stop.add_note(f"The commit of {items:,} items was under way: they may be in. What follows is not.")


async def _watch_while_full(tr: Transaction, layout: Layout, wanted: int) -> list[Future[None]]:
    """Return watches on what changes when an item goes; [] if there is room."""
    if not await _is_full(tr, layout, wanted):
        return []
    return [tr.watch(layout.count_key(name)) for name in _GONE]


async def _is_full(tr: Transaction, layout: Layout, wanted: int) -> bool:
    quota = (await read_terms(tr.snapshot, layout)).quota
    if quota is None:
        return False
    if quota.items is not None and await _items(tr, layout) + min(wanted, quota.items) > quota.items:
        return True
    return quota.size_bytes is not None and await size_of(tr, layout) >= quota.size_bytes


async def _items(tr: Transaction, layout: Layout) -> int:
    return items_in(await read_counts(tr, layout))


def items_in(counts: Mapping[str, int]) -> int:
    """Return the items that a quota counts, from a queue's counters."""
    return counts.get("enqueued", 0) - sum(counts.get(name, 0) for name in _GONE)


_sizes: KeptBeside[dict[bytes, tuple[int, float]]] = KeptBeside(dict)
"""By database, then by the prefix of a queue: its size, and until when that is believed."""


async def size_of(tr: Transaction, layout: Layout) -> int:
    """Return about how many bytes a queue has, as enqueues of this process believe it.

    *Conflicts:* none. *Cost:* an estimate of the queue's size, which the embedded engine makes by reading the queue; at
    most a twentieth of the time.
    """
    of_queues = _sizes.of(getattr(tr, "db", tr))
    known, until = of_queues.get(layout.prefix, (0, 0.0))
    began = time.monotonic()
    if began < until:
        return known
    span = layout.space.range()
    size: int = await value_of(tr.snapshot.get_estimated_range_size_bytes(span.start, span.stop))
    ended = time.monotonic()
    of_queues[layout.prefix] = size, ended + MEASURING_SHARE * (ended - began)
    return size


Entry: TypeAlias = Literal["plain", "smart", "any"]
"""How an item enters a queue: without checks; after the checks of the queued items; or again, after it left."""
ENTRIES = get_args(Entry)


_UNMARKED = HighWaterMark(0, None)
_ALL = 1 << 30
"""A limit of rows that is none: the embedded engine reads them in fewer steps with one."""


class Admission:
    """The admission of new items, as a read under way: whether they may enter, and behind which index.

    An enqueue asks one range of keys. It gives the last index, and the queue's registration: its codec, order and new
    name. It also tells whether the queue has a quota, checks of its own, or subscriptions. The read is a snapshot read:
    with a plain one, every enqueue would conflict with each enqueue that commits before it.

    Args:
        order: the name of the order to enqueue in; None: first in, first out.
        entry: how the item enters.
        composed: whether the transaction may have written before. It then reads the last row instead of the last key,
            and gets the value too. A search for a key can run back beyond the begin of an empty queue. If it meets a
            versionstamped key of the same transaction there, such as a log's, it fails (1036).
        registers: whether to register the queue, if this object does not know that it is registered.
        asks: whether `steps` writes nothing, since the caller may yet decide otherwise. The caller calls `write`.

    *Conflicts:* none. *Cost:* one read if no item was ever leased or delayed, or if the queue has an order; otherwise
    two. They are issued together, except for the first time in a process.
    """

    __slots__ = (
        "_asks",
        "_composed",
        "_entry",
        "_last",
        "_layout",
        "_marks",
        "_order",
        "_settings",
        "_tr",
        "terms",
        "unmarked",
        "unregistered",
    )

    def __init__(
        self,
        tr: Transaction,
        layout: Layout,
        order: str | None = None,
        *,
        entry: Entry = "plain",
        composed: bool = False,
        registers: bool = True,
        asks: bool = False,
    ) -> None:
        self._tr = tr
        self._asks = asks
        self._composed = composed
        self._entry: Entry = entry
        self._layout = layout
        self._order = order
        self.unmarked = False
        """Whether the queue has to be marked as smart, since it is not yet; known after `steps`."""
        self.unregistered = False
        """Whether the queue has to be registered, since it is not yet; known after `steps`."""
        self.terms = NO_TERMS
        """The queue's terms; known after `steps`."""
        self._begin(marked=layout.known.has_high_water_mark or order is not None)
        # An item that comes back has the codec that it had.
        known = layout.known
        self._settings: Steps[QueueSettings] | None = None
        adds = registers and entry != "any" and known.registration is not None
        if adds and not (known.has_record and known.relies(tr)):
            self._settings = started(look(tr, layout))

    def _begin(self, *, marked: bool) -> None:
        # Without a mark, one read of the last key also finds the keys behind the mark. It is a snapshot read, so an
        # enqueue can miss a first subscription that commits at the same time. It then notes no arrival, and the
        # counters show that (`moves.py`). An enqueue that misses the first smart enqueue has no entry in the index,
        # and `check` reports that.
        # It is the first read: behind others, the embedded engine would look for the key among what they found.
        layout, view = self._layout, self._tr.snapshot
        self._last: Any = None
        if self._order is None:
            if self._composed:
                end = layout.end if marked else layout.type_key + b"\x00"
                self._last = started(_last_row(self._tr, layout.begin, end))
            else:
                self._last = value_of(view.get_key(layout.last_item if marked else layout.last_key))
        self._marks: Steps[tuple[list[bytes], list[bytes]]] | None = None
        if marked:
            self._marks = started(columns(view, layout.high_water_mark_key, layout.type_key + b"\x00", _ALL))

    def write(self) -> None:
        """Register the queue, and mark it as smart, where `steps` has found that this is to do. It does not wait."""
        if self.unregistered:
            write_about(self._tr, self._layout)
        if self.unmarked:
            mark_smart(self._tr, self._layout)

    async def steps(self, wanted: int = 1) -> int:
        """Wait for the last index and return it.

        Args:
            wanted: how many items the transaction adds now; 0: none, or it is not known yet.

        Raises:
            QueueFull: the queue has a quota, and no room for them.
            OrderError: the queue has another order.
            ChecksBypassed: the queue is smart, and the item does not pass through its checks.
            QueueRenamed: the queue has another name now.
            OtherCodec: the queue is registered with another codec. NestedQueue: it can't be registered.
            FormatError: the last index is higher than any that an enqueue gives.
        """
        layout, known = self._layout, self._layout.known
        if known.made.is_smart and self._entry == "plain":
            raise bypassed(layout)  # the first smart enqueue has not marked the queue yet
        if self._settings is not None:
            self.unregistered = await must_register(self._tr, layout, await self._settings)
        key = b"" if self._last is None else bytes(await self._last)
        if self._marks is None and key in (layout.high_water_mark_key, layout.subscribed_key, layout.type_key):
            known.has_high_water_mark = True
            self._begin(marked=True)
            key = bytes(await self._last)
        marks = {} if self._marks is None else dict(zip(*await self._marks, strict=True))
        kind, mark, subscribed = map(marks.get, (layout.type_key, layout.high_water_mark_key, layout.subscribed_key))
        known.subscribed, known.exclusive_all = (False, None) if subscribed is None else wants_arrivals(subscribed)
        if kind is not None:
            self.terms = terms_of(layout, kind)
            await check_terms(self._tr, layout, self.terms, self._entry, wanted)
        self.unmarked = self._entry == "smart" and not self.terms.smart
        given = _UNMARKED if mark is None else HighWaterMark.stored(mark)
        if self._order is not None:
            index = await self._in_order(given)
        elif (at := layout.index_of(key)) is None or given.order is not None:
            told = given if marks else await read_high_water_mark(self._tr, layout)
            raise self._refusal(told.order or "unknown")
        elif at > MAX_INDEX:
            raise _not_given(at, layout, key)
        elif given.index > MAX_INDEX:
            raise _not_given(given.index, layout, layout.high_water_mark_key)
        else:
            index = max(at, given.index)
        if self.unregistered and not self._asks:
            self.write()
        return index

    async def _in_order(self, given: HighWaterMark) -> int:
        if given.order == self._order:
            if given.index > MAX_INDEX:
                raise _not_given(given.index, self._layout, self._layout.high_water_mark_key)
            return given.index
        if given.order is not None or given.index:
            raise self._refusal(given.order)
        # No item was enqueued in this order yet. This is a snapshot read too: if two transactions give a new queue two
        # different orders at the same instant, neither fails, and `check` reports it.
        if await rows(self._tr.snapshot, self._layout.begin, self._layout.end, limit=1):
            raise self._refusal(None)
        return 0

    def _refusal(self, order: str | None) -> OrderError:
        def told(name: str | None) -> str:
            return "first in, first out" if name is None else f"in the order {name!r}"

        return OrderError(
            f"The items of {self._layout.describe()} stand {told(order)}, and nothing can be enqueued there"
            f" {told(self._order)}. Use the queue with its own order, or another queue."
        )


def _not_given(index: int, layout: Layout, key: bytes) -> FormatError:
    """Return the error for an index that no enqueue gave. The next one would leave the range of the items.

    Args:
        key: the key of the item, or of the high-water mark, that has it.
    """
    remedy = (
        "Export the items, clear the queue, and import them."
        if key == layout.high_water_mark_key
        else f"Remove the item {layout.position_of(key).text}: cancel it."
    )
    return FormatError(
        f"The key {key!r} of {layout.describe()} has the index {index:,}, which fdbqueue did not give: there is no"
        f" place behind it. {remedy}"
    )


async def check_terms(
    tr: Transaction, layout: Layout, terms: QueueTerms, entry: Entry | Literal["session"], wanted: int = 0
) -> None:
    """Check whether items may enter on the terms of a queue. Every way in asks here, unless the queue has none.

    Args:
        entry: how they enter; "session": a layer numbers them.
        wanted: how many there are; 0: that is not known yet.

    Raises:
        QueueFull: the queue has a quota, and no room for them.
        ChecksBypassed: the queue is smart, and they do not pass its checks. Or it has a quota, and they are smart, or
            in sessions.
        QueueRenamed: the queue has another name now.
    """
    terms.check()
    if entry == "session":
        if terms.quota is not None:
            raise without_quota(layout)
    elif terms.smart:
        if entry == "plain":
            raise bypassed(layout)
    elif entry == "smart":
        raise ChecksBypassed(
            f"The queue {layout.describe()} has a quota, and a smart queue has a limit of its own. Nothing was written."
            " Remove the quota: Queue.set_quota(db, None); and give SmartQueue its limit=Limit(...)."
        )
    elif terms.quota is not None and entry == "plain" and wanted:
        await check_room(tr, layout, terms.quota, wanted)


async def register(tr: Transaction, layout: Layout) -> bool:
    """Register a queue unless this object knows that it is registered; for layers that number their items themselves.

    Returns False if it knew that. It knows it for a second, and then it looks again.

    Raises:
        OtherCodec: it is registered with another codec. QueueRenamed: it has another name now. ChecksBypassed: it has
            a quota, which does not count such items.

    *Cost:* one read; four more in parallel if it did not know that.
    """
    known = layout.known.has_record and layout.known.relies(tr)
    settings = None if known or layout.known.registration is None else started(look(tr, layout))
    if (kind := await value_of(tr.snapshot.get(layout.type_key))).present():
        await check_terms(tr, layout, terms_of(layout, bytes(kind)), "session")
    if settings is not None and await must_register(tr, layout, await settings):
        write_about(tr, layout)
    return not known


async def refuse_smart(tr: Transaction, layout: Layout) -> None:
    """Refuse a smart queue, before anything is enqueued into it without checks.

    An enqueue need not call this: its `Admission` finds out. It is for callers that ask early, such as a job.

    Raises:
        ChecksBypassed: the queue is smart. QueueRenamed: it has another name now.

    *Conflicts:* none. *Cost:* one read.
    """
    if (kind := await value_of(tr.snapshot.get(layout.type_key))).present():
        await check_terms(tr, layout, terms_of(layout, bytes(kind)), "plain")


async def refuse_plain_items(tr: Transaction, layout: Layout) -> None:
    """Refuse to make a queue smart that has items without checks: no index names them, so no newcomer would meet them.

    An older version did not mark a smart queue. Its items have index entries, and such a queue is not refused.

    Raises:
        ChecksBypassed: it has such items.

    *Conflicts:* none. *Cost:* four reads in parallel, and one more for an older version's queue.
    """
    view = tr.snapshot
    places = (layout.available, layout.leased, layout.delayed, layout.dead)
    asked = [started(rows(view, place.begin, place.end, limit=1)) for place in places]
    found = False
    for one in asked:
        found = bool(await one) or found
    if not found:
        return
    index = layout.smart.range()
    if not await rows(view, index.start, index.stop, limit=1):
        raise ChecksBypassed(
            f"The queue {layout.describe()} has items that were enqueued without checks, and a smart queue would not"
            " see them. Nothing was written. Take them out first, with the leased, delayed and dead ones, or use"
            " another queue for SmartQueue."
        )


def without_quota(layout: Layout) -> ChecksBypassed:
    """Return the error of an enqueue into a session of a queue with a quota."""
    return ChecksBypassed(
        f"The queue {layout.describe()} has a quota, which does not count items in sessions. Nothing was written."
        " Remove the quota: Queue.set_quota(db, None); or use another queue."
    )


def bypassed(layout: Layout) -> ChecksBypassed:
    """Return the error of an enqueue that would bypass a smart queue's checks."""
    return ChecksBypassed(
        f"The queue {layout.describe()} is smart: what is enqueued as it is would bypass its checks, limits and index."
        " Enqueue by fdbqueue.layers.SmartQueue(...).enqueue or enqueue_many, and from Spark with the option"
        " smart. Dequeue, lease and browse are as ever."
    )


async def _last_row(tr: Transaction, begin: bytes, end: bytes) -> bytes:
    found = await rows(tr.snapshot, begin, end, limit=1, reverse=True)
    return found[0].key if found else b""


def give_up_to(tr: Transaction, layout: Layout, index: int, order: str | None) -> None:
    """Note that this transaction's items get the indices up to `index`.

    In a first in, first out queue the items' own keys say so. It is an atomic operation without a read, so that
    enqueues don't conflict. Concurrent enqueues that read the same mark share indices, and the random parts of their
    items decide.
    """
    if order is not None:
        tr.byte_max(layout.high_water_mark_key, HighWaterMark(index, order).packed())


def mark_smart(tr: Transaction, layout: Layout) -> None:
    """Mark a queue as smart. It is a blind write, so that the first smart enqueues do not conflict over it."""
    tr.set(layout.type_key, SMART)
    layout.known.note_writing(tr)


async def ask_smartness(tr: Transaction, layout: Layout, *, smart: bool) -> bool:
    """Return whether items may enter, after smart checks or without. The first that may after them mark the queue.

    For layers whose items are under keys of their own. An item without checks is refused if the queue is smart.

    Raises:
        QueueRenamed: the queue has another name now.

    *Conflicts:* none. *Cost:* a look a second; one read more if the queue is smart and these items pass no checks.
    """
    known = layout.known
    if known.relies(tr) and known.is_plain is not smart:
        return True
    await look(tr, layout)
    if smart and known.is_plain:
        mark_smart(tr, layout)
    elif not smart and not known.is_plain:
        terms = await read_terms(tr.snapshot, layout)
        terms.check()
        return not terms.smart
    return True
