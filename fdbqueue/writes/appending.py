"""Write the keys of new items: the one place that decides what an item writes that enters a queue, and counts it.

Every way in passes through `append_items`, be it an enqueue, a session's, a row of Spark or an import (docs/adr/0174).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.base.beside import KeptBeside
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.optional import set_rows
from fdbqueue.engine.steps import value_of
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.moves.admission import Admission, Entry, check_terms, give_up_to, refuse_plain_items
from fdbqueue.moves.moves import Moves, Span, announce
from fdbqueue.stored.catalogue import forget_queue
from fdbqueue.stored.counters import as_count, count_levels
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import keys_in_a_row
from fdbqueue.stored.settings import NO_TERMS, QueueTerms

_ONE = as_count(1)


def append_items(
    tr: Transaction,
    layout: Layout,
    index: int,
    random: bytes,
    stored: Sequence[bytes],
    ranks: Sequence[int] | None = None,
    large: Iterable[tuple[int, Sequence[bytes]]] = (),
    order: str | None = None,
    *,
    notes: Sequence[Notes] | None = None,
    moves: Moves | None = None,
) -> None:
    """Write new items under consecutive indices: their keys and chunks, the counters, the mark and the arrivals.

    Args:
        layout: the queue's layout, after a `Admission` or `reserve` told it about subscriptions.
        index: the index of the first item.
        random: the random part of all their positions.
        stored: their envelopes, in order; at least one.
        ranks: the rank of each item, if the queue has an order.
        large: the chunks of large items, each with the item's place in `stored`.
        order: the name of the queue's order. None: it has none, or `reserve` has already raised the high-water mark.
        notes: the notes of each item, which also say in which state it enters; None: all are plain.
        moves: with notes, the transaction's moves in this queue. The caller finishes them. None: there are no others.

    *Conflicts:* none: the keys are new, and everything else is atomic. *Cost:* one write for each item and chunk, and
    one to three more. With notes, one more for each time and dependent key.
    """
    amount = len(stored)
    if ranks is None:
        keys = keys_in_a_row(layout.prefix, index, amount, random)
    else:
        keys = layout.item_keys(index, amount, random, ranks)
    for at, chunks in large:
        position = Position(index + at, random, rank=None if ranks is None else ranks[at])
        write_chunks(tr, layout, position, chunks)
    if order is not None:
        give_up_to(tr, layout, index + amount - 1, order)
    if notes is not None:
        own, cut = Moves(tr, layout) if moves is None else moves, len(layout.prefix)
        for key, one, noted in zip(keys, stored, notes, strict=True):
            if noted.visible_at_us or noted.token or noted.died_at_us or noted.beside:
                own.enter(key[cut:], one, noted)
            else:
                own.enter_new(key[cut:], one, noted)
        own.tally("enqueued", amount)
        if moves is None:
            own.finish()
        return
    asks_marker(tr)
    if amount == 1:
        tr.set(keys[0], stored[0])  # the price of `set_rows` pays off from two items on
    else:
        set_rows(tr, keys, stored)
    tr.add(layout.enqueued_key, _ONE if amount == 1 else as_count(amount))
    if ranks is not None:
        count_levels(tr, layout, Counter(ranks))
    if layout.known.subscribed:
        announce(tr, layout, spans_of(layout, keys, ranks), enqueued=amount)


def append_item(
    tr: Transaction,
    layout: Layout,
    position: Position,
    stored: bytes,
    chunks: Sequence[bytes],
    notes: Notes,
    moves: Moves | None = None,
) -> None:
    """Write one new item at a position, as `append_items` does."""
    ranks = None if position.rank is None else (position.rank,)
    where = (tr, layout, position.index, position.random)
    append_items(*where, (stored,), ranks, ((0, chunks),) if chunks else (), notes=(notes,), moves=moves)


def write_chunks(tr: Transaction, layout: Layout, position: Position, chunks: Iterable[bytes]) -> None:
    """Write the chunks of a large item."""
    for number, chunk in enumerate(chunks):
        tr.set(layout.chunk_key(position, number), chunk)


def spans_of(layout: Layout, keys: Sequence[bytes], ranks: Sequence[int] | None) -> list[Span]:
    """Return the packed positions of the first and the last item; a pair for each rank if the queue has an order."""
    packed = layout.available.packed
    if ranks is None:
        return [(packed(keys[0]), packed(keys[-1]))]
    ends: dict[int, tuple[bytes, bytes]] = {}
    for key, rank in zip(keys, ranks, strict=True):
        ends[rank] = (ends[rank][0] if rank in ends else key, key)
    return [(packed(first), packed(last)) for first, last in ends.values()]


# The indices of the items that one of a caller's transactions enqueues in several calls.
#
# The first call reads the last index. The items that the transaction itself enqueues after that are counted here. All
# objects of one queue count together, so that their items keep the order of the calls. What waits writes nothing, and
# what writes does not wait. So a call that refuses in between has written nothing, and no other call comes between.


@dataclass(slots=True)
class _Next:
    """The place of a transaction's next enqueue.

    `attempt` is the future of the transaction's versionstamp. It becomes ready when the transaction commits. It becomes
    ready with an error when the transaction is reset, directly or through `on_error`. The transaction then reads a
    newer version, so the next enqueue must read the last index again.
    """

    index: int
    order: str | None
    entry: Entry
    layout: Layout
    """The layout that read the last index. That read also told it whether there are subscriptions."""
    terms: QueueTerms
    """The queue's terms."""
    attempt: Any = None
    """None: no index is taken yet."""


