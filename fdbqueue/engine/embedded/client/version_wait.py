"""Reads at a version that no commit has reached yet: they wait up to a second for it, as on a cluster.

A transaction's `VersionWait` checks the version after each commit of any process, and 20 times a second. Meanwhile it
holds the newest snapshot. If the next commit skips the version, this snapshot is the state at that version. The thread
that needs the answer of an early read repeats it, or the commit does.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fdbqueue.engine.embedded.client.futures import Pending
from fdbqueue.engine.embedded.client.ranges import FutureKeyValueArray
from fdbqueue.engine.embedded.client.values import ByValue, Key, Value
from fdbqueue.engine.embedded.store.in_flight import CANCELLED, waits
from fdbqueue.engine.errors import FUTURE_VERSION, TRANSACTION_CANCELLED, TRANSACTION_TOO_OLD, FDBError, StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.read_api import ReadApi
    from fdbqueue.engine.embedded.store.snapshot import Snapshot
    from fdbqueue.engine.embedded.store.store import Store

LONGEST_SECONDS: Final = 1.0
"""The time for which a cluster's storage server waits for a version."""

TimeLeft = weakref.WeakMethod[Callable[[], float | None]]


class VersionWait(Pending[None]):
    """The future of a read version. It is ready when a commit reaches it, and fails with 1009 after a second."""

    __slots__ = ("_due", "_held", "_looking", "_released", "_store", "_time_left", "_version", "reads")

    def __init__(self, store: Store, version: int, time_left: TimeLeft) -> None:
        super().__init__()
        self._store = store
        self._version = version
        self._time_left = time_left
        self._due = time.monotonic() + LONGEST_SECONDS
        self._held: Snapshot | None = None
        self._released = False
        self._looking = threading.RLock()  # a garbage collection inside may end the transaction
        self.reads: list[LateRead] = []
        """The reads that wait, in the order of their requests."""
        with contextlib.suppress(RuntimeError):  # no thread can start: a blocked caller checks the version itself
            store.follow(self.look)
        self.look()

    def look(self) -> float:
        """Settle the future if the version is reached or the time is up. Return the seconds to wait otherwise."""
        time_left = self._time_left()
        limit = None if time_left is None else time_left()  # settles this future if the transaction has timed out
        left = self._due - time.monotonic()
        if not self._settled:
            if self._reached():
                self.settle()
            elif left <= 0:
                self.settle(error=FUTURE_VERSION)
        return max(0.0, left if limit is None else min(left, limit))

    def _reached(self) -> bool:
        with self._looking:
            try:
                newest = self._store.snapshot()
            except StorageError:
                return True  # the reads get the same error and raise it
            if newest.version >= self._version:
                newest.close()
                return True
            former, self._held = self._held, newest
            if former is not None:
                former.close()
        if self._released:
            self.release()  # of this look's snapshot, too
        return False

    def release(self) -> None:
        """Release the snapshot that this holds. A finalizer calls this, so it waits for no lock."""
        self._released = True
        if self._looking.acquire(blocking=False):  # otherwise the look that is under way releases it
            try:
                held, self._held = self._held, None
                if held is not None:
                    held.drop()
            finally:
                self._looking.release()

    def settle(self, value: None = None, error: int = 0) -> bool:
        if not super().settle(value, error):
            return False
        self._store.unfollow(self.look)
        if error:
            self.release()
        return True

    def failed(self) -> int:
        """Return the error code with which the transaction's reads fail its commit, or 0."""
        for read in self.reads:
            try:
                read.answer()
            except FDBError as error:
                if error.code != CANCELLED and not read.may_fail:
                    return error.code
            except StorageError:
                return 0  # the commit gets the same error
        return 0


class LateRead(Pending[None]):
    """A read that waits for its version.

    Attributes:
        may_fail: Whether the transaction can commit if the read fails.
    """

    __slots__ = ("_answer", "_read", "_tr", "_wait", "may_fail")

    def __init__(self, tr: ReadApi, read: Callable[..., Any], *args: Any) -> None:
        super().__init__()
        self._tr = weakref.ref(tr)  # dropping the transaction ends the read
        self._read = (read, args)
        self._answer: Any = None
        self.may_fail = False
        self._wait = wait = _wait_of(tr)
        wait.reads.append(self)
        wait.on_ready(lambda wait: self.settle(error=wait._error))

    def answer(self) -> Any:
        """Wait for the version, read once, and return the future of the read.

        Raises:
            FDBError: no commit reached the version, or the read failed.
        """
        if not self._settled:
            self.block_until_ready()
        if self._error:
            raise FDBError(self._error)
        if self._answer is None:
            tr = self._tr()
            if tr is None or tr._version_wait is not self._wait:  # it was dropped or reset
                raise FDBError(TRANSACTION_CANCELLED)
            with tr._lock:
                if self._answer is None:
                    read, args = self._read
                    self._answer = read(tr, *args)
        return self._answer

    def block_until_ready(self) -> None:
        self._leave_parent()
        while not self._settled:
            left = self._wait.look()
            with self._lock:
                if not self._settled:
                    self._lock.wait(left)
        waits.count += 1

    def _leave_parent(self) -> None:
        if self._adopt():
            self.settle(error=TRANSACTION_TOO_OLD)  # as for all reads of a forked child in its parent's transaction


def _wait_of(tr: ReadApi) -> VersionWait:
    """Return the `VersionWait` of `tr`, whose read version no commit has reached yet."""
    with tr._lock:
        wait = tr._version_wait
        if wait is not None and wait.is_ready():
            tr._read_error = tr._read_error or wait.failed()
            wait = None
        if wait is None:
            wait = tr._version_wait = VersionWait(tr._store, tr._version or 0, weakref.WeakMethod(tr._time_left))
        return wait


class _Late:
    """Base of the futures of late reads."""

    __slots__ = ()
    comes_at_once = False

    late: LateRead

    def is_ready(self) -> bool:
        return self.late.is_ready()

    def block_until_ready(self) -> None:
        self.late.block_until_ready()

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        self.late.on_ready(lambda _: callback(self))

    def cancel(self) -> None:
        self.late.cancel()

    def under_way(self) -> bool:
        """Return whether the read still waits."""
        return not self.late.is_ready()


class _LateString(_Late, ByValue):
    __slots__ = ()

    @property
    def value(self) -> Any:
        return self.late.answer().value


class LateValue(_LateString, Value, eq=False, kw_only=True):
    """The value of a key."""

    late: LateRead

    def let_fail(self) -> None:
        """Allow the transaction to commit if the read fails."""
        self.late.may_fail = True


class LateKey(_LateString, Key, eq=False, kw_only=True):
    """The key that a selector names."""

    late: LateRead


class LatePage(_Late, FutureKeyValueArray):
    """A page of rows."""

    __slots__ = ("late",)

    def __init__(self, late: LateRead) -> None:
        super().__init__()
        self.late = late

    def wait(self) -> Any:
        return self.late.answer().wait()
