"""Writes: what every atomic operation makes of a value, in sight of the transaction and stored, and the limits."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace
from tests.conformance.model import ATOMICS, combined

VALUES = [None, b"", b"\x01", b"\xff\x00\x10", b"some longer text"]
PARAMS = [b"\x00", b"\x01", b"\xf0\x0f", b"some"]


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
