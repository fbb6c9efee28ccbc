"""Copies: what a recipient has still to fetch, and to confirm, and how a confirmation names one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fdbqueue import Item, Position
from fdbqueue.lowlevel import Layout, Steps, Subspace, Transaction, notes_of, pack

from ..leases._transitions import Moves
from ._recipients import Recipients
from ._scanning import locate

SEVERAL = b"several"
"""Stored in place of a packed position, which begins with another byte."""


@dataclass(frozen=True, slots=True)
class Copy(Item):
    """A copy of an item, as one recipient has fetched it."""

    name: str = field(default="", kw_only=True)
    """What a confirmation of it says: the item's position, and its version if it has taken over other values."""


class Named(NamedTuple):
    """Which copy a confirmation means."""

    position: Position
    version: bytes | None
    """None: the one that was fetched last."""


class Copies:
    """The copies of one queue's items."""

    __slots__ = ("_layout", "recipients")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.recipients = Recipients(layout)
        """Who is registered."""

    def prefix(self, space: Subspace, number: int) -> bytes:
        """Return what a recipient's keys of one kind begin with."""
        prefix: bytes = space[number].key()
        return prefix

    def key(self, space: Subspace, number: int, packed: bytes) -> bytes:
        """Return a recipient's key of one kind for an item."""
        return self.prefix(space, number) + packed

    def numbers(self, tr: Transaction, recipient: str) -> Steps[tuple[int, list[int]]]:
        """Return a recipient's number, and those of the others.

        Raises:
            TypeError: its name is no str. ValueError: it is not registered.
        """
        check_recipient(recipient)
        registry = yield from self.recipients.read(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            there = ", ".join(sorted(registry.numbers)) or "nobody is"
            raise ValueError(
                f"{recipient!r} is not registered with {self._layout.describe()}: {there}. Register it first."
            )
        return number, [other for other in registry.numbers.values() if other != number]

    def known_key(self, number: int) -> bytes:
        """Return the key of what a recipient is known to have fetched and not confirmed."""
        key: bytes = self._layout.fetched.pack((number,))
        return key

    def state(self, tr: Transaction, number: int, packed: bytes) -> Steps[tuple[bytes | None, bool]]:
        """Return a copy's version, None if it is not to be confirmed any more, and whether it is to be fetched."""
        reads = [tr.get(self.key(space, number, packed)) for space in (self._layout.copies, self._layout.unsent)]
        copy, unsent = (yield reads[0]), (yield reads[1])
        return bytes(copy) if copy.present() else None, unsent.present()

    def is_fetched(self, tr: Transaction, number: int, packed: bytes) -> Steps[bool]:
        """Return whether a copy is fetched and not confirmed."""
        version, unsent = yield from self.state(tr, number, packed)
        return version is not None and not unsent

    def note_fetched(self, tr: Transaction, number: int, copies: list[Copy], known: bytes | None) -> Steps[None]:
        """Note which copy is the only one that is fetched and not confirmed, or that there are several."""
        packed = pack(copies[0].position)
        is_alone = len(copies) == 1 and known != SEVERAL
        if is_alone and known is not None and known != packed:
            is_alone = not (yield from self.is_fetched(tr, number, known))
        noted = packed if is_alone else SEVERAL
        if noted != known:
            tr.set(self.known_key(number), noted)

    def remove(self, tr: Transaction, packed: bytes, counter: str) -> Steps[bool]:
        """Remove an item from its place, whatever its state. The holder of a leased one finds its lease lost."""
        # Plain reads: a transaction that moves or takes the item at the same time conflicts with this one.
        for item in (yield from locate(tr, self._layout, [packed])):
            moves = Moves(tr, self._layout)
            moves.leave(item.state, packed, notes_of(item.stored))
            moves.vanish(packed, item.stored, counter)
            moves.finish()
            return True
        return False


def check_recipient(name: object) -> None:
    """Refuse what is no recipient's name.

    Raises:
        TypeError: it is no str.
    """
    if not isinstance(name, str):
        raise TypeError(f"A recipient's name is a str, not {name!r}.")


def named_by(copy: object, position: object) -> Named | None:
    """Return which copy is meant; None: it is not said.

    Raises:
        TypeError, ValueError: it is no copy, no name of one, no position, or both are given.
    """
    if copy is not None and position is not None:
        raise ValueError("A confirmation names its copy by `copy` or by `position`, not by both.")
    if position is not None:
        if not isinstance(position, Position):
            raise TypeError(f"position is an item's Position, not {position!r}; a copy's name is given as `copy`.")
        return Named(position, None)
    if copy is None:
        return None
    name = copy.name if isinstance(copy, Copy) else copy
    if not isinstance(name, str):
        raise TypeError(f"What a confirmation names is a Copy or its name, not {copy!r}.")
    text, _, version = name.partition("@")
    try:
        return Named(Position.parse(text), bytes.fromhex(version))
    except ValueError as error:
        raise ValueError(f"{name!r} is no name of a copy, as `Copy.name` has it.") from error


def said(what: object) -> tuple[str, Named | None]:
    """Return recipient and copy from what the `confirms` of a message type returned.

    Raises:
        TypeError, ValueError: it is neither a recipient nor a pair of a recipient and a copy.
    """
    recipient, copy = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if not isinstance(recipient, str):
        raise TypeError(f"it returned {what!r}, and neither a recipient nor a pair of a recipient and a copy's name")
    return recipient, named_by(None, copy) if isinstance(copy, Position) else named_by(copy, None)
