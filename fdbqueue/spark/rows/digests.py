"""Digests of rows: the rows that are in the queue but were not met yet, and one digest for many rows.

Spark promises a retried task the same *set* of rows. It does not promise their order, so a row's digest identifies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from fdbqueue.errors import FormatError

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
