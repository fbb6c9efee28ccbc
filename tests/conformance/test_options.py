"""Options of transactions and databases: what each does, what it refuses, and how long it holds."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace

READS = b"\xff\xff/transaction/read_conflict_range/"
WRITES = b"\xff\xff/transaction/write_conflict_range/"
CONFLICTS = b"\xff\xff/transaction/conflicting_keys/"


def code_of(call: Any) -> int:
    with pytest.raises(FDBError) as caught:
        call()
    return caught.value.code


def shown(tr: Any, prefix: bytes, space: Subspace) -> list[tuple[bytes, bytes]]:
    """What a special range tells about the test's own keys, without their common prefix."""
    rows = tr.get_range(prefix + space.key(), prefix + space.key() + b"\xff")
    return [(row.key[len(prefix + space.key()) :], row.value) for row in rows]


@pytest.mark.parametrize(
    ("name", "argument", "code"),
    [
        ("timeout", -1, 2006),
        ("retry_limit", -2, 2006),
        ("max_retry_delay", -1, 2006),
        ("size_limit", 31, 2006),
        ("size_limit", 10_000_001, 2006),
        ("tag", "t" * 256, 2110),
        ("span_parent", b"short", 2006),
        ("debug_transaction_identifier", "i" * 101, 2006),
        ("log_transaction", None, 2000),
        ("use_grv_cache", None, 2007),
    ],
)
def test_a_bad_option_fails_what_comes_after_it(db: Any, name: str, argument: Any, code: int) -> None:
    tr = db.create_transaction()
    getattr(tr.options, f"set_{name}")(*(() if argument is None else (argument,)))
    assert code_of(tr.get(b"key").wait) == code
    assert code_of(tr.commit().wait) == code


@pytest.mark.parametrize(
    "name",
    ["causal_read_risky", "causal_write_risky", "priority_batch", "lock_aware", "server_request_tracing", "raw_access"],
)
def test_an_option_that_steers_machines_changes_no_answer(db: Any, space: Subspace, name: str) -> None:
    tr = db.create_transaction()
    getattr(tr.options, f"set_{name}")()
    tr[space["key"]] = b"1"
    assert tr[space["key"]] == b"1"
    tr.commit().wait()
    assert db[space["key"]] == b"1"


def test_more_than_five_tags_are_too_many(db: Any) -> None:
    tr = db.create_transaction()
    for number in range(6):
        tr.options.set_tag(f"tag {number}")
    assert code_of(tr.get(b"key").wait) == 2109


def test_an_option_of_bytes_takes_no_text(db: Any) -> None:
    with pytest.raises(TypeError):
        db.create_transaction().options.set_span_parent("text")


