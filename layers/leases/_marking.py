"""Mark items that were just enqueued, by any layer, in the same transaction."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import structs

from fdbqueue.lowlevel import Layout, Notes, Place, Steps, Transaction, notes_of, with_notes


class Marked(NamedTuple):
    """An item that was marked."""

    state: str
    """The place of its key: "available", "delayed" or "leased"."""
    notes: Notes
    """Its notes now."""


def mark(
    tr: Transaction, layout: Layout, packed: bytes, *, delayed: bool = False, **changes: Any
) -> Steps[Marked | None]:
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
        value = yield tr.get(place.key(packed))
        if value.present():
            stored = bytes(value)
            notes = structs.replace(notes_of(stored), **changes)
            tr.set(place.key(packed), with_notes(stored, notes))
            return Marked(state, notes)
    return None
