"""Foreign keys and envelopes of every family of the table of keys, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from fdbqueue import Position
from fdbqueue.engine.keys import Subspace, Versionstamp
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.stored.items import Notes, envelope, with_notes
from fdbqueue.stored.key_table import OTHERS, TABLE
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import GROUP_KINDS, MEMBER_STATES, NAME_BYTES, NESTED, RAW, STAGES, TIMER_KINDS

ANY: list[Any] = [0, 1, 5, 2**62, 2**64, -1, 1.5, True, None, "", "a", "lease", "batch", b"", b"r", b"\xff", ("t", 1)]
"""Parts that a key may have by mistake."""
NAMES = ["a", "all", "ann", "bob", "note", "import", "flights", "B", "call", "tenant", "s", "enqueued", "dead", ""]
"""Names that the scene of all verbs has, so that they meet the key, and others."""
NUMBERS = [0, 1, 2, 7, 255, 2**32, 2**62 - 1, 2**62, 2**64 - 1]
RANDOMS = [b"r", b"none", b"", b"\x00", b"\xff\x00"]
TIMES = [0, 1, 10**6, 1_700_000_000_000_000, 2**62 - 1]
BYTES = [b"", b"c" * 8, b"\x15\x01\x01r\x00", b"\xff", bytes(16)]
CHOICES: dict[str, list[Any]] = {
    **dict.fromkeys(("name", "query", "type", *NAME_BYTES), NAMES),
    **{what: [*NAMES[:-1], b"raw", ("vip", 7)] for what in ("session", "gate")},
    **dict.fromkeys(("at_us", "until_us"), TIMES),
    **dict.fromkeys(("id", "client", "key", "first", "last", "token", "submission"), BYTES),
    "kind": sorted(TIMER_KINDS),
    "kind of a group": sorted(GROUP_KINDS),
    "stage": sorted(STAGES),
    "state of a member": sorted(MEMBER_STATES),
    "versionstamp": [Versionstamp(bytes(10), 0), Versionstamp(b"\x00" * 7 + b"\x05\x00\x01", 3)],
}
"""What the parts of a right key may be, by their names; others are numbers."""
ROWS = [(row.parts, row.rest) for row in (*TABLE.values(), *OTHERS)]
"""All rows of the table of keys: the first parts, and the names of the others."""


class Forger:
    """Draws keys and values.

    Args:
        seed: two forgers of the same seed draw the same.
    """

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)

    def keys(self, layout: Layout, number: int) -> Iterator[bytes]:
        """Yield keys among those of a queue, of one family or of several."""
        rows = self.dice.choices(ROWS, k=self.dice.choice((1, 3, len(ROWS))))
        for _ in range(number):
            parts, rest = self.dice.choice(rows)
            yield layout.prefix + fdb_tuple.pack(parts) + self._tail(rest)

    def item_keys(self, layout: Layout, number: int) -> Iterator[bytes]:
        """Yield keys among the items of a queue: with positions, or with none."""
        for _ in range(number):
            if self.dice.random() < 0.7:
                yield layout.prefix + self._position()
            else:
                yield layout.prefix + bytes((self.dice.randrange(0x14, 0x1D),)) + self._bytes(6)

    def mutated(self, rows: Iterable[tuple[bytes, bytes]], layout: Layout, number: int) -> Iterator[bytes]:
        """Yield keys that a queue has, with a change in one place."""
        own = [key for key, _ in rows]
        for _ in range(number if own else 0):
            key = self.dice.choice(own)
            at = self.dice.randrange(len(layout.prefix), len(key) + 1)
            match self.dice.randrange(4):
                case 0:
                    yield key[:at]
                case 1:
                    yield key + self._bytes(4)
                case 2:
                    yield key[:at] + self._bytes(2) + key[at + 1 :]
                case _:
                    yield key[:at] + fdb_tuple.pack((self.dice.choice(ANY),)) + key[at:]

    def value(self) -> bytes:
        """Return an envelope, a record or any bytes."""
        dice = self.dice
        notes = Notes(dice.choice((0, 3)), group=dice.choice(("", "import")), then=((b"", b"x"),), ttl_at_us=1)
        drawn = (b"", b"\x10x", b"\x20new", b"\x90", b"\x80", b"\x93\x01\x02", b"{}", b'{"type": "call"}', b"null")
        numbers = (bytes(8), (1).to_bytes(8, "little"), b"\xff" * 8, fdb_tuple.pack(("a", 1)))
        return dice.choice((*drawn, *numbers, dice.randbytes(8), with_notes(envelope(b"x"), notes), self._bytes(40)))

    def envelope(self, stored: bytes) -> bytes:
        """Return an item's bytes with a change in one place."""
        at = self.dice.randrange(len(stored) + 1)
        match self.dice.randrange(3):
            case 0:
                return stored[:at]
            case 1:
                return stored[:at] + self._bytes(3) + stored[at:]
            case _:
                return stored[:at] + self._bytes(2) + stored[at + 1 :]

    def _tail(self, rest: str) -> bytes:
        match self.dice.randrange(6):
            case 0:
                return self._bytes(6)
            case 1:
                return self._position()
            case 2:
                return self._packed([self.dice.choice(ANY) for _ in range(self.dice.randrange(6))])
        parts = self._right(rest)
        match self.dice.randrange(5):
            case 0 if parts:
                parts[self.dice.randrange(len(parts))] = self.dice.choice(ANY)
            case 1 if parts:
                del parts[self.dice.randrange(len(parts))]
            case 2:
                parts.insert(self.dice.randrange(len(parts) + 1), self.dice.choice(ANY))
            case 3:
                return self._packed(parts)[: -self.dice.randrange(1, 3)]
        return self._packed(parts) + (self.dice.randbytes(8) if RAW in rest else b"")

    def _right(self, rest: str) -> list[Any]:
        """Return parts as a key of a family has them."""
        parts: list[Any] = []
        for name in filter(None, rest.split(", ")):
            if name == NESTED:
                parts += self._nested()
            elif name == RAW:
                continue  # the caller appends them
            elif name == "index" and self.dice.random() < 0.2:
                parts += [self.dice.choice((0, 3)), self.dice.choice(NUMBERS)]  # with a rank
            elif name == "random":
                parts.append(self.dice.choice(RANDOMS))
            elif name.startswith('"'):
                parts.append(name.strip('"'))
            else:
                parts.append(self.dice.choice(CHOICES.get(name, NUMBERS)))
        return parts

    def _nested(self) -> list[Any]:
        """Return the parts of a key of a queue that lies within another one's family, such as a session's items."""
        parts, rest = self.dice.choice(ROWS)
        if self.dice.random() < 0.4 or NESTED in rest:
            return [self.dice.choice(NUMBERS), self.dice.choice(RANDOMS)]
        return [*parts, *self._right(rest)]

    def _packed(self, parts: list[Any]) -> bytes:
        packed: bytes = fdb_tuple.pack(tuple(parts))
        return packed

    def _position(self) -> bytes:
        rank = self.dice.choice((None, None, 0, 3))
        return pack(Position(self.dice.choice((0, 1, 7, 300)), self.dice.choice(RANDOMS), rank=rank))

    def _bytes(self, most: int) -> bytes:
        return self.dice.randbytes(self.dice.randrange(most))


def spaces_of(keys: Iterable[bytes], space: Subspace) -> list[Layout]:
    """Return the layouts of the queues directly below a space that have some keys."""
    prefix = space.key()
    names = {fdb_tuple.unpack(key[len(prefix) :])[0] for key in keys}
    return [Layout(space[name]) for name in sorted(names)]
