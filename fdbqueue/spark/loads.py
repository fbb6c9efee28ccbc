"""Jobs of loads: begin before their first row, commit after their last row, read back, and submit again.

A job that is submitted again and is committed: each task counts its rows, and the commit compares them with the
job's.

One that failed with some rows in: the full set of its rows is unknown, but the next submission must contain the rows
that are in. A partition without any row in can't detect a difference. So no task of such a submission writes to the
queue. Each task compares its rows with its partition's log. It stores the rows that are not in under its own key.
When all tasks have succeeded, `release` hands the stored rows to an ordinary attempt per partition. A task that finds
different rows fails, and then no row of the submission reaches the queue.

>>> import fdbqueue
>>> with fdbqueue.open("memory:") as db:
...     job_report(db, "flights", "2013") is None
True
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from fdbqueue.engine.api import Database, KeySelector, KeyValue, Transaction
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts, only_database, transactional
from fdbqueue.errors import JobError
from fdbqueue.layers.streams.records import decode, encode
from fdbqueue.moves.admission import refuse_smart
from fdbqueue.spark.attempts import AsideAttempt, JobAttempt, PartitionReport, RowsAside
from fdbqueue.spark.partition_log import (
    JOBS_WITHOUT_A_QUEUE,
    Counted,
    JobHeader,
    JobIsCommitted,
    JobKeys,
    JobOutcome,
    JobRecord,
    JobReport,
    check_record,
    counted,
    entries,
    job_ids,
    owner_attempts,
)
from fdbqueue.spark.waiting_rows import DIGEST_BYTES, added, unpack
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.looks import refuse_codec, refuse_others_keys

Clock: TypeAlias = Callable[[], int]
_OUTSIDE = "Call it outside of transactions."
ENTRIES_A_REMOVAL = 250
"""The most log entries that one transaction removes; each has up to 64 kilobytes."""


def now_us() -> int:
    """Return this machine's wall clock, in microseconds."""
    return time.time_ns() // 1000


class BegunJob(NamedTuple):
    """The state of a job at the begin of a submission."""

    stored: bytes
    """Its record, as stored."""
    record: JobRecord
    """Its record, decoded."""
    resumed: bool
    """Whether rows of an earlier submission are in, and the job is not committed."""

    @property
    def committed(self) -> bool:
        """Whether the job is done, so that the submission's rows are only compared."""
        return self.record.outcome is not None


def begin_job(db: Database, keys: JobKeys, header: JobHeader, *, clock: Clock = now_us) -> BegunJob:
    """Write the job's record, or compare it with the existing one.

    Rows of a committed job are compared as a whole, so its number of partitions may differ.

    Raises:
        JobError: the job began with another header. ChecksBypassed: its queue is smart, and the job is not.
        OtherCodec: its queue is registered with another codec. NestedQueue: the name of its queue is nested.

    *Conflicts:* with a submission that begins the same job; one of the two finds the other's record. *Cost:* one read,
    one write; for a job that began before, one key read per partition.
    """
    fresh = JobRecord(header=header, started_us=clock())

    async def body(tr: Transaction) -> BegunJob:
        value = await value_of(tr.get(keys.record))
        if value.present():
            stored = bytes(value)
            counts = await rows(tr.snapshot, *keys.counts_range())
            record = decode(JobRecord, stored, f"job {keys.job_id!r}")
            return BegunJob(stored, record, record.outcome is None and any(counted(row.value).rows for row in counts))
        await refuse_others_keys(tr, keys.layout)
        await refuse_bypass(tr, keys.layout, header)
        tr.set(keys.record, encode(fresh))
        return BegunJob(encode(fresh), fresh, resumed=False)

    begun = run(attempts(db, body))
    was = begun.record.header
    was.expect(keys.job_id, structs.replace(header, partitions=was.partitions) if begun.committed else header)
    return begun


