"""The keys of one bulk job, under its queue's ``("job", job id)``.

| key (a tuple behind the queue's) | value |
| --- | --- |
| ``("job", id)`` | the job's record (`record.py`): its header, and its report once it is committed |
| ``("job", id, "owner", partition)`` | the attempt that may write the partition's rows now, and the number of attempts
|
| ``("job", id, "rows", partition)`` | how many rows of the partition are in the queue, and how many transactions wrote
  them: twice 8 bytes, little-endian, by one atomic add |
| ``("job", id, "mark", partition, n)`` | the digests of the rows that one transaction wrote, 16 bytes each |
| ``("job", id, "held", submission, attempt, kind, n, chunk)`` | of a job that is submitted again: ``new`` rows that are
  not in the queue yet, and the digests of those that are, ``skipped`` (`resubmitted.py`) |

All but the record go once the job is committed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue.base.arguments import check_text
from fdbqueue.engine.api import Database
from fdbqueue.engine.keys import Subspace, is_within
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError
from fdbqueue.stored import shapes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.own_rows import first_own, told_foreign
from fdbqueue.stored.shapes import Shape

MAX_JOB_ID_BYTES = shapes.NAME_BYTES["job"]
JOBS_WITHOUT_A_QUEUE = "fdbqueue jobs"
"""The queue of a job's records if a column names the queue of each row and the job has no queue of its own."""


class PartitionKeys:
    """The keys of the logs of partitions, and of the record that their transactions read.

    Args:
        layout: the queue that has them.
        space: the subspace of the logs.
        record: the record's key.
    """

    __slots__ = ("_counts", "_log", "_owners", "layout", "record")

    def __init__(self, layout: Layout, space: Subspace, record: bytes) -> None:
        self.layout = layout
        self.record = record
        self._owners = space["owner"]
        self._counts = space["rows"]
        self._log = space["mark"]

    def owner(self, partition: int) -> bytes:
        """Return the key that names the attempt that may write."""
        key: bytes = self._owners.pack((partition,))
        return key

    def count(self, partition: int) -> bytes:
        """Return the key that counts the partition's rows and transactions."""
        key: bytes = self._counts.pack((partition,))
        return key

    def log_entry(self, partition: int, number: int) -> bytes:
        """Return the key of the log entry of the partition's `number`-th transaction, from 1."""
        key: bytes = self._log.pack((partition, number))
        return key

    def number_of(self, entry: bytes) -> int:
        """Return the transaction's number in a log entry's key."""
        return self._number(self._log, "number, number", entry)

    def log_end(self, partition: int) -> bytes:
        """Return the end of the keys of a partition's log."""
        end: bytes = self._log[partition].range().stop
        return end

    def entries_range(self) -> tuple[bytes, bytes]:
        """Return the begin and end of the log entries of all partitions."""
        span = self._log.range()
        return span.start, span.stop

    def partition_of(self, key: bytes) -> int:
        """Return the partition in the key of an owner or a count."""
        return self._number(self._owners if is_within(key, self._owners.key()) else self._counts, "number", key)

    def _number(self, space: Subspace, rest: str, key: bytes) -> int:
        """Return the last part of a key.

        Raises:
            FormatError: the key is foreign.
        """
        parts = Shape(rest).parts(key[len(space.key()) :])
        if parts is None:
            family = "jobs" if is_within(key, self.layout.jobs.key()) else "sinks"
            raise FormatError(told_foreign(self.layout, family, key))
        return int(parts[-1])

    def owners_range(self) -> tuple[bytes, bytes]:
        """Return the begin and end of the owners of all partitions."""
        span = self._owners.range()
        return span.start, span.stop

    def counts_range(self) -> tuple[bytes, bytes]:
        """Return the begin and end of the counts of all partitions."""
        span = self._counts.range()
        return span.start, span.stop


class JobKeys(PartitionKeys):
    """The keys of one job.

    Raises:
        TypeError: the job id is not a str. ValueError: it is empty or too long.
    """

    __slots__ = ("_held", "begin", "end", "job_id")

    def __init__(self, layout: Layout, job_id: str) -> None:
        if not isinstance(job_id, str):
            raise TypeError(f"A job id is a str, not {type(job_id).__name__}: {job_id!r}.")
        check_text(job_id, "The id of a job")
        size_bytes = len(job_id.encode())
        if not 0 < size_bytes <= MAX_JOB_ID_BYTES:
            raise ValueError(f"A job id has 1 to {MAX_JOB_ID_BYTES:,} bytes; {job_id[:40]!r} has {size_bytes:,}.")
        space = layout.jobs[job_id]
        super().__init__(layout, space, space.key())
        self.job_id = job_id
        self._held = space["held"]
        beneath = space.range()
        self.begin: bytes = beneath.start
        """The begin and the end of the keys that are removed when the job is committed."""
        self.end: bytes = beneath.stop

    def held(self, submission: bytes, token: bytes, kind: str, number: int, chunk: int) -> bytes:
        """Return the key of a chunk of the rows that an attempt stores aside."""
        key: bytes = self._held.pack((submission, token, kind, number, chunk))
        return key

    def held_range(self, submission: bytes, *rest: bytes | str | int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the rows that a submission stores aside, or of a part of them."""
        span = self._held.range((submission, *rest))
        return span.start, span.stop


def job_ids(db: Database, layout: Layout) -> Iterator[str]:
    """Yield the ids of a queue's jobs, in their order. Each takes its own read, which jumps over the job's keys."""
    span = layout.jobs.range()
    begin: bytes = span.start
    while True:
        found = run(attempts(db, lambda tr, begin=begin: first_own(tr.snapshot, layout, "jobs", begin, span.stop)))  # type: ignore[misc]
        if found is None:
            return
        job_id: str = found[0][0]
        yield job_id
        begin = JobKeys(layout, job_id).end
