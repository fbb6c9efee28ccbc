"""Futures that wait: for a pause, a change of a key, or a version."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fdbqueue.engine.embedded.client.futures import ByValue, Callback, Future, FutureVoid, Key, Pending, Value
from fdbqueue.engine.embedded.client.pages import FutureKeyValueArray
from fdbqueue.engine.embedded.store.snapshot import CANCELLED, waits
from fdbqueue.engine.errors import FUTURE_VERSION, TRANSACTION_CANCELLED, TRANSACTION_TOO_OLD, FDBError, StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.read_api import ReadApi
    from fdbqueue.engine.embedded.client.transaction import Transaction
    from fdbqueue.engine.embedded.store.snapshot import Snapshot
    from fdbqueue.engine.embedded.store.store import Store


# The pause of `on_error`. After it the transaction is like new.

FIRST_DELAY: Final = 0.01
LATE_DELAY: Final = 0.01
CROWDED_DELAY: Final = 30.0

RETRYABLE: Final = frozenset({1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223})
"""Errors after which each pause is longer than the one before."""
CROWDED: Final = frozenset({1042, 1078})
LATE: Final = frozenset({1007, 1009})
"""Errors of the read version. A short pause is enough after them."""
BROKEN_PROMISE: Final = 1100
INVALID_CALL: Final = 2000
INTERNAL_ERROR: Final = 4100


class RetryPause(Pending[None]):
    """The future of a transaction that is ready for another attempt.

    A waiter, the next use of the transaction, or (with a callback) a timer notices that the pause is over. It then
    renews the transaction. If a transaction has several pauses, the shortest one renews it. The other pauses then
    fail, and the transaction fails with them.
    """

    __slots__ = ("_due", "_timer", "_together", "_tr")

    def __init__(self, tr: Transaction, due: float) -> None:
        super().__init__()
        self._tr = weakref.ref(tr)  # dropping the transaction ends the pause
        self._due = due
        self._together = [weakref.ref(self)]
        self._timer: threading.Timer | None = None

    @classmethod
    def after(cls, tr: Transaction, code: int) -> Future[None]:
        """Begin the pause for error `code`. Return a failed future if a retry can't help."""
        broken = tr._broken_error()
        if broken:
            return FutureVoid(error=broken)
        settings = tr._settings
        exhausted = settings.retry_limit != -1 and tr._retries >= settings.retry_limit
        tr._retries += 1
        if exhausted or (code not in RETRYABLE and code not in LATE):
            tr._break(1025)
            if not code:  # code 0 is no error: a cluster's client reports its own error
                code = INTERNAL_ERROR if exhausted else INVALID_CALL
            return FutureVoid(error=1025 if code == BROKEN_PROMISE else code)
        if code in LATE:
            delay = min(LATE_DELAY, settings.max_delay)
        else:
            delay = tr._backoff * random.random()
            tr._backoff = min(2 * tr._backoff, CROWDED_DELAY if code in CROWDED else settings.max_delay)
        now = time.monotonic()
        due = now + delay
        if settings.timeout:
            due = min(due, tr._created + settings.timeout)
        with tr._lock:
            tr._abandon(1025)
            pause = cls(tr, due)
            before = None if tr._pause is None else tr._pause()
            if before is not None and before._settled:
                before = None
            if before is not None:
                before._together += pause._together
                pause._together = before._together
            if before is None or due < before._due:
                tr._pause = weakref.ref(pause)
            tr._odd = True
        return pause

    def look(self) -> None:
        """Renew the transaction if the pause is over."""
        if not self._settled and time.monotonic() >= self._due:
            self._over()

    def _over(self) -> None:
        tr = self._tr()
        if tr is None:
            self.settle(error=TRANSACTION_CANCELLED)
            return
        shorter = None if tr._pause is None else tr._pause()
        if shorter is not None and shorter is not self:
            shorter._over()
        longer: list[RetryPause] = []
        with tr._lock:
            error = tr._broken_error()
            if self._holds(tr):
                tr._pause = None
                if not error:
                    tr._renew()
                    longer = [pause for pause in self._under_way() if pause is not self]
                    if longer:
                        tr._break(TRANSACTION_CANCELLED)
        for pause in longer:
            pause.settle(error=TRANSACTION_CANCELLED)
        self.settle(error=error)

    def _under_way(self) -> list[RetryPause]:
        """Return the transaction's pauses that have not ended."""
        pauses = [ref() for ref in self._together]
        return [pause for pause in pauses if pause is not None and not pause._settled]

    def fail(self) -> bool:
        """Fail all pauses of the transaction, after it was reset or dropped. Return whether there were any."""
        failed = [pause.settle(error=TRANSACTION_CANCELLED) for pause in self._under_way()]
        return any(failed)

    def cancel(self) -> None:
        """Cancel the pause, and break the transaction: its old state is gone and it is not renewed yet."""
        tr = self._tr()
        if self.settle(error=CANCELLED) and tr is not None and tr._pause is not None:
            tr._pause = None
            tr._break(TRANSACTION_CANCELLED)
            self.fail()

    def _holds(self, tr: Transaction) -> bool:
        """Return whether this pause renews `tr` at its end."""
        return tr._pause is not None and tr._pause() in (self, None)  # None: this pause, while it is dropped

    def __del__(self) -> None:
        self.look()
        if not self._settled:
            self.cancel()  # as the binding does with a future that is dropped

    def _leave_parent(self) -> None:
        """Adopt the pause in a forked child, where the parent's timer does not run."""
        if self._adopt():
            self._timer = None

    def is_ready(self) -> bool:
        self.look()
        return self._settled

    def block_until_ready(self) -> None:
        self._leave_parent()
        while not self._settled:
            left = self._due - time.monotonic()
            if left <= 0:
                self._over()
            else:
                with self._lock:
                    if not self._settled:
                        self._lock.wait(left)
        waits.count += 1

    def on_ready(self, callback: Callback) -> None:
        super().on_ready(callback)
        if not self._settled and self._timer is None:
            self._timer = threading.Timer(max(0.0, self._due - time.monotonic()), self._over)
            self._timer.daemon = True
            self._timer.start()


