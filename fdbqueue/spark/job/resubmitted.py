"""Jobs that are submitted again.

Committed: each task counts its rows, and the commit compares them with the job's (`job.py`).

Failed, with some rows in: the full set of its rows is unknown, but the next submission must contain the rows that are
in. A partition without any row in can't detect a difference. So no task of such a submission writes to the queue. Each
task compares its rows with its partition's log. It stores the rows that are not in under its own key. When all tasks
have succeeded, `release` hands the stored rows to an ordinary attempt per partition. A task that finds different rows
fails, and then no row of the submission reaches the queue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import JobError
from fdbqueue.spark.job.attempt import BATCH_BYTES, BATCH_ROWS, HeldRows, JobAttempt, PartitionReport, rows_differ
from fdbqueue.spark.job.job import clear
from fdbqueue.spark.job.keys import JobKeys
from fdbqueue.spark.job.partition import JobIsCommitted, check_record, counted
from fdbqueue.spark.rows.backlog import Backlog
from fdbqueue.spark.rows.digests import DIGEST_BYTES, Met, Multiset
from fdbqueue.spark.rows.rows import SparkRows, pack, unpack
from fdbqueue.stored.items import CHUNK_BYTES

_TOKEN_BYTES = 16
_DIGESTS_A_VALUE = 4_000
"""This keeps a value under FoundationDB's limit of 100,000 bytes."""
_ENTRIES_A_READ = 16