def test_a_transaction_that_may_only_read_locked_databases_may_not_write(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_read_lock_aware()
    tr[space["key"]] = b"1"
    assert code_of(tr.commit().wait) == 2023


def test_read_your_writes_can_only_be_turned_off_first(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr[space["key"]] = b"1"
    tr.options.set_read_your_writes_disable()
    assert code_of(tr.get(space["key"].key()).wait) == 2000


def test_read_your_writes_can_be_turned_off_again_as_long_as_nothing_was_read(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr[space["key"]] = b"1"
    tr.options.set_read_your_writes_disable()
    assert not tr[space["key"]].present()
    tr.options.set_read_your_writes_disable()
    assert code_of(tr.commit().wait) == 2000


def test_an_unreadable_key_can_be_read_when_asked_for(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_bypass_unreadable()
    tr.set_versionstamped_value(space["key"].key(), bytes(10) + b"tail" + bytes(4))
    assert tr[space["key"]] == bytes(10) + b"tail" + bytes(4)


def test_what_is_used_during_a_commit_fails_it_unless_that_is_turned_off(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_used_during_commit_protection_disable()
    tr[space["key"]] = b"1"
    commit = tr.commit()
    assert code_of(tr.get(space["key"].key()).wait) == 2017
    commit.wait()
    assert db[space["key"]] == b"1"


def test_some_options_outlive_an_error_and_none_a_reset(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(1)
    tr.options.set_max_retry_delay(1)
    tr.on_error(1020).wait()
    assert code_of(tr.on_error(1020).wait) == 1020
    tr.reset()
    for _ in range(3):
        tr.on_error(1020).wait()


@pytest.mark.engines("memory", "file")
def test_a_databases_options_are_its_transactions_defaults(url: str) -> None:
    import fdbqueue

    with fdbqueue.open(url) as db:
        db.options.set_transaction_retry_limit(0)
        assert code_of(db.create_transaction().on_error(1020).wait) == 1020
        db.options.set_transaction_size_limit(100)
        tr = db.create_transaction()
        tr.set(b"key", bytes(200))
        assert code_of(tr.commit().wait) == 2101
        tr.reset()
        tr.set(b"key", bytes(200))
        assert code_of(tr.commit().wait) == 2101


@pytest.mark.engines("memory", "file")
def test_a_database_bounds_its_watches(url: str) -> None:
    import fdbqueue

    with fdbqueue.open(url) as db:
        db.options.set_max_watches(2)
        tr = db.create_transaction()
        watches = [tr.watch(b"%d" % number) for number in range(3)]
        tr.commit().wait()
        assert code_of(watches[2].wait) == 1032
        watches[0].cancel()
        assert not db.get_and_watch(b"again")[1].is_ready()


@pytest.mark.engines("memory", "file")
def test_what_the_embedded_engine_lacks_says_so(db: Any) -> None:
    tr = db.create_transaction()
    for call in (
        lambda: db.open_tenant(b"tenant"),
        db.options.set_use_config_database,
        lambda: tr.get(b"\xff\xff/status/json").wait(),
    ):
        with pytest.raises(FDBError, match="not supported") as caught:
            call()
        assert caught.value.code == 2108


# -- special keys --------------------------------------------------------------------------------------------------


def test_a_transaction_tells_its_conflict_ranges(db: Any, space: Subspace) -> None:
    db[space["row"]] = b""
    tr = db.create_transaction()
    base = space.key()
    assert not tr.get(base + b"key").present()
    assert [row.key for row in tr.get_range(base + b"l", base + b"z", limit=1)] == []
    tr[base + b"own"] = b"1"
    tr.add_write_conflict_range(base + b"p", base + b"q")
    assert shown(tr, READS, space) == [(b"key", b"1"), (b"key\x00", b"0"), (b"l", b"1"), (b"z", b"0")]
    assert shown(tr, WRITES, space) == [(b"own", b"1"), (b"own\x00", b"0"), (b"p", b"1"), (b"q", b"0")]


def test_touching_conflict_ranges_are_told_as_one(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    base = space.key()
    for begin, end in ((b"c", b"d"), (b"a", b"b"), (b"b", b"c")):
        tr.add_read_conflict_range(base + begin, base + end)
    assert shown(tr, READS, space) == [(b"a", b"1"), (b"d", b"0")]


def test_the_conflicts_outlive_the_retry(db: Any, space: Subspace) -> None:
    base = space.key()
    tr = db.create_transaction()
    tr.options.set_report_conflicting_keys()
    assert not tr.get(base + b"b").present()
    list(tr.get_range(base + b"x", base + b"z"))
    tr[base + b"own"] = b""
    db[base + b"b"] = b"1"
    assert code_of(tr.commit().wait) == 1020
    expected = [(b"b", b"1"), (b"b\x00", b"0")]
    assert shown(tr, CONFLICTS, space) == expected
    tr.on_error(1020).wait()
    assert shown(tr, CONFLICTS, space) == expected


@pytest.mark.parametrize(("key", "code"), [(b"\xff\xff/nothing_of_this_name", 2113), (b"\xff\xff/transactiona", 2113)])
def test_a_special_key_of_no_module_is_refused(db: Any, key: bytes, code: int) -> None:
    assert code_of(db.create_transaction().get(key).wait) == code


def test_a_special_range_over_modules_is_refused(db: Any) -> None:
    rows = db.create_transaction().get_range(b"\xff\xff/a", b"\xff\xff/z")
    assert code_of(rows.to_list) == 2112


@pytest.mark.parametrize(("opened", "code"), [(False, 2114), (True, 2115)])
def test_special_keys_are_not_written(db: Any, opened: bool, code: int) -> None:
    tr = db.create_transaction()
    if opened:
        tr.options.set_special_key_space_enable_writes()
    tr.set(b"\xff\xff/transaction/x", b"")
    assert code_of(tr.commit().wait) == code
