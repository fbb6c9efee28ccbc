"""The batch reader: a look at a queue's items in all states. It takes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import fdbqueue
from fdbqueue.spark.itemcolumns import Table
from fdbqueue.spark.looking import Range, pages, ranges
from fdbqueue.spark.readoptions import LookOptions


@dataclass
class RangePartition(InputPartition):
    """The positions that one task reads."""

    span: Range


class FdbQueueReader(DataSourceReader):
    """Reads a queue in ranges of positions. Each item that stays in the queue comes exactly once.

    It has no `pushFilters`: PySpark 4.3 keeps a pushed filter for other scans of the same DataFrame.
    """

    def __init__(self, options: LookOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of about 10,000 items each. With a limit there is one."""
        options = self._options
        whole = Range(options.begin, options.end)
        at_least = 1 if options.limit is not None else options.min_partitions
        with fdbqueue.open(options.url) as db:
            found = ranges(db, options.layout(), whole, options.states, at_least)
        if options.limit is not None:
            return [RangePartition(whole)]
        return [RangePartition(span) for span in found]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the items of one range, each page read in one transaction."""
        options, table = self._options, Table(self._options, self._schema)
        with fdbqueue.open(options.url) as db:
            layout = options.layout()
            for page in pages(db, layout, partition.span, options.states, payloads=table.payloads, limit=options.limit):
                yield table.batch(page)
