"""Rows that wait to be written, in their order. Rows that do not fit into memory wait in a temporary file.

A retried attempt keeps its new rows back until it has met all rows that earlier attempts wrote. After a shuffle the
last of those may come at the end of the partition, so nearly the whole partition may have to wait.
"""

from __future__ import annotations

import os
import struct
import tempfile
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import IO

from fdbqueue.spark.rows.rows import SparkRows, joined, pack, unpack

MEMORY_BYTES = 32_000_000
ROW_OVERHEAD_BYTES = 64
"""About the size that a row's key and digest add to a transaction."""
_LENGTH = struct.Struct(">Q")


class Backlog:
    """Waiting rows, first in, first out.

    Args:
        memory_bytes: the most bytes that wait in memory; further rows go to the file.
    """

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._pieces: deque[_Piece] = deque()
        self._in_memory = 0
        self._file: _File | None = None
        self.rows = 0
        """How many rows wait."""
        self.size_bytes = 0
        """The bytes that they add to transactions."""

    def append(self, rows: SparkRows) -> None:
        """Add rows at the end."""
        if not len(rows):
            return
        piece = _Piece(rows)
        self.rows += len(rows)
        self.size_bytes += piece.size_bytes
        if self._file is None and self._in_memory < self._memory_bytes:
            self._keep(piece)
            return
        if self._file is None:
            self._file = _File()
        self._file.write(rows)

    def put_back(self, rows: SparkRows) -> None:
        """Add rows at the front."""
        if not len(rows):
            return
        piece = _Piece(rows)
        self._pieces.appendleft(piece)
        self._in_memory += piece.size_bytes
        self.rows += len(rows)
        self.size_bytes += piece.size_bytes

    def take(self, *, rows: int, size_bytes: int, rest: bool) -> SparkRows | None:
        """Take the first rows out: as many as `rows` and about `size_bytes` allow, at least one.

        Returns None if no row waits. Without `rest` it also returns None if less than a full batch waits.
        """
        if not self.rows or not (rest or self.rows >= rows or self.size_bytes >= size_bytes):
            return None
        taken: list[SparkRows] = []
        rows_left, bytes_left = rows, size_bytes
        while rows_left and (piece := self._first()):
            count = piece.fitting(rows_left, bytes_left) or (0 if taken else 1)
            if not count:
                break
            part, part_bytes = piece.take(count)
            taken.append(part)
            rows_left -= count
            bytes_left -= part_bytes
            self._in_memory -= part_bytes
            self.rows -= count
            self.size_bytes -= part_bytes
            if piece.empty:
                self._pieces.popleft()
        return joined(taken)

    def drain(self) -> Iterator[SparkRows]:
        """Take all rows out, in pieces."""
        while piece := self._first():
            self._pieces.popleft()
            rest = piece.rest()
            self._in_memory -= piece.size_bytes
            self.rows -= len(rest)
            self.size_bytes -= piece.size_bytes
            yield rest

    def close(self) -> None:
        """Drop the file and its rows."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _first(self) -> _Piece | None:
        if not self._pieces and self._file is not None:
            self._keep(_Piece(self._file.read()))
            if self._file.empty:
                self.close()
        return self._pieces[0] if self._pieces else None

    def _keep(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._in_memory += piece.size_bytes


class _Piece:
    """Rows that arrived together, and the number of them that was taken."""

    __slots__ = ("_ends", "_rows", "_start", "_taken_bytes", "size_bytes")

    def __init__(self, rows: SparkRows) -> None:
        self._rows = rows
        self._start = 0
        self._taken_bytes = 0
        self._ends = list(accumulate(map(ROW_OVERHEAD_BYTES.__add__, rows.sizes())))
        self.size_bytes = self._ends[-1]

    @property
    def empty(self) -> bool:
        return self._start == len(self._rows)

    def fitting(self, rows: int, size_bytes: int) -> int:
        """Return how many of the first rows have at most `size_bytes` together, and at most `rows`."""
        stop = bisect_right(self._ends, self._taken_bytes + size_bytes, lo=self._start)
        return min(stop - self._start, rows)

    def take(self, count: int) -> tuple[SparkRows, int]:
        """Take the first `count` rows out. Return them and their bytes."""
        part = self._rows.part(self._start, self._start + count)
        self._start += count
        size_bytes = self._ends[self._start - 1] - self._taken_bytes
        self._taken_bytes += size_bytes
        self.size_bytes -= size_bytes
        return part, size_bytes

    def rest(self) -> SparkRows:
        return self._rows.part(self._start, len(self._rows))


class _File:
    """Rows in a file without a name, so that nothing remains if the process is killed."""

    def __init__(self) -> None:
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="fdbqueue-", dir=folder)  # noqa: SIM115 - see `close`
        self._read_at = 0
        self._write_at = 0

    def write(self, rows: SparkRows) -> None:
        data = pack(rows)
        self._file.seek(self._write_at)
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._write_at += _LENGTH.size + len(data)

    @property
    def empty(self) -> bool:
        return self._read_at == self._write_at

    def read(self) -> SparkRows:
        self._file.seek(self._read_at)
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        rows = unpack(self._file.read(length))
        self._read_at += _LENGTH.size + length
        return rows

    def close(self) -> None:
        self._file.close()
