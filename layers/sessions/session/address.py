"""The address of a session's item: how outcomes, groups and completions name it, beside the queue's plain items."""

from __future__ import annotations

from typing import Any, NamedTuple

from fdbqueue import Position
from fdbqueue.engine.keys import NOT_A_TUPLE, below
from fdbqueue.lowlevel import Layout, Transaction, fdb_tuple, rows
from fdbqueue.stored.positions import RANDOM_BYTES, rank_of
from fdbqueue.stored.settings import read_high_water_mark

REMEDIES = {
    "cancel": "Sessions.cancel(db, session, position)",
    "get": "Sessions.get(db, session, position)",
    "purge": "Sessions.purge(db, session, position)",
    "redrive": "Sessions.redrive(db, session, position)",
    "reschedule": "Sessions.reschedule(db, session, position)",
    "skip": "Sessions.skip(db, session)",
    "update": "Sessions.update(db, session, position)",
}
"""The call of `Sessions` that does the same."""


class SessionAddress(NamedTuple):
    """How an item of a session is named where its outcome and its group are kept, and by its completion.

    It is stored as a position: the session's generation for the index, and the rest for the random part.
    """

    generation: int
    """The session's generation."""
    name: bytes
    """The session's packed name."""
    packed: bytes
    """The item's packed position in the session."""

    @property
    def position(self) -> Position:
        """The address as it is stored."""
        return Position(self.generation, len(self.name).to_bytes(2, "big") + self.name + self.packed)

    @classmethod
    def of(cls, position: Position) -> SessionAddress:
        """Return the address that a position is."""
        size = int.from_bytes(position.random[:2], "big") + 2
        return cls(position.index, position.random[2:size], position.random[size:])


def session_in(position: Position) -> tuple[Any, bytes] | None:
    """Return the session that a position names, and the item's packed position there; None if it is no address."""
    if position.rank is not None or len(position.random) <= RANDOM_BYTES:
        return None
    _, name, packed = SessionAddress.of(position)
    try:
        (given,) = fdb_tuple.unpack(name)
        is_address = fdb_tuple.pack((given,)) == name and rank_of(packed) is not None
    except NOT_A_TUPLE:
        return None
    return (given, packed) if is_address else None


async def refuse_of_session(tr: Transaction, layout: Layout, missing: list[Position], verb: str) -> None:
    """Refuse positions that are not there among the plain items, if they are those of items in sessions.

    Args:
        missing: the positions.
        verb: the method of `Sessions` to use, one of `REMEDIES`.

    Raises:
        ValueError: one is the position of an item in a session.

    *Conflicts:* none. *Cost:* two reads if a position has a rank, else none.
    """
    for position in missing:
        if (named := session_in(position)) is not None:
            raise ValueError(
                f"{position.text} is an item of the session {named[0]!r} of {layout.describe()}, and none of the"
                f" queue's plain items. Use {REMEDIES[verb]}."
            )
    ranked = next((position for position in missing if position.rank is not None), None)
    if ranked is None or not await rows(tr.snapshot, *below(layout.space["session"].key()), limit=1):
        return
    if not (await read_high_water_mark(tr, layout)).order:
        raise ValueError(
            f"{ranked.text} has a level, and the plain items of {layout.describe()} have none: it is an item of a"
            f" session. Name the session, too: {REMEDIES[verb]}."
        )
