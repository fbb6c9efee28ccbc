"""Write the keys of new items: the one place that decides what an enqueue without notes writes.

`Queue.enqueue`, bulk loads, the shared enqueues of `layers/staged` and Spark's sink all write through `append_items`.
Items with notes (leases, delays, subscriptions) are written by the transitions of `layers/leases`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fdbqueue.base.position import Position
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.marker import asks_marker
from fdbqueue.engine.set_rows import set_rows
from fdbqueue.moves.admission import give_up_to
from fdbqueue.moves.arrivals import Span, announce
from fdbqueue.stored.counters import as_count, count_levels
from fdbqueue.stored.layout import Layout

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

    *Conflicts:* none: the keys are new, and everything else is atomic. *Cost:* one write for each item and chunk, and
    one to three more.
    """
    asks_marker(tr)
    amount = len(stored)
    keys = layout.item_keys(index, amount, random, ranks)
    if amount == 1:
        tr.set(keys[0], stored[0])  # the price of `set_rows` pays off from two items on
    else:
        set_rows(tr, keys, stored)
    for at, chunks in large:
        position = Position(index + at, random, rank=None if ranks is None else ranks[at])
        write_chunks(tr, layout, position, chunks)
    if order is not None:
        give_up_to(tr, layout, index + amount - 1, order)
    tr.add(layout.enqueued_key, _ONE if amount == 1 else as_count(amount))
    if ranks is not None:
        count_levels(tr, layout, Counter(ranks))
    if layout.known.subscribed:
        announce(tr, layout, spans_of(layout, keys, ranks), enqueued=amount)


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
