"""A query that kills Spark at one point: ``python -m tests.spark.killed_stream URL QUEUE FOLDER POINT``.

It streams a queue into another one until the first is empty. At the point, and only the first time, it kills the JVM,
as a machine that loses its power does, or one worker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from fdbqueue.spark.options import SINK, STREAM, parse
from fdbqueue.spark.readers import FdbQueueStreamReader, SplitPartition
from fdbqueue.spark.schemas import check_schema, header_of, stream_schema, value_columns
from fdbqueue.spark.source import BatchStored, FdbQueueDataSource, FdbQueueStreamWriter
from fdbqueue.spark.stream_source import Offset
from tests.spark.faulty import kill_executor
from tests.spark.sessions import new_session
from tests.spark.shuffled import keep_litter_out

SOURCE_POINTS = (
    "latest offset begins",
    "latest offset ends",
    "partitions begin",
    "partitions end",
    "a worker reads",
    "the jvm reads",
    "source commit begins",
    "source commit ends",
)
SINK_POINTS = ("rows stored", "before the commit", "in the move", "after the commit")
AT_ONCE = "at once: "
AT_ONCE_POINTS = (AT_ONCE + "rows written", AT_ONCE + "before the commit", AT_ONCE + "after the commit")
"""Points of a query with staging=repeated."""
EXECUTOR = "executor: "
EXECUTOR_POINTS = (EXECUTOR + "a worker reads", EXECUTOR + "rows stored")
"""Points where an executor of two is killed. Spark starts another one, and tries its tasks again."""
ITEMS = 60


class Killer:
    """Kills at one point, once."""

    def __init__(self, options: dict[str, str]) -> None:
        self._executor = options["point"].startswith(EXECUTOR)
        self._point = options["point"].removeprefix(EXECUTOR)
        self._jvm = int(options["jvm"])
        self._mark = options["mark"]

    def at(self, point: str) -> None:
        """Kill here, if this is the point and nothing was killed before."""
        if point != self._point:
            return
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self._executor:
            kill_executor()
        if point != "a worker reads":
            os.kill(self._jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class MortalReader(FdbQueueStreamReader):
    """The library's reader, which kills."""

    killer: Killer

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        self.killer.at("latest offset begins")
        found = super().latestOffset(start, limit)
        self.killer.at("latest offset ends")
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self.killer.at("partitions begin")
        found = super().partitions(start, end)
        self.killer.at("partitions end")
        return found

    def read(self, partition: SplitPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        for batch in super().read(partition):
            yield batch
            self.killer.at("a worker reads")
            self.killer.at("the jvm reads")

    def commit(self, end: Offset) -> None:
        self.killer.at("source commit begins")
        super().commit(end)
        self.killer.at("source commit ends")


class MortalWriter(FdbQueueStreamWriter):
    """The library's writer, which kills."""

    killer: Killer

    def at(self, point: str) -> None:
        self.killer.at(point)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from fdbqueue.spark import sink_batches

        move_one = sink_batches.move_one_batch

        def dying(tr: Any, **given: Any) -> Any:
            if given["at"] == 1:
                self.killer.at("in the move")
            return move_one(tr, **given)

        sink_batches.move_one_batch = dying  # type: ignore[assignment]
        try:
            super().commit([message for message in messages if isinstance(message, BatchStored)], batchId)
        finally:
            sink_batches.move_one_batch = move_one


class MortalDataSource(FdbQueueDataSource):
    """The format ``mortal``."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def __init__(self, options: dict[str, str]) -> None:
        self.killer = Killer(options)
        super().__init__({name: value for name, value in options.items() if name not in ("point", "jvm", "mark")})

    def streamReader(self, schema: StructType) -> MortalReader:
        options = parse(STREAM, self.options)
        check_schema(schema, stream_schema(options, headers=True))
        reader = MortalReader(options, schema)
        reader.killer = self.killer
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:
        options = parse(SINK, self.options)
        header_of(options, schema)
        writer = MortalWriter(options, [field.name for field in value_columns(options, schema)])
        writer.killer = self.killer
        return writer


def main(url: str, queue: str, folder: str, point: str, partitions: str) -> None:
    if point.startswith(EXECUTOR):
        keep_litter_out(Path(folder))
        memory = {"spark.executor.memory": "512m"}
        spark: Any = new_session("local-cluster[2,1,1024]", Path(folder), **memory)
    else:
        spark = new_session("local[2,4]", Path(folder))
    spark.dataSource.register(MortalDataSource)
    jvm = spark._jvm.ProcessHandle.current().pid()
    staging = "repeated" if point.startswith(AT_ONCE) else "always"
    point = point.removeprefix(AT_ONCE)
    given = {"url": url, "codec": "str", "point": point, "jvm": str(jvm), "mark": f"{folder}/killed"}
    items = (
        spark.readStream.format("mortal")
        .options(**given, queue=queue, streamName="s", maxItemsPerTrigger="25", minPartitions="2")
        .load()
    )
    query = (
        items.select("value")
        .repartition(int(partitions))
        .writeStream.format("mortal")
        .options(
            **given,
            queue=queue + " out",
            streamName="t",
            batchRows="5",
            staging=staging,
            checkpointLocation=f"{folder}/checkpoint",
        )
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
