"""The batch reader: a look at a queue's items in all states. It takes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fdbqueue.spark.look.item_columns import ItemTable
from fdbqueue.spark.look.ranges import Range, pages, ranges
from fdbqueue.spark.look.session_ranges import session_pages, session_ranges
from fdbqueue.spark.opening import check_queue, check_reads, existing
from fdbqueue.spark.options import Options
from fdbqueue.spark.telling import tells


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
