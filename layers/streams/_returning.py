"""Give the items of an open batch back to their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from fdbqueue import Queue
from fdbqueue.lowlevel import Database, KeyValue, Notes, Transaction, rows, started, value_of
from fdbqueue.moves.rescue import FoundNotes

from ..leases.leases import CONSUMER_BYTES
from ..leases.transitions import Transitions, cut
from .keys import StreamKeys
from .records import BatchRecord, StreamRecord, decode, encode

ROWS = 500
SIZE_BYTES = 1_000_000


class Returning:
    """Gives the items of a stream's open batch back, in transactions of bounded size.

    Args:
        db: the database.
        queue: the queue.
        keys: the keys of the stream.
        now_us: the clock, in microseconds.
    """

    def __init__(self, db: Database, queue: Queue[Any], keys: StreamKeys, now_us: Callable[[], int]) -> None:
        self._db = db
        self._queue = queue
        self._keys = keys
        self._now_us = now_us

    async def give_back(self, epoch: str | None, begun_us: int = 0) -> int:
        """Give the items back and return how many. The first transaction refuses the reader from then on.

        Args:
            epoch: only if the record still has this epoch; None: in any case.
            begun_us: only if the batch was begun at this time; 0: in any case.
        """
        total = 0
        while True:
            returned, more = await self._queue.transact(self._db, lambda tr: self._some(tr, epoch, begun_us))
            total += returned
            if not more:
                return total

    async def _some(self, tr: Transaction, epoch: str | None, begun_us: int) -> tuple[int, bool]:
        keys = self._keys
        value = await value_of(tr.get(keys.record))
        if not value.present():
            return 0, False
        record = decode(StreamRecord, bytes(value), f"the stream {keys.name!r}")
        batches = await rows(tr, *keys.batches())
        if not batches or (epoch is not None and record.epoch != epoch):
            return 0, False
        last = keys.number_of(batches[-1].key)
        if begun_us and decode(BatchRecord, batches[-1].value, f"batch {last}").begun_us != begun_us:
            return 0, False
        if record.released < last:
            tr.set(keys.record, encode(replace(record, released=last)))
        moves = Transitions(tr, keys.layout, self._now_us())
        asked = started(moves.ask())
        found = await rows(tr, *keys.claims(), limit=ROWS)
        await asked
        done = size = 0
        known = await moves.read_notes({keys.packed_of(row.key)[1]: row.value for row in found})
        for row in found:
            if size > SIZE_BYTES:
                break
            self._return(tr, moves, row, known[keys.packed_of(row.key)[1]])
            size += len(row.value)
            done += 1
        moves.tally("claimed", -done)
        await moves.settle()
        moves.finish()
        if done == len(found) < ROWS:
            tr.clear_range(*keys.batches())
            tr.clear_range(*keys.all_chunks())
            tr.clear_range(*keys.all_tracked())
            return done, False
        return done, True

    def _return(self, tr: Transaction, moves: Transitions, row: KeyValue, found: FoundNotes) -> None:
        batch, packed = self._keys.packed_of(row.key)
        tr.clear(row.key)
        notes = found.notes
        if notes.is_tracked:
            tr.clear(self._keys.tracked(batch, packed))
            moves.count_claimed(notes, -1)
        if found.is_readable:
            again: Notes = replace(notes, attempt=notes.attempt + 1, consumer=cut(self._keys.name, CONSUMER_BYTES))
            moves.put_back(packed, row.value, again, now_us=self._now_us(), delay_us=0)
        else:  # damaged since the claim, which takes none that can't be read
            moves.put_back_unread(packed, row.value, notes)
        if moves.arrived and moves.arrived[-1] == packed:
            moves.set_dependent(packed, notes)
        tr.clear(self._keys.chunks(batch, packed))
