"""The least that an Arrow source can do, in batches and in streams: the bound of every source in Python.

With the options ``url`` and ``queue`` its tasks read the keys of a queue's items first, and do nothing with them: the
bound of every source of stored items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import fdbqueue
from fdbqueue import Queue
from fdbqueue.base.position import Position
from fdbqueue.spark.looks import Stored
from fdbqueue.spark.options import LOOK, STREAM, parse
from fdbqueue.spark.schemas import ItemTable, look_schema, stream_schema
from fdbqueue.stored.items import PLAIN
from fdbqueue.stored.positions import pack

PAGE = 2_000
_GIVEN = {"url": "file:/none", "queue": "none"}


@dataclass
class Rows(InputPartition):
    """The rows of one task."""

    rows: int
    url: str = ""
    queue: str = ""
    """The queue to read; "": none."""


class NoopDataSource(DataSource):
    """Yields the same rows again and again; the options are ``rows``, ``parts``, ``stream``, ``url`` and ``queue``."""

    @classmethod
    def name(cls) -> str:
        return "noop source"

    def schema(self) -> StructType:
        if "stream" in self.options:
            return stream_schema(parse(STREAM, {**_GIVEN, "streamName": "s"}), headers=False)
        return look_schema(parse(LOOK, _GIVEN))

    def reader(self, schema: StructType) -> NoopReader:
        return NoopReader(self._parts(), schema)

    def streamReader(self, schema: StructType) -> NoopStreamReader:
        return NoopStreamReader(self._parts(), schema)

    def _parts(self) -> list[Rows]:
        parts = int(self.options["parts"])
        one = Rows(int(self.options["rows"]) // parts, self.options.get("url", ""), self.options.get("queue", ""))
        return [one] * parts


def _read(partition: Any, schema: StructType) -> Iterator[pa.RecordBatch]:
    position = pack(Position(7, b"8 bytes."))
    rows = [Stored(position, "available", PLAIN + b"x" * 100)] * min(PAGE, partition.rows)
    options = parse(LOOK, _GIVEN)
    batch = ItemTable(options, schema).batch(rows)
    for size in _sizes(partition):
        yield batch.slice(0, size)


def _sizes(partition: Any) -> Iterator[int]:
    """Yield the sizes of the pages. Those of a queue are read, each in its own transaction as a stream's task does."""
    if not partition.queue:
        yield from (min(PAGE, partition.rows - at) for at in range(0, partition.rows, PAGE))
        return
    layout = Queue(partition.queue).layout
    begin, end = layout.begin, layout.end
    with fdbqueue.open(partition.url) as db:
        while page := list(db.create_transaction().snapshot.get_range(begin, end, limit=PAGE)):
            begin = page[-1].key + b"\x00"
            yield len(page)


class NoopReader(DataSourceReader):
    """Yields one record batch again and again."""

    def __init__(self, parts: list[Rows], schema: StructType) -> None:
        self._parts, self._schema = parts, schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)


class NoopStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has one batch."""

    def __init__(self, parts: list[Rows], schema: StructType) -> None:
        self._parts, self._schema = parts, schema

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"n": 2}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        pass
