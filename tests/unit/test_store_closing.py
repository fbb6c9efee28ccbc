"""Closing a folder beside others who commit to it, open it, or come too late."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import pytest

import fdbqueue
from fdbqueue.engine.embedded.store.commit.committer import Committer
from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.stores import contents, opened, put, sets, view


def test_a_commit_that_another_thread_is_making_is_finished_before_the_files_are_closed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), {})
    reached, go_on = threading.Event(), threading.Event()
    ensure = store.files.disk.ensure

    def slow(txn: int, **how: bool) -> None:
        reached.set()
        go_on.wait(30)
        ensure(txn, **how)

    with patch.object(type(store.files.disk), "ensure", side_effect=slow):
        request = sets((b"a", b"1"))
        committing = threading.Thread(target=put_one, args=(store, request))
        committing.start()
        reached.wait(30)
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        go_on.set()
        for thread in (committing, closing):
            thread.join(30)
    assert request.error is None
    assert request.version > 0
    with opened(tmp_path) as store:
        assert contents(store) == [(b"a", b"1")]


def put_one(store: Store, request: CommitRequest) -> None:
    store.submit(request)
    store.wait(request)


def test_closing_ends_while_others_still_commit(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), {"durability": "relaxed"})

    def work() -> None:
        with contextlib.suppress(StorageError):
            while True:
                put(store, (b"a", b""))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    for thread in (closing, *threads):
        thread.join(30)
        assert not thread.is_alive()


def test_a_late_commit_with_a_callback_is_told(tmp_path: Path) -> None:
    db = fdbqueue.open(f"file:{tmp_path}")
    early = db.create_transaction()
    early[b"a"] = b""
    early.commit().wait()
    late = db.create_transaction()
    late[b"a"] = late.get(b"a") + b"1"
    db.close()
    told = threading.Event()
    late.commit().on_ready(lambda _: told.set())
    assert told.wait(30)


def test_opening_a_folder_waits_for_another_threads_close(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), {})
    put(store, (b"a", b""))
    reached, go_on = threading.Event(), threading.Event()
    sweep = Committer.sweep

    def slow(committer: Committer) -> None:
        reached.set()
        go_on.wait(30)
        sweep(committer)

    found: list[Any] = []

    def reopen() -> None:
        with opened(tmp_path) as again:
            found.extend(contents(again))

    with patch.object(Committer, "sweep", slow):
        closing = threading.Thread(target=store.close)
        closing.start()
        reached.wait(30)
        opening = threading.Thread(target=reopen)
        opening.start()
        opening.join(0.2)
        assert opening.is_alive()
        go_on.set()
        for thread in (closing, opening):
            thread.join(30)
    assert found == [(b"a", b"")]


def test_a_callback_of_the_last_commit_is_refused_the_folder_that_is_being_closed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), {})
    told: list[str] = []

    def again(_: CommitRequest) -> None:
        with pytest.raises(StorageError, match="is being closed") as caught:
            Store.open(str(tmp_path), {})
        told.append(str(caught.value))

    request = sets((b"a", b""))
    request.on_done(again)
    store.submit(request)
    store.close()
    assert told


@pytest.mark.parametrize("durability", ["fsync", "relaxed"])
def test_a_folder_that_was_closed_is_in_use_no_more(tmp_path: Path, durability: str) -> None:
    with opened(tmp_path / "folder", durability=durability) as store:
        put(store, (b"a", b""))
        store.watch(b"a", list)
    assert str(tmp_path / "folder") not in Path("/proc/self/maps").read_text()
    assert open_below(tmp_path) == []


def test_ctrl_c_at_any_line_of_closing_leaves_nothing_open(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), {})
    closed = 0

    def call() -> None:
        store.close()

    def then(place: str) -> None:
        nonlocal store, closed
        if store.users:  # it was interrupted before that began
            store.close()
        else:
            closed += 1
        assert open_below(tmp_path) == [], place
        store = Store.open(str(tmp_path), {})

    interrupted_at_each_line(call, of=("store/store.py", "commit/background_committer.py"), then=then)
    assert closed


def test_ctrl_c_during_a_close_is_raised_after_it(tmp_path: Path) -> None:
    sweep = Committer.sweep

    def interrupted(committer: Committer) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        sweep(committer)

    def closes_with_an_error() -> bool:
        store = Store.open(str(tmp_path), {})
        store.submit(sets((b"a", b"1")))
        try:
            with patch.object(Committer, "sweep", interrupted):
                store.close()
        except KeyboardInterrupt:
            return True
        finally:
            assert open_below(tmp_path) == []
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark, if it runs, sets one that asks its JVM
    try:
        # Python ignores the interrupt if it runs the callback of a weak reference just then, which is rare.
        assert any(closes_with_an_error() for _ in range(5))
    finally:
        signal.signal(signal.SIGINT, before)
    with opened(tmp_path) as store:
        assert contents(store) == [(b"a", b"1")]


def test_a_folder_closes_where_no_thread_can_start_and_reports_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    def failing(path: str) -> None:
        raise StorageError(path)

    for thread in (threading.Thread, Refused):
        store = Store.open(str(tmp_path), {})
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", thread)
            patched.setattr(folder, "remove", failing)
            with pytest.raises(StorageError, match=str(tmp_path)):
                store.close()
        assert open_below(tmp_path) == []


def open_below(folder: Path) -> list[str]:
    found = [target(link) for link in Path("/proc/self/fd").iterdir()]
    return [path for path in found if path.startswith(str(folder))]


def target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


class Panicking:
    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *_: Any, **__: Any) -> Any:
        raise lmdb.PanicError("x")


def test_commits_work_after_a_reader_reopened_the_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b""))
        store.begin = Panicking(store.files.env).begin
        assert contents(store) == [(b"a", b"")]
        put(store, (b"b", b""))


def test_files_that_could_not_be_reopened_are_closed_once_and_opened_later(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b""))
        with patch.object(lmdb, "open", side_effect=lmdb.Error("x")):
            store.begin = Panicking(store.files.env).begin
            for use in (lambda: contents(store), lambda: put(store, (b"b", b""))):
                with pytest.raises(StorageError):
                    use()
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]  # the numbers are used again
        assert contents(store) == [(b"a", b"")]
        put(store, (b"b", b""))
        store.begin = Panicking(store.files.env).begin
        with patch.object(lmdb, "open", side_effect=lmdb.Error("x")), pytest.raises(StorageError):
            store.snapshot()
        fds += [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    for fd in fds:
        os.close(fd)  # or somebody else has


class Unmovable(Panicking):
    def begin(self, *args: Any, **settings: Any) -> Any:
        return self._env.begin(*args, **settings)

    def set_mapsize(self, size: int) -> None:
        raise lmdb.MemoryError("x")


def test_a_map_that_could_not_grow_is_reopened(tmp_path: Path) -> None:
    with opened(tmp_path, map_size="1048576") as store:
        put(store, (b"a", b""))
        lost: Any = store.files
        real, lost.env = lost.env, Unmovable(lost.env)
        with pytest.raises(StorageError):
            put(store, (b"large", b"x" * 2_000_000))
        assert real is not store.files.env
        put(store, (b"b", b""))
        with view(store) as snapshot:
            assert snapshot.get(b"b") == b""
