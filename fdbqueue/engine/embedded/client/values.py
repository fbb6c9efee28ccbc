"""The futures of a value and of a resolved key selector. Programs use them like the bytes themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fdbqueue.engine.embedded.client.futures import Future, Pending, call
from fdbqueue.engine.embedded.store.in_flight import ReadSource, cancelled, waits
from fdbqueue.engine.errors import FDBError


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

    def __add__(self, other: Any) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return _plain(other) + self.value

    def __mul__(self, times: int) -> Any:
        return self.value * times

    def __rmul__(self, times: int) -> Any:
        return times * self.value

    def __lt__(self, other: Any) -> Any:
        return self.value < _plain(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= _plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > _plain(other)

    def __ge__(self, other: Any) -> Any:
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

    def delegate(self: FutureString, *args: Any) -> Any:
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
    comes_at_once: ClassVar = True
    """Its `wait` does not block, and so needs no yield (`fdbqueue.engine.steps.rows`)."""

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

    def on_ready(self, callback: Callable[[Any], object]) -> None:
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
