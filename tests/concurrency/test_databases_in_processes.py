"""An embedded database in other processes: pickled, spawned into, forked."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import FDBError, aio
from fdbqueue.layers import Consumer, Leases, Results
from tests.helpers.stores import store_of

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
ENDS_WITHIN_SECONDS = 600


@pytest.fixture(params=["memory", "file"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with fdbqueue.open("memory:" if request.param == "memory" else f"file:{tmp_path / 'db'}") as opened:
        yield opened


def count_up(db: Any, times: int) -> None:
    for _ in range(times):
        db.add(b"n", (1).to_bytes(8, "little"))


def ended(process: Any) -> int | None:
    process.start()
    process.join(ENDS_WITHIN_SECONDS)
    code: int | None = process.exitcode
    return code


@pytest.mark.slow
@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_another_process_uses_the_same_database(db: Any, context: Any) -> None:
    count_up(db, 1)
    assert ended(context.Process(target=count_up, args=(db, 3))) == 0
    count_up(db, 1)
    assert int.from_bytes(db[b"n"], "little") == 5


def double_one(db: Any) -> None:
    Consumer(Leases(Queue("numbers", codec="json")), lambda lease: lease.value * 2, signals=False).drain(db)


def wait_at(db: Any, text: str) -> None:
    assert Results(Leases(Queue("numbers", codec="json"))).completion(db, text).wait(timeout=ENDS_WITHIN_SECONDS) == 42


@pytest.mark.slow
@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_a_process_waits_at_an_item_that_another_one_ends(db: Any, context: Any) -> None:
    completion = Results(Leases(Queue("numbers", codec="json"))).enqueue(db, 21)
    waiting = context.Process(target=wait_at, args=(db, str(completion)))
    waiting.start()
    assert ended(context.Process(target=double_one, args=(db,))) == 0
    assert completion.wait(timeout=ENDS_WITHIN_SECONDS) == 42
    waiting.join(ENDS_WITHIN_SECONDS)
    assert waiting.exitcode == 0


def test_a_pickled_database_is_the_same_one(db: Any) -> None:
    db[b"key"] = b"1"
    with pickle.loads(pickle.dumps(db)) as copy:
        assert copy[b"key"] == b"1"
        copy[b"key"] = b"2"
    assert db[b"key"] == b"2"


def test_a_pickled_database_keeps_its_options(db: Any) -> None:
    db.options.set_transaction_retry_limit(0)
    with pickle.loads(pickle.dumps(db)) as copy, pytest.raises(FDBError) as caught:
        copy.create_transaction().on_error(1020).wait()
    assert caught.value.code == 1020


def test_a_transaction_from_before_a_fork_is_too_old_in_the_child(db: Any) -> None:
    db[b"key"] = b"1"
    tr = db.create_transaction()
    assert tr[b"key"] == b"1"

    def child() -> None:
        with pytest.raises(FDBError) as caught:
            tr.get(b"other").wait()
        assert caught.value.code == 1007
        tr.on_error(caught.value).wait()
        assert tr[b"key"] == b"1"
        os._exit(0)

    assert ended(FORK.Process(target=child)) == 0
    assert tr[b"key"] == b"1"
    assert not tr.get(b"other").present()


def forked(child: Callable[[], object]) -> None:
    """Run `child` in a forked process; fail if it fails or hangs."""
    assert ended(FORK.Process(target=child)) == 0


def test_a_parents_watch_and_versionstamp_end_with_1021_in_a_forked_child(db: Any) -> None:
    watch = db.get_and_watch(b"a")[1]
    tr = db.create_transaction()
    tr[b"b"] = b""
    stamp = tr.get_versionstamp()
    told: list[Any] = []
    for future in (watch, stamp):
        future.on_ready(told.append)

    def child() -> None:
        for future in (watch, stamp):
            assert future.is_ready()
            with pytest.raises(FDBError, match="1021"):
                future.wait()
            future.on_ready(told.append)
        assert told == [watch, stamp]
        del db[b"a"]

    forked(child)
    tr.commit().wait()
    assert len(stamp.wait()) == 10
    assert not watch.is_ready()
    db[b"a"] = b"1"
    watch.wait()


def test_a_forked_child_can_wait_for_its_own_commits(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"b"] = b""
    watch, stamp = tr.watch(b"a"), tr.get_versionstamp()

    def child() -> None:
        tr.commit().wait()
        assert len(stamp.wait()) == 10
        assert not watch.is_ready()
        db[b"a"] = b"1"
        watch.wait()

    forked(child)


def test_a_parents_read_that_waits_for_its_version_is_too_old_in_a_forked_child(db: Any) -> None:
    other, tr = db.create_transaction(), db.create_transaction()
    tr.set_read_version(other.get_read_version().wait() + 10**12)
    value, commit = tr.get(b"a"), tr.commit()

    def child() -> None:
        with pytest.raises(FDBError, match="1007"):
            asyncio.run(asyncio.wait_for(aio(value), 20))
        with pytest.raises(FDBError):
            commit.wait()
        tr.reset()
        assert not tr[b"a"].present()

    forked(child)
    with pytest.raises(FDBError, match="1009"):
        value.wait()


def test_a_pause_that_began_before_a_fork_ends_in_the_child(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    tr = db.create_transaction()
    tr._backoff = 0.3
    pause = tr.on_error(1020)
    pause.on_ready(lambda _: None)  # which starts a timer, in this process

    def child() -> None:
        asyncio.run(asyncio.wait_for(aio(pause), 20))
        tr[b"a"] = b"1"
        tr.commit().wait()

    forked(child)
    assert db[b"a"] == b"1"


@pytest.mark.slow
def test_a_parents_watches_that_a_forked_child_drops_do_not_open_the_database(db: Any) -> None:
    held = [db.get_and_watch(b"a")[1]]

    def child() -> None:
        held.clear()
        gc.collect()
        assert "files" not in vars(store_of(db))

    forked(child)
