"""The reader of named claims, and how a task reads a split of a batch, which streams share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fdbqueue.layers.streams import Refusals, Split, Stream
from fdbqueue.spark.look.item_columns import ItemTable
from fdbqueue.spark.look.ranges import Page
from fdbqueue.spark.opening import check_reads, existing
from fdbqueue.spark.options import Options
from fdbqueue.spark.stream.claim_splits import EPOCH, ClaimRefusals, splits
from fdbqueue.spark.telling import tells
from fdbqueue.stored.items import is_chunked
from fdbqueue.stored.states import CLAIMED
from fdbqueue.verbs.queue import Queue


@dataclass
class SplitPartition(InputPartition):
    """The items that one task reads."""

    batch: int
    epoch: str
    split: Split


@tells("partitions", "read")
class FdbQueueClaimReader(DataSourceReader):
    """Reads a named claim, the same rows in every action."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits of the claim.

        Raises:
            StreamError: there is no such claim, or it is acked. OtherCodec: the queue has another codec.
        """
        with existing(self._options.url) as db:
            check_reads(db, self._options.layout(), self._options.codec)
            return [SplitPartition(*split) for split in splits(_stream(self._options), db)]

    def read(self, partition: SplitPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the items of a split."""
        yield from read_split(self._options, self._schema, partition)


def _stream(options: Options, refusals: type[Refusals] = Refusals) -> Stream[bytes]:
    return Stream(Queue(options.layout().space), options.stream, refusals=refusals)


def read_split(options: Options, schema: StructType, partition: SplitPartition) -> Iterator[pa.RecordBatch]:
    """Yield the items of a split, in a task.

    Raises:
        StreamError: it lacks items, since the batch was acked or released, or the queue cleared.
    """
    table = ItemTable(options, schema)
    stream = _stream(options, ClaimRefusals if partition.epoch == EPOCH else Refusals)
    place = stream.queue.layout.claimed(stream.name, partition.batch)
    with existing(options.url) as db:
        for rows in stream.read(db, partition.epoch, partition.batch, partition.split):
            page = Page([row.key for row in rows], len(place.prefix), [row.value for row in rows], CLAIMED)
            if not table.payloads or not page.chunked:
                yield table.batch(page)
                continue
            for row, item in zip(rows, page, strict=True):  # one at a time: each may have megabytes
                payload = stream.payload(db, partition.batch, row) if is_chunked(row.value) else None
                yield table.batch([item._replace(payload=payload)])
