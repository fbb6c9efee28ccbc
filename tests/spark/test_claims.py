"""Named claims of queues that are empty, paused, mistyped or cleared: a program neither writes nor acks nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import OtherCodec, Queue, QueuePaused, StorageError, StreamError, UnknownQueue
from fdbqueue.layers.streams import Stream
from fdbqueue.spark import claim, release, streams
from fdbqueue.spark.options import CLAIM, parse
from fdbqueue.spark.readers import FdbQueueClaimReader, stream_of
from fdbqueue.spark.schemas import stream_schema
from fdbqueue.spark.stream_source import splits
from tests.helpers.faults import FaultyDatabase
from tests.layers.streams.test_streams import terms as stream_terms

pytestmark = [pytest.mark.spark, pytest.mark.engines("file", "cluster"), pytest.mark.usefixtures("spark_is_here")]


@pytest.fixture
def queue(db: Any, queue_name: str) -> Queue[str]:
    queue = Queue(queue_name, codec="str")
    queue.register(db)
    return queue


def test_a_claim_of_an_empty_queue_notes_nothing_and_can_be_neither_read_nor_acked(
    db: Any, url: str, queue: Queue[str], queue_name: str
) -> None:
    nothing = claim(url=url, queue=queue_name, name="2013-06-01")
    assert (nothing.count, nothing.done, list(streams(db, queue_name))) == (0, False, [])
    for call in (lambda: nothing.dataframe(None), nothing.ack):  # type: ignore[arg-type]
        with pytest.raises(StreamError, match=r"'2013-06-01' has no items.*Nothing is noted"):
            call()
    with pytest.raises(StreamError, match="nothing to give back"):
        nothing.release()
    queue.enqueue(db, "late")
    assert claim(url=url, queue=queue_name, name="2013-06-01").count == 1
    assert nothing.count == 0
    with pytest.raises(StreamError, match="has no items"):
        nothing.ack()
    assert queue.stats(db).claimed == 1


def test_a_claim_of_a_paused_queue_is_refused_or_waits(db: Any, url: str, queue: Queue[str], queue_name: str) -> None:
    queue.enqueue_many(db, ["a", "b"])
    queue.pause(db, reason="stocktaking", by="Ann")
    with pytest.raises(QueuePaused, match=r"paused, by Ann: stocktaking.*on_paused='wait'"):
        claim(url=url, queue=queue_name, name="x")
    assert list(streams(db, queue_name)) == []
    timer = threading.Timer(0.3, lambda: queue.resume(db))
    timer.start()
    assert claim(url=url, queue=queue_name, name="x", on_paused="wait").count == 2
    timer.join()
    queue.pause(db)
    assert claim(url=url, queue=queue_name, name="x").count == 2, "a claim that is complete is found during a pause"
    with pytest.raises(ValueError, match="on_paused is 'fail' or 'wait', not 'skip'"):
        claim(url=url, queue=queue_name, name="x", on_paused="skip")


def test_a_claim_of_a_mistyped_queue_is_refused_with_the_nearest_name(
    db: Any, url: str, queue: Queue[str], queue_name: str
) -> None:
    queue.enqueue(db, "a")
    with pytest.raises(UnknownQueue, match=rf"There is no queue .*Did you mean '{queue_name}'"):
        claim(url=url, queue=queue_name[:-1], name="x")
    assert list(db[Queue(queue_name[:-1]).layout.space.range()]) == []


def test_a_claim_makes_no_database(queue_name: str, tmp_path: Path) -> None:
    for folder in tmp_path / "none", tmp_path:
        with pytest.raises(StorageError, match="there is no database"):
            claim(url=f"file:{folder}", queue=queue_name, name="x")
    assert list(tmp_path.iterdir()) == []


def test_an_ack_after_a_clear_or_a_release_says_so_and_removes_nothing(
    db: Any, url: str, queue: Queue[str], queue_name: str
) -> None:
    queue.enqueue_many(db, ["a", "b"])
    one = claim(url=url, queue=queue_name, name="x")
    release(db, queue_name, "x")
    with pytest.raises(StreamError, match=r"claim 'x' was released.*Nothing was removed. Drop the output"):
        one.ack()
    assert queue.stats(db).available == 2
    one = claim(url=url, queue=queue_name, name="x")
    assert one.count == 2, "the name is free after a release"
    assert one.release() == 2
    with pytest.raises(StreamError, match=r"no claim 'x'.*it was released, or the queue was cleared"):
        one.ack()
    late, one = one, claim(url=url, queue=queue_name, name="x")
    for call in late.ack, late.release:
        with pytest.raises(StreamError, match=r"claim 'x' was released.*Drop the output"):
            call()
    assert queue.stats(db).claimed == 2, "the items of the other claim stay with it"
    queue.clear(db)
    with pytest.raises(StreamError, match=r"no claim 'x'.*the queue was cleared. Nothing was removed"):
        one.ack()


def test_a_release_that_was_interrupted_is_finished_by_the_next_claim(
    db: Any, url: str, queue: Queue[str], queue_name: str
) -> None:
    queue.enqueue_many(db, [f"{number:03d}" for number in range(600)])
    claim(url=url, queue=queue_name, name="x")

    class Killed(Exception):
        pass

    with pytest.raises(Killed):
        release(FaultyDatabase.failing_at(db, {1}, ("before", Killed())), queue_name, "x")
    assert claim(url=url, queue=queue_name, name="x").count == 600
    assert queue.check(db).ok


def test_a_claim_is_not_read_by_another_codec(db: Any, url: str, queue: Queue[str], queue_name: str) -> None:
    queue.enqueue(db, "53")
    one = claim(url=url, queue=queue_name, name="x")
    for codec, refused in ("json", True), ("str", False), ("bytes", False):
        options = parse(CLAIM, {"url": url, "queue": queue_name, "claim": "x", "codec": codec})
        reader = FdbQueueClaimReader(options, stream_schema(options, headers=False))
        if refused:
            with pytest.raises(OtherCodec, match="registered with the codec 'str'"):
                reader.partitions()
        else:
            assert len(reader.partitions()) == 1
    one.ack()


def test_the_readers_of_a_claim_speak_of_claims(db: Any, url: str, queue: Queue[str], queue_name: str) -> None:
    queue.enqueue_many(db, ["a", "b"])
    options = parse(CLAIM, {"url": url, "queue": queue_name, "claim": "x"})
    reader = FdbQueueClaimReader(options, stream_schema(options, headers=False))
    with pytest.raises(StreamError, match="no claim 'x'"):
        reader.partitions()
    one = claim(url=url, queue=queue_name, name="x")
    [partition] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 2  # type: ignore[arg-type]
    one.ack()
    for late in (lambda: list(reader.read(partition)), reader.partitions):  # type: ignore[arg-type]
        with pytest.raises(StreamError, match="claim 'x' was acked before"):
            late()
    with pytest.raises(StreamError, match="claim 'x' was acked before"):
        claim(url=url, queue=queue_name, name="x").dataframe(None)  # type: ignore[arg-type]


def test_a_claim_that_was_stopped_half_way_is_not_read(db: Any, url: str, queue: Queue[str], queue_name: str) -> None:
    queue.enqueue_many(db, [f"{number:03d}" for number in range(300)])

    class Killed(Exception):
        pass

    options = parse(CLAIM, {"url": url, "queue": queue_name, "claim": "x"})
    stream = stream_of(options)
    faulty = FaultyDatabase.failing_at(db, {1}, ("before", Killed()))
    with pytest.raises(Killed):
        stream.claim(faulty, stream_terms(epoch="claim", run="", items=300))
    with pytest.raises(StreamError, match=r"claim 'x' is not complete.*goes on"):
        splits(stream, db)
    assert claim(url=url, queue=queue_name, name="x").count == 300
    assert len(splits(stream, db)) > 0


def test_the_name_of_a_stream_is_refused(db: Any, url: str, queue: Queue[str], queue_name: str) -> None:
    queue.enqueue_many(db, ["a", "b"])
    Stream(queue, "s").claim(db, stream_terms(items=1))
    with pytest.raises(StreamError, match="'s' is the name of a stream"):
        claim(url=url, queue=queue_name, name="s")
