"""Move items that do not decode out of a sealed batch, so that a reader that failed at one can go on."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fdbqueue import FormatError
from fdbqueue.engine.keys import behind
from fdbqueue.lowlevel import (
    KeyValue,
    Transaction,
    is_chunked,
    join_chunks,
    parse,
    rows,
    size_of,
)
from fdbqueue.moves.rescue import FoundNotes

from ..leases.transitions import Transitions
from ._terms import Terms
from .keys import StreamKeys
from .records import BatchRecord

SIFT_BYTES = 1_000_000
"""About how many bytes of items one transaction looks at."""


class Sifting:
    """Makes the bad items of a sealed batch dead letters, in several transactions.

    Args:
        keys: the keys of the stream.
        terms: the terms; `terms.bad` decides.
        now_us: the time.
    """

    def __init__(self, keys: StreamKeys, terms: Terms, now_us: int) -> None:
        self._keys = keys
        self._terms = terms
        self._now_us = now_us
        self._place = keys.items(terms.batch)

    async def some(self, tr: Transaction, batch: BatchRecord, begin: bytes, limit: int) -> tuple[BatchRecord, bytes]:
        """Look at up to `limit` items; return the batch without the bad ones, and where to go on, b"" at the end.

        The caller has read the batch's record in this transaction, without a snapshot: an ack or a release conflicts.
        """
        found = await rows(tr.snapshot, begin, behind(self._place.prefix), limit=limit)
        moves = Transitions(tr, self._keys.layout, self._now_us)
        size = 0
        after = b""
        for number, row in enumerate(found, 1):
            error = await self._error(tr, row)
            if error:
                lost = await moves.read_notes({self._place.packed(row.key): row.value})
                batch = self._without(tr, moves, batch, row, lost, error)
            size += size_of(row.value)
            if size >= SIFT_BYTES or number == limit:
                after = row.key + b"\x00"
                break
        await moves.settle()
        moves.finish()
        return batch, after

    async def _error(self, tr: Transaction, row: KeyValue) -> str:
        chunks: list[KeyValue] = []
        if is_chunked(row.value):
            span = self._keys.layout.chunk_range_of(self._place.packed(row.key))
            chunks = await rows(tr.snapshot, *span)
        try:
            payload = (opened := parse(row.value)).payload
            if opened.chunked is not None:
                payload = join_chunks(opened.chunked, [chunk.value for chunk in chunks])
        except FormatError as error:
            return str(error)
        return "" if self._terms.bad is None else self._terms.bad(payload)

    def _without(
        self,
        tr: Transaction,
        moves: Transitions,
        batch: BatchRecord,
        row: KeyValue,
        lost: Mapping[bytes, FoundNotes],
        error: str,
    ) -> BatchRecord:
        packed = self._place.packed(row.key)
        notes = lost[packed].notes
        number, size = self._terms.batch, size_of(row.value)
        tr.clear(row.key)
        tr.clear(self._keys.chunks(number, packed))
        if notes.is_tracked:
            tr.clear(self._keys.tracked(number, packed))
            moves.count_claimed(notes, -1)
        moves.die(packed, row.value, lost[packed], error)
        moves.tally("claimed", -1)
        splits = [
            replace(split, count=split.count - 1, size_bytes=max(0, split.size_bytes - size))
            if split.first <= packed <= split.last
            else split
            for split in batch.splits
        ]
        return replace(
            batch,
            count=batch.count - 1,
            size_bytes=max(0, batch.size_bytes - size),
            splits=tuple(split for split in splits if split.count),
            chunked=batch.chunked - is_chunked(row.value),
            tracked=batch.tracked - notes.is_tracked,
        )
