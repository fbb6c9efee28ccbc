"""Reads at a version that is yet to come: they wait for it, for about a second, and so does what depends on them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace, aio
from fdbqueue.engine.api import Key
from fdbqueue.engine.embedded.client import pending
from fdbqueue.engine.steps import rows, run, run_async

pytestmark = pytest.mark.slow  # they wait

SOON, NEVER = 100_000, 10**12
PATIENCE_SECONDS = 200.0


def code_of(call: Callable[[], object]) -> int:
    """Return the code of the error that `call` raises, 0 for none."""
    try:
        call()
    except FDBError as error:
        return int(error.code)
    return 0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the embedded engine wait for a version that comes, on a machine however busy."""
    monkeypatch.setattr(pending, "LONGEST_SECONDS", PATIENCE_SECONDS)


def at_future_version(db: Any, ahead: int) -> Any:
    """Return a transaction that reads `ahead` versions behind the newest one."""
    other, tr = db.create_transaction(), db.create_transaction()
    tr.set_read_version(other.get_read_version().wait() + ahead)
    return tr


def commit_until(ready: Callable[[], bool], db: Any, key: Key) -> list[tuple[int, bytes]]:
    """Write to `key` again and again; return the versions and values."""
    written: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < deadline
        tr = db.create_transaction()
        tr[key] = value = b"%d" % len(written)
        tr.commit().wait()
        written.append((tr.get_committed_version(), value))
    return written


def seen_at(version: int, written: list[tuple[int, bytes]]) -> bytes:
    """Return the last value that was written up to `version`."""
    return [value for committed, value in [(0, b"before"), *written] if committed <= version][-1]


def test_a_read_waits_about_a_second_for_a_version_that_does_not_come(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    begun = time.monotonic()
    value = tr.get(space["a"])
    assert not value.is_ready()
    assert code_of(value.wait) == 1009
    assert 0.5 < time.monotonic() - begun < PATIENCE_SECONDS
    assert value.is_ready()
    assert code_of(value.wait) == 1009


READS: dict[str, Callable[[Any, Subspace], Any]] = {
    "key": lambda tr, space: tr.get(space["a"]),
    "snapshot key": lambda tr, space: tr.snapshot.get(space["a"]),
    "selector": lambda tr, space: tr.get_key(KeySelector.first_greater_or_equal(space["a"])),
    "snapshot selector": lambda tr, space: tr.snapshot.get_key(KeySelector.first_greater_or_equal(space["a"])),
}


@pytest.mark.parametrize("kind", READS)
def test_a_read_at_a_version_that_does_not_come_fails_the_commit(db: Any, space: Subspace, kind: str) -> None:
    tr = at_future_version(db, NEVER)
    read = READS[kind](tr, space)
    tr[space["b"]] = b""
    assert code_of(tr.commit().wait) == 1009
    assert code_of(read.wait) == 1009
    assert db[space["b"]] is None


def test_a_range_at_a_version_that_does_not_come_fails_when_it_is_read(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    found = tr.get_range_startswith(space.key())
    assert code_of(lambda: list(found)) == 1009
    tr = at_future_version(db, NEVER)
    assert code_of(lambda: run(rows(tr, space.key(), space.key() + b"\xff"))) == 1009


def test_after_1009_a_transaction_is_retried_at_a_newer_version(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    assert code_of(tr.get(space["a"]).wait) == 1009
    tr.on_error(1009).wait()
    assert not tr.get(space["a"]).present()
    tr[space["a"]] = b"1"
    tr.commit().wait()
    assert db[space["a"]] == b"1"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("snapshot", [False, True], ids=["serializable", "snapshot"])
def test_reads_see_the_state_of_the_reached_version(db: Any, space: Subspace, snapshot: bool) -> None:
    db[space["a"]] = b"before"
    tr = at_future_version(db, SOON)
    view = tr.snapshot if snapshot else tr
    value, found = view.get(space["a"]), view.get_range_startswith(space.key())
    key = view.get_key(KeySelector.last_less_or_equal(space["a"]))
    written = commit_until(value.is_ready, db, space["a"])
    expected = seen_at(tr.get_read_version().wait(), written)
    assert value == expected
    assert key == space["a"].key()
    assert [bytes(row.value) for row in found] == [expected]
    assert view.get(space["a"]) == expected


@pytest.mark.usefixtures("patient")
def test_a_transaction_at_a_reached_version_conflicts_with_later_writes(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, SOON)
    value = tr.get(space["a"])
    commit_until(value.is_ready, db, space["a"])
    value.wait()
    db[space["a"]] = b"newer"
    tr[space["b"]] = b""
    assert code_of(tr.commit().wait) == 1020


@pytest.mark.usefixtures("patient")
def test_a_commit_waits_for_the_reads_that_wait_for_their_version(db: Any, space: Subspace) -> None:
    db[space["a"]] = b"before"
    tr = at_future_version(db, SOON)
    value = tr.get(space["a"])
    tr[space["b"]] = b"1"
    stamp, commit = tr.get_versionstamp(), tr.commit()
    assert not commit.is_ready()
    assert db[space["b"]] is None
    commit_until(value.is_ready, db, space["c"])
    commit.wait()
    assert value == b"before"
    assert (db[space["b"]], int.from_bytes(stamp[:8], "big")) == (b"1", tr.get_committed_version())


@pytest.mark.usefixtures("patient")
def test_a_read_without_a_wait_still_conflicts(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, SOON)
    value = tr.get(space["a"])
    commit_until(value.is_ready, db, space["c"])
    db[space["a"]] = b"newer"
    tr[space["b"]] = b""
    assert code_of(tr.commit().wait) == 1020


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda tr: tr.cancel(), 1025),
        (lambda tr: tr.reset(), 1025),
        (lambda tr: tr.options.set_timeout(50), 1031),
    ],
    ids=["cancel", "reset", "timeout"],
)
def test_a_transaction_that_ends_ends_its_waiting_reads_and_commit(
    db: Any, space: Subspace, end: Callable[[Any], object], code: int
) -> None:
    tr = at_future_version(db, NEVER)
    value, found = tr.get(space["a"]), tr.get_range_startswith(space.key())
    tr[space["b"]] = b""
    commit = tr.commit()
    end(tr)
    assert [code_of(value.wait), code_of(commit.wait)] == [code, code]
    assert code_of(lambda: list(found)) == code
    assert db[space["b"]] is None


