"""Cuts a stream of values into batches that fit into a transaction each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.base.position import Position
from fdbqueue.stored.items import INLINE_BYTES, PLAIN, chunks_of, envelope

BATCH_ITEMS = 1_000
BATCH_BYTES = 1_000_000
"""About the size of one transaction; FoundationDB advises to stay under 1 MB, and refuses over 10 MB."""
BATCH_SECONDS = 0.5
"""An incomplete batch goes out when its first value has waited for this long."""


class Encoding(NamedTuple):
    """How one queue's values become items."""

    encode: Callable[[Any], bytes]
    """The codec's function."""
    takes_bytes: bool
    """Whether the codec leaves bytes as they are."""
    rank: Callable[[Any], int | None]
    """The order's function; it returns None in a queue that is first in, first out."""
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
    """Chunks of payloads over the inline limit, each with the value's place in the batch."""
    ranks: list[int] | None = None
    """The rank of each value, if the queue has an order."""
    size_bytes: int = 0
    """Bytes of the payloads."""
    index: int = 0
    """The index of its first value. It is assigned when the batch first goes out, and kept since."""

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

    def count_plain(self) -> None:
        """Count the bytes of a batch of plain items only, which were appended to `stored` directly."""
        self.size_bytes = sum(map(len, self.stored)) - len(PLAIN) * len(self.stored)

    def position(self, at: int, random: bytes) -> Position:
        """Return the position of the value at a place in the batch."""
        return Position(self.index + at, random, rank=None if self.ranks is None else self.ranks[at])

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches with the values of this one, in the same places."""
        middle = len(self.stored) // 2
        first = Batch(self.start, self.stored[:middle])
        second = Batch(self.start + middle, self.stored[middle:])
        if self.ranks is not None:
            first.ranks, second.ranks = self.ranks[:middle], self.ranks[middle:]
        first.large = [(at, chunks) for at, chunks in self.large if at < middle]
        second.large = [(at - middle, chunks) for at, chunks in self.large if at >= middle]
        in_chunks = {at: sum(map(len, chunks)) for at, chunks in first.large}
        first.size_bytes = sum(in_chunks.get(at, len(stored) - len(PLAIN)) for at, stored in enumerate(first.stored))
        second.size_bytes = self.size_bytes - first.size_bytes
        if self.index:
            first.index, second.index = self.index, self.index + middle
        return first, second


class Payloads:
    """Encoded values in lists, instead of values.

    Args:
        lists: the lists. None of them is empty.
    """

    __slots__ = ("_lists",)

    def __init__(self, lists: Iterable[list[bytes]]) -> None:
        self._lists = lists

    def lists(self) -> Iterable[list[bytes]]:
        """Return the lists."""
        return self._lists

    def __iter__(self) -> Iterator[bytes]:
        for payloads in self._lists:
            yield from payloads


class Batches:
    """Cuts values into batches as they arrive.

    Args:
        encoding: the queue's encoding.
        values: the input, read one value at a time.
        soon: called when a batch is half full and will probably go out soon.
    """

    def __init__(self, encoding: Encoding, values: Iterable[Any], soon: Callable[[], None]) -> None:
        self._encoding = encoding
        self._values = values
        self._soon = soon
        self.taken = 0
        """How many values were read from the input so far."""

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self._values, Payloads) and self._encoding.order is None:
            return self._of_lists(self._values.lists())
        return self._one_by_one()

    def _of_lists(self, lists: Iterable[list[bytes]]) -> Iterator[Batch]:
        """Yield the batches of encoded values. Nearly all are short, and a batch of short ones is a slice of a list."""
        for payloads in lists:
            start = self.taken
            self.taken += len(payloads)
            for at in range(0, len(payloads), BATCH_ITEMS):
                part = payloads[at : at + BATCH_ITEMS]
                self._soon()
                if max(map(len, part)) <= BATCH_BYTES // BATCH_ITEMS:
                    batch = Batch(start + at, [PLAIN + payload for payload in part])
                    batch.count_plain()
                    yield batch
                    continue
                batch = Batch(start + at)
                for payload in part:
                    if batch.stored and batch.size_bytes + len(payload) > BATCH_BYTES:
                        yield batch
                        batch = Batch(batch.stop)
                    batch.add(payload, None)
                yield batch

    def _one_by_one(self) -> Iterator[Batch]:
        encode, takes_bytes, rank_of, order = self._encoding
        clock = time.monotonic
        # No number of values up to this size can fill a batch by its bytes. Then the bytes need not be counted one by
        # one.
        short = BATCH_BYTES // BATCH_ITEMS if order is None else -1
        batch = Batch(0)
        append, uncounted = batch.stored.append, short
        look, late = BATCH_ITEMS // 2, clock() + BATCH_SECONDS
        for taken, value in enumerate(self._values, 1):
            self.taken = taken
            payload = value if takes_bytes and type(value) is bytes else encode(value)
            size_bytes = len(payload)
            if size_bytes <= uncounted:  # as `Batch.add`, inlined for nearly all values
                append(PLAIN + payload)
            else:
                if uncounted >= 0:
                    batch.count_plain()
                    uncounted = -1
                if size_bytes > INLINE_BYTES and batch.size_bytes + size_bytes > BATCH_BYTES and batch.stored:
                    yield batch
                    batch = Batch(batch.stop)
                    append, look, late = batch.stored.append, batch.start + BATCH_ITEMS // 2, clock() + BATCH_SECONDS
                batch.add(payload, rank_of(value))
                if batch.size_bytes >= BATCH_BYTES:
                    look = 0
            if taken < look and clock() < late:
                continue
            if taken == look < batch.start + BATCH_ITEMS:
                self._soon()
                look = batch.start + BATCH_ITEMS
                continue
            if uncounted >= 0:
                batch.count_plain()
            yield batch
            batch = Batch(batch.stop)
            append, uncounted = batch.stored.append, short
            look, late = batch.start + BATCH_ITEMS // 2, clock() + BATCH_SECONDS
        if batch.stored:
            if uncounted >= 0:
                batch.count_plain()
            yield batch
