"""Group commit: many transactions of a process in one LMDB transaction, so that they share one fsync.

Requests are handed in to a list. Whoever waits for one and finds the lead free leads: takes all that is there, checks
and applies each in order in one LMDB write transaction, and wakes the others. While it writes to the disk, the next
requests gather. A lone writer leads for itself, with no other thread in the way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, Protocol

import lmdb

from fdbqueue.engine.embedded.applying import apply
from fdbqueue.engine.embedded.clock import Clock
from fdbqueue.engine.embedded.commitlog import Entry, Range, RecentCommits, conflicting, conflicts, encode, time_of
from fdbqueue.engine.embedded.files import Files, explain
from fdbqueue.engine.embedded.layout import WINDOW_SECONDS
from fdbqueue.engine.embedded.request import CommitRequest, Faults
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, FUTURE_VERSION, NOT_COMMITTED, TRANSACTION_TOO_OLD
from fdbqueue.errors import StorageError

log = logging.getLogger(__name__)

MOST_REQUESTS: Final = 2048
MOST_MUTATIONS: Final = 50_000
LOG_WINDOW_US: Final = int((WINDOW_SECONDS + 1) * 1_000_000)
TRIM_EVERY_COMMITS: Final = 256
TRIM_EVERY_US: Final = 1_000_000
TRIM_MOST: Final = 1024
IO_ERROR: Final = 1510
"""FoundationDB's code for a disk that failed; `CommitRequest.failure` says more."""


class Host(Protocol):
    """What the committer needs of the store."""

    @property
    def path(self) -> str: ...
    @property
    def files(self) -> Files: ...
    @property
    def clock(self) -> Clock: ...

    def grow(self) -> None:
        """Make the map larger, at the expense of this process' open snapshots."""

    def adopt(self) -> None:
        """Take over the map size that another process has set."""

    def reopen(self) -> None:
        """Open the files anew after LMDB gave them up."""

    def published(self, entries: list[Entry]) -> None:
        """Learn of commits, of this and other processes, in order."""


class Done:
    """What is left to tell when the lead is given up."""

    __slots__ = ("entries", "requests")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.requests: list[CommitRequest] = []


class Broken(Exception):
    """A request that can't be applied; it fails alone."""

    def __init__(self, request: CommitRequest, cause: Exception) -> None:
        super().__init__(str(cause))
        self.request = request
        self.cause = cause


