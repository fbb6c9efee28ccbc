"""Keys of up to 10,000 bytes over LMDB's 511: a sorted dictionary says what every read must answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine.embedded.store.store import CommitRequest
from tests.helpers.stores import Row, clear, commit, contents, opened, put, view

# Lengths around every place where a key is cut: LMDB's own limit, the pointers at 500, the levels of 492 behind them.
_LENGTHS = [0, 1, 2, 8, 491, 492, 493, 499, 500, 501, 502, 510, 511, 512, 991, 992, 993, 1484, 1485, 9_999, 10_000]
_FILLS = [b"a", b"b", b"\0", b"\xfe"]
_TAILS = [b"", b"\0", b"\x01", b"a", b"aa", b"a\0", b"b", b"\xfe\xfe"]

_keys = st.builds(
    lambda fill, length, tail: (fill * length)[: max(0, length - len(tail))] + tail,
    st.sampled_from(_FILLS),
    st.sampled_from(_LENGTHS),
    st.sampled_from(_TAILS),
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _keys, st.binary(max_size=3)),
        st.tuples(st.just("clear"), _keys, st.just(b"")),
        st.tuples(st.just("clear_range"), _keys, _keys),
    ),
    max_size=25,
)
_TOP = b"\xff"


def _apply(model: dict[bytes, bytes], step: tuple[str, bytes, bytes]) -> tuple[int, bytes, bytes]:
    """Do a step on the model; return it as a mutation."""
    op, key, param = step
    if op == "set":
        model[key] = param
        return 0, key, param
    begin, end = (key, key + b"\0") if op == "clear" else (min(key, param), max(key, param))
    for found in [found for found in model if begin <= found < end]:
        del model[found]
    return 1, begin, end


@given(steps=_steps, bounds=st.lists(st.tuples(_keys, _keys, st.integers(0, 5)), max_size=6))
def test_keys_of_any_length_keep_their_order_in_reads_from_both_ends(
    steps: list[Any], bounds: list[tuple[bytes, bytes, int]]
) -> None:
    model: dict[bytes, bytes] = {}
    with opened() as store:
        for step in steps:
            mutation = _apply(model, step)
            commit(store, _request([mutation]))
        expected = sorted(model.items())
        with view(store) as snapshot:
            assert list(snapshot.scan(b"", _TOP)) == expected
            assert list(snapshot.scan(b"", _TOP, reverse=True)) == expected[::-1]
            for key in [step[1] for step in steps]:
                assert snapshot.get(key) == model.get(key)
            for begin, end, limit in bounds:
                inside = [row for row in expected if begin <= row[0] < end]
                assert snapshot.rows(begin, end, limit) == (inside[:limit] if limit else inside)
                assert snapshot.rows(begin, end, limit, reverse=True) == inside[::-1][: limit or None]
                assert list(snapshot.scan(begin, end)) == inside


@given(steps=_steps)
def test_many_changes_in_one_commit_do_what_they_do_one_by_one(steps: list[Any]) -> None:
    model: dict[bytes, bytes] = {}
    with opened() as store:
        commit(store, _request([_apply(model, step) for step in steps]))
        assert contents(store) == sorted(model.items())


def test_levels_that_are_empty_leave_nothing_behind() -> None:
    keys = [b"k" * length for length in (501, 600, 993, 2_000, 10_000)]
    with opened() as store:
        put(store, *[(key, b"v") for key in keys])
        clear(store, b"", _TOP)
        with store.files.env.begin() as txn:
            assert txn.stat(store.files.dbs.long)["entries"] == 0
            assert txn.stat(store.files.dbs.data)["entries"] == 0


@pytest.mark.parametrize("length", [500, 501, 992, 993, 10_000])
def test_an_atomic_operation_reads_and_writes_a_key_of_any_length(length: int) -> None:
    key = b"n" * length
    with opened() as store:
        for _ in range(3):
            commit(store, _request([(2, key, b"\x01")]))
        assert contents(store) == [(key, b"\x03")]


def test_a_scan_of_many_rows_of_mixed_length_is_complete() -> None:
    rows: list[Row] = sorted((b"%05d" % number * (1 + number % 210), b"v%d" % number) for number in range(3_000))
    with opened() as store:
        put(store, *rows)
        assert contents(store) == rows
        with view(store) as snapshot:
            assert list(snapshot.scan(b"", _TOP, reverse=True)) == rows[::-1]


def _request(mutations: list[tuple[int, bytes, bytes]]) -> CommitRequest:
    return CommitRequest(mutations=mutations)
