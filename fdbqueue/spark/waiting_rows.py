"""Rows on their way into a queue: column by column, as digests, and waiting in memory or in a file."""

from __future__ import annotations

import os
import struct
import tempfile
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import IO, TypeVar

import msgspec

from fdbqueue.errors import FormatError

# Rows on their way into a queue, column by column.

KEYS_WITH_NAME = 8
"""About how many keys and values of a row in a new session have the session's name."""
T = TypeVar("T")


@dataclass(slots=True)
class SparkRows:
    """Encoded rows. Every list has an entry for each row."""

    stored: list[bytes]
    """The envelopes, as they are stored under the items' keys."""
    digests: list[bytes]
    """The digests that identify the rows."""
    queues: list[str | None] | None = None
    """The name of each row's queue. None, for a row or for all, means the job's queue."""
    large: list[bytes | None] | None = None
    """The payloads that are stored in chunks; None: there are none."""
    sessions: list[tuple[bytes, int]] | None = None
    """The packed name of each row's session, and the row's level in it; None: the rows are in no sessions."""

    def __len__(self) -> int:
        return len(self.stored)

    def pick(self, places: Sequence[int]) -> SparkRows:
        """Return the rows at `places`."""
        if len(places) == len(self.stored):
            return self
        return SparkRows(
            [self.stored[place] for place in places],
            [self.digests[place] for place in places],
            _picked(self.queues, places),
            _picked(self.large, places),
            _picked(self.sessions, places),
        )

    def part(self, start: int, stop: int) -> SparkRows:
        """Return the rows from `start` to before `stop`."""
        if start == 0 and stop >= len(self.stored):
            return self
        return SparkRows(
            self.stored[start:stop],
            self.digests[start:stop],
            None if self.queues is None else self.queues[start:stop],
            None if self.large is None else self.large[start:stop],
            None if self.sessions is None else self.sessions[start:stop],
        )

    def sizes(self) -> list[int]:
        """Return how many bytes each row adds to a transaction, without its key."""
        sizes = list(map(len, self.stored))
        if self.large is not None:
            sizes = [size + len(large or b"") for size, large in zip(sizes, self.large, strict=True)]
        if self.sessions is not None:
            sizes = [size + KEYS_WITH_NAME * len(name) for size, (name, _) in zip(sizes, self.sessions, strict=True)]
        return sizes


def joined(parts: list[SparkRows]) -> SparkRows:
    """Join rows in their order. All parts are of one job."""
    if len(parts) == 1:
        return parts[0]
    large = [part.large or [None] * len(part) for part in parts] if any(part.large for part in parts) else None
    return SparkRows(
        [stored for part in parts for stored in part.stored],
        [digest for part in parts for digest in part.digests],
        None if parts[0].queues is None else [name for part in parts for name in part.queues or ()],
        None if large is None else [payload for part in large for payload in part],
        None if parts[0].sessions is None else [one for part in parts for one in part.sessions or ()],
    )


_decode = msgspec.msgpack.Decoder(SparkRows).decode


def pack(rows: SparkRows) -> bytes:
    """Return `rows` as bytes, for a temporary file of this process."""
    return msgspec.msgpack.encode(rows)


def unpack(data: bytes) -> SparkRows:
    """Return the rows that `pack` packed."""
    return _decode(data)


def _picked(values: list[T] | None, places: Sequence[int]) -> list[T] | None:
    return None if values is None else [values[place] for place in places]


# Digests of rows: the rows that are in the queue but were not met yet, and one digest for many rows.
#
# Spark promises a retried task the same *set* of rows. It does not promise their order, so a row's digest
# identifies it.

DIGEST_BYTES = 16
_BUCKET_BYTES = 2


def digests_of(rows: Iterable[bytes]) -> list[bytes]:
    """Return the digest of each row. Equal rows, and no others, have equal digests, in any process."""
    return [blake2b(row, digest_size=DIGEST_BYTES).digest() for row in rows]


@dataclass(slots=True)
class Met:
    """The rows of an input so far: their number, their size, and one digest of them all.

    The digest is the sum of the rows' digests modulo 2**128. It is the same for the same rows in any order and in any
    partitions. Equal rows count each time they occur.

    >>> once, again = Met(), Met()
    >>> once.add(digests_of([b"a", b"b", b"a"]))
    >>> for rows in [b"a"], [b"b", b"a"]:
    ...     again.add(digests_of(rows))
    >>> once == again
    True
    """

    rows: int = 0
    size_bytes: int = 0
    digest: int = 0

    def add(self, digests: Sequence[bytes], size_bytes: int = 0) -> None:
        """Add rows by their digests."""
        self.rows += len(digests)
        self.size_bytes += size_bytes
        self.digest = added(self.digest, sum(map(int.from_bytes, digests)))


def added(*digests: int) -> int:
    """Return the digest of all rows of several inputs, from the digests of the inputs."""
    return sum(digests) % (1 << 8 * DIGEST_BYTES)


class Multiset:
    """A multiset of digests. It takes about 16 bytes for each.

    Digests are stored without gaps in buckets named by their first bytes, and `bytearray.find` searches a bucket.

    >>> ahead = Multiset()
    >>> ahead.add(b"".join(digests_of([b"a", b"b", b"a"])))
    >>> ahead.unmatched(digests_of([b"c", b"a"]))
    [0]
    >>> len(ahead)
    2
    """

    __slots__ = ("_buckets", "_size")

    def __init__(self) -> None:
        self._buckets: dict[bytes, bytearray] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, digests: bytes) -> None:
        """Add digests, given as bytes without gaps.

        Raises:
            FormatError: the length is no multiple of a digest's length.
        """
        if len(digests) % DIGEST_BYTES:
            raise FormatError(f"A log entry of {len(digests):,} bytes is damaged: digests take {DIGEST_BYTES} each.")
        buckets = self._buckets
        for start in range(0, len(digests), DIGEST_BYTES):
            one = digests[start : start + DIGEST_BYTES]
            bucket = buckets.get(one[:_BUCKET_BYTES])
            if bucket is None:
                buckets[one[:_BUCKET_BYTES]] = bytearray(one)
            else:
                bucket += one
        self._size += len(digests) // DIGEST_BYTES

    def unmatched(self, digests: Sequence[bytes]) -> list[int]:
        """Remove each of `digests` once if it is there. Return the places of those that are not there."""
        if not self._size:
            return list(range(len(digests)))
        return [place for place, one in enumerate(digests) if not self._remove(one)]

    def _remove(self, one: bytes) -> bool:
        bucket = self._buckets.get(one[:_BUCKET_BYTES])
        if bucket is None:
            return False
        at = bucket.find(one)
        while at % DIGEST_BYTES:  # a hit across two other digests; -1 counts as one too
            if at < 0:
                return False
            at = bucket.find(one, at + 1)
        del bucket[at : at + DIGEST_BYTES]
        self._size -= 1
        return True


# Rows that wait to be written, in their order. Rows that do not fit into memory wait in a temporary file.
#
# A retried attempt keeps its new rows back until it has met all rows that earlier attempts wrote. After a shuffle
# the
# last of those may come at the end of the partition, so nearly the whole partition may have to wait.

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
