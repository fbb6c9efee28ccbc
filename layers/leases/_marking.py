"""Mark items that were just enqueued, by any layer, in the same transaction."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from fdbqueue.lowlevel import Layout, Notes, Steps, Transaction, notes_of, with_notes


def mark(
    tr: Transaction, layout: Layout, packed: bytes, *, delayed: bool = False, **changes: Any
) -> Steps[Notes | None]:
    """Change the notes of an item, wherever it is in its queue. Return them; None if it is not there.

    An item that this transaction enqueued is read from the transaction itself, without a round trip. An item that was
    there before is read with a conflict: of this transaction and one that moves the item, one commits.

    Args:
        delayed: whether the item is probably delayed.
        changes: the changes by name.
    """
    places = (
        [layout.delayed, layout.available, layout.leased]
        if delayed
        else [
            layout.available,
            layout.delayed,
            layout.leased,
        ]
    )
    for place in places:
        value = yield tr.get(place.key(packed))
        if value.present():
            stored = bytes(value)
            notes = structs.replace(notes_of(stored), **changes)
            tr.set(place.key(packed), with_notes(stored, notes))
            return notes
    return None
