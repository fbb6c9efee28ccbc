"""The contract of an engine: the interface of the official Python binding at API version 730.

These protocols contain the methods that user code calls beside a queue, and that the library itself uses. Their
docstrings are the specification; `tests/conformance` checks it on every engine. The embedded engine also has the rest
of the binding's interface. Your own ``fdb.Database`` or ``fdb.Transaction`` satisfies the protocols too, except that it
has no `Database.close` and is no context manager.

Errors are `fdbqueue.engine.FDBError` with FoundationDB's codes. A method that returns a future raises at ``wait``.

Source: FoundationDB's documentation, "Python API".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, TypeVar, overload, runtime_checkable

# The binding's key selectors, for transactions of both engines.
#
# In range reads, the binding accepts only its own class, and checks with ``isinstance``. Importing that class loads
# the C
# library. So our class returns the binding's class as its ``__class__`` when the binding is loaded. The binding's
# own
# lazy strings return ``bytes`` in the same way.


class KeySelector:
    """A key relative to a reference: the `offset`-th key from the last one before (or at) `key`.

    >>> KeySelector.first_greater_than(b"a") + 1
    KeySelector(b'a', True, 2)
    """

    __slots__ = ("key", "offset", "or_equal")

    def __init__(self, key: Key, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            binding = sys.modules.get("fdb.impl")
            return KeySelector if binding is None else getattr(binding, "KeySelector", KeySelector)

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: Key) -> KeySelector:
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: Key) -> KeySelector:
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: Key) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: Key) -> KeySelector:
        return cls(key, False, 1)

    def __reduce__(self) -> tuple[object, ...]:
        # The default asks for an object of the class that `__class__` returns.
        return KeySelector, (self.key, self.or_equal, self.offset)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"


T_co = TypeVar("T_co", covariant=True)


class AsKey(Protocol):
    """An object that can be used as a key, such as a `Subspace` or a `Value` that was read."""

    def as_foundationdb_key(self) -> bytes: ...


class AsValue(Protocol):
    """An object that can be used as a value, such as a `Value` that was read."""

    def as_foundationdb_value(self) -> bytes: ...


Key: TypeAlias = bytes | AsKey
Bound: TypeAlias = Key | KeySelector | None
"""One end of a range; None is the first or the last key."""
Bytes: TypeAlias = bytes | AsValue
Callback: TypeAlias = Callable[[Any], None]
"""What is called with a future that is ready."""


class Future(Protocol[T_co]):
    """A value that is available later."""

    def wait(self) -> T_co:
        """Block until the value is available and return it, or raise the error."""

    def is_ready(self) -> bool:
        """Return whether `wait` would return at once, without blocking."""

    def on_ready(self, callback: Callback) -> None:
        """Call `callback` with this future when it is ready: at once or later, perhaps in another thread."""

    def cancel(self) -> None:
        """Cancel the future; a later `wait` raises 1101."""


class Value(Protocol):
    """The future of a read key or value. It compares and converts like its bytes, and waits for them if needed."""

    @property
    def value(self) -> bytes | None:
        """The bytes, after waiting for them; None if the key has no value."""

    def wait(self) -> Self: ...
    def present(self) -> bool:
        """Return whether the key has a value."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callback) -> None: ...
    def cancel(self) -> None: ...
    def as_foundationdb_key(self) -> bytes: ...
    def as_foundationdb_value(self) -> bytes: ...
    def __bytes__(self) -> bytes: ...
    def __int__(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> bytes: ...
    def __add__(self, other: Bytes, /) -> bytes: ...
    def __radd__(self, other: Bytes, /) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __lt__(self, other: Bytes, /) -> bool: ...
    def __le__(self, other: Bytes, /) -> bool: ...
    def __gt__(self, other: Bytes, /) -> bool: ...
    def __ge__(self, other: Bytes, /) -> bool: ...
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str: ...
    def hex(self) -> str: ...
    def startswith(self, prefix: bytes, /) -> bool: ...
    def endswith(self, suffix: bytes, /) -> bool: ...
    def split(self, sep: bytes | None = None, maxsplit: int = -1) -> list[bytes]: ...


class KeyValue(Protocol):
    """A row; it unpacks into its key and its value."""

    key: bytes
    value: bytes

    def __iter__(self) -> Iterator[bytes]: ...


class Rows(Protocol):
    """A range read. The read starts at once; iteration fetches the rows, and each iteration starts from the first."""

    def __iter__(self) -> Iterator[KeyValue]: ...
    def to_list(self) -> list[KeyValue]: ...


class ReadTransaction(Protocol):
    """Reads at one version. Reads through `tr.snapshot` add no read conflicts.

    All reads of a transaction see the database at its read version, plus the transaction's own writes.
    """

    def get(self, key: Key) -> Value: ...
    def get_key(self, key_selector: KeySelector) -> Value: ...
    def get_range(
        self, begin: Bound, end: Bound, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Rows: ...
    def get_range_startswith(self, prefix: Key, *args: object, **kwargs: object) -> Rows: ...
    def get_read_version(self) -> Future[int]: ...
    def get_estimated_range_size_bytes(self, begin_key: Key, end_key: Key) -> Future[int]: ...
    def get_range_split_points(self, begin_key: Key, end_key: Key, chunk_size: int) -> Future[list[bytes]]: ...
    @overload
    def __getitem__(self, key: slice) -> Rows: ...
    @overload
    def __getitem__(self, key: Key | KeySelector) -> Value: ...


class Writes(Protocol):
    """The writes that a transaction collects. On a database, each write runs in its own transaction."""

    def set(self, key: Key, value: Bytes) -> None: ...
    def clear(self, key: Key) -> None: ...
    def clear_range(self, begin: Key | None, end: Key | None) -> None: ...
    def clear_range_startswith(self, prefix: Key) -> None: ...
    def __setitem__(self, key: Key, value: Bytes) -> None: ...
    def __delitem__(self, key_or_slice: Key | slice) -> None: ...
    def add(self, key: Key, param: Bytes) -> None: ...
    def bit_and(self, key: Key, param: Bytes) -> None: ...
    def bit_or(self, key: Key, param: Bytes) -> None: ...
    def bit_xor(self, key: Key, param: Bytes) -> None: ...
    def max(self, key: Key, param: Bytes) -> None: ...
    def min(self, key: Key, param: Bytes) -> None: ...
    def byte_max(self, key: Key, param: Bytes) -> None: ...
    def byte_min(self, key: Key, param: Bytes) -> None: ...
    def append_if_fits(self, key: Key, param: Bytes) -> None: ...
    def compare_and_clear(self, key: Key, param: Bytes) -> None: ...
    def set_versionstamped_key(self, key: Key, param: Bytes) -> None: ...
    def set_versionstamped_value(self, key: Key, param: Bytes) -> None: ...


class Transaction(ReadTransaction, Writes, Protocol):
    """Reads and writes that take effect together at `commit`, or not at all.

    A commit fails with 1020 if this transaction read a range, other than through `snapshot`, and another transaction
    that committed after its read version wrote there.
    """

    @property
    def snapshot(self) -> ReadTransaction: ...
    @property
    def options(self) -> Any: ...
    def add_read_conflict_key(self, key: Key) -> None: ...
    def add_read_conflict_range(self, begin: Key, end: Key) -> None: ...
    def add_write_conflict_key(self, key: Key) -> None: ...
    def add_write_conflict_range(self, begin: Key, end: Key) -> None: ...
    def watch(self, key: Key) -> Future[None]: ...
    def commit(self) -> Future[None]: ...
    def on_error(self, error: Any) -> Future[None]: ...
    def reset(self) -> None: ...
    def cancel(self) -> None: ...
    def set_read_version(self, version: int) -> None: ...
    def get_committed_version(self) -> int: ...
    def get_versionstamp(self) -> Any: ...
    def get_approximate_size(self) -> Future[int]: ...


@runtime_checkable
class Database(Writes, Protocol):
    """The object that `fdbqueue.open` returns. It creates transactions; its reads and writes are one transaction each.

    Each read or write directly on a database commits, and is repeated until it does.
    """

    def create_transaction(self) -> Transaction: ...
    @property
    def options(self) -> Any: ...
    def get(self, key: Key) -> bytes | None: ...
    def get_key(self, key_selector: KeySelector) -> bytes: ...
    def get_range(
        self, begin: Bound, end: Bound, limit: int = 0, reverse: bool = False, streaming_mode: int = ...
    ) -> list[KeyValue]: ...
    def get_range_startswith(self, prefix: Key, *args: object, **kwargs: object) -> list[KeyValue]: ...
    @overload
    def __getitem__(self, key: slice) -> list[KeyValue]: ...
    @overload
    def __getitem__(self, key: Key) -> bytes | None: ...
    def get_and_watch(self, key: Key) -> tuple[bytes | None, Future[None]]: ...
    def set_and_watch(self, key: Key, value: Bytes) -> Future[None]: ...
    def clear_and_watch(self, key: Key) -> Future[None]: ...
    def close(self) -> None:
        """Close this database object: every later use of it raises StorageError or ClusterError."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# Streaming modes of range reads, with the binding's numbers and names.


class StreamingMode:
    """How many rows a range read fetches at a time. It is a hint for the cluster; the embedded engine ignores it."""

    want_all: Final = -2
    iterator: Final = -1
    exact: Final = 0
    small: Final = 1
    medium: Final = 2
    large: Final = 3
    serial: Final = 4
