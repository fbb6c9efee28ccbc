"""Bulk enqueue: many values in few transactions, several of them under way at once, each exactly once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import (
    NOT_COMMITTED,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    FDBError,
    adopt_binding,
    predicates,
)
from fdbqueue.engine.selector import KeySelector
from fdbqueue.engine.steps import Steps
from fdbqueue.errors import BulkInterrupted
from fdbqueue.items import chunks_of, envelope
from fdbqueue.layout import Layout, Position, new_random
from fdbqueue.once import Claim, Once
from fdbqueue.stats import count

BATCH_ITEMS = 1_000
BATCH_BYTES = 1_000_000
"""About what one transaction writes; FoundationDB advises to stay under 1 MB, and refuses over 10 MB."""
BATCH_SECONDS = 0.5
"""A batch goes out half full when its first value has waited so long for the next."""
COMMITS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What a bulk enqueue did."""

    items: int
    """Values that are in the queue now."""
    size_bytes: int
    """Bytes of their payloads, encoded."""
    first: Position | None
    """The first one's position; None if there were none."""
    last: Position | None
    """The last one's position."""
    transactions: int = 0
    """Commits that took effect; 0 in a caller's transaction."""
    conflicts: int = 0
    """Commits that failed with 1020 and were repeated."""
    retries: int = 0
    """Commits that failed and were repeated, conflicts included."""
    seconds: float = 0.0
    """From the first value to the last commit."""


@dataclass(slots=True)
class _Batch:
    start: int
    """The ordinal of its first value."""
    stored: list[bytes] = field(default_factory=list)
    large: list[tuple[int, list[bytes]]] = field(default_factory=list)
    """Chunks of payloads over the inline limit, by the value's place in the batch."""
    size_bytes: int = 0
    index: int = 0
    """The index of its first value, given when it first went out and kept since."""


@dataclass(slots=True)
class _Sent:
    batch: _Batch
    tr: Transaction
    claim: Claim
    mark: bytes
    commit: Future[None]


def enqueue_in_transaction(
    tr: Transaction,
    layout: Layout,
    encode: Callable[[Any], bytes],
    values: Iterable[Any],
    next_index: Callable[[Transaction, int], Steps[int]],
) -> Steps[BulkReport]:
    """Append all `values` in the caller's transaction. Every value is encoded before any key is touched."""
    batch = _Batch(0)
    for value in values:
        _add(batch, encode(value))
    if not batch.stored:
        return BulkReport(0, 0, None, None)
    batch.index = yield from next_index(tr, len(batch.stored))
    random = new_random()
    _write(tr, layout, batch, random)
    first, last = Position(batch.index, random), Position(batch.index + len(batch.stored) - 1, random)
    return BulkReport(len(batch.stored), batch.size_bytes, first, last)


def enqueue_in_batches(
    db: Database, layout: Layout, once: Once, encode: Callable[[Any], bytes], values: Iterable[Any]
) -> Steps[BulkReport]:
    """Append `values` in transactions of their own."""
    return (yield from _Load(db, layout, once).run(encode, values))


