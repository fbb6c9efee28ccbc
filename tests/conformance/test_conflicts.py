"""Interleavings of transactions laid out by hand: who fails with 1020, and who does not.

In each, `reader` takes its read version first, `writer` commits after that, and then `reader` commits something of
its own, since a transaction that writes nothing never fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace

NOT_COMMITTED = 1020
Act = Callable[[Any, "Keys"], Any]


class Keys:
    """Short names for the keys of one test's space: ``keys.b`` is one of ``a`` to ``z``."""

    def __init__(self, space: Subspace) -> None:
        self._prefix: bytes = space.key()

    def __getattr__(self, name: str) -> bytes:
        return self._prefix + name.encode()

    @property
    def end(self) -> bytes:
        return self._prefix + b"\xff"


@pytest.fixture
def keys(space: Subspace) -> Keys:
    return Keys(space)


def fill(db: Any, keys: Keys, names: str = "bdfh") -> None:
    tr = db.create_transaction()
    for name in names:
        tr.set(getattr(keys, name), b"old")
    tr.commit().wait()


def open_at_its_version(db: Any) -> Any:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    return tr


def conflicts(db: Any, keys: Keys, read: Act, write: Act) -> bool:
    """Say whether a transaction that did `read` fails after another did `write`."""
    fill(db, keys)
    reader, writer = open_at_its_version(db), db.create_transaction()
    read(reader, keys)
    write(writer, keys)
    writer.commit().wait()
    reader.set(keys.z, b"its own write")
    return not commits(reader)


def commits(tr: Any) -> bool:
    try:
        tr.commit().wait()
    except FDBError as error:
        if error.code != NOT_COMMITTED:
            raise
        return False
    return True


def writing(name: str) -> Act:
    return lambda tr, keys: tr.set(getattr(keys, name), b"new")


def reading(name: str) -> Act:
    return lambda tr, keys: tr.get(getattr(keys, name)).present()


def rows(tr: Any, begin: Any, end: Any, limit: int = 0, reverse: bool = False) -> list[bytes]:
    return [bytes(row.key) for row in tr.get_range(begin, end, limit=limit, reverse=reverse).to_list()]


WRITES: dict[str, Act] = {
    "set": writing("b"),
    "clear": lambda tr, k: tr.clear(k.b),
    "clear_range": lambda tr, k: tr.clear_range(k.a, k.c),
    "clear of nothing": lambda tr, k: tr.clear_range(k.a, k.bb),
    "add": lambda tr, k: tr.add(k.b, b"\x01"),
    "max that changes nothing": lambda tr, k: tr.max(k.b, b"\x00"),
    "explicit key": lambda tr, k: tr.add_write_conflict_key(k.b),
    "explicit range": lambda tr, k: tr.add_write_conflict_range(k.a, k.c),
    "the value that is there": lambda tr, k: tr.set(k.b, b"old"),
}