def commit_job(db: Database, keys: JobKeys, reports: Iterable[PartitionReport], *, clock: Clock = now_us) -> JobReport:
    """Commit the job: write its report into its record, then remove its log. The new record stops late attempts.

    If the job is committed already, this compares the rows with the job's.

    Raises:
        JobError: the rows that are in differ from those of the last attempts, because rows or partitions differed
            between attempts. Or the job was committed with other rows.

    *Conflicts:* transactions of late attempts fail. *Cost:* two keys read per partition, one write; then one
    transaction per 250 removed log entries.
    """
    by_partition = {report.partition: report for report in reports}
    own: JobOutcome | None = None

    async def body(tr: Transaction) -> JobRecord:
        nonlocal own
        value = await value_of(tr.get(keys.record))
        if not value.present():
            raise JobError(f"The record of job {keys.job_id!r} is gone: the queue was cleared, or the job forgotten.")
        record = decode(JobRecord, bytes(value), f"job {keys.job_id!r}")
        if record.outcome is not None:
            if record.outcome != own:  # otherwise this repeats a commit that took effect at first
                _compare(keys.job_id, record.outcome, by_partition)
                record = structs.replace(record, outcome=structs.replace(record.outcome, already_committed=True))
                tr.set(keys.record, encode(record))
            return record
        # A plain read, no snapshot read: a late transaction that adds rows makes this commit fail, or fails itself.
        counts = await rows(tr, *keys.counts_range())
        owners = await rows(tr.snapshot, *keys.owners_range())
        found = {keys.partition_of(row.key): counted(row.value) for row in counts}
        problem = difference(by_partition, found)
        if problem:
            raise JobError(f"Job {keys.job_id!r} is not committed: {problem}")
        tried = sum(owner_attempts(row.value) for row in owners)
        own = _outcome(by_partition, found, max(tried, len(by_partition)), clock())
        record = structs.replace(record, outcome=own)
        tr.set(keys.record, encode(record))
        return record

    record = run(attempts(db, body))
    remove_log(db, keys)
    return _report(keys.job_id, record, {}, 0)


def report_job(
    db: Database, keys: JobKeys, header: JobHeader, started_us: int, reports: Iterable[PartitionReport]
) -> JobReport:
    """Store the report of a job that was delivered at least once. A later report of the same id replaces it.

    Raises:
        JobError: a job with this id was to be delivered exactly once.
    """
    by_partition = {report.partition: report for report in reports}
    counts = {report.partition: Counted(report.rows, report.transactions) for report in by_partition.values()}
    outcome = _outcome(by_partition, counts, len(by_partition), now_us())
    record = JobRecord(header=header, started_us=started_us, outcome=outcome)

    async def body(tr: Transaction) -> None:
        await refuse_others_keys(tr, keys.layout)
        await _refuse_other_delivery(tr, keys, header)
        tr.set(keys.record, encode(record))

    run(attempts(db, body))
    return _report(keys.job_id, record, {}, 0)


def check_report(db: Database, keys: JobKeys, header: JobHeader) -> None:
    """Make the check of `report_job` before the first row.

    Raises:
        JobError: as `report_job`.
    """
    run(attempts(db, lambda tr: _refuse_other_delivery(tr, keys, header)))


async def refuse_bypass(tr: Transaction, layout: Layout, header: JobHeader) -> None:
    """Refuse rows that would bypass a smart queue's checks, or have another codec, before any task runs.

    Tasks also find out, in each transaction. In this way they refuse rows that name their own queues.

    Raises:
        ChecksBypassed: the queue is smart, and the job has no `smart`.
        OtherCodec: the queue is registered with another codec.
    """
    if header.smart is None:
        await refuse_smart(tr, layout)
    await refuse_codec(tr, layout, header.codec)


async def _refuse_other_delivery(tr: Transaction, keys: JobKeys, header: JobHeader) -> None:
    value = await value_of(tr.get(keys.record))
    if value.present() and decode(JobRecord, bytes(value), f"job {keys.job_id!r}").header.delivery != header.delivery:
        raise JobError(f"{keys.job_id!r} is the id of a job with exactlyOnce delivery; give this one its own.")


def remove_log(db: Database, keys: JobKeys) -> None:
    """Remove all keys of a job except its record, in transactions of bounded size. A second call does no harm."""
    for partition in run(attempts(db, lambda tr: _partitions(tr, keys))):
        last: bytes = run(attempts(db, partial(_last_entry, keys=keys, partition=partition)))
        newest = keys.number_of(last) if keys.log_entry(partition, 0) <= last else 0
        for first in range(1, newest + 1, ENTRIES_A_REMOVAL):
            begin, end = keys.log_entry(partition, first), keys.log_entry(partition, first + ENTRIES_A_REMOVAL)
            clear(db, begin, end)
    clear(db, keys.begin, keys.end)