class _Load:
    """One bulk enqueue under way."""

    def __init__(self, db: Database, layout: Layout, once: Once) -> None:
        self._db = db
        self._layout = layout
        self._once = once
        self._random = new_random()
        self._next_index = 1
        self._first_index = 0
        self._sent: deque[_Sent] = deque()
        self._done: list[tuple[int, int]] = []
        self._items = self._bytes = self._transactions = self._conflicts = self._retries = 0
        self._started = time.monotonic()

    def run(self, encode: Callable[[Any], bytes], values: Iterable[Any]) -> Steps[BulkReport]:
        source = _Batches(encode, values)
        adopt_binding()
        yield from self._once.sweep(self._db)
        try:
            for batch in source:
                yield from self._send(batch)
                while len(self._sent) >= COMMITS_IN_FLIGHT:
                    yield from self._settle(self._sent.popleft())
            while self._sent:
                yield from self._settle(self._sent.popleft())
        except Exception as error:
            # Whatever went wrong, in the values, their codec or the database: the commits under way are settled
            # before anybody is told what is in.
            yield from self._settle_rest()
            if not self._items:
                raise
            raise self._interrupted(source.taken, error) from error
        return self._report()

    def _send(self, batch: _Batch) -> Steps[None]:
        tr = self._db.create_transaction()
        claim = self._once.claim()
        try:
            # By snapshot, as every enqueue. Commits under way are not seen, so the own last index counts too.
            last = yield tr.snapshot.get_key(KeySelector.last_less_than(self._layout.end))
            self._place(batch, self._layout.index_of(bytes(last)) + 1)
            _write(tr, self._layout, batch, self._random)
            mark = claim.mark(tr)
            self._sent.append(_Sent(batch, tr, claim, mark, tr.commit()))
        except FDBError as error:
            yield from self._repeat(batch, tr, claim, error, None)

    def _place(self, batch: _Batch, index: int) -> None:
        batch.index = max(index, self._next_index)
        self._next_index = batch.index + len(batch.stored)
        self._first_index = self._first_index or batch.index

    def _settle(self, sent: _Sent) -> Steps[None]:
        try:
            yield sent.commit
        except FDBError as error:
            doubt = (sent.mark, None) if predicates.maybe_committed(error) else None
            yield from self._repeat(sent.batch, sent.tr, sent.claim, error, doubt)
        else:
            sent.claim.close()
            self._count(sent.batch)

    def _repeat(
        self,
        batch: _Batch,
        tr: Transaction,
        claim: Claim,
        error: FDBError | None,
        doubt: tuple[bytes, None] | None,
    ) -> Steps[None]:
        """Repeat a batch that failed, one after the other, halving it as long as it is too large or too slow."""
        too_old = 0

        def on_retry(error: FDBError) -> None:
            nonlocal too_old
            too_old += error.code == TRANSACTION_TOO_OLD
            if len(batch.stored) > 1 and (error.code == TRANSACTION_TOO_LARGE or too_old > 1):
                raise _Halve
            self._retries += 1
            self._conflicts += error.code == NOT_COMMITTED

        def body(tr: Transaction) -> Steps[None]:
            if not batch.index:
                last = yield tr.snapshot.get_key(KeySelector.last_less_than(self._layout.end))
                self._place(batch, self._layout.index_of(bytes(last)) + 1)
            _write(tr, self._layout, batch, self._random)

        try:
            yield from claim.transact(tr, body, failed=error, doubt=doubt, on_retry=on_retry)
        except _Halve:
            tr.cancel()
            for half in _halves(batch):
                yield from self._repeat(half, self._db.create_transaction(), self._once.claim(), None, None)
        else:
            self._count(batch)
        finally:
            claim.close()

    def _settle_rest(self) -> Steps[None]:
        while self._sent:
            try:
                yield from self._settle(self._sent.popleft())
            except FDBError:
                continue  # its values are among the missing ones

    def _count(self, batch: _Batch) -> None:
        start, stop = batch.start, batch.start + len(batch.stored)
        if self._done and self._done[-1][1] == start:
            self._done[-1] = (self._done[-1][0], stop)
        else:
            self._done.append((start, stop))
        self._items += len(batch.stored)
        self._bytes += batch.size_bytes
        self._transactions += 1

    def _report(self) -> BulkReport:
        first = Position(self._first_index, self._random) if self._items else None
        last = Position(self._next_index - 1, self._random) if self._items else None
        seconds = time.monotonic() - self._started
        return BulkReport(
            self._items, self._bytes, first, last, self._transactions, self._conflicts, self._retries, seconds
        )

    def _interrupted(self, taken: int, error: Exception) -> BulkInterrupted:
        missing = []
        seen = 0
        for start, stop in [*sorted(self._done), (taken, taken)]:
            if start > seen:
                missing.append((seen, start))
            seen = stop
        return BulkInterrupted(
            f"The bulk enqueue into {self._layout.describe()} stopped after {self._items:,} values were in: {error}."
            " Those that were read from the input and are not in are listed in `missing`, as (first, end) ordinals;"
            " enqueue them again, and what follows.",
            report=self._report(),
            missing=missing,
        )


class _Halve(Exception):
    """A batch is to be cut in two."""


def _halves(batch: _Batch) -> tuple[_Batch, _Batch]:
    middle = len(batch.stored) // 2
    first = _Batch(batch.start, batch.stored[:middle])
    second = _Batch(batch.start + middle, batch.stored[middle:])
    first.large = [(at, chunks) for at, chunks in batch.large if at < middle]
    second.large = [(at - middle, chunks) for at, chunks in batch.large if at >= middle]
    first.size_bytes = batch.size_bytes * middle // len(batch.stored)
    second.size_bytes = batch.size_bytes - first.size_bytes
    if batch.index:
        first.index, second.index = batch.index, batch.index + middle
    return first, second


class _Batches:
    """Cuts values into batches as they come; no transaction is open while it waits for the next value."""

    def __init__(self, encode: Callable[[Any], bytes], values: Iterable[Any]) -> None:
        self._encode = encode
        self._values = values
        self.taken = 0

    def __iter__(self) -> Iterator[_Batch]:
        batch = _Batch(0)
        since = time.monotonic()
        encode = self._encode
        for value in self._values:
            self.taken += 1
            payload = encode(value)
            size = len(payload)
            if batch.stored and (
                len(batch.stored) >= BATCH_ITEMS
                or batch.size_bytes + size > BATCH_BYTES
                or time.monotonic() - since > BATCH_SECONDS
            ):
                yield batch
                batch = _Batch(batch.start + len(batch.stored))
                since = time.monotonic()
            _add(batch, payload)
        if batch.stored:
            yield batch


def _add(batch: _Batch, payload: bytes) -> None:
    chunks = chunks_of(payload)
    if chunks:
        batch.large.append((len(batch.stored), chunks))
    batch.stored.append(envelope(payload))
    batch.size_bytes += len(payload)


def _write(tr: Transaction, layout: Layout, batch: _Batch, random: bytes) -> None:
    keys = layout.item_keys(batch.index, len(batch.stored), random)
    write = tr.set
    for key, stored in zip(keys, batch.stored, strict=True):
        write(key, stored)
    for at, chunks in batch.large:
        for number, chunk in enumerate(chunks):
            write(layout.chunk_key(Position(batch.index + at, random), number), chunk)
    count(tr, layout, enqueued=len(batch.stored))
