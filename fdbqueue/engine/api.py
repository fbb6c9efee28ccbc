"""The contract of an engine: what the official Python binding offers at API version 730.

These protocols name the part of the binding that the library itself builds on; their prose is the specification,
and `tests/conformance` checks it on every engine. Whatever else the binding has, the embedded engine has too.
A user's own ``fdb.Database`` or ``fdb.Transaction`` satisfies them as it is.

Errors are `fdbqueue.engine.FDBError` with FoundationDB's codes. A method that returns a future raises at ``wait``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

T_co = TypeVar("T_co", covariant=True)


class Future(Protocol[T_co]):
    """A value that is on its way."""

    def wait(self) -> T_co:
        """Block until the value is there and return it, or raise what went wrong."""

    def is_ready(self) -> bool:
        """Say, without blocking, whether `wait` would return at once."""

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with this future once it is ready, at once or later, perhaps in another thread."""

    def cancel(self) -> None:
        """Give the value up; a later `wait` raises 1101."""


class Value(Protocol):
    """The future of a read key: compares and converts as the bytes that it stands for, waiting if it must."""

    def wait(self) -> Self: ...
    def present(self) -> bool:
        """Say whether the key has a value."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...
    def cancel(self) -> None: ...
    def __bytes__(self) -> bytes: ...


class KeyValue(Protocol):
    """A row."""

    key: bytes
    value: bytes


class Rows(Protocol):
    """A range read, issued when it was made and fetched as it is iterated; every iteration starts anew."""

    def __iter__(self) -> Iterator[KeyValue]: ...
    def to_list(self) -> list[KeyValue]: ...


class ReadTransaction(Protocol):
    """Reads at one version, `tr.snapshot`'s without adding read conflicts.

    All reads of a transaction see the database as it was at its read version, plus the transaction's own writes.
    """

    def get(self, key: bytes) -> Value: ...
    def get_key(self, key_selector: Any) -> Any: ...
    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Rows: ...
    def get_read_version(self) -> Future[int]: ...


class Transaction(ReadTransaction, Protocol):
    """Reads and writes that take effect together at `commit`, or not at all.

    A commit fails with 1020 if a range that was read (not through `snapshot`) was written by a transaction that
    committed after this one's read version.
    """

    snapshot: ReadTransaction
    options: Any

    def set(self, key: bytes, value: bytes) -> None: ...
    def clear(self, key: bytes) -> None: ...
    def clear_range(self, begin: bytes, end: bytes) -> None: ...
    def add(self, key: bytes, param: bytes) -> None: ...
    def byte_min(self, key: bytes, param: bytes) -> None: ...
    def byte_max(self, key: bytes, param: bytes) -> None: ...
    def set_versionstamped_key(self, key: bytes, param: bytes) -> None: ...
    def set_versionstamped_value(self, key: bytes, param: bytes) -> None: ...
    def add_read_conflict_key(self, key: bytes) -> None: ...
    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None: ...
    def add_write_conflict_key(self, key: bytes) -> None: ...
    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None: ...
    def watch(self, key: bytes) -> Future[None]: ...
    def commit(self) -> Future[None]: ...
    def on_error(self, error: Any) -> Future[None]: ...
    def reset(self) -> None: ...
    def cancel(self) -> None: ...
    def set_read_version(self, version: int) -> None: ...
    def get_committed_version(self) -> int: ...
    def get_versionstamp(self) -> Any: ...
    def get_approximate_size(self) -> Future[int]: ...


@runtime_checkable
class Database(Protocol):
    """Where transactions come from. What makes it a database, to the library, is this one method."""

    def create_transaction(self) -> Transaction: ...
