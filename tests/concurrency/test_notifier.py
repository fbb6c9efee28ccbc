"""Commits wake watchers in other processes, by notification or by polling."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from fdbqueue.engine.embedded.store import notification
from fdbqueue.engine.embedded.store.notification import Notifier
from fdbqueue.engine.embedded.store.store import Store
from tests.helpers.processes import Processes
from tests.helpers.stores import opened, put

FOREVER = 3600.0


@pytest.fixture
def never_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification, "LONGEST_SLEEP", FOREVER)
    monkeypatch.setattr(notification, "DEAF_SLEEP", FOREVER)


def heard(store: Store, key: bytes = b"a") -> threading.Event:
    event = threading.Event()
    store.watch(key, event.set)
    return event


def until_asleep(store: Store) -> None:
    """Wait until whoever watches sleeps: a bell rung before might be what wakes them."""
    while not store.notifier.asleep[0]:
        time.sleep(0.001)
    time.sleep(0.05)


def set_a_and_be_killed_before_it_rings(path: str) -> None:
    store = Store.open(path, {})
    with patch.object(Notifier, "ring", side_effect=partial(os.kill, os.getpid(), 9)):
        put(store, (b"a", b""))


@pytest.mark.usefixtures("never_looks_by_itself")
@pytest.mark.parametrize("durability", ["fsync", "relaxed"])
def test_a_commit_wakes_watchers_in_other_processes(tmp_path: Path, processes: Processes, durability: str) -> None:
    with opened(tmp_path, durability=durability) as store:
        event = heard(store)
        until_asleep(store)
        processes.run(set_one, str(tmp_path), durability)
        assert event.wait(30)


def set_one(path: str, durability: str) -> None:
    with opened(Path(path), durability=durability) as store:
        put(store, (b"a", b""))
        patch.object(Notifier, "ring").start()  # not by closing, either


def test_a_commit_of_a_process_killed_before_it_notifies_is_still_noticed(tmp_path: Path, processes: Processes) -> None:
    with opened(tmp_path) as store:
        event = heard(store)
        until_asleep(store)
        process = processes.start(set_a_and_be_killed_before_it_rings, str(tmp_path))
        process.join(600)
        assert process.exitcode == -9
        assert event.wait(30)


def without_inotify() -> Any:
    return SimpleNamespace()


def without_more_of_it() -> Any:
    return SimpleNamespace(inotify_init1=lambda _: -1)


def for_other_files_only() -> Any:
    return SimpleNamespace(inotify_init1=lambda _: os.open(os.devnull, os.O_RDONLY), inotify_add_watch=lambda *_: -1)


@pytest.mark.parametrize("system", [without_inotify, without_more_of_it, for_other_files_only])
def test_without_notifications_a_watcher_polls(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch, system: Callable[[], Any]
) -> None:
    monkeypatch.setattr(notification, "_libc", system())
    descriptors = len(os.listdir("/dev/fd"))
    listener = notification.Listener(str(tmp_path), bytearray(1))
    assert len(os.listdir("/dev/fd")) == descriptors, "nothing is left open"
    listener.close()
    with opened(tmp_path) as store:
        event = heard(store)
        processes.run(set_one, str(tmp_path), "fsync")
        assert event.wait(30)


def test_no_notification_is_sent_while_no_process_sleeps(tmp_path: Path) -> None:
    with (
        opened(tmp_path, durability="relaxed") as store,
        patch.object(Notifier, "ring", autospec=True, side_effect=Notifier.ring) as ring,
    ):
        for number in range(100):
            put(store, (b"%d" % number, b""))
        assert not ring.called
        heard(store, b"b")
        until_asleep(store)
        put(store, (b"a", b""))
        assert ring.called


@pytest.mark.usefixtures("never_looks_by_itself")
def test_the_commits_of_a_busy_process_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification, "REST_SECONDS", FOREVER)
    with opened(tmp_path, durability="relaxed") as store:
        heard(store, b"b")
        until_asleep(store)
        entries_after = store.entries_after
        looks: list[int] = []

        def counted(version: int) -> Any:
            looks.append(version)
            return entries_after(version)

        monkeypatch.setattr(store, "entries_after", counted)
        for number in range(20):
            put(store, (b"%d" % number, b""))
            time.sleep(0.005)
        assert len(looks) == 1


def listeners() -> set[threading.Thread]:
    """Return the threads that listen; those of other databases are among them."""
    return {thread for thread in threading.enumerate() if thread.name == "fdbqueue-changes"}


def test_the_thread_that_listens_ends_with_the_last_watch_and_begins_again(tmp_path: Path) -> None:
    before = listeners()
    with opened(tmp_path) as store:
        for _ in range(2):
            event = threading.Event()
            store.watch(b"a", event.set)
            assert listeners() - before
            store.unwatch(b"a", event.set)
            for thread in listeners() - before:
                thread.join(30)
                assert not thread.is_alive()


@pytest.mark.usefixtures("never_looks_by_itself")
def test_closing_does_not_wait_for_the_next_notification(tmp_path: Path) -> None:
    before = listeners()
    with opened(tmp_path) as store:
        heard(store)
        until_asleep(store)
    assert not listeners() - before


def test_a_closed_notifier_writes_into_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    rung = Notifier(str(tmp_path))
    used = rung.fd
    rung.close()
    fd = os.open(tmp_path / "other", os.O_RDWR)
    assert fd == used, "the number is used again"
    rung.ring()
    os.close(fd)
    assert (tmp_path / "other").read_bytes() == b"mine"
