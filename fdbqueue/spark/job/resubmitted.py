"""Jobs that are submitted again.

Committed: each task counts its rows, and the commit compares them with the job's (`job.py`).

Failed, with some rows in: the full set of its rows is unknown, but the next submission must contain the rows that are
in. A partition without any row in can't detect a difference. So no task of such a submission writes to the queue. Each
task compares its rows with its partition's log. It stores the rows that are not in under its own key. When all tasks
have succeeded, `release` hands the stored rows to an ordinary attempt per partition. A task that finds different rows
fails, and then no row of the submission reaches the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import JobError
from fdbqueue.spark.job.attempt import HeldRows, JobAttempt, PartitionReport, RowHolder
from fdbqueue.spark.job.job import BegunJob, clear
from fdbqueue.spark.job.keys import JobKeys
from fdbqueue.spark.job.partition import JobIsCommitted, check_record, counted, entries
from fdbqueue.spark.rows.digests import DIGEST_BYTES
from fdbqueue.spark.rows.rows import unpack


def hold(db: Database, keys: JobKeys, partition: int, begun: BegunJob, submission: bytes) -> RowHolder:
    """Return an attempt at one partition of a job that was submitted before.

    It compares its rows with those that are in, and stores the others aside. Of a committed job it only counts them,
    and the commit compares.

    Args:
        submission: identifies the rows that this submission of the job stores.
    """
    return RowHolder(
        db,
        keys.record,
        partial(check_record, keys, partition, begun.stored),
        partial(keys.held, submission),
        partition,
        ahead=lambda: (row.value for row in entries(db, keys.log_entry(partition, 1), keys.log_end(partition))),
        stopped=begun.committed,
    )


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
