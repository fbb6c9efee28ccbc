"""Watches: when they fire, and when they don't."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import FDBError, Subspace, transactional
from tests.helpers.processes import Processes

PATIENCE_SECONDS = 200.0


def watch(db: Any, key: Any) -> Any:
    """Return a watch on `key`, set by a transaction of its own that is over."""
    tr = db.create_transaction()
    tr.get(key).present()
    future = tr.watch(key)
    tr.commit().wait()
    return future


def fires(future: Any) -> bool:
    """Wait for `future` and say whether it became ready in time."""
    ready = threading.Event()
    future.on_ready(lambda _: ready.set())
    return ready.wait(PATIENCE_SECONDS)


def set_from_outside(url: str, key: bytes) -> None:
    with fdbqueue.open(url) as db:
        db.set(key, b"from outside")


def set_quietly_from_outside(url: str, key: bytes) -> None:
    with fdbqueue.open(url) as db:
        tr = db.create_transaction()
        tr.options.set_next_write_no_write_conflict_range()
        tr.set(key, b"from outside")
        tr.commit().wait()


def write_quietly(tr: Any, space: Subspace, write: str) -> None:
    """Change the key that is watched so that nobody conflicts with it."""
    tr.options.set_next_write_no_write_conflict_range()
    if write == "set":
        tr.set(space["a"], b"new")
    elif write == "add":
        tr.add(space["a"], b"\x01")
    elif write == "clear":
        tr.clear(space["a"])
    else:
        tr.clear_range(space["a"], space["b"])
    if write == "early_clear_range":  # what comes before it is in the way of a versionstamped key
        tr.options.set_next_write_no_write_conflict_range()
        key = space.key() + b"\x02"
        tr.set_versionstamped_key(key + bytes(10) + len(key).to_bytes(4, "little"), b"")


def test_a_watch_fires_when_the_value_changes(db: Any, space: Subspace) -> None:
    future = watch(db, space["a"])
    assert not future.is_ready()
    db.set(space["a"], b"new")
    assert fires(future)
    future.wait()


def test_a_watch_fires_when_the_key_is_cleared(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    future = watch(db, space["a"])
    db.clear_range_startswith(space.key())
    assert fires(future)


def test_a_watch_does_not_fire_for_another_key_or_the_same_value(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    future, beside = watch(db, space["a"]), watch(db, space["b"])
    db.set(space["a"], b"old")
    db.set(space["b"], b"new")
    assert fires(beside)
    assert not future.is_ready()


def test_a_watch_of_an_earlier_state_fires_at_its_commit(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["a"]).present()
    future = tr.watch(space["a"])
    db.set(space["a"], b"new")
    tr.commit().wait()
    assert fires(future)


def test_a_watch_on_the_own_write_waits_for_the_next_one(db: Any, space: Subspace) -> None:
    future = db.set_and_watch(space["a"], b"mine")
    assert not future.is_ready()
    db.set(space["a"], b"theirs")
    assert fires(future)


def test_a_watch_can_be_set_again_after_it_fired(db: Any, space: Subspace) -> None:
    for number in range(3):
        _, future = db.get_and_watch(space["a"])
        db.set(space["a"], b"%d" % number)
        assert fires(future)


def test_all_watches_on_a_key_fire(db: Any, space: Subspace) -> None:
    futures = [watch(db, space["a"]) for _ in range(10)]
    db.set(space["a"], b"new")
    assert all(fires(future) for future in futures)


def test_a_watch_fails_when_its_transaction_is_reset(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    future = tr.watch(space["a"])
    tr.reset()
    assert fires(future)
    with pytest.raises(FDBError) as raised:
        future.wait()
    assert raised.value.code == 1025


def test_a_watch_fails_as_the_commit_of_its_transaction_does(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["a"]).wait()
    future = tr.watch(space["b"])
    tr.set(space["c"], b"")
    db.set(space["a"], b"new")
    commit = tr.commit()
    assert fires(future)
    for failed in (commit, future):
        with pytest.raises(FDBError) as raised:
            failed.wait()
        assert raised.value.code == 1020


def test_a_watch_outlives_the_cancelling_of_its_transaction_but_not_its_end(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    future = tr.watch(space["a"])
    tr.get(space["a"]).wait()  # so that the watch has done its own read too
    tr.cancel()
    assert not future.is_ready()
    tr.reset()
    assert fires(future)
    with pytest.raises(FDBError) as raised:
        future.wait()
    assert raised.value.code == 1025


def test_a_cancelled_watch_is_ready_and_fails_with_1101(db: Any, space: Subspace) -> None:
    future = watch(db, space["a"])
    future.cancel()
    assert fires(future)
    with pytest.raises(FDBError) as raised:
        future.wait()
    assert raised.value.code == 1101


def test_a_watch_without_own_writes_in_view_is_refused_with_1034(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    future = tr.watch(space["a"])
    assert fires(future)
    with pytest.raises(FDBError) as raised:
        future.wait()
    assert raised.value.code == 1034


def test_a_watch_alone_conflicts_with_nothing_in_a_transaction_that_only_reads(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    future = tr.watch(space["a"])
    db.set(space["a"], b"new")
    tr.commit().wait()
    assert fires(future)


@pytest.mark.parametrize("write", ["set", "add", "clear", "clear_range", "early_clear_range"])
def test_a_write_without_a_conflict_range_still_fires_a_watch(db: Any, space: Subspace, write: str) -> None:
    db.set(space["a"], b"old")
    reader = db.create_transaction()
    reader.get(space["a"]).present()
    future = watch(db, space["a"])
    tr = db.create_transaction()
    write_quietly(tr, space, write)
    tr.commit().wait()
    assert fires(future)
    reader.set(space["b"], b"")
    reader.commit().wait()


@pytest.mark.engines("file", "cluster")
def test_a_write_of_another_process_without_a_conflict_range_still_fires_a_watch(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    db.set(space["a"], b"old")
    future = watch(db, space["a"])
    processes.run(set_quietly_from_outside, url, space["a"].key())
    assert fires(future)


def test_thousands_can_be_watched_at_once(db: Any, space: Subspace) -> None:
    keys = [space[number].key() for number in range(1_500)]
    futures: list[Any] = []

    @transactional
    def watch_all(tr: Any) -> None:
        futures[:] = [tr.watch(key) for key in keys]

    @transactional
    def write(tr: Any, some: list[bytes]) -> None:
        for key in some:
            tr[key] = b"new"

    watch_all(db)
    write(db, keys[1::2])
    assert all(fires(future) for future in futures[1::2])
    assert not any(future.is_ready() for future in futures[::2])
    write(db, keys)
    assert all(fires(future) for future in futures)


@pytest.mark.engines("file", "cluster")
def test_another_process_wakes_a_watch(db: Any, url: str, space: Subspace, processes: Processes) -> None:
    future = watch(db, space["a"])
    processes.run(set_from_outside, url, space["a"].key())
    assert fires(future)
