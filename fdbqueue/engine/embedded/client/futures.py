"""Futures with the binding's interface: the future of a read is ready at once, others become ready later.

The embedded engine reads at once, so that the future of a read only holds a value or an error. Futures that really
wait (a commit, a watch, the pause of `on_error`) derive from `Pending`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from fdbqueue.engine.embedded.store.disk import forks
from fdbqueue.engine.embedded.store.snapshot import CANCELLED, ReadSource, cancelled, waits
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, FDBError, StorageError

T = TypeVar("T")
Callback: TypeAlias = Callable[[Any], object]
"""What is called with a future that is ready."""


class Future(Generic[T]):
    """Base of all futures: the binding's methods and asyncio's protocol, on top of a few primitives.

    A subclass defines how to wait (`wait`, `block_until_ready`), whether it `is_ready`, how to call back (`on_ready`)
    and how to `cancel`.
    """

    __slots__ = ("__weakref__",)
    fpointer: ClassVar = None
    """The client library's future, which those of the binding have (`engine.steps`)."""

    def wait(self) -> Any:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def block_until_ready(self) -> None:
        raise NotImplementedError

    def on_ready(self, callback: Callback) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    @staticmethod
    def wait_for_any(*futures: Future[Any]) -> int:
        """Wait until one of the futures is ready, and return its index."""
        if not futures:
            raise ValueError("wait_for_any requires at least one future")
        ready = threading.Event()
        first: list[int] = []

        def note(index: int) -> Callable[[Any], None]:
            def callback(_: object) -> None:
                first.append(index)
                ready.set()

            return callback

        for index, future in enumerate(futures):
            future.on_ready(note(index))
            if ready.is_set():
                break
        ready.wait()
        return first[0]

    def done(self) -> bool:
        return self.is_ready()

    def result(self) -> Any:
        if not self.is_ready():
            raise asyncio.InvalidStateError("Future result not available")
        return self.wait()

    def exception(self) -> BaseException | None:
        if not self.is_ready():
            raise asyncio.InvalidStateError("Future result not available")
        try:
            self.wait()
        except (FDBError, StorageError) as error:
            return error
        return None

    def cancelled(self) -> bool:
        return self.is_ready() and getattr(self.exception(), "code", 0) == CANCELLED

    def add_done_callback(self, fn: Callback) -> None:
        """Call `fn` with this future in the running event loop when it is ready."""
        loop = asyncio.get_running_loop()
        self.on_ready(lambda future: loop.call_soon_threadsafe(fn, future))

    def remove_done_callback(self, fn: Callback) -> int:
        raise NotImplementedError


def call(callback: Callback, future: object) -> None:
    """Call a user's callback. Print and drop an exception that it raises, as the binding does."""
    try:
        callback(future)
    except Exception:  # noqa: BLE001  a callback is foreign code, and no caller can catch its exception
        sys.stderr.write("Discarding uncaught exception from user FDB callback:\n")
        traceback.print_exc(file=sys.stderr)


class Ready(Future[T]):
    """A future that is ready from the start."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: T | None = None, error: int = 0) -> None:
        self._value = value
        self._error = error

    def __repr__(self) -> str:
        what = repr(FDBError(self._error)) if self._error else repr(self._value)
        return f"<{type(self).__name__} {what}>"

    def wait(self) -> T:
        if self._error:
            raise FDBError(self._error)
        return self._value  # type: ignore[return-value]

    def is_ready(self) -> bool:
        return True

    def block_until_ready(self) -> None:
        pass

    def on_ready(self, callback: Callback) -> None:
        call(callback, self)

    def cancel(self) -> None:
        pass


class AskedPage(Ready[T]):
    """A value that the engine read. Without a `source` it was known before: see `store.in_flight`."""

    __slots__ = ("_asked_at", "_source")
    is_answer = True
    """Its `wait` does not block (`fdbqueue.engine.steps.value_of`)."""
    round_trips = 1
    """How often a cluster's client waits for the value, in the count of `waits`."""

    def __init__(self, value: T | None = None, source: ReadSource | None = None, error: int = 0) -> None:
        self._value = value
        self._error = error
        self._source = source
        self._asked_at = waits.count

    def wait(self) -> T:
        if self._error:
            raise FDBError(self._error)
        source = self._source
        if source is not None:
            if source.cut_at == self._asked_at:
                raise FDBError(source.error)
            waits.count += self.round_trips
            self._source = None
        return self._value  # type: ignore[return-value]

    def is_ready(self) -> bool:
        if self._source is not None:
            self.block_until_ready()
        return True

    def block_until_ready(self) -> None:
        if self._source is not None and self._source.cut_at != self._asked_at:
            waits.count += self.round_trips
            self._source = None

    def on_ready(self, callback: Callback) -> None:
        self.block_until_ready()
        call(callback, self)

    def cancel(self) -> None:
        self._source = cancelled(self._source, self._asked_at)


