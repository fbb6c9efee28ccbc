"""The keys of one stream."""

from __future__ import annotations

from fdbqueue.engine.keys import behind, is_within
from fdbqueue.lowlevel import Layout, Place, check_text, pack
from fdbqueue.stored import shapes
from fdbqueue.stored.own_rows import parts_of

MAX_NAME_BYTES = shapes.NAME_BYTES["stream"]


class StreamKeys:
    """The keys of one stream of a queue.

    Raises:
        TypeError: the name is not a str. ValueError: it is empty or too long, or has a lone surrogate.
    """

    __slots__ = ("_batches", "_chunks", "_claims", "_tracked", "layout", "name", "record", "seen")

    def __init__(self, layout: Layout, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"A stream is named by a str, not {type(name).__name__}: {name!r}.")
        check_text(name, "The name of a stream")
        size_bytes = len(name.encode())
        if not 0 < size_bytes <= MAX_NAME_BYTES:
            raise ValueError(f"A stream's name has 1 to {MAX_NAME_BYTES} bytes; {name[:40]!r} has {size_bytes:,}.")
        self.layout = layout
        self.name = name
        space = layout.streams[name]
        self.record: bytes = space.key()
        self.seen: bytes = space.pack(("seen",))
        self._batches = space["batch"]
        self._claims = layout.claims[name]
        self._chunks = layout.claimed_chunks[name]
        self._tracked = layout.claimed_tracked[name]

    def batch(self, number: int) -> bytes:
        """Return the key of a batch's record."""
        key: bytes = self._batches.pack((number,))
        return key

    def number_of(self, key: bytes) -> int:
        """Return the number in the key of a batch's record."""
        number: int = parts_of(self.layout, "streams", key)[2]
        return number

    def batches(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of the records of the batches up to `last`; None: of all."""
        span = self._batches.range()
        return span.start, span.stop if last is None else self.batch(last) + b"\x00"

    def items(self, number: int) -> Place:
        """Return the place of a batch's items."""
        return self.layout.claimed(self.name, number)

    def claims(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of the items of the batches up to `last`; None: of all."""
        begin: bytes = self._claims.key()
        return begin, behind(begin if last is None else self.items(last).prefix)

    def chunks(self, number: int, packed: bytes) -> bytes:
        """Return the key that says that an item of a batch has chunks."""
        prefix: bytes = self._chunks[number].key()
        return prefix + packed

    def all_chunks(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of those keys of the batches up to `last`; None: of all."""
        begin: bytes = self._chunks.key()
        return begin, behind(begin if last is None else self._chunks[last].key())

    def tracked(self, number: int, packed: bytes) -> bytes:
        """Return the key that says that an item of a batch has a completion, follow-ups or a group."""
        prefix: bytes = self._tracked[number].key()
        return prefix + packed

    def all_tracked(self, last: int | None = None) -> tuple[bytes, bytes]:
        """Return the begin and end of those keys of the batches up to `last`; None: of all."""
        begin: bytes = self._tracked.key()
        return begin, behind(begin if last is None else self._tracked[last].key())

    def packed_of(self, key: bytes) -> tuple[int, bytes]:
        """Return the batch and the packed position in a key of `claims`, `all_chunks` or `all_tracked`."""
        families = {"claims": self._claims, "claimed_chunks": self._chunks, "claimed_tracked": self._tracked}
        family = next(family for family, space in families.items() if is_within(key, space.key()))
        _, number, position = parts_of(self.layout, family, key)
        return number, pack(position)
