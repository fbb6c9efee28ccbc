"""Bulk enqueue: many values in few transactions, several of them under way at once, each exactly once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.base.position import BulkReport, Position
from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import (
    NOT_COMMITTED,
    FDBError,
    adopt_binding,
    leaves_in_doubt,
)
from fdbqueue.engine.steps import Steps, finished, started, value_of
from fdbqueue.engine.transactional import SlotClaim
from fdbqueue.errors import BulkInterrupted, FdbQueueError, QueueFull, StorageError
from fdbqueue.moves.admission import Admission, may_fit_in_parts, wait_for_room
from fdbqueue.stored.items import INLINE_BYTES, PLAIN, chunks_of, envelope
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import new_random
from fdbqueue.writes.adaptive_limit import TooMuch
from fdbqueue.writes.appending import append_items
from fdbqueue.writes.once import Once

# Cuts a stream of values into batches that fit into a transaction each.

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

    def __init__(self, encoding: Encoding, values: Iterable[object], soon: Callable[[], None]) -> None:
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


COMMITS_IN_FLIGHT = 8
"""The limit for a database that does not state its own."""
TRANSACTIONS_AHEAD = 3
MOST_SPANS_TOLD = 5


@dataclass(slots=True)
class _Sent:
    batch: Batch
    tr: Transaction
    claim: SlotClaim
    mark: bytes
    commit: Future[None]


class _Ahead:
    """A transaction with its only read under way: a snapshot read of the last index, as in every enqueue."""

    __slots__ = ("last", "since", "tr")

    def __init__(self, tr: Transaction, layout: Layout, order: str | None) -> None:
        self.tr = tr
        self.last = Admission(tr, layout, order)
        self.since = time.monotonic()


async def enqueue_in_transaction(
    tr: Transaction,
    layout: Layout,
    encoding: Encoding,
    values: Iterable[object],
    next_index: Callable[[Transaction, int], Steps[int]],
) -> BulkReport:
    """Append all `values` in the caller's transaction. Every value is encoded before any key is touched."""
    batch = Batch(0)
    for value in values:
        batch.add(encoding.encode(value), encoding.rank(value))
    if not batch.stored:
        return BulkReport(0, 0, None, None)
    batch.index = await next_index(tr, len(batch.stored))
    random = new_random()
    _write(tr, layout, batch, random, None)
    first, last = batch.position(0, random), batch.position(len(batch.stored) - 1, random)
    return BulkReport(len(batch.stored), batch.size_bytes, first, last)


async def enqueue_in_batches(
    db: Database, layout: Layout, once: Once, encoding: Encoding, values: Iterable[object]
) -> BulkReport:
    """Append `values` in transactions of their own."""
    return await _Load(db, layout, once, encoding).run(values)