class FutureVoid(Ready[None]):
    """A future without a value."""

    __slots__ = ()


class FutureInt64(AskedPage[int]):
    """A number. Only a read version takes a cluster a round trip. Reads at that version take another one."""

    __slots__ = ()
    round_trips = 0


class FutureKeyArray(Ready[list[bytes]]):
    """Some keys."""

    __slots__ = ()


class Pending(Future[T]):
    """A future that another thread may settle. Only the first `settle` counts.

    A forked child has a copy that no thread of the child settles. The first use there fails it with 1021.
    """

    __slots__ = ("_callbacks", "_error", "_generation", "_lock", "_settled", "_value")

    def __init__(self) -> None:
        self._generation = forks.generation
        self._lock = threading.Condition(threading.Lock())
        self._settled = False
        self._error = 0
        self._value: T | None = None
        self._callbacks: list[Callback] = []

    def __repr__(self) -> str:
        state = "pending" if not self._settled else f"error {self._error}" if self._error else "ready"
        return f"<{type(self).__name__} {state}>"

    def settle(self, value: T | None = None, error: int = 0) -> bool:
        """Make the future ready, wake its waiters and run the callbacks. Return whether this was the first call."""
        self._adopt()
        with self._lock:
            if self._settled:
                return False
            self._value, self._error = value, error
            self._settled = True
            callbacks, self._callbacks = self._callbacks, []
            self._lock.notify_all()
        for callback in callbacks:
            call(callback, self)
        return True

    def _adopt(self) -> bool:
        """Make a forked child's copy usable there. Return whether this call did so."""
        if self._generation == forks.generation:
            return False
        # A thread of the parent may have held the lock. The callbacks belong to threads and event loops of the parent.
        self._lock = threading.Condition(threading.Lock())
        self._callbacks = []
        self._generation = forks.generation
        return True

    def _leave_parent(self) -> None:
        """Fail a forked child's copy."""
        if self._adopt():
            self.settle(error=COMMIT_UNKNOWN_RESULT)

    def wait(self) -> Any:
        if not self._settled:
            self.block_until_ready()
        if self._error:
            raise FDBError(self._error)
        return self._value

    def is_ready(self) -> bool:
        self._leave_parent()
        return self._settled

    def block_until_ready(self) -> None:
        self._leave_parent()
        with self._lock:
            while not self._settled:
                self._lock.wait()
        waits.count += 1

    def on_ready(self, callback: Callback) -> None:
        self._leave_parent()
        with self._lock:
            if not self._settled:
                self._callbacks.append(callback)
                return
        call(callback, self)

    def cancel(self) -> None:
        self.settle(error=CANCELLED)


# The futures of a value and of a resolved key selector. Programs use them like the bytes themselves.


class FutureString(Future[bytes]):
    """A future that compares, converts and slices like its bytes. Its `__class__` is `bytes`.

    As in the binding, a missing value compares with None, and any method of bytes then raises a TypeError.
    """

    __slots__ = ()

    if not TYPE_CHECKING:
        __class__ = property(lambda self: bytes)

    if TYPE_CHECKING:

        @property
        def value(self) -> Any: ...

    def wait(self) -> Any:
        _ = self.value
        return self

    def as_foundationdb_key(self) -> Any:
        return self.value

    def as_foundationdb_value(self) -> Any:
        return self.value

    def __bytes__(self) -> Any:
        return self.value

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __add__(self, other: object) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: object) -> Any:
        return _plain(other) + self.value

    def __mul__(self, times: int) -> Any:
        return self.value * times

    def __rmul__(self, times: int) -> Any:
        return times * self.value

    def __lt__(self, other: object) -> Any:
        return self.value < _plain(other)

    def __le__(self, other: object) -> Any:
        return self.value <= _plain(other)

    def __gt__(self, other: object) -> Any:
        return self.value > _plain(other)

    def __ge__(self, other: object) -> Any:
        return self.value >= _plain(other)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __int__(self) -> int:
        return int(self.value)

    def __hash__(self) -> int:
        return bytes.__hash__(self.value)

    def __len__(self) -> int:
        return bytes.__len__(self.value)

    def __getitem__(self, index: Any) -> Any:
        return bytes.__getitem__(self.value, index)


