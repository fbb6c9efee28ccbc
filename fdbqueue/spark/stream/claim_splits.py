"""The splits of a claim, as its readers find them, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fdbqueue.errors import StreamError
from fdbqueue.layers.streams import Refusals, Stream, StreamRecord, Terms

EPOCH = "claim"
MAX_BYTES = 1 << 60


class ClaimRefusals(Refusals):
    """The errors of a claim, whose program knows no checkpoints."""

    def foreign(self, record: StreamRecord) -> StreamError:
        """Return the error of a name that a stream has."""
        return StreamError(
            f"{self.name!r} is the name of a stream. Give the claim a name of its own. fdbqueue.spark.streams lists all"
            " names of a queue."
        )

    def restored(self, record: StreamRecord, batch: int) -> StreamError:
        """Return the error of a claim that was acked."""
        return StreamError(f"The claim {self.name!r} was acked before, and its items are gone.")

    def given_back(self, record: StreamRecord) -> StreamError:
        """Return the error of a claim that was released."""
        return StreamError(
            f"The claim {self.name!r} was released, and its items went back to the queue. Nothing was removed. Drop the"
            " output, and claim again."
        )

    def gone(self, batch: int) -> StreamError:
        """Return the error of a claim whose record is gone."""
        return StreamError(
            f"There is no claim {self.name!r}: its items were never claimed, it was released, or the queue was cleared."
            " Nothing was removed. Claim by fdbqueue.spark.claim, and read the items before the ack."
        )

    def short(self, batch: int, found: int, count: int) -> StreamError:
        """Return the error of a split that lacks items."""
        return StreamError(
            f"A part of the claim {self.name!r} has {found:,} of its {count:,} items: it was acked or released while"
            " this job read it, or the queue was cleared. Drop what the job has written."
        )


def splits(stream: Stream[bytes], db: Any) -> Sequence[tuple[int, str, Any]]:
    """Return the splits of a claim.

    Raises:
        StreamError: there is no claim of that name, it is not complete, or it is done.
    """
    refusals = ClaimRefusals(stream.name)
    record = stream.record(db)
    if record is None:
        raise refusals.gone(1)
    if record.epoch != EPOCH:
        raise refusals.foreign(record)
    if record.acked:
        raise refusals.restored(record, 1)
    if record.released:
        raise refusals.given_back(record)
    batch = stream.sealed(db, 1)
    if batch is None:
        raise StreamError(
            f"The claim {stream.name!r} is not complete: its program was stopped while it claimed. Call"
            " fdbqueue.spark.claim with this name, which goes on."
        )
    return [(1, EPOCH, split) for split in batch.splits]


def terms(items: int, partitions: int, split_items: int = 10_000, *, waits: bool = False) -> Terms:
    """Return the terms of a claim as the first batch of a stream."""
    return Terms(
        epoch=EPOCH,
        batch=1,
        run="",
        items=items,
        size_bytes=MAX_BYTES,
        at_least_splits=partitions,
        split_items=split_items,
        seals_empty=False,
        waits=waits,
    )
