"""The index of a smart queue: which items of a type, and of a key, there are.

An entry's key is ``("smart", type, key, index, random)``; it stands beside its item (`Notes.beside`), so that whoever
takes the item out, be it a plain dequeue or an ack, clears the entry in the same transaction. A key of the user's is
packed into one bytes element, so that the position behind it is found without knowing what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue import CodecError
from fdbqueue.lowlevel import CODEC_ERRORS, Layout, fdb_tuple, strinc

from ._messages import Key, MessageType, Sees


@dataclass(frozen=True, slots=True)
class Span:
    """The entries of one type, or of one key of it."""

    begin: bytes
    end: bytes
    at: int
    """Where in an entry's key the position begins; 0: behind the user's key, which comes first."""

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
        """Return what an item of that type and key has in its notes."""
        return self._prefix(type_name, key)[len(self._layout.prefix) :]

    def span(self, type_name: str) -> Span:
        """Return the entries of a type."""
        begin = self._type_prefix(type_name)
        return Span(begin, strinc(begin), 0)

    def key_span(self, type_name: str, key: Key) -> Span:
        """Return the entries of a key of a type, which stand in queue order."""
        begin = self._prefix(type_name, key)
        return Span(begin, strinc(begin), len(begin))

    def spans(self, seer: MessageType, key: Key) -> list[Span] | None:
        """Return which entries a newcomer of this type and key has to see; None: it has to see all items."""
        sees: Sees = seer.sees
        if sees.all:
            return None
        names = (seer.name,) if sees.types is None else sees.types
        return [self.key_span(name, key) if sees.same_key else self.span(name) for name in names]

    def packed(self, key: bytes) -> bytes:
        """Return the packed position in an entry's key."""
        type_end = _end_of_bytes(key, len(self._layout.smart.key()))
        return key[_end_of_bytes(key, type_end) :]

    def type_of(self, key: bytes) -> str:
        """Return the type in an entry's key."""
        name: str = self._layout.smart.unpack(key)[0]
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
"""Stages of a deadline: it can be told of before it is missed, and when it is."""


def deadline_parts(layout: Layout, at_us: int) -> tuple[bytes, ...]:
    """Return what an item that has to be gone by `at_us` has in its notes; nothing for 0."""
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
    at_us: int = layout.deadlines.unpack(key)[1]
    return at_us, key[len(layout.deadlines[stage][at_us].key()) :]


def is_deadline(layout: Layout, part: bytes) -> bool:
    """Say whether a part of an item's notes is of a deadline."""
    return part.startswith(layout.part_of(layout.deadlines))


def _end_of_bytes(key: bytes, at: int) -> int:
    """Return where a packed element of bytes, or of text, that begins at `at` ends."""
    while True:
        at = key.index(b"\x00", at + 1)
        if key[at + 1 : at + 2] != b"\xff":
            return at + 1
