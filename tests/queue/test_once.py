"""Calls that commit by themselves take effect once, whatever becomes of their commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdbqueue
from fdbqueue import Queue, StorageError
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.engine.transactional import STALE_AFTER_S, Client
from tests.helpers.faults import Fault, FaultyDatabase, FaultyTransaction, When
from tests.helpers.stores import store_of


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space)


def contents(queue: Queue, db: Any) -> list[bytes]:
    return [item.value for item in queue.browse(db)]


def test_a_consumed_item_with_an_unknown_outcome_is_not_enqueued_again(db: Any, queue: Queue) -> None:
    consumed: list[bytes] = []

    class Consumed(FaultyTransaction):
        def commit(self) -> Any:
            told = super().commit()
            consumed.extend(item.value for item in queue.dequeue_many(db))
            return told

    class ConsumedDatabase(FaultyDatabase):
        def create_transaction(self) -> Consumed:
            return Consumed(self._db.create_transaction(), self)

    queue.enqueue(ConsumedDatabase.failing_at(db, {0}, ("after", 1021)), b"only one")
    assert consumed == [b"only one"]
    assert queue.is_empty(db)
    assert queue.stats(db).enqueued == 1


def test_an_error_that_is_not_retryable_is_raised_and_nothing_was_done(db: Any, queue: Queue) -> None:
    with pytest.raises(FDBError, match="1031"):
        queue.enqueue(FaultyDatabase.failing_at(db, {0}, ("before", 1031)), b"x")
    assert queue.is_empty(db)
    queue.enqueue(db, b"y")
    assert contents(queue, db) == [b"y"]


def test_a_client_leaves_one_marker_per_concurrent_call(db: Any, queue: Queue) -> None:
    for _ in range(10):
        queue.enqueue(db, b"x")
    assert marks(queue, db) == 1


def test_a_marker_that_a_timed_out_commit_may_overwrite_is_not_reused(db: Any, queue: Queue) -> None:
    with pytest.raises(FDBError, match="1031"):
        queue.enqueue(FaultyDatabase.failing_at(db, {0}, ("after", 1031)), b"x")
    [(key, mark)] = [(row.key, row.value) for row in db.get_range_startswith(queue.layout.markers.key())]
    for _ in range(3):
        queue.enqueue(db, b"y")
    assert bytes(db[key]) == mark
    assert len(list(db.get_range_startswith(queue.layout.markers.key()))) == 2


def test_stale_commit_markers_are_swept_and_fresh_ones_are_not(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        Queue(queue.layout.space).enqueue(db, b"x")
    Queue(queue.layout.space).enqueue(db, b"x")
    assert len(list(db.get_range_startswith(queue.layout.markers.key()))) == 4
    later = time.time_ns() + int((STALE_AFTER_S + 60) * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    monkeypatch.setattr("os.urandom", lambda n: b"\x00" * n)
    assert Client(queue.layout.markers.key()).begin < db.get_range_startswith(queue.layout.markers.key())[0].key
    Queue(queue.layout.space).enqueue(db, b"x")
    assert len(list(db.get_range_startswith(queue.layout.markers.key()))) == 1


def test_a_marker_whose_client_returns_during_the_sweep_stays(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(db, b"x")
    [key] = [row.key for row in db.get_range_startswith(queue.layout.markers.key())]
    later = time.time_ns() + int((STALE_AFTER_S + 60) * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    monkeypatch.setattr("os.urandom", lambda n: b"\x00" * n)
    calls: Iterator[Any] = iter([lambda: db.set(key, b"the mark of a call in doubt")])

    def plan() -> Fault | None:
        next(calls, lambda: None)()
        return None

    Queue(queue.layout.space).enqueue(FaultyDatabase(db, plan), b"y")
    assert bytes(db[key]) == b"the mark of a call in doubt"
    assert contents(queue, db) == [b"x", b"y"]


class StoppedTransaction(FaultyTransaction):
    """Comes to its retry so late that its mark was swept."""

    def on_error(self, error: Any) -> Any:
        self._db.stop()
        return self._tr.on_error(error)


class StoppedDatabase(FaultyDatabase):
    stop: Callable[[], None]

    def create_transaction(self) -> StoppedTransaction:
        return StoppedTransaction(self._db.create_transaction(), self)


def test_a_client_stopped_until_its_marker_is_swept_reports_an_unknown_outcome(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        db.clear_range_startswith(queue.layout.markers.key())
        later = time.time_ns() + int(STALE_AFTER_S * 1e9)
        monkeypatch.setattr(time, "time_ns", lambda: later)

    stopped = StoppedDatabase.failing_at(db, {0}, ("after", 1021))
    stopped.stop = stop
    with pytest.raises(FDBError, match="1021"):
        queue.enqueue(stopped, b"x")
    assert contents(queue, db) == [b"x"]


class UnreadableTransaction(FaultyTransaction):
    """After a commit that failed, nothing can be read any more."""

    def get(self, key: bytes) -> Any:
        return self._db.read(self._tr, key)


class UnreadableDatabase(FaultyDatabase):
    def __init__(self, db: Any, error: Exception, fault: Fault) -> None:
        super().__init__(db, lambda: fault)
        self._error = error

    def create_transaction(self) -> UnreadableTransaction:
        return UnreadableTransaction(self._db.create_transaction(), self)

    def read(self, tr: Any, key: bytes) -> Any:
        if self.faults:
            raise self._error
        return tr.get(key)


@pytest.mark.parametrize("error", [StorageError("the disk refused"), MemoryError()])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_can_not_be_checked_is_an_unknown_outcome(
    db: Any, queue: Queue, when: When, error: Exception
) -> None:
    queue.enqueue(db, b"x")
    calls: list[Callable[[Any], Any]] = [
        lambda db: queue.enqueue(db, b"y"),
        lambda db: queue.enqueue_many(db, [b"y"]),
        queue.dequeue,
    ]
    for call in calls:
        faulty = UnreadableDatabase(db, error, (when, 1021))
        with pytest.raises(FDBError) as caught:
            call(faulty)
        assert caught.value.code == 1021
        assert caught.value.__cause__ is error
    assert contents(queue, db) == ([b"x"] if when == "before" else [b"y", b"y"])


class RefusingDisk:
    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def sync(self, _force: bool) -> None:
        raise lmdb.Error("Input/output error")


def test_a_disk_that_fails_at_a_commit_and_its_check_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    queue = Queue("q")
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue.enqueue(db, b"x")
        disk: Any = store_of(db).files.disk
        disk.env = RefusingDisk(disk.env)
        with pytest.raises(FDBError, match="1021") as caught:
            queue.enqueue(db, b"y")
        assert isinstance(caught.value.__cause__, StorageError)
        assert "failed to keep a commit" in str(caught.value.__cause__)


def marks(queue: Queue, db: Any) -> int:
    return len(list(db.get_range_startswith(queue.layout.markers.key())))


@pytest.fixture
def a_day_later(monkeypatch: pytest.MonkeyPatch, db: Any, queue: Queue) -> None:
    """There is a mark of a client that is gone, which whoever comes now is to sweep."""
    Queue(queue.layout.space).enqueue(db, b"x")
    later = time.time_ns() + int((STALE_AFTER_S + 60) * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    monkeypatch.setattr("os.urandom", lambda n: b"\x00" * n)


@pytest.mark.usefixtures("a_day_later")
def test_a_sweep_that_loses_a_race_fails_no_call(db: Any, queue: Queue) -> None:
    queue.enqueue(FaultyDatabase.failing_at(db, {0}, ("before", 1020)), b"y")
    assert contents(queue, db) == [b"x", b"y"]
    assert marks(queue, db) == 2


@pytest.mark.usefixtures("a_day_later")
def test_a_sweep_that_can_not_run_fails_the_call_before_it_writes(db: Any, queue: Queue) -> None:
    with pytest.raises(FDBError, match="1031"):
        queue.enqueue(FaultyDatabase.failing_at(db, {0}, ("before", 1031)), b"y")
    assert contents(queue, db) == [b"x"]
    assert marks(queue, db) == 1
