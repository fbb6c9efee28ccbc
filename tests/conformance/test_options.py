"""Options of transactions and databases: what each does, what it refuses, and how long it holds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import FDBError, KeySelector, Subspace
from tests.helpers.cluster import release

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
        ("span_parent", bytes(33), 2100),
        ("span_parent", (0x0FDB00B0A0000000).to_bytes(8, "little") + bytes(25), 2100),
        ("debug_transaction_identifier", "i" * 101, 2006),
        ("log_transaction", None, 2000),
        ("use_grv_cache", None, 2007),
    ],
)
def test_a_bad_option_fails_later_calls(db: Any, name: str, argument: Any, code: int) -> None:
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


def test_a_sixth_tag_is_too_many_also_if_it_is_one_of_the_five(db: Any) -> None:
    tr = db.create_transaction()
    for number in range(5):
        tr.options.set_tag(f"tag {number}")
    tr.options.set_tag("tag 0")
    assert code_of(tr.get(b"key").wait) == 2109


def test_a_span_of_this_version_is_taken(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_span_parent((0x0FDB00B073000000).to_bytes(8, "little") + bytes(25))
    assert not tr[space["key"]].present()


@pytest.mark.parametrize("option", ["raw_access", "read_system_keys", "access_system_keys"])
def test_raw_access_has_room_for_a_prefix_of_eight_bytes(db: Any, space: Subspace, option: str) -> None:
    key = space.key() + b"k" * (10_008 - len(space.key()))
    tr = db.create_transaction()
    getattr(tr.options, f"set_{option}")()
    tr[key] = b"1"
    if release(db) < (8, 0):  # has no tenants, whose prefix this is for
        tr.commit().wait()
        assert db[key] == b"1"
        tr.reset()
    tr[key] = b"2"
    assert code_of(tr.commit().wait) == 2102


def test_a_database_with_a_commit_is_not_new(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr[space["a"]] = b""
    tr.commit().wait()
    tr.options.set_initialize_new_database()
    assert code_of(tr.get(space["a"]).wait) == 2010


def test_a_new_database_has_version_0_and_nothing_to_read(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_initialize_new_database()
    assert tr.get_read_version().wait() == 0
    tr[space["key"]] = b"1"
    tr.commit().wait()
    assert db[space["key"]] == b"1"
    tr.reset()
    tr.options.set_initialize_new_database()
    assert code_of(tr.get(space["key"].key()).wait) == 2000


def test_a_database_with_a_read_version_is_not_new(db: Any) -> None:
    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.options.set_initialize_new_database()
    assert code_of(tr.get(b"key").wait) == 2010


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


def test_an_option_allows_reads_in_the_range_of_a_versionstamped_key(db: Any, space: Subspace) -> None:
    prefix = space.key()
    between = prefix + b"\x7f" * 10
    db[between] = b"there before"
    tr = db.create_transaction()
    tr.options.set_bypass_unreadable()
    tr.set_versionstamped_key(prefix + bytes(10) + struct.pack("<L", len(prefix)), b"")
    assert tr[between] == b"there before"


def test_a_use_during_the_commit_fails_the_commit_unless_an_option_allows_it(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_used_during_commit_protection_disable()
    tr[space["key"]] = b"1"
    commit = tr.commit()
    assert code_of(tr.get(space["key"].key()).wait) == 2017
    commit.wait()
    assert db[space["key"]] == b"1"


def test_some_options_survive_an_error_and_no_option_survives_a_reset(db: Any) -> None:
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


@pytest.fixture
def own_db(url: str) -> Iterator[Any]:
    """A database whose options may be changed. A cluster's client has one for all who open it."""
    with fdbqueue.open(url) as db:
        yield db
        db.options.set_transaction_retry_limit(-1)
        db.options.set_transaction_size_limit(10_000_000)
        db.options.set_transaction_timeout(0)


def test_a_transaction_keeps_the_defaults_that_it_was_made_with(own_db: Any, space: Subspace) -> None:
    before = own_db.create_transaction()
    own_db.options.set_transaction_retry_limit(1)
    limited = own_db.create_transaction()
    own_db.options.set_transaction_retry_limit(-1)
    for _ in range(3):
        before.on_error(1020).wait()
    limited.on_error(1020).wait()
    assert code_of(limited.on_error(1020).wait) == 1020
    limited.reset()
    for _ in range(3):
        limited.on_error(1020).wait()


