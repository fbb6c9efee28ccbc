"""Quotas: how many items, or about how many bytes, a queue may have.

A quota is stored where each enqueue reads the queue's type (`admission.py`), so that all processes know it at
once, and an enqueue of a queue without quota pays nothing.

An enqueue of a queue with a quota of items also reads the counters, by snapshot: with plain reads every enqueue would
conflict with all others. So the quota may be exceeded, by the items of other enqueueing transactions that are open at
the same time. Of n producers that each enqueue one item, the last ones to read see the same number, and exceed it by
n - 1 at most.

Nothing counts a queue's bytes: that would cost every enqueue and every dequeue a write. An enqueue of a queue with a
quota of bytes asks the database how large the queue's keys are. A cluster estimates that, and the embedded engine reads
them. So a process asks again only after 20 times as long as the last answer took, and believes that answer until then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.engine.waiting import until_changed
from fdbqueue.errors import QueueFull
from fdbqueue.stored.counters import read_counts
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import Quota, read_terms

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
