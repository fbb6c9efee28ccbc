"""The sink with faults: tasks that raise, are killed or stop where a test says so. Imported by Spark's workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from fdbqueue.spark.source import FdbQueueDataSource, FdbQueueWriter, PartitionWritten

POINTS = ("claimed", "caught up", "rows written", "marked", "commit handed in", "committed", "finished")
"""Where an attempt can be made to fail, in the order in which it passes them."""


class Plan(msgspec.Struct, frozen=True):
    """What goes wrong, given as JSON by the option ``fault``."""

    how: str
    """``raise``, ``kill``, ``kill soon`` (some microseconds later, from another thread) or ``hold`` (for ever)."""
    point: str
    passing: int = 1
    """Which passing of the point, from 1."""
    attempts: int = 1
    """How many attempts of each partition it happens to."""
    partitions: tuple[int, ...] | None = None
    """To which partitions; None: all."""
    in_commit: bool = False
    """Whether it happens where the job is committed, and not in a task."""
    folder: str | None = None
    """Where each attempt writes down in which order it met the rows."""


class FaultyDataSource(FdbQueueDataSource):
    """The sink with one more option."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FdbQueueWriter:
        plan = msgspec.json.decode(self.options.pop("fault"), type=Plan)
        return FaultyWriter(super().writer(schema, overwrite), plan)


class FaultyWriter(FdbQueueWriter):
    """A writer that fails as planned."""

    def __init__(self, writer: FdbQueueWriter, plan: Plan) -> None:
        self.__dict__.update(writer.__dict__)
        self._plan = plan
        self._passed = 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:
        return super().write(self._noted(iterator))

    def at(self, point: str) -> None:
        plan, context = self._plan, TaskContext.get()
        if plan.in_commit != (context is None):
            return
        self._passed += point == plan.point
        if point != plan.point or self._passed != plan.passing:
            return
        if context is None:
            _fail(plan.how)
        elif context.attemptNumber() >= plan.attempts:
            return
        elif plan.partitions is None or context.partitionId() in plan.partitions:
            _fail(plan.how)

    def _noted(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._plan.folder is None:
            yield from iterator
            return
        context: Any = TaskContext.get()
        with Path(self._plan.folder, f"{context.partitionId()}-{context.attemptNumber()}").open("wb") as file:
            for batch in iterator:
                for value in batch.column("value").to_pylist():
                    file.write(value + b"\n")
                file.flush()
                yield batch


def _fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("a fault that a test asked for")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill soon":
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()
    if how == "hold":
        threading.Event().wait()
