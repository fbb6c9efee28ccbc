"""Enqueue items with notes: the times when they were enqueued, become available, and expire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fdbqueue import BulkInterrupted, BulkReport, Position, Queue
from fdbqueue.lowlevel import (
    Database,
    FDBError,
    Notes,
    Steps,
    Transaction,
    check_values,
    chunks_of,
    envelope,
    is_database,
    leaves_in_doubt,
    new_random,
    pack,
    write_chunks,
)

from ._transitions import Transitions

BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000


class _Counted:
    """Values, with the number of values read so far."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = values
        self.taken = 0

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self.taken += 1
            yield value


@dataclass(slots=True)
class _Batch:
    items: list[tuple[bytes, list[bytes], int | None]] = field(default_factory=list)
    """Envelope, chunks and rank of each."""
    size_bytes: int = 0


def enqueue_with_notes(
    tr: Transaction | Database,
    queue: Queue,
    values: Iterable[Any],
    notes: Notes,
    headers: Mapping[str, Any] | None,
) -> Steps[BulkReport]:
    """Append `values` in the caller's transaction or, given a database, in batches that commit one by one."""
    check_values(values)
    first = last = None
    items = size_bytes = transactions = 0
    unknown: list[tuple[int, int]] = []
    counted = _Counted(values)
    try:
        for batch in _batches(queue, counted, headers, cut=is_database(tr)):
            try:
                positions = yield from queue.transact(tr, partial(_append, queue=queue, batch=batch, notes=notes))
            except FDBError as error:
                if leaves_in_doubt(error):
                    unknown = [(items, items + len(batch.items))]
                raise
            first, last = first or positions[0], positions[-1]
            items += len(positions)
            size_bytes += batch.size_bytes
            transactions += is_database(tr)
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


def _append(tr: Transaction, queue: Queue, batch: _Batch, notes: Notes) -> Steps[list[Position]]:
    layout = queue.layout
    index = yield from queue.next_index(tr, len(batch.items))
    random = new_random()
    moves = Transitions(tr, layout)
    positions = [Position(index + at, random, rank=rank) for at, (_, _, rank) in enumerate(batch.items)]
    for position, (stored, chunks, _) in zip(positions, batch.items, strict=True):
        if notes.visible_at_us:
            moves.enter_delayed(pack(position), stored, notes)
        else:
            moves.enter_available(pack(position), stored, notes)
        write_chunks(tr, layout, position, chunks)
    moves.tally("enqueued", len(positions))
    moves.finish()
    return positions


def _batches(queue: Queue, values: Iterable[Any], headers: Mapping[str, Any] | None, *, cut: bool) -> Iterator[_Batch]:
    batch = _Batch()
    for value in values:
        payload = queue.encode(value)
        if cut and batch.items and (len(batch.items) >= BATCH_ITEMS or batch.size_bytes + len(payload) > BATCH_BYTES):
            yield batch
            batch = _Batch()
        batch.items.append((envelope(payload, headers), chunks_of(payload), queue.rank(value, headers)))
        batch.size_bytes += len(payload)
    if batch.items:
        yield batch