class _Load:
    """A bulk enqueue under way."""

    def __init__(self, db: Database, layout: Layout, once: Once, encoding: Encoding) -> None:
        self._db = db
        self._layout = layout
        self._encoding = encoding
        self._once = once
        self._random = new_random()
        self._next_index = 1
        self._first: tuple[int, Position] | None = None
        self._last: tuple[int, Position] | None = None
        self._ahead: deque[_Ahead] = deque()
        self._sent: deque[_Sent] = deque()
        self._most_in_flight: int = getattr(db, "commits_in_flight", COMMITS_IN_FLIGHT)
        self._done: list[tuple[int, int]] = []
        self._unknown: list[tuple[int, int]] = []
        self._open: dict[int, int] = {}
        """The beginnings and ends of batches whose commits may be under way."""
        self._items = self._bytes = self._transactions = self._conflicts = self._retries = 0
        self._sweeping: Steps[None] = finished(None)
        self._started = time.monotonic()

    async def run(self, values: Iterable[object]) -> BulkReport:
        source = Batches(self._encoding, values, self._look_ahead)
        adopt_binding()
        self._sweeping = started(self._once.sweep(self._db))
        try:
            await self._load(source)
        except KeyboardInterrupt as error:
            error.add_note(self._left_open(source.taken))
            raise
        return self._report()

    async def _load(self, source: Batches) -> None:
        try:
            for batch in source:
                await self._send(batch)
                while len(self._sent) >= self._most_in_flight:
                    await self._settle(self._sent.popleft())
            while self._sent:
                await self._settle(self._sent.popleft())
        except Exception as error:
            # Whatever failed, be it the values, their codec or the database: first wait for the commits under way, so
            # that the error can say which values are in.
            await self._settle_rest()
            if not self._items and (not self._unknown or leaves_in_doubt(error)):
                raise
            raise self._interrupted(source.taken, error) from error

    def _look_ahead(self) -> None:
        """Begin the next batches' transactions while their values still arrive, so that no batch waits for their reads.

        A read waits behind the commits under way, for longer than a batch takes to arrive. A transaction that was begun
        too early is dropped: the longer it is open, the more commits it does not see.
        """
        while len(self._ahead) < TRANSACTIONS_AHEAD:
            self._ahead.append(self._new_ahead())

    def _begin(self) -> _Ahead:
        while self._ahead:
            ahead = self._ahead.popleft()
            if time.monotonic() - ahead.since < BATCH_SECONDS:
                return ahead
        return self._new_ahead()

    def _new_ahead(self) -> _Ahead:
        return _Ahead(self._db.create_transaction(), self._layout, self._encoding.order)

    async def _send(self, batch: Batch) -> None:
        ahead = self._begin()
        await self._sweeping
        tr = ahead.tr
        claim = self._once.claim()
        try:
            # A snapshot does not see commits under way, so this load's own last index counts too.
            last = await ahead.last.steps(0)
            if ahead.last.terms.quota is None:
                self._place(batch, last + 1)
                _write(tr, self._layout, batch, self._random, self._encoding.order)
                mark = claim.write_marker(tr)
                self._open[batch.start] = batch.stop
                self._sent.append(_Sent(batch, tr, claim, mark, tr.commit()))
                return
        except FDBError as error:
            await self._repeat(batch, tr, claim, error, None)
            return
        await self._send_alone(batch, claim)

    async def _send_alone(self, batch: Batch, claim: SlotClaim) -> None:
        """Send a batch to a queue with a quota after all batches before it: a snapshot does not see commits under way.

        Raises:
            QueueFull: there is no room, and the quota says "refuse". What had room is in.
        """
        while self._sent:
            await self._settle(self._sent.popleft())
        self._ahead.clear()
        tr = self._db.create_transaction()
        while True:
            try:
                await self._repeat(batch, tr, claim, None, None)
                return
            except QueueFull as error:
                if may_fit_in_parts(error, len(batch.stored)):
                    break
                await wait_for_room(self._db, error)
            tr, claim = self._db.create_transaction(), self._once.claim()
        for half in batch.halves():
            await self._send_alone(half, self._once.claim())

    def _place(self, batch: Batch, index: int) -> None:
        batch.index = max(index, self._next_index)
        self._next_index = batch.index + len(batch.stored)

    async def _settle(self, sent: _Sent) -> None:
        try:
            await value_of(sent.commit)
        except FDBError as error:
            doubt = (sent.mark, None) if leaves_in_doubt(error) else None
            await self._repeat(sent.batch, sent.tr, sent.claim, error, doubt)
        else:
            sent.claim.close()
            self._count(sent.batch)

    async def _repeat(
        self,
        batch: Batch,
        tr: Transaction,
        claim: SlotClaim,
        error: FDBError | None,
        doubt: tuple[bytes, None] | None,
    ) -> None:
        """Repeat a batch that failed, one transaction at a time. Halve it while it is too large or too slow."""
        too_much = TooMuch()

        def on_retry(error: FDBError) -> None:
            if len(batch.stored) > 1 and too_much.shows(error):
                raise _Halve
            self._retries += 1
            self._conflicts += error.code == NOT_COMMITTED

        async def body(tr: Transaction) -> None:
            if not batch.index:
                last = await Admission(tr, self._layout, self._encoding.order).steps(len(batch.stored))
                self._place(batch, last + 1)
            _write(tr, self._layout, batch, self._random, self._encoding.order)

        self._open[batch.start] = batch.stop
        try:
            await claim.transact(tr, body, failed=error, doubt=doubt, on_retry=on_retry)
        except _Halve:
            tr.cancel()
            del self._open[batch.start]
            for half in batch.halves():
                await self._repeat(half, self._db.create_transaction(), self._once.claim(), None, None)
        except Exception:
            del self._open[batch.start]
            raise
        else:
            self._count(batch)
        finally:
            if claim.in_doubt:
                self._unknown.append((batch.start, batch.stop))
            claim.close()

    async def _settle_rest(self) -> None:
        while self._sent:
            try:
                await self._settle(self._sent.popleft())
            except (FDBError, StorageError):
                continue  # its values are among the missing or the unknown ones

    def _count(self, batch: Batch) -> None:
        del self._open[batch.start]
        if self._done and self._done[-1][1] == batch.start:
            self._done[-1] = (self._done[-1][0], batch.stop)
        else:
            self._done.append((batch.start, batch.stop))
        self._items += len(batch.stored)
        self._bytes += batch.size_bytes
        self._transactions += 1
        first = batch.start, batch.position(0, self._random)
        last = batch.stop, batch.position(len(batch.stored) - 1, self._random)
        self._first = min(self._first or first, first)
        self._last = max(self._last or last, last)

    def _report(self) -> BulkReport:
        first, last = (end and end[1] for end in (self._first, self._last))
        seconds = time.monotonic() - self._started
        return BulkReport(
            self._items, self._bytes, first, last, self._transactions, self._conflicts, self._retries, seconds
        )

    def _left_open(self, taken: int) -> str:
        """Return the note for an interrupted caller. It lists the values that are in, and waits for no commit.

        It lists all of them: a gap is a batch that was under way, and few are at a time.
        """
        done, doubtful = sorted(self._done), sorted({*self._open.items(), *self._unknown})
        unknown = f" The commits of {_told(doubtful, None)} were under way: these may be in." if doubtful else ""
        return (
            f"The bulk enqueue into {self._layout.describe()} was interrupted when it had read {taken:,} values, of"
            f" which these are in: {_told(done, None) or 'none'}, counted from 0.{unknown} All others are not in."
        )

    def _interrupted(self, taken: int, error: Exception) -> BulkInterrupted:
        missing = []
        seen = 0
        for start, stop in [*sorted(self._done + self._unknown), (taken, taken)]:
            if start > seen:
                missing.append((seen, start))
            seen = stop
        again = f"These are not in: {_told(missing)} (`missing`). Enqueue them again, and" if missing else "Enqueue"
        return BulkInterrupted(
            f"The bulk enqueue into {self._layout.describe()} stopped after {self._items:,} values were in:"
            f" {_said(error)} Of the input, counted from 0, {taken:,} were read. {again} what follows.",
            report=self._report(),
            missing=missing,
            unknown=sorted(self._unknown),
        )