async def _partitions(tr: Transaction, keys: JobKeys) -> list[int]:
    owners = await rows(tr.snapshot, *keys.owners_range())
    return [keys.partition_of(row.key) for row in owners]


async def _last_entry(tr: Transaction, *, keys: JobKeys, partition: int) -> bytes:
    return bytes(await value_of(tr.snapshot.get_key(KeySelector.last_less_than(keys.log_end(partition)))))


@transactional
def clear(tr: Any, begin: bytes, end: bytes) -> None:
    """Remove the keys of a range."""
    tr.clear_range(begin, end)


async def read_record(tr: Transaction, keys: JobKeys) -> JobRecord | None:
    """Return the job's record, read by snapshot; None if there is none."""
    value = await value_of(tr.snapshot.get(keys.record))
    return decode(JobRecord, bytes(value), f"job {keys.job_id!r}") if value.present() else None


def job_report(db: Database, queue: Name | None, job_id: str) -> JobReport | None:
    """Return a job's report, final or so far; None if there is no job of that id.

    Args:
        db: the database; a transaction is refused.
        queue: the job's queue; None for a job with a queue column and no queue of its own.
        job_id: the job's id.

    *Conflicts:* none. *Cost:* one read; two more per partition while the job is not committed.
    """
    only_database(db, "job_report", _OUTSIDE)
    keys = JobKeys(_home(queue), job_id)

    async def body(tr: Transaction) -> JobReport | None:
        record = await read_record(tr, keys)
        if record is None:
            return None
        counts = owners = []
        if record.outcome is None:
            counts = await rows(tr.snapshot, *keys.counts_range())
            owners = await rows(tr.snapshot, *keys.owners_range())
        found = {keys.partition_of(row.key): counted(row.value) for row in counts}
        return _report(job_id, record, found, sum(owner_attempts(row.value) for row in owners))

    return run(attempts(db, body))


def jobs(db: Database, queue: Name | None = None) -> Iterator[JobReport]:
    """Yield the reports of all jobs of a queue, in the order of their ids.

    *Conflicts:* none. *Cost:* two reads per job, more for those that are not committed.
    """
    only_database(db, "jobs", _OUTSIDE)
    for job_id in job_ids(db, _home(queue)):
        report = job_report(db, queue, job_id)
        if report is not None:
            yield report


def forget_job(db: Database, queue: Name | None, job_id: str) -> bool:
    """Remove a job's record and its log; return whether there was one. Its rows stay in the queue.

    The job can then be submitted again, and writes all its rows again. An attempt that still runs fails.

    *Conflicts:* transactions of running attempts fail. *Cost:* one read, one write, and one transaction per 250 log
    entries.
    """
    only_database(db, "forget_job", _OUTSIDE)
    keys = JobKeys(_home(queue), job_id)
    found = False

    async def body(tr: Transaction) -> None:
        nonlocal found
        value = await value_of(tr.get(keys.record))
        found = found or bool(value.present())  # a repeat may find that the first commit has removed it
        tr.clear(keys.record)

    # The record goes first, so that no attempt can write a log entry after this.
    run(attempts(db, body))
    remove_log(db, keys)
    return found


def _home(queue: Name | None) -> Layout:
    return Layout(JOBS_WITHOUT_A_QUEUE if queue is None else queue)


def difference(reports: dict[int, PartitionReport], counts: dict[int, Counted]) -> str | None:
    """Return how the rows that are in differ from those of the last attempts; None if they are the same."""
    # Fewer partitions than declared are no problem: if no other partition has rows, these are all.
    foreign = sorted(partition for partition, found in counts.items() if found.rows and partition not in reports)
    if foreign:
        return (
            f"the partitions {foreign} have rows of an earlier run, which had more partitions than this one's"
            f" {len(reports)}: rows are in twice. Say the number of partitions, and a job with another is refused."
        )
    for partition, report in reports.items():
        if report.stopped:
            return f"partition {partition} ended early, for a commit that is not there."
        found = counts.get(partition, Counted())
        if report.rows != found.rows:
            return (
                f"partition {partition} had {report.rows:,} rows, but {found.rows:,} are in. The rows"
                " differ between attempts: checkpoint() the DataFrame first, and enqueue that, under a new job id."
            )
    return None


