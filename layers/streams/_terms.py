"""The terms of a claim, and the refusals of a reader whose log does not fit the stream's record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fdbqueue import StreamError
from fdbqueue.lowlevel import Layout, Transaction, rows

from .records import StreamRecord

Undecided: TypeAlias = Literal["redeliver", "drop"]
"""What becomes of an open batch whose reader lost its log: its items come back, or they count as processed."""
Bad: TypeAlias = Callable[[bytes], str]
"""Returns why an item's payload can't be decoded, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms on which a reader claims a batch."""

    epoch: str
    """Identifies the reader's log."""
    batch: int
    """The number of the batch, from 1."""
    run: str
    """Identifies this run of the reader."""
    established: bool = False
    """Whether this run has claimed before. Then it is refused once another run has claimed."""
    items: int
    """How many items at most."""
    size_bytes: int
    """About how many bytes of payload at most. The first item is taken whatever its size."""
    at_least_splits: int = 1
    split_items: int = 5_000
    """About how many items a split has at most."""
    replaces: str | None = None
    """The epoch that the first batch of this log may replace; None: it replaces none."""
    open_batch: Undecided | None = None
    """What becomes of the open batch of the replaced epoch."""
    strict: bool = True
    """Whether a batch that is gone is an error. Otherwise it is empty."""
    bad: Bad | None = None
    """Decides which items become dead letters instead of being claimed; None: none."""
    seals_empty: bool = True
    """Whether a batch is sealed though there was nothing to take. Otherwise nothing is written then."""
    begun_us: int = 0
    """When the batch to ack was begun; an ack of one that was released and claimed again is refused. 0: any."""
    waits: bool = False
    """Whether a claim waits while the queue is paused. Otherwise that is an error."""


class TakeOver(Exception):
    """The record has the epoch that this claim replaces; nothing was written."""


class Refusals:
    """The errors of a stream. A caller whose users know no checkpoints gives its own words.

    Args:
        name: the stream's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def foreign(self, record: StreamRecord) -> StreamError:
        """Return the error of a log that is not the stream's."""
        return StreamError(
            f"The stream {self.name!r} belongs to another checkpoint, which has acked batch {record.acked}. If that one"
            " is lost, set onLostCheckpoint: redeliver brings the items of its open batch again, drop takes them for"
            " processed. If it is in use, give this query a streamName of its own. fdbqueue.spark.streams shows all"
            " streams of a queue."
        )

    def restored(self, record: StreamRecord, batch: int) -> StreamError:
        """Return the error of a log that is older than the record."""
        return StreamError(
            f"Batch {batch} of the stream {self.name!r} was acked before, and its items are gone; the last acked batch"
            f" is {record.acked}. The checkpoint is an older copy, or another driver went on. If the sink has kept what"
            " it had, set failOnDataLoss=false: acked batches are then empty."
        )

    def given_back(self, record: StreamRecord) -> StreamError:
        """Return the error of a reader whose batch was released."""
        return StreamError(
            f"Batch {record.released} of the stream {self.name!r} was released, and its items went back to the queue."
            " This checkpoint can't go on: it would write them a second time. Start the query with a new checkpoint."
        )

    def gone(self, batch: int) -> StreamError:
        """Return the error of a stream whose record is gone."""
        return StreamError(
            f"The record of the stream {self.name!r} is gone, and the checkpoint is at batch {batch}: the queue was"
            " cleared, or the stream was forgotten. With failOnDataLoss=false the query goes on with what is in the"
            " queue now."
        )

    def short(self, batch: int, found: int, count: int) -> StreamError:
        """Return the error of a split that lacks items."""
        return StreamError(
            f"A split of batch {batch} of the stream {self.name!r} has {found:,} of its {count:,} items: another driver"
            " acked or released the batch, or the queue was cleared. Nothing of this attempt may be used."
        )


def check_record(record: StreamRecord, refusals: Refusals, terms: Terms) -> bool:
    """Return whether the batch is still to be claimed; False: it was acked, and counts as empty.

    Raises:
        StreamError: the record does not fit. TakeOver: it has the epoch to replace.
    """
    if record.epoch != terms.epoch:
        if terms.batch == 1 and terms.replaces == record.epoch and terms.open_batch is not None:
            raise TakeOver
        raise refusals.foreign(record)
    check_run(record, refusals.name, terms.run, established=terms.established)
    if record.acked >= terms.batch:
        if terms.strict:
            raise refusals.restored(record, terms.batch)
        return False
    if record.released >= terms.batch:
        raise refusals.given_back(record)
    return True


def check_run(record: StreamRecord, stream: str, run: str, *, established: bool) -> None:
    """Refuse a run after another run has claimed.

    Raises:
        StreamError: another run has.
    """
    if established and record.run != run:
        raise StreamError(
            f"Another reader has gone on with the stream {stream!r}: a second driver runs on this checkpoint, or on a"
            " copy of it. This one stops. Keep one of them."
        )


_FOR_A_STREAM = "For a stream, enqueue without sessions into a queue of its own; a handler may do that."


async def refuse_sessions(tr: Transaction, layout: Layout, what: str, remedy: str = "") -> None:
    """Refuse a queue that has items in sessions, which would be left out. One read by snapshot.

    Args:
        what: the caller, for the message.
        remedy: how the caller can see these items; "" if it can't.

    Raises:
        StreamError: it has.
    """
    span = layout.space["items"].range()
    if await rows(tr.snapshot, span.start, span.stop, limit=1):
        raise StreamError(
            f"{layout.describe()} has items in sessions, and {what} does not see these. {remedy or _FOR_A_STREAM} Take"
            " them by fdbqueue.layers.Sessions or a Consumer of it, which keeps the order of each session."
        )
