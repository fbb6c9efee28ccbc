"""Writes: what every atomic operation makes of a value, in sight of the transaction and stored, and the limits."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace, strinc
from fdbqueue.engine.optional import set_rows
from tests.conformance.model import ATOMICS, combined

VALUES = [None, b"", b"\x01", b"\xff\x00\x10", b"some longer text"]
PARAMS = [b"", b"\x00", b"\x01", b"\xf0\x0f", b"some"]


@pytest.mark.parametrize("name", [*ATOMICS, "compare_and_clear"])
@pytest.mark.parametrize("before", ["stored", "written", "read", "cleared"])
def test_an_atomic_operation_makes_of_a_value_what_it_should(db: Any, space: Subspace, name: str, before: str) -> None:
    cases = {space[n].key(): case for n, case in enumerate((value, param) for value in VALUES for param in PARAMS)}
    tr = db.create_transaction()
    for key, (value, _) in cases.items():
        if value is not None:
            tr.set(key, value)
    if before != "written":
        tr.commit().wait()
        tr = db.create_transaction()
    expected = {}
    for key, (value, param) in cases.items():
        if before == "read":
            tr.get(key).present()
        if before == "cleared":
            tr.clear(key)
        getattr(tr, name)(key, param)
        expected[key] = combined(name, None if before == "cleared" else value, param)
    if before != "stored":
        assert {key: tr.get(key).value for key in cases} == expected
    tr.commit().wait()
    assert {key: db.get(key) for key in cases} == expected


REFUSED = [
    (2102, lambda tr, prefix: tr.set(prefix + b"k" * 10_000, b"")),
    (2103, lambda tr, prefix: tr.set(prefix, bytes(100_001))),
    (2103, lambda tr, prefix: tr.add(prefix, bytes(100_001))),
    (2004, lambda tr, prefix: tr.set(b"\xffx", b"")),
    (2004, lambda tr, prefix: tr.clear_range(b"\xfe", b"\xffx")),
    (2005, lambda tr, prefix: tr.clear_range(prefix + b"b", prefix + b"a")),
]


@pytest.mark.parametrize(("code", "write"), REFUSED)
def test_a_write_beyond_the_limits_is_refused(db: Any, space: Subspace, code: int, write: Any) -> None:
    tr = db.create_transaction()
    write(tr, space.key())
    with pytest.raises(FDBError) as raised:
        tr.commit().wait()
    assert raised.value.code == code


def test_the_longest_key_and_value_are_stored(db: Any, space: Subspace) -> None:
    key = space.key().ljust(10_000, b"k")
    db.set(key, bytes(100_000))
    assert db.get(key) == bytes(100_000)


def test_a_transaction_of_more_than_ten_million_bytes_is_refused(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    for number in range(101):
        tr.set(space[number], bytes(100_000))
    with pytest.raises(FDBError) as raised:
        tr.commit().wait()
    assert raised.value.code == 2101


def at_a_stroke(tr: Any, keys: list[bytes], values: list[bytes]) -> None:
    set_rows(tr, keys, values)


def one_by_one(tr: Any, keys: list[bytes], values: list[bytes]) -> None:
    for key, value in zip(keys, values, strict=True):
        tr.set(key, value)


ROWS: dict[str, Any] = {
    "plain": lambda prefix: ([prefix + b"%03d" % n for n in range(40)], [b"%d" % n for n in range(40)]),
    "long keys": lambda prefix: ([prefix + bytes(n * 40) for n in range(40)], [b"v"] * 40),
    "twice": lambda prefix: ([prefix, prefix + b"b"] * 10, [b"%d" % n for n in range(20)]),
    "none": lambda prefix: ([], []),
    "a key too long": lambda prefix: ([prefix, prefix + bytes(10_000)], [b"", b""]),
    "a value too long": lambda prefix: ([prefix, prefix + b"b"], [b"", bytes(100_001)]),
    "a key of the system": lambda prefix: ([prefix, b"\xffx"], [b"", b""]),
}
BEFORE: dict[str, Any] = {
    "nothing": lambda tr, prefix: None,
    "an addition and a clear": lambda tr, prefix: (tr.add(prefix + b"001", b"\x01"), tr.clear(prefix + b"002")),
    "a versionstamp": lambda tr, prefix: tr.set_versionstamped_value(prefix + b"001", bytes(14)),
    "cleared": lambda tr, prefix: tr.clear_range_startswith(prefix),
    "no conflict of the next": lambda tr, prefix: tr.options.set_next_write_no_write_conflict_range(),
    "own writes not seen": lambda tr, prefix: tr.options.set_read_your_writes_disable(),
    "committed": lambda tr, prefix: tr.commit(),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("before", BEFORE)
def test_many_sets_at_a_stroke_do_what_so_many_calls_do(db: Any, space: Subspace, rows: str, before: str) -> None:
    found = [answers(db, space.key(), ROWS[rows], BEFORE[before], write) for write in (at_a_stroke, one_by_one)]
    assert found[0] == found[1]


def answers(db: Any, prefix: bytes, rows: Any, before: Any, write: Any) -> list[Any]:
    """Return what is seen of a transaction that writes rows, and by another that read them."""
    db.clear_range_startswith(prefix)
    reader, tr = db.create_transaction(), db.create_transaction()
    keys, values = rows(prefix)
    for key in keys:
        if key < b"\xff" and len(key) < 10_000:
            reader.get(key).present()
    before(tr, prefix)
    write(tr, keys, values)
    found = [asked(lambda: tr.get_approximate_size().wait())]
    found.append(asked(lambda: [(row.key, row.value) for row in tr.get_range_startswith(prefix)]))
    found.append(asked(lambda: tr.commit().wait()))
    found.append([(row.key, row.value if len(row.value) != 10 else b"stamp") for row in db[prefix : strinc(prefix)]])
    reader.set(prefix + b"reader", b"")
    found.append(asked(lambda: reader.commit().wait()))
    return found


def asked(question: Any) -> Any:
    try:
        return question()
    except FDBError as error:
        return error.code