class Committer:
    """Commits requests for one process; LMDB's writer lock keeps the processes apart."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._recent = RecentCommits(host.files.dbs.log)
        self._pending: list[CommitRequest] = []
        self._lead = threading.Lock()
        self._last_txn = -1
        self._untrimmed = 0
        self._trimmed_us = 0
        self.commits = 0
        self.faults: Faults | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting to be committed."""
        return not self._pending

    @property
    def oldest(self) -> CommitRequest | None:
        """The request that has waited longest."""
        return next(iter(self._pending), None)

    def submit(self, request: CommitRequest) -> None:
        """Hand a request in; it is committed when someone leads."""
        self._pending.append(request)

    def wait(self, request: CommitRequest) -> None:
        """Wait until `request` is done, leading if nobody does."""
        while not request.settled():
            if self._lead.acquire(blocking=False):
                self._serve(request)
                continue
            gate = request.gate
            if gate is None:
                gate = threading.Lock()
                gate.acquire()
                request.gate = gate
            # Whoever leads looks for gates after giving the lead up. If it is free now, that look may be over.
            if request.settled():
                return
            if self._lead.acquire(blocking=False):
                self._serve(request)
            else:
                gate.acquire()

    def sweep(self) -> None:
        """Commit all that is there, waiting for the lead."""
        while self._pending:
            done = Done()
            with self._lead:
                while self._pending:
                    self._commit_pending(done)
            self._tell(done)

    def alone(self, action: Callable[[], None]) -> None:
        """Run `action` while nothing is being committed. Its thread must not hold the host's lock."""
        with self._lead:
            action()

    def _serve(self, request: CommitRequest) -> None:
        done = Done()
        try:
            while not request.done:
                self._commit_pending(done)
        finally:
            self._lead.release()
            for waiting in list(self._pending):
                if waiting.wake():
                    break
            self._tell(done)

    def _tell(self, done: Done) -> None:
        """Call back, without the lead: a callback may well commit something itself."""
        if done.entries:
            self._host.published(done.entries)
        for request in done.requests:
            request.call_back()

    def _commit_pending(self, done: Done) -> None:
        """Commit what is there, or as much of it as goes into one LMDB transaction."""
        pending = self._pending
        count = mutations = 0
        for request in pending:
            mutations += len(request.mutations)
            count += 1
            if count == MOST_REQUESTS or mutations >= MOST_MUTATIONS:
                break
        batch = pending[:count]
        del pending[:count]
        try:
            self._commit(batch, done)
        finally:
            for request in batch:
                if request.version < 0 and request.error is None:
                    # Only an exception from outside, such as KeyboardInterrupt, leads here.
                    request.error = COMMIT_UNKNOWN_RESULT if request.failure is None else IO_ERROR
                request.finish()
                if request.callbacks:
                    done.requests.append(request)
            self.commits += 1

    def _commit(self, batch: list[CommitRequest], done: Done) -> None:
        """Settle every request of `batch`."""
        while batch:
            try:
                self._attempt(batch, done)
                return
            except Broken as broken:
                broken.request.failure = broken.cause
                batch = [request for request in batch if request is not broken.request]
            except (StorageError, lmdb.Error) as error:
                failure = self._recover(error)
                if failure is None:
                    continue
                if len(batch) == 1:
                    batch[0].failure = failure
                    return
                # One large transaction must not make the small ones beside it fail.
                for request in batch:
                    self._commit([request], done)
                return

    def _recover(self, error: Exception) -> StorageError | None:
        """Make another attempt possible, or return why none is."""
        try:
            if isinstance(error, lmdb.MapFullError):
                self._host.grow()
            elif isinstance(error, lmdb.MapResizedError):
                self._host.adopt()
            elif isinstance(error, lmdb.PanicError):
                self._host.reopen()
                self._recent = RecentCommits(self._host.files.dbs.log)
                self._last_txn = -1
            elif isinstance(error, lmdb.Error):
                return explain(self._host.path, error)
            else:
                return error if isinstance(error, StorageError) else StorageError(str(error))
        except StorageError as failure:
            return failure
        return None

    def _attempt(self, batch: list[CommitRequest], done: Done) -> None:
        files = self._host.files
        txn = files.env.begin(db=files.dbs.data, write=True)
        try:
            self._in_transaction(txn, batch, done)
        except BaseException:
            txn.abort()
            raise

    def _in_transaction(self, txn: Any, batch: list[CommitRequest], done: Done) -> None:
        host, recent = self._host, self._recent
        txn_id: int = txn.id()
        if txn_id != self._last_txn + 1:
            done.entries += recent.catch_up(txn)
            # What was caught up with is known, whatever becomes of this transaction.
            self._last_txn = txn_id - 1
        now = host.clock.now_us()
        version = recent.last_version + max(1, now - recent.last_time_us)
        errors = self._apply(txn, batch, version)
        accepted = [request for request, error in zip(batch, errors, strict=True) if not error]
        if not accepted:
            txn.abort()
            _settle(batch, errors, version, [])
            return
        record = encode(now, *_written(accepted))
        txn.put(version.to_bytes(8, "big"), record, append=True, db=host.files.dbs.log)
        self._trim(txn, now)
        try:
            txn.commit()
        except lmdb.Error as error:
            if host.files.env.info()["last_txnid"] < txn_id:
                raise  # known to have had no effect
            log.warning("%s: a commit's outcome is unknown: %s", host.path, error)
            _settle(batch, [error or COMMIT_UNKNOWN_RESULT for error in errors], version, accepted)
            self._last_txn = -1
            return
        self._last_txn = txn_id
        entry = Entry(version, record)
        recent.add(entry)
        recent.forget(now - LOG_WINDOW_US)
        _settle(batch, self._after(batch, errors), version, accepted)
        done.entries.append(entry)

    def _apply(self, txn: Any, batch: list[CommitRequest], version: int) -> list[int]:
        """Apply those requests that may commit; return a code, or 0, for each."""
        dbs = self._host.files.dbs
        errors: list[int] = []
        fresh: list[Entry] = []
        prefix = version.to_bytes(8, "big")
        number = 0
        for request in batch:
            error = self._refuse(txn, request, fresh)
            errors.append(error)
            if error:
                continue
            try:
                stamped = apply(txn, dbs, request.mutations, prefix + number.to_bytes(2, "big"))
            except (ArithmeticError, LookupError, TypeError, ValueError, lmdb.BadValsizeError) as cause:
                raise Broken(request, cause) from cause
            number += 1
            if stamped:
                request.stamped = stamped
            if len(batch) > 1:
                fresh.append(Entry(version, encode(0, *_written([request]))))
        return errors

    def _refuse(self, txn: Any, request: CommitRequest, fresh: list[Entry]) -> int:
        """Return why `request` may not commit after all that did, or 0."""
        if self.faults is not None and (code := self.faults.before_commit(request)):
            return code
        since = request.snapshot_version
        keys, ranges = request.read_keys, request.read_ranges
        if since is None or not (keys or ranges):
            return 0
        opened_at = request.opened_at
        if opened_at is not None and self._host.clock.seconds() - opened_at > WINDOW_SECONDS:
            return TRANSACTION_TOO_OLD
        recent = self._recent
        if since > recent.last_version:
            return FUTURE_VERSION
        if since == recent.last_version and not fresh:
            return 0
        if not recent.reaches(txn, since):
            return TRANSACTION_TOO_OLD
        if request.report_conflicts:
            request.conflicting = conflicting(chain(fresh, recent.since(txn, since)), keys, ranges)
            return NOT_COMMITTED if request.conflicting else 0
        return NOT_COMMITTED if conflicts(chain(fresh, recent.since(txn, since)), keys, ranges) else 0

    def _after(self, batch: list[CommitRequest], errors: list[int]) -> list[int]:
        faults = self.faults
        if faults is None:
            return errors
        return [error or faults.after_commit(request) or 0 for request, error in zip(batch, errors, strict=True)]

    def _trim(self, txn: Any, now: int) -> None:
        """Drop log records that no transaction can need: those that were replaced before the window began.

        The oldest record that stays is the state in which a transaction at the window's beginning may be.
        """
        self._untrimmed += 1
        if self._untrimmed < TRIM_EVERY_COMMITS and now - self._trimmed_us < TRIM_EVERY_US:
            return
        self._untrimmed = 0
        self._trimmed_us = now
        cursor = txn.cursor(self._host.files.dbs.log)
        old = now - LOG_WINDOW_US
        count = 0
        if cursor.first() and cursor.next():
            while count < TRIM_MOST and time_of(cursor.value()) < old:
                cursor.prev()
                cursor.delete()
                if not cursor.next():
                    break
                count += 1


def _written(requests: list[CommitRequest]) -> tuple[list[bytes], list[Range]]:
    """Return what `requests` write, as the log records it."""
    if len(requests) == 1:
        request = requests[0]
        return request.write_keys + request.stamped if request.stamped else request.write_keys, request.write_ranges
    keys = [key for request in requests for key in chain(request.write_keys, request.stamped)]
    return keys, [span for request in requests for span in request.write_ranges]


def _settle(batch: list[CommitRequest], errors: list[int], version: int, accepted: list[CommitRequest]) -> None:
    for number, request in enumerate(accepted):
        request.batch = number
        request.version = version
    for request, error in zip(batch, errors, strict=True):
        request.error = error or None
