"""The index of a smart queue: its items by type and relation key.

An entry's key is ``("smart", type, key, index, random)``. The item's notes name it (`Notes.beside`), so a transaction
that takes the item out, even a plain dequeue or an ack, also clears the entry. The relation key is packed into one
bytes element. So the position behind it can be found without decoding it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue import CodecError, FormatError
from fdbqueue.engine.keys import is_within, within
from fdbqueue.lowlevel import CODEC_ERRORS, Layout, fdb_tuple
from fdbqueue.stored.layout import is_packed
from fdbqueue.stored.own_rows import parts_of, told_foreign

from ._types import Key, MessageType, Sees


@dataclass(frozen=True, slots=True)
class Span:
    """The entries of one type, or of one relation key of it."""

    begin: bytes
    end: bytes
    at: int
    """Offset of the position in an entry's key; 0: it follows the relation key, whose length varies."""

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in an entry's key."""
        return key[self.at or _end_of_bytes(key, len(self.begin)) :]


class SmartIndex:
    """The index keys of one queue."""

    __slots__ = ("_layout", "_types")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._types: dict[str, bytes] = {}

    def part(self, type_name: str, key: Key) -> bytes:
        """Return the part that names this type and key in an item's notes."""
        return self._prefix(type_name, key)[len(self._layout.prefix) :]

    def span(self, type_name: str) -> Span:
        """Return the entries of a type."""
        begin = self._type_prefix(type_name)
        return Span(*within(begin), 0)

    def key_span(self, type_name: str, key: Key) -> Span:
        """Return the entries of a type and relation key, which are in queue order."""
        begin = self._prefix(type_name, key)
        return Span(*within(begin), len(begin))

    def spans(self, seer: MessageType, key: Key) -> list[Span] | None:
        """Return the entries that an incoming item of this type and key must see; None: it must see all items."""
        sees: Sees = seer.sees
        if sees.all:
            return None
        names = (seer.name,) if sees.types is None else sees.types
        return [self.key_span(name, key) if sees.same_key else self.span(name) for name in names]

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in an entry's key."""
        try:
            packed = key[_end_of_bytes(key, _end_of_bytes(key, len(self._layout.smart.key()))) :]
        except ValueError:
            packed = b""
        if not is_packed(packed):
            raise FormatError(told_foreign(self._layout, "smart", key))
        return packed

    def type_of(self, key: bytes) -> str:
        """Return the type in an entry's key."""
        name: str = parts_of(self._layout, "smart", key)[0]
        return name

    def _type_prefix(self, type_name: str) -> bytes:
        prefix = self._types.get(type_name)
        if prefix is None:
            prefix = self._types[type_name] = self._layout.smart[type_name].key()
        return prefix

    def _prefix(self, type_name: str, key: Key) -> bytes:
        try:
            packed: bytes = fdb_tuple.pack((key,))
        except CODEC_ERRORS as error:
            raise CodecError(
                f"The relation key of a {type_name!r} can't be stored: {error}. A key is a text, bytes, an integer of"
                " up to 255 bytes, None, or a tuple of these; a hash of something longer will do."
            ) from error
        return b"%b\x01%b\x00" % (self._type_prefix(type_name), packed.replace(b"\x00", b"\x00\xff"))


NEAR, MISSED = "near", "missed"
"""Stages of a deadline: before it is missed, and once it is missed."""


def deadline_parts(layout: Layout, at_us: int) -> tuple[bytes, ...]:
    """Return the parts that name the deadline `at_us` in an item's notes; none for 0."""
    if not at_us:
        return ()
    return tuple(layout.part_of(layout.deadlines[stage][at_us]) for stage in (NEAR, MISSED))


def deadline_key(layout: Layout, stage: str, at_us: int, packed: bytes) -> bytes:
    """Return the key of a stage of a deadline."""
    prefix: bytes = layout.deadlines[stage][at_us].key()
    return prefix + packed


def deadlines_until(layout: Layout, stage: str, at_us: int) -> tuple[bytes, bytes]:
    """Return the begin and end of the deadlines up to a time."""
    space = layout.deadlines[stage]
    return space.range().start, space.pack((at_us + 1,))


def deadline_of(layout: Layout, stage: str, key: bytes) -> tuple[int, bytes]:
    """Return the time, and the packed position, in a deadline's key."""
    at_us: int = parts_of(layout, "deadlines", key)[1]
    return at_us, key[len(layout.deadlines[stage][at_us].key()) :]


def is_deadline(layout: Layout, part: bytes) -> bool:
    """Return whether a part of an item's notes names a deadline."""
    return is_within(part, layout.part_of(layout.deadlines))


def _end_of_bytes(key: bytes, at: int) -> int:
    """Return the end of the packed bytes or text element that begins at `at`."""
    while True:
        at = key.index(b"\x00", at + 1)
        if key[at + 1 : at + 2] != b"\xff":
            return at + 1
