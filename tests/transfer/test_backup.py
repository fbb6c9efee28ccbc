"""A backup of an embedded folder is the state after one commit, though a process writes meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue, StorageError
from fdbqueue.errors import TransferError
from fdbqueue.layers import Leases
from fdbqueue.transfer import backup
from tests.helpers.processes import Processes


def write_pairs(url: str) -> None:
    """Enqueue items in pairs, and count the pairs in the same transactions, until the process is ended."""
    queue = Queue("pairs", codec="json")
    with fdbqueue.open(url) as db:
        for number in range(1_000_000):
            _pair(db, queue, number)


@fdbqueue.transactional
def _pair(tr: fdbqueue.Transaction, queue: Queue, number: int) -> None:
    queue.enqueue(tr, number)
    queue.enqueue(tr, number)
    tr[b"pairs"] = b"%d" % (number + 1)
    if number % 3 == 0:
        queue.dequeue(tr)
        queue.dequeue(tr)


@pytest.mark.slow
def test_a_backup_while_a_process_writes_is_whole_and_opens(tmp_path: Path, processes: Processes) -> None:
    url = f"file:{tmp_path / 'shop'}?durability=relaxed"
    processes.start(write_pairs, url)
    queue = Queue("pairs", codec="json")
    with fdbqueue.open(url) as db:
        seen = 0
        for number in range(2):
            wanted = seen + 10
            while (seen := int(db[b"pairs"] or b"0")) < wanted:
                pass
            report = backup(url, tmp_path / f"backup{number}")
            assert report.size_bytes > 0
            with fdbqueue.open(f"file:{tmp_path / f'backup{number}'}") as copy:
                pairs = int(copy[b"pairs"] or b"0")
                stats = queue.stats(copy)
                assert pairs >= seen  # what was acknowledged before is in it
                assert (stats.enqueued, stats.available % 2) == (2 * pairs, 0)
                assert queue.check(copy).ok
                queue.enqueue(copy, "after")  # it is a database like any other
                assert stats.available + 1 == queue.stats(copy).available
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup0", "backup1", "shop"]


@pytest.mark.slow
def test_a_backup_of_a_folder_that_this_process_has_open_while_threads_write(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'shop'}"
    leases = Leases(Queue("orders"))
    done = threading.Event()
    with fdbqueue.open(url) as db:
        leases.enqueue_many(db, [b"%d" % number for number in range(100)])

        def work() -> None:
            while not done.is_set():
                for lease in leases.lease_many(db, limit=5):
                    leases.nack(db, lease)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            backup(url, tmp_path / "backup")
        finally:
            done.set()
            worker.join()
    with fdbqueue.open(f"file:{tmp_path / 'backup'}") as copy:
        assert leases.check(copy).ok
        assert leases.queue.to_arrow(copy).num_rows == 100


def test_what_can_not_be_backed_up_is_refused(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'shop'}"):
        pass
    (tmp_path / "there").mkdir()
    untyped: Any = backup
    for url, to, kind, told in (
        ("fdb:", "x", TransferError, "fdbbackup backs a cluster up"),
        ("memory:", "x", TransferError, "ends with its process"),
        (f"file:{tmp_path / 'none'}", "x", StorageError, "no database to back up"),
        (f"file:{tmp_path / 'shop'}", "there", StorageError, "exists already"),
        (None, "x", TypeError, "takes the URL of a database"),
    ):
        with pytest.raises(kind, match=told):
            untyped(url, tmp_path / to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop", "there"]
