"""The pause of `on_error`. After it the transaction is like new."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fdbqueue.engine.embedded.client.futures import Future, FutureVoid, Pending
from fdbqueue.engine.embedded.store.in_flight import CANCELLED, waits
from fdbqueue.engine.errors import TRANSACTION_CANCELLED

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.transaction import Transaction

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

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        super().on_ready(callback)
        if not self._settled and self._timer is None:
            self._timer = threading.Timer(max(0.0, self._due - time.monotonic()), self._over)
            self._timer.daemon = True
            self._timer.start()
