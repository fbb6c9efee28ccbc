"""Churn beside a forgotten open transaction: the file stays bounded, the head of the queue as fast as at the start.

A minute or an hour of it is ``FDBQUEUE_CHURN_SECONDS=3600``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from fdbqueue.engine import FDBError
from fdbqueue.engine.embedded.store.disk.layout import WINDOW_SECONDS
from fdbqueue.engine.embedded.store.store import CommitRequest, Snapshot, Store
from tests.helpers.stores import commit, opened, put, view

LONG = "FDBQUEUE_CHURN_SECONDS" in os.environ
SECONDS = float(os.environ.get("FDBQUEUE_CHURN_SECONDS", "15"))
A_SECOND = 1_000_000 if LONG else 1_000
"""Items a second, at most: at full speed five seconds' worth of pages are gigabytes."""
ITEMS = 200
"""Items that stand in the queue all the time."""
PAGES_PER_COMMIT = 14
"""What a commit may write: the way to two rows of the queue, to the log's end and beginning, and the free list."""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 300)
def test_churn_with_abandoned_transactions_leaves_the_file_bounded_and_the_head_fast(tmp_path: Path) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        put(store, *[(item(number), b"x" * 100) for number in range(ITEMS)])
        at_start = head_seconds(store)
        forgotten: deque[Snapshot] = deque(maxlen=20)
        commits, pages = churn(store, forgotten)
        # What was replaced in the last seconds is kept for the forgotten transactions; nothing from before is.
        window = int(WINDOW_SECONDS) + 2
        busiest = max(sum(commits[second : second + window]) for second in range(len(commits)))
        assert pages <= 1_000 + busiest * PAGES_PER_COMMIT, f"{commits} commits a second"
        assert pages <= 0.7 * sum(commits) * PAGES_PER_COMMIT, "pages were used again"
        with pytest.raises(FDBError):
            forgotten[-window].get(item(0))
        assert head_seconds(store) <= 3 * at_start


def churn(store: Store, forgotten: deque[Snapshot]) -> tuple[list[int], int]:
    """Enqueue and dequeue, forgetting a transaction each second; return the commits of each and the file's pages."""
    number = ITEMS
    commits: list[int] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        second = time.monotonic()
        before = number
        forgotten.append(store.snapshot())
        while (spent := time.monotonic() - second) < 1:
            if number - before < spent * A_SECOND:
                move(store, number)
                number += 1
            else:
                time.sleep(0.001)
        commits.append(number - before)
    return commits, store.files.env.info()["last_pgno"]


def move(store: Store, number: int) -> None:
    """Enqueue one item and dequeue the first, in one transaction."""
    new = item(number)
    with view(store) as snapshot:
        first = snapshot.rows(b"", b"\xff", 1)[0][0]
        request = CommitRequest(
            snapshot.version,
            mutations=[(0, new, b"x" * 100), (1, first, first + b"\0")],
            read_keys=[first],
            write_keys=[new, first],
        )
        assert commit(store, request).error is None


def item(number: int) -> bytes:
    return b"item/%012d" % number


def head_seconds(store: Store) -> float:
    """Return how long the first item's read takes, at best: the machine may be busy."""

    def read() -> None:
        with view(store) as snapshot:
            assert len(snapshot.rows(b"", b"\xff", 1)) == 1

    return min(statistics.median(timed(read) for _ in range(50)) for _ in range(10))


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
