"""Named claims: a batch program takes items, reads them by any number of Spark jobs, and acks them.

A claim is the first batch of a stream of its own, without Spark's logs: the program's output under the claim's name
says whether it was processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import fdbqueue
from fdbqueue.errors import StreamError
from fdbqueue.layers.streams import BatchRecord, Stream
from fdbqueue.layout import Name
from fdbqueue.queue import Queue
from fdbqueue.spark.claimsplits import EPOCH, terms
from fdbqueue.spark.optionvalues import naming, url_of

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
        """How many items it has."""
        self.size_bytes = record.size_bytes
        """About how many bytes their payloads have."""

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, {'done' if self.done else f'{self.count:,} items'})"

    def dataframe(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return the items as a DataFrame. It has the same rows in every action, until the claim is acked.

        Args:
            spark: a session.
            options: ``codec``, ``onBadItem`` and ``includeHeaders``, as for a stream.
        """
        from fdbqueue.spark.dataframe import register

        register(spark)
        given = {**options, "url": self._url, **naming(self._queue), "claim": self.name}
        return spark.read.format("fdbqueue").options(**given).load()

    def ack(self) -> None:
        """Remove the items. Call it when the output is complete. A second call changes nothing."""
        with fdbqueue.open(self._url) as db:
            Stream(Queue(self._queue), self.name).ack(db, terms(1, 1))
        self.done = True

    def release(self) -> int:
        """Give the items back to their places, and the name free; return how many items there were."""
        with fdbqueue.open(self._url) as db:
            stream = Stream(Queue(self._queue), self.name)
            record = stream.record(db)
            if record is None or record.acked or record.epoch != EPOCH:
                raise StreamError(f"The claim {self.name!r} is acked, or no claim: there is nothing to give back.")
            returned = stream.release(db)
            stream.forget(db)
        return returned


def claim(
    *, url: str, queue: Name, name: str, limit: int = 100_000, partitions: int = 1, items_per_partition: int = 10_000
) -> Claim:
    """Claim items for a batch program, or find them as they were claimed under that name.

    It is exactly once if the output is written under the claim's name, so that a second run replaces it: to a folder of
    that name with ``mode("overwrite")``, or to a partition of a table. Ack the claim after that. A run that finds the
    claim done has nothing to do.

    Args:
        url: the database, as for `fdbqueue.open`, but never ``memory:``: Spark's tasks open it too.
        queue: the queue.
        name: identifies the claim, for example the date of the run.
        limit: how many items at most.
        partitions: how many partitions the DataFrame has at least, if there are enough items.
        items_per_partition: about how many items a partition has at most.

    Raises:
        StreamError: the name is a stream's. ValueError: an argument is not valid. TypeError: the URL or the
            name is not a str.

    *Conflicts:* as `Queue.dequeue_many`. *Cost:* a transaction for each 4,000 items or 1 MB.
    """
    for what, value in (("limit", limit), ("partitions", partitions), ("items_per_partition", items_per_partition)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{what} is a whole number from 1, not {value!r}.")
    url = url_of(url)
    stream: Stream[bytes] = Stream(Queue(queue), name)
    with fdbqueue.open(url) as db:
        record = stream.record(db)
        if record is not None and record.epoch == EPOCH and record.acked:
            return Claim(url, queue, name, BatchRecord(sealed=True), done=True)
        batch = stream.claim(db, terms(limit, partitions, items_per_partition))
    return Claim(url, queue, name, batch, done=False)
