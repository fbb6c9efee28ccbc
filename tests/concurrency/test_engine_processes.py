"""The store between processes: forks, conflicts, the map's size, watches."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fdbqueue
from fdbqueue import aio
from fdbqueue.engine import FDBError
from fdbqueue.engine.embedded.client import commits
from fdbqueue.engine.embedded.store import notification
from fdbqueue.engine.embedded.store.commit import request as requests
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.processes import Processes
from tests.helpers.stores import commit, contents, opened, put, sets, store_of, view

pytestmark = pytest.mark.slow

_forking = multiprocessing.get_context("fork")

ADDERS, ADDITIONS = 4, 100


def forked(function: Callable[[], object]) -> None:
    """Run `function` in a forked child; fail if it fails."""
    process = _forking.Process(target=function)
    process.start()
    process.join(600)
    assert process.exitcode == 0


# -- forks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_forked_child_reopens_the_files_and_shares_them(tmp_path: Path, kind: str) -> None:
    with opened(None if kind == "memory" else tmp_path) as store, view(store) as inherited:
        put(store, (b"a", b"1"))

        def child() -> None:
            assert contents(store) == [(b"a", b"1")]
            with pytest.raises(FDBError) as caught:
                inherited.get(b"a")
            assert caught.value.code == 1007
            put(store, (b"b", b"2"))

        forked(child)
        forked(lambda: forked(lambda: put(store, (b"c", b"3"))))
        assert inherited.get(b"a") is None, "the parent's snapshot is untouched"
        assert contents(store) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_fork_in_the_middle_of_other_threads_commits_harms_neither(tmp_path: Path) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        stop = threading.Event()
        counts = [0, 0, 0]

        def work(number: int) -> None:
            while not stop.is_set():
                with view(store) as snapshot:
                    snapshot.get(b"x")
                counts[number] += 1
                put(store, (b"t%d/%06d" % (number, counts[number]), b""))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                forked(partial(put, store, (b"child/%d" % number, b"")))
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        keys = [key for key, _ in contents(store)]
        assert len(keys) == 10 + sum(counts)


def test_a_child_leaves_its_parents_memory_in_place() -> None:
    with opened() as store:
        put(store, (b"a", b"1"))
        forked(lambda: store.close())
        assert contents(store) == [(b"a", b"1")]


def test_a_child_does_not_keep_others_out_when_its_parent_has_closed_the_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"))
        done = _forking.Event()
        child = _forking.Process(target=done.wait, args=(60,))
        child.start()
    try:
        with (tmp_path / "synced").open() as guard:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        done.set()
        child.join(600)


def test_a_commit_pending_at_a_fork_is_the_parents_and_unknown_in_the_child(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        request = sets((b"a", b"1"))
        store.submit(request)

        def child() -> None:
            store.wait(request)
            assert request.error == 1021

        forked(child)
        store.wait(request)
        assert request.error is None


def test_a_parents_commit_that_a_child_awaits_is_of_unknown_outcome_there(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        store_of(db).background_committer.armed = True  # so that nobody makes the commit before the fork
        tr = db.create_transaction()
        tr[b"a"] = b"1"
        theirs = tr.commit()

        def child() -> None:
            with pytest.raises(FDBError, match="1021"):
                asyncio.run(asyncio.wait_for(aio(theirs), 20))
            own = db.create_transaction()
            own[b"b"] = b"1"
            asyncio.run(asyncio.wait_for(aio(own.commit()), 20))

        forked(child)
        theirs.wait()
        assert [row.key for row in db[b"":b"\xff"]] == [b"a", b"b"]


@pytest.mark.parametrize(("module", "lock"), [(commits, "_lock"), (requests, "_callbacks_lock")])
def test_a_lock_that_another_thread_had_at_the_fork_is_free_in_the_child(
    tmp_path: Path, module: ModuleType, lock: str
) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"a"] = b"1"
        taken, give = threading.Event(), threading.Event()

        def hold() -> None:
            with getattr(module, lock):
                taken.set()
                give.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait(60)

        def child() -> None:
            tr = db.create_transaction()
            tr[b"b"] = b"2"
            done = threading.Event()
            future = tr.commit()
            future.on_ready(lambda _: done.set())
            assert done.wait(60)

        try:
            forked(child)
        finally:
            give.set()
            holder.join()


def test_a_recreated_folder_is_another_database_in_a_child_too(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with opened(path) as old, view(old):
        put(old, (b"a", b""))
        environment = old.files.env
        for name in os.listdir(path):
            (path / name).unlink()
        with opened(path):

            def child() -> None:
                with contextlib.suppress(StorageError):
                    assert old.files.env is not environment, "nothing of LMDB may cross a fork"

            forked(child)


def test_a_child_does_not_take_an_empty_folder_for_the_one_that_was_renamed(tmp_path: Path) -> None:
    with opened(tmp_path / "folder") as store:
        put(store, (b"a", b"1"))
        (tmp_path / "folder").rename(tmp_path / "elsewhere")

        def child() -> None:
            with pytest.raises(StorageError, match="was removed, or replaced"):
                contents(store)
            assert not (tmp_path / "folder").exists()

        forked(child)
        assert contents(store) == [(b"a", b"1")]


def test_a_database_closed_before_a_fork_is_closed_in_the_child_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        pass

    def child() -> None:
        with pytest.raises(StorageError, match="was closed"):
            store.snapshot()

    forked(child)


def test_a_child_does_not_take_an_empty_folder_for_its_parents_memory() -> None:
    store = Store.open(None, {})
    put(store, (b"a", b"1"))
    closed = _forking.Event()

    def child() -> None:
        closed.wait(60)
        with pytest.raises(StorageError, match="memory is gone"):
            contents(store)
        assert not os.path.exists(store.path)

    process = _forking.Process(target=child)
    process.start()
    store.close()
    closed.set()
    process.join(600)
    assert process.exitcode == 0


def test_a_memory_folder_that_another_process_removed_is_recreated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flock = fcntl.flock
    removed: list[str] = []

    def late(fd: int, operation: int) -> None:
        if not removed and operation == fcntl.LOCK_EX:
            removed.append(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))
            shutil.rmtree(removed[0])
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with opened() as store:
        assert removed != [store.path]
        assert os.path.exists(os.path.join(store.path, "owner"))


def test_the_next_process_removes_the_memory_folder_of_a_killed_one(processes: Processes) -> None:
    told = processes.queue()
    process = processes.start(leave, told)
    path = told.get(timeout=600)
    assert os.path.isdir(path)
    process.kill()
    process.join()
    with opened() as store:
        assert not os.path.isdir(path)
        assert os.path.isdir(store.path)


def leave(told: Any) -> None:
    told.put(Store.open(None, {}).path)
    threading.Event().wait()


# -- conflicts and sizes ---------------------------------------------------------------------------------------------


def test_processes_that_read_and_write_one_key_count_without_a_loss(tmp_path: Path, processes: Processes) -> None:
    adders = [processes.start(add, str(tmp_path)) for _ in range(ADDERS)]
    for adder in adders:
        adder.join(60)
        assert adder.exitcode == 0
    with opened(tmp_path) as store:
        assert contents(store) == [(b"n", b"%d" % (ADDERS * ADDITIONS))]


def add(path: str) -> None:
    """Count up by reading and writing, and again whenever another process came in between."""
    with opened(Path(path), durability="relaxed") as store:
        done = 0
        while done < ADDITIONS:
            with view(store) as snapshot:
                number = int(snapshot.get(b"n") or b"0")
                request = sets((b"n", b"%d" % (number + 1)), snapshot_version=snapshot.version, read_keys=[b"n"])
                commit(store, request)
            assert request.error in (None, 1020)
            done += request.error is None


def test_a_process_adopts_a_map_that_another_has_grown(tmp_path: Path, processes: Processes) -> None:
    with opened(tmp_path, map_size=str(1 << 20), durability="relaxed") as store:
        put(store, (b"a", b""))
        for number in range(2):
            processes.run(grow, str(tmp_path), number)
            assert len(contents(store)) == 1 + 200 * (number + 1), "a reader takes it over"
        processes.run(grow, str(tmp_path), 2)
        assert put(store, (b"b", b"")).error is None, "and a writer"
        assert len(contents(store)) == 602


def grow(path: str, number: int) -> None:
    with opened(Path(path), map_size=str(1 << 20), durability="relaxed") as store:
        put(store, *[(b"%d/%04d" % (number, n), b"x" * 50_000) for n in range(200)])


# -- watches ---------------------------------------------------------------------------------------------------------


def test_a_watch_notices_commits_of_other_processes(tmp_path: Path, processes: Processes) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        heard = {key: threading.Event() for key in (b"a", b"b", b"c", b"other")}
        for key, event in heard.items():
            store.watch(key, event.set)
        processes.run(touch, str(tmp_path))
        for key in (b"a", b"b", b"c"):
            assert heard[key].wait(30), key
        assert not heard[b"other"].is_set()


def touch(path: str) -> None:
    with opened(Path(path), durability="relaxed") as store:
        put(store, (b"a", b""))
        put(store, (b"b", b""))
        commit(store, sets((b"c", b""), write_ranges=[(b"b\0", b"d")]))


def test_a_watch_notices_commits_of_its_own_process_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        heard: list[bytes] = []
        committer = threading.current_thread()

        def hear() -> None:
            if threading.current_thread() is committer:  # the one that listens may come across it too
                heard.append(store.current(b"a") or b"")

        store.watch(b"a", hear)
        put(store, (b"a", b"1"))
        assert heard == [b"1"], "before the commit returned"
        put(store, (b"b", b"1"))
        store.unwatch(b"a", hear)
        put(store, (b"a", b"2"))
        assert heard == [b"1"]


def test_a_watch_in_another_process_fires_though_that_one_never_looks_by_itself(
    tmp_path: Path, processes: Processes
) -> None:
    with opened(tmp_path, durability="relaxed") as store:
        ready, told = processes.event(), processes.queue()
        processes.start(listen, str(tmp_path), ready, told)
        assert ready.wait(600)
        for number in range(100):
            time.sleep(0.002 * (number % 5))
            put(store, (b"bell", b"%d" % number))
            assert told.get(timeout=600) == b"%d" % number


def listen(path: str, ready: Any, told: Any) -> None:
    notification.LONGEST_SLEEP = notification.DEAF_SLEEP = 3_600.0  # type: ignore[misc]  # of this process
    with opened(Path(path), durability="relaxed") as store:
        store.watch(b"bell", lambda: told.put(store.current(b"bell")))
        ready.set()
        threading.Event().wait()
