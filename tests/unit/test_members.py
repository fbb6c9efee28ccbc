"""The processes that use a folder: who is alive, and what they have marked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import StorageError
from fdbqueue.engine.embedded.store import members as module
from fdbqueue.engine.embedded.store.members import MARKS, Members
from fdbqueue.engine.optional import members_of
from tests.helpers.processes import Processes, kill_9


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Members]:
    members = Members(str(tmp_path))
    yield members
    members.close()


def join(path: str, told: Any, marks: list[bytes]) -> None:
    """Become a member, mark, tell the id, and stay."""
    members = Members(path)
    told.put(members.own_id())
    for mark in marks:
        members.mark(mark)
    told.put(None)
    time.sleep(60)


def joined(processes: Processes, path: Path, *marks: bytes) -> tuple[Any, bytes]:
    told = processes.queue()
    process = processes.start(join, str(path), told, list(marks))
    other: bytes = told.get(timeout=600)
    told.get(timeout=600)
    return process, other


def test_a_killed_process_is_dead_at_once_and_a_stopped_one_is_not(mine: Members, tmp_path: Path) -> None:
    with Processes() as processes:
        process, other = joined(processes, tmp_path)
        assert other not in (b"", mine.own_id())
        assert not mine.is_dead(other)
        os.kill(process.pid, signal.SIGSTOP)
        assert not mine.is_dead(other)
        kill_9(process)
        assert mine.is_dead(other)


def test_a_mark_outlives_its_process_and_the_next_one_in_its_slot(mine: Members, tmp_path: Path) -> None:
    with Processes() as processes:
        process, first = joined(processes, tmp_path, b"one", b"two")
        kill_9(process)
        process, second = joined(processes, tmp_path, b"three")
        assert (first[:2], first == second) == (second[:2], False)
        assert mine.is_dead(first)
        assert not mine.is_dead(second)
        assert all(mine.has_mark(first, mark) for mark in (b"one", b"two", b"three"))
        assert not mine.has_mark(first, b"four")


def test_a_slot_keeps_the_last_marks(mine: Members) -> None:
    marks = [number.to_bytes(12, "big") for number in range(1, MARKS + 3)]
    assert all(mine.mark(mark) for mark in marks)
    assert [mine.has_mark(mine.own_id(), mark) for mark in marks] == [False] * 2 + [True] * MARKS


def test_a_forked_child_does_not_keep_its_parent_alive(mine: Members, tmp_path: Path) -> None:
    with Processes() as processes:
        told = processes.queue()
        parent = processes.start(join_and_fork, str(tmp_path), told)
        parent_id, child = told.get(timeout=600)
        try:
            assert not mine.is_dead(parent_id)
            kill_9(parent)
            os.kill(child, 0)
            assert mine.is_dead(parent_id)
        finally:
            os.kill(child, signal.SIGKILL)


def join_and_fork(path: str, told: Any) -> None:
    members = Members(path)
    own = members.own_id()
    if child := os.fork():
        told.put((own, child))
    time.sleep(60)


def test_a_process_that_lost_its_lock_gets_it_back(mine: Members, tmp_path: Path) -> None:
    own = mine.own_id()
    (tmp_path / "members").read_bytes()  # closing this descriptor frees the process's locks
    assert mine.own_id() == own
    with Processes() as processes:
        _, other = joined(processes, tmp_path)
        assert other[:2] != own[:2]


def test_a_process_too_many_has_no_id(mine: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Processes() as processes:
        joined(processes, tmp_path)
        monkeypatch.setattr(module, "MOST", 1)
        assert mine.own_id() == b""
        assert not mine.mark(b"one")
        assert not mine.is_dead(b"")


def test_members_that_cant_be_opened_are_an_error_and_closed_ones_have_no_id(mine: Members) -> None:
    with pytest.raises(StorageError, match="its file 'members' can't be used"):
        Members("/dev/null/nowhere")
    mine.close()
    assert mine.own_id() == b""
    assert not mine.is_dead(bytes(10))
    assert not mine.has_mark(bytes(10), b"one")


def test_a_transaction_and_its_database_have_the_same_members() -> None:
    with fdbqueue.open("memory:") as db:
        tr = db.create_transaction()
        own = members_of(tr).own_id()
        assert own == members_of(db).own_id() != b""
        assert members_of(tr).mark(b"one")
        assert members_of(db).has_mark(own, b"one")
        assert not members_of(db).is_dead(own)


def test_a_database_without_members_knows_no_process() -> None:
    db: Any = object()
    assert members_of(db).own_id() == b""
    assert not members_of(db).is_dead(bytes(10))
    assert not members_of(db).mark(b"one")
    assert not members_of(db).has_mark(bytes(10), b"one")
