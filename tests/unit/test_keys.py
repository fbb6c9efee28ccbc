"""Keys and tuples work without the client library."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import KeySelector, Versionstamp, strinc
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.engine.keys import beginning, behind, below, bytes_behind, is_within, within
from tests.helpers.names import key_tuples, overlap

stamps = st.builds(Versionstamp, st.binary(min_size=10, max_size=10), st.integers(0, 2**16 - 1))


@given(stamp=stamps)
def test_a_versionstamp_packs_and_unpacks(stamp: Versionstamp) -> None:
    assert fdb_tuple.unpack(fdb_tuple.pack(("a", stamp, 1))) == ("a", stamp, 1)


def test_an_incomplete_versionstamp_packs_without_the_client_library() -> None:
    code = (
        "from fdbqueue.engine import tuple, Versionstamp;"
        "print(tuple.pack_with_versionstamp(('a', Versionstamp(user_version=7))).hex())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    packed = bytes.fromhex(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True))
    assert packed == b"\x02a\x00\x33" + b"\xff" * 10 + b"\x00\x07" + b"\x04\x00\x00\x00"


@given(prefix=st.binary(min_size=1, max_size=6), tail=st.binary(max_size=4))
def test_strinc_is_behind_every_key_with_the_prefix(prefix: bytes, tail: bytes) -> None:
    if prefix.strip(b"\xff"):
        assert prefix + tail < strinc(prefix)  # and no key stands between them
    else:
        with pytest.raises(ValueError, match="0xFF"):
            strinc(prefix)


@given(name=key_tuples, other=key_tuples)
@example(name=("a",), other=("a\x00b",))
@example(name=(b"a",), other=(b"a\x00", 7))
@example(name=(("a",),), other=(("a", None),))
@example(name=("a",), other=("a", 7))
def test_a_name_has_exactly_the_tuples_below_it(name: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    prefix, key = fdb_tuple.pack(name), fdb_tuple.pack(other)
    below_it = other[: len(name)] == name and fdb_tuple.pack(other[: len(name)]) == prefix
    assert is_within(key, prefix) == below_it == (within(prefix)[0] <= key < within(prefix)[1])
    assert (below(prefix)[0] <= key < below(prefix)[1]) == (below_it and key != prefix)
    assert behind(prefix) == within(prefix)[1]
    if not overlap(name, other):
        (begin, end), (first, last) = within(prefix), within(key)
        assert end <= first or last <= begin


@given(text=st.text(max_size=3), rest=st.text(max_size=3), more=key_tuples)
def test_the_texts_that_begin_so_are_one_range(text: str, rest: str, more: tuple) -> None:  # type: ignore[type-arg]
    begin, end = beginning(text, b"here")
    assert begin <= fdb_tuple.pack((text + rest, *more), prefix=b"here") < end
    begin, end = beginning(text + "x")
    assert not begin <= fdb_tuple.pack((text, *more)) < end


def test_bytes_behind_a_prefix_may_be_any() -> None:
    begin, end = bytes_behind(b"a\x15\x01")
    assert begin <= b"a\x15\x01" + b"\xff" * 8 < end


def test_a_selector_is_pickled_with_the_binding_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = type("KeySelector", (), {})
    monkeypatch.setitem(sys.modules, "fdb.impl", SimpleNamespace(KeySelector=theirs))
    selector = KeySelector.first_greater_than(b"a")
    assert isinstance(selector, theirs)
    assert repr(pickle.loads(pickle.dumps(selector))) == repr(selector)
    layout = Queue(("a",)).layout
    assert repr(pickle.loads(pickle.dumps(layout)).last_item) == repr(layout.last_item)
