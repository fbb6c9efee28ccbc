"""The public read methods of a transaction and of its snapshot view, and that view."""

from __future__ import annotations

from ctypes import ArgumentError
from typing import TYPE_CHECKING, Any

from fdbqueue.engine.embedded.client.futures import FutureInt64, FutureKeyArray
from fdbqueue.engine.embedded.client.ranges import FDBRange, FutureKeyValueArray
from fdbqueue.engine.embedded.client.values import Key, Value
from fdbqueue.engine.keys import strinc
from fdbqueue.engine.streaming import StreamingMode

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.database import Database
    from fdbqueue.engine.embedded.client.transaction import Transaction


def key_to_bytes(key: Any) -> bytes:
    """Return the bytes of a key, or of an object that has `as_foundationdb_key`.

    Raises:
        TypeError: the key is not bytes.
    """
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_to_bytes(value: Any) -> bytes:
    """Return the bytes of a value, or of an object that has `as_foundationdb_value`.

    Raises:
        TypeError: the value is not bytes.
    """
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


def integer(value: Any, bits: int = 32) -> int:
    """Return a number as the client library gets it: truncated to a signed integer of `bits` bits.

    Raises:
        ctypes.ArgumentError: the value is not an integer.
    """
    if not isinstance(value, int):
        raise ArgumentError(f"a whole number was expected, not {type(value).__name__}")
    number, half = int(value), 1 << (bits - 1)
    return number if -half <= number < half else (number + half) % (2 * half) - half


class TransactionRead:
    """The reads of a transaction and of its `snapshot` view."""

    db: Database

    def _get_range(
        self, begin: Any, end: Any, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> FutureKeyValueArray:
        raise NotImplementedError

    def get(self, key: Any) -> Value:
        """Read the value of `key`."""
        raise NotImplementedError

    def get_range(
        self,
        begin: Any,
        end: Any,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.iterator,
    ) -> FDBRange:
        """Read the rows from `begin` (a key or selector; None: the first key) up to and excluding `end`.

        *Conflicts:* with writes to the part of the range that was read, gaps included. With a `limit`, or if the
        iteration stops early, the conflicts end with the pages that were read.
        """
        if begin is None:
            begin = b""
        if end is None:
            end = b"\xff"
        return FDBRange(self, begin, end, limit, reverse, streaming_mode)

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> FDBRange:
        """Read the rows whose keys start with `prefix`."""
        prefix = key_to_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)


class Snapshot(TransactionRead):
    """A transaction's reads without read conflicts: ``tr.snapshot``."""

    def __init__(self, tr: Transaction) -> None:
        self._tr = tr

    def __repr__(self) -> str:
        return f"{self._tr!r}.snapshot"

    @property
    def db(self) -> Database:  # type: ignore[override]
        return self._tr._db

    def get(self, key: Any) -> Value:
        return self._tr._get(key if type(key) is bytes else key_to_bytes(key), True)

    def get_key(self, key_selector: Any) -> Key:
        key = key_selector.key
        if type(key) is not bytes:
            key = key_to_bytes(key)
        return self._tr._get_key(key, key_selector.or_equal, key_selector.offset, True)

    def _get_range(
        self, begin: Any, end: Any, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> FutureKeyValueArray:
        return self._tr._get_range(begin, end, limit, streaming_mode, iteration, reverse, True)

    def get_read_version(self) -> FutureInt64:
        return self._tr.get_read_version()

    def get_estimated_range_size_bytes(self, begin_key: Any, end_key: Any) -> FutureInt64:
        return self._tr.get_estimated_range_size_bytes(begin_key, end_key)

    def get_range_split_points(self, begin_key: Any, end_key: Any, chunk_size: int) -> FutureKeyArray:
        return self._tr.get_range_split_points(begin_key, end_key, chunk_size)
