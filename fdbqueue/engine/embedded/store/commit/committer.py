"""Group commit: many transactions of a process in one LMDB transaction, with one shared fsync.

Threads add requests to a list. A thread that waits for a request and finds the lead free becomes the leader. It takes
all pending requests, checks and applies each in order in one LMDB write transaction, and wakes the other threads. While
the leader writes to the disk, the next requests gather. An uncontended thread leads for its own request, without any
switch to another thread.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from itertools import chain
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final, Protocol

import lmdb

from fdbqueue.engine.embedded.store.commit.request import IO_ERROR, CommitRequest, Faults, apply, apply_points, put_rows
from fdbqueue.engine.embedded.store.commit.scheduling import (
    HOLDER,
    LAST,
    CommitScheduler,
    Gathering,
    ProcessScheduler,
    TimeSlices,
)
from fdbqueue.engine.embedded.store.commit_log import (
    WINDOW_US,
    Range,
    RecentCommits,
    WriteSet,
    append,
    commits,
    conflicting,
    conflicts,
)
from fdbqueue.engine.embedded.store.commit_log import Commit as LogCommit
from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.embedded.store.disk.files import Files, explain
from fdbqueue.engine.embedded.store.disk.layout import WINDOW_SECONDS, Txn
from fdbqueue.engine.embedded.store.notification import Notifier
from fdbqueue.engine.embedded.store.opening import StoreClock
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, TRANSACTION_TOO_OLD, StorageError

log = logging.getLogger("fdbqueue.engine")

MOST_REQUESTS: Final = 2048
MOST_MUTATIONS: Final = 50_000
FORGET_EVERY: Final = 128
"""Number of commits between two removals of expired commits from memory."""
RUNS_A_ROUND: Final = 32
"""The same for runs of other processes' commits. A run has about forty."""


class Host(Protocol):
    """The part of the store that the committer uses."""

    @property
    def path(self) -> str: ...
    @property
    def files(self) -> Files: ...
    @property
    def clock(self) -> StoreClock: ...
    @property
    def notifier(self) -> Notifier: ...

    def grow(self) -> None:
        """Make the map larger. This evicts the open snapshots of this process."""

    def adopt(self) -> None:
        """Adopt the map size that another process has set."""

    def reopen(self) -> None:
        """Open the files again after LMDB has closed them."""

    @property
    def versions_set(self) -> bool:
        """Whether a transaction has set its read version to one that another transaction got."""

    def keep_newest(self) -> object:
        """Return an object that keeps the state after this process' last commit readable; None if unavailable."""

    def working(self) -> None:
        """Note that commits happen; called from time to time."""

    def published(self, entries: list[LogCommit]) -> None:
        """Take the log entries of commits of this and other processes, in order."""


class Again(Exception):
    """Nothing failed: the commit only needs another attempt."""


class Broken(Exception):
    """A request that can't be applied; only this request fails."""

    def __init__(self, request: CommitRequest, cause: Exception) -> None:
        super().__init__(str(cause))
        self.request = request
        self.cause = cause


