"""The splits of a claim, as its readers find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fdbqueue.errors import StreamError
from fdbqueue.layers.streams import BatchRecord, Stream, Terms

EPOCH = "claim"
MAX_BYTES = 1 << 60


def splits(stream: Stream[bytes], db: Any) -> Sequence[tuple[int, str, Any]]:
    """Return the splits of a claim.

    Raises:
        StreamError: there is no claim of that name, or it is done.
    """
    record = stream.record(db)
    if record is None or record.epoch != EPOCH or record.acked or record.released:
        raise StreamError(
            f"{stream.queue!r} has no open claim {stream.name!r}: make it by fdbqueue.spark.claim, and read it before"
            " its ack."
        )
    return list(_open_splits(stream.claim(db, terms(1, 1))))


def _open_splits(record: BatchRecord) -> Iterator[tuple[int, str, Any]]:
    for split in record.splits:
        yield 1, EPOCH, split


def terms(items: int, partitions: int, split_items: int = 10_000) -> Terms:
    """Return the terms of a claim as the first batch of a stream."""
    return Terms(
        epoch=EPOCH,
        batch=1,
        run="",
        items=items,
        size_bytes=MAX_BYTES,
        at_least_splits=partitions,
        split_items=split_items,
    )