def _told(spans: list[tuple[int, int]], most: int | None = MOST_SPANS_TOLD) -> str:
    """Return sorted spans of ordinals as text, only the first `most` (None: all). Spans that touch are one.

    >>> _told([(0, 10), (10, 20), (25, 26)]), _told([(0, 1), (2, 3)], 1)
    ('0 to 19, 25', '0, ...')
    """
    joined: list[tuple[int, int]] = []
    for first, end in spans:
        if joined and joined[-1][1] == first:
            first = joined.pop()[0]
        joined.append((first, end))
    told = joined[:most]
    words = [f"{first:,} to {end - 1:,}" if end - first > 1 else f"{first:,}" for first, end in told]
    return ", ".join(words) + (", ..." if len(joined) > len(told) else "")


def _said(error: BaseException) -> str:
    """Return an error's message as a sentence, with its type in front unless the error is one of ours."""
    text = str(error).rstrip(".")
    return f"{text}." if isinstance(error, FdbQueueError | FDBError) else f"{type(error).__name__}: {text}."


class _Halve(Exception):
    """The batch must be cut in two."""


def _write(tr: Transaction, layout: Layout, batch: Batch, random: bytes, order: str | None) -> None:
    append_items(tr, layout, batch.index, random, batch.stored, ranks=batch.ranks, large=batch.large, order=order)
