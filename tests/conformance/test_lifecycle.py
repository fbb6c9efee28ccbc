"""The states of a transaction: used, cancelled, reset, poisoned, timed out, retried; and the options over them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fdbqueue.engine import FDBError, Subspace, predicates
from tests.helpers.cluster import release


def code_of(call: Any) -> int:
    """Return the code of the error that `call` raises, 0 for none."""
    try:
        call()
    except FDBError as error:
        return int(error.code)
    return 0


def test_a_transaction_that_was_committed_is_used_up(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    tr.commit().wait()
    assert code_of(tr.get(space["a"]).present) == 2017


def test_a_reset_makes_a_used_transaction_new(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"1")
    tr.commit().wait()
    tr.reset()
    assert tr.get(space["a"]) == b"1"
    tr.set(space["a"], b"2")
    tr.commit().wait()
    assert db.get(space["a"]) == b"2"


def test_a_reset_discards_writes_and_reads(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["a"]).present()
    tr.set(space["b"], b"forgotten")
    tr.reset()
    db.set(space["a"], b"")
    tr.set(space["c"], b"kept")
    tr.commit().wait()
    assert (db.get(space["b"]), db.get(space["c"])) == (None, b"kept")


def long_pause(tr: Any) -> Any:
    """Return a pause that is not over at once."""
    for _ in range(4):
        tr.on_error(1020).wait()
    return tr.on_error(1020)


def test_a_reset_in_a_pause_cancels_the_transaction(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    pause = long_pause(tr)
    tr.reset()
    assert code_of(pause.wait) == 1025
    assert code_of(tr.get(space["a"]).wait) == 1025
    tr.reset()
    tr.get(space["a"]).wait()


def test_a_pause_that_is_cancelled_cancels_the_transaction(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    pause = long_pause(tr)
    pause.cancel()
    assert code_of(pause.wait) == 1101
    assert code_of(tr.get(space["a"]).wait) == 1025
    tr.reset()
    tr.get(space["a"]).wait()


def test_dropping_an_on_error_future_cancels_the_transaction(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    long_pause(tr)
    assert code_of(tr.get(space["a"]).wait) == 1025


def test_of_two_pauses_one_renews_the_transaction_and_the_other_cancels_it(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    pauses = [tr.on_error(1020), tr.on_error(1020)]
    assert sorted(code_of(pause.wait) for pause in pauses) == [0, 1025]
    assert code_of(tr.get(space["a"]).wait) == 1025
    tr.reset()
    tr.get(space["a"]).wait()


@pytest.mark.parametrize("last", ["reset", "cancel", "drop"])
def test_pauses_at_the_same_time_fail_together(db: Any, last: str) -> None:
    tr = db.create_transaction()
    pauses = [long_pause(tr), tr.on_error(1020), tr.on_error(1020)]
    if last == "reset":
        tr.reset()
    elif last == "cancel":
        assert code_of(lambda: pauses.pop().cancel()) == 0
    else:
        pauses.pop()
    assert [code_of(pause.wait) for pause in pauses] == [1025] * len(pauses)


def test_a_pause_ends_with_its_transaction(db: Any) -> None:
    tr = db.create_transaction()
    pause = long_pause(tr)
    del tr
    assert code_of(pause.wait) == 1025


def test_a_finished_on_error_future_has_reset_its_transaction(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(0)
    tr[space["a"]] = b"of the first attempt"
    tr.on_error(1020).wait()
    pause = tr.on_error(1020)
    while not pause.is_ready():
        time.sleep(0.001)
    del pause
    assert tr.get(space["a"]) == None  # noqa: E711  the lazy value compares as what it stands for


@pytest.mark.engines("memory", "file")  # on a cluster it can't be known without asking
def test_a_finished_on_error_future_can_be_dropped_unread(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(0)
    tr.on_error(1020).wait()
    tr[space["a"]] = b"of the second attempt"
    pause = tr.on_error(1020)  # over as soon as it begins
    del pause
    assert tr.get(space["a"]) == None  # noqa: E711  as above


def test_no_error_is_no_reason_to_try_again(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    assert code_of(tr.on_error(0).wait) == 2000
    tr.reset()
    tr.options.set_retry_limit(0)
    if release(db) >= (8, 0):
        return
    assert code_of(tr.on_error(0).wait) == 4100
    assert code_of(tr.get(space["a"]).wait) == 1025


def test_everything_of_a_cancelled_transaction_fails_with_1025(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    tr.cancel()
    assert code_of(tr.get(space["a"]).present) == 1025
    assert code_of(lambda: tr.get_range_startswith(space.key()).to_list()) == 1025
    assert code_of(tr.get_read_version().wait) == 1025
    assert code_of(tr.commit().wait) == 1025
    assert code_of(tr.on_error(1020).wait) == 1025
    assert db.get(space["a"]) is None


def test_a_reset_makes_a_cancelled_transaction_new(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.cancel()
    tr.reset()
    tr.set(space["a"], b"1")
    tr.commit().wait()
    assert db.get(space["a"]) == b"1"


@pytest.mark.parametrize("code", [1007, 1009, 1020, 1021, 1037])
def test_after_a_retryable_error_the_transaction_is_as_new(db: Any, space: Subspace, code: int) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"forgotten")
    tr.on_error(code).wait()
    tr.set(space["b"], b"kept")
    tr.commit().wait()
    assert (db.get(space["a"]), db.get(space["b"])) == (None, b"kept")


@pytest.mark.parametrize("code", [1025, 1031, 2000, 2004, 2101, 2102])
def test_on_error_raises_an_error_that_is_not_retryable(db: Any, code: int) -> None:
    tr = db.create_transaction()
    assert code_of(tr.on_error(code).wait) == code


def test_on_error_takes_the_error_itself(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.get(space["a"]).present()
    tr.set(space["a"], b"mine")
    db.set(space["a"], b"theirs")
    with pytest.raises(FDBError) as raised:
        tr.commit().wait()
    tr.on_error(raised.value).wait()
    assert tr.get(space["a"]) == b"theirs"


def test_the_pauses_of_on_error_keep_below_the_longest_that_was_asked_for(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(5)
    began = time.monotonic()
    for _ in range(10):
        tr.on_error(1020).wait()
    assert time.monotonic() - began < 5.0


def test_the_retry_limit_ends_the_retries(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(2)
    assert [code_of(tr.on_error(1020).wait) for _ in range(3)] == [0, 0, 1020]


def test_a_reset_gives_all_retries_back(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(1)
    assert code_of(tr.on_error(1020).wait) == 0
    tr.reset()
    tr.options.set_retry_limit(1)
    assert code_of(tr.on_error(1020).wait) == 0


def test_a_transaction_that_took_too_long_fails_with_1031(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1)
    deadline = time.monotonic() + 10
    while code_of(tr.get(space["a"]).present) == 0 and time.monotonic() < deadline:
        pass
    assert code_of(tr.get(space["a"]).present) == 1031
    assert code_of(tr.commit().wait) == 1031
    assert code_of(tr.on_error(1020).wait) == 1031


def test_a_cancel_after_the_timeout_leaves_its_error(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1)
    time.sleep(0.02)  # no call notices the timeout before the cancel
    tr.cancel()
    assert code_of(tr.on_error(1020).wait) == 1031


def test_a_wait_for_a_versionstamp_fails_at_the_timeout(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(space["a"], b"")
    stamp, asked = tr.get_versionstamp(), tr.get_versionstamp()
    tr.options.set_timeout(20)
    assert code_of(stamp.wait) == 1031
    assert asked.is_ready()


def test_a_timeout_of_zero_means_no_timeout(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(60_000)
    tr.options.set_timeout(0)
    tr.set(space["a"], b"")
    assert code_of(tr.commit().wait) == 0


def test_a_transaction_over_its_size_limit_is_refused_with_2101(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.options.set_size_limit(1000)
    tr.set(space["a"], bytes(2000))
    assert code_of(tr.commit().wait) == 2101
    assert db.get(space["a"]) is None


@pytest.mark.parametrize("limit", [0, 31, 10_000_001])
def test_a_size_limit_out_of_range_is_refused_with_2006(db: Any, space: Subspace, limit: int) -> None:
    tr = db.create_transaction()
    tr.options.set_size_limit(limit)
    assert code_of(tr.get(space["a"]).present) == 2006


def test_the_size_grows_with_what_is_written(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    assert tr.get_approximate_size().wait() == 0
    tr.set(space["a"], bytes(1000))
    first = tr.get_approximate_size().wait()
    tr.set(space["b"], bytes(1000))
    assert 1000 < first < tr.get_approximate_size().wait()


def test_a_refused_write_fails_the_reads_and_the_commit_after_it(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.set(b"\xffx", b"")
    assert code_of(tr.get(space["a"]).present) == 2004
    tr.set(space["a"], b"")
    assert code_of(tr.commit().wait) == 2004
    assert db.get(space["a"]) is None


def test_of_two_refused_writes_the_first_is_named(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr.clear_range(space["b"], space["a"])
    tr.set(b"\xffx", b"")
    assert code_of(tr.commit().wait) == 2005


def test_a_transaction_without_read_your_writes_reads_committed_values(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr.set(space["a"], b"new")
    assert tr.get(space["a"]) == b"old"
    tr.commit().wait()
    assert db.get(space["a"]) == b"new"


def test_snapshot_reads_see_own_writes_unless_that_is_turned_off(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    tr = db.create_transaction()
    tr.set(space["a"], b"new")
    assert tr.snapshot.get(space["a"]) == b"new"
    tr.options.set_snapshot_ryw_disable()
    assert tr.snapshot.get(space["a"]) == b"old"
    assert tr.get(space["a"]) == b"new"


@pytest.mark.parametrize(
    ("code", "retryable", "maybe"),
    [(1020, True, False), (1007, True, False), (1021, True, True), (1031, False, False), (2004, False, False)],
)
def test_the_predicates_name_the_retryable_errors(code: int, retryable: bool, maybe: bool) -> None:
    error = FDBError(code)
    assert predicates.retryable(error) is retryable
    assert predicates.maybe_committed(error) is maybe
    assert predicates.retryable_not_committed(error) is (retryable and not maybe)
    assert predicates.is_retryable(error) is retryable
    assert predicates.is_maybe_committed(error) is maybe
    assert predicates.is_retryable_not_committed(error) is (retryable and not maybe)


def test_a_broken_promise_is_reported_as_a_cancelled_transaction(db: Any) -> None:
    assert code_of(db.create_transaction().on_error(1100).wait) == 1025


@pytest.mark.parametrize("code", [1, 1000, 1036, 1039, 1079, 1101, 2000, 2004, 5000, 30_001, -1])
def test_on_error_raises_errors_that_are_not_retryable(db: Any, code: int) -> None:
    blob_granules = 0 if release(db) < (8, 0) else 1079
    expected = {1079: blob_granules, 30_001: 4000, -1: 4000}.get(code, code)
    tr = db.create_transaction()
    assert code_of(tr.on_error(code).wait) == expected
    assert code_of(tr.get(b"key").wait) == (1025 if expected else 0)
