"""Read the headers of the pages of a Parquet file, so that a page's size is known before it is decoded.

A decoder allocates what the header of a page says, and pyarrow shows no such headers. A header is a struct of Thrift's
compact protocol: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

HEADER_BYTES = 1 << 20
"""The most bytes of a header. It has the smallest and the largest value of its page."""
DEPTH = 8
"""The most structs within each other."""
DICTIONARY = 2
DELTA_BYTE_ARRAY = 7
"""The encoding whose values share beginnings. A page of a few bytes may have values of any size."""
_KINDS = {0: 5, 1: 6, 2: 7, 3: 8}
"""The field of a header that describes a page of a kind: data, index, dictionary, data of version 2."""
_ENCODINGS = {0: 2, 2: 2, 3: 4}
"""The field of that description that has the encoding."""


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What a page says of itself."""

    kind: int
    size: int
    """Its bytes in memory."""
    stored: int
    """Its bytes in the file, behind the header."""
    values: int
    encoding: int

    @property
    def is_data(self) -> bool:
        """Whether it has values of rows."""
        return self.kind in (0, 3)


def headers(file: BinaryIO, begin: int, end: int) -> Iterator[PageHeader]:
    """Yield the headers of the pages between two offsets of a file.

    Raises:
        ValueError: there is something else.
    """
    at = begin
    while at < end:
        found, length = _header(file, at, end)
        kind = _number(found, 1)
        described = found.get(_KINDS.get(kind, -1), {})
        if kind not in _KINDS or not isinstance(described, dict):
            raise ValueError(f"the page at byte {at:,} is of no known kind")
        values = _number(described, 1) if kind in _ENCODINGS else 0
        encoding = _number(described, _ENCODINGS[kind]) if kind in _ENCODINGS else 0
        page = PageHeader(kind, _number(found, 2), _number(found, 3), values, encoding)
        if min(page.size, page.stored, page.values) < 0:
            raise ValueError(f"the page at byte {at:,} has a size below 0")
        at += length + page.stored
        if at > end:
            raise ValueError(f"a page ends at byte {at:,}, behind the end of its column at {end:,}")
        yield page


def _header(file: BinaryIO, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the header at an offset, and its length."""
    most = 256
    while True:
        file.seek(at)
        read = _Compact(file.read(min(most, end - at)))
        try:
            return read.struct(), read.at
        except IndexError:
            if most >= min(end - at, HEADER_BYTES):
                raise ValueError(f"the header of the page at byte {at:,} has no end") from None
            most *= 16


def _number(fields: dict[int, Any], name: int) -> int:
    found = fields.get(name)
    if not isinstance(found, int):
        raise ValueError(f"the header of a page lacks its field {name}")
    return found


class _Compact:
    """Reads Thrift's compact protocol. Raises IndexError where the bytes end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEPTH:
            raise ValueError("the header of a page has too many structs within each other")
        fields: dict[int, Any] = {}
        name = 0
        while head := self._byte():
            name = name + (head >> 4) if head >> 4 else self._zigzag()
            fields[name] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # a truth is in the kind
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (7, 8):  # a float, or bytes: nothing here needs them
            length = 8 if kind == 7 else self._varint()
            self.at += length
            if self.at > len(self._data):
                raise IndexError
            return None
        raise ValueError(f"the header of a page has a field of the kind {kind}")  # lists, sets and maps, which none has

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("the header of a page has a number of over 64 bits")

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
