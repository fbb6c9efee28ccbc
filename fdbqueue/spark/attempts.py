"""Attempts at one partition: each receives its rows, and writes those that are not in yet, or stores them aside.

All loads and streams into queues use the same `PartitionAttempt`. A `JobAttempt` writes to the queue at once. A
`AsideAttempt` stores rows aside until it is known that they are the right ones. Both stop when they find the job
committed.

    ahead    digests of rows that are in the queue and that this attempt has not met in its input
    backlog  rows that it met and that are not in, as far as it knows
    sent     transactions under way

If an incoming row's digest is in `ahead`, it is removed there. Otherwise the row joins the backlog. The attempt
writes nothing while `ahead` has digests. Otherwise, if the input differed from an earlier attempt's, new rows would
be in before the difference shows at the end. No transaction is open between two calls, so the input may take its
time.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import NOT_COMMITTED, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD, FDBError, adopt_binding
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import again, attempts
from fdbqueue.errors import JobError
from fdbqueue.spark.partition_log import Check, JobIsCommitted, MayWrite, NoLog, NotMine
from fdbqueue.spark.waiting_rows import MEMORY_BYTES, Backlog, Met, Multiset, SparkRows, pack
from fdbqueue.stored.items import CHUNK_BYTES

if TYPE_CHECKING:
    from fdbqueue.spark.appenders import Appender


BATCH_ROWS = 4_000
BATCH_BYTES = 1_000_000
"""About the size of one transaction; FoundationDB advises to stay under 1 MB, and refuses over 10 MB."""
COMMITS_IN_FLIGHT = 5
"""The most transactions under way: while one is written, four others commit."""
COMMITS_IN_FLIGHT_EMBEDDED = 1
"""An embedded engine commits in the waiting thread, or else in another thread of this process. That thread would hold
LMDB's lock, and the other tasks wait for that lock. Meanwhile it would wait for Python, which this thread uses to make
the next rows."""

TOKEN_BYTES = 8
_DIGESTS_A_VALUE = 4_000
"""This keeps a value under FoundationDB's limit of 100,000 bytes."""


At = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The report of one attempt."""

    partition: int
    rows: int
    """Rows of the input."""
    skipped: int
    """Rows that were in the queue before."""
    size_bytes: int
    """Bytes of the input's encoded values."""
    transactions: int
    """Its commits that took effect."""
    conflicts: int
    """Its commits that failed with 1020."""
    retries: int
    """How many times it wrote rows again, after a failed commit or after another attempt claimed its partition."""
    seconds: float
    """The time from the first row to the last commit."""
    digest: int = 0
    """The digest of all rows of the input, in any order."""
    stopped: bool = False
    """Whether it found the job committed. From then on it wrote nothing, and only counted its rows."""
    aside: RowsAside | None = None
    """The place of its rows that are not in the queue yet."""


@dataclass(frozen=True, slots=True)
class RowsAside:
    """The rows that an attempt stored aside until all rows of its job were met (`loads.py`)."""

    token: bytes
    """The attempt's token."""
    skipped: int
    """The number of stored values with digests of rows that are in."""
    batches: int
    """The number of batches of rows that are not in."""


