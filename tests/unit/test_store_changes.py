"""Watches are told of the commits after their read, however early they begin."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import fdbqueue
from fdbqueue.engine.embedded.client.pending import Outstanding
from fdbqueue.engine.embedded.store.commit_log import Commit, entry_of
from fdbqueue.engine.embedded.store.notification import Changes, Notifier
from fdbqueue.engine.embedded.store.snapshot import Snapshot
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.stores import store_of


class Log:
    """Another process' commits, one a version; readers see them up to `shown`, as LMDB shows them a moment later."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.shown = 0

    def write(self, key: bytes) -> None:
        self.commits.append((len(self.commits) + 1, entry_of(bytes(8), 0, [key], [])[12:]))

    def show(self) -> None:
        self.shown = len(self.commits)

    def listen(self, on: bool) -> None:
        """Nothing is committed by this process."""

    def last_transaction(self) -> int:
        return len(self.commits)

    def entries_after(self, version: int) -> tuple[int, list[Commit]]:
        return self.shown, self.commits[version : self.shown]

    def last_version(self) -> int:
        return self.shown


def test_a_commit_that_can_not_be_read_yet_fires_its_watch_later(tmp_path: Path) -> None:
    log, told = Log(), []
    changes = Changes(log, Notifier(str(tmp_path)))
    changes.watch(b"key", lambda: told.append("once"))
    changes.close()
    log.write(b"key")
    changes.look()
    assert told == []
    log.show()
    changes.look()
    changes.look()
    assert told == ["once"]


def test_a_commit_not_yet_visible_when_a_watch_begins_fires_it(tmp_path: Path) -> None:
    log, told = Log(), []
    log.write(b"key")
    changes = Changes(log, Notifier(str(tmp_path)))
    changes.watch(b"key", lambda: told.append("once"))
    changes.close()
    log.show()
    changes.look()
    assert told == ["once"]


def test_a_new_watch_reads_the_store_without_the_lock_that_ends_watches(tmp_path: Path) -> None:
    class Collecting(Log):
        """Whose view is taken beside a garbage collection, in another thread, that ends a watch."""

        def last_version(self) -> int:
            ending = threading.Thread(target=changes.unwatch, args=(b"other", list), daemon=True)
            ending.start()
            ending.join(60)
            assert not ending.is_alive()
            return super().last_version()

    changes = Changes(Collecting(), Notifier(str(tmp_path)))
    changes.watch(b"key", list)
    changes.close()


@pytest.mark.parametrize("moment", ["when it begins", "later"])
def test_a_watch_fires_if_it_can_not_read_its_key(moment: str) -> None:
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b"1"
        store = store_of(db)
        tr = db.create_transaction()
        watch: Any = tr.watch(b"a")
        with patch.object(store, "snapshot", wraps=store.snapshot) as snapshot:
            if moment == "later":
                tr.commit().wait()
            snapshot.side_effect = StorageError("too many readers")
            if moment == "later":
                watch._look()
            else:
                tr.commit().wait()
        assert watch.is_ready()


def test_a_watch_with_an_ended_snapshot_reads_again() -> None:
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b"1"
        store = store_of(db)
        views: list[Snapshot] = []

        def gone_at_once() -> Snapshot:
            view = Store.snapshot(store)
            if not views:
                view.evict()
            views.append(view)
            return view

        with patch.object(store, "snapshot", gone_at_once):
            assert store.current(b"a") == b"1"


def test_a_watch_over_the_limit_lets_other_watches_end() -> None:
    outstanding = Outstanding(limit=0)
    with outstanding.lock:  # as while its error is made, when a garbage collection may end another watch
        outstanding.give()
