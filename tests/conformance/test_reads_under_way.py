"""Reads that nobody has waited for, when their transaction ends: which fail, and how."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace

Read = Callable[[Any, bytes], Any]

READS: dict[str, Read] = {
    "get": lambda tr, key: tr.get(key),
    "snapshot": lambda tr, key: tr.snapshot.get(key),
    "get_key": lambda tr, key: tr.get_key(KeySelector.first_greater_than(key[:-1])),
    "last_less_than": lambda tr, key: tr.get_key(KeySelector.last_less_than(key + b"x")),
    "get_range": lambda tr, key: tr.get_range(key, key + b"x"),
    "selectors": lambda tr, key: tr.get_range(KeySelector.last_less_or_equal(key), key + b"x"),
    "get_read_version": lambda tr, key: tr.get_read_version(),
    "added to": lambda tr, key: tr.add(key, b"\x01") or tr.get(key),
}


def outcome(read: Any) -> Any:
    """Return what a read brings, or the code that it fails with."""
    try:
        if hasattr(read, "to_list"):
            return len(read.to_list())
        value = read.wait()
        return value if isinstance(value, int) else value.value
    except FDBError as error:
        return error.code


def ended_before_it_was_answered(db: Any, read: Read, key: bytes, end: str, *, own_writes: bool = True) -> list[Any]:
    """Return the outcomes of two reads that were made right before their transaction's end: a cluster may be faster."""
    for _ in range(100):
        tr = db.create_transaction()
        if not own_writes:
            tr.options.set_read_your_writes_disable()
        reads = [read(tr, key), read(tr, key)]
        getattr(tr, end)()
        found = [outcome(read) for read in reads]
        if found == [1025, 1025]:
            break
    return found


@pytest.fixture
def key(db: Any, space: Subspace) -> bytes:
    key: bytes = space["key"].key()
    db[key] = b"1"
    return key


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("end", ["cancel", "reset"])
def test_a_pending_read_fails_when_the_transaction_ends(db: Any, key: bytes, read: Read, end: str) -> None:
    assert ended_before_it_was_answered(db, read, key, end) == [1025, 1025]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("end", ["cancel", "reset"])
def test_a_read_that_was_waited_for_stays(db: Any, key: bytes, read: Read, end: str) -> None:
    tr = db.create_transaction()
    asked = read(tr, key)
    first = outcome(asked)
    getattr(tr, end)()
    assert outcome(asked) == first


def test_a_known_value_is_never_a_pending_read(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    tr.get(key).wait()
    tr[key + b"own"] = b"own"
    tr.clear(key + b"cleared")
    reads = [tr.get(key), tr.get(key + b"own"), tr.get(key + b"cleared"), tr.get_read_version()]
    tr.cancel()
    assert [outcome(read) for read in reads[:3]] == [b"1", b"own", None]
    assert outcome(reads[3]) > 0


def test_keys_in_a_range_that_was_read_are_known(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    tr.get_range(key, key + b"x").to_list()
    reads = [tr.get(key), tr.get_range(key, key + b"x"), tr.get_key(KeySelector.first_greater_or_equal(key))]
    tr.cancel()
    assert [outcome(read) for read in reads] == [b"1", 1, key]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_pending_read_without_read_your_writes_fails_too(db: Any, key: bytes, read: Read) -> None:
    assert ended_before_it_was_answered(db, read, key, "cancel", own_writes=False) == [1025, 1025]


def test_the_gap_behind_the_last_row_before_a_key_is_known(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    assert tr.get_key(KeySelector.last_less_than(key + b"x")).wait() == key
    value = tr.get(key + b"a")
    tr.cancel()
    assert outcome(value) is None


def test_a_wait_in_another_transaction_lets_a_read_finish(db: Any, key: bytes, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["elsewhere"]).wait()
    value = tr.get(key)
    db[space["other"]] = b""
    tr.cancel()
    assert outcome(value) == b"1"


@pytest.mark.engines("memory", "file")  # a cluster that has told the read version may answer before the end
def test_a_read_that_comes_after_a_wait_is_under_way(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    assert tr.get(key) == b"1"
    value = tr.get(key + b"other")
    tr.cancel()
    assert outcome(value) == 1025


@pytest.mark.parametrize(("waited", "code"), [(False, 1025), (True, None)])
def test_a_watch_whose_read_is_under_way_fails_with_it(db: Any, key: bytes, waited: bool, code: int | None) -> None:
    tr = db.create_transaction()
    watch = tr.watch(key)
    if waited:
        tr.snapshot.get(key).wait()
    tr.cancel()
    if code:
        with pytest.raises(FDBError) as caught:
            watch.wait()
        assert caught.value.code == code
    else:
        assert not watch.is_ready()


def test_a_use_during_the_commit_fails_what_is_under_way(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    tr[key + b"own"] = b""
    value = tr.get(key)
    commit = tr.commit()
    used = tr.get(key)
    assert (outcome(value), outcome(used)) == (2017, 2017)
    with pytest.raises(FDBError):
        commit.wait()


def test_a_commit_waits_for_the_reads(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    tr[key + b"own"] = b""
    value = tr.get(key)
    tr.commit().wait()
    tr.reset()
    assert outcome(value) == b"1"


def test_a_dropped_transaction_fails_its_reads(db: Any, key: bytes) -> None:
    value = db.create_transaction().get(key)
    assert outcome(value) == 1025
    tr = db.create_transaction()
    values = [tr.get(key), tr.snapshot.get(key)]
    del tr
    assert [outcome(value) for value in values] == [1025, 1025]


def test_a_snapshot_view_or_a_range_keeps_its_transaction(db: Any, key: bytes) -> None:
    snapshot = db.create_transaction().snapshot
    assert outcome(snapshot.get(key)) == b"1"
    rows = db.create_transaction().get_range(key, key + b"x")
    assert outcome(rows) == 1


@pytest.mark.parametrize("name", ["get", "snapshot", "get_key", "get_read_version"])
def test_a_read_can_be_cancelled_alone(db: Any, key: bytes, name: str) -> None:
    for _ in range(20):
        tr = db.create_transaction()
        asked = READS[name](tr, key)
        asked.cancel()
        if asked.cancelled():
            break  # else a cluster was faster
    assert outcome(asked) == 1101
    assert tr.get(key) == b"1"
    tr.commit().wait()


def test_cancelling_what_has_come_changes_nothing(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    value = tr.get(key)
    while not value.is_ready():
        time.sleep(0.001)
    tr.get(key + b"another").wait()
    value.cancel()
    assert value == b"1"


@pytest.mark.engines("memory", "file")  # as above
def test_a_read_beyond_what_is_known_does_not_keep_its_transaction(db: Any, space: Subspace) -> None:
    for name in (b"b", b"c", b"d", b"e"):
        db[space.key() + name] = b""
    tr = db.create_transaction()
    tr.get_range(space.key() + b"a", space.key() + b"f").to_list()
    found = tr.get_key(KeySelector(space.key() + b"e", False, -3))
    del tr
    assert outcome(found) == 1025


def test_a_read_version_that_is_asked_for_after_the_commit_is_under_way_too(db: Any) -> None:
    tr = db.create_transaction()
    tr.commit().wait()
    version = tr.get_read_version()
    tr.reset()
    assert outcome(version) == 1025


def test_a_writing_commit_has_taken_the_read_version_that_is_asked_for_afterwards(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    tr[key] = b""
    tr.commit().wait()
    version = tr.get_read_version()
    tr.reset()
    assert version.wait() > 0