READS: dict[str, Act] = {
    "get": reading("b"),
    "get_range": lambda tr, k: rows(tr, k.a, k.c),
    "get_key": lambda tr, k: tr.get_key(KeySelector.first_greater_or_equal(k.a)).wait(),
    "explicit key": lambda tr, k: tr.add_read_conflict_key(k.b),
    "explicit range": lambda tr, k: tr.add_read_conflict_range(k.a, k.c),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_every_kind_of_read_conflicts_with_every_kind_of_write(db: Any, keys: Keys, read: str, write: str) -> None:
    assert conflicts(db, keys, READS[read], WRITES[write])


@pytest.mark.parametrize("write", WRITES)
def test_writes_hidden_from_own_reads_still_conflict(db: Any, keys: Keys, write: str) -> None:
    def unseen(tr: Any, k: Keys) -> None:
        tr.options.set_read_your_writes_disable()
        WRITES[write](tr, k)

    assert conflicts(db, keys, reading("b"), unseen)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_elsewhere_does_not_conflict(db: Any, keys: Keys, write: str) -> None:
    assert not conflicts(db, keys, reading("d"), WRITES[write])


SNAPSHOT_READS: dict[str, Act] = {
    "get": lambda tr, k: tr.snapshot.get(k.b).present(),
    "get_range": lambda tr, k: rows(tr.snapshot, k.a, k.c),
    "get_key": lambda tr, k: tr.snapshot.get_key(KeySelector.first_greater_or_equal(k.a)).wait(),
}


@pytest.mark.parametrize("read", SNAPSHOT_READS)
def test_snapshot_reads_conflict_with_nothing(db: Any, keys: Keys, read: str) -> None:
    assert not conflicts(db, keys, SNAPSHOT_READS[read], WRITES["clear_range"])


def test_a_missing_key_that_was_read_conflicts_with_its_first_write(db: Any, keys: Keys) -> None:
    assert conflicts(db, keys, reading("c"), writing("c"))


def test_a_row_that_appears_in_a_range_that_was_read_is_a_conflict(db: Any, keys: Keys) -> None:
    assert conflicts(db, keys, lambda tr, k: rows(tr, k.a, k.e), writing("c"))


@pytest.mark.parametrize(("written", "expected"), [("a", True), ("dd", True), ("e", False), ("f", False)])
def test_a_range_conflicts_from_its_begin_to_just_before_its_end(
    db: Any, keys: Keys, written: str, expected: bool
) -> None:
    assert conflicts(db, keys, lambda tr, k: rows(tr, k.a, k.e), writing(written)) is expected


LIMITED = [
    # forward from a with 2 of b d f h: up to and with d
    (False, "a", True),
    (False, "b", True),
    (False, "c", True),
    (False, "d", True),
    (False, "dd", False),
    (False, "f", False),
    # backward with 2: from f on
    (True, "h", True),
    (True, "i", True),
    (True, "g", True),
    (True, "f", True),
    (True, "e", False),
    (True, "d", False),
]


@pytest.mark.parametrize(("reverse", "written", "expected"), LIMITED)
def test_a_limited_range_conflicts_only_as_far_as_it_was_read(
    db: Any, keys: Keys, reverse: bool, written: str, expected: bool
) -> None:
    def read(tr: Any, k: Keys) -> None:
        rows(tr, k.a, k.y, limit=2, reverse=reverse)

    assert conflicts(db, keys, read, writing(written)) is expected


SELECTORS = [
    # first_greater_than(b) is d: between b (left out) and d
    (KeySelector.first_greater_than, "b", "b", False),
    (KeySelector.first_greater_than, "b", "c", True),
    (KeySelector.first_greater_than, "b", "d", True),
    (KeySelector.first_greater_than, "b", "e", False),
    # the first from b on is b itself
    (KeySelector.first_greater_or_equal, "b", "b", True),
    (KeySelector.first_greater_or_equal, "b", "c", False),
    # last_less_than(d) is b: from b up to d (left out)
    (KeySelector.last_less_than, "d", "a", False),
    (KeySelector.last_less_than, "d", "b", True),
    (KeySelector.last_less_than, "d", "c", True),
    (KeySelector.last_less_than, "d", "d", False),
    # last_less_or_equal(e) is d: from d up to e
    (KeySelector.last_less_or_equal, "e", "c", False),
    (KeySelector.last_less_or_equal, "e", "d", True),
    (KeySelector.last_less_or_equal, "e", "e", True),
    (KeySelector.last_less_or_equal, "e", "f", False),
]


@pytest.mark.parametrize(("form", "key", "written", "expected"), SELECTORS)
def test_a_selector_conflicts_between_its_key_and_the_found_key(
    db: Any, keys: Keys, form: Any, key: str, written: str, expected: bool
) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.get_key(form(getattr(k, key))).wait()

    assert conflicts(db, keys, read, writing(written)) is expected


@pytest.mark.parametrize(("written", "expected"), [("a", True), ("c", True), ("f", True), ("g", False)])
def test_an_offset_conflicts_with_every_key_it_skipped(db: Any, keys: Keys, written: str, expected: bool) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.get_key(KeySelector.first_greater_or_equal(k.a) + 2).wait()

    assert conflicts(db, keys, read, writing(written)) is expected


def test_a_range_does_not_conflict_at_a_key_the_transaction_wrote_itself(db: Any, keys: Keys) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.set(k.b, b"\x01")
        tr.add(k.b, b"\x01")
        assert rows(tr, k.a, k.c) == [k.b]

    assert not conflicts(db, keys, read, writing("b"))
    assert conflicts(db, keys, read, writing("bb"))


def test_a_blind_write_conflicts_with_nothing(db: Any, keys: Keys) -> None:
    assert not conflicts(db, keys, lambda tr, k: tr.set(k.b, b"mine"), writing("b"))


@pytest.mark.parametrize("atomic", ["add", "bit_or", "byte_max", "append_if_fits", "compare_and_clear"])
def test_an_atomic_operation_reads_nothing(db: Any, keys: Keys, atomic: str) -> None:
    assert not conflicts(db, keys, lambda tr, k: getattr(tr, atomic)(k.b, b"\x01"), writing("b"))


def test_a_key_that_was_read_after_an_atomic_operation_on_it_conflicts(db: Any, keys: Keys) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.add(k.b, b"\x01")
        tr.get(k.b).present()

    assert conflicts(db, keys, read, writing("b"))


def test_a_key_that_was_set_before_it_was_read_does_not_conflict(db: Any, keys: Keys) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.set(k.b, b"mine")
        assert tr.get(k.b) == b"mine"

    assert not conflicts(db, keys, read, writing("b"))


def test_a_key_that_was_read_before_it_was_set_conflicts(db: Any, keys: Keys) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.get(k.b).present()
        tr.set(k.b, b"mine")

    assert conflicts(db, keys, read, writing("b"))


@pytest.mark.parametrize(("written", "expected"), [("b", False), ("c", False), ("d", True)])
def test_a_range_does_not_conflict_where_the_transaction_itself_had_cleared_it(
    db: Any, keys: Keys, written: str, expected: bool
) -> None:
    def read(tr: Any, k: Keys) -> None:
        tr.clear_range(k.a, k.d)
        rows(tr, k.a, k.e)

    assert conflicts(db, keys, read, writing(written)) is expected


def test_a_write_without_a_conflict_range_is_seen_by_no_reader(db: Any, keys: Keys) -> None:
    def write(tr: Any, k: Keys) -> None:
        tr.options.set_next_write_no_write_conflict_range()
        tr.set(k.b, b"quiet")

    assert not conflicts(db, keys, reading("b"), write)


def test_only_the_next_write_goes_without_a_conflict_range(db: Any, keys: Keys) -> None:
    def write(tr: Any, k: Keys) -> None:
        tr.options.set_next_write_no_write_conflict_range()
        tr.set(k.b, b"quiet")
        tr.set(k.d, b"loud")

    assert conflicts(db, keys, reading("d"), write)


def test_a_transaction_that_writes_nothing_never_fails(db: Any, keys: Keys) -> None:
    fill(db, keys)
    reader = open_at_its_version(db)
    reader.get(keys.b).present()
    db.set(keys.b, b"new")
    assert commits(reader)


def test_a_write_conflict_range_alone_makes_a_reader_that_can_fail(db: Any, keys: Keys) -> None:
    fill(db, keys)
    reader = open_at_its_version(db)
    reader.get(keys.b).present()
    reader.add_write_conflict_key(keys.z)
    db.set(keys.b, b"new")
    assert not commits(reader)