def test_a_default_size_limit_holds_from_the_next_transaction_on(own_db: Any, space: Subspace) -> None:
    tr = own_db.create_transaction()
    own_db.options.set_transaction_size_limit(100)
    tr.on_error(1020).wait()
    tr[space["key"]] = bytes(200)
    tr.commit().wait()
    tr.reset()
    tr[space["key"]] = bytes(200)
    assert code_of(tr.commit().wait) == 2101


def test_an_option_of_one_transaction_does_not_change_an_older_one(own_db: Any, space: Subspace) -> None:
    one, other = own_db.create_transaction(), own_db.create_transaction()
    own_db.options.set_transaction_retry_limit(-1)
    one.options.set_read_your_writes_disable()
    other[space["key"]] = b"own"
    assert other[space["key"]] == b"own"


def test_whether_snapshot_reads_see_own_writes_follows_the_database_at_each_attempt(
    own_db: Any, space: Subspace
) -> None:
    def seen() -> Any:
        tr[space["key"]] = b"own"
        return tr.snapshot[space["key"]].value

    tr = own_db.create_transaction()
    own_db.options.set_snapshot_ryw_disable()
    try:
        assert seen() == b"own"
        tr.on_error(1020).wait()
        assert seen() is None
    finally:
        own_db.options.set_snapshot_ryw_enable()


@pytest.mark.engines("memory", "file")
def test_a_database_bounds_its_watches(url: str) -> None:
    with fdbqueue.open(url) as db:
        db.options.set_max_watches(2)
        tr = db.create_transaction()
        watches = [tr.watch(b"%d" % number) for number in range(3)]
        tr.commit().wait()
        assert code_of(watches[2].wait) == 1032
        watches[0].cancel()
        assert not db.get_and_watch(b"again")[1].is_ready()


@pytest.mark.engines("memory", "file")  # a cluster's client has one database for all who open it
@pytest.mark.parametrize(
    ("name", "argument"), [("max_watches", -1), ("max_watches", 1_000_001), ("location_cache_size", -1)]
)
def test_a_bad_option_of_a_database_fails_all_its_transactions(url: str, name: str, argument: int) -> None:
    with fdbqueue.open(url) as db:
        getattr(db.options, f"set_{name}")(argument)
        assert code_of(lambda: db.get(b"key")) == 2006
        tr = db.create_transaction()
        tr.reset()
        assert code_of(tr.get_read_version().wait) == 2006


@pytest.mark.engines("memory", "file")
def test_an_option_that_the_embedded_engine_lacks_says_so(db: Any) -> None:
    tr = db.create_transaction()
    for call in (
        lambda: db.open_tenant(b"tenant"),
        db.get_client_status,
        getattr(db.options, "set_use_config_database", lambda: db.open_tenant(b"tenant")),  # 8.0 has none
        lambda: tr.get(b"\xff\xff/status/json").wait(),
    ):
        with pytest.raises(FDBError, match="not supported") as caught:
            call()
        assert caught.value.code == 2108


@pytest.mark.parametrize(("limit", "code"), [(0, 2101), (1, 0)])
def test_without_own_writes_in_view_a_commit_counts_each_get_and_write_but_no_range(
    db: Any, space: Subspace, limit: int, code: int
) -> None:
    tr = db.create_transaction()
    key = space["key"].key()
    tr.options.set_read_your_writes_disable()
    tr.clear(key)
    assert not tr.get(key).present()
    assert not tr.get(key).present()
    assert tr.get_range(key, key + b"\0").to_list() == []
    counted = 44 + 2 * len(key) + 1 + 3 * (24 + 2 * len(key) + 1)
    tr.options.set_size_limit(counted - 1 + limit)
    if code:
        assert code_of(tr.commit().wait) == code
    else:
        tr.commit().wait()