class PartitionAttempt:
    """One attempt at one partition: receives its rows, and tells those that are in already from those that are not.

    Args:
        partition: the number of the partition.
        memory_bytes: how many bytes of waiting rows are in memory.
        stopped: whether the job is known to be committed. Then the attempt only counts its rows.
    """

    def __init__(self, partition: int, memory_bytes: int = MEMORY_BYTES, *, stopped: bool = False) -> None:
        self._partition = partition
        self._ahead = Multiset()
        self._new_backlog = partial(Backlog, memory_bytes=memory_bytes)
        self._backlog = self._new_backlog()
        self._met = Met()
        self._stopped = stopped
        self._started = 0.0
        self._skipped = self._transactions = self._conflicts = self._retries = 0

    def add(self, rows: SparkRows, size_bytes: int = 0) -> None:
        """Take more of the input. Once the job is committed, it only counts the rows.

        Raises:
            JobError, StreamError: the job was forgotten, or the queue cleared. FDBError: an error that can't be
                retried.
        """
        self._met.add(rows.digests, size_bytes)
        if not self._stopped:
            self._run(lambda: self._take(rows))

    def finish(self) -> PartitionReport:
        """Write the remaining rows, at the end of the input.

        Raises:
            JobError: rows that an earlier attempt wrote are not in this attempt's input. It wrote none of its new rows.
        """
        if not self._stopped:
            self._run(self._finish)
        return PartitionReport(
            self._partition,
            self._met.rows,
            self._skipped,
            self._met.size_bytes,
            self._transactions,
            self._conflicts,
            self._retries,
            time.monotonic() - self._started if self._started else 0.0,
            self._met.digest,
            self._stopped,
            None if self._stopped else self._aside(),
        )

    def close(self) -> None:
        """Drop the backlog, finished or not."""
        self._backlog.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            if not self._started:
                self._started = time.monotonic()
                self._begin()
            work()
        except JobIsCommitted:
            self._stopped = True

    def _not_in(self, rows: SparkRows) -> SparkRows:
        if not self._ahead:
            return rows
        new = rows.pick(self._ahead.unmatched(rows.digests))
        self._skipped += len(rows) - len(new)
        return new

    def _refuse_ahead(self) -> None:
        if self._ahead:
            raise rows_differ(self._partition, ahead=len(self._ahead), rows=self._met.rows)

    def _begin(self) -> None:
        """Learn which rows are in."""

    def _take(self, rows: SparkRows) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _aside(self) -> RowsAside | None:
        """Return the place of the rows that are not in the queue yet."""
        return None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch, and the reads of its transaction under way."""

    rows: SparkRows
    tr: Transaction
    may_write: MayWrite
    write: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _SentRows:
    number: int
    rows: SparkRows
    tr: Transaction
    """Kept until its commit has ended: the binding cancels the commit of a transaction without references."""
    commit: Future[None]


class JobAttempt(PartitionAttempt):
    """Writes one partition's rows into their queues.

    Args:
        db: the database.
        log: the log of the partition, or a `NoLog`.
        appender: writes the rows into their queues.
        batch_rows: how many rows one transaction has at most.
        in_flight: how many transactions are under way at once. With 1, each begins after the previous one has
            committed, and none is under way between two calls.
        at: called with the name of each point that the attempt passes. Tests raise or kill there.
    """

    def __init__(
        self,
        db: Database,
        log: NoLog,
        appender: Appender,
        *,
        partition: int = 0,
        batch_rows: int = BATCH_ROWS,
        in_flight: int = COMMITS_IN_FLIGHT,
        memory_bytes: int = MEMORY_BYTES,
        at: At = lambda point: None,
    ) -> None:
        super().__init__(partition, memory_bytes)
        adopt_binding()
        self._db = db
        self._log = log
        self._appender = appender
        self._batch_rows = batch_rows
        self._at = at
        self._prepared: _Prepared | None = None
        self._sent: deque[_SentRows] = deque()
        self._in_flight = self._most_in_flight = in_flight
        self._patience: Transaction | None = None
        self._too_old = 0

    def skip(self, digests: list[bytes]) -> None:
        """Take more of the input: the digests of rows that were found in the queue before.

        Raises:
            JobError: one of them is not in the queue.
        """
        self._met.add(digests)
        if not self._stopped:
            self._run(lambda: self._take_off(digests))

    def _run(self, work: Callable[[], None]) -> None:
        super()._run(work)
        if self._stopped:
            self._prepared = None
            self._sent.clear()

    def _begin(self) -> None:
        self._catch_up(set())

    def _take(self, rows: SparkRows) -> None:
        self._backlog.append(self._not_in(rows))
        self._write_backlog(rest=False)

    def _take_off(self, digests: list[bytes]) -> None:
        missing = self._ahead.unmatched(digests)
        if missing:
            raise JobError(
                f"Partition {self._partition} had {len(missing):,} rows in the queue a moment ago, and they are not in"
                " its log now: the job's keys were changed by something else. Nothing new was written by this attempt."
            )
        self._skipped += len(digests)

    def _finish(self) -> None:
        while True:
            self._write_backlog(rest=True)
            self._refuse_ahead()
            if not self._sent:
                break
            self._settle()
        self._at("finished")

    def _write_backlog(self, *, rest: bool) -> None:
        """Write all full batches, and with `rest` also the last, smaller one.

        It issues the reads of each transaction before it writes the previous one, so that none waits for its reads. It
        leaves no transaction open at the end.
        """
        while not self._ahead:
            current = self._prepared or self._prepare(rest=rest)
            if current is None:
                return
            self._prepared = self._prepare(rest=rest) if self._most_in_flight > 1 else None
            self._send(current)
            while len(self._sent) >= self._in_flight:
                self._settle()

    def _prepare(self, *, rest: bool) -> _Prepared | None:
        batch = self._backlog.take(rows=self._batch_rows, size_bytes=BATCH_BYTES, rest=rest)
        if batch is None:
            return None
        tr = self._db.create_transaction()
        return _Prepared(batch, tr, self._log.ownership(tr), self._appender.prepare(tr, batch))

    def _send(self, prepared: _Prepared) -> None:
        tr, rows = prepared.tr, prepared.rows
        try:
            prepared.may_write()
            prepared.write()
            self._at("rows written")
            number = self._log.append(tr, rows.digests)
            self._at("marked")
            self._sent.append(_SentRows(number, rows, tr, tr.commit()))
            self._at("commit handed in")
        except NotMine:
            self._recover([rows], NOT_COMMITTED)
        except FDBError as error:
            self._note(error)
            self._recover([rows], error.code)

    def _settle(self) -> None:
        """Wait for the oldest transaction under way."""
        sent = self._sent.popleft()
        try:
            sent.commit.wait()
        except FDBError as error:
            self._note(error)
            self._recover([sent.rows], error.code)
            return
        self._log.committed(sent.number)
        self._transactions += 1
        self._patience = None
        self._too_old = 0
        self._in_flight = min(self._in_flight * 2, self._most_in_flight)
        self._at("committed")

    def _recover(self, failed: list[SparkRows], code: int) -> None:
        """After a failed commit, find out which rows are in, and put the others back to be written again."""
        own = set()
        while self._sent:
            sent = self._sent.popleft()
            try:
                sent.commit.wait()
            except FDBError as error:
                self._note(error)
                failed.append(sent.rows)
            else:
                own.add(sent.number)
                self._transactions += 1
        self._retries += len(failed)
        if self._prepared is not None:
            failed.append(self._prepared.rows)
            self._prepared = None
        self._in_flight = 1
        self._wait_after(code, max(map(len, failed)))
        self._catch_up(own)
        if not self._ahead:
            for rows in reversed(failed):
                self._backlog.put_back(rows)
            return
        # Some of the waiting rows may be in, through a commit in doubt or through another attempt. Remove those here.
        waiting, self._backlog = self._backlog, self._new_backlog()
        with closing(waiting):
            for rows in failed:
                self._backlog.append(self._not_in(rows))
            for rows in waiting.drain():
                self._backlog.append(self._not_in(rows))

    def _note(self, error: FDBError) -> None:
        self._conflicts += error.code == NOT_COMMITTED

    def _catch_up(self, own: set[int]) -> None:
        """Claim the partition, and learn of all rows that are in and that this attempt does not know of."""
        while True:
            self._log.claim()
            self._at("claimed")
            try:
                for digests in self._log.new_entries(own):
                    self._ahead.add(digests)
                self._at("caught up")
                return
            except NotMine:
                self._wait_after(NOT_COMMITTED, 0)

    def _wait_after(self, code: int, rows: int) -> None:
        """Wait before a retry, as the engine demands after this error, or raise the error. Shrink batches that are too
        large."""
        self._too_old = self._too_old + 1 if code == TRANSACTION_TOO_OLD else 0
        if rows > 1 and (code == TRANSACTION_TOO_LARGE or self._too_old > 1):
            self._batch_rows = max(1, rows // 2)
            return
        if self._patience is None:
            self._patience = self._db.create_transaction()
        run(again(self._patience, FDBError(code)))


class AsideAttempt(PartitionAttempt):
    """Stores one partition's rows aside, until its job or its batch is decided; or only counts them.

    Args:
        db: the database.
        record: the key of the record that each transaction reads.
        check: checks it.
        key: returns the key of a piece of the stored rows from the kind, ``new`` or ``skipped``, the number of the
            stored value and the place in it.
        ahead: yields the digests of rows that are in the queue.
        part_rows: how many rows one stored value has at most.
    """

    def __init__(
        self,
        db: Database,
        record: bytes,
        check: Check,
        key: Callable[[bytes, str, int, int], bytes],
        partition: int,
        *,
        ahead: Callable[[], Iterable[bytes]] = tuple,
        part_rows: int = BATCH_ROWS,
        stopped: bool = False,
    ) -> None:
        super().__init__(partition, stopped=stopped)
        self._db = db
        self._record = record
        self._check = check
        self._token = os.urandom(TOKEN_BYTES)
        self._key = partial(key, self._token)
        self._digests = ahead
        self._part_rows = part_rows
        self._found: list[bytes] = []
        self._values = self._batches = 0

    def _begin(self) -> None:
        for digests in self._digests():
            self._ahead.add(digests)

    def _take(self, rows: SparkRows) -> None:
        new = self._not_in(rows)
        if new is not rows:
            left = Counter(rows.digests)
            left.subtract(new.digests)
            self._found += left.elements()
        self._backlog.append(new)
        self._store(rest=False)

    def _finish(self) -> None:
        self._refuse_ahead()
        self._store(rest=True)

    def _aside(self) -> RowsAside:
        return RowsAside(self._token, self._values, self._batches)

    def _store(self, *, rest: bool) -> None:
        while len(self._found) >= (1 if rest else _DIGESTS_A_VALUE):
            taken, self._found = self._found[:_DIGESTS_A_VALUE], self._found[_DIGESTS_A_VALUE:]
            self._set("skipped", self._values, b"".join(taken))
            self._values += 1
        while batch := self._backlog.take(rows=self._part_rows, size_bytes=BATCH_BYTES, rest=rest):
            self._set("new", self._batches, pack(batch))
            self._batches += 1

    def _set(self, kind: str, number: int, value: bytes) -> None:
        for start in range(0, len(value), 2 * BATCH_BYTES):
            run(attempts(self._db, partial(self._set_some, kind=kind, number=number, value=value, start=start)))

    async def _set_some(self, tr: Transaction, kind: str, number: int, value: bytes, start: int) -> None:
        # A plain read: a transaction that comes after the decision fails, and then stops.
        self._check(await value_of(tr.get(self._record)))
        end = min(start + 2 * BATCH_BYTES, len(value))
        for at in range(start, end, CHUNK_BYTES):
            tr.set(self._key(kind, number, at), value[at : min(at + CHUNK_BYTES, end)])


def rows_differ(partition: int, *, ahead: int, rows: int) -> JobError:
    """Return the error of an attempt whose input lacks rows that are in the queue."""
    return JobError(
        f"Partition {partition} has {ahead:,} rows in the queue, from an earlier attempt, that are not among this"
        f" attempt's {rows:,}. The rows differ between attempts, as those of random or time-dependent expressions do,"
        " or the job was submitted again with other data or another partitioning. Nothing new was written by this"
        " attempt. Submit the job with the rows and the partitioning that it had; checkpoint() a DataFrame whose rows"
        " change, and enqueue it, as other data, under a new job id."
    )