# Reads at a version that no commit has reached yet: they wait up to a second for it, as on a cluster.
#
# A transaction's `VersionWait` checks the version after each commit of any process, and 20 times a second.
# Meanwhile it
# holds the newest snapshot. If the next commit skips the version, this snapshot is the state at that version. The
# thread
# that needs the answer of an early read repeats it, or the commit does.

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

    def __init__(self, tr: ReadApi, read: Callable[..., Any], *args: object) -> None:
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
    is_answer = False

    late: LateRead

    def is_ready(self) -> bool:
        return self.late.is_ready()

    def block_until_ready(self) -> None:
        self.late.block_until_ready()

    def on_ready(self, callback: Callback) -> None:
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


# Watches: futures that become ready when a key has another value than the transaction saw.

TOO_MANY: Final = 1032


class Outstanding:
    """The number of a database's watches that have not fired, and its limit."""

    __slots__ = ("_count", "_given", "limit", "lock")

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self._count = 0
        self._given: deque[None] = deque()
        # Reentrant: a garbage collection under this lock may call the callbacks of a future.
        self.lock = threading.RLock()

    def take(self) -> None:
        """Count one more.

        Raises:
            FDBError: 1032 if the limit is reached.
        """
        with self.lock:
            with contextlib.suppress(IndexError):
                while True:
                    self._given.pop()
                    self._count -= 1
            if self._count >= self.limit:
                raise FDBError(TOO_MANY)
            self._count += 1

    def give(self) -> None:
        """Count one less. This takes no lock, because finalizers call it (see `Changes.unwatch`)."""
        self._given.append(None)


class Watch(Pending[None]):
    """The future of a change. It depends on its transaction until the commit, and is independent afterwards."""

    __slots__ = ("_callback", "_outstanding", "_read", "_store", "key", "value")

    def __init__(self, store: Store, outstanding: Outstanding, key: bytes, read: Value) -> None:
        outstanding.take()
        super().__init__()
        self._outstanding = outstanding
        self._store = store
        self._callback: Callable[[], None] | None = None
        self._read = read
        self.key = key
        self.value: bytes | None = read._value
        if isinstance(read, LateValue):
            read.let_fail()
            read.on_ready(self.read_late)

    def settle(self, value: None = None, error: int = 0) -> bool:
        if not super().settle(value, error):
            return False
        self._outstanding.give()
        if self._callback is not None:
            self._store.unwatch(self.key, self._callback)
        return True

    def _adopt(self) -> bool:
        adopted = super()._adopt()
        if adopted:
            self._callback = None  # the parent's store has it
        return adopted

    def written(self, *value: bytes | None) -> None:
        """Handle a write of the watch's own transaction. No `value` means a value that only the commit knows."""
        if isinstance(self._read, LateValue) and self._read.under_way():
            return  # `activate` compares the value
        if not value or value[0] != self.value:
            self.settle()

    def read_late(self, read: Value) -> None:
        """Set the value that a late read has brought."""
        try:
            self.value = read.value
        except FDBError as error:
            self.settle(error=error.code)
        except StorageError:
            self.settle()

    def cut_off(self, error: int) -> None:
        """Fail with the transaction if the watch's own read is under way."""
        if self._read.under_way():
            self.settle(error=error)

    def abandon(self, error: int) -> None:
        """Fail because the transaction failed."""
        self.settle(error=error)

    def activate(self) -> None:
        """Start to watch, after the commit."""
        self._adopt()
        if isinstance(self._read, LateValue):
            self.read_late(self._read)
        if self._settled:
            return
        weak = weakref.ref(self)  # a dropped watch ends

        def look() -> None:
            watch = weak()
            if watch is not None:
                watch._look()

        self._callback = look
        try:
            self._store.watch(self.key, look)
        except StorageError:
            self.settle()
        self._look()

    def _look(self) -> None:
        """Fire if the value has changed, or on a StorageError: the waiter then reads the key and gets the error."""
        if self._settled:
            return
        try:
            changed = self._store.current(self.key) != self.value
        except StorageError:
            changed = True
        if changed:
            self.settle()

    def __del__(self) -> None:
        if not getattr(self, "_settled", True):  # a watch over the limit was never initialized
            self.settle(error=1101)


class FailedWatch(FutureVoid):
    """A watch that could not be set."""

    __slots__ = ()
