"""Plain sets that are handed to a commit apart: the same mutations as one by one, and the same contents."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine.embedded.client.write_buffer import MANY, WriteBuffer
from fdbqueue.engine.embedded.store.commit.request import CommitRequest, PutRows
from tests.helpers.stores import commit, contents, opened

SET, ADD, STAMPED_KEY, STAMPED_VALUE = 0, 2, 14, 15

_keys = st.integers(0, 40).map(lambda n: b"%02d" % n)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _keys, st.binary(max_size=2)),
        st.tuples(st.just("clear"), _keys, st.just(b"")),
        st.tuples(st.just("clear_range"), _keys, _keys),
        st.tuples(st.just("add"), _keys, st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("stamp value"), _keys, st.just(bytes(14))),
        st.tuples(st.just("stamp key"), _keys, st.binary(max_size=2)),
    ),
    max_size=12,
)


def written(steps: list[Any], bulk: list[int]) -> WriteBuffer:
    """Do `steps` before, between and after many sets, as a transaction does them."""
    writes = WriteBuffer()
    for at, (op, key, param) in enumerate(steps):
        if at in bulk:
            for n in range(at, 40, 2):
                writes.set(b"%02d" % n, b"bulk", True)
        if op == "set":
            writes.set(key, param, True)
        elif op == "clear":
            writes.clear(key, True)
        elif op == "clear_range":
            writes.clear_range(min(key, param), max(key, param), True)
        elif op == "stamp key":
            writes.make_unreadable(key + bytes(10), key + b"\xff" * 10 + b"\0")
            writes.mutate(STAMPED_KEY, key + bytes(10) + len(key).to_bytes(4, "little"), param, False)
        else:
            writes.mutate(ADD if op == "add" else STAMPED_VALUE, key, param, True)
    return writes


@given(steps=_steps, bulk=st.lists(st.integers(0, 11), min_size=1, max_size=3))
def test_rows_with_mutations_equal_the_mutations_applied_one_by_one(steps: list[Any], bulk: list[int]) -> None:
    writes = written(steps, bulk)
    expected = writes.mutations()
    mutations, rows = writes.in_rows()
    request = CommitRequest(mutations=mutations, rows=rows)
    assert sorted(request.all_mutations()) == sorted(expected)
    assert request.size() == len(expected)
    assert [mutation for mutation in expected if mutation in mutations] == mutations
    assert writes.mutations() == expected
    with opened() as one_by_one, opened() as apart:
        commit(one_by_one, CommitRequest(mutations=expected))
        commit(apart, request)
        assert unstamped(contents(apart)) == unstamped(contents(one_by_one))


def unstamped(found: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(key[:2], value if len(value) != 10 else b"stamp") for key, value in found]


def test_many_sets_are_passed_as_rows_and_a_few_are_not() -> None:
    writes = WriteBuffer()
    for n in range(MANY - 1):
        writes.set(b"%02d" % n, b"", True)
    assert writes.in_rows()[1] is None
    writes.mutate(ADD, b"counter", b"\x01", True)
    mutations, rows = writes.in_rows()
    assert mutations == [(ADD, b"counter", b"\x01")]
    assert rows is not None
    assert list(rows) == [(b"%02d" % n, b"") for n in range(MANY - 1)]


def test_rows_with_long_keys_and_the_empty_key_are_where_sets_put_them() -> None:
    lengths = [0, 1, 499, 500, 501, 511, 512, 9_999]
    for some in (lengths, lengths[1:], lengths[:3], lengths[1:4], lengths[1:5]):
        rows = {b"k" * length: b"%d" % length for length in some}
        with opened() as store:
            commit(store, CommitRequest(mutations=[], rows=PutRows(sorted(rows), rows)))
            assert dict(contents(store)) == rows
