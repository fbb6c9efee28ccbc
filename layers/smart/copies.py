"""Copies: the items that a recipient must fetch, the names that it confirms, and the registry of recipients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fdbqueue import Item, Position
from fdbqueue.lowlevel import Layout, Subspace, Transaction, locate, pack, value_of

from ..leases.transitions import Transitions

# The registry of the recipients that fetch copies of a smart queue's items.

MOST_RECIPIENTS = 32
"""Each recipient takes space in the notes of every item that it must confirm."""


class RecipientRegistry(msgspec.Struct, forbid_unknown_fields=True):
    """The value stored under ``("recipients",)``."""

    last: int = 0
    """The highest number assigned so far."""
    numbers: dict[str, int] = {}
    """Numbers by name. A number is assigned only once."""


_decoder = msgspec.msgpack.Decoder(RecipientRegistry)


def recipient_parts(layout: Layout, numbers: list[int]) -> tuple[bytes, ...]:
    """Return the parts that name these recipients in the notes of an item."""
    return tuple(layout.part_of(space[number]) for number in numbers for space in (layout.copies, layout.unsent))


# Copies: the items that a recipient must fetch, and the names that it confirms.

SEVERAL = b"several"
"""Stored in place of a packed position; no packed position begins with this byte."""
SENT_BEFORE = b"again"
"""The value of an unsent copy that a reset has made so. That of a copy that was never fetched is empty."""


@dataclass(frozen=True, slots=True, repr=False)
class Copy(Item):
    """A copy of an item, as one recipient has fetched it."""

    name: str = field(default="", kw_only=True)
    """Names the copy in a confirmation: the item's position, and its version if the item has got other values."""


class NamedCopies(NamedTuple):
    """The copy that a confirmation names."""

    position: Position
    version: bytes | None
    """Version of the copy; None: the copy fetched last."""


class Copies:
    """The copies of one queue's items, and the registry of its recipients."""

    __slots__ = ("_layout",)

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    async def registry(self, tr: Transaction) -> RecipientRegistry:
        """Read the registry.

        This is a plain read on purpose. Otherwise an enqueue could miss a registration that commits before it, and
        leave that recipient out. Registrations are rare, and only they write the key.
        """
        value = await value_of(tr.get(self._layout.recipients_key))
        if not value.present():
            return RecipientRegistry()
        return self._layout.decode(self._layout.recipients_key, bytes(value), _decoder.decode, what="recipients")

    def register(self, tr: Transaction, registry: RecipientRegistry) -> None:
        """Write the registry."""
        tr.set(self._layout.recipients_key, msgspec.msgpack.encode(registry))

    async def all_numbers(self, tr: Transaction) -> list[int]:
        """Return the numbers of all registered recipients."""
        return sorted((await self.registry(tr)).numbers.values())

    def key(self, space: Subspace, number: int, packed: bytes = b"") -> bytes:
        """Return a recipient's key of one kind for an item; without one, the prefix of all these."""
        prefix: bytes = space[number].key()
        return prefix + packed

    async def numbers(self, tr: Transaction, recipient: str) -> tuple[int, list[int]]:
        """Return a recipient's number, and the numbers of the others.

        Raises:
            TypeError: the name is not a str. ValueError: the recipient is not registered.
        """
        check_recipient(recipient)
        registry = await self.registry(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            there = ", ".join(sorted(registry.numbers)) or "nobody is"
            raise ValueError(
                f"{recipient!r} is not registered with {self._layout.describe()}: {there}. Register it first."
            )
        return number, [other for other in registry.numbers.values() if other != number]

    def known_key(self, number: int) -> bytes:
        """Return the key that records the fetched and unconfirmed copies of a recipient."""
        key: bytes = self._layout.fetched.pack((number,))
        return key

    async def state(self, tr: Transaction, number: int, packed: bytes) -> tuple[bytes | None, bytes | None]:
        """Return a copy's version, None if no confirmation is needed, and the value of its unsent key, or None."""
        reads = [tr.get(self.key(space, number, packed)) for space in (self._layout.copies, self._layout.unsent)]
        copy, unsent = await value_of(reads[0]), await value_of(reads[1])
        return bytes(copy) if copy.present() else None, bytes(unsent) if unsent.present() else None

    async def current(self, tr: Transaction, number: int, packed: bytes) -> bytes | None:
        """Return the version of a copy that the recipient has fetched at least once and has still to confirm.

        None if there is no such copy: it is confirmed, or was never fetched with these values.
        """
        version, unsent = await self.state(tr, number, packed)
        return version if unsent in (None, SENT_BEFORE) else None

    async def is_fetched(self, tr: Transaction, number: int, packed: bytes) -> bool:
        """Return whether a copy is fetched and not confirmed."""
        version, unsent = await self.state(tr, number, packed)
        return version is not None and unsent is None

    async def note_fetched(self, tr: Transaction, number: int, copies: list[Copy], known: bytes) -> None:
        """Record the only copy that is fetched and not confirmed, or that there are several."""
        packed = pack(copies[0].position)
        is_alone = len(copies) == 1 and known != SEVERAL
        if is_alone and known and known != packed:
            is_alone = not await self.is_fetched(tr, number, known)
        noted = packed if is_alone else SEVERAL
        if noted != known:
            tr.set(self.known_key(number), noted)

    async def remove(self, tr: Transaction, packed: bytes, counter: str) -> bool:
        """Remove an item in any state; return whether it was there. The holder of a leased item loses its lease."""
        # Plain reads: a concurrent transaction that moves or takes the item conflicts with this one.
        for item in await locate(tr, self._layout, [packed]):
            moves = Transitions(tr, self._layout)
            notes, is_readable = (await moves.read_notes({packed: item.stored}))[packed]
            moves.leave(item.state, packed, notes)
            moves.vanish(packed, item.stored, counter, notes=notes, is_readable=is_readable)
            await moves.settle()
            moves.finish()
            return True
        return False


def check_recipient(name: object) -> None:
    """Check the name of a recipient.

    Raises:
        TypeError: it is not a str.
    """
    if not isinstance(name, str):
        raise TypeError(f"A recipient is named by a str, not by {name!r}.")


def named_by(copy: object, position: object) -> NamedCopies | None:
    """Return the copy that a confirmation names; None if it names none.

    Raises:
        TypeError, ValueError: an argument is no copy, name of a copy, or position; or both are given.
    """
    if copy is not None and position is not None:
        raise ValueError("A confirmation names its copy by `copy` or by `position`, not by both.")
    if position is not None:
        if not isinstance(position, Position):
            raise TypeError(f"position is an item's Position, not {position!r}; a copy's name is given as `copy`.")
        return NamedCopies(position, None)
    if copy is None:
        return None
    name = copy.name if isinstance(copy, Copy) else copy
    if not isinstance(name, str):
        raise TypeError(f"What a confirmation names is a Copy or its name, not {copy!r}.")
    text, _, version = name.partition("@")
    try:
        return NamedCopies(Position.parse(text), bytes.fromhex(version))
    except ValueError as error:
        raise ValueError(f"{name!r} is not the name of a copy: give `Copy.name`.") from error


def said(what: object) -> tuple[str, NamedCopies | None]:
    """Return the recipient and the copy in the result of a message type's `confirms`.

    Raises:
        TypeError, ValueError: the result is neither a recipient nor a pair of a recipient and a copy.
    """
    recipient, copy = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if not isinstance(recipient, str):
        raise TypeError(f"it returned {what!r}, and neither a recipient nor a pair of a recipient and a copy's name")
    return recipient, named_by(None, copy) if isinstance(copy, Position) else named_by(copy, None)
