"""The reads that a transaction and its snapshot view have in common: in the binding's form, and in one step."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fdbqueue.engine import api
from fdbqueue.engine.api import StreamingMode
from fdbqueue.engine.embedded.client.futures import FutureInt64, FutureKeyArray, Key, Value
from fdbqueue.engine.embedded.client.pages import FDBRange, FutureKeyValueArray, KeyValue, Row, key_to_bytes
from fdbqueue.engine.embedded.store.snapshot import waits
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.keys import strinc

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.database import Database
    from fdbqueue.engine.embedded.client.read_api import ReadApi

TOP: Final = b"\xff"
SYSTEM_TOP: Final = b"\xff\xff"
METADATA_VERSION: Final = b"\xff/metadataVersion"
READ_KEY_LIMIT: Final = 10_008
SYSTEM_KEY_LIMIT: Final = 30_000
BEYOND_INT: Final = 1 << 31


def cut(key: bytes) -> bytes:
    """Shorten an overlong key. No stored key equals it, and the short form sorts the same among stored keys."""
    return key[: (SYSTEM_KEY_LIMIT if key[:1] == TOP else READ_KEY_LIMIT) + 1]


class TransactionRead:
    """The reads of a transaction and of its `snapshot` view."""

    __slots__ = ()

    def _get_range(
        self, begin: api.Bound, end: api.Bound, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> FutureKeyValueArray:
        raise NotImplementedError

    def get(self, key: api.Key) -> Value:
        """Read the value of `key`."""
        raise NotImplementedError

    def get_range(
        self,
        begin: api.Bound,
        end: api.Bound,
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
        first = self._get_range(begin, end, limit, streaming_mode, 1, reverse)
        return FDBRange(self, begin, end, limit, reverse, streaming_mode, first)

    def get_range_startswith(self, prefix: api.Key, *args: Any, **kwargs: Any) -> FDBRange:
        """Read the rows whose keys start with `prefix`."""
        prefix = key_to_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key: api.Key | slice) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)


class SnapshotReads(TransactionRead, msgspec.Struct, eq=False):
    """A transaction's reads without read conflicts: ``tr.snapshot``."""

    _tr: ReadApi

    def __repr__(self) -> str:
        return f"{self._tr!r}.snapshot"

    @property
    def db(self) -> Database:
        return self._tr.db

    def get(self, key: api.Key) -> Value:
        tr = self._tr
        if type(key) is not bytes:
            key = key_to_bytes(key)
        if tr._odd or key >= TOP or len(key) > READ_KEY_LIMIT or not tr._writes.empty:
            return tr._get(key, True)
        try:
            snap = tr._snap or tr._opened()
            found = snap.get(key)
        except FDBError:
            return tr._get(key, True)
        return Value(found, tr._looked_at(key, snap), waits.count)

    def get_key(self, key_selector: api.KeySelector) -> Key:
        key = key_selector.key
        if type(key) is not bytes:
            key = key_to_bytes(key)
        return self._tr._get_key(key, key_selector.or_equal, key_selector.offset, True)

    def _get_range(
        self, begin: api.Bound, end: api.Bound, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> FutureKeyValueArray:
        return self._tr._get_range(begin, end, limit, streaming_mode, iteration, reverse, True)

    def read_rows(self, begin: bytes, end: bytes, limit: int, reverse: bool = False) -> list[KeyValue] | None:
        """Read the first `limit` rows of a range, as that of a transaction."""
        pairs = self._tr._pairs(begin, end, limit, reverse, True)
        return None if pairs is None else list(starmap(KeyValue, pairs))

    def read_pairs(self, begin: bytes, end: bytes, limit: int) -> list[Row] | None:
        """Do as `read_rows`, and make no object of each row, for a caller that takes the rows apart."""
        return self._tr._pairs(begin, end, limit, False, True)

    def get_read_version(self) -> FutureInt64:
        return self._tr.get_read_version()

    def get_estimated_range_size_bytes(self, begin_key: bytes | None, end_key: bytes | None) -> FutureInt64:
        return self._tr.get_estimated_range_size_bytes(begin_key, end_key)

    def get_range_split_points(self, begin_key: bytes | None, end_key: bytes | None, chunk_size: int) -> FutureKeyArray:
        return self._tr.get_range_split_points(begin_key, end_key, chunk_size)
