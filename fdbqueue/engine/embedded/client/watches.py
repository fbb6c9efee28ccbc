"""Watches: futures that become ready when a key's value is no longer the one that was seen."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fdbqueue.engine.embedded.client.futures import FutureVoid, Pending
from fdbqueue.engine.embedded.client.version_wait import LateValue
from fdbqueue.engine.errors import FDBError
from fdbqueue.errors import StorageError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.values import Value
    from fdbqueue.engine.embedded.store.store import Store

TOO_MANY: Final = 1032


class Outstanding:
    """How many watches a database has that have not fired, and how many it may have."""

    __slots__ = ("_count", "limit", "lock")

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self._count = 0
        # Reentrant: a garbage collection inside may end a watch.
        self.lock = threading.RLock()

    def take(self) -> None:
        """Count one more.

        Raises:
            FDBError: 1032, there are as many as there may be.
        """
        with self.lock:
            if self._count >= self.limit:
                raise FDBError(TOO_MANY)
            self._count += 1

    def give(self) -> None:
        """Count one less."""
        with self.lock:
            self._count -= 1


class Watch(Pending[None]):
    """The future of a change. It belongs to its transaction until that commits, and to itself from then on."""

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
        """Note that its own transaction wrote the key; nothing given is a value that is not known before the commit."""
        if isinstance(self._read, LateValue) and self._read.under_way():
            return  # it is compared when the watch starts
        if not value or value[0] != self.value:
            self.settle()

    def read_late(self, read: Value) -> None:
        """Take over the value, which is known only now."""
        try:
            self.value = read.value
        except FDBError as error:
            self.settle(error=error.code)
        except StorageError:
            self.settle()

    def cut_off(self, error: int) -> None:
        """Fail if the watch's own read is under way, since its transaction fails."""
        if self._read.under_way():
            self.settle(error=error)

    def abandon(self, error: int) -> None:
        """Fail, because the transaction did."""
        self.settle(error=error)

    def activate(self) -> None:
        """Start to look, after the commit."""
        self._adopt()
        if isinstance(self._read, LateValue):
            self.read_late(self._read)
        if self._settled:
            return
        weak = weakref.ref(self)  # a watch that nobody holds any more ends

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
        """Fire if the value is another one now, or nobody can tell: whoever waits reads it, and is told why not."""
        if self._settled:
            return
        try:
            changed = self._store.current(self.key) != self.value
        except StorageError:
            changed = True
        if changed:
            self.settle()

    def __del__(self) -> None:
        if not getattr(self, "_settled", True):  # one over the limit was never made
            self.settle(error=1101)


class FailedWatch(FutureVoid):
    """A watch that could not be set."""

    __slots__ = ()
