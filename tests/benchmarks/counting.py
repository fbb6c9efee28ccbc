"""The least that an Arrow sink can do: the bound of every sink in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class CountingDataSource(DataSource):
    """Counts rows and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> CountingWriter:
        return CountingWriter()


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task counted."""

    rows: int


class CountingWriter(DataSourceArrowWriter):
    """Makes Python values of the first column, and counts them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(len(batch.column(0).to_pylist()) for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass
