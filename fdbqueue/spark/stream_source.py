"""The driver's side of a stream out of a queue, without Spark: what it answers to each call of a trigger.

Spark writes the offset of a batch into its log before it asks for the partitions, and its number into the commit log
after the sink has the batch. So `partitions` claims, and `latest_offset` acks: the start of the next batch is in the
commit log by then. `commit` acks too, for a query that nobody starts again.

An offset is ``{"stream": NAME, "epoch": HEX, "batch": N}``, always in this order, since Spark compares its text. The
first batch of a checkpoint that replaces another one also names the epoch that it replaces.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.engine.api import Database
from fdbqueue.errors import QueuePaused, StreamError
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import Refusals, Split, Stream, StreamLook, StreamRecord, Terms
from fdbqueue.spark.opening import check_queue, check_reads
from fdbqueue.spark.options import DEAD, FAIL, WAIT, Options
from fdbqueue.stored.settings import paused_error
from fdbqueue.verbs.queue import Queue

WAIT_SECONDS = 1.0
"""How long a poll waits for an item, instead of asking again every 10 ms."""
SHORT_SECONDS = 0.2
"""How long a poll rests while there are too few items."""
UNLIMITED = 1 << 60
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A parsed offset."""

    epoch: str
    batch: int
    replaces: str | None = None

    @classmethod
    def parse(cls, offset: Mapping[str, Any], stream: str) -> StreamPlace:
        """Parse an offset of Spark's log.

        Raises:
            StreamError: it belongs to another stream.
        """
        try:
            found, place = offset["stream"], cls(offset["epoch"], int(offset["batch"]), offset.get("replaces"))
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(f"The checkpoint's offset {dict(offset)!r} is not one of a fdbqueue stream.") from error
        if found != stream:
            raise StreamError(
                f"The checkpoint is of the stream {found!r}, and the option streamName is {stream!r} now. A stream"
                " keeps its name as long as its checkpoint."
            )
        return place


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


class SourceRefusals(Refusals):
    """The errors of a query's stream."""

    def foreign(self, record: StreamRecord) -> StreamError:
        """Return the error of a checkpoint that is not the stream's."""
        if record.epoch == EPOCH:
            return StreamError(
                f"{self.name!r} is the name of a claim (fdbqueue.spark.claim). Give this query a streamName of its own."
            )
        return super().foreign(record)


