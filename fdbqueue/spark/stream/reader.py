"""The streaming source of the format ``fdbqueue``; `source.py` beside this has what it answers.

Spark keeps one reader in a process of its own for each run of a query. The tasks get other instances: all that they
need is in the partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fdbqueue.spark.look.item_columns import bad_payload
from fdbqueue.spark.opening import existing
from fdbqueue.spark.options import Options
from fdbqueue.spark.stream.claim_reader import SplitPartition, read_split
from fdbqueue.spark.stream.source import Offset, StreamSource
from fdbqueue.spark.telling import tells


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