@pytest.mark.parametrize(("limit", "code"), [(0, 2101), (1, 0)])
def test_a_commit_counts_cleared_keys_and_the_parts_of_a_range_between_its_writes(
    db: Any, space: Subspace, limit: int, code: int
) -> None:
    tr = db.create_transaction()
    key, other = space["key"].key(), space["other"].key()
    tr.clear(other)
    tr.clear_range(key, key + b"c")
    tr.set(key + b"a", b"value")
    length = len(key)
    cleared = 44 + 2 * len(other) + 1 + 44 + 2 * length + 1 + 44 + 2 * length + 3
    written = 44 + length + 1 + len(b"value")
    conflicts = 24 + 2 * len(other) + 1 + 24 + 2 * length + 1
    tr.options.set_size_limit(cleared + written + conflicts - 1 + limit)
    if code:
        assert code_of(tr.commit().wait) == code
    else:
        tr.commit().wait()


def test_a_range_up_to_a_key_that_is_too_long_conflicts_as_far_as_keys_go(db: Any, space: Subspace) -> None:
    base = space.key()
    longest = base + b"k" * ((10_009 if release(db) < (8, 0) else 10_001) - len(base))
    tr = db.create_transaction()
    tr.get_range(base, KeySelector.first_greater_than(longest + b"kkk")).to_list()
    assert shown(tr, READS, space) == [(b"", b"1"), (longest[len(base) :], b"0")]


# -- special keys --------------------------------------------------------------------------------------------------


def test_a_transaction_reports_its_conflict_ranges(db: Any, space: Subspace) -> None:
    db[space["row"]] = b""
    tr = db.create_transaction()
    base = space.key()
    assert not tr.get(base + b"key").present()
    assert [row.key for row in tr.get_range(base + b"l", base + b"z", limit=1)] == []
    tr[base + b"own"] = b"1"
    tr.add_write_conflict_range(base + b"p", base + b"q")
    assert shown(tr, READS, space) == [(b"key", b"1"), (b"key\x00", b"0"), (b"l", b"1"), (b"z", b"0")]
    assert shown(tr, WRITES, space) == [(b"own", b"1"), (b"own\x00", b"0"), (b"p", b"1"), (b"q", b"0")]


def test_touching_conflict_ranges_are_reported_as_one(db: Any, space: Subspace) -> None:
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


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (b"\xff\xff/nothing_of_this_name", 2113),
        (b"\xff\xff/transactiona", 2113),
        (b"\xff\xff\x00", 2113),
        (b"\xff\xff\xff", 2004),
        (b"\xff\xff\xff\x01", 2004),
    ],
)
def test_a_special_key_of_no_module_is_refused(db: Any, key: bytes, code: int) -> None:
    assert code_of(db.create_transaction().get(key).wait) == code


def test_the_first_special_key_has_no_value(db: Any) -> None:
    assert not db.create_transaction().get(b"\xff\xff").present()


@pytest.mark.parametrize(
    ("begin", "end", "code"),
    [
        (b"/u", b"/worker_interfaces/", 2113),
        (b"/u", b"/worker_interfaces/a", 2112),
        (b"/d", b"/error_message", 2113),
        (b"/d", b"/error_message\x00", 2112),
        (b"/transaction/", b"/transaction0\x00", 2112),
        (b"/transaction0", b"/transaction1", 2113),
        (b"\xff", b"\xff", 2004),
    ],
)
def test_a_special_range_is_refused_unless_it_keeps_to_a_module(db: Any, begin: bytes, end: bytes, code: int) -> None:
    rows = db.create_transaction().get_range(b"\xff\xff" + begin, b"\xff\xff" + end)
    assert code_of(rows.to_list) == code


def test_a_broken_transaction_shows_its_writes_before_it_refuses_its_reads(db: Any, space: Subspace) -> None:
    key = space["key"].key()
    tr = db.create_transaction()
    tr[key] = b""
    tr.commit().wait()
    assert code_of(tr.get(key).wait) == 2017
    for limit in (1, 2):
        rows = tr.get_range(READS, WRITES + key + b"x", limit=limit, reverse=True).to_list()
        assert [bytes(row.key) for row in rows] == [WRITES + key + b"\0", WRITES + key][:limit]
    assert code_of(tr.get_range(READS, WRITES + key + b"x", limit=3, reverse=True).to_list) == 2017
    assert code_of(tr.get_range(READS, WRITES + key + b"x", limit=1).to_list) == 2017


