"""Range reads with the binding's interface: rows, and the lazy container that fetches them page by page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from fdbqueue.engine.embedded.client.futures import AskedPage
from fdbqueue.engine.selector import KeySelector
from fdbqueue.engine.streaming import StreamingMode

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.read_api import TransactionRead


class KeyValue(msgspec.Struct, eq=False, gc=False):
    """A row. It unpacks into its key and its value. As in the binding, a row equals only itself."""

    key: bytes
    value: bytes

    def __iter__(self) -> Iterator[bytes]:
        return iter((self.key, self.value))

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"


Page = tuple[list[KeyValue], int, bool]


def selector(key_or_selector: Any) -> Any:
    """Return the given key selector, or a selector of the first key at or behind the given key."""
    if hasattr(key_or_selector, "or_equal"):
        return key_or_selector
    return KeySelector(key_or_selector, False, 1)


class FutureKeyValueArray(AskedPage[Page]):
    """A page of rows, their number, and whether more may follow."""

    __slots__ = ()


class FDBRange(msgspec.Struct, eq=False):
    """A range read: its first page was read already; an iteration reads the following pages.

    As in the binding, every iteration starts with that first page again, and `to_list` fetches large pages.
    """

    _tr: TransactionRead
    _bsel: Any
    _esel: Any
    _limit: int
    _reverse: bool
    _mode: int
    _future: FutureKeyValueArray

    def __repr__(self) -> str:
        return f"<FDBRange {self._bsel!r} to {self._esel!r}>"

    def to_list(self) -> list[KeyValue]:
        """Read all rows."""
        mode = self._mode
        if mode == StreamingMode.iterator:
            mode = StreamingMode.exact if self._limit > 0 else StreamingMode.want_all
        rows: list[KeyValue] = []
        for page in self._pages(mode):
            rows += page
        return rows

    def __iter__(self, mode: int | None = None) -> Iterator[KeyValue]:
        return chain.from_iterable(self._pages(self._mode if mode is None else mode))

    def _pages(self, mode: int) -> Iterator[list[KeyValue]]:
        begin, end, limit = self._bsel, self._esel, self._limit
        future: Any = self._future
        iteration = 1
        while True:
            rows, count, more = future.wait()
            if not count:
                return
            if not more or limit == count:
                yield rows
                return
            last = rows[-1].key
            yield rows[:-1]
            # As in the binding, this requests the next page before it yields the last row of this one. The next page
            # therefore misses the caller's writes after that row.
            iteration += 1
            if limit > 0:
                limit -= count
            if self._reverse:
                end = last
            else:
                begin = last + b"\0"
            future = self._tr._get_range(begin, end, limit, mode, iteration, self._reverse)
            yield rows[-1:]
