"""A database that was closed."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import FDBError
from fdbqueue.errors import ClusterError, StorageError
from fdbqueue.layers import Groups, Leases, Results, Sessions, StagedQueue
from tests.helpers.stores import store_of

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


@pytest.mark.parametrize("url", KINDS)
def test_a_transaction_that_was_open_is_refused_reads_and_the_commit_of_an_enqueue(url: str, tmp_path: Path) -> None:
    db = fdbqueue.open(url.format(tmp_path))
    queue = fdbqueue.Queue("orders")
    tr, watching = db.create_transaction(), db.create_transaction()
    queue.enqueue(tr, b"1")
    tr.get(b"a").wait()
    watching.watch(b"a")
    watching[b"b"] = b""
    db.close()
    queue.enqueue(tr, b"2")  # a write, which waits for its commit
    for read in (lambda: tr.get(b"b").wait(), lambda: list(tr.get_range(b"c", b"d")), lambda: queue.dequeue(tr)):
        with pytest.raises(StorageError, match=r"was closed\."):
            read()
    for late in (tr, watching):
        commit: Any = late.commit()
        with pytest.raises(StorageError, match=r"was closed\. Nothing of this commit was kept"):
            commit.wait()
        assert isinstance(commit.exception(), StorageError)


@pytest.mark.parametrize("url", KINDS[1:])
def test_one_in_a_folder_is_refused_and_its_other_objects_work_on(url: str, tmp_path: Path) -> None:
    other = fdbqueue.open(url.format(tmp_path))
    with fdbqueue.open(url.format(tmp_path)) as db:
        db[b"a"] = b"1"
    with pytest.raises(StorageError, match=r"<Database file:.*> was closed\. Call fdbqueue\.open again"):
        db[b"a"]
    with pytest.raises(StorageError, match=r"was closed"):
        fdbqueue.Queue("orders").enqueue(db, b"x")
    with db, pytest.raises(StorageError, match=r"was closed"):
        db.create_transaction().get(b"a").wait()
    assert other[b"a"] == b"1"
    other.close()
    with fdbqueue.open(url.format(tmp_path)) as again:
        assert again[b"a"] == b"1"


def test_one_that_a_child_closes_stays_open_in_its_parent(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"a"] = b"1"
        child = os.fork()
        if child == 0:
            try:
                db.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert db[b"a"] == b"1"


def test_one_that_was_sent_before_is_open_where_it_arrives(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"a"] = b"1"
        sent = pickle.dumps(db)
    with pickle.loads(sent) as arrived:
        assert arrived[b"a"] == b"1"


@pytest.mark.cluster
def test_a_cluster_that_was_closed_is_refused(cluster_file: str) -> None:
    with fdbqueue.open(f"fdb:{cluster_file}") as db:
        db.get(b"a")
    with pytest.raises(ClusterError, match=r"was closed\. Call fdbqueue\.open again"):
        db.get(b"a")


def test_one_in_memory_is_gone_and_not_empty() -> None:
    with fdbqueue.open("memory:") as db:
        queue = fdbqueue.Queue("orders")
        queue.enqueue_many(db, [b""] * 200)
        seen = queue.browse(db)
        next(seen)
    for use in (lambda: queue.enqueue(db, b""), lambda: db.create_transaction(), lambda: list(seen)):
        with pytest.raises(StorageError, match=r"<Database memory:> was closed\. What it held is gone"):
            use()
    db.close()


@pytest.mark.parametrize("url", KINDS)
def test_a_wait_for_a_version_ends_when_the_database_is_closed(url: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("url", KINDS)
def test_a_watch_ends_when_the_database_is_closed(url: str, tmp_path: Path) -> None:
    db = fdbqueue.open(url.format(tmp_path))
    tr = db.create_transaction()
    watch = tr.watch(b"a")
    tr.commit().wait()
    told = threading.Event()
    watch.on_ready(lambda _: told.set())
    db.close()
    assert told.wait(60)
    watch.wait()  # the waiter then reads the key, and gets the error


WAITS: dict[str, Callable[[Any, Leases], Any]] = {
    "a completion": lambda db, leases: Results(leases).enqueue(db, b"").wait,
    "a group": lambda db, leases: Groups(leases).open(db, "book").wait,
    "a session": lambda db, leases: partial(Sessions(leases.queue).lease, db, timeout=None),
    "a staged dequeue": lambda db, leases: partial(StagedQueue(fdbqueue.Queue("other")).dequeue, db, timeout=None),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_thread_that_waits_gets_an_error_when_the_database_is_closed(kind: str) -> None:
    db: Any = fdbqueue.open("memory:")
    wait = WAITS[kind](db, Leases(fdbqueue.Queue("orders")))
    raised: SimpleQueue[BaseException] = SimpleQueue()

    def work() -> None:
        try:
            wait()
        except StorageError as error:
            raised.put(error)

    threading.Thread(target=work, daemon=True).start()
    while not store_of(db).changes.watched:
        time.sleep(0)  # until the thread waits
    db.close()
    assert "was closed" in str(raised.get(timeout=600))
