"""The recent commits in memory: which keys and ranges each wrote, for the conflict check.

A commit conflicts if another transaction wrote a range that it read, after its read version. The log of commits covers
all processes: it is stored with the data (`log_rows`), and each commit writes its record in its own LMDB transaction.
This module is the part of the log that one process keeps in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from fdbqueue.engine.embedded.store.disk.long_keys import Databases
from fdbqueue.engine.embedded.store.log import log_rows
from fdbqueue.engine.embedded.store.log.write_set import WriteSet

CACHE_BYTES: Final = 24 << 20
BLOCK_BYTES: Final = 32 << 10
FEW: Final = 8
"""Up to this many runs are decoded one by one and cached, because later checks use them again."""
RUN_OVERHEAD: Final = 90
"""Bytes that Python needs for a run in addition to the run's own bytes."""


class Block:
    """Consecutive commits in runs: each own commit is one run, other processes' runs are copied from the log.

    The write set of the whole block is computed when a check needs it. A block holds plain bytes in lists. One object
    per commit would give the garbage collector hundreds of thousands of objects.
    """

    __slots__ = ("_all", "_each", "full", "runs", "size", "time_us", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        """The last version of each run."""
        self.runs: list[bytes] = []
        self.size = 0
        self.time_us = 0
        """Upper bound for the time of the last commit."""
        self.full = False
        self._each: dict[int, WriteSet] = {}
        self._all: WriteSet | None = None

    @property
    def first(self) -> int:
        """The version of the first commit."""
        return log_rows.first_of(self.runs[0])

    def since(self, version: int) -> Iterator[WriteSet]:
        """Yield the write sets of commits after `version`: a single one if the block is full and entirely newer."""
        if self.full and self.first > version:
            if self._all is None:
                self._all = self._whole()
            yield self._all
            return
        first = bisect_right(self.versions, version)
        runs = self.runs[first:]
        if len(runs) > FEW:
            runs[0] = log_rows.newer(runs[0], version)
            yield WriteSet(*log_rows.written_in(runs))
            return
        for at, run in enumerate(runs, first):
            yield self._written(at, run, version)

    def _written(self, at: int, run: bytes, version: int) -> WriteSet:
        rest = log_rows.newer(run, version)
        if rest is not run:
            return WriteSet(*log_rows.written_in((rest,)))
        written = self._each.get(at)
        if written is None:
            written = self._each[at] = WriteSet(*log_rows.written_in((run,)))
        return written

    def _whole(self) -> WriteSet:
        self._each.clear()
        return WriteSet(*log_rows.written_in(self.runs))


class RecentCommits:
    """The newest part of the log that this process has read or written; older commits stay in LMDB.

    Only the thread that holds the committer's lead uses it.
    """

    __slots__ = ("_block", "_blocks", "_dbs", "_size", "fresh", "last_time_us", "last_version", "tail")

    def __init__(self, dbs: Databases) -> None:
        self._dbs = dbs
        self._block = Block()
        self._blocks: deque[Block] = deque([self._block])
        self._size = 0
        self.fresh: list[tuple[int, int, bytes]] = []
        """The versions, times and runs of the newest commits, in no block yet. Most are forgotten unasked."""
        self.last_version = -1
        self.last_time_us = 0
        self.tail = b""
        """The log's tail in LMDB (`log_rows`) after the last commit."""

    def _settle(self) -> None:
        """Put the fresh commits into blocks."""
        fresh, self.fresh = self.fresh, []
        for version, time_us, run in fresh:
            block = self._block
            if block.size >= BLOCK_BYTES:
                block = self._next_block()
            block.versions.append(version)
            block.runs.append(run)
            block.size += len(run) + RUN_OVERHEAD
            block.time_us = time_us

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

    def catch_up(self, txn: Any) -> list[bytes]:
        """Read and add the commits of other processes; return them in runs."""
        known, dbs = self.last_version, self._dbs
        new = list(log_rows.read_runs(txn, dbs, known if known >= 0 else log_rows.last_version(txn, dbs) - 1))
        self.tail = log_rows.tail_of(txn, dbs)
        if new:
            _, record = log_rows.newest(new[-1][1])
            time_us = log_rows.time_of(record)
            self.fresh += [(version, time_us, run) for version, run in new]
            self.last_version, self.last_time_us = new[-1][0], time_us
        return [run for _, run in new] if known >= 0 else []

    def forget(self, before_us: int) -> None:
        """Drop blocks from before `before_us`, except the newest block."""
        self._settle()
        while len(self._blocks) > 1 and self._blocks[0].time_us < before_us:
            self._drop()

    def reaches(self, txn: Any, version: int) -> bool:
        """Return whether every commit after `version` is known."""
        self._settle()
        return self._blocks[0].first <= version or 0 < log_rows.first_version(txn, self._dbs) <= version

    def since(self, txn: Any, version: int) -> Iterator[WriteSet]:
        """Yield the write sets of commits after `version`."""
        self._settle()
        for block in reversed(self._blocks):
            if block.versions and block.versions[-1] <= version:
                return
            yield from block.since(version)
        oldest = self._blocks[0].first
        if oldest > version:
            yield from self._stored(txn, version, oldest)

    def _stored(self, txn: Any, version: int, before: int) -> Iterator[WriteSet]:
        for last, run in log_rows.read_runs(txn, self._dbs, version):
            yield WriteSet(*log_rows.written_in((run,)))
            if last >= before:
                return  # the rest is in memory too
