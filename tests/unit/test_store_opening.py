"""Opening a folder beside others who open it, after a backup was put into it, and with a smallest `max_size`."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine.embedded.store.disk import disk
from fdbqueue.engine.embedded.store.disk import locks as guarding
from fdbqueue.engine.embedded.store.disk.disk import Labels
from fdbqueue.engine.embedded.store.disk.locks import FolderLock, is_stopped
from fdbqueue.engine.embedded.store.snapshot import SnapshotReaper
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.processes import Processes, stop_here
from tests.helpers.stores import MovableClock, contents, opened, put, sets

BOOT = b"a boot"


def test_two_threads_that_create_a_folder_at_once_both_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstat, first = os.fstat, threading.Event()

    def the_other_is_faster(fd: int) -> Any:
        found = fstat(fd)
        if not first.is_set():
            first.set()
            other.start()
            opened_by_then.wait(0.2)
        return found

    guards: list[FolderLock] = []
    opened_by_then = threading.Event()

    def open_it() -> None:
        guards.append(FolderLock(str(tmp_path), BOOT))
        guards[-1].opened()
        opened_by_then.set()

    other, one = threading.Thread(target=open_it, daemon=True), threading.Thread(target=open_it, daemon=True)
    monkeypatch.setattr(os, "fstat", the_other_is_faster)
    one.start()
    one.join(30)
    other.join(30)
    assert len(guards) == 2
    for each in guards:
        each.close()


def test_a_process_that_dies_during_recovery_leaves_it_to_the_next(tmp_path: Path) -> None:
    brought_in_order = FolderLock(str(tmp_path), BOOT)
    brought_in_order.opened()
    brought_in_order.fail()
    brought_in_order.close()
    for _ in range(2):
        on_the_way = FolderLock(str(tmp_path), BOOT)
        assert on_the_way.alone
        assert not on_the_way.in_order
        on_the_way.begin_anew()
        on_the_way.close()


def open_and_stay(path: str, opening: Any, go_on: Any, stop: bool) -> None:
    """Open `path`, alone, and stop on the way or wait there; then go on."""
    folder_lock = FolderLock(path, BOOT)
    assert folder_lock.alone
    opening.set()
    if stop:
        stop_here()
    go_on.wait()
    folder_lock.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "limit", "message"),
    [
        (True, "PATIENCE_SECONDS", r"process {pid} has, which is stopped. `kill -CONT {pid}` lets it go on; or end it"),
        (False, "LONGEST_SECONDS", r"process {pid} has. Wait for it, or end it"),
    ],
)
def test_a_folder_that_stays_locked_is_an_error_that_names_the_process(
    tmp_path: Path, own_children: Processes, monkeypatch: pytest.MonkeyPatch, stop: bool, limit: str, message: str
) -> None:
    opening, go_on = own_children.event(), own_children.event()
    holder = own_children.start(open_and_stay, str(tmp_path), opening, go_on, stop)
    assert opening.wait(60)
    assert holder.pid is not None
    if stop:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    fds = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(guarding, "PATIENCE_SECONDS", 0.0)
        patched.setattr(guarding, limit, 0.0)
        with pytest.raises(StorageError, match=message.format(pid=holder.pid)) as caught:
            Store.open(str(tmp_path), {})
        assert f"{tmp_path}: waited 0 s for the lock on its file 'synced'" in str(caught.value)
        patched.setattr(guarding, "LONGEST_SECONDS", 0.0)
        patched.setattr(guarding, "pids_of_owners", lambda _: [])
        with pytest.raises(StorageError, match=f"another process has. `fuser -v {tmp_path}/synced` says which"):
            Store.open(str(tmp_path), {})
    assert os.listdir("/proc/self/fd") == fds
    os.kill(holder.pid, signal.SIGCONT)
    go_on.set()
    with opened(tmp_path) as store:
        put(store, (b"a", b""))


def test_opening_waits_for_a_slow_recovery(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = processes.event(), processes.event()
    processes.start(open_and_stay, str(tmp_path), opening, go_on, False)
    assert opening.wait(60)
    looks: list[int] = []

    def seen(pid: int) -> bool:
        looks.append(pid)
        if len(looks) == 3:
            go_on.set()
        return is_stopped(pid)

    monkeypatch.setattr(guarding, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(guarding, "is_stopped", seen)
    with opened(tmp_path) as store:
        put(store, (b"a", b""))
    assert len(looks) >= 3


def commit_and_stop(path: str, opening: Any, let_go: Any, in_a_commit: bool) -> None:
    """Open `path`, and stop in the middle of a commit or between two; then let go of all."""
    with opened(Path(path)) as store:
        put(store, (b"a", b""))
        lock = store.files.env.begin(write=in_a_commit)
        opening.set()
        stop_here()
        lock.abort()
        let_go.wait()


def stopped_process(processes: Processes, path: Path, in_a_commit: bool) -> tuple[int, Any]:
    """Return the number of a process that is stopped, and the event for which it waits when it goes on."""
    opening, let_go = processes.event(), processes.event()
    holder = processes.start(commit_and_stop, str(path), opening, let_go, in_a_commit)
    assert opening.wait(60)
    assert holder.pid is not None
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    return holder.pid, let_go


@pytest.mark.slow
def test_opening_names_the_process_that_is_stopped_in_a_commit(
    tmp_path: Path, own_children: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, let_go = stopped_process(own_children, tmp_path, True)
    fds = os.listdir("/proc/self/fd")
    monkeypatch.setattr(guarding, "PATIENCE_SECONDS", 0.05)
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            fdbqueue.open(f"file:{tmp_path}")
        assert f"{tmp_path}: waited 0 s for its writer lock" in str(caught.value)
        assert f"process {holder} has, which is stopped. `kill -CONT {holder}` lets it go on" in str(caught.value)
    assert os.listdir("/proc/self/fd") == fds
    monkeypatch.undo()
    timer = threading.Timer(0.05, os.kill, (holder, signal.SIGCONT))
    timer.start()
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"b"] = b""
    timer.join()
    let_go.set()


@pytest.mark.slow
def test_opening_does_not_wait_for_a_process_that_is_stopped_between_commits(
    tmp_path: Path, own_children: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_process(own_children, tmp_path, False)
    monkeypatch.setattr(guarding, "PATIENCE_SECONDS", 0.0)
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"b"] = b""


def test_a_truncated_file_of_labels_is_repaired(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"))
    (tmp_path / "synced").write_bytes((tmp_path / "synced").read_bytes()[:60])
    with opened(tmp_path) as store:
        assert contents(store) == [(b"a", b"1")]
    assert (tmp_path / "synced").stat().st_size == 4096


def test_a_file_without_its_last_but_one_commit_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    with opened(tmp_path) as store:
        page = store.files.env.stat()["psize"]
        put(store, (b"a", b"1"))
        last = store.last_transaction()
        before = data.read_bytes()
        put(store, (b"a", b"2"))
        put(store, (b"a", b"3"))
        left = bytearray(data.read_bytes())
    other = page * (1 - last % 2)  # whose page says what the commit before `last` left
    left[other : other + page] = before[other : other + page]
    data.write_bytes(left)
    with pytest.raises(StorageError, match="last but one commit is missing"):
        Store.open(str(tmp_path), {}, MovableClock(b"another boot"))


def test_after_an_older_file_was_put_in_its_place_commits_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "folder") as store:
        put(store, (b"a", b"1"))
    shutil.copy(tmp_path / "folder" / "data.mdb", tmp_path / "backup")
    with opened(tmp_path / "folder") as store:
        for number in range(20):
            put(store, (b"a", b"%d" % number))
    shutil.copy(tmp_path / "backup", tmp_path / "folder" / "data.mdb")
    with opened(tmp_path / "folder") as store:
        contents(store)
        waits: list[int] = []
        sync = disk.Durable.sync

        def noted(durable: disk.Durable) -> None:
            waits.append(1)
            sync(durable)

        monkeypatch.setattr(disk.Durable, "sync", noted)
        put(store, (b"b", b""))
        assert waits


def test_a_path_may_have_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe %20?\n")
    for rows in ([], [(b"a", b"")]):
        with opened(path) as store:
            assert contents(store) == rows
            put(store, (b"a", b""))


def test_the_names_of_all_folders_that_were_made_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with opened(tmp_path / "some" / "where" / "folder"):
        pass
    assert {str(tmp_path / name) for name in (".", "some", "some/where", "some/where/folder")} <= synced


def fill(store: Store) -> None:
    for number in range(100):
        put(store, (b"%d" % number, bytes(100_000)))


def test_a_file_stays_within_max_size_whatever_the_first_map_size(tmp_path: Path) -> None:
    with opened(tmp_path, max_size="2000000") as store:
        with pytest.raises(StorageError, match="full at max_size"):
            fill(store)
        assert os.stat(tmp_path / "data.mdb").st_size <= 2_000_000
    with opened(tmp_path) as store:
        put(store, (b"more", bytes(3_000_000)))
    with opened(tmp_path, max_size="2000000") as store:
        assert dict(contents(store))[b"more"] == bytes(3_000_000)


@pytest.mark.parametrize(("what", "outcome"), [("txn_at", 1021), ("clear", 1021), ("write", 1510)])
def test_a_disk_that_fails_at_a_label_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, outcome: int
) -> None:
    def failing(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    with opened(tmp_path) as store:
        put(store, (b"a", b""))
        with monkeypatch.context() as patched:
            patched.setattr(Labels, what, failing)
            request = sets((b"b", b"x" * 10_000))
            store.submit(request)
            store.committer.wait(request)
            assert request.error == outcome
            assert isinstance(request.failure, StorageError) == (outcome == 1510)
        put(store, (b"c", b""))


def test_too_many_open_files_are_an_error_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> int:
        raise OSError(24, "Too many open files")

    with opened(tmp_path):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda path, *mode: none_left() if "data.mdb" in path else REAL(path, *mode))
        with pytest.raises(StorageError, match="Too many open files"):
            Store.open(str(tmp_path), {})
    with opened(tmp_path) as store:
        put(store, (b"a", b""))


REAL = os.open


class Visited:
    """Tidied by a janitor; somebody comes right behind its look, sees it awake, and does not wake it."""

    def __init__(self) -> None:
        self.looks = 0
        self.come = threading.Event()
        self.seen = threading.Event()

    def tidy(self) -> float | None:
        self.looks += 1
        if self.looks == 1:
            self.come.wait(30)
        else:
            self.seen.set()
        return None


def test_a_snapshot_added_right_before_the_reaper_sleeps_is_reaped() -> None:
    visited = Visited()
    janitor = SnapshotReaper(visited)
    janitor.wake()
    visited.come.set()
    assert visited.seen.wait(30)
    janitor.close()


def test_without_a_background_thread_callers_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with opened() as store:
        monkeypatch.setattr(threading, "Thread", Refused)
        put(store, (b"a", b""))
        request = sets((b"b", b""))
        called: list[Any] = []
        store.submit(request)
        store.on_done(request, called.append)
        assert called == [request]
        assert [key for key, _ in contents(store)] == [b"a", b"b"]
