"""Two and three transactions at once end as if they had run one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace


def fails_with(tr: Any) -> int:
    """Commit and return the error's code, 0 for none."""
    try:
        tr.commit().wait()
    except FDBError as error:
        return int(error.code)
    return 0


def opened(db: Any, count: int) -> list[Any]:
    """Return transactions that all read at versions from before any of them commits."""
    transactions = [db.create_transaction() for _ in range(count)]
    for tr in transactions:
        tr.get_read_version().wait()
    return transactions


def test_of_two_that_count_up_the_first_to_commit_wins(db: Any, space: Subspace) -> None:
    key = space["n"]
    one, two = opened(db, 2)
    for tr in (one, two):
        seen = tr.get(key)
        tr.set(key, b"x" if seen.present() else b"1")
    assert (fails_with(two), fails_with(one)) == (0, 1020)


def test_write_skew_is_refused(db: Any, space: Subspace) -> None:
    one, two = opened(db, 2)
    one.get(space["a"]).present()
    one.set(space["b"], b"one")
    two.get(space["b"]).present()
    two.set(space["a"], b"two")
    assert (fails_with(one), fails_with(two)) == (0, 1020)


def test_snapshot_reads_allow_write_skew(db: Any, space: Subspace) -> None:
    one, two = opened(db, 2)
    one.snapshot.get(space["a"]).present()
    one.set(space["b"], b"one")
    two.snapshot.get(space["b"]).present()
    two.set(space["a"], b"two")
    assert (fails_with(one), fails_with(two)) == (0, 0)


def test_both_of_two_phantoms_cannot_commit(db: Any, space: Subspace) -> None:
    begin, end = space.range().start, space.range().stop
    one, two = opened(db, 2)
    for name, tr in (("one", one), ("two", two)):
        assert tr.get_range(begin, end).to_list() == []
        tr.set(space[name], b"only me")
    assert (fails_with(one), fails_with(two)) == (0, 1020)


def test_a_failed_transaction_conflicts_with_no_other(db: Any, space: Subspace) -> None:
    one, two, three = opened(db, 3)
    two.get(space["a"]).present()
    two.set(space["b"], b"two")
    three.get(space["b"]).present()
    three.set(space["c"], b"three")
    one.set(space["a"], b"one")
    assert (fails_with(one), fails_with(two), fails_with(three)) == (0, 1020, 0)


def test_a_chain_of_readers_that_commit_in_order_of_their_reads_all_succeed(db: Any, space: Subspace) -> None:
    one, two, three = opened(db, 3)
    for tr, reads, writes in ((three, "b", "c"), (two, "a", "b"), (one, "x", "a")):
        tr.get(space[reads]).present()
        tr.set(space[writes], b"")
    assert (fails_with(three), fails_with(two), fails_with(one)) == (0, 0, 0)


def test_one_that_reads_after_the_other_committed_sees_it_and_succeeds(db: Any, space: Subspace) -> None:
    one, two = db.create_transaction(), db.create_transaction()
    one.set(space["a"], b"one")
    assert fails_with(one) == 0
    assert two.get(space["a"]) == b"one"
    two.set(space["a"], b"two")
    assert fails_with(two) == 0
    assert db.get(space["a"]) == b"two"


def test_a_transaction_sees_the_database_as_it_was_at_its_first_read(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    db.set(space["b"], b"old")
    tr = db.create_transaction()
    assert tr.get(space["a"]) == b"old"
    db.set(space["b"], b"new")
    assert tr.get(space["b"]) == b"old"
    assert [bytes(row.value) for row in tr.get_range_startswith(space.key())] == [b"old", b"old"]
    assert db.get(space["b"]) == b"new"


def test_uncommitted_writes_are_not_visible(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"mine")
    assert db.get(space["a"]) is None
    del tr
    assert db.get(space["a"]) is None


def test_atomic_operations_of_many_at_once_all_count(db: Any, space: Subspace) -> None:
    transactions = opened(db, 10)
    for tr in transactions:
        tr.add(space["n"], (1).to_bytes(8, "little"))
    assert [fails_with(tr) for tr in transactions] == [0] * 10
    assert db.get(space["n"]) == (10).to_bytes(8, "little")


@pytest.mark.parametrize("again", [True, False])
def test_a_conflict_is_gone_after_on_error(db: Any, space: Subspace, again: bool) -> None:
    (tr,) = opened(db, 1)
    tr.get(space["a"]).present()
    tr.set(space["b"], b"")
    db.set(space["a"], b"new")
    assert fails_with(tr) == 1020
    tr.on_error(1020).wait()
    assert tr.get(space["b"]) == None  # noqa: E711  a lazy value compares with None
    if again:
        assert tr.get(space["a"]) == b"new"
    tr.set(space["b"], b"")
    assert fails_with(tr) == 0


def test_conflicting_keys_are_reported_when_asked_for(db: Any, space: Subspace) -> None:
    report = b"\xff\xff/transaction/conflicting_keys/"
    (tr,) = opened(db, 1)
    tr.options.set_report_conflicting_keys()
    tr.get(space["a"]).present()
    tr.get(space["b"]).present()
    tr.set(space["c"], b"")
    db.set(space["b"], b"new")
    assert fails_with(tr) == 1020
    edges = {bytes(row.key)[len(report) :]: bytes(row.value) for row in tr.get_range(report, report + b"\xff\xff")}
    key = space["b"].key()
    assert (edges[key], edges[key + b"\x00"]) == (b"1", b"0")
    assert space["a"].key() not in edges