class Counter:
    """One attempt at one partition of a committed job. It counts the rows, and the commit compares them."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._met = Met()

    def add(self, rows: SparkRows, size_bytes: int = 0) -> None:
        """Take more of the input."""
        self._met.add(rows.digests, size_bytes)

    def finish(self) -> PartitionReport:
        """Return the report with the counted rows."""
        met = self._met
        return PartitionReport(
            self._partition, met.rows, met.rows, met.size_bytes, 0, 0, 0, 0.0, digest=met.digest, stopped=True
        )

    def close(self) -> None:
        """Do nothing."""


class JobHolder:
    """One attempt at one partition. It compares its rows with those that are in, and stores the others aside.

    Args:
        db: the database.
        keys: the keys of the job.
        partition: the number of the partition.
        record: the stored record of the running job.
        submission: identifies the rows that this submission of the job stores.
    """

    def __init__(self, db: Database, keys: JobKeys, partition: int, record: bytes, submission: bytes) -> None:
        self._db = db
        self._keys = keys
        self._partition = partition
        self._record = record
        self._submission = submission
        self._token = os.urandom(_TOKEN_BYTES)
        self._started = time.monotonic()
        self._ahead = Multiset()
        self._met = Met()
        self._skipped: list[bytes] = []
        self._backlog = Backlog()
        self._in = self._values = self._batches = 0
        self._stopped = False
        for digests in _entries(db, keys, partition):
            self._ahead.add(digests)

    def add(self, rows: SparkRows, size_bytes: int = 0) -> None:
        """Take more of the input. Once the job is committed, it only counts the rows.

        Raises:
            JobError: the job was forgotten.
        """
        self._met.add(rows.digests, size_bytes)
        if self._stopped:
            return
        new = self._ahead.unmatched(rows.digests)
        self._in += len(rows) - len(new)
        if len(new) < len(rows):
            found = set(new)
            self._skipped += [one for place, one in enumerate(rows.digests) if place not in found]
        self._backlog.append(rows.pick(new))
        self._store(rest=False)

    def finish(self) -> PartitionReport:
        """Store the remaining rows, at the end of the input.

        Raises:
            JobError: rows that an earlier attempt wrote are not in this attempt's input, or the job was forgotten.
        """
        if not self._stopped:
            if self._ahead:
                raise rows_differ(self._partition, ahead=len(self._ahead), rows=self._met.rows)
            self._store(rest=True)
        met = self._met
        seconds = time.monotonic() - self._started
        held = None if self._stopped else HeldRows(self._token, self._values, self._batches)
        return PartitionReport(
            self._partition, met.rows, self._in, met.size_bytes, 0, 0, 0, seconds, met.digest, self._stopped, held
        )

    def close(self) -> None:
        """Drop the rows in memory and in the file, finished or not."""
        self._backlog.close()

    def _store(self, *, rest: bool) -> None:
        try:
            while len(self._skipped) >= (1 if rest else _DIGESTS_A_VALUE):
                taken, self._skipped = self._skipped[:_DIGESTS_A_VALUE], self._skipped[_DIGESTS_A_VALUE:]
                self._set("skipped", self._values, b"".join(taken))
                self._values += 1
            while batch := self._backlog.take(rows=BATCH_ROWS, size_bytes=BATCH_BYTES, rest=rest):
                self._set("new", self._batches, pack(batch))
                self._batches += 1
        except JobIsCommitted:
            self._stopped = True

    def _set(self, kind: str, number: int, value: bytes) -> None:
        async def body(tr: Transaction) -> None:
            check_record(self._keys, self._partition, self._record, await value_of(tr.get(self._keys.record)))
            for start in range(0, len(value), CHUNK_BYTES):
                key = self._keys.held(self._submission, self._token, kind, number, start)
                tr.set(key, value[start : start + CHUNK_BYTES])

        run(attempts(self._db, body))


def release(
    db: Database,
    keys: JobKeys,
    record: bytes,
    submission: bytes,
    reports: Sequence[PartitionReport],
    attempt_at: Callable[[int], JobAttempt],
) -> list[PartitionReport]:
    """Write the rows that the tasks of a submission stored to the queue, and return the reports of that.

    Args:
        db: the database.
        keys: the keys of the job.
        record: the stored record of the running job.
        submission: identifies the rows that the tasks stored.
        reports: the tasks' reports.
        attempt_at: makes an attempt at a partition.

    Raises:
        JobError: rows of an earlier run are in a partition that this submission does not have.
    """
    counts = run(attempts(db, lambda tr: rows(tr.snapshot, *keys.counts_range())))
    there = {keys.partition_of(row.key) for row in counts if counted(row.value).rows}
    foreign = sorted(there - {report.partition for report in reports})
    if foreign and not any(report.stopped for report in reports):
        raise JobError(
            f"Job {keys.job_id!r} was submitted again in {len(reports)} partitions, and its partitions {foreign} have"
            " rows in the queue from an earlier run. Nothing new was written. Submit it in as many partitions as it had"
            " then; the option partitions says how many."
        )
    read = partial(_value, db, keys, record, submission)
    return [
        report if report.held is None else _released(report, report.held, partial(read, report), attempt_at)
        for report in reports
    ]


def _released(
    report: PartitionReport, held: HeldRows, read: Callable[[str, int], bytes], attempt_at: Callable[[int], JobAttempt]
) -> PartitionReport:
    with closing(attempt_at(report.partition)) as attempt:
        try:
            for number in range(held.skipped):
                digests = read("skipped", number)
                attempt.skip([digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)])
            for number in range(held.batches):
                attempt.add(unpack(read("new", number)))
        except JobIsCommitted:  # another driver committed it, with the same rows or others: the commit compares
            return replace(report, stopped=True)
        return replace(attempt.finish(), size_bytes=report.size_bytes)


def drop(db: Database, keys: JobKeys, submission: bytes) -> None:
    """Remove the rows that the tasks of a submission stored. The job's commit removes rows that are stored later."""
    clear(db, *keys.held_range(submission))


def _value(
    db: Database, keys: JobKeys, record: bytes, submission: bytes, report: PartitionReport, kind: str, number: int
) -> bytes:
    token = report.held.token if report.held else b""

    async def body(tr: Transaction) -> list[KeyValue]:
        stored = tr.get(keys.record)
        found = await rows(tr.snapshot, *keys.held_range(submission, token, kind, number))
        check_record(keys, report.partition, record, await value_of(stored))
        return found

    chunks = run(attempts(db, body))
    if not chunks:
        raise JobError(f"Rows of job {keys.job_id!r} that were kept aside are gone. Submit the job again.")
    return b"".join(row.value for row in chunks)


def _entries(db: Database, keys: JobKeys, partition: int) -> Iterator[bytes]:
    """Yield the current log entries of a partition. More may follow, which `release` detects."""
    known, end = 0, keys.log_end(partition)
    while True:
        begin = keys.log_entry(partition, known + 1)
        found = run(attempts(db, lambda tr, begin=begin: rows(tr.snapshot, begin, end, limit=_ENTRIES_A_READ)))  # type: ignore[misc]
        for row in found:
            yield row.value
        if len(found) < _ENTRIES_A_READ:
            return
        known = keys.number_of(found[-1].key)
