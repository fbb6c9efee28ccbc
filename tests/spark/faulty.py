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
    """``raise``, ``kill``, ``kill soon`` (some microseconds later, from another thread), ``kill executor`` (once: a
    later attempt at the whole stage begins to count attempts again) or ``hold`` (for ever)."""
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
            return
        chosen = plan.partitions is None or context.partitionId() in plan.partitions
        if context.attemptNumber() < plan.attempts and chosen and self._may_kill():
            _fail(plan.how)

    def _may_kill(self) -> bool:
        """Return whether no executor was killed before, or none is to be killed."""
        return self._plan.how != "kill executor" or _is_first(Path(self._plan.folder or "", "killed"))

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


def _is_first(mark: Path) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def kill_executor() -> None:
    """Kill the JVM of the executor that this worker belongs to, and then the worker."""
    pid = os.getpid()
    while b"java" not in Path(f"/proc/{pid}/comm").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("a fault that a test asked for")
    if how == "kill executor":
        kill_executor()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill soon":
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()
    if how == "hold":
        threading.Event().wait()
