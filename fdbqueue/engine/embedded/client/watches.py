"""Watches: futures that become ready when a key has another value than the transaction saw."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.client.futures import FutureVoid, Pending
from fdbqueue.engine.embedded.client.version_wait import LateValue
from fdbqueue.engine.errors import FDBError, StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.values import Value
    from fdbqueue.engine.embedded.store.store import Store

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
