"""Bounds and peers: the least that could be done, and how others do it, each in a few lines of its own."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fdbqueue.engine import Subspace, transactional
from fdbqueue.engine import tuple as fdb_tuple
from tests.benchmarks.samples import Sample, Stopwatch


def bare_sets(db: Any, rows: Sequence[tuple[bytes, bytes]], *, per_transaction: int, in_flight: int) -> Sample:
    """Write `rows` through the binding: nothing but sets, and as many commits under way."""
    commits: deque[tuple[Any, Any]] = deque()
    watch = Stopwatch()
    for first in range(0, len(rows), per_transaction):
        tr = db.create_transaction()
        for key, value in rows[first : first + per_transaction]:
            tr.set(key, value)
        commits.append((tr, tr.commit()))
        if len(commits) >= in_flight:
            _wait_for_first(commits)
    while commits:
        _wait_for_first(commits)
    return watch.sample(len(rows))


def _wait_for_first(commits: deque[tuple[Any, Any]]) -> None:
    tr, commit = commits.popleft()
    commit.wait()
    del tr  # a transaction that is dropped cancels its commit


def bare_lmdb(
    folder: pathlib.Path, rows: Sequence[tuple[bytes, bytes]], *, per_transaction: int, durable: bool
) -> Sample:
    """Write `rows` into an LMDB of its own: nothing but puts."""
    import lmdb

    with lmdb.open(tempfile.mkdtemp(dir=folder), map_size=1 << 32, sync=durable, max_dbs=2) as env:
        data = env.open_db(b"data")
        watch = Stopwatch()
        for first in range(0, len(rows), per_transaction):
            with env.begin(write=True, db=data) as txn:
                for key, value in rows[first : first + per_transaction]:
                    txn.put(key, value)
        return watch.sample(len(rows))


class RecipeQueue:
    """FoundationDB's queue recipe, from its description: random keys behind an index, read by snapshot."""

    def __init__(self, space: Subspace) -> None:
        self._space = space

    @property
    def enqueue(self) -> Callable[[Any, bytes], None]:
        space = self._space

        @transactional
        def enqueue(tr: Any, value: bytes) -> None:
            index = 0
            for row in tr.snapshot.get_range(space.range().start, space.range().stop, limit=1, reverse=True):
                index = space.unpack(row.key)[0] + 1
            tr[space.pack((index, os.urandom(20)))] = fdb_tuple.pack((value,))

        return enqueue

    @property
    def dequeue(self) -> Callable[[Any], bytes | None]:
        space = self._space

        @transactional
        def dequeue(tr: Any) -> bytes | None:
            for row in tr.get_range(space.range().start, space.range().stop, limit=1):
                del tr[row.key]
                value: bytes = fdb_tuple.unpack(row.value)[0]
                return value
            return None

        return dequeue
