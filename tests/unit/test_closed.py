"""A database that was closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.engine import FDBError
from fdbqueue.errors import StorageError

KINDS = ["memory:", "file:{}", "file:{}?durability=relaxed"]


@pytest.mark.parametrize("url", KINDS)
def test_a_transaction_that_was_open_is_refused_its_commit(url: str, tmp_path: Path) -> None:
    db = fdbqueue.open(url.format(tmp_path))
    tr = db.create_transaction()
    tr.get(b"a").wait()
    tr.set(b"a", b"")
    db.close()
    with pytest.raises(StorageError, match=r"was closed\. Nothing of this commit was kept"):
        tr.commit().wait()


@pytest.mark.parametrize("url", KINDS[1:])
def test_one_in_a_folder_opens_again_when_it_is_used(url: str, tmp_path: Path) -> None:
    with fdbqueue.open(url.format(tmp_path)) as db:
        db[b"a"] = b"1"
    assert db[b"a"] == b"1"
    db.close()


def test_one_in_memory_is_gone_and_not_empty() -> None:
    with fdbqueue.open("memory:") as db:
        queue = fdbqueue.Queue("orders")
        queue.enqueue_many(db, [b""] * 200)
        seen = queue.browse(db)
        next(seen)
    for use in (lambda: queue.enqueue(db, b""), lambda: db.create_transaction(), lambda: list(seen)):
        with pytest.raises(StorageError, match="in memory was closed, and what it held is gone"):
            use()
    db.close()


@pytest.mark.parametrize("url", KINDS)
def test_what_waits_for_a_version_ends_when_the_database_is_closed(url: str, tmp_path: Path) -> None:
    db = fdbqueue.open(url.format(tmp_path))
    other, tr = db.create_transaction(), db.create_transaction()
    tr.set_read_version(other.get_read_version().wait() + 10**12)
    value = tr.get(b"a")
    tr[b"b"] = b""
    commit = tr.commit()
    told = threading.Semaphore(0)
    for future in (value, commit):
        future.on_ready(lambda _: told.release())
    db.close()
    for _ in range(2):
        assert told.acquire(timeout=20)
    with pytest.raises(StorageError, match="was closed"):
        value.wait()
    with pytest.raises((StorageError, FDBError)):
        commit.wait()