def test_read_your_writes_can_not_be_disabled_after_a_read_that_the_client_answered(db: Any) -> None:
    tr = db.create_transaction()
    assert tr.get_key(KeySelector(b"", False, 0)) == b""
    tr.options.set_read_your_writes_disable()
    assert code_of(tr.get(b"a").wait) == 2000


def test_a_special_selector_goes_no_further_than_its_module(db: Any) -> None:
    tr = db.create_transaction()
    tr.add_read_conflict_key(b"a")
    message, after = b"\xff\xff/error_message", b"\xff\xff/transaction0"
    assert tr.get_range(message, KeySelector(message, False, 9)).to_list() == []
    edges = [READS + b"a", READS + b"a\0"]
    assert [row.key for row in tr.get_range(READS, KeySelector(after, False, 0))] == edges[:1]
    assert [row.key for row in tr.get_range(READS, KeySelector(after, False, 5))] == edges


def test_no_special_key_is_between_the_first_one_and_the_next(db: Any) -> None:
    first = b"\xff\xff"  # of all keys, it alone has none after it
    tr = db.create_transaction()
    assert tr.get_range(KeySelector(first, False, 9), KeySelector(first, True, 0), reverse=True).to_list() == []
    assert code_of(tr.get_range(KeySelector(first, False, 1), KeySelector(first, True, 2)).to_list) == 2113


@pytest.mark.engines("memory", "file")
def test_a_relaxed_range_over_modules_about_machines_is_not_supported(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_special_key_space_relaxed()
    assert tr.get_range(b"\xff\xff/transaction/", b"\xff\xff/u").to_list() == []
    with pytest.raises(FDBError, match="not supported"):
        tr.get_range(b"\xff\xff/transaction/", b"\xff\xff/z").to_list()


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (KeySelector(WRITES + b"a", False, 0), WRITES + b"b"),
        (WRITES + b"a", KeySelector(WRITES + b"b", False, -5)),
        (CONFLICTS + b"a", KeySelector(CONFLICTS + b"b", False, 2)),
        (READS + b"a", KeySelector(CONFLICTS + b"b", False, 2)),
    ],
)
def test_a_cancelled_transaction_can_not_read_a_range_over_its_read_conflicts(db: Any, begin: Any, end: Any) -> None:
    tr = db.create_transaction()
    tr.cancel()
    assert code_of(tr.get_range(begin, end).to_list) == 1025


def test_a_cancelled_transaction_can_read_all_conflict_ranges_but_its_read_conflicts(db: Any) -> None:
    tr = db.create_transaction()
    tr.cancel()
    assert tr.get_range(WRITES + b"a", KeySelector(WRITES + b"b", False, 9)).to_list() == []
    assert tr.get_range(KeySelector(CONFLICTS + b"a", False, -5), CONFLICTS + b"b").to_list() == []


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


@pytest.mark.parametrize(("opened", "code"), [(False, 2114), (True, 0)])
def test_clearing_no_special_key_needs_them_to_be_open(db: Any, opened: bool, code: int) -> None:
    tr = db.create_transaction()
    if opened:
        tr.options.set_special_key_space_enable_writes()
    tr.clear_range(b"\xff\xff/transaction/x", b"\xff\xff/transaction/x")
    if code:
        assert code_of(tr.commit().wait) == code
    else:
        tr.commit().wait()


def test_after_the_commit_a_stamped_key_conflicts_where_it_is(db: Any, space: Subspace) -> None:
    base = space.key()
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_key(base + b"s" + bytes(10) + struct.pack("<L", len(base) + 1), b"")
    assert shown(tr, WRITES, space)[1] == (b"s" + b"\xff" * 10 + b"\x00", b"0")
    tr.commit().wait()
    key = b"s" + stamp.wait().value
    assert shown(tr, WRITES, space) == [(key, b"1"), (key + b"\x00", b"0")]
