"""Streams of queues that are paused, or have nothing to take."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fdbqueue import Queue, QueuePaused, QueueRenamed, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import BatchRecord, Stream
from fdbqueue.layers.streams.records import StreamKeys, encode
from fdbqueue.stored.settings import Mark, pack_mark
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.layers.streams.test_streams import terms, values


@pytest.fixture
def queue(space: Subspace) -> Queue[bytes]:
    return Queue(space["queue"])


@pytest.fixture
def stream(queue: Queue[bytes], clock: Clock) -> Stream[bytes]:
    return Stream(Leases(queue, clock=clock), "s", clock=clock)


def keys(db: Any, stream: Stream[bytes]) -> list[Any]:
    """Return the keys that the stream has."""
    return [row.key for row in db[stream.queue.layout.streams.range()]]


def test_a_claim_of_a_paused_queue_is_refused_and_writes_nothing(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    queue.pause(db, reason="stocktaking", by="Ann")
    with pytest.raises(QueuePaused, match=r"is paused.*by Ann.*stocktaking.*Nothing was taken.*resume") as refused:
        stream.claim(db, terms())
    assert (refused.value.by, refused.value.reason) == ("Ann", "stocktaking")
    assert keys(db, stream) == []
    queue.resume(db)
    assert values(stream, db, 1, stream.claim(db, terms())) == [b"a", b"b"]
    assert queue.check(db).ok


def test_a_sealed_batch_is_the_same_during_a_pause_and_can_be_acked(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    queue.enqueue_many(db, [b"a", b"b"])
    record = stream.claim(db, terms(items=1))
    queue.pause(db)
    assert stream.claim(db, terms()) == record
    stream.ack(db, terms())
    with pytest.raises(QueuePaused):
        stream.claim(db, terms(2))
    assert queue.stats(db).available == 1


def test_a_claim_that_a_pause_interrupts_goes_on_after_it(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue_many(db, [b"%03d" % number for number in range(250)])

    class Killed(Exception):
        pass

    with pytest.raises(Killed):
        stream.claim(FaultyDatabase.failing_at(db, {1}, ("before", Killed())), terms(items=240))
    queue.pause(db)
    with pytest.raises(QueuePaused):
        stream.claim(db, terms(items=240))
    state = stream.state(db)
    assert state is not None
    assert (state.items, state.sealed) == (100, False)
    queue.resume(db)
    assert len(values(stream, db, 1, stream.claim(db, terms(items=240)))) == 240


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_claim_can_wait_for_the_end_of_a_pause(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], asynchronous: bool
) -> None:
    queue.enqueue(db, b"a")
    queue.pause(db)
    resumed = threading.Timer(0.3, lambda: queue.resume(db))
    resumed.start()
    if asynchronous:

        async def claim() -> BatchRecord:
            return await stream.claim.aio(db, terms(waits=True))

        record = asyncio.run(claim())
    else:
        record = stream.claim(db, terms(waits=True))
    resumed.join()
    assert record.count == 1


def test_a_look_tells_a_pause_and_waits_for_its_end(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    queue.enqueue(db, b"a")
    assert stream.look(db).paused is None
    queue.pause(db, reason="stocktaking")
    paused = stream.look(db).paused
    assert paused is not None
    assert paused.reason == "stocktaking"
    resumed = threading.Timer(0.3, lambda: queue.resume(db))
    resumed.start()
    look = stream.look(db, seconds=30)
    resumed.join()
    assert look.paused is None
    assert look.any


def test_a_look_at_a_renamed_queue_is_refused(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    db[queue.layout.paused_key] = pack_mark(Mark(queue.layout.prefix, b"new", 0, done=True))
    with pytest.raises(QueueRenamed):
        stream.look(db)


def test_a_claim_of_nothing_is_sealed_only_on_request(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    record = stream.claim(db, terms(seals_empty=False))
    assert (record.sealed, record.count) == (False, 0)
    assert keys(db, stream) == []
    queue.enqueue_many(db, [b"a", b"b"])
    assert values(stream, db, 1, stream.claim(db, terms(seals_empty=False))) == [b"a", b"b"]
    assert Stream(queue, "other").claim(db, terms()) == Stream(queue, "other").sealed(db, 1)


def test_a_claim_whose_items_have_all_expired_is_not_sealed(
    db: Any, queue: Queue[bytes], stream: Stream[bytes], clock: Clock
) -> None:
    leases = Leases(queue, clock=clock)
    for number in range(120):  # more than one transaction's
        leases.enqueue(db, b"%d" % number, ttl=1)
    clock.now += 2
    assert not stream.claim(db, terms(items=200, seals_empty=False)).sealed
    assert keys(db, stream) == []
    assert queue.stats(db).expired == 120


def test_a_batch_that_an_older_version_sealed_empty_is_claimed_again(
    db: Any, queue: Queue[bytes], stream: Stream[bytes]
) -> None:
    stream.claim(db, terms())
    queue.enqueue(db, b"a")
    assert stream.claim(db, terms()).count == 0
    assert values(stream, db, 1, stream.claim(db, terms(seals_empty=False))) == [b"a"]


def test_only_a_sealed_batch_is_found(db: Any, queue: Queue[bytes], stream: Stream[bytes]) -> None:
    assert stream.sealed(db, 1) is None
    queue.enqueue(db, b"a")
    record = stream.claim(db, terms())
    assert stream.sealed(db, 1) == record
    unsealed = BatchRecord(count=1, size_bytes=1)
    db[StreamKeys(queue.layout, "s").batch(1)] = encode(unsealed)
    assert stream.sealed(db, 1) is None
    with pytest.raises(TypeError, match="takes a database"):
        stream.sealed(db.create_transaction(), 1)


def test_a_stream_has_the_words_that_it_is_given(db: Any, queue: Queue[bytes]) -> None:
    from fdbqueue.layers.streams import Refusals

    class Mine(Refusals):
        def gone(self, batch: int) -> StreamError:
            return StreamError(f"No {self.name}, no {batch}.")

    with pytest.raises(StreamError, match=r"^No s, no 2\.$"):
        Stream(queue, "s", refusals=Mine).claim(db, terms(2))
