"""One partition's log: which rows are in, and which attempt may write more.

Each transaction that writes rows also appends their digests to the log. It reads two keys: the job's record and the
partition's owner. An attempt must *claim* the partition before it writes: it writes itself under the owner's key. From
then on the transactions of every other attempt fail. Those under way fail with a conflict, and later ones find another
owner. So no other attempt adds entries after a claim, and the claimer reads all entries. Then it runs any number of
transactions at once. None of them writes the owner's key, so they don't conflict with each other. An attempt that has
lost the partition claims it again and reads the entries added meanwhile. Two attempts at once (a speculative copy) take
turns, and both succeed.

A commit with an unknown outcome needs no extra care. The attempt claims again, which keeps that commit from taking
effect later, and then reads whether the commit's entry is there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from fdbqueue.engine.api import Database, KeyValue, Transaction, Value
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import JobError
from fdbqueue.layers.streams.records import decode
from fdbqueue.spark.job.keys import JobKeys, PartitionKeys
from fdbqueue.spark.job.record import JobRecord

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
