"""Named claims: a batch program takes items, reads them by any number of Spark jobs, and acks them.

A claim is the first batch of a stream of its own, without Spark's logs: the program's output under the claim's name
says whether it was processed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fdbqueue.errors import QueuePaused, StreamError
from fdbqueue.layers.streams import BatchRecord, Stream
from fdbqueue.spark.opening import check_queue, existing
from fdbqueue.spark.options import CLAIM, FAIL, WAIT, naming, parse, url_of
from fdbqueue.spark.stream_source import EPOCH, ClaimRefusals, terms
from fdbqueue.stored.layout import Name
from fdbqueue.verbs.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Claim:
    """Items that were claimed under a name; see `claim`."""

    def __init__(self, url: str, queue: Name, name: str, record: BatchRecord, *, done: bool) -> None:
        self._url = url
        self._queue = queue
        self.name = name
        self.done = done
        """Whether the claim was acked before. It has no items then."""
        self.count = record.count
        """How many items it has; 0 if it is done, or if there was nothing to claim."""
        self.size_bytes = record.size_bytes
        """About how many bytes their payloads have."""
        self._begun_us = record.begun_us

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, {'done' if self.done else f'{self.count:,} items'})"

    def dataframe(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return the items as a DataFrame. It has the same rows in every action, until the claim is acked.

        Args:
            spark: a session.
            options: ``codec``, ``onBadItem`` and ``includeHeaders``, as for a stream.

        Raises:
            StreamError: it has no items, or is done. ValueError: an option is not valid.
        """
        from fdbqueue.spark.dataframe import register

        self._refuse_nothing()
        if self.done:
            raise StreamError(f"The claim {self.name!r} was acked before, and its items are gone.")
        given = {**options, "url": self._url, **naming(self._queue), "claim": self.name}
        parse(CLAIM, given)
        register(spark)
        return spark.read.format("fdbqueue").options(**given).load()

    def ack(self) -> None:
        """Remove the items. Call it when the output is complete. A second call changes nothing.

        Raises:
            StreamError: it has no items; or it was released, also if it was claimed again since, or the queue was
                cleared. Nothing was removed.
        """
        self._refuse_nothing()
        with existing(self._url) as db:
            _stream(self._queue, self.name).ack(db, replace(terms(1, 1), begun_us=self._begun_us))
        self.done = True

    def release(self) -> int:
        """Give the items back to their places, and the name free; return how many items there were.

        Raises:
            StreamError: it has no items, is done, or was released before.
        """
        with existing(self._url) as db:
            stream = _stream(self._queue, self.name)
            record = stream.record(db)
            if record is None or record.acked or record.epoch != EPOCH:
                raise StreamError(f"The claim {self.name!r} is acked, or no claim: there is nothing to give back.")
            batch = stream.sealed(db, 1)
            if self._begun_us and batch is not None and batch.begun_us != self._begun_us:
                raise ClaimRefusals(self.name).given_back(record)
            returned = stream.release(db, begun_us=self._begun_us)
            stream.forget(db)
        return returned

    def _refuse_nothing(self) -> None:
        if not self.count and not self.done:
            raise StreamError(
                f"The claim {self.name!r} has no items, since the queue had none to take. Nothing is noted under this"
                " name, and a later call of fdbqueue.spark.claim may find some. Go on only if claim.count is not 0."
            )


def claim(
    *,
    url: str,
    queue: Name,
    name: str,
    limit: int = 100_000,
    partitions: int = 1,
    items_per_partition: int = 10_000,
    on_paused: str = FAIL,
) -> Claim:
    """Claim items for a batch program, or find them as they were claimed under that name.

    It is exactly once if the output is written under the claim's name, so that a second run replaces it: to a folder of
    that name with ``mode("overwrite")``, or to a partition of a table. Ack the claim after that. A run that finds the
    claim done has nothing to do. If the queue has nothing to take, the claim's `count` is 0 and nothing is noted: the
    same name may find items later.

    Args:
        url: the database, as for `fdbqueue.open`, but never ``memory:``: Spark's tasks open it too. It must be there.
        queue: the queue.
        name: identifies the claim, for example the date of the run.
        limit: how many items at most.
        partitions: how many partitions the DataFrame has at least, if there are enough items.
        items_per_partition: about how many items a partition has at most.
        on_paused: "fail" or "wait" while the queue is paused. A claim that was complete before is found all the same.

    Raises:
        StreamError: the name is a stream's. QueuePaused: the queue is paused, and `on_paused` is "fail".
        UnknownQueue: there is no such queue. StorageError: there is no database at the URL.
        ValueError: an argument is not valid. TypeError: the URL or the name is not a str.

    *Conflicts:* as `Queue.dequeue_many`. *Cost:* a transaction for each 4,000 items or 1 MB.
    """
    for what, value in (("limit", limit), ("partitions", partitions), ("items_per_partition", items_per_partition)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{what} is a whole number from 1, not {value!r}.")
    if on_paused not in (FAIL, WAIT):
        raise ValueError(f"on_paused is 'fail' or 'wait', not {on_paused!r}.")
    url = url_of(url)
    stream = _stream(queue, name)
    asked = terms(limit, partitions, items_per_partition, waits=on_paused == WAIT)
    with existing(url) as db:
        check_queue(db, stream.queue.layout)
        record = stream.record(db)
        if record is not None and record.epoch == EPOCH:
            if record.acked:
                return Claim(url, queue, name, BatchRecord(sealed=True), done=True)
            if record.released:  # its release was interrupted, or an operator released it
                stream.release(db)
                stream.forget(db)
        try:
            batch = stream.claim(db, asked)
        except QueuePaused as error:
            told = f"{error} With on_paused='wait' the claim waits itself."
            raise QueuePaused(told, by=error.by, reason=error.reason) from error
    return Claim(url, queue, name, batch, done=False)


def _stream(queue: Name, name: str) -> Stream[bytes]:
    return Stream(Queue(queue), name, refusals=ClaimRefusals)
