"""Cutting a stream of values into batches, each of a transaction's size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.items import INLINE_BYTES, PLAIN, chunks_of, envelope
from fdbqueue.layout import Position, pack

BATCH_ITEMS = 1_000
BATCH_BYTES = 1_000_000
"""About what one transaction writes; FoundationDB advises to stay under 1 MB, and refuses over 10 MB."""
BATCH_SECONDS = 0.5
"""A batch goes out as it is when its first value has waited so long for the next ones."""


class Encoding(NamedTuple):
    """How one queue's values become items."""

    encode: Callable[[Any], bytes]
    """The codec's."""
    takes_bytes: bool
    """Whether the codec leaves bytes as they are."""
    rank: Callable[[Any], int | None]
    """The order's; None in a queue that is first in, first out."""
    order: str | None
    """The order's name."""


@dataclass(slots=True)
class Batch:
    """Encoded values that go into one transaction."""

    start: int
    """The ordinal of its first value in the input."""
    stored: list[bytes] = field(default_factory=list)
    """Envelopes, in order."""
    large: list[tuple[int, list[bytes]]] = field(default_factory=list)
    """Chunks of payloads over the inline limit, by the value's place in the batch."""
    ranks: list[int] | None = None
    """Of each, if the queue has an order."""
    size_bytes: int = 0
    """Bytes of the payloads."""
    index: int = 0
    """The index of its first value, given when it first went out and kept since."""

    @property
    def stop(self) -> int:
        """The ordinal behind its last value."""
        return self.start + len(self.stored)

    def add(self, payload: bytes, rank: int | None) -> None:
        """Append an encoded value."""
        if rank is not None:
            self.ranks = self.ranks or []
            self.ranks.append(rank)
        if len(payload) > INLINE_BYTES:
            self.large.append((len(self.stored), chunks_of(payload)))
        self.stored.append(envelope(payload))
        self.size_bytes += len(payload)

    def position(self, at: int, random: bytes) -> Position:
        """Return the position of the value at a place in the batch."""
        return Position(self.index + at, random, rank=None if self.ranks is None else self.ranks[at])

    def spans(self, random: bytes) -> list[tuple[bytes, bytes]]:
        """Return the packed positions of the first and the last value, of each rank if the queue has an order."""
        if self.ranks is None:
            return [(pack(self.position(0, random)), pack(self.position(len(self.stored) - 1, random)))]
        ends: dict[int, tuple[int, int]] = {}
        for at, rank in enumerate(self.ranks):
            ends[rank] = (ends.get(rank, (at, at))[0], at)
        return [
            (pack(self.position(first, random)), pack(self.position(last, random))) for first, last in ends.values()
        ]

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches with the values of this one, in the same places."""
        middle = len(self.stored) // 2
        first = Batch(self.start, self.stored[:middle])
        second = Batch(self.start + middle, self.stored[middle:])
        if self.ranks is not None:
            first.ranks, second.ranks = self.ranks[:middle], self.ranks[middle:]
        first.large = [(at, chunks) for at, chunks in self.large if at < middle]
        second.large = [(at - middle, chunks) for at, chunks in self.large if at >= middle]
        first.size_bytes = self.size_bytes * middle // len(self.stored)
        second.size_bytes = self.size_bytes - first.size_bytes
        if self.index:
            first.index, second.index = self.index, self.index + middle
        return first, second


class Batches:
    """Cuts values into batches as they come.

    Args:
        encoding: the queue's.
        values: the input, read one value at a time.
        soon: called when a batch is half full and will probably go out in a moment.
    """

    def __init__(self, encoding: Encoding, values: Iterable[Any], soon: Callable[[], None]) -> None:
        self._encoding = encoding
        self._values = values
        self._soon = soon
        self.taken = 0
        """How many values were read from the input."""

    def __iter__(self) -> Iterator[Batch]:
        encode, takes_bytes, rank_of, order = self._encoding
        clock = time.monotonic
        batch, since = Batch(0), clock()
        for value in self._values:
            self.taken += 1
            payload = value if takes_bytes and type(value) is bytes else encode(value)
            size_bytes = len(payload)
            if order is None and size_bytes <= INLINE_BYTES:  # as `Batch.add`, for nearly all values there are
                batch.stored.append(PLAIN + payload)
                batch.size_bytes += size_bytes
            else:
                if size_bytes > INLINE_BYTES and batch.size_bytes + size_bytes > BATCH_BYTES and batch.stored:
                    yield batch
                    batch, since = Batch(batch.stop), clock()
                batch.add(payload, rank_of(value))
            amount = len(batch.stored)
            if amount == BATCH_ITEMS // 2:
                self._soon()
            elif amount >= BATCH_ITEMS or batch.size_bytes >= BATCH_BYTES or clock() - since > BATCH_SECONDS:
                yield batch
                batch, since = Batch(batch.stop), clock()
        if batch.stored:
            yield batch
