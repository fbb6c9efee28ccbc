"""One partition's marks: which rows are in, and which attempt may write the next ones.

Each transaction that writes rows also writes their digests, as the partition's next mark, and reads two keys: the
job's record and the partition's owner. An attempt that wants to write *claims* the partition, by writing itself under
the owner's key; from then on the transactions of every other attempt fail, those under way with a conflict, later ones
because they find another owner. So the marks stand still for the one that claimed, and it reads them all. Then it
writes as many transactions at once as it likes: none of them writes the owner's key, so they don't conflict with each
other. Whoever finds itself without the partition claims it again and reads what has come in between: two attempts at
once (a speculative copy) take turns, and both end well.

A commit whose outcome is unknown needs no care of its own: the attempt claims again, which keeps that commit from
taking effect any more, and reads whether its mark is there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, rows, run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import JobError
from fdbqueue.spark.keys import JobKeys
from fdbqueue.spark.record import decode

_TOKEN_BYTES = 16
_OWNER = struct.Struct(f">{_TOKEN_BYTES}sQ")  # whose it is, and how many attempts there were
_COUNT = struct.Struct("<QQ")  # rows and transactions
_MARKS_A_READ = 16
"""Marks in one read: each has the digests of up to some thousand rows."""


class JobIsCommitted(Exception):
    """The job is done: an attempt that meets this has nothing left to do."""


class NotMine(Exception):
    """Another attempt has claimed the partition."""


class Guard(Protocol):
    """What must hold for a transaction to write."""

    def check(self) -> None:
        """Wait until it is known.

        Raises:
            NotMine, JobIsCommitted, JobError: it may not write.
        """


class Log(Protocol):
    """How an attempt knows what is in, and says what it writes."""

    def claim(self) -> None:
        """Keep all others from writing."""

    def new_marks(self, own: set[int]) -> Iterator[bytes]:
        """Yield the marks that came since the last call and are not of the `own` transactions; after a claim."""

    def guard(self, tr: Transaction) -> Guard:
        """Start to read in `tr` whether it may write."""

    def mark(self, tr: Transaction, digests: list[bytes]) -> int:
        """Write that `tr` writes rows; return the transaction's number."""

    def committed(self, number: int) -> None:
        """Note that this transaction and all before it are in."""


@dataclass(frozen=True, slots=True)
class _Guard:
    check_record: Callable[[Any], None]
    record: Any
    owner: Any
    token: bytes

    def check(self) -> None:
        self.check_record(self.record.wait())
        if bytes(self.owner.wait())[:_TOKEN_BYTES] != self.token:
            raise NotMine


class PartitionLog:
    """The marks of one partition, for one attempt.

    Args:
        record: the job's record as it stands while the job runs.
    """

    def __init__(self, db: Database, keys: JobKeys, partition: int, record: bytes) -> None:
        self._db = db
        self._keys = keys
        self._partition = partition
        self._record = record
        self._token = os.urandom(_TOKEN_BYTES)
        self._owner = keys.owner(partition)
        self._end = keys.marks_end(partition)
        self._counted = False
        self._known = 0
        self._next = 1

    def claim(self) -> None:
        """Make this attempt the partition's owner.

        *Conflicts:* every transaction under way that writes the partition's rows fails, and that is its purpose.
        *Cost:* two reads, one write.
        """
        run(attempts(self._db, self._claim))
        self._counted = True

    def _claim(self, tr: Transaction) -> Steps[None]:
        record, owner = tr.get(self._keys.record), tr.get(self._owner)
        self._check_record((yield record))
        token, tried = b"", 0
        if (yield owner).present():
            token, tried = _OWNER.unpack(bytes(owner))
        if not self._counted and token != self._token:
            tried += 1
        tr.set(self._owner, _OWNER.pack(self._token, tried))

    def new_marks(self, own: set[int]) -> Iterator[bytes]:
        """Yield the marks that came since the last call and are not of the `own` transactions.

        Raises:
            NotMine: the partition was claimed by another; what was yielded is right, but there is more.

        *Cost:* one transaction per 16 marks; no write, no conflict.
        """
        while True:
            found = run(attempts(self._db, self._read_marks))
            for row in found:
                self._known = self._keys.number_of(row.key)
                if self._known not in own:
                    yield row.value
            if len(found) < _MARKS_A_READ:
                self._next = self._known + 1
                return

    def _read_marks(self, tr: Transaction) -> Steps[list[Any]]:
        # As long as the owner is this attempt, no other's transaction can have committed since the claim, so what is
        # read has no gap that a commit under way could still fill.
        guard = self.guard(tr)
        found = yield from rows(
            tr.snapshot, self._keys.mark(self._partition, self._known + 1), self._end, limit=_MARKS_A_READ
        )
        guard.check()
        return found

    def guard(self, tr: Transaction) -> Guard:
        """Start to read whether `tr` may write.

        Not by snapshot: a claim, or the job's commit, that comes before `tr`'s own commit makes that fail.
        """
        return _Guard(self._check_record, tr.get(self._keys.record), tr.get(self._owner), self._token)

    def mark(self, tr: Transaction, digests: list[bytes]) -> int:
        """Write the digests of the rows that `tr` writes, and add to the partition's counts.

        By one atomic add, of both counts as one number: transactions of a partition are under way side by side, and
        would conflict if they read what they add to. It takes effect with the rows or not at all, so it is exact for
        all attempts, the killed ones too.
        """
        number = self._next
        self._next += 1
        tr.set(self._keys.mark(self._partition, number), b"".join(digests))
        tr.add(self._keys.count(self._partition), _COUNT.pack(len(digests), 1))
        return number

    def committed(self, number: int) -> None:
        """Note that this transaction and all before it are in, and so need not be read again."""
        self._known = number

    def _check_record(self, value: Any) -> None:
        check_record(self._keys, self._partition, self._record, value)


def check_record(keys: JobKeys, partition: int, expected: bytes, value: Any) -> None:
    """Check that a job still runs, by its record as it was read.

    Raises:
        JobIsCommitted: it is done. JobError: it was forgotten.
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
    if decode(job_id, stored).outcome is not None:
        raise JobIsCommitted
    raise JobError(f"Job {job_id!r} was forgotten and begun anew while an attempt of its first life still ran.")


class NoLog:
    """At least once: nothing is marked, and whatever fails is written again."""

    def claim(self) -> None:
        """Do nothing."""

    def new_marks(self, own: set[int]) -> Iterator[bytes]:
        """Know of no marks."""
        return iter(())

    def guard(self, tr: Transaction) -> Guard:
        """Let everything pass."""
        return self

    def check(self) -> None:
        """Let everything pass."""

    def mark(self, tr: Transaction, digests: list[bytes]) -> int:
        """Mark nothing."""
        return 0

    def committed(self, number: int) -> None:
        """Note nothing."""


def owner_attempts(value: bytes) -> int:
    """Return how many attempts a partition had, from its owner's value."""
    tried: int = _OWNER.unpack(value)[1]
    return tried


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of a partition in the transactions that wrote it."""

    rows: int = 0
    transactions: int = 0


def counted(value: bytes) -> Counted:
    """Return a partition's counts from their value; one by an earlier version has only the rows."""
    return Counted(*_COUNT.unpack(value.ljust(_COUNT.size, b"\0")))
