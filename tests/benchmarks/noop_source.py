"""The least that an Arrow source can do, in batches and in streams: the bound of every source in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fdbqueue.base.position import Position
from fdbqueue.spark.look.item_columns import ItemTable, look_schema, stream_schema
from fdbqueue.spark.look.options import parse_look, parse_stream
from fdbqueue.spark.look.ranges import Stored
from fdbqueue.stored.items import PLAIN
from fdbqueue.stored.layout import pack

PAGE = 2_000
_GIVEN = {"url": "file:/none", "queue": "none"}


@dataclass
class Rows(InputPartition):
    """The rows of one task."""

    rows: int


class NoopDataSource(DataSource):
    """Yields the same rows again and again; the options are ``rows``, ``parts`` and ``stream``."""

    @classmethod
    def name(cls) -> str:
        return "noop source"

    def schema(self) -> StructType:
        if "stream" in self.options:
            return stream_schema(parse_stream({**_GIVEN, "streamName": "s"}), headers=False)
        return look_schema(parse_look(_GIVEN))

    def reader(self, schema: StructType) -> NoopReader:
        return NoopReader(int(self.options["rows"]), int(self.options["parts"]), schema)

    def streamReader(self, schema: StructType) -> NoopStreamReader:
        return NoopStreamReader(int(self.options["rows"]), int(self.options["parts"]), schema)


def _read(partition: Any, schema: StructType) -> Iterator[pa.RecordBatch]:
    position = pack(Position(7, b"8 bytes."))
    rows = [Stored(position, "available", PLAIN + b"x" * 100)] * min(PAGE, partition.rows)
    options = parse_look(_GIVEN)
    batch = ItemTable(options, schema).batch(rows)
    for at in range(0, partition.rows, PAGE):
        yield batch.slice(0, min(PAGE, partition.rows - at))


class NoopReader(DataSourceReader):
    """Yields one record batch again and again."""

    def __init__(self, rows: int, parts: int, schema: StructType) -> None:
        self._rows, self._parts, self._schema = rows, parts, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [Rows(self._rows // self._parts) for _ in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)


class NoopStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has one batch."""

    def __init__(self, rows: int, parts: int, schema: StructType) -> None:
        self._rows, self._parts, self._schema = rows, parts, schema

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"n": 2}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Rows(self._rows // self._parts) for _ in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        pass
