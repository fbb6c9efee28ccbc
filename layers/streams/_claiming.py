"""Move items from the head of a queue into a batch, in one transaction of several."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from fdbqueue import FormatError
from fdbqueue.lowlevel import (
    NO_NOTES,
    TAKEN,
    KeyValue,
    Steps,
    Transaction,
    has_notes,
    is_chunked,
    join_chunks,
    keep_out,
    notes_of,
    parse,
    raise_high_water_mark,
    rows,
    set_rows,
    size_of,
)

from ..leases._transitions import Transitions, at_rest, cut, is_over
from ._keys import StreamKeys
from ._records import BatchRecord, Split, splits_of, thinned
from ._terms import Terms

CLAIM_BYTES = 1_000_000
"""About how many bytes one transaction moves."""
FIRST_ROWS = 100
"""How many items the first transaction of a batch reads: their size is unknown."""
MOST_ROWS = 4_000
PIECES = 64
"""About how many pieces a batch has, from which its splits are made."""
ERROR_BYTES = 1_000


@dataclass(slots=True)
class _Haul:
    """The items that one transaction moves."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size_bytes: int = 0
    chunked: list[bytes] = field(default_factory=list)
    """The packed positions of those in chunks."""
    beside: list[bytes] = field(default_factory=list)
    """Their dependent keys."""
    dealt: int = 0
    """How many rows were handled, always the first ones: moved, expired or dead."""
    full: bool = False
    """Whether the batch is complete."""


class Claiming:
    """Claims the items of one batch.

    Args:
        keys: the keys of the stream.
        terms: the terms.
        now_us: the time.
    """

    def __init__(self, keys: StreamKeys, terms: Terms, now_us: int) -> None:
        self._keys = keys
        self._layout = keys.layout
        self._terms = terms
        self._now_us = now_us
        self._place = keys.items(terms.batch)

    def more(self, tr: Transaction, batch: BatchRecord, limit: int) -> Steps[BatchRecord]:
        """Claim up to `limit` more items, and write the batch's record.

        Raises:
            SubscriptionError: the queue has an exclusive subscription.
            FormatError: the first item can't be read, and the batch has no other.

        *Conflicts:* as `Queue.dequeue_many`. *Cost:* one range read, and one write per item.
        """
        yield from keep_out(tr, self._layout)
        wanted = min(limit, self._terms.items - batch.count)
        begin = self._layout.begin
        found = yield from rows(tr.snapshot, begin, self._layout.end, limit=wanted)
        moves = Transitions(tr, self._layout)
        haul = _Haul()
        for row in found:
            try:
                error = "" if self._terms.bad is None else (yield from self._error(tr, row))
                taken = self._take(moves, haul, row, batch, error)
            except FormatError as refused:
                if not haul.keys and not batch.count:
                    raise self._unreadable(row, refused) from refused
                haul.full = True
                break
            if not taken:
                break
            haul.dealt += 1
        ended = len(found) < wanted and haul.dealt == len(found)
        if haul.dealt:
            # As in `Head.take`: it conflicts with another take of one of these, and with an item that appears in front.
            last = found[haul.dealt - 1].key
            tr.add_read_conflict_range(begin, last + b"\x00")
            tr.clear_range(found[0].key, last + TAKEN)
        for packed in haul.chunked:
            tr.set(self._keys.chunks(self._terms.batch, packed), b"")
        for key in haul.beside:
            tr.clear(key)
        if haul.keys:
            set_rows(tr, haul.keys, haul.values)
            moves.tally("claimed", len(haul.keys))
            last_index = self._layout.position_of(self._layout.available.key(haul.packed[-1])).index
            raise_high_water_mark(tr, self._layout, last_index)
        moves.finish()
        claimed = self._with(batch, haul)
        if ended or haul.full or claimed.count >= self._terms.items:
            terms = self._terms
            splits = splits_of(claimed.splits, at_least=terms.at_least_splits, most_items=terms.split_items)
            claimed = replace(claimed, sealed=True, splits=splits)
        return claimed

    def _take(self, moves: Transitions, haul: _Haul, row: KeyValue, batch: BatchRecord, error: str) -> bool:
        """Take one item; return False if it stays, for another transaction or another batch.

        Raises:
            FormatError: it can't be read.
        """
        value = row.value
        packed = self._layout.available.packed(row.key)
        notes = notes_of(value) if has_notes(value) else NO_NOTES
        if is_over(notes, self._now_us):
            moves.leave_available(packed, notes, cleared=True)
            moves.vanish(packed, value, "expired")
            return True
        if error:
            moves.leave_available(packed, notes, cleared=True)
            told = cut(error, ERROR_BYTES - sum(map(len, notes.beside)))
            moves.enter_dead(packed, value, at_rest(notes, error=told, died_at_us=self._now_us))
            return True
        size = size_of(value)
        if (haul.keys or batch.count) and batch.size_bytes + haul.size_bytes + size > self._terms.size_bytes:
            haul.full = True
            return False
        if haul.keys and haul.size_bytes + size > CLAIM_BYTES:
            return False
        moves.leave_available(packed, notes, cleared=True)
        haul.keys.append(self._place.key(packed))
        haul.values.append(value)
        haul.packed.append(packed)
        haul.sizes.append(size)
        haul.size_bytes += size
        haul.beside += self._layout.dependent_keys(notes.beside, packed)
        if is_chunked(value):
            haul.chunked.append(packed)
        return True

    def _error(self, tr: Transaction, row: KeyValue) -> Steps[str]:
        opened = parse(row.value)
        payload = opened.payload
        if opened.chunked is not None:
            packed = self._layout.available.packed(row.key)
            chunks = yield from rows(tr.snapshot, *self._layout.chunk_range_of(packed))
            payload = join_chunks(opened.chunked, [chunk.value for chunk in chunks])
        return "" if self._terms.bad is None else self._terms.bad(payload)

    def _unreadable(self, row: KeyValue, error: FormatError) -> FormatError:
        position = self._layout.position_of(row.key)
        return FormatError(
            f"The item {position.text} of {self._layout.describe()} can't be claimed and was left there. {error}"
        )

    def _with(self, batch: BatchRecord, haul: _Haul) -> BatchRecord:
        """Return the batch with the items of this transaction, in pieces that splits can be made of."""
        size = max(1, min(self._terms.items, self._terms.split_items * PIECES) // PIECES)
        size = min(size, max(1, -(-len(haul.packed) // self._terms.at_least_splits)))
        pieces = [
            Split(
                haul.packed[at],
                haul.packed[min(at + size, len(haul.packed)) - 1],
                min(size, len(haul.packed) - at),
                sum(haul.sizes[at : at + size]),
            )
            for at in range(0, len(haul.packed), size)
        ]
        return replace(
            batch,
            count=batch.count + len(haul.packed),
            size_bytes=batch.size_bytes + haul.size_bytes,
            splits=tuple(thinned([*batch.splits, *pieces])),
            chunked=batch.chunked + len(haul.chunked),
        )