_open: KeptBeside[dict[bytes, _Next]] = KeptBeside(dict)
"""By transaction, then by the prefix of a queue."""


async def reserve(tr: Transaction, layout: Layout, wanted: int, order: str | None, *, entry: Entry = "plain") -> int:
    """Reserve `wanted` indices and return the first one. It raises what `ask_to_enter` raises."""
    take = await ask_to_enter(tr, layout, wanted, order, entry=entry)
    return take()


async def ask_to_enter(
    tr: Transaction, layout: Layout, wanted: int, order: str | None, *, entry: Entry = "plain"
) -> Callable[[], int]:
    """Ask whether items may enter. It writes nothing. Return what takes `wanted` indices, and returns the first one.

    That function writes, and does not wait: it also registers the queue, and marks it as smart.

    Raises:
        OrderError: the queue's items have another order.
        ChecksBypassed: the queue is smart, and the items do not pass through its checks. Or they do, and the queue
            has items that did not.
        QueueFull: the queue has a quota, and no room for the items.
        OtherCodec, NestedQueue, QueueRenamed, FormatError: as `Admission.read`.
    """
    of_queues = _open.of(tr)
    following = of_queues.get(layout.prefix)
    if following is not None and not following.attempt.is_ready():
        # A cluster's client runs its requests one after the other, in its own thread: the error of a `reset` may still
        # be on its way to `attempt`. It answers this request behind that, without a network call.
        await value_of(tr.get_approximate_size())
    admission = None
    if following is None or (following.order, following.entry) != (order, entry) or following.attempt.is_ready():
        admission = Admission(tr, layout, order, entry=entry, composed=True, asks=True)
        index = 1 + await admission.steps(wanted)
        if admission.unmarked:
            await refuse_plain_items(tr, layout)
        following = _Next(index, order, entry, layout, admission.terms)
    elif following.terms is not NO_TERMS:
        await check_terms(tr, layout, following.terms, entry, wanted)
    return partial(_take, tr, layout, of_queues, wanted, following, admission)


def _take(
    tr: Transaction,
    layout: Layout,
    of_queues: dict[bytes, _Next],
    wanted: int,
    following: _Next,
    admission: Admission | None,
) -> int:
    """Take indices, behind those that the transaction's other calls have taken since the read."""
    if admission is not None:
        admission.write()
        taken = of_queues.get(layout.prefix)
        if taken is not None and not taken.attempt.is_ready():
            following.index = max(following.index, taken.index)
        of_queues[layout.prefix] = following
        following.attempt = tr.get_versionstamp()
    layout.known.subscribed, layout.known.exclusive_all = (
        following.layout.known.subscribed,
        following.layout.known.exclusive_all,
    )
    index = following.index
    following.index += wanted
    if following.order is not None:
        give_up_to(tr, layout, following.index - 1, following.order)
    return index


def clear_keys(tr: Transaction, layout: Layout) -> None:
    """Remove all keys of a queue, also of one that is part of another."""
    asks_marker(tr)
    tr.clear_range(*layout.whole_range())
    forget_queue(tr, layout)
    forget(tr, layout)


def forget(tr: Transaction, layout: Layout) -> None:
    """Make the next call read the last index again, as the transaction has cleared the queue."""
    _open.of(tr).pop(layout.prefix, None)