def test_dropping_a_transaction_ends_its_waiting_reads(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    value = tr.get(space["a"])
    del tr
    assert code_of(value.wait) == 1025


def test_a_waiting_read_is_cancelled_from_another_thread(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    value = tr.get(space["a"])
    thread = threading.Timer(0.05, value.cancel)
    thread.start()
    assert code_of(value.wait) in (1101, 1009)  # a client's thread may have been in between
    thread.join()
    assert code_of(value.wait) in (1101, 1009)


def test_own_writes_are_read_without_the_version(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    tr[space["a"]] = b"own"
    assert tr.get(space["a"]) == b"own"  # a read of the database fails
    assert tr.get_read_version().wait() > NEVER


@pytest.mark.usefixtures("patient")
def test_a_watch_waits_for_the_version(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, SOON)
    watch = tr.watch(space["a"])
    commit = tr.commit()
    commit_until(commit.is_ready, db, space["c"])
    commit.wait()
    assert not watch.is_ready()
    db[space["a"]] = b"1"
    watch.wait()


@pytest.mark.usefixtures("patient")
def test_a_watch_of_the_value_that_its_transaction_writes_waits_for_the_next_one(db: Any, space: Subspace) -> None:
    db[space["a"]] = b"same"
    tr = at_future_version(db, SOON)
    watch = tr.watch(space["a"])
    tr[space["a"]] = b"same"
    commit = tr.commit()
    commit_until(commit.is_ready, db, space["c"])
    commit.wait()
    assert not watch.is_ready()
    db[space["a"]] = b"other"
    watch.wait()


def test_a_watch_at_an_unreached_version_fails_and_its_transaction_commits(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    watch = tr.watch(space["a"])
    tr[space["b"]] = b"1"
    tr.commit().wait()
    assert code_of(watch.wait) == 1009
    assert db[space["b"]] == b"1"


def test_a_commit_of_only_conflict_ranges_does_not_wait_for_the_version(db: Any, space: Subspace) -> None:
    tr = at_future_version(db, NEVER)
    tr.add_read_conflict_key(space["a"])
    tr[space["b"]] = b"1"
    tr.commit().wait()
    assert db[space["b"]] == b"1"


def test_tasks_wait_together_and_block_no_event_loop(db: Any, space: Subspace) -> None:
    async def main() -> tuple[set[int], int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        async def read(number: int) -> int:
            tr = at_future_version(db, NEVER)
            try:
                if number % 2:
                    await aio(tr.get(space["a"]))
                else:
                    await run_async(rows(tr, space.key(), space.key() + b"\xff"))
            except FDBError as error:
                return int(error.code)
            return 0

        before = set(threading.enumerate())
        ticking = asyncio.create_task(tick())
        reads = [asyncio.create_task(read(number)) for number in range(50)]
        await asyncio.sleep(0.2)
        more = len(set(threading.enumerate()) - before)
        codes = set(await asyncio.gather(*reads))
        ticking.cancel()
        return codes, ticks, more

    codes, ticks, more = asyncio.run(main())
    assert codes == {1009}
    assert ticks > 10
    assert more <= 1


def test_a_task_that_is_cancelled_gives_its_waiting_read_up(db: Any, space: Subspace) -> None:
    async def main() -> Any:
        tr = at_future_version(db, NEVER)
        value = tr.get(space["a"])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio(value), 0.05)
        return value

    assert code_of(asyncio.run(main()).wait) in (1101, 1025)


def test_a_version_between_two_commits_is_read_at(db: Any, space: Subspace) -> None:
    db[space["a"]] = b"old"
    before, writing, tr = db.create_transaction(), db.create_transaction(), db.create_transaction()
    before.get_read_version().wait()
    writing[space["a"]] = b"new"
    writing.commit().wait()
    tr.set_read_version(writing.get_committed_version() - 1)
    assert tr.get(space["a"]) == b"old"
    tr[space["b"]] = b""
    assert code_of(tr.commit().wait) == 1020