class StreamSource:
    """One run of a query's source.

    Args:
        db: the database.
        options: the options of the stream.
        bad: why a payload does not decode, for ``onBadItem=dead``.
        clock: seconds, for `maxTriggerDelay`.
        rest: waits.
        wall: seconds since 1970, for the timers of items.
        wait_seconds: how long a poll waits for an item.
    """

    def __init__(
        self,
        db: Database,
        options: Options,
        *,
        bad: Callable[[bytes], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
        wall: Callable[[], float] = time.time,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._db = db
        self._options = options
        self._bad = bad if options.on_bad_item == DEAD else None
        self._clock = clock
        self._rest = rest
        self._wait_seconds = wait_seconds
        queue = Queue(options.layout().space)
        leases = Leases(queue, max_attempts=options.max_attempts, clock=wall)
        self._refusals = SourceRefusals(options.stream)
        self._stream = Stream(leases, options.stream, clock=wall, refusals=SourceRefusals)
        self._epoch = secrets.token_hex(8)
        self._run = secrets.token_hex(8)
        self._established = False
        self._acked = 0
        self._codec_fits = False
        self._left: int | None = None
        self._unlimited = False
        self._asked = 0
        self._since: float | None = None
        self._look: StreamLook | None = None

    def initial_offset(self) -> Offset:
        """Return the offset before the first batch. It is always the same, since Spark may ask twice."""
        return self._offset(StreamPlace("", 0))

    def prepare_for_available_now(self) -> None:
        """Note how many items there are. The query ends when it has taken so many, though producers go on.

        Raises:
            UnknownQueue: there is no such queue. QueueRenamed: it has another name now.
        """
        check_queue(self._db, self._stream.queue.layout)
        while self._stream.leases.reclaim(self._db, limit=64).more:
            pass
        self._look = self._stream.look(self._db)
        there = self._look.stats.available
        if self._options.on_lost_checkpoint == "redeliver":
            there += self._lost_items(self._look)
        self._left = min(there, self._options.limit or UNLIMITED)

    def latest_offset(self, start: Offset, *, unlimited: bool = False) -> Offset:
        """Ack what is committed, and return the next batch's offset, or `start` if there is nothing to take.

        Raises:
            StreamError: the checkpoint does not fit the stream's record. QueuePaused: the queue is paused, and the
                query does not wait. OtherCodec: the queue has another codec. ValueError: the query runs without end,
                and there is a limit.
        """
        if self._options.limit is not None and self._left is None:
            raise ValueError(
                f"The option limit counts the items of a run that ends, and this query runs on after"
                f" {self._options.limit:,} items. Use trigger(availableNow=True). The size of one batch is"
                " maxItemsPerTrigger."
            )
        if self._look is None or self._left is not None:
            self._check_codec()
        place = StreamPlace.parse(start, self._options.stream)
        self._ack(place)
        self._unlimited = unlimited
        look = self._looked()
        following = self._following(place, look)
        if look.paused is not None:
            return start
        if not self._is_due(look) and not (following.replaces is not None and self._lost_items(look)):
            return start
        # An idle query of a queue that is not registered yet asks here only, not at each look.
        self._check_codec()
        self._asked = following.batch
        return self._offset(following)

    def partitions(self, start: Offset, end: Offset) -> list[tuple[int, str, Split]]:
        """Claim the batch, or find it as it was claimed. Return its splits, each with batch and epoch.

        Raises:
            StreamError: the checkpoint does not fit the stream's record. QueuePaused: the queue is paused, the batch is
                not sealed, and the query does not wait. OtherCodec: the queue has another codec.
        """
        before, place = StreamPlace.parse(start, self._options.stream), StreamPlace.parse(end, self._options.stream)
        if place.batch == before.batch:
            return []
        self._ack(before)
        self._check_codec()
        try:
            batch = self._stream.claim(self._db, self._terms(place))
        except QueuePaused as error:
            raise _with_the_option(error) from error
        self._established = True
        self._since = None
        if self._left is not None and self._asked == place.batch:
            self._left -= batch.count
            self._asked = 0
        return [(place.batch, place.epoch, split) for split in batch.splits]

    def commit(self, end: Offset) -> None:
        """Ack a batch that is in the commit log."""
        self._ack(StreamPlace.parse(end, self._options.stream))

    def _check_codec(self) -> None:
        """Refuse another codec than the queue's, until the queue is seen to be registered with this one."""
        if not self._codec_fits:
            self._codec_fits = check_reads(self._db, self._stream.queue.layout, self._options.codec)

    def _ack(self, place: StreamPlace) -> None:
        if place.batch != self._acked:  # an idle query asks again and again
            self._stream.ack(self._db, self._terms(place))
            self._acked = place.batch

    def report(self) -> dict[str, Any] | None:
        """Return the queue's figures at the last poll, for the query's progress."""
        if self._look is None:
            return None
        stats = self._look.stats
        return {
            name: getattr(stats, name)
            for name in ("available", "leased", "delayed", "dead", "claimed", "enqueued", "dequeued")
        }

    def _looked(self) -> StreamLook:
        """Look at the queue. A query that ends waits while the queue is paused, or fails.

        Raises:
            QueuePaused: it is paused, and the query does not wait.
        """
        seconds = 0.0 if self._left is not None else self._wait_seconds
        while True:
            self._look = look = self._stream.look(self._db, seconds=seconds)
            if look.paused is None or self._left == 0:
                return look
            if not self._waits:
                raise _with_the_option(paused_error(self._stream.queue.layout, look.paused))
            if self._left is None and not self._unlimited:
                return look
            seconds = self._wait_seconds

    @property
    def _waits(self) -> bool:
        """Whether the query waits while the queue is paused."""
        if self._options.on_paused is not None:
            return self._options.on_paused == WAIT
        return self._left is None and not self._unlimited

    def _is_due(self, look: StreamLook) -> bool:
        """Return whether to take a batch now."""
        if not look.any:
            self._since = None
            return False
        if self._left is not None:
            return self._left > 0
        if look.stats.available >= self._options.min_items_per_trigger:
            return True
        if self._since is None:
            self._since = self._clock()
        if self._clock() - self._since >= self._options.max_trigger_delay:
            return True
        self._rest(SHORT_SECONDS)
        return False

    def _lost_items(self, look: StreamLook) -> int:
        """Return how many items a lost checkpoint's open batch has. It is settled though no other item is there."""
        if look.record is None or not look.stats.claimed:
            return 0
        state = self._stream.state(self._db)
        return state.items if state is not None and state.epoch != self._epoch else 0

    def _following(self, place: StreamPlace, look: StreamLook) -> StreamPlace:
        record = look.record
        if place.batch:
            acked = record.acked if record is not None and record.epoch == place.epoch else 0
            return StreamPlace(place.epoch, max(place.batch, acked) + 1)
        if record is None or record.epoch == self._epoch:
            return StreamPlace(self._epoch, 1)
        if record.epoch == EPOCH or (record.released <= record.acked and self._options.on_lost_checkpoint == FAIL):
            raise self._refusals.foreign(record)
        return StreamPlace(self._epoch, 1, replaces=record.epoch)

    def _terms(self, place: StreamPlace) -> Terms:
        options = self._options
        items, size = options.max_items_per_trigger, options.max_bytes_per_trigger
        if self._unlimited and self._asked == place.batch and self._look is not None:
            items, size = max(1, self._look.stats.available), UNLIMITED
        if self._left is not None and self._asked == place.batch:
            items = min(items, max(1, self._left))
        return Terms(
            epoch=place.epoch,
            batch=place.batch,
            run=self._run,
            established=self._established,
            items=items,
            size_bytes=size,
            at_least_splits=options.min_partitions,
            split_items=options.max_items_per_partition,
            replaces=place.replaces,
            open_batch="drop" if options.on_lost_checkpoint == "drop" else "redeliver",
            strict=options.fail_on_data_loss,
            bad=self._bad,
            waits=self._waits,
        )

    def _offset(self, place: StreamPlace) -> Offset:
        offset: Offset = {"stream": self._options.stream, "epoch": place.epoch, "batch": place.batch}
        if place.replaces is not None:
            offset["replaces"] = place.replaces
        return offset


def _with_the_option(error: QueuePaused) -> QueuePaused:
    told = f"{error} With the option onPaused=wait the query waits itself."
    return QueuePaused(told, by=error.by, reason=error.reason)
