"""Finalizers wait for no lock: a garbage collection may run them in any thread at any time, also at the exit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine.embedded.client.pending import Outstanding
from fdbqueue.engine.embedded.store.notification import Changes
from tests.helpers.stores import store_of


@contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Let a thread hold the locks, as one that the interpreter's end has frozen, or one that collects garbage."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def ends(work: Any) -> bool:
    """Return whether `work` ends, in another thread, while this one waits."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


@pytest.mark.parametrize("url", ["memory:", "file:"])
def test_a_process_with_a_pending_watch_ends(tmp_path: Path, url: str) -> None:
    program = f"""
import fdbqueue
db = fdbqueue.open({url + (str(tmp_path) if url == "file:" else "")!r})
tr = db.create_transaction()
pending = tr.watch(b"key")
tr.commit().wait()
"""
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=600)
        assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_dropped_watch_waits_for_no_lock() -> None:
    with fdbqueue.open("memory:") as db:
        watches = [pending(db)]
        changes, outstanding = counted_in(db)
        with held_elsewhere(changes.lock, outstanding.lock):
            assert ends(watches.clear)
        db.options.set_max_watches(1)
        watches.append(pending(db))  # the dropped watch no longer counts
        assert list(changes.watched) == [b"key"]
        assert len(changes.watched[b"key"]) == 1


def test_a_collection_in_the_thread_that_holds_the_lock_ends_a_watch() -> None:
    with fdbqueue.open("memory:") as db:
        watch = pending(db)
        changes, outstanding = counted_in(db)

        def collect() -> None:
            with changes.lock, outstanding.lock:
                watch.__del__()
                assert list(changes.watched) == [b"key"]  # what the thread reads under the lock stays as it is

        assert ends(collect)


def test_a_dropped_transaction_waits_for_no_lock() -> None:
    with fdbqueue.open("memory:") as db:
        trs: list[Any] = [db.create_transaction()]
        trs[0].get(b"key").wait()
        snapshot: Any = trs[0]._snap
        with held_elsewhere(snapshot._lock):  # as by a thread that evicts it
            assert ends(trs.clear)
        assert snapshot not in store_of(db)._open


def test_a_dropped_read_of_a_future_version_waits_for_no_lock() -> None:
    with fdbqueue.open("memory:") as db:
        trs: list[Any] = [db.create_transaction()]
        newest = db.create_transaction()
        trs[0].set_read_version(newest.get_read_version().wait() + 1_000_000)
        trs[0].get(b"key")
        wait: Any = trs[0]._version_wait
        with held_elsewhere(wait._looking, store_of(db).changes.lock):
            assert ends(trs.clear)


def pending(db: Any) -> Any:
    tr = db.create_transaction()
    watch = tr.watch(b"key")
    tr.commit().wait()
    return watch


def counted_in(db: Any) -> tuple[Changes, Outstanding]:
    return store_of(db).changes, db._outstanding
