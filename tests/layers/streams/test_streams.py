"""Streams: batches that stay the same until they are acked, and what the rest of the library knows of them."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from fdbqueue import FormatError, Queue, StreamError, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.oplog import OperationLog
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.streams import BatchRecord, Split, Stream, Terms
from fdbqueue.layers.streams.moving import Claiming
from fdbqueue.layers.streams.records import StreamKeys, joined, splits_of, thinned
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import note


def terms(batch: int = 1, **changes: Any) -> Terms:
    plain: dict[str, Any] = {"epoch": "e", "run": "r", "items": 10, "size_bytes": 1_000_000, "batch": batch}
    return Terms(**plain | changes)


def values(stream: Stream[Any], db: Any, batch: int, record: BatchRecord, epoch: str = "e") -> list[bytes]:
    return [
        stream.payload(db, batch, row)
        for split in record.splits
        for page in stream.read(db, epoch, batch, split)
        for row in page
    ]


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


@pytest.fixture
def stream(queue: Queue[bytes], clock: Clock) -> Stream[bytes]:
    return Stream(Leases(queue, clock=clock), "s", clock=clock)


def test_a_batch_has_the_first_items_and_is_the_same_whenever_it_is_claimed(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(7)])
    first = stream.claim(db, terms(items=3))
    assert values(stream, db, 1, first) == [b"0", b"1", b"2"]
    queue.enqueue(db, b"later")
    again = stream.claim(db, terms(items=5, run="other run", at_least_splits=3))
    assert again == first
    assert values(stream, db, 1, again) == [b"0", b"1", b"2"]
    assert queue.stats(db).claimed == 3
    assert queue.check(db).ok


def test_an_ack_removes_the_batch_and_a_second_one_changes_nothing(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    record = stream.claim(db, terms(items=2))
    for _ in range(2):
        stream.ack(db, terms())
        stats = queue.stats(db)
        assert (stats.claimed, stats.dequeued, stats.available) == (0, 2, 1)
    with pytest.raises(StreamError, match="was acked before"):
        values(stream, db, 1, record)
    with pytest.raises(StreamError, match="was acked before"):
        stream.claim(db, terms())
    assert stream.claim(db, terms(strict=False)) == BatchRecord(sealed=True)
    assert queue.check(db).ok


def test_a_batch_that_was_claimed_in_part_is_continued(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"%03d" % number for number in range(250)])

    class Killed(Exception):
        pass

    failing = FaultyDatabase.failing_at(db, {1}, ("before", Killed()))
    with pytest.raises(Killed):
        stream.claim(failing, terms(items=240))
    assert queue.stats(db).claimed == 100
    queue.enqueue(db, b"later")
    record = stream.claim(db, terms(items=240))
    assert record.sealed
    assert values(stream, db, 1, record) == [b"%03d" % number for number in range(240)]
    assert queue.check(db).ok


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_plain_items_are_claimed_together_as_they_are_one_by_one(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def batches(name: str) -> list[tuple[BatchRecord, list[bytes]]]:
        dice, queue, tr = random.Random(seed), Queue(space[name]), db.create_transaction()
        stream: Stream[bytes] = Stream(queue, "s", clock=lambda: 0.0)
        for number in range(600):
            value = b"%d" % number + bytes(dice.choice((0, 10, 400)))
            queue.enqueue(tr, value, headers={"k": "v"} if dice.random() < 0.02 else None)
        tr.commit().wait()
        found = []
        for batch in itertools.count(1):
            limits = {"items": dice.choice((1, 40, 180)), "size_bytes": dice.choice((1, 2_000, 17_000))}
            record = stream.claim(db, terms(batch, **limits))
            found.append((replace(record, splits=()), values(stream, db, batch, record)))
            stream.ack(db, terms(batch))
            if not record.count:
                break
        assert queue.check(db).ok
        return found

    together = batches("together")
    monkeypatch.setattr(Claiming, "_take_plain", lambda *given: None)
    assert together == batches("one by one")


def test_an_item_in_front_that_comes_back_during_a_claim_is_in_one_split(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock
) -> None:
    leases = Leases(queue, clock=clock)
    queue.enqueue_many(db, [b"%03d" % number for number in range(150)])
    lease = leases.lease(db)
    assert lease is not None

    class Killed(Exception):
        pass

    with pytest.raises(Killed):
        stream.claim(FaultyDatabase.failing_at(db, {1}, ("before", Killed())), terms(items=150))
    leases.nack(db, lease)
    record = stream.claim(db, terms(items=150, at_least_splits=4))
    assert values(stream, db, 1, record) == [b"%03d" % number for number in range(150)]
    assert len(record.splits) >= 2


def test_one_item_over_the_limit_of_bytes_passes_alone(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    large = bytes(300_000)
    queue.enqueue_many(db, [large, b"small", large])
    record = stream.claim(db, terms(size_bytes=1000))
    assert values(stream, db, 1, record) == [large]
    stream.ack(db, terms(1))
    assert values(stream, db, 2, stream.claim(db, terms(2, size_bytes=1000))) == [b"small"]
    stream.ack(db, terms(2))
    assert values(stream, db, 3, stream.claim(db, terms(3, size_bytes=1000))) == [large]
    stream.ack(db, terms(3))
    assert queue.check(db).ok
    assert list(db[queue.layout.chunks.range()]) == []


def test_the_chunks_of_an_ack_that_was_interrupted_are_cleared_by_the_next(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue(db, bytes(200_000))
    stream.claim(db, terms())

    class Killed(Exception):
        pass

    with pytest.raises(Killed):
        stream.ack(FaultyDatabase.failing_at(db, {1}, ("before", Killed())), terms())
    assert queue.stats(db).dequeued == 1
    assert queue.check(db).ok
    stream.ack(db, terms())
    assert list(db[queue.layout.chunks.range()]) == []
    assert queue.check(db).ok


def test_a_release_gives_the_items_back_to_their_places_and_refuses_the_reader(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock
) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, b"mortal", ttl=60)
    queue.enqueue_many(db, [b"a", bytes(200_000)])
    record = stream.claim(db, terms())
    queue.enqueue(db, b"behind")
    assert stream.release(db) == 3
    assert [item.value for item in queue.browse(db)] == [b"mortal", b"a", bytes(200_000), b"behind"]
    for refused in (
        lambda: stream.claim(db, terms()),
        lambda: stream.ack(db, terms()),
        lambda: values(stream, db, 1, record),
    ):
        with pytest.raises(StreamError, match="was released"):
            refused()
    lease = leases.lease(db)
    assert lease is not None
    assert (lease.value, lease.attempt) == (b"mortal", 2)
    assert leases.check(db).ok
    assert stream.release(db) == 0


def test_a_released_item_that_has_expired_is_removed(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock
) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, b"mortal", ttl=60)
    leases.enqueue(db, b"dies before", ttl=1)
    clock.now += 2
    assert stream.claim(db, terms()).count == 1
    clock.now += 60
    stream.release(db)
    stats = queue.stats(db)
    assert (stats.available, stats.claimed, stats.expired) == (0, 0, 2)
    assert leases.check(db).ok


def test_due_delays_and_expired_leases_are_seen_by_a_look(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock
) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, b"delayed", delay=10)
    leases.enqueue(db, b"leased")
    assert leases.lease(db, duration=5) is not None
    assert not stream.look(db).any
    clock.now += 11
    assert stream.look(db).any
    assert values(stream, db, 1, stream.claim(db, terms())) == [b"delayed", b"leased"]


def test_a_look_waits_for_an_item_without_polling(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    timer = threading.Timer(0.2, lambda: queue.enqueue(db, b"x"))
    timer.start()
    look = stream.look(db, seconds=30)
    timer.join()
    assert look.any


def test_streams_and_other_consumers_share_the_items(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    other: Stream[bytes] = Stream(queue, "t")
    queue.enqueue_many(db, [b"%d" % number for number in range(9)])
    first = values(stream, db, 1, stream.claim(db, terms(items=3)))
    second = values(other, db, 1, other.claim(db, terms(items=3, epoch="f")), "f")
    assert first + second == [b"0", b"1", b"2", b"3", b"4", b"5"]
    item = queue.dequeue(db)
    assert item is not None
    assert item.value == b"6"
    stream.ack(db, terms())
    assert values(other, db, 1, other.claim(db, terms(epoch="f")), "f") == second
    assert queue.check(db).ok


@pytest.mark.slow
def test_streams_and_consumers_at_the_same_time_get_each_item_once(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%04d" % number for number in range(1_500)])

    def stream_out(name: str) -> list[bytes]:
        stream: Stream[bytes] = Stream(Queue(queue.layout.space), name)
        got: list[bytes] = []
        for batch in range(1, 1_000):
            record = stream.claim(db, terms(batch, epoch=name, items=100))
            if not record.count:
                break
            got += values(stream, db, batch, record, name)
            stream.ack(db, terms(batch, epoch=name))
        return got

    def dequeue() -> list[bytes]:
        got: list[bytes] = []
        while items := Queue(queue.layout.space).dequeue_many(db, limit=7):
            got += [item.value for item in items]
        return got

    with ThreadPoolExecutor(3) as pool:
        taken = [pool.submit(stream_out, "s"), pool.submit(stream_out, "t"), pool.submit(dequeue)]
        every = sorted(value for future in taken for value in future.result())
    assert every == [b"%04d" % number for number in range(1_500)]
    assert queue.check(db).ok


def test_priorities_come_in_their_order_and_return_to_it(db: Any, space: Subspace) -> None:
    urgent = PriorityQueue(Queue(space, codec="str"), levels=3)
    for value, priority in ("c", 2), ("a", 0), ("b", 1):
        urgent.enqueue(db, value, priority=priority)
    stream: Stream[Any] = Stream(Queue(space), "s")
    record = stream.claim(db, terms(items=2))
    assert values(stream, db, 1, record) == [b"a", b"b"]
    urgent.enqueue(db, "aa", priority=0)
    stream.release(db)
    assert [item.value for item in urgent.browse(db)] == ["a", "aa", "b", "c"]
    assert urgent.check(db).ok


def test_another_epoch_is_refused_unless_it_replaces_the_old_one(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    stream.claim(db, terms(items=2))
    for wrong in terms(epoch="f"), terms(epoch="f", replaces="g", open_batch="drop"), terms(2, epoch="f"):
        with pytest.raises(StreamError, match=r"belongs to another checkpoint.*onLostCheckpoint"):
            stream.claim(db, wrong)
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        stream.ack(db, terms(epoch="f"))
    record = stream.claim(db, terms(epoch="f", replaces="e", open_batch="redeliver"))
    assert values(stream, db, 1, record, "f") == [b"a", b"b", b"c"]
    assert stream.claim(db, terms(epoch="f", replaces="e", open_batch="redeliver")) == record
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        stream.claim(db, terms())
    record = stream.claim(db, terms(epoch="g", replaces="f", open_batch="drop"))
    assert record.count == 0
    assert queue.stats(db).dequeued == 3
    assert queue.check(db).ok


def test_a_run_is_refused_once_another_run_has_claimed(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    stream.claim(db, terms(items=1, run="first"))
    stream.claim(db, terms(items=1, run="copy"))
    for refused in (
        lambda: stream.claim(db, terms(run="first", established=True)),
        lambda: stream.ack(db, terms(run="first", established=True)),
    ):
        with pytest.raises(StreamError, match="Another reader has gone on"):
            refused()
    stream.ack(db, terms(run="copy", established=True))


def test_a_queue_that_was_cleared_under_a_stream_is_noticed(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    record = stream.claim(db, terms(items=2))
    queue.clear(db)
    for refused in (
        lambda: values(stream, db, 1, record),
        lambda: stream.ack(db, terms()),
        lambda: stream.claim(db, terms(2)),
    ):
        with pytest.raises(StreamError, match="record of the stream 's' is gone"):
            refused()
    stream.ack(db, terms(strict=False))
    queue.enqueue(db, b"new")
    assert values(stream, db, 2, stream.claim(db, terms(2, strict=False))) == [b"new"]
    assert queue.check(db).ok


def test_a_split_that_lacks_items_is_an_error(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    positions = [queue.enqueue(db, b"%d" % number) for number in range(3)]
    record = stream.claim(db, terms())
    db.clear(queue.layout.claimed("s", 1).key(pack(positions[1])))
    with pytest.raises(StreamError, match="has 2 of its 3 items"):
        values(stream, db, 1, record)


def test_a_check_compares_batches_with_their_items(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(5)])
    record = stream.claim(db, terms(items=3))
    assert stream.check(db).problems == ()
    first = queue.layout.claimed("s", 1).key(record.splits[0].first)
    stored = bytes(db[first])
    db.clear(first)
    problems = " ".join(stream.check(db).problems)
    assert "Batch 1 of the stream 's' has 2 items, and its record says 3." in problems
    db[first] = stored
    db.clear(StreamKeys(queue.layout, "s").batch(1))
    assert "3 items of the stream 's' are in batch 1, which has no record." in stream.check(db).problems


def test_bad_items_become_dead_letters(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"good", b"bad", bytes(200_000), b"good too"])
    record = stream.claim(db, terms(bad=lambda payload: "" if payload.startswith(b"good") else "It is bad."))
    assert values(stream, db, 1, record) == [b"good", b"good too"]
    dead = list(Leases(queue).dead.browse(db))
    assert [letter.error for letter in dead] == ["It is bad."] * 2
    assert queue.check(db).ok


def test_an_unreadable_item_ends_a_batch_and_is_refused_as_its_first(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue(db, b"good")
    position = queue.enqueue(db, b"unreadable")
    db[queue.layout.item_key(position)] = b"\x94\xff"
    assert values(stream, db, 1, stream.claim(db, terms())) == [b"good"]
    stream.ack(db, terms())
    with pytest.raises(FormatError, match="can't be read and was left there"):
        stream.claim(db, terms(2))


def test_an_exclusive_subscription_keeps_a_stream_out(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue(db, b"x")
    owner = Subscriptions(queue).subscribe(db, "all", exclusive=True)
    with pytest.raises(SubscriptionError):
        Stream(Queue(queue.layout.space), "s").claim(db, terms())
    owner.close(db)
    assert stream.look(db).any


def test_a_smart_queue_does_not_see_claimed_items_and_gets_them_back_whole(db: Any, smart: SmartQueue) -> None:
    for number in range(4):
        smart.enqueue(db, note(f"{number}"))
    before = smart.check(db)
    assert before.ok
    stream: Stream[Any] = Stream(smart.queue, "s")
    assert stream.claim(db, terms(items=2)).count == 2
    assert smart.check(db).ok
    assert 2 in smart.stats(db).types.values()
    stream.release(db)
    assert smart.check(db).ok
    stream.claim(db, terms(epoch="f", replaces="e", open_batch="redeliver"))
    stream.ack(db, terms(epoch="f"))
    assert smart.check(db).ok
    assert list(db[smart.queue.layout.smart.range()]) == []


def test_a_subscription_gets_released_items_though_it_has_passed_their_place(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    one, two = (Subscriptions(queue).subscribe(db, name) for name in ("one", "two"))
    queue.enqueue_many(db, [b"a", b"b", b"c"])
    stream.claim(db, terms(items=2))
    lease = one.lease(db)
    assert lease is not None
    assert lease.value == b"c"
    stream.release(db)
    got = [one.lease(db), two.lease(db)]
    assert [lease and lease.value for lease in got] == [b"a", b"b"]


def test_an_operation_log_names_the_place(db: Any, space: Subspace) -> None:
    queue = Queue(space["queue"])
    log = OperationLog(("log", space.key()), queue)
    position = queue.enqueue(db, b"x")
    Stream(queue, "s").claim(log.of(db), terms())
    moves = [moved for record in log.records(db) for moved in record.moves(queue.layout)]
    assert [(moved.state, moved.position) for moved in moves] == [("claimed", position)]
    log.forget(db)


def test_states_are_told_and_forgotten(db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock) -> None:
    assert stream.state(db) is None
    assert not stream.forget(db)
    queue.enqueue_many(db, [b"a", b"b"])
    stream.claim(db, terms(items=2))
    state = stream.state(db)
    assert state is not None
    assert (state.batch, state.items, state.sealed, state.acked, state.seen_at) == (1, 2, True, 0, clock.now)
    with pytest.raises(StreamError, match="open batch"):
        stream.forget(db)
    assert stream.drop(db) == 2
    assert stream.drop(db) == 0
    assert stream.forget(db)
    assert queue.stats(db).dequeued == 2
    assert queue.check(db).ok


def test_enqueues_come_behind_claimed_items(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    stream.claim(db, terms())
    queue.enqueue(db, b"c")
    stream.release(db)
    assert [item.value for item in queue.browse(db)] == [b"a", b"b", b"c"]


def test_verbs_refuse_a_transaction(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    tr = db.create_transaction()
    for call in (
        lambda: stream.look(tr),
        lambda: stream.claim(tr, terms()),
        lambda: stream.ack(tr, terms()),
        lambda: stream.release(tr),
        lambda: stream.drop(tr),
        lambda: stream.forget(tr),
        lambda: next(stream.read(tr, "e", 1, Split(b"a", b"b", 1, 1))),
    ):
        with pytest.raises(TypeError, match="takes a database, not a transaction"):
            call()


def test_splits_share_a_batch_evenly_and_overlapping_pieces_are_one() -> None:
    pieces = [Split(b"%04d" % (10 * at), b"%04d" % (10 * at + 9), 10, 10) for at in range(40)]
    assert [split.count for split in splits_of(pieces, at_least=4, most_items=1000)] == [100] * 4
    assert [split.count for split in splits_of(pieces, at_least=1, most_items=50)] == [50] * 8
    assert splits_of([], at_least=4, most_items=5) == ()
    across = [*pieces, Split(b"0005", b"0391", 7, 7)]
    assert [piece.count for piece in joined(across)] == [407]
    many = [Split(b"%06d" % at, b"%06d" % at, 1, 1) for at in range(1200)]
    assert len(thinned(many)) <= 500
    assert sum(piece.count for piece in thinned(many)) == 1200


def test_a_stream_can_be_awaited(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    async def use() -> BatchRecord:
        await queue.enqueue.aio(db, b"x")
        assert (await stream.look.aio(db, seconds=1)).any
        return await stream.claim.aio(db, terms())

    assert asyncio.run(use()).count == 1
