"""The stored data of jobs, and one partition's log: which rows are in, and which attempt may write more.

Each transaction that writes rows also appends their digests to the log. It reads two keys: the job's record and the
partition's owner. An attempt must *claim* the partition before it writes: it writes itself under the owner's key. From
then on the transactions of every other attempt fail. Those under way fail with a conflict, and later ones find another
owner. So no other attempt adds entries after a claim, and the claimer reads all entries. Then it runs any number of
transactions at once. None of them writes the owner's key, so they don't conflict with each other. An attempt that has
lost the partition claims it again and reads the entries added meanwhile. Two attempts at once (a speculative copy) take
turns, and both succeed.

A commit with an unknown outcome needs no extra care. The attempt claims again, which keeps that commit from taking
effect later, and then reads whether the commit's entry is there.

While the job runs, every transaction that writes its rows reads the record. It stops if the job is committed or the
record is gone. A late attempt would otherwise find no log, and write all rows again.

| key (a tuple behind the queue's) | value |
| --- | --- |
| ``("job", id)`` | the job's record: its header, and its report once it is committed |
| ``("job", id, "owner", partition)`` | the attempt that may write the partition's rows now, and the number of attempts
|
| ``("job", id, "rows", partition)`` | how many rows of the partition are in the queue, and how many transactions wrote
  them: twice 8 bytes, little-endian, by one atomic add |
| ``("job", id, "mark", partition, n)`` | the digests of the rows that one transaction wrote, 16 bytes each |
| ``("job", id, "held", submission, attempt, kind, n, chunk)`` | of a job that is submitted again: ``new`` rows that are
  not in the queue yet, and the digests of those that are, ``skipped`` (`loads.py`) |

All but the record go once the job is committed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from fdbqueue.base.arguments import check_text
from fdbqueue.engine.api import Database, KeyValue, Transaction, Value
from fdbqueue.engine.keys import Subspace, is_within
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError, JobError
from fdbqueue.layers.streams.records import decode
from fdbqueue.reads.queue_rows import CheckPart, ItemCheck
from fdbqueue.stored import shapes
from fdbqueue.stored.layout import Layout
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
            raise FormatError(self.layout.told_foreign(family, key))
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

    __slots__ = ("_aside", "begin", "end", "job_id")

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
        self._aside = space["held"]
        beneath = space.range()
        self.begin: bytes = beneath.start
        """The begin and the end of the keys that are removed when the job is committed."""
        self.end: bytes = beneath.stop

    def aside(self, submission: bytes, token: bytes, kind: str, number: int, chunk: int) -> bytes:
        """Return the key of a chunk of the rows that an attempt stores aside."""
        key: bytes = self._aside.pack((submission, token, kind, number, chunk))
        return key

    def aside_range(self, submission: bytes, *rest: bytes | str | int) -> tuple[bytes, bytes]:
        """Return the begin and end of the keys of the rows that a submission stores aside, or of a part of them."""
        span = self._aside.range((submission, *rest))
        return span.start, span.stop


def job_ids(db: Database, layout: Layout) -> Iterator[str]:
    """Yield the ids of a queue's jobs, in their order. Each takes its own read, which jumps over the job's keys."""
    span = layout.jobs.range()
    begin: bytes = span.start
    while True:
        found = run(attempts(db, lambda tr, begin=begin: layout.first_own(tr.snapshot, "jobs", begin, span.stop)))  # type: ignore[misc]
        if found is None:
            return
        job_id: str = found[0][0]
        yield job_id
        begin = JobKeys(layout, job_id).end


class JobHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that must be the same at every submission of the job."""

    delivery: str
    partitions: int | None
    """How many partitions the rows are in; None: unknown."""
    codec: str
    value_column: str | None
    queue_column: str | None
    headers_column: str | None
    columns: tuple[tuple[str, str], ...]
    """The columns that are read, each with its Spark type."""
    smart: str | None = None
    """Names the function that makes the rows' smart queues. Records of earlier versions do not have it."""
    # Records of earlier versions do not have these either.
    priority_column: str | None = None
    levels: int | None = None
    delay_column: str | None = None
    ttl_column: str | None = None
    session_column: str | None = None
    sessions: str | None = None

    def expect(self, job_id: str, other: JobHeader) -> None:
        """Refuse a submission of the job as `other`, if the headers differ.

        Raises:
            JobError: they differ; the message names the difference.
        """
        differences = [
            f"{name.replace('_', ' ')} was {_shown(getattr(self, name))} and is now {_shown(getattr(other, name))}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        if differences:
            raise JobError(
                f"Job {job_id!r} was submitted before, and differs now: {'; '.join(differences)}. Submit it as it"
                " was, or give this one a job id of its own."
            )


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a committed job."""

    committed_us: int
    partitions: int
    rows: int
    skipped: int
    attempts: int
    size_bytes: int
    # Records of earlier versions do not have these.
    transactions: int = 0
    conflicts: int = 0
    retries: int = 0
    digest: bytes = b""
    """The digest of all rows, in any order (`digests.Met`); empty: unknown."""
    already_committed: bool = False


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value under the job's key."""

    header: JobHeader
    started_us: int
    outcome: JobOutcome | None = None
    """None until the job is committed."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The report of a job, final or so far."""

    job_id: str
    committed: bool
    """Whether the job is committed. Then all its rows are in, and another submission writes nothing."""
    delivery: str
    """``exactlyOnce`` or ``atLeastOnce``."""
    partitions: int | None
    """Partitions of the input; None if not known yet."""
    rows: int
    """Rows that this job put into the queue."""
    skipped: int
    """Of these, the rows that the last attempt of their partition found in already; 0 until the job is committed."""
    attempts: int
    """Attempts at all partitions in all runs. Without failures it equals the number of partitions."""
    size_bytes: int
    """Bytes of the rows' encoded values; 0 until the job is committed."""
    seconds: float
    """The time from the first submission to the commit, by the drivers' clocks; 0 until the job is committed."""
    transactions: int
    """Transactions that wrote its rows, in all attempts, including killed ones: each counts itself. With
    ``atLeastOnce``, only those of the attempts that finished."""
    conflicts: int
    """Commits that failed with 1020, in the attempts that finished. The conflicts of failed and killed attempts are
    unknown. 0 until the job is committed."""
    retries: int
    """How many times rows were written again, after these and other failed commits. It counts like `conflicts`, and
    includes them."""
    already_committed: bool = False
    """Whether the job was committed before its last submission. That submission had the same rows and wrote none."""


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, tuple):
        return "(" + ", ".join(" ".join(column) for column in value) + ")"
    return str(value)


