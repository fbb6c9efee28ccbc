"""Reads in all their forms, and the errors of those that are not allowed."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, StreamingMode, Subspace, strinc

NAMES = [b"a", b"b", b"b\x00", b"bb", b"c", b"d", b"e"]


@pytest.fixture
def filled(db: Any, space: Subspace) -> bytes:
    """The prefix of keys with one row each for `NAMES`, whose values are the names."""
    tr = db.create_transaction()
    for name in NAMES:
        tr.set(space.key() + name, name)
    tr.commit().wait()
    return bytes(space.key())


def names(rows: Any) -> list[bytes]:
    return [bytes(row.value) for row in rows]


def code_of(call: Any) -> int:
    """Return the code of the error that `call` raises, 0 for none."""
    try:
        call()
    except FDBError as error:
        return int(error.code)
    return 0


@pytest.fixture(params=["serializable", "snapshot"])
def view(db: Any, request: pytest.FixtureRequest) -> Any:
    """A transaction's reads, and its snapshot reads."""
    tr = db.create_transaction()
    return tr.snapshot if request.param == "snapshot" else tr


def test_a_key_has_its_value_or_none(view: Any, filled: bytes) -> None:
    assert view.get(filled + b"a") == b"a"
    assert not view.get(filled + b"nothing").present()
    assert view[filled + b"a"] == b"a"


def test_a_range_goes_from_its_begin_to_before_its_end(view: Any, filled: bytes) -> None:
    assert names(view.get_range(filled + b"b", filled + b"d")) == [b"b", b"b\x00", b"bb", b"c"]
    assert names(view[filled + b"b" : filled + b"d"]) == [b"b", b"b\x00", b"bb", b"c"]


def test_a_range_can_be_read_backward(view: Any, filled: bytes) -> None:
    assert names(view.get_range(filled + b"c", strinc(filled), reverse=True)) == [b"e", b"d", b"c"]
    assert names(view[filled + b"c" : strinc(filled) : -1]) == [b"e", b"d", b"c"]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_limit_ends_a_range(view: Any, filled: bytes, limit: int, reverse: bool) -> None:
    expected = NAMES[::-1] if reverse else NAMES
    assert names(view.get_range(filled, strinc(filled), limit=limit, reverse=reverse)) == expected[:limit]


def test_an_empty_range_has_no_rows(view: Any, filled: bytes) -> None:
    assert names(view.get_range(filled + b"b", filled + b"b")) == []
    assert names(view.get_range(filled + b"x", filled + b"y")) == []


def test_a_prefix_names_the_keys_that_start_with_it(view: Any, filled: bytes) -> None:
    assert names(view.get_range_startswith(filled + b"b")) == [b"b", b"b\x00", b"bb"]
    assert names(view.get_range_startswith(filled + b"b", limit=1, reverse=True)) == [b"bb"]


