"""Mark items that were just enqueued, by any layer, in the same transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from fdbqueue import Position
from fdbqueue.lowlevel import Layout, Notes, Place, Transaction, notes_of, pack, value_of, with_notes
from fdbqueue.stored.own_values import of_item

if TYPE_CHECKING:
    from ..sessions import Sessions


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


def sessions_of(layer: object) -> Sessions | None:
    """Return the sessions that a layer's items go to; None: they are the queue's plain items.

    `Sessions` have them as `sessions`, and so has a layer of them, as `Results`. A stranger's layer may be one, too.
    """
    return getattr(layer, "sessions", None)


async def entered_at(tr: Transaction, target: Any, layout: Layout, position: Position, session: Any) -> Entered:
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
    tr: Transaction, layout: Layout, packed: bytes, *, delayed: bool = False, **changes: Any
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
            notes = structs.replace(of_item(layout, packed, stored, notes_of), **changes)
            tr.set(place.key(packed), with_notes(stored, notes))
            return Marked(state, notes)
    return None
