"""`TokenBucket`: a rate that all processes share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import FDBError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from tests.helpers.clock import Clock


@pytest.fixture
def bucket(queue: Queue, clock: Clock) -> TokenBucket:
    return TokenBucket(queue, "smtp", count=2, seconds=10.0, clock=clock)


def test_a_full_bucket_gives_its_burst_and_then_says_how_long_to_wait(
    db: Any, bucket: TokenBucket, clock: Clock
) -> None:
    assert [bucket.take(db) for _ in range(4)] == [0.0, 0.0, 5.0, 5.0]

    clock.now += 5

    assert [bucket.take(db) for _ in range(2)] == [0.0, 5.0]


def test_a_bucket_that_nobody_used_holds_no_more_than_its_burst(db: Any, bucket: TokenBucket, clock: Clock) -> None:
    bucket.take(db)
    clock.now += 1_000_000

    assert [bucket.take(db) for _ in range(3)] == [0.0, 0.0, 5.0]


def test_several_tokens_are_taken_together_or_not_at_all(db: Any, bucket: TokenBucket) -> None:
    bucket.take(db)

    assert bucket.take(db, 2) == 5.0
    assert bucket.take(db) == 0.0


def test_two_transactions_do_not_take_the_same_token(db: Any, queue: Queue, clock: Clock) -> None:
    bucket = TokenBucket(queue, "one", count=1, seconds=10.0, clock=clock)
    first, second = db.create_transaction(), db.create_transaction()

    assert (bucket.take(first), bucket.take(second)) == (0.0, 0.0)
    first.commit().wait()
    with pytest.raises(FDBError) as conflict:
        second.commit().wait()

    assert conflict.value.code == 1020
    assert bucket.take(db) == 10.0


def test_a_take_is_undone_with_its_transaction(db: Any, bucket: TokenBucket) -> None:
    tr = db.create_transaction()
    assert bucket.take(tr, 2) == 0.0
    tr.cancel()

    assert bucket.take(db, 2) == 0.0


def test_buckets_of_other_names_and_queues_are_others(db: Any, queue: Queue, space: Subspace, clock: Clock) -> None:
    other_queue = Queue(space["other"], codec="str")
    names: list[tuple[Queue, Any]] = [(queue, "a"), (queue, ("a", 1)), (other_queue, "a")]

    for own, name in names:
        assert TokenBucket(own, name, count=1, clock=clock).take(db) == 0.0


def test_clearing_the_queue_removes_its_buckets(db: Any, queue: Queue, bucket: TokenBucket) -> None:
    bucket.take(db, 2)
    queue.clear(db)

    assert bucket.take(db, 2) == 0.0


def test_buckets_of_many_names_leave_few_keys(db: Any, queue: Queue, clock: Clock) -> None:
    for number in range(300):
        for name in (f"user {number}", f"also {number}"):  # some in order, as those of dates or counters are
            assert TokenBucket(queue, name, count=1, seconds=10, clock=clock).take(db) == 0
        clock.now += 1

    left = db.get_range_startswith(queue.layout.space["rate"].key())
    assert 20 <= len(list(left)) <= 60


def test_a_bucket_is_not_cleared_beside_a_take_of_it(db: Any, queue: Queue, clock: Clock) -> None:
    def bucket(name: str) -> TokenBucket:
        return TokenBucket(queue, name, count=1, seconds=10, clock=clock)

    for first, second in (("clears", "takes"), ("takes", "clears")):
        bucket("old").take(db)
        clock.now += 11
        trs = {"clears": db.create_transaction(), "takes": db.create_transaction()}
        assert bucket(f"new {first}").take(trs["clears"]) == 0  # it clears the old one
        assert bucket("old").take(trs["takes"]) == 0
        trs[first].commit().wait()
        with pytest.raises(FDBError) as conflict:
            trs[second].commit().wait()
        assert conflict.value.code == 1020
        if first == "takes":
            assert bucket("old").take(db) > 0
        clock.now += 100


@given(
    count=st.integers(1, 20),
    seconds=st.floats(0.1, 100),
    burst=st.integers(1, 30),
    steps=st.lists(st.floats(0, 50), max_size=30),
)
def test_no_more_tokens_than_the_rate_allows(count: int, seconds: float, burst: int, steps: list[float]) -> None:
    clock = Clock()
    bucket = TokenBucket(Queue("q"), "x", count=count, seconds=seconds, burst=burst, clock=clock)
    taken, began = 0, clock()
    with fdbqueue.open("memory:") as db:
        for step in steps:
            clock.now += step
            wait = bucket.take(db)
            taken += wait == 0.0
            passed = clock() - began
            assert taken <= burst + passed * count / seconds + 0.01
            if wait:
                clock.now += wait + 1e-5
                assert bucket.take(db) == 0.0
                taken += 1