def _outcome(
    reports: dict[int, PartitionReport], counts: dict[int, Counted], tried: int, committed_us: int
) -> JobOutcome:
    return JobOutcome(
        committed_us=committed_us,
        partitions=len(reports),
        rows=sum(report.rows for report in reports.values()),
        skipped=sum(report.skipped for report in reports.values()),
        attempts=tried,
        size_bytes=sum(report.size_bytes for report in reports.values()),
        transactions=sum(found.transactions for found in counts.values()),
        conflicts=sum(report.conflicts for report in reports.values()),
        retries=sum(report.retries for report in reports.values()),
        digest=added(*(report.digest for report in reports.values())).to_bytes(DIGEST_BYTES, "big"),
    )


def _compare(job_id: str, outcome: JobOutcome, reports: dict[int, PartitionReport]) -> None:
    """Compare the rows of a submission with those of the committed job.

    Raises:
        JobError: the rows differ.
    """
    again = _outcome(reports, {}, 0, 0)
    # A record of an earlier version has no digest. Then only the number of rows is compared.
    if again.rows == outcome.rows and outcome.digest in (b"", again.digest):
        return
    what = f"{again.rows:,}" if again.rows != outcome.rows else f"{again.rows:,} others, in part or all"
    raise JobError(
        f"Job {job_id!r} is committed, with {outcome.rows:,} rows, and was submitted again with {what}. Nothing was"
        " enqueued. Submit other rows under a job id of their own. To enqueue all of them under this id, whether they"
        " are in or not, call fdbqueue.spark.forget_job first."
    )


def _report(job_id: str, record: JobRecord, counts: dict[int, Counted], tried: int) -> JobReport:
    outcome = record.outcome or JobOutcome(
        committed_us=record.started_us,
        partitions=0,
        rows=sum(found.rows for found in counts.values()),
        skipped=0,
        attempts=tried,
        size_bytes=0,
        transactions=sum(found.transactions for found in counts.values()),
    )
    return JobReport(
        job_id,
        record.outcome is not None,
        record.header.delivery,
        outcome.partitions if record.outcome else record.header.partitions,
        outcome.rows,
        outcome.skipped,
        outcome.attempts,
        outcome.size_bytes,
        (outcome.committed_us - record.started_us) / 1e6,
        outcome.transactions,
        outcome.conflicts,
        outcome.retries,
        outcome.already_committed,
    )


def store_aside(db: Database, keys: JobKeys, partition: int, begun: BegunJob, submission: bytes) -> AsideAttempt:
    """Return an attempt at one partition of a job that was submitted before.

    It compares its rows with those that are in, and stores the others aside. Of a committed job it only counts them,
    and the commit compares.

    Args:
        submission: identifies the rows that this submission of the job stores.
    """
    return AsideAttempt(
        db,
        keys.record,
        partial(check_record, keys, partition, begun.stored),
        partial(keys.aside, submission),
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
        report if report.aside is None else _released(report, report.aside, partial(read, report), attempt_at)
        for report in reports
    ]


def _released(
    report: PartitionReport,
    aside: RowsAside,
    read: Callable[[str, int], bytes],
    attempt_at: Callable[[int], JobAttempt],
) -> PartitionReport:
    with closing(attempt_at(report.partition)) as attempt:
        try:
            for number in range(aside.skipped):
                digests = read("skipped", number)
                attempt.skip([digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)])
            for number in range(aside.batches):
                attempt.add(unpack(read("new", number)))
        except JobIsCommitted:  # another driver committed it, with the same rows or others: the commit compares
            return replace(report, stopped=True)
        return replace(attempt.finish(), size_bytes=report.size_bytes)


def drop(db: Database, keys: JobKeys, submission: bytes) -> None:
    """Remove the rows that the tasks of a submission stored. The job's commit removes rows that are stored later."""
    clear(db, *keys.aside_range(submission))


def _value(
    db: Database, keys: JobKeys, record: bytes, submission: bytes, report: PartitionReport, kind: str, number: int
) -> bytes:
    token = report.aside.token if report.aside else b""

    async def body(tr: Transaction) -> list[KeyValue]:
        stored = tr.get(keys.record)
        found = await rows(tr.snapshot, *keys.aside_range(submission, token, kind, number))
        check_record(keys, report.partition, record, await value_of(stored))
        return found

    chunks = run(attempts(db, body))
    if not chunks:
        raise JobError(f"Rows of job {keys.job_id!r} that were kept aside are gone. Submit the job again.")
    return b"".join(row.value for row in chunks)