class Committer:
    """Commits requests for one process; LMDB's writer lock keeps the processes apart."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pending: list[CommitRequest] = []
        self._batch: list[CommitRequest] = []
        self._durable = durable = host.files.options.durable
        self._commit_scheduler: CommitScheduler = Gathering() if durable else TimeSlices()
        self.process_scheduler = ProcessScheduler(host.path)
        # With a wait for the disk, the wait for another process hardly matters.
        self._turns = None if durable else self.process_scheduler
        self._thread: int | None = None
        self._several = False
        """Whether a second thread has come. The commits of a process with one thread need no schedule."""
        self._notifier = host.notifier
        self._asleep: Any = host.notifier.asleep
        self._lead = threading.Lock()
        self._news: list[LogCommit] = []
        self._called: deque[CommitRequest] = deque()
        self._unforgotten = 0
        self._last: list[weakref.ref[CommitRequest]] = []
        self._last_thread = 0
        self._now_ns = host.clock.now_ns
        self.commits = 0
        self.listening = False
        """Whether the host needs the log entries of commits."""
        self.faults: Faults | None = None
        self.submit: Callable[[CommitRequest], None] = self._pending.append
        """Add a request to the pending ones; the next leader commits it."""
        self._attach()

    def _attach(self) -> None:
        """Start to use the host's files."""
        files = self._host.files
        self.begin: Callable[..., Txn] = files.env.begin
        self._dbs = files.dbs
        self._disk = files.disk
        # A database in memory does not outlast a power cut, and needs no care for it.
        self._begun = None if folder.made(files.path) else files.disk.begun
        self._begin_to_know()

    def _begin_to_know(self) -> None:
        """Forget the recent commits. The next commit reads them from the log."""
        self.recent = RecentCommits(self._dbs)
        self._last_txn = -1
        self.newest = (-1, -1)
        """LMDB's transaction number and the version of this process' last commit, which is on the disk."""

    @property
    def idle(self) -> bool:
        """Whether no request is pending."""
        return not self._pending

    @property
    def oldest(self) -> CommitRequest | None:
        """The request that has been pending longest."""
        return next(iter(self._pending), None)

    def has(self, request: CommitRequest) -> bool:
        """Return whether `request` was submitted here; False if the parent's committer got it before a fork."""
        # The order matters. Another thread adds the request to the batch before it removes it from the pending ones.
        # It sets `done` before it removes the request from the batch.
        return request in self._pending or request in self._batch or request.done

    def wait(self, request: CommitRequest) -> None:
        """Wait until the submitted `request` is done; lead unless another thread should."""
        if not self._several and self._thread != get_ident():
            self._several, self._thread = self._thread is not None, get_ident()
        while not request.done:
            if not (self._several and self._commit_scheduler.sleep(request, self._pending, self._lead)):
                self._serve(request)

    def close(self, shut: Callable[[], None]) -> None:
        """Run `shut`, which closes the files, while no commit is running. All later commits fail."""
        with self._lead:
            self.begin = self._closed
            self._asleep = b"\0"
            self._turns = None
            self.process_scheduler.close()
            shut()
        self.sweep()

    def _closed(self, *_: object) -> Txn:
        raise StorageError(f"{self._host.path}: was closed.")

    def reopen(self) -> None:
        """Ask the host to open the files again. Only the leader may call this."""
        self._host.reopen()
        self._attach()

    def sweep(self) -> None:
        """Wait for the lead, commit all pending requests, and finish the work that interrupted threads left undone."""
        for request in self._batch[-1:] + self._pending[-1:]:
            self._serve(request)
        self._call_back()

    def alone(self, action: Callable[[], None]) -> None:
        """Run `action` while no commit is running. The calling thread must not hold the host's lock."""
        with self._lead:
            action()

    def _serve(self, request: CommitRequest) -> None:
        """Take the lead until `request` is done, then give it up."""
        pending = self._pending
        news: list[LogCommit] = []
        try:
            with self._lead:
                if self._batch:
                    self._settle()  # an interrupt kept the previous leader from it
                while not request.done:
                    if pending:
                        self._commit_pending()
                    else:
                        self._batch = [request]  # it was submitted before a fork and belongs to the parent
                        self._settle()
                if self._news:
                    news, self._news = self._news, news
        finally:
            if pending:
                self._commit_scheduler.left(pending)
            # After the lead is released: a callback may itself commit.
            if news:
                self._host.published(news)
            # After `published`, so that the listener of this process knows which commits it was already told of.
            if self._asleep[0]:
                self._notifier.ring()
            if self._called:
                self._call_back()

    def _call_back(self) -> None:
        called = self._called
        while called:
            try:
                finished = called.popleft()
            except IndexError:
                return  # another thread was faster
            try:
                finished.call_back()
            except BaseException:
                called.append(finished)
                raise

    def _commit_pending(self) -> None:
        """Commit the pending requests, or as many of them as fit in one LMDB transaction."""
        pending = self._pending
        count = 1 if len(pending) == 1 else self._fitting()
        # The order matters: no request is lost, at whatever point an interrupt occurs.
        batch = self._batch = pending[:count]
        del pending[:count]
        try:
            try:
                self._attempt(batch)
            except (Broken, StorageError, lmdb.Error) as error:
                self._commit_in_spite_of(error, batch)
        except BaseException:
            self._begin_to_know()  # the recent commits may lack one, or have half of it
            raise
        finally:
            self._settle()

    def _settle(self) -> None:
        """Finish the requests of the batch. If an interrupt prevents that, the next leader does it."""
        batch = self._batch
        for request in batch:
            if request.version < 0 and request.error is None:
                # Only an asynchronous exception, such as KeyboardInterrupt, leads here without a failure.
                request.error = COMMIT_UNKNOWN_RESULT if request.failure is None else IO_ERROR
            request.done = True
            if request.has_callbacks:
                self._called.append(request)
        self._batch = []
        if self._several:  # read after `done` was set: a second thread does the reverse
            self._commit_scheduler.finished(batch)
        self.commits += 1

    def _fitting(self) -> int:
        """Return how many of the pending requests fit in one LMDB transaction."""
        count = mutations = 0
        for request in self._pending:
            mutations += request.size()
            count += 1
            if count == MOST_REQUESTS or mutations >= MOST_MUTATIONS:
                break
        return count

    def _commit_in_spite_of(self, error: Exception, batch: list[CommitRequest]) -> None:
        """Commit or fail every request of `batch` after the first attempt failed with `error`."""
        while True:
            if isinstance(error, Broken):
                error.request.failure = error.cause
                batch = [request for request in batch if request is not error.request]
            elif (failure := self._recover(error)) is not None:
                if len(batch) == 1:
                    batch[0].failure = failure
                    return
                # One large transaction must not make the small ones in its batch fail.
                for request in batch:
                    self._commit_in_spite_of(Again(), [request])
                return
            if not batch:
                return
            try:
                self._attempt(batch)
                return
            except (Broken, StorageError, lmdb.Error) as another:
                error = another

    def _recover(self, error: Exception) -> StorageError | None:
        """Make another attempt possible, or return the error that prevents it."""
        try:
            if isinstance(error, lmdb.MapFullError):
                self._host.grow()
            elif isinstance(error, lmdb.MapResizedError):
                self._host.adopt()
            elif isinstance(error, lmdb.PanicError) or (isinstance(error, lmdb.Error) and self._host.files.lost):
                self.reopen()
            elif isinstance(error, Again):
                return None
            elif isinstance(error, lmdb.Error):
                raise explain(self._host.path, error)
            else:
                raise error
        except StorageError as failure:
            return StorageError(f"{failure} Nothing of this commit was kept.")
        return None

    def _attempt(self, batch: list[CommitRequest]) -> None:
        """Commit the requests of `batch` that do not conflict or fail, in one LMDB transaction."""
        if self._last and (len(self._last) > 1 or self._last[0]() is not None):
            self._keep_last()
        if (turns := self._turns) is not None:
            if turns.numbers[HOLDER] == turns.me:
                turns.numbers[LAST] = turns.now()
            else:
                turns.wait()
        txn = self.begin(self._dbs.data, None, True)
        try:
            recent = self.recent
            txn_id = txn.id()
            if self._begun is not None:
                self._begun(txn_id)
            if txn_id != self._last_txn + 1:
                # Another process has committed. Its commits stay known even if this transaction aborts.
                others = recent.catch_up(txn)
                # A process that commits seldom reads many commits of others, and must forget them as often.
                self._unforgotten += FORGET_EVERY // RUNS_A_ROUND * len(others)
                if self.listening:
                    self._news += chain.from_iterable(map(commits, others))
                self._last_txn = txn_id - 1
            now = self._now_ns() // 1000
            passed = now - recent.last_time_us
            version = recent.last_version + (passed if passed > 1 else 1)
            key = version.to_bytes(8, "big")
            accepted = self._apply(txn, batch, key, now)
            if not accepted:
                txn.abort()
                return
            first = accepted[0]
            if len(accepted) == 1 and not first.stamped:
                keys, ranges = first.write_keys, first.write_ranges
            else:
                keys, ranges = written_by(accepted)
            tail, made = append(txn, self._dbs, recent.tail, key, now, keys, ranges)
            has_redo = self._durable and self._disk.label(txn_id, key, now, accepted)
            try:
                txn.commit()
            except lmdb.Error as error:
                self._lost(txn_id, error, accepted)
                return
            if self._durable:
                before = perf_counter_ns()
                failure = self._not_kept(txn_id, has_redo=has_redo)
                self.process_scheduler.waited(perf_counter_ns() - before)
                if failure is not None:
                    self._unknown(failure, accepted)
                    return
        except BaseException:
            txn.abort()
            raise
        self._last_txn = txn_id
        self.newest = (txn_id, version)
        no_long = self._dbs.no_long
        if no_long.until == txn_id - 1 and not no_long.written:
            no_long.until = txn_id
        recent.tail, recent.last_version, recent.last_time_us = tail, version, now
        recent.fresh.append((version, now, made))
        self._unforgotten += 1
        if self._unforgotten >= FORGET_EVERY:
            self._forget(now)
        if self.listening:
            self._news += commits(made)
        if self._host.versions_set:
            self._last = [*map(weakref.ref, accepted)]
        elif len(accepted) == 1 and accepted[0].gate is None:  # no thread sleeps for it: it is this thread's own
            self._last = [weakref.ref(accepted[0])]
            self._last_thread = get_ident()
        for number, request in enumerate(accepted):
            request.batch = number
            request.version = version
        if self.faults is not None:
            for request in accepted:
                request.error = self.faults.after_commit(request)

    def _keep_last(self) -> None:
        """Keep the state after the last commit readable, if a caller holds that commit and may need its version.

        Threads that commit in turn hold their commits until their next time slice. All that time LMDB could reuse no
        page. So another thread's state is kept only if a transaction has set its read version.
        """
        last, self._last = self._last, []
        if self._last_thread == get_ident() or self._host.versions_set:
            held = [request for ref in last if (request := ref()) is not None]
            committed = self._host.keep_newest() if held else None
            for request in held:
                request.committed = committed

    def _apply(self, txn: Txn, batch: list[CommitRequest], version: bytes, now: int) -> list[CommitRequest]:
        """Apply the requests that may commit and return them; set the error of the others."""
        dbs, last_version = self._dbs, self.recent.last_version
        oldest = now / 1_000_000 - WINDOW_SECONDS
        accepted: list[CommitRequest] = []
        fresh: WriteSet | None = None
        for request in batch:
            if request.opened_at is not None and request.opened_at < oldest:
                error = TRANSACTION_TOO_OLD  # checked before conflicts, like in a cluster's resolver
            elif request.snapshot_version != last_version or fresh or self.faults is not None:
                error = self._refuse(txn, request, fresh)
            else:
                error = 0  # no commit since its snapshot
            if error:
                request.error = error
                continue
            request.error = None
            try:
                if request.points is not None:
                    apply_points(txn, dbs, request.write_keys, request.points)
                else:
                    request.stamped = apply(txn, dbs, request.mutations, version, len(accepted))
                    if request.rows is not None:
                        put_rows(txn, dbs, request.rows)
            except (ArithmeticError, LookupError, TypeError, ValueError, lmdb.BadValsizeError) as cause:
                raise Broken(request, cause) from cause
            accepted.append(request)
            if len(batch) > 1:
                fresh = fresh or WriteSet([], [])
                fresh.add([*request.write_keys, *request.stamped], request.write_ranges)
        return accepted

    def _lost(self, txn_id: int, error: lmdb.Error, accepted: list[CommitRequest]) -> None:
        """Raise `error` if the commit certainly had no effect, else give its requests an unknown outcome."""
        if self._host.files.env.info()["last_txnid"] < txn_id:
            raise error
        self._unknown(error, accepted)

    def _not_kept(self, txn_id: int, *, has_redo: bool) -> StorageError | None:
        """Wait until a commit is on the disk; return the error if that remains unknown."""
        while True:
            try:
                self._disk.ensure(txn_id, has_redo=has_redo)
            except StorageError as error:
                return error
            except lmdb.MapResizedError:
                self._host.adopt()
            else:
                return None

    def _unknown(self, error: Exception, accepted: list[CommitRequest]) -> None:
        log.warning("%s: a commit's outcome is unknown: %s", self._host.path, error)
        self._last_txn = -1
        for request in accepted:
            request.error = COMMIT_UNKNOWN_RESULT

    def _refuse(self, txn: Txn, request: CommitRequest, fresh: WriteSet | None) -> int:
        """Return the error code with which `request` fails after all earlier commits, or 0 if it may commit."""
        if self.faults is not None and (code := self.faults.before_commit(request)):
            return code
        since = request.snapshot_version
        if since is None:
            return 0
        recent = self.recent
        reads = request.reads()
        if not recent.reaches(txn, since):
            return TRANSACTION_TOO_OLD
        if not reads:
            return 0
        keys, ranges = request.read_keys, request.read_ranges
        written = recent.since(txn, since)
        if fresh is not None:
            written = chain((fresh,), written)
        if request.report_conflicts:
            request.conflicting = conflicting(written, keys, ranges)
            return NOT_COMMITTED if request.conflicting else 0
        return NOT_COMMITTED if conflicts(written, keys, ranges) else 0

    def _forget(self, now: int) -> None:
        self._unforgotten = 0
        self.recent.forget(now - WINDOW_US)
        self._host.working()


def written_by(requests: list[CommitRequest]) -> tuple[list[bytes], list[Range]]:
    """Return the keys and ranges that `requests` write together."""
    keys = [*chain.from_iterable(chain(request.write_keys, request.stamped) for request in requests)]
    return keys, [span for request in requests for span in request.write_ranges]
