"""The queue's verbs, on every engine."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import FDBError, Subspace, transactional
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.errors import CodecError, FormatError, ItemTooLarge
from fdbqueue.stored.items import INLINE_BYTES, MAX_ITEM_BYTES
from tests.helpers.faults import FaultyDatabase
from tests.helpers.raw import raw


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space)


def values(queue: Queue, db: Any) -> list[Any]:
    return [item.value for item in queue.browse(db)]


def test_items_are_dequeued_in_the_order_of_their_enqueue(db: Any, queue: Queue) -> None:
    positions = [queue.enqueue(db, b"%d" % n) for n in range(20)]
    assert [position.index for position in positions] == list(range(1, 21))
    taken = [queue.dequeue(db) for _ in range(20)]
    assert [item.value for item in taken if item] == [b"%d" % n for n in range(20)]


def test_an_empty_queue_returns_none_and_an_empty_value_is_a_value(db: Any, queue: Queue) -> None:
    assert queue.dequeue(db) is None
    assert queue.peek(db) is None
    assert queue.is_empty(db)
    queue.enqueue(db, b"")
    assert not queue.is_empty(db)
    item = queue.dequeue(db)
    assert item is not None
    assert item.value == b""


def test_an_items_key_is_queue_index_random(db: Any, queue: Queue, space: Subspace) -> None:
    position = queue.enqueue(db, b"x")
    key = fdb_tuple.pack((*fdb_tuple.unpack(space.key()), position.index, position.random))
    rows = [row.key for row in db.get_range(queue.layout.begin, queue.layout.end)]
    assert rows == [key]


def test_enqueue_and_dequeue_compose_with_the_callers_own_keys(db: Any, queue: Queue, space: Subspace) -> None:
    note = space.pack(("note",))

    @transactional
    def enqueue(tr: Any, fail: bool) -> None:
        tr[note] = b"written"
        queue.enqueue(tr, b"x")
        if fail:
            raise LookupError

    with pytest.raises(LookupError):
        enqueue(db, True)
    assert queue.is_empty(db)
    assert not db[note]
    enqueue(db, False)
    assert values(queue, db) == [b"x"]
    assert db[note] == b"written"


def test_several_items_of_one_transaction_keep_their_order_and_read_the_last_index_once(db: Any, queue: Queue) -> None:
    queue.enqueue(db, b"0")
    tr = db.create_transaction()
    positions = [queue.enqueue(tr, b"%d" % n) for n in range(1, 6)]
    tr.commit().wait()
    assert [position.index for position in positions] == [2, 3, 4, 5, 6]
    assert values(queue, db) == [b"%d" % n for n in range(6)]


def test_a_transaction_that_was_reset_reads_the_last_index_again(db: Any, queue: Queue) -> None:
    tr = db.create_transaction()
    assert queue.enqueue(tr, b"lost").index == 1
    tr.reset()
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    assert queue.enqueue(tr, b"d").index == 4
    tr.on_error(1020).wait()
    queue.enqueue(db, b"e")
    assert queue.enqueue(tr, b"f").index == 5
    tr.commit().wait()
    assert values(queue, db)[:3] == [b"a", b"b", b"c"]


def test_an_enqueue_right_after_a_reset_comes_after_earlier_commits(db: Any, queue: Queue) -> None:
    tr = db.create_transaction()
    queue.enqueue(tr, b"of the attempt before")
    last = [queue.enqueue(db, b"meanwhile") for _ in range(9)][-1]
    busy = [tr.get(b"%d" % number) for number in range(1_000)]  # a cluster's client comes to the reset after these
    tr.reset()
    assert queue.enqueue(tr, b"late").index == last.index + 1
    del busy


def test_several_objects_of_one_queue_keep_the_order_of_one_transaction(db: Any, queue: Queue) -> None:
    first, second = Queue(queue.layout.space), Queue(queue.layout.space)

    def enqueue_by_turns(tr: Any) -> list[Position]:
        return [(first if n % 2 else second).enqueue(tr, b"%d" % n) for n in range(8)]

    tr = db.create_transaction()
    assert [position.index for position in enqueue_by_turns(tr)] == list(range(1, 9))
    tr.reset()
    assert [position.index for position in enqueue_by_turns(tr)] == list(range(1, 9))
    tr.commit().wait()
    assert [item.value for item in queue.browse(db)] == [b"%d" % n for n in range(8)]


def test_a_queue_cleared_in_a_transaction_restarts_its_indices(db: Any, queue: Queue) -> None:
    tr = db.create_transaction()
    queue.enqueue_many(tr, [b"a", b"b"])
    queue.clear(tr)
    assert queue.enqueue(tr, b"c").index == 1


def test_dequeue_many_takes_the_first_ones_in_order(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, [b"%d" % n for n in range(10)])
    assert [item.value for item in queue.dequeue_many(db, limit=3)] == [b"0", b"1", b"2"]
    assert [item.value for item in queue.dequeue_many(db, limit=1)] == [b"3"]
    assert [item.value for item in queue.dequeue_many(db, limit=100)] == [b"%d" % n for n in range(4, 10)]
    assert queue.dequeue_many(db) == []


def test_peek_leaves_the_item(db: Any, queue: Queue) -> None:
    queue.enqueue(db, b"x", headers={"kind": "test"})
    for _ in range(2):
        item = queue.peek(db)
        assert item is not None
        assert (item.value, dict(item.headers)) == (b"x", {"kind": "test"})


@pytest.mark.parametrize("size", [2, INLINE_BYTES + 1])
def test_a_codec_that_makes_no_bytes_touches_no_key(db: Any, space: Subspace, size: int) -> None:
    class Views:
        name = "views"

        def encode(self, value: Any) -> bytes:
            return memoryview(bytes(value))  # type: ignore[return-value]

        def decode(self, data: bytes) -> Any:
            return data

    queue = Queue(space, codec=Views())
    tr = db.create_transaction()
    for call in (queue.enqueue, lambda tr, value: queue.enqueue_many(tr, [value])):
        with pytest.raises(CodecError, match="'views' made memoryview of it, and not bytes"):
            call(tr, size)
    tr.commit().wait()
    assert list(db.get_range_startswith(space.key())) == []


@pytest.mark.parametrize(("too_old", "taken"), [(2, 60), (3, 50), (4, 25), (9, 1)])
def test_dequeue_many_takes_fewer_when_so_many_can_not_be_read_in_time(
    db: Any, queue: Queue, too_old: int, taken: int
) -> None:
    queue.enqueue_many(db, [b"%d" % n for n in range(60)])
    slow = FaultyDatabase.failing_at(db, set(range(too_old)), ("before", 1007))
    assert [item.value for item in queue.dequeue_many(slow)] == [b"%d" % n for n in range(taken)]
    assert queue.stats(db).available == 60 - taken
    assert queue.check(db).ok


def test_browse_goes_from_either_end_within_bounds_and_up_to_a_limit(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, [b"%03d" % n for n in range(300)])
    everything = list(queue.browse(db))
    assert [item.value for item in everything] == [b"%03d" % n for n in range(300)]
    assert list(queue.browse(db, reverse=True)) == everything[::-1]
    assert list(queue.browse(db, limit=7)) == everything[:7]
    middle = queue.browse(db, after=everything[9].position, before=everything[250].position)
    assert list(middle) == everything[10:250]
    assert list(queue.browse(db, after=everything[9].position, reverse=True, limit=2)) == everything[:-3:-1]


def test_browse_in_a_transaction_sees_its_own_writes_and_does_not_conflict(db: Any, queue: Queue) -> None:
    queue.enqueue(db, b"a")
    tr = db.create_transaction()
    queue.enqueue(tr, b"b")
    assert values(queue, tr) == [b"a", b"b"]
    queue.dequeue(db)
    tr.commit().wait()
    assert values(queue, db) == [b"b"]


def test_clear_leaves_nothing_of_the_queue(db: Any, queue: Queue, space: Subspace) -> None:
    queue.enqueue_many(db, [b"x", bytes(INLINE_BYTES + 1)])
    queue.dequeue(db)
    queue.clear(db)
    assert db.get_range_startswith(space.key()) == []
    assert queue.stats(db).enqueued == 0


def test_stats_count_what_came_and_went(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, [b"x"] * 7)
    queue.enqueue(db, b"y")
    queue.dequeue_many(db, limit=3)
    stats = queue.stats(db)
    assert (stats.available, stats.enqueued, stats.dequeued) == (5, 8, 3)
    assert queue.check(db).ok


def test_a_large_payload_is_chunked_and_leaves_no_chunk_behind(db: Any, queue: Queue, space: Subspace) -> None:
    payload = bytes(range(256)) * 2_000
    queue.enqueue(db, payload, headers={"n": 1})
    assert queue.check(db).ok
    assert values(queue, db) == [payload]
    item = queue.dequeue(db)
    assert item is not None
    assert item.value == payload
    assert not any(True for _ in db.get_range_startswith(queue.layout.chunks.key()))


def test_a_payload_over_the_limit_touches_no_key(db: Any, queue: Queue, space: Subspace) -> None:
    with pytest.raises(ItemTooLarge):
        queue.enqueue(db, bytes(MAX_ITEM_BYTES + 1))
    tr = db.create_transaction()
    with pytest.raises(ItemTooLarge):
        queue.enqueue_many(tr, [b"x", bytes(MAX_ITEM_BYTES + 1)])
    tr.commit().wait()
    assert db.get_range_startswith(space.key()) == []


def test_a_value_of_the_wrong_type_touches_no_key(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    with pytest.raises(CodecError, match="can't encode object"):
        queue.enqueue(db, object())
    assert db.get_range_startswith(space.key()) == []


def test_bytes_that_do_not_decode_name_the_item_and_stay_where_they_are(db: Any, space: Subspace) -> None:
    position = raw(space).enqueue(db, b"\xff not json")
    queue = Queue(space, codec="json")
    for look in (queue.dequeue, queue.peek, lambda db: list(queue.browse(db))):
        with pytest.raises(CodecError, match=f"The item {position.text} of"):
            look(db)
    assert values(Queue(space), db) == [b"\xff not json"]
    assert Queue(space).dequeue(db) is not None


def test_an_item_of_a_newer_format_is_refused_by_saying_so_and_stays(db: Any, queue: Queue) -> None:
    db[queue.layout.item_key(Position(1, b"r"))] = b"\x20whatever"
    with pytest.raises(FormatError, match=r"The item 1:[0-9a-f]+ of .*newer version"):
        queue.dequeue(db)
    assert not queue.is_empty(db)
    assert "newer version" in queue.check(db).problems[0]


def test_check_finds_what_does_not_fit_together(db: Any, queue: Queue) -> None:
    large = queue.enqueue(db, bytes(INLINE_BYTES + 1))
    queue.enqueue(db, b"x")
    assert queue.check(db).ok
    del db[queue.layout.chunk_key(large, 1)]
    db[queue.layout.chunk_key(Position(99, b"?"), 0)] = b"orphan"
    db.add(queue.layout.count_key("enqueued"), (1).to_bytes(8, "little"))
    problems = " ".join(queue.check(db).problems)
    assert "of its 90,001 bytes in chunks" in problems
    assert "belong to no item" in problems
    assert "3 items are available, but there are 2" in problems


def test_concurrent_enqueues_do_not_conflict_and_may_share_an_index(db: Any, queue: Queue) -> None:
    first, second = db.create_transaction(), db.create_transaction()
    one, two = queue.enqueue(first, b"1"), queue.enqueue(second, b"2")
    assert one.index == two.index == 1
    first.commit().wait()
    second.commit().wait()
    assert sorted(values(queue, db)) == [b"1", b"2"]


def test_of_two_dequeues_at_once_one_wins_and_the_other_conflicts(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, [b"1", b"2"])
    first, second = db.create_transaction(), db.create_transaction()
    assert queue.dequeue(first) == queue.dequeue(second)
    first.commit().wait()
    with pytest.raises(FDBError) as failed:
        second.commit().wait()
    assert failed.value.code == 1020
    assert values(queue, db) == [b"2"]


def test_a_dequeue_that_saw_nothing_conflicts_with_an_enqueue(db: Any, queue: Queue, space: Subspace) -> None:
    tr = db.create_transaction()
    assert queue.dequeue(tr) is None
    tr[space.pack(("decided",))] = b"there was nothing to do"
    queue.enqueue(db, b"x")
    with pytest.raises(FDBError, match="1020"):
        tr.commit().wait()


def test_a_dequeue_of_all_items_does_not_conflict_with_an_enqueue_behind_them_but_with_one_between(
    db: Any, queue: Queue
) -> None:
    queue.enqueue_many(db, [b"1", b"2"])
    tr = db.create_transaction()
    assert len(queue.dequeue_many(tr, limit=10)) == 2
    queue.enqueue(db, b"3")
    tr.commit().wait()
    assert values(queue, db) == [b"3"]

    queue.enqueue(db, b"4")
    tr = db.create_transaction()
    assert len(queue.dequeue_many(tr, limit=10)) == 2
    db[queue.layout.item_key(Position(3, b"\xff" * 9))] = b"\x10between"
    with pytest.raises(FDBError, match="1020"):
        tr.commit().wait()


def test_an_enqueue_does_not_conflict_with_a_dequeue_of_the_item_before(db: Any, queue: Queue) -> None:
    queue.enqueue(db, b"1")
    tr = db.create_transaction()
    queue.enqueue(tr, b"2")
    queue.dequeue(db)
    tr.commit().wait()
    assert values(queue, db) == [b"2"]


def test_an_index_restarts_on_an_empty_queue_and_a_slow_producer_may_come_before_it(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, [b"x"] * 5)
    slow = db.create_transaction()
    late = queue.enqueue(slow, b"late")
    queue.dequeue_many(db)
    assert queue.enqueue(db, b"anew").index == 1
    slow.commit().wait()
    assert late.index == 6
    assert values(queue, db) == [b"anew", b"late"]


def test_a_queue_prints_its_subspace_as_a_tuple() -> None:
    assert repr(Queue(("a", 1), codec="json")) == "Queue(('a', 1), codec='json')"


@pytest.mark.engines("cluster")
def test_the_bindings_own_database_and_transactions_go_into_every_call(
    db: Any, url: str, queue: Queue, space: Subspace
) -> None:
    db.get_range(b"", b"", limit=1)
    import fdb

    raw = fdb.open(url.removeprefix("fdb:"))

    @fdb.transactional  # type: ignore[untyped-decorator]
    def both(tr: Any) -> None:
        tr[space.pack(("own",))] = b"1"
        queue.enqueue(tr, b"x")

    both(raw)
    queue.enqueue_many(raw, [b"y", b"z"])
    assert [item.value for item in queue.browse(raw)] == [b"x", b"y", b"z"]
    assert queue.dequeue(raw) is not None
    assert queue.stats(raw).available == 2
    tr = raw.create_transaction()
    assert queue.peek(tr) is not None
    with pytest.raises(fdb.FDBError):
        tr.on_error(2000).wait()
    with pytest.raises(fdbqueue.engine.FDBError):
        raw.create_transaction().on_error(2000).wait()
