"""Threads that share a transaction, as the binding allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace

THREADS = 8
STEPS = 150
PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(work: Any) -> list[Any]:
    """Run ``work(number)`` in some threads and return what came of each; raise what one raised."""
    gate = threading.Barrier(THREADS)

    def run(number: int) -> Any:
        gate.wait(PATIENCE_SECONDS)
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(run, range(THREADS), timeout=PATIENCE_SECONDS))


def test_threads_read_and_write_in_one_transaction(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()

    def work(number: int) -> None:
        own = space[number]
        for step in range(STEPS):
            tr[own[step]] = b"%d" % step
            tr.add(own["count"], b"\x01\0\0\0")
            tr.add(space["count"], b"\x01\0\0\0")
            if step % 3 == 2:
                del tr[own[step - 1]]
            assert tr[own[step]] == b"%d" % step
            if step % 10 == 0:
                rows = list(tr.get_range(own[0].key(), own[STEPS].key()))
                kept = [at for at in range(step + 1) if at % 3 != 1 or at == step]
                assert [own.unpack(row.key)[0] for row in rows] == kept
                tr.snapshot.get_range_startswith(space.key(), limit=5).to_list()
                tr.add_read_conflict_key(own["seen"])

    at_once(work)
    tr.commit().wait()
    assert db[space["count"]] == (THREADS * STEPS).to_bytes(4, "little")
    for number in range(THREADS):
        assert db[space[number]["count"]] == STEPS.to_bytes(4, "little")
        assert len(db.get_range(space[number][0].key(), space[number][STEPS].key())) == STEPS - STEPS // 3


def test_using_a_transaction_during_its_commit_fails_with_2017(db: Any, space: Subspace) -> None:
    """And fails the commit's future too, if it isn't ready: all that was written before it is there, or nothing."""
    for attempt in range(20):
        tr = db.create_transaction()
        counter = space[attempt]["count"]

        def work(number: int, tr: Any = tr, counter: Any = counter) -> int:
            try:
                for step in range(20):
                    if number == 0 and step == 10:
                        tr.commit().wait()
                        break
                    tr.add(counter, b"\x01\0\0\0")
                    tr.get(counter).wait()
            except FDBError as error:
                return error.code
            return 2017

        assert at_once(work) == [2017] * THREADS
        value = db.get(counter)
        assert value is None or 10 <= int.from_bytes(value, "little") <= THREADS * 20
