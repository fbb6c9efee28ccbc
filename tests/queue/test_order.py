"""A queue with an order of its own: its items stand by rank, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fdbqueue import Order, OrderError, Position, Queue
from fdbqueue.engine import Subspace, predicates
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import run
from fdbqueue.moves.admission import Admission
from fdbqueue.stored.counters import read_level_counts
from fdbqueue.stored.positions import pack
from fdbqueue.stored.settings import read_high_water_mark


class Tens:
    """By the tens of a number."""

    name = "tens"

    def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
        if headers and "rank" in headers:
            return int(headers["rank"])
        return int(value) // 10


class Named(Tens):
    def __init__(self, name: str) -> None:
        self.name = name


def queue_of(space: Subspace, order: Order | None = None) -> Queue:
    return Queue(space, codec="json", order=order or Tens())


def stored(queue: Queue, db: Any) -> dict[bytes, bytes]:
    return {row.key: row.value for row in db.get_range(*queue.layout.whole_range())}


def drain(queue: Queue, db: Any) -> list[Any]:
    return [item.value for item in queue.dequeue_many(db, limit=1_000)]


def test_items_come_out_by_rank_and_within_a_rank_in_the_order_of_their_commits(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    for value in (31, 12, 30, 7, 11, 39, 0):
        queue.enqueue(db, value)

    assert [item.position.rank for item in queue.browse(db)] == [0, 0, 1, 1, 3, 3, 3]
    assert drain(queue, db) == [7, 0, 12, 11, 31, 30, 39]
    assert queue.check(db).ok


def test_taking_and_browsing_need_no_order(db: Any, space: Subspace) -> None:
    queue_of(space).enqueue_many(db, [50, 10, 30])
    plain = Queue(space, codec="json")

    first = plain.peek(db)
    assert first is not None
    assert first.value == 10
    assert [item.value for item in plain.browse(db, after=first.position)] == [30, 50]
    assert [item.value for item in plain.browse(db, reverse=True)] == [50, 30, 10]
    assert drain(plain, db) == [10, 30, 50]
    assert plain.check(db).ok


def test_headers_can_give_the_rank(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue(db, 50)
    queue.enqueue(db, 60, headers={"rank": 2})

    assert drain(queue, db) == [60, 50]


def test_an_index_is_given_once_whatever_the_rank_also_when_the_queue_runs_empty(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    indices = [queue.enqueue(db, value).index for value in (50, 10, 50)]
    drain(queue, db)
    indices.append(queue.enqueue(db, 10).index)

    assert indices == [1, 2, 3, 4]


@pytest.mark.parametrize("amount", [3, 2_500])
def test_a_bulk_load_gives_every_value_its_rank(amount: int, db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    values = [n * 7919 % 50 for n in range(amount)]
    report = queue.enqueue_many(db, values)

    assert report.items == amount
    assert report.first is not None
    assert report.last is not None
    assert (report.first.rank, report.last.rank) == (values[0] // 10, values[-1] // 10)
    assert [item.value for item in queue.browse(db)] == sorted(values, key=lambda value: value // 10)
    assert queue.check(db).ok


def test_in_a_callers_transaction_items_compose_and_keep_their_order(db: Any, space: Subspace) -> None:
    queue = queue_of(space)

    def body(tr: Any) -> Any:
        queue.enqueue(tr, 20)
        queue.enqueue_many(tr, [11, 25])
        queue.enqueue(tr, 12)
        return queue.dequeue(tr)

    tr = db.create_transaction()
    item = body(tr)
    tr.commit().wait()
    assert item.value == 11
    assert drain(queue, db) == [12, 20, 25]
    assert queue.check(db).ok


def test_large_payloads_keep_their_chunks_with_their_rank(db: Any, space: Subspace) -> None:
    queue = Queue(space, order=Sized())
    queue.enqueue(db, b"x" * 200_000)
    queue.enqueue_many(db, [b"y" * 100_000, b"z"])

    assert [len(item.value) for item in queue.browse(db)] == [1, 100_000, 200_000]
    assert queue.check(db).ok
    assert [len(item.value) for item in queue.dequeue_many(db)] == [1, 100_000, 200_000]
    assert queue.check(db).ok


class Sized:
    name = "size"

    def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
        return len(value)


def test_producers_never_conflict_also_in_one_rank(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue(db, 10)
    one, other = db.create_transaction(), db.create_transaction()

    first, second = queue.enqueue(one, 11), queue.enqueue(other, 12)
    one.commit().wait()
    other.commit().wait()

    assert (first.rank, first.index) == (second.rank, second.index)
    assert queue.stats(db).available == 3


def test_a_sooner_arrival_fails_a_dequeue_that_has_seen_a_later_item_only(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue(db, 50)
    tr = db.create_transaction()
    seen = queue.dequeue(tr)
    assert seen is not None
    queue.enqueue(db, 10)

    with pytest.raises(FDBError) as failed:
        tr.commit().wait()

    assert predicates.retryable(failed.value)
    assert drain(queue, db) == [10, 50]


def test_a_later_arrival_does_not_fail_a_dequeue(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue(db, 10)
    tr = db.create_transaction()
    queue.dequeue(tr)
    queue.enqueue(db, 50)
    tr.commit().wait()

    assert drain(queue, db) == [50]


ways = pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "in a transaction", "many in a transaction"])


def enqueue(queue: Queue, db: Any, way: str) -> None:
    to = db.create_transaction() if "transaction" in way else db
    if "many" in way:
        queue.enqueue_many(to, [10, 20])
    else:
        queue.enqueue(to, 10)


@ways
@pytest.mark.parametrize("left", ["items", "nothing"])
def test_a_queue_with_an_order_refuses_another_and_none(way: str, left: str, db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue(db, 10)
    if left == "nothing":
        drain(queue, db)
    before = stored(queue, db)

    with pytest.raises(OrderError, match=r"in the order 'tens'.*there first in, first out"):
        enqueue(Queue(space, codec="json"), db, way)
    with pytest.raises(OrderError, match=r"in the order 'tens'.*there in the order 'other'"):
        enqueue(queue_of(space, Named("other")), db, way)

    assert stored(queue, db) == before


@ways
@pytest.mark.parametrize("left", ["items", "lent items"])
def test_a_queue_that_is_first_in_first_out_refuses_an_order(way: str, left: str, db: Any, space: Subspace) -> None:
    plain = Queue(space, codec="json")
    plain.enqueue(db, 10)
    if left == "lent items":
        db.clear_range(plain.layout.begin, plain.layout.end)
        db[plain.layout.high_water_mark_key] = (1).to_bytes(8, "big")
    before = stored(plain, db)

    with pytest.raises(OrderError, match=r"stand first in, first out.*there in the order 'tens'"):
        enqueue(queue_of(space), db, way)

    assert stored(plain, db) == before


def test_the_available_items_of_every_level_are_counted_and_those_of_ranks_without_end_are_not(
    db: Any, space: Subspace
) -> None:
    queue = queue_of(space)
    queue.enqueue_many(db, [10, 2_559, 11, 2_560, 30])
    queue.enqueue(db, 31)
    tr = db.create_transaction()
    assert run(read_level_counts(tr, queue.layout)) == {1: 2, 3: 2, 255: 1}
    assert [item.value for item in queue.dequeue_many(tr, limit=3)] == [10, 11, 30]
    assert run(read_level_counts(tr, queue.layout)) == {1: 0, 3: 1, 255: 1}
    tr.commit().wait()
    assert queue.check(db).ok


def test_a_cleared_queue_can_have_any_order(db: Any, space: Subspace) -> None:
    queue, plain = queue_of(space), Queue(space, codec="json")
    queue.enqueue(db, 50)
    queue.clear(db)
    plain.enqueue(db, 50)
    plain.enqueue(db, 10)
    assert drain(plain, db) == [50, 10]
    queue.enqueue(db, 10)
    assert plain.check(db).ok


@pytest.mark.parametrize("rank", [-1, 1 << 63, 1.0, "1", None, True])
def test_a_bad_rank_is_refused_before_any_key_is_touched(rank: Any, db: Any, space: Subspace) -> None:
    class Bad(Tens):
        def rank(self, value: Any, headers: Mapping[str, Any] | None) -> int:
            return rank  # type: ignore[no-any-return]

    queue = queue_of(space, Bad())
    with pytest.raises(ValueError, match="A rank is an integer from 0"):
        queue.enqueue(db, 1)
    with pytest.raises(ValueError, match="A rank is an integer from 0"):
        queue.enqueue_many(db, [1])

    assert not stored(queue, db)


@pytest.mark.parametrize("name", ["", "x" * 101])
def test_an_order_with_an_unsuitable_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of an order"):
        Queue("q", order=Named(name))


@pytest.mark.parametrize("name", ["x", "x" * 100])
def test_an_order_with_a_name_at_the_limit_is_accepted(name: str, db: Any, space: Subspace) -> None:
    queue = queue_of(space, Named(name))
    queue.enqueue(db, 10)
    queue.enqueue(db, 20)
    assert queue.check(db).ok


def test_check_finds_items_of_another_order_and_a_low_high_water_mark(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    queue.enqueue_many(db, [10, 20])
    envelope = bytes(db[queue.layout.item_key(next(queue.browse(db)).position)])
    db[queue.layout.prefix + pack(Position(1, b"plain"))] = envelope
    db[queue.layout.prefix + pack(Position(9, b"high", rank=1))] = envelope

    problems = " ".join(queue.check(db).problems)
    assert "has the order 'tens', but 1 item without a rank" in problems
    assert "The high-water mark is 2, but there is an item with index 9." in problems
    db[queue.layout.high_water_mark_key] = (9).to_bytes(8, "big")
    db.add(queue.layout.level_count_key(2), (5).to_bytes(8, "little"))
    problems = " ".join(queue.check(db).problems)
    assert "first in, first out, but 3 items have a rank" in problems
    assert "6 items of rank 2 are available, not 1" in problems


def test_the_high_water_mark_names_the_order_a_queue_has(db: Any, space: Subspace) -> None:
    queue = queue_of(space)
    tr = db.create_transaction()
    assert run(read_high_water_mark(tr, queue.layout)).order is None
    queue.enqueue(tr, 10)
    assert run(read_high_water_mark(tr, queue.layout)).order == "tens"
    assert run(Admission(tr, queue.layout, "tens").steps()) == 1
    assert "order='tens'" in repr(queue)


def test_two_orders_given_at_the_same_instant_lose_nothing_and_check_tells(db: Any, space: Subspace) -> None:
    queue, plain = queue_of(space), Queue(space, codec="json")
    one, other = db.create_transaction(), db.create_transaction()
    queue.enqueue(one, 10)
    plain.enqueue(other, 20)
    one.commit().wait()
    other.commit().wait()

    assert "has the order 'tens', but 1 item without a rank" in " ".join(queue.check(db).problems)
    with pytest.raises(OrderError):
        plain.enqueue(db, 30)
    assert sorted(drain(plain, db)) == [10, 20]
    assert queue.check(db).ok
