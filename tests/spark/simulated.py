"""Jobs without Spark: attempts made by hand, on rows that are just bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Queue as Channel
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import FDBError, predicates
from fdbqueue.spark.appenders import Appender
from fdbqueue.spark.attempts import At, JobAttempt, PartitionAttempt, PartitionReport
from fdbqueue.spark.loads import begin_job, commit_job, release, store_aside
from fdbqueue.spark.partition_log import JobHeader, JobKeys, JobReport, job_log
from fdbqueue.spark.waiting_rows import SparkRows, digests_of
from fdbqueue.stored.items import envelope
from fdbqueue.stored.layout import Name
from tests.helpers.faults import FaultyDatabase, FaultyTransaction


def header(partitions: int | None = None, **changes: Any) -> JobHeader:
    """Return the header of a job that enqueues bytes."""
    plain: dict[str, Any] = {
        "delivery": "exactlyOnce",
        "partitions": partitions,
        "codec": "bytes",
        "value_column": "value",
        "queue_column": None,
        "headers_column": None,
        "columns": (("value", "binary"),),
    }
    return JobHeader(**plain | changes)


def rows(values: Sequence[bytes], queues: list[str | None] | None = None) -> SparkRows:
    """Return values as rows, each for the queue that is named in its place."""
    return SparkRows([envelope(value) for value in values], digests_of(values), queues)


class Job:
    """A job that has begun."""

    def __init__(
        self, db: Any, queue: Name, job_id: str = "job", *, partitions: int | None = None, codec: str = "bytes"
    ) -> None:
        self.db = db
        self.queue = Queue(queue)
        self.keys = JobKeys(self.queue.layout, job_id)
        self.header = header(partitions, codec=codec)
        self.submission = os.urandom(16)
        self.begun = begin_job(db, self.keys, self.header)
        self.record = self.begun.stored
        self.committed = self.begun.committed
        """Whether it was, before this run of it: then it is to write nothing."""

    def attempt(
        self,
        partition: int = 0,
        *,
        db: Any = None,
        batch_rows: int = 10,
        memory_bytes: int = 10_000,
        at: At | None = None,
    ) -> JobAttempt:
        """Return an attempt at a partition; `db` is another way to the same database."""
        log = job_log(db or self.db, self.keys, partition, self.record)
        return JobAttempt(
            db or self.db,
            log,
            Appender(self.queue.layout, self.header.codec),
            partition=partition,
            batch_rows=batch_rows,
            memory_bytes=memory_bytes,
            at=at or (lambda point: None),
        )

    def run(self, values: Sequence[bytes], partition: int = 0, **how: Any) -> PartitionReport:
        """Make a whole attempt with `values` as its input."""
        return self._fed(self.attempt(partition, **how), values)

    def task(self, values: Sequence[bytes], partition: int = 0, *, db: Any = None) -> PartitionReport:
        """Do what a task of the sink does with `values` as its input, whatever an earlier submission left."""
        if not self.begun.resumed and not self.committed:
            return self.run(values, partition, db=db)
        return self._fed(store_aside(db or self.db, self.keys, partition, self.begun, self.submission), values)

    def _fed(self, attempt: PartitionAttempt, values: Sequence[bytes]) -> PartitionReport:
        for start in range(0, len(values), 25):
            attempt.add(rows(values[start : start + 25]))
        return attempt.finish()

    def commit(self, *reports: PartitionReport) -> JobReport:
        """Commit the job, as the sink does when all tasks have ended well."""
        done = list(reports)
        if self.begun.resumed:
            done = release(self.db, self.keys, self.record, self.submission, reports, self.attempt)
        return commit_job(self.db, self.keys, done)

    def values(self) -> list[bytes]:
        """Return what is in the queue, sorted."""
        return sorted(item.value for item in self.queue.browse(self.db))


class HastyDatabase(FaultyDatabase):
    """Fails as planned, and never waits before a retry."""

    def create_transaction(self) -> HastyTransaction:
        return HastyTransaction(self._db.create_transaction(), self)


class HastyTransaction(FaultyTransaction):
    """A transaction of a `HastyDatabase`."""

    def on_error(self, error: Any) -> Any:
        """Begin anew at once, if that helps."""
        code = getattr(error, "code", error)
        if not predicates.retryable(FDBError(code)):
            return self._tr.on_error(error)
        self._tr.reset()
        return _Done()


class _Done:
    """A future that was ready when it was made."""

    def wait(self) -> None:
        pass


class Killed(BaseException):
    """An actor died where it stood."""


class Actor:
    """Runs a function in a thread of its own, from one point to the next, whenever it is told to."""

    def __init__(self, play: Callable[[At], Any]) -> None:
        self._go: Channel[bool] = Channel()
        self._stopped_at: Channel[str | None] = Channel()
        self.point: str | None = ""
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(play,), daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.point is not None

    def step(self) -> str | None:
        """Let it go on to its next point, and return that; None if it has ended."""
        return self._let(go=True)

    def finish(self) -> Any:
        """Let it go on to its end; return its result or raise its error."""
        while self.alive:
            self.step()
        if self.error is not None:
            raise self.error
        return self.result

    def until(self, *points: str) -> str | None:
        """Let it go on until it stands at one of `points`, or has ended."""
        while self.step() not in (None, *points):
            pass
        return self.point

    def kill(self) -> None:
        """End it where it stands: nothing of it runs any more."""
        while self.alive:
            self._let(go=False)

    def _let(self, *, go: bool) -> str | None:
        self._go.put(go)
        self.point = self._stopped_at.get()
        if self.point is None:
            self._thread.join()
        return self.point

    def _run(self, play: Callable[[At], Any]) -> None:
        try:
            self._wait()
            self.result = play(self._at)
        except (Exception, Killed) as error:  # noqa: BLE001 - the test asks for it
            self.error = error
        self._stopped_at.put(None)

    def _at(self, point: str) -> None:
        self._stopped_at.put(point)
        self._wait()

    def _wait(self) -> None:
        if not self._go.get():
            raise Killed


def in_pieces(values: Iterable[bytes], size: int) -> list[list[bytes]]:
    """Cut values as Spark cuts an input into batches."""
    together = list(values)
    return [together[start : start + size] for start in range(0, len(together), size)]