_TOKEN_BYTES = 16
_OWNER = struct.Struct(f">{_TOKEN_BYTES}sQ")  # the owner's token, and the number of attempts
_COUNT = struct.Struct("<QQ")  # rows and transactions
_ENTRIES_A_READ = 16
"""Log entries in one read. Each has the digests of up to several thousand rows."""


class JobIsCommitted(Exception):
    """The job is committed, so an attempt has nothing left to do."""


class NotMine(Exception):
    """Another attempt has claimed the partition."""


Check: TypeAlias = Callable[[Value], None]
"""Checks by the record that a transaction has read whether an attempt may still write. It raises `JobIsCommitted` if
nothing is left to do, and else the error of a record that is gone or another one's."""
MayWrite: TypeAlias = Callable[[], None]
"""Waits for the reads of a transaction, and raises if it may not write: `NotMine`, or as `Check`."""


class NoLog:
    """Tells an attempt which rows are in, and records the rows that it writes.

    This one, for delivery at least once, records none: an attempt writes again after any failure.
    """

    def claim(self) -> None:
        """Keep all other attempts from writing."""

    def new_entries(self, own: set[int]) -> Iterator[bytes]:
        """Yield the log entries since the last call, except those of the `own` transactions. Call it after a claim."""
        return iter(())

    def ownership(self, tr: Transaction) -> MayWrite:
        """Start to read in `tr` whether it may write."""
        return _always

    def append(self, tr: Transaction, digests: list[bytes]) -> int:
        """Record that `tr` writes rows. Return the transaction's number."""
        return 0

    def committed(self, number: int) -> None:
        """Note that this transaction and all before it have committed."""


def _always() -> None:
    """Allow every transaction."""


def entries(
    db: Database, begin: bytes, end: bytes, ownership: Callable[[Transaction], MayWrite] = lambda tr: _always
) -> Iterator[KeyValue]:
    """Yield log entries, by one transaction per 16 of them; no write, no conflict.

    Args:
        ownership: starts to read whether a transaction may read on.
    """

    async def body(tr: Transaction) -> list[KeyValue]:
        may_read = ownership(tr)
        found = await rows(tr.snapshot, begin, end, limit=_ENTRIES_A_READ)
        may_read()
        return found

    while True:
        found = run(attempts(db, body))
        yield from found
        if len(found) < _ENTRIES_A_READ:
            return
        begin = found[-1].key + b"\x00"


