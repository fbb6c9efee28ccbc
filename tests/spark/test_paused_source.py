"""What a query does while its queue is paused, and before its queue exists, under a simulated Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import OtherCodec, Queue, QueuePaused, QueueRenamed, StreamError, UnknownQueue
from fdbqueue.engine import Subspace
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.stream_source import StreamSource, terms
from fdbqueue.stored.settings import Mark, pack_mark
from tests.helpers.faults import FaultyDatabase
from tests.spark.simulated_stream import Checkpoint, Killed, Query, dying, stream_options


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


def query(db: Any, queue: Queue[bytes], checkpoint: Checkpoint, *, now: bool = True, **options: Any) -> Query:
    """Return a run of a query; with `now` it is one that ends."""
    found = Query(db, stream_options(queue.layout, **options), checkpoint)
    if now:
        found.source.prepare_for_available_now()
    return found


def resumed_later(db: Any, queue: Queue[bytes]) -> threading.Timer:
    timer = threading.Timer(0.3, lambda: queue.resume(db))
    timer.start()
    return timer


def test_a_query_that_ends_fails_on_a_paused_queue_and_logs_no_batch(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    queue.pause(db, reason="stocktaking", by="Ann")
    checkpoint = Checkpoint()
    with pytest.raises(QueuePaused, match=r"by Ann: stocktaking.*onPaused=wait"):
        query(db, queue, checkpoint).until_dry()
    assert checkpoint.offsets == {}
    queue.resume(db)
    query(db, queue, checkpoint).until_dry()
    assert checkpoint.rows() == [b"a", b"b"]


@pytest.mark.parametrize("now", [True, False])
def test_a_query_with_another_codec_takes_nothing(db: Any, space: Subspace, now: bool) -> None:
    numbers = Queue(space, codec="json")
    numbers.enqueue(db, 53)
    checkpoint = Checkpoint()
    with pytest.raises(OtherCodec, match=r"codec 'json', and the option codec is 'msgpack'. Nothing was taken"):
        query(db, numbers, checkpoint, now=now, codec="msgpack").trigger()
    assert (checkpoint.offsets, numbers.stats(db).available) == ({}, 1)
    query(db, numbers, checkpoint, codec="json").until_dry()
    assert checkpoint.rows() == [b"53"]


def test_an_idle_query_of_a_new_queue_asks_for_its_codec_when_an_item_comes(db: Any, space: Subspace) -> None:
    numbers = Queue(space, codec="json")
    counted = FaultyDatabase(db, lambda: None)
    checkpoint = Checkpoint()
    idle = query(counted, numbers, checkpoint, now=False, codec="msgpack")
    assert not idle.trigger()
    before = counted.commits
    for _ in range(10):
        assert not idle.trigger()
    assert counted.commits == before + 10
    numbers.enqueue(db, 53)
    with pytest.raises(OtherCodec, match="Nothing was taken"):
        idle.trigger()
    assert (checkpoint.offsets, numbers.stats(db).available) == ({}, 1)


def test_a_query_that_runs_on_waits_quietly_and_logs_no_batch(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    queue.pause(db)
    checkpoint = Checkpoint()
    running = query(db, queue, checkpoint, now=False)
    for _ in range(20):
        assert not running.trigger()
    assert checkpoint.offsets == {}
    queue.resume(db)
    assert running.trigger()
    assert checkpoint.rows() == [b"a", b"b"]


def test_each_can_do_as_the_other(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    queue.pause(db)
    with pytest.raises(QueuePaused):
        query(db, queue, Checkpoint(), now=False, on_paused="fail").trigger()
    checkpoint = Checkpoint()
    ending = query(db, queue, checkpoint, on_paused="wait")
    timer = resumed_later(db, queue)
    ending.until_dry(100)
    timer.join()
    assert checkpoint.rows() == [b"a", b"b"]


def test_a_pause_with_nothing_to_take_ends_a_query_that_ends(db: Any, queue: Queue[bytes]) -> None:
    queue.register(db)
    queue.pause(db)
    query(db, queue, Checkpoint()).until_dry(1)


def test_a_query_that_has_taken_all_ends_though_the_queue_is_paused_by_then(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    checkpoint = Checkpoint()
    ending = query(db, queue, checkpoint)
    assert ending.trigger()
    queue.enqueue(db, b"later")
    queue.pause(db)
    assert not ending.trigger()
    assert checkpoint.rows() == [b"a", b"b"]


def test_a_pause_between_the_log_and_the_claim_leaves_the_batch_for_a_replay(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    checkpoint = Checkpoint()

    def pause(point: str) -> None:
        if point == "offsets logged":
            queue.pause(db)

    with pytest.raises(QueuePaused):
        Query(db, stream_options(queue.layout, on_paused="fail"), checkpoint, pause).trigger()
    assert list(checkpoint.offsets) == [0]
    assert checkpoint.sink == {}
    timer = resumed_later(db, queue)
    query(db, queue, checkpoint, now=False).until_dry()
    timer.join()
    assert checkpoint.rows() == [b"a", b"b"]
    assert queue.check(db).ok


def test_a_sealed_batch_is_replayed_during_a_pause(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(7)])
    checkpoint = Checkpoint()

    def kill(point: str) -> None:
        if point == "before the sink":
            raise Killed(point)

    with dying():
        Query(db, stream_options(queue.layout), checkpoint, kill).trigger()
    queue.pause(db)
    with pytest.raises(QueuePaused):
        query(db, queue, checkpoint).until_dry()
    assert checkpoint.rows() == [b"%d" % number for number in range(5)]


def test_a_query_that_ends_refuses_a_name_that_no_queue_has(db: Any, space: Subspace, queue: Queue[bytes]) -> None:
    Queue(space["orders"]).enqueue(db, b"a")
    with pytest.raises(UnknownQueue, match=r"There is no queue .*'ordres'.*Did you mean"):
        query(db, Queue(space["ordres"]), Checkpoint())
    assert not query(db, Queue(space["ordres"]), Checkpoint(), now=False).trigger()
    assert list(db[space["ordres"].range()]) == []


def test_a_query_on_the_old_name_of_a_queue_is_refused(db: Any, queue: Queue[bytes]) -> None:
    db[queue.layout.paused_key] = pack_mark(Mark(queue.layout.prefix, b"new", 0, done=True))
    for now in True, False:
        with pytest.raises(QueueRenamed):
            query(db, queue, Checkpoint(), now=now).trigger()


@pytest.mark.parametrize("on_lost", ["fail", "redeliver", "drop"])
def test_a_query_with_the_name_of_a_claim_is_refused_and_takes_nothing_from_it(
    db: Any, queue: Queue[bytes], on_lost: str
) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    Stream(queue, "s").claim(db, terms(1, 1))
    with pytest.raises(StreamError, match="'s' is the name of a claim"):
        query(db, queue, Checkpoint(), now=False, on_lost_checkpoint=on_lost).trigger()
    assert queue.stats(db).claimed == 1


def test_an_item_that_does_not_decode_is_rescued_from_a_batch_that_failed(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"good", b"bad", b"good too"])

    def bad(payload: bytes) -> str:
        return "It is bad." if payload == b"bad" else ""

    def source(**options: Any) -> StreamSource:
        return StreamSource(db, stream_options(queue.layout, **options), bad=bad, wait_seconds=0.0)

    failing = source()
    start = failing.initial_offset()
    end = failing.latest_offset(start)
    assert sum(split.count for _, _, split in failing.partitions(start, end)) == 3  # and its tasks fail
    again = source(on_bad_item="dead")
    [(batch, epoch, split)] = again.partitions(start, end)
    pages = list(Stream(queue, "s").read(db, epoch, batch, split))
    assert [row.value[1:] for page in pages for row in page] == [b"good", b"good too"]
    assert queue.stats(db).dead == 1
