"""One wait for the disk is enough for all processes that wait for the same commit."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdbqueue.engine.embedded.store.disk import disk
from fdbqueue.engine.embedded.store.disk.disk import Durable
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.errors import StorageError
from tests.helpers.processes import Processes, kill_9, stop_here
from tests.helpers.stores import opened, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"))
        yield store


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[Durable]:
    found: list[Durable] = []
    sync = Durable.sync

    def noted(durable: Durable) -> None:
        found.append(durable)
        sync(durable)

    monkeypatch.setattr(Durable, "sync", noted)
    return found


class Another:
    """Another process that syncs: it holds the lock on the data file."""

    def __init__(self, store: Store) -> None:
        self._fd = os.open(os.path.join(store.path, "data.mdb"), os.O_RDWR)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def end(self) -> None:
        os.close(self._fd)


def forget(store: Store) -> int:
    """Let it be unknown whether the last commit is on the disk; return its number."""
    last: int = store.files.env.info()["last_txnid"]
    store.files.folder_lock.synced = last - 1
    return last


def at_each_pause(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    def sleep(_: float) -> None:
        action()

    monkeypatch.setattr(time, "sleep", sleep)


def test_a_process_that_waits_for_the_sync_of_another_does_not_sync_itself(
    store: Store, syncs: list[Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = forget(store)
    another = Another(store)
    at_each_pause(monkeypatch, lambda: setattr(store.files.folder_lock, "synced", last))
    store.files.disk.ensure(last)
    assert syncs == []
    another.end()


def test_if_the_other_process_ends_without_a_sync_this_one_syncs(
    store: Store, syncs: list[Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = forget(store)
    another = Another(store)
    at_each_pause(monkeypatch, another.end)
    store.files.disk.ensure(last)
    assert len(syncs) == 1
    assert store.files.folder_lock.synced == last
    Another(store).end()  # the lock is free again


def test_a_process_does_not_wait_for_ever_for_one_that_was_stopped_in_its_sync(
    store: Store, syncs: list[Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LONGEST_SHARED_SECONDS", 0.002)
    last = forget(store)
    another = Another(store)
    store.files.disk.ensure(last)
    assert len(syncs) == 1
    assert store.files.folder_lock.synced == last
    another.end()


def stop_in_a_sync(path: str) -> None:
    """Commit, and stop while the commit is written to the disk."""
    with opened(Path(path)) as store:
        pytest.MonkeyPatch().setattr(Durable, "sync", lambda _: stop_here())
        put(store, (b"b", b"2"))


def test_a_process_that_is_stopped_in_its_sync_holds_up_one_commit_of_another_process(
    store: Store, tmp_path: Path, own_children: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = own_children.start(stop_in_a_sync, str(tmp_path))
    assert stopped.pid is not None
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(disk, "LONGEST_SHARED_SECONDS", 0.002)
    pauses: list[None] = []
    held_up: list[bool] = []
    at_each_pause(monkeypatch, lambda: pauses.append(None))
    for number in range(5):
        pauses.clear()
        put(store, (b"c", b"%d" % number))
        held_up.append(bool(pauses))
    assert held_up == [True, False, False, False, False]
    kill_9(stopped)


def test_once_the_lock_was_free_a_process_waits_again_for_the_sync_of_another(
    store: Store, syncs: list[Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(disk, "LONGEST_SHARED_SECONDS", 0.002)
        another = Another(store)
        put(store, (b"b", b"2"))  # waits in vain
        another.end()
    put(store, (b"b", b"3"))
    syncs.clear()
    last = forget(store)
    another = Another(store)
    at_each_pause(monkeypatch, lambda: setattr(store.files.folder_lock, "synced", last))
    store.files.disk.ensure(last)
    assert syncs == []
    another.end()


def test_a_disk_that_fails_leaves_the_lock_free(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = forget(store)

    def fail(durable: Durable) -> None:
        raise StorageError("the disk failed")

    monkeypatch.setattr(Durable, "sync", fail)
    with pytest.raises(StorageError, match="the disk failed"):
        store.files.disk.ensure(last)
    Another(store).end()
    monkeypatch.undo()
    store.files.disk.ensure(last)


def test_the_next_commit_waits_for_the_sync_that_its_predecessor_makes(
    store: Store, syncs: list[Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = forget(store)
    another = Another(store)

    def synced() -> None:
        store.files.folder_lock.synced = last
        another.end()

    at_each_pause(monkeypatch, synced)
    put(store, (b"b", b"2"))
    assert len(syncs) == 1, "its own"


def test_a_large_commit_of_another_process_is_unlabelled_before_the_next_commit(
    store: Store, syncs: list[Durable]
) -> None:
    put(store, (b"a", bytes(50_000)))
    syncs.clear()
    last = forget(store)
    durable = store.files.disk
    assert isinstance(durable, Durable)
    durable.labels.write(last, None)
    put(store, (b"b", b"2"))
    assert len(syncs) == 3, "two for the large one, whose label goes, and its own"
