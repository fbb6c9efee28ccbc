"""The source's protocol under a simulated Spark that dies and replays at every step, against a model."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest

from fdbqueue import Queue, QueuePaused, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.stream_source import StreamSource
from tests.spark.simulated_stream import Checkpoint, Killed, Killer, Query, dying, stream_options

HISTORIES = 100
LONG = range(HISTORIES, 3_000)


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space)


def history(db: Any, queue: Queue[bytes], seed: int) -> None:
    """Run two streams and other consumers over one queue, with kills, and compare which of them got which item.

    A checkpoint may get lost. The operator then looks into the sink, and says what becomes of the open batch.
    """
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.02, 0.1, 0.3)))
    leases = Leases(queue)
    checkpoints = {"s": Checkpoint(), "t": Checkpoint()}
    lost: dict[str, list[Checkpoint]] = {"s": [], "t": []}
    on_lost = {"s": "fail", "t": "fail"}
    enqueued: list[bytes] = []
    taken: list[bytes] = []
    queue.register(db)
    for _ in range(draw.randint(4, 12)):
        action = draw.random()
        if action < 0.35:
            values = [b"%d" % (len(enqueued) + at) for at in range(draw.randint(1, 12))]
            queue.enqueue_many(db, values)
            enqueued += values
        elif action < 0.45:
            item = queue.dequeue(db)
            taken += [] if item is None else [item.value]
        elif action < 0.55:
            lease = leases.lease(db)
            if lease is not None and draw.random() < 0.5:
                leases.ack(db, lease)
                taken.append(lease.value)
            elif lease is not None:
                leases.nack(db, lease)
        else:
            name = draw.choice(("s", "t"))
            if draw.random() < 0.15:
                lost[name].append(checkpoints[name])
                on_lost[name] = decision(db, queue, name, lost[name])
                checkpoints[name] = Checkpoint()
            options = stream_options(
                queue.layout,
                name,
                max_items_per_trigger=draw.randint(1, 8),
                min_partitions=draw.randint(1, 4),
                max_items_per_partition=draw.randint(1, 5),
                max_bytes_per_trigger=draw.choice((3, 1_000)),
                on_lost_checkpoint=on_lost[name],
                on_paused="fail",
            )
            if draw.random() < 0.2:
                queue.pause(db)
            with dying(), suppress(QueuePaused):
                query = Query(killer.database(db), options, checkpoints[name], killer.at)
                if draw.random() < 0.3:
                    query.source.prepare_for_available_now()
                query.until_dry(draw.randint(1, 4))
            queue.resume(db)
        got = taken + all_rows(checkpoints, lost)
        assert len(got) == len(set(got)), f"seed {seed}: an item came twice"
    for name, checkpoint in checkpoints.items():
        Query(db, stream_options(queue.layout, name, on_lost_checkpoint=on_lost[name]), checkpoint).until_dry()
    got = taken + all_rows(checkpoints, lost)
    assert sorted(got) == sorted(enqueued), f"seed {seed}"
    assert queue.check(db).ok, f"seed {seed}: {queue.check(db).problems}"
    assert queue.stats(db).claimed == 0


def decision(db: Any, queue: Queue[bytes], name: str, lost: list[Checkpoint]) -> str:
    """Return what the operator says about the open batch: drop it, if the sink of its checkpoint has it."""
    state = Stream(queue, name).state(db)
    if state is None or state.batch is None:
        return "redeliver"
    found = {"stream": name, "epoch": state.epoch, "batch": state.batch}
    for checkpoint in lost:
        for number, logged in checkpoint.offsets.items():
            if found.items() <= json.loads(logged).items():
                return "drop" if number in checkpoint.sink else "redeliver"
    raise AssertionError(f"{state} is in no write-ahead log")


def all_rows(checkpoints: dict[str, Checkpoint], lost: dict[str, list[Checkpoint]]) -> list[bytes]:
    """Return what the sinks of all queries have, also of those whose checkpoint is lost."""
    every = [*checkpoints.values(), *(one for some in lost.values() for one in some)]
    return [row for checkpoint in every for row in checkpoint.rows()]


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_random_histories_lose_and_double_nothing(db: Any, space: Subspace) -> None:
    for seed in range(HISTORIES):
        history(db, Queue(space[seed]), seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.engines("memory")
def test_thousands_of_histories_do_so_too(db: Any, space: Subspace) -> None:
    for seed in LONG:
        history(db, Queue(space[seed]), seed)


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_random_histories_lose_and_double_nothing_on_disk_and_on_a_cluster(db: Any, space: Subspace) -> None:
    for seed in range(20):
        history(db, Queue(space[seed]), seed)


POINTS = (
    "latest offset",
    "offsets logged",
    "source committed",
    "partitions",
    "a page read",
    "before the sink",
    "after the sink",
    "commit logged",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_of_a_trigger_loses_and_doubles_nothing(db: Any, queue: Queue[bytes], point: str) -> None:
    values = [b"%d" % number for number in range(12)]
    queue.enqueue_many(db, values)
    checkpoint = Checkpoint()
    for after in range(4):
        met = 0

        def kill(name: str, after: int = after) -> None:
            nonlocal met
            met += name == point
            if met > after:
                raise Killed(name)

        with dying():
            Query(db, stream_options(queue.layout, max_items_per_trigger=3), checkpoint, kill).until_dry()
    Query(db, stream_options(queue.layout, max_items_per_trigger=3), checkpoint).until_dry()
    assert checkpoint.rows() == values
    assert queue.check(db).ok
    assert queue.stats(db).dequeued == len(values)


def test_the_last_batch_is_acked_by_the_next_start(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    checkpoint = Checkpoint()
    assert Query(db, stream_options(queue.layout), checkpoint).trigger()
    assert queue.stats(db).claimed == 2
    assert not Query(db, stream_options(queue.layout), checkpoint).trigger()
    assert (queue.stats(db).claimed, queue.stats(db).dequeued) == (0, 2)


def test_available_now_ends_though_producers_never_stop(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(10)])
    checkpoint = Checkpoint()
    query = Query(
        db, stream_options(queue.layout, max_items_per_trigger=4), checkpoint, lambda point: _one_more(db, queue)
    )
    query.source.prepare_for_available_now()
    query.until_dry(100)
    assert checkpoint.rows() == [b"%d" % number for number in range(10)]


def _one_more(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue(db, b"more")


def test_available_now_with_a_limit_takes_no_more(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(10)])
    checkpoint = Checkpoint()
    query = Query(db, stream_options(queue.layout, max_items_per_trigger=4, limit=6), checkpoint)
    query.source.prepare_for_available_now()
    query.until_dry(100)
    assert len(checkpoint.rows()) == 6


def test_a_limit_of_a_query_that_never_ends_is_refused_before_an_item_is_taken(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue(db, b"a")
    query = Query(db, stream_options(queue.layout, limit=1), Checkpoint())
    with pytest.raises(ValueError, match=r"limit counts the items of a run that ends.*availableNow=True"):
        query.trigger()
    assert queue.stats(db).available == 1


def test_available_now_ends_if_all_items_are_leased_or_delayed(db: Any, queue: Queue[bytes]) -> None:
    leases = Leases(queue)
    leases.enqueue(db, b"leased")
    assert leases.lease(db) is not None
    leases.enqueue(db, b"delayed", delay=1000)
    query = Query(db, stream_options(queue.layout), Checkpoint())
    query.source.prepare_for_available_now()
    assert not query.trigger()


def test_fewer_items_than_asked_wait_until_the_delay_is_over(db: Any, queue: Queue[bytes]) -> None:
    now = 0.0
    options = stream_options(queue.layout, min_items_per_trigger=3, max_trigger_delay=60.0)
    source = StreamSource(db, options, clock=lambda: now, rest=lambda seconds: None, wait_seconds=0.0)
    start = source.initial_offset()
    queue.enqueue(db, b"a")
    assert source.latest_offset(start) == start
    now = 59.0
    assert source.latest_offset(start) == start
    now = 61.0
    assert source.latest_offset(start)["batch"] == 1
    queue.enqueue_many(db, [b"b", b"c"])
    assert StreamSource(db, options, wait_seconds=0.0).latest_offset(start)["batch"] == 1


def test_without_a_limit_one_batch_takes_all(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(50)])
    source = StreamSource(db, stream_options(queue.layout, max_items_per_trigger=3), wait_seconds=0.0)
    start = source.initial_offset()
    end = source.latest_offset(start, unlimited=True)
    assert sum(split.count for _, _, split in source.partitions(start, end)) == 50


def test_a_lost_checkpoint_is_refused_and_the_choices_are_named(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(8)])
    first = Checkpoint()
    Query(db, stream_options(queue.layout), first).trigger()
    with pytest.raises(StreamError, match=r"belongs to another checkpoint.*redeliver.*drop"):
        Query(db, stream_options(queue.layout), Checkpoint()).trigger()
    again = Checkpoint()
    Query(db, stream_options(queue.layout, on_lost_checkpoint="redeliver"), again).until_dry()
    assert again.rows() == [b"%d" % number for number in range(8)]
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        Query(db, stream_options(queue.layout), first).trigger()


def test_a_lost_checkpoint_is_refused_and_its_batch_is_repeated(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    Query(db, stream_options(queue.layout), Checkpoint()).trigger()
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        Query(db, stream_options(queue.layout), Checkpoint()).trigger()
    for available_now in True, False:
        again = Checkpoint()
        query = Query(db, stream_options(queue.layout, on_lost_checkpoint="redeliver"), again)
        if available_now:
            query.source.prepare_for_available_now()
        assert query.trigger()
        assert again.rows() == [b"a", b"b"]


def test_a_lost_checkpoint_with_a_written_batch_can_be_dropped(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(8)])
    first, again = Checkpoint(), Checkpoint()
    Query(db, stream_options(queue.layout), first).trigger()
    Query(db, stream_options(queue.layout, on_lost_checkpoint="drop"), again).until_dry()
    assert first.rows() + again.rows() == [b"%d" % number for number in range(8)]
    assert queue.check(db).ok


def test_a_restored_older_checkpoint_is_refused_or_its_acked_batches_are_empty(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(30)])
    checkpoint = Checkpoint()
    query = Query(db, stream_options(queue.layout), checkpoint)
    query.trigger()
    older = checkpoint.copy()
    for _ in range(3):
        query.trigger()
    with pytest.raises(StreamError, match="older copy"):
        Query(db, stream_options(queue.layout), older).trigger()
    Query(db, stream_options(queue.layout, fail_on_data_loss=False), older).until_dry()
    seen = checkpoint.rows() + older.rows()[5:]
    assert sorted(set(seen)) == sorted(b"%d" % number for number in range(30))


def test_of_two_copies_of_a_checkpoint_the_first_is_stopped_when_the_second_goes_on(
    db: Any, queue: Queue[bytes]
) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(30)])
    checkpoint = Checkpoint()
    query = Query(db, stream_options(queue.layout), checkpoint)
    query.trigger()
    query.trigger()
    Query(db, stream_options(queue.layout), checkpoint.copy()).trigger()
    with pytest.raises(StreamError, match="Another reader has gone on"):
        query.trigger()


def test_a_renamed_stream_is_refused(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a"] * 8)
    checkpoint = Checkpoint()
    Query(db, stream_options(queue.layout), checkpoint).trigger()
    with pytest.raises(StreamError, match=r"of the stream 's'.*is 'other' now"):
        Query(db, stream_options(queue.layout, "other"), checkpoint).trigger()


def test_of_two_loads_of_one_name_in_one_query_the_second_is_refused(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a"] * 8)
    one, two = (StreamSource(db, stream_options(queue.layout), wait_seconds=0.0) for _ in range(2))
    start = one.initial_offset()
    ends = one.latest_offset(start), two.latest_offset(start)
    one.partitions(start, ends[0])
    with pytest.raises(StreamError, match="belongs to another checkpoint"):
        two.partitions(start, ends[1])


def test_a_driver_that_was_stopped_after_the_seal_reads_nothing_later(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(5)])
    checkpoint = Checkpoint()
    stopped = StreamSource(db, stream_options(queue.layout), wait_seconds=0.0)
    start = stopped.initial_offset()
    end = stopped.latest_offset(start)
    checkpoint.offsets[0] = json.dumps(end)
    [(batch, epoch, split)] = stopped.partitions(start, end)
    Query(db, stream_options(queue.layout), checkpoint).until_dry()
    assert len(checkpoint.rows()) == 5
    stream: Stream[bytes] = Stream(queue, "s")
    with pytest.raises(StreamError, match="was acked before"):
        list(stream.read(db, epoch, batch, split))


def test_a_release_refuses_the_old_checkpoint_and_admits_a_new_one(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    checkpoint = Checkpoint()

    def kill(point: str) -> None:
        if point == "before the sink":
            raise Killed(point)

    with dying():
        Query(db, stream_options(queue.layout), checkpoint, kill).trigger()
    Stream(queue, "s").release(db)
    with pytest.raises(StreamError, match="was released"):
        Query(db, stream_options(queue.layout), checkpoint).trigger()
    again = Checkpoint()
    Query(db, stream_options(queue.layout), again).until_dry()
    assert again.rows() == [b"a", b"b"]


def test_the_same_partitions_come_when_the_plan_has_the_source_twice(db: Any, queue: Queue[bytes]) -> None:
    queue.enqueue_many(db, [b"%d" % number for number in range(5)])
    source = StreamSource(db, stream_options(queue.layout, min_partitions=3), wait_seconds=0.0)
    start = source.initial_offset()
    end = source.latest_offset(start)
    assert source.partitions(start, end) == source.partitions(start, end)
    assert source.partitions(end, end) == []
    report = source.report()
    assert report is not None
    assert report["available"] == 5