class RowLog(NoLog):
    """The log of one partition, for one attempt.

    Args:
        db: the database.
        keys: the keys of the logs.
        partition: the number of the partition.
        check: checks the record.
    """

    def __init__(self, db: Database, keys: PartitionKeys, partition: int, check: Check) -> None:
        self._db = db
        self._keys = keys
        self._check = check
        self._token = os.urandom(_TOKEN_BYTES)
        self._partition = partition
        self._owner = keys.owner(partition)
        self._counted = False
        self._known = 0
        self._next = 1

    def claim(self) -> None:
        """Make this attempt the partition's owner.

        *Conflicts:* makes every transaction under way that writes the partition's rows fail, on purpose.
        *Cost:* two reads, one write.
        """
        run(attempts(self._db, self._claim))
        self._counted = True

    async def _claim(self, tr: Transaction) -> None:
        record, owner = tr.get(self._keys.record), tr.get(self._owner)
        self._check(await value_of(record))
        token, tried = b"", 0
        if (await value_of(owner)).present():
            token, tried = _OWNER.unpack(bytes(owner))
        if not self._counted and token != self._token:
            tried += 1
        tr.set(self._owner, _OWNER.pack(self._token, tried))

    def new_entries(self, own: set[int]) -> Iterator[bytes]:
        """Yield the log entries since the last call, except those of the `own` transactions.

        Raises:
            NotMine: another attempt has claimed the partition. The yielded entries are right, but there are more.

        *Cost:* one transaction per 16 entries; no write, no conflict.
        """
        # While this attempt is the owner, no other attempt's transaction can have committed since the claim. So the
        # entries read here have no gap that a commit under way could still fill.
        begin, end = self._keys.log_entry(self._partition, self._known + 1), self._keys.log_end(self._partition)
        for row in entries(self._db, begin, end, self.ownership):
            self._known = self._keys.number_of(row.key)
            if self._known not in own:
                yield row.value
        self._next = self._known + 1

    def ownership(self, tr: Transaction) -> MayWrite:
        """Start to read whether `tr` may write.

        It is a plain read, so `tr` fails if a claim or the job's commit comes before its own commit.
        """
        return partial(self._may_write, tr.get(self._keys.record), tr.get(self._owner), self._token)

    def append(self, tr: Transaction, digests: list[bytes]) -> int:
        """Write the digests of the rows that `tr` writes, and add to the partition's counts.

        It adds to both counts as one number, by one atomic operation. A partition's transactions run concurrently, and
        would conflict if they read the counts. The addition takes effect together with the rows or not at all, so it is
        exact for all attempts, including killed ones.
        """
        number = self._next
        self._next += 1
        tr.set(self._keys.log_entry(self._partition, number), b"".join(digests))
        tr.add(self._keys.count(self._partition), _COUNT.pack(len(digests), 1))
        return number

    def committed(self, number: int) -> None:
        """Note that this transaction and all before it have committed, so their entries need no read."""
        self._known = number

    def _may_write(self, record: Value, owner: Value, token: bytes) -> None:
        self._check(record.wait())
        if bytes(owner.wait())[:_TOKEN_BYTES] != token:
            raise NotMine


def job_log(db: Database, keys: JobKeys, partition: int, record: bytes) -> RowLog:
    """Return the log of one partition of a running job, whose stored record is given."""
    return RowLog(db, keys, partition, partial(check_record, keys, partition, record))


def check_record(keys: JobKeys, partition: int, expected: bytes, value: Value) -> None:
    """Check by a job's record that the job still runs.

    Raises:
        JobIsCommitted: it is committed. JobError: it was forgotten.
    """
    stored = bytes(value) if value.present() else None
    if stored == expected:
        return
    job_id = keys.job_id
    if stored is None:
        raise JobError(
            f"The record of job {job_id!r} is gone while partition {partition} of it is written: the queue was cleared"
            " or the job forgotten, or this is another machine's file. A file: URL serves Spark on one machine only."
        )
    if decode(JobRecord, stored, f"job {job_id!r}").outcome is not None:
        raise JobIsCommitted
    raise JobError(
        f"Job {job_id!r} was forgotten and started again while an attempt of the first submission still ran."
    )


def owner_attempts(value: bytes) -> int:
    """Return the number of attempts at a partition, from its owner's value."""
    tried: int = _OWNER.unpack(value)[1]
    return tried


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a partition, from the transactions that wrote it."""

    rows: int = 0
    transactions: int = 0


def counted(value: bytes) -> Counted:
    """Return a partition's counts from their value. A value by an earlier version has only the rows."""
    return Counted(*_COUNT.unpack(value.ljust(_COUNT.size, b"\0")))


JOBS = "records of Spark's jobs"
CHECK_PART = CheckPart(lambda tr, queue: ItemCheck(), (), leaves_out=((JOBS, lambda layout: layout.jobs),))
"""What Spark adds to `fdbqueue.check`: the check does not look at jobs, and says so."""