def _plain(other: Any) -> Any:
    return other.value if isinstance(type(other), type) and issubclass(type(other), FutureString) else other


def _delegate(name: str) -> Any:
    method = getattr(bytes, name)

    def delegate(self: FutureString, *args: object) -> Any:
        return method(self.value, *args)

    delegate.__name__ = name
    delegate.__doc__ = method.__doc__
    return delegate


for _name in dir(bytes):
    if not _name.startswith("_"):
        setattr(FutureString, _name, _delegate(_name))


class Read(FutureString, msgspec.Struct, eq=False):
    """The result of a read. Without a source it was known before: see `store.in_flight`.

    Every read makes one, so it has no `__init__` in Python.
    """

    _value: bytes | None = None
    _source: ReadSource | None = None
    _asked_at: int = 0
    """The count of `waits` at the time of the read, if there is a source."""
    is_answer: ClassVar = True
    """As in `AskedPage`."""

    @property
    def value(self) -> Any:
        if self._source is not None:
            self._arrive(self._source)
        return self._value

    def _arrive(self, source: ReadSource) -> None:
        """Record that a caller has waited for the result; raise if it was cut off before."""
        if source.cut_at == self._asked_at:
            raise FDBError(source.error)
        waits.count += 1
        self._source = None

    # Short ways for the methods that every read needs.

    def wait(self) -> Any:
        source = self._source
        if source is not None:  # as `_arrive`
            if source.cut_at == self._asked_at:
                raise FDBError(source.error)
            waits.count += 1
            self._source = None
        return self

    def __bytes__(self) -> Any:
        if self._source is not None:
            self._arrive(self._source)
        return self._value

    def under_way(self) -> bool:
        """Return whether a cluster's client would still wait for the result."""
        return self._source is not None and self._asked_at == waits.count

    def is_ready(self) -> bool:
        source = self._source
        if source is not None and source.cut_at != self._asked_at:
            waits.count += 1
            self._source = None
        return True

    def block_until_ready(self) -> None:
        self.is_ready()

    def on_ready(self, callback: Callback) -> None:
        self.block_until_ready()
        call(callback, self)

    def cancel(self) -> None:
        self._source = cancelled(self._source, self._asked_at)


class Value(Read, eq=False):
    """The value of a key, or None if the key has none."""

    def present(self) -> bool:
        """Return whether the key has a value."""
        if self._source is not None:
            self._arrive(self._source)
        return self._value is not None


class Key(Read, eq=False):
    """The key that a selector names."""


class ByValue(FutureString):
    """Base of reads with a `value` of their own, for which the short ways of `Read` do not hold."""

    __slots__ = ()

    wait = FutureString.wait
    __bytes__ = FutureString.__bytes__

    def present(self) -> bool:
        """Return whether the key has a value."""
        return self.value is not None


class FailedValue(ByValue, Value, eq=False):
    """The error of a failed read of a key."""

    code: int = 0

    @property
    def value(self) -> Any:
        raise FDBError(self.code)


class FailedKey(ByValue, Key, eq=False):
    """The error of a failed key selector."""

    code: int = 0

    @property
    def value(self) -> Any:
        raise FDBError(self.code)


class PendingKey(FutureString, Pending[bytes]):
    """The versionstamp of a commit, known when the commit ends.

    Args:
        time_left: refers to a method that returns the seconds left, or None for no limit. It fails this future if
            there are none left.
    """

    __slots__ = ("_time_left",)

    def __init__(self, time_left: weakref.WeakMethod[Callable[[], float | None]]) -> None:
        super().__init__()
        self._time_left = time_left

    def _look(self) -> float | None:
        time_left = self._time_left()
        return None if time_left is None else time_left()

    def is_ready(self) -> bool:
        self._leave_parent()
        if not self._settled:
            self._look()
        return self._settled

    def block_until_ready(self) -> None:
        self._leave_parent()
        while not self._settled:
            left = self._look()
            with self._lock:
                if not self._settled:
                    self._lock.wait(left)

    @property
    def value(self) -> Any:
        self.block_until_ready()
        if self._error:
            raise FDBError(self._error)
        return self._value
