"""What Spark calls to read: a look, a named claim, and a stream out of a queue.

A look takes nothing. `looks.py` cuts it into ranges. A claim and a stream read the splits of a batch.
`stream_source.py` has what a stream answers on the driver. Spark keeps one stream reader in a process of its own for
each run of a query. The tasks get other instances: all that they need is in the partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fdbqueue.layers.streams import Refusals, Split, Stream
from fdbqueue.spark.looks import Page, Range, pages, ranges, session_pages, session_ranges
from fdbqueue.spark.opening import check_queue, check_reads, existing
from fdbqueue.spark.options import Options
from fdbqueue.spark.schemas import ItemTable, bad_payload
from fdbqueue.spark.stream_source import EPOCH, ClaimRefusals, Offset, StreamSource, splits
from fdbqueue.spark.telling import tells
from fdbqueue.stored.items import is_chunked
from fdbqueue.stored.places import CLAIMED
from fdbqueue.verbs.queue import Queue


@dataclass
class RangePartition(InputPartition):
    """What one task reads."""

    span: Range | None
    """A range of positions; None: no items outside of sessions."""
    names: Range | None = None
    """A range of names of sessions; None: no items in sessions."""


@tells("partitions", "read")
class FdbQueueReader(DataSourceReader):
    """Reads a queue in ranges of positions. Each item that stays in the queue comes exactly once.

    It has no `pushFilters`: PySpark 4.3 keeps a pushed filter for other scans of the same DataFrame.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of about 50,000 items each. With a limit there is one.

        Raises:
            StorageError: there is no database. UnknownQueue: there is no such queue. StreamError: it has items in
                sessions, and ``includeSessions`` is false. OtherCodec: it has another codec, and values are read.
        """
        options, layout = self._options, self._options.layout()
        whole = Range(options.begin, options.end)
        at_least = 1 if options.limit is not None else options.min_partitions
        with existing(options.url) as db:
            check_queue(db, layout)
            if ItemTable(options, self._schema).payloads:
                check_reads(db, layout, options.codec)
            found = ranges(db, layout, whole, options.states, at_least, beside_sessions=options.include_sessions)
            names = session_ranges(db, layout, at_least) if options.include_sessions else []
        if options.limit is not None:
            return [RangePartition(whole, Range(None, None) if names else None)]
        return [*(RangePartition(span) for span in found), *(RangePartition(None, span) for span in names)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the items of one range, each page read in one transaction."""
        options, table = self._options, ItemTable(self._options, self._schema)
        layout, states, left = options.layout(), options.states, options.limit
        with existing(options.url) as db:
            for span, read in (partition.span, pages), (partition.names, session_pages):
                if span is None or left == 0:
                    continue
                for page in read(db, layout, span, states, payloads=table.payloads, limit=left):
                    yield table.batch(page)
                    left = None if left is None else left - len(page)


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
            return [SplitPartition(*split) for split in splits(stream_of(self._options), db)]

    def read(self, partition: SplitPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the items of a split."""
        yield from read_split(self._options, self._schema, partition)


def stream_of(options: Options, refusals: type[Refusals] = Refusals) -> Stream[bytes]:
    return Stream(Queue(options.layout().space), options.stream, refusals=refusals)


def read_split(options: Options, schema: StructType, partition: SplitPartition) -> Iterator[pa.RecordBatch]:
    """Yield the items of a split, in a task.

    Raises:
        StreamError: it lacks items, since the batch was acked or released, or the queue cleared.
    """
    table = ItemTable(options, schema)
    stream = stream_of(options, ClaimRefusals if partition.epoch == EPOCH else Refusals)
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


@tells("initialOffset", "prepareForTriggerAvailableNow", "latestOffset", "partitions", "read", "commit")
class FdbQueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes items out of a queue in batches, each exactly once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._source: StreamSource | None = None

    def initialOffset(self) -> Offset:
        """Return the offset before the first batch."""
        return self._on_the_driver().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxItemsPerTrigger``."""
        return ReadMaxRows(self._options.max_items_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how many items there are now."""
        self._on_the_driver().prepare_for_available_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Ack the committed batches, and return the offset of the next one, or `start`."""
        return self._on_the_driver().latest_offset(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the queue's figures, which the query's progress shows as ``latestOffset``."""
        return self._on_the_driver().report()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Claim the batch, and return its splits."""
        return [SplitPartition(*split) for split in self._on_the_driver().partitions(start, end)]

    def read(self, partition: SplitPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the items of a split.

        Raises:
            StreamError: it lacks items, since the batch was acked or released, or the queue cleared.
        """
        yield from read_split(self._options, self._schema, partition)

    def commit(self, end: Offset) -> None:
        """Ack a committed batch."""
        self._on_the_driver().commit(end)

    def stop(self) -> None:
        """Do nothing: Spark rarely calls this."""

    def _on_the_driver(self) -> StreamSource:
        if self._source is None:
            db = existing(self._options.url)
            self._source = StreamSource(db, self._options, bad=bad_payload(self._options.codec))
        return self._source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}


@tells("initialOffset", "latestOffset", "partitions")
class RefusedStreamReader(DataSourceStreamReader):
    """Raises an error at the first call.

    If `DataSource.streamReader` raises, PySpark's process goes on to stop a reader that it does not have, and reports
    that instead.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    def latestOffset(self) -> Offset:  # type: ignore[override]
        """Raise the error."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error
