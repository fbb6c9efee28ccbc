"""The log of recent commits: which keys and ranges each wrote, for the conflict check.

A commit conflicts if a range that its transaction read was written, after its read version, by another. The log says
so for all processes: it stands beside the data, one record a commit, written in the commit's own LMDB transaction.

Old records go little by little, a few with every so many commits. (Dropping many at a stroke is cheaper in itself,
but leaves LMDB a long list of free pages, which it writes anew with every commit until they are used up.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, Final

from fdbqueue.engine.embedded.layout import WINDOW_SECONDS
from fdbqueue.engine.embedded.written import Written, decode, decode_all, encode, time_of

Commit = tuple[int, bytes]
"""A version and its record."""

WINDOW_US: Final = int((WINDOW_SECONDS + 1) * 1_000_000)
TRIM_MOST: Final = 256
CACHE_BYTES: Final = 24 << 20
BLOCK_BYTES: Final = 32 << 10
FEW: Final = 8
"""Commits that are looked at one by one, as others will look at them again."""
RECORD_OVERHEAD: Final = 90
"""Bytes that Python takes for a record beside its own."""


def begin(txn: Any, log: Any, now_us: int, *, jump: int) -> None:
    """Forget all there was and go on, `jump` versions higher, with a commit of nothing."""
    version = last_version(txn, log) + jump
    txn.drop(log, delete=False)
    txn.put(version.to_bytes(8, "big"), encode(now_us, [], []), db=log)


def last_version(txn: Any, log: Any) -> int:
    """Return the last commit's version."""
    cursor = txn.cursor(log)
    return int.from_bytes(cursor.key(), "big") if cursor.last() else 0


def read_log(txn: Any, log: Any, after: int) -> Iterator[Commit]:
    """Read the commits after version `after`, in order."""
    cursor = txn.cursor(log)
    if cursor.set_range((after + 1).to_bytes(8, "big")):
        for key, record in cursor.iternext():
            yield int.from_bytes(key, "big"), record


def trim(txn: Any, log: Any, version: int) -> None:
    """Drop some records that no transaction can need, the last commit being of `version`.

    Versions grow at least as fast as microseconds. The newest record from before the window stays: it stands for the
    state that a transaction at the window's beginning sees.
    """
    cursor = txn.cursor(log)
    if not cursor.set_range((max(0, version - WINDOW_US)).to_bytes(8, "big")) or not cursor.prev():
        return
    kept = cursor.key()
    cursor.first()
    old = bisect_left(list(islice(cursor.iternext(values=False), TRIM_MOST)), kept)
    if old and cursor.first():
        for _ in range(old):
            cursor.delete()


class Block:
    """Commits one after the other, as their records; what they wrote in all is made out when a check needs it.

    Plain bytes in lists, rather than an object for each commit, spare the garbage collector hundreds of thousands.
    """

    __slots__ = ("_all", "_each", "full", "records", "size", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.records: list[bytes] = []
        self.size = 0
        self.full = False
        self._each: dict[int, Written] = {}
        self._all: Written | None = None

    def since(self, version: int) -> Iterator[Written]:
        """Give what was written after `version`, in all where the block is full and all of it is newer."""
        versions = self.versions
        if self.full and versions[0] > version:
            if self._all is None:
                self._all = self._whole()
            yield self._all
            return
        first = bisect_right(versions, version)
        if len(versions) - first > FEW:
            yield Written(*decode_all(self.records[first:]))
            return
        for at in range(first, len(versions)):
            written = self._each.get(at)
            if written is None:
                written = self._each[at] = Written(*decode(self.records[at]))
            yield written

    def _whole(self) -> Written:
        self._each.clear()
        return Written(*decode_all(self.records))


class RecentCommits:
    """The newest part of the log, as far as this process has read or written it; what is older stays in LMDB.

    Only the thread that holds the committer's lead uses it.
    """

    __slots__ = ("_block", "_blocks", "_log", "_size", "last_time_us", "last_version")

    def __init__(self, log: Any) -> None:
        self._log = log
        self._block = Block()
        self._blocks: deque[Block] = deque([self._block])
        self._size = 0
        self.last_version = -1
        self.last_time_us = 0

    def add(self, version: int, time_us: int, record: bytes) -> None:
        """Take in the newest commit."""
        self.last_version = version
        self.last_time_us = time_us
        block = self._block
        if block.size >= BLOCK_BYTES:
            block = self._next_block()
        block.versions.append(version)
        block.records.append(record)
        block.size += len(record) + RECORD_OVERHEAD

    def _next_block(self) -> Block:
        self._block.full = True
        self._size += self._block.size
        while self._size > CACHE_BYTES and len(self._blocks) > 1:
            self._drop()
        self._block = Block()
        self._blocks.append(self._block)
        return self._block

    def _drop(self) -> None:
        self._size -= self._blocks.popleft().size

    def catch_up(self, txn: Any) -> list[Commit]:
        """Take in what other processes have committed, and return it."""
        known = self.last_version
        new = list(read_log(txn, self._log, known if known >= 0 else last_version(txn, self._log) - 1))
        for version, record in new:
            self.add(version, time_of(record), record)
        return new if known >= 0 else []

    def forget(self, before_us: int) -> None:
        """Let go of what is from before `before_us`, but for the newest."""
        while len(self._blocks) > 1 and time_of(self._blocks[0].records[-1]) < before_us:
            self._drop()

    def reaches(self, txn: Any, version: int) -> bool:
        """Say whether every commit after `version` is known."""
        if self._blocks[0].versions[0] <= version:
            return True
        cursor = txn.cursor(self._log)
        return bool(cursor.first()) and int.from_bytes(cursor.key(), "big") <= version

    def since(self, txn: Any, version: int) -> Iterator[Written]:
        """Give what was written after `version`."""
        for block in reversed(self._blocks):
            if block.versions and block.versions[-1] <= version:
                return
            yield from block.since(version)
        oldest = self._blocks[0].versions[0]
        if oldest > version:
            yield from self._stored(txn, version, oldest)

    def _stored(self, txn: Any, version: int, before: int) -> Iterator[Written]:
        commits = takewhile(lambda commit: commit[0] < before, read_log(txn, self._log, version))
        while some := list(islice(commits, 256)):
            yield Written(*decode_all([record for _, record in some]))