MODES = ["want_all", "iterator", "small", "medium", "large", "serial"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_streaming_mode_reads_the_same_rows(db: Any, space: Subspace, mode: str, reverse: bool) -> None:
    tr = db.create_transaction()
    for number in range(200):
        tr.set(space[number], bytes(100) + b"%d" % number)
    streaming_mode = getattr(StreamingMode, mode)
    rows = tr.get_range_startswith(space.key(), reverse=reverse, streaming_mode=streaming_mode)
    found = [int(bytes(row.value)[100:]) for row in rows]
    assert found == (list(range(199, -1, -1)) if reverse else list(range(200)))


def test_the_exact_mode_wants_a_limit(view: Any, filled: bytes) -> None:
    def read(limit: int) -> list[bytes]:
        return names(view.get_range(filled, strinc(filled), limit=limit, streaming_mode=StreamingMode.exact))

    assert read(3) == NAMES[:3]
    assert code_of(lambda: read(0)) == 2210


def test_a_range_can_be_iterated_again(view: Any, filled: bytes) -> None:
    rows = view.get_range(filled, strinc(filled))
    assert names(rows) == names(rows) == names(rows.to_list()) == NAMES


SELECTED = [
    (KeySelector.first_greater_or_equal, b"b", b"b"),
    (KeySelector.first_greater_than, b"b", b"b\x00"),
    (KeySelector.last_less_than, b"b", b"a"),
    (KeySelector.last_less_or_equal, b"b", b"b"),
    (KeySelector.first_greater_or_equal, b"ba", b"bb"),
    (KeySelector.last_less_or_equal, b"ba", b"b\x00"),
]


@pytest.mark.parametrize(("form", "name", "expected"), SELECTED)
def test_a_selector_finds_its_key(view: Any, filled: bytes, form: Any, name: bytes, expected: bytes) -> None:
    assert view.get_key(form(filled + name)) == filled + expected


@pytest.mark.parametrize("steps", range(-2, 5))
def test_an_offset_steps_over_keys(view: Any, filled: bytes, steps: int) -> None:
    assert view.get_key(KeySelector.first_greater_or_equal(filled + b"b\x00") + steps) == filled + NAMES[2 + steps]


def test_selectors_can_be_the_ends_of_a_range(view: Any, filled: bytes) -> None:
    begin = KeySelector.first_greater_than(filled + b"a") + 1
    end = KeySelector.last_less_than(filled + b"e")
    assert names(view.get_range(begin, end)) == [b"b\x00", b"bb", b"c"]
    assert names(view.get_range(begin, end, reverse=True, limit=2)) == [b"c", b"bb"]


def test_selectors_that_cross_each_other_make_an_empty_range(view: Any, filled: bytes) -> None:
    begin = KeySelector.first_greater_or_equal(filled + b"d")
    assert names(view.get_range(begin, KeySelector.first_greater_or_equal(filled + b"b"))) == []


def test_behind_the_last_key_a_selector_finds_the_end_of_all_keys(view: Any) -> None:
    assert view.get_key(KeySelector.first_greater_or_equal(b"\xff")) == b"\xff"
    assert view.get_key(KeySelector.last_less_than(b"")) == b""


def test_selectors_known_to_be_beyond_the_last_key_make_an_inverted_conflict(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    assert tr.get_range(b"\xfe\xff", KeySelector(b"\xff", False, 2), reverse=True).to_list() == []  # so it knows them
    beyond = KeySelector(b"\xff", True, 2), KeySelector(b"\xff", True, 3)
    assert tr.snapshot.get_range(*beyond).to_list() == []
    assert code_of(lambda: tr.get_range(*beyond).to_list()) == 2005
    tr.set(space["a"], b"")
    assert code_of(lambda: tr.commit().wait()) == 2005


@pytest.mark.parametrize("reverse", [False, True])
def test_selectors_beyond_the_last_system_key_end_there(db: Any, reverse: bool) -> None:
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    last = b"\xff\xfe"
    assert tr.get_range(last, KeySelector(last, False, 40), reverse=reverse).to_list() == []
    assert tr.get_range(KeySelector(last, False, 20), KeySelector(last, True, 40), reverse=reverse).to_list() == []
    assert tr.get_key(KeySelector(last, False, 20)) == b"\xff\xff"


def test_keys_of_every_length_are_in_order(db: Any, space: Subspace) -> None:
    most = 10_000 - len(space.key())
    lengths = sorted({1, 2, 255, 400, 500, 511, 512, 513, 1000, 5000, most - 1, most})
    keys = sorted(space.key() + fill * length + tail for length in lengths for fill in (b"k",) for tail in (b"",))
    keys += [space.key() + b"k" * 600 + b"\x00", space.key() + b"k" * 600 + b"\xff", space.key() + b"l"]
    tr = db.create_transaction()
    for key in keys:
        tr.set(key, b"%d" % len(key))
    tr.commit().wait()
    rows = db.get_range_startswith(space.key())
    assert [bytes(row.key) for row in rows] == sorted(keys)
    assert all(row.value == b"%d" % len(row.key) for row in rows)
    assert [bytes(row.key) for row in db.get_range_startswith(space.key(), reverse=True)] == sorted(keys, reverse=True)


def test_a_range_that_ends_before_it_begins_is_empty(view: Any, filled: bytes) -> None:
    assert names(view.get_range(filled + b"b", filled + b"a")) == []


@pytest.mark.parametrize("key", [b"\xff\x01", b"\xffx"])
def test_the_systems_keys_are_refused_with_2004(view: Any, key: bytes) -> None:
    assert code_of(view.get(key).present) == 2004
    assert code_of(lambda: view.get_range(b"\xff", b"\xff\x02").to_list()) == 2004


def test_a_text_is_no_key(view: Any) -> None:
    with pytest.raises(TypeError):
        view.get("text")


@pytest.mark.parametrize(
    "ask",
    [
        lambda tr, space: tr.get_estimated_range_size_bytes(space.key(), space.key() + b"\xff"),
        lambda tr, space: tr.get_range_split_points(space.key(), space.key() + b"\xff", 1000),
    ],
)
def test_asking_for_sizes_is_no_read(db: Any, space: Subspace, ask: Any) -> None:
    tr = db.create_transaction()
    ask(tr, space).wait()
    db[space["a"]] = b"since"
    tr.options.set_read_your_writes_disable()
    assert tr[space["a"]] == b"since"
    tr[space["b"]] = b""
    db[space["c"]] = b"since"
    tr.commit().wait()


def test_an_empty_range_has_no_size(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    assert code_of(tr.get_estimated_range_size_bytes(space["a"].key(), space["a"].key()).wait) == 4100


@pytest.mark.parametrize("size", ["get_estimated_range_size_bytes", "get_range_split_points"])
def test_a_cancelled_transaction_fails_before_it_checks_a_range(db: Any, space: Subspace, size: str) -> None:
    tr = db.create_transaction()
    tr.cancel()
    key = space["a"].key()
    assert code_of(getattr(tr, size)(key, key, *([10] if "split" in size else [])).wait) == 1025


@pytest.mark.engines("memory", "file")  # a cluster goes by samples
def test_a_range_is_split_where_a_chunk_is_full(db: Any, space: Subspace) -> None:
    keys = [space[number].key() for number in range(7)]
    for key in keys:
        db[key] = b"v" * (50 - len(key))
    tr = db.create_transaction()
    assert tr.get_range_split_points(keys[0], keys[-1], 100).wait() == keys[::2]


def test_a_row_equals_itself_only(view: Any, filled: bytes) -> None:
    rows, again = view[filled : filled + b"\xff"].to_list(), view[filled : filled + b"\xff"].to_list()
    assert rows[0] == rows[0]
    assert rows[0] != again[0]
    assert len({rows[0], again[0]}) == 2
    with pytest.raises(TypeError):
        rows[0][0]


def test_a_row_can_be_changed_by_its_caller(view: Any, filled: bytes) -> None:
    row = view[filled : filled + b"\xff"].to_list()[0]
    row.value = b"another"
    assert (row.key, row.value) == tuple(row)


@pytest.mark.parametrize(
    ("limit", "count"), [(2**31 - 1, 5), (sys.maxsize, 5), (2**32, 5), (True, 1)], ids=["int", "max", "2**32", "True"]
)
def test_a_limit_has_32_bits(view: Any, filled: bytes, limit: int, count: int) -> None:
    assert len(view.get_range(filled, filled + b"\xff", limit=limit).to_list()[:5]) == count


@pytest.mark.parametrize("limit", [2**31, -2])
def test_a_negative_limit_is_refused_with_2012(view: Any, filled: bytes, limit: int) -> None:
    with pytest.raises(FDBError) as caught:
        view.get_range(filled, filled + b"\xff", limit=limit).to_list()
    assert caught.value.code == 2012


@pytest.mark.parametrize("arguments", [{"limit": None}, {"limit": 1.0}, {"reverse": None}, {"streaming_mode": "small"}])
def test_a_limit_must_be_a_whole_number(view: Any, filled: bytes, arguments: dict[str, Any]) -> None:
    with pytest.raises(ctypes.ArgumentError):
        view.get_range(filled, filled + b"\xff", **arguments)


def test_no_key_is_made_up_behind_the_systems_last(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    tr.options.set_read_your_writes_disable()
    found = tr.get_key(KeySelector(b"\xff\xf0", False, 1000))
    assert found == b"\xff\xff" or tr[found].present()
    for reverse in (False, True):
        rows = tr.get_range(b"\xff", KeySelector(b"\xff", False, 3), reverse=reverse)
        assert all(tr[row.key].present() for row in rows)


def test_a_chunk_has_a_whole_number_of_bytes(view: Any, filled: bytes) -> None:
    with pytest.raises(ctypes.ArgumentError):
        view.get_range_split_points(filled, filled + b"\xff", 1.5)


@pytest.mark.parametrize("selector", [(None, 1), (False, 1.5), (False, None)])
def test_a_selector_is_made_of_whole_numbers(view: Any, filled: bytes, selector: tuple[Any, Any]) -> None:
    with pytest.raises(ctypes.ArgumentError):
        view.get_key(KeySelector(filled, *selector))


@pytest.mark.parametrize(("offset", "same_as"), [(2**31, -(2**31)), (2**32 + 1, 1), (True, 1)])
def test_an_offset_has_32_bits(view: Any, filled: bytes, offset: int, same_as: int) -> None:
    key = filled + b"b"
    assert view.get_key(KeySelector(key, False, offset)) == view.get_key(KeySelector(key, False, same_as))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_may_end_far_beyond_all_keys(view: Any, filled: bytes, reverse: bool) -> None:
    end = KeySelector(filled, False, 2**31 - 1)
    rows = view.get_range(filled, end, limit=2, reverse=reverse, streaming_mode=StreamingMode.want_all).to_list()
    assert len(rows) == 2
