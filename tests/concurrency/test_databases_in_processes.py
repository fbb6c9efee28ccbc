"""An embedded database in other processes: pickled, spawned into, forked."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import FDBError

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
ENDS_WITHIN_SECONDS = 60


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


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_another_process_uses_the_same_database(db: Any, context: Any) -> None:
    count_up(db, 1)
    assert ended(context.Process(target=count_up, args=(db, 3))) == 0
    count_up(db, 1)
    assert int.from_bytes(db[b"n"], "little") == 5


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
