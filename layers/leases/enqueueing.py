"""Enqueue items with notes: the times when they were enqueued, become available, and expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import structs

from fdbqueue import BulkInterrupted, BulkReport, Position, Queue, QueueFull
from fdbqueue.arrow.needs import TableRow
from fdbqueue.lowlevel import (
    Database,
    FDBError,
    Notes,
    Steps,
    Transaction,
    append_items,
    check_values,
    chunks_of,
    envelope,
    is_database,
    leaves_in_doubt,
    new_random,
)
from fdbqueue.moves.admission import may_fit_in_parts, note_interrupt
from fdbqueue.stored.items import with_header
from fdbqueue.writes.adaptive_limit import Halving

from .lease import positive, visible_at

BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000
PRIORITY = "priority"
"""The header with an item's priority, which its consumers can read too."""
TERMS = frozenset({"delay", "at", "ttl", "headers"})
COLUMNS = frozenset({"column", "headers_column", "priority_column", "delay_column", "ttl_column"})


class _Counted:
    """Values, with the number of values read so far."""

    def __init__(self, values: Iterable[object]) -> None:
        self._values = values
        self.taken = 0

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self.taken += 1
            yield value


class Encoded(NamedTuple):
    """A value as it is stored."""

    stored: bytes
    """Its envelope."""
    chunks: list[bytes]
    rank: int | None
    label: Any
    """What the layer that appends it computed from the value."""
    notes: Notes | None = None
    """Its own notes; None: those of all."""
    size_bytes: int = 0
    """The size of its payload."""


@dataclass(slots=True)
class _Batch:
    items: list[Encoded] = field(default_factory=list)
    size_bytes: int = 0


Own: TypeAlias = tuple[Any, Mapping[str, Any] | None, Notes]
"""A value with its own headers and notes."""


@dataclass(frozen=True, slots=True)
class RowTerms:
    """The terms of a table's rows: those of all rows, unless a row has its own."""

    now_us: int
    notes: Notes
    headers: Mapping[str, object] | None

    def of_row(self, row: TableRow) -> Own:
        """Return a row's value with its headers and notes.

        Raises:
            ValueError, TypeError: its delay or its time to live is not valid.
        """
        headers = self.headers if row.headers is None else row.headers
        if row.priority is not None:
            headers = with_header(headers, PRIORITY, row.priority)
        changes = {}
        if row.delay is not None:
            changes["visible_at_us"] = visible_at(self.now_us, row.delay, None)
        if row.ttl is not None:
            changes["ttl_at_us"] = self.now_us + positive(row.ttl, "ttl")
        return row.value, headers, structs.replace(self.notes, **changes) if changes else self.notes


def check_names(terms: object, columns: object) -> None:
    """Refuse what are not the terms of all items, or not the names of a table's columns.

    Raises:
        TypeError: they have other names.
    """
    if not isinstance(terms, Mapping) or set(terms) != TERMS:
        raise TypeError(f"terms are a mapping with {', '.join(sorted(TERMS))}, not {terms!r}.")
    if not isinstance(columns, Mapping) or not COLUMNS.issuperset(columns):
        raise TypeError(f"columns are a mapping with names of {', '.join(sorted(COLUMNS))}, not {columns!r}.")


class Append(Protocol):
    """Appends items in a transaction, and returns their positions."""

    def __call__(self, tr: Transaction, /, *, items: list[Encoded]) -> Steps[list[Position]]: ...


async def enqueue_with_notes(
    tr: Transaction | Database,
    queue: Queue,
    values: Iterable[object],
    notes: Notes,
    headers: Mapping[str, object] | None,
    *,
    append: Append | None = None,
    label: Callable[[Any], Any] = lambda value: None,
    row: Callable[[Any], Own] | None = None,
) -> BulkReport:
    """Append `values` in the caller's transaction or, given a database, in batches that commit one by one.

    Args:
        row: returns the value, headers and notes of one of `values` that has its own; None: they have not.
        append: how a layer appends them; None: at the end of the queue.
        label: computes a label of each value for `append`.
    """
    own_transactions = is_database(tr)
    check_values(values)
    first = last = None
    items = size_bytes = transactions = 0
    unknown: list[tuple[int, int]] = []
    counted = _Counted(values)
    append = append or partial(_append, queue=queue, notes=notes)
    try:
        halving = Halving(batch.items for batch in _batches(queue, counted, headers, label, row, cut=own_transactions))
        for part in halving:
            body = partial(_fitting, append, part, own_transactions)
            try:
                positions = await queue.transact(tr, body, on_retry=partial(_repeating, halving))
            except _Split:
                halving.halve()
                continue
            except KeyboardInterrupt as stop:
                note_interrupt(stop, len(part))
                if items:
                    stop.add_note(f"{items:,} items before them are in.")
                raise
            except FDBError as error:
                if leaves_in_doubt(error):
                    unknown = [(items, items + len(part))]
                raise
            first, last = first or positions[0], positions[-1]
            items += len(positions)
            size_bytes += sum(item.size_bytes for item in part)
            transactions += own_transactions
    except Exception as error:
        # An error of a value, its codec or the database. The caller must learn that some values are already enqueued.
        if not items:
            raise
        rest = unknown[0][1] if unknown else items
        raise BulkInterrupted(
            f"The enqueue into {queue!r} stopped after {items:,} values were in: {error}. Enqueue the rest again.",
            report=BulkReport(items, size_bytes, first, last, transactions),
            missing=[(rest, counted.taken)] if rest < counted.taken else [],
            unknown=unknown,
        ) from error
    return BulkReport(items, size_bytes, first, last, transactions)


class _Split(Exception):
    """Some of the items may have room, or be in soon enough, and not all."""


def _repeating(halving: Halving[Encoded], error: FDBError) -> None:
    """Repeat no batch that takes too long, or is too large: half of it may not."""
    try:
        halving.note(error)
    except FDBError as too_much:
        raise _Split from too_much


async def _fitting(append: Append, items: list[Encoded], splits: bool, tr: Transaction) -> list[Position]:
    try:
        return await append(tr, items=items)
    except QueueFull as error:
        if splits and may_fit_in_parts(error, len(items)):
            raise _Split from error
        raise


async def _append(tr: Transaction, *, items: list[Encoded], queue: Queue, notes: Notes) -> list[Position]:
    index, random = await queue.next_index(tr, len(items)), new_random()
    stored, chunks, ranks, _, own, _ = zip(*items, strict=True)
    noted = [one or notes for one in own]
    given = None if None in ranks else ranks
    large = [(at, parts) for at, parts in enumerate(chunks) if parts]
    append_items(tr, queue.layout, index, random, stored, given, large, notes=noted)
    return [Position(index + at, random, rank=rank) for at, rank in enumerate(ranks)]


def _batches(
    queue: Queue,
    values: Iterable[object],
    headers: Mapping[str, object] | None,
    label: Callable[[Any], Any],
    row: Callable[[Any], Own] | None,
    *,
    cut: bool,
) -> Iterator[_Batch]:
    batch = _Batch()
    own = None
    for value in values:
        if row is not None:
            value, headers, own = row(value)
        payload = queue.encode(value)
        if cut and batch.items and (len(batch.items) >= BATCH_ITEMS or batch.size_bytes + len(payload) > BATCH_BYTES):
            yield batch
            batch = _Batch()
        stored, chunks = envelope(payload, headers), chunks_of(payload)
        batch.items.append(Encoded(stored, chunks, queue.rank(value, headers), label(value), own, len(payload)))
        batch.size_bytes += len(payload)
    if batch.items:
        yield batch
