"""Blobs in every kind of queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import CodecError, Queue, QueueFull
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blob,
    Blobs,
    Consumer,
    Leases,
    Limit,
    OperationLog,
    PriorityQueue,
    RelaxedQueue,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.blobs import data_of, kept_keys, small_pieces, write
from tests.helpers.smart import Progress, smart_queue

KINDS: dict[str, Callable[[Queue], Any]] = {
    "Queue": lambda queue: queue,
    "Leases": Leases,
    "PriorityQueue": lambda queue: PriorityQueue(queue, levels=3),
    "PriorityQueue by turns": lambda queue: PriorityQueue(queue, levels=3, weights=[1, 1, 1]),
    "RelaxedQueue": RelaxedQueue,
    "StagedQueue": StagedQueue,
    "StagedQueue over a PriorityQueue": lambda queue: StagedQueue(PriorityQueue(queue, levels=3)),
    "Subscriptions": Subscriptions,
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


@pytest.mark.parametrize("size", [30, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_queue_takes_blobs(db: Any, space: Subspace, kind: str, size: int) -> None:
    made = KINDS[kind](Queue(space))
    blobs = Blobs(made)
    leases: Any = getattr(made, "leases", None) or Leases(blobs.queue)
    position = write(blobs, db, data_of(size), headers={"color": "red"})
    lease = leases.lease(db)

    assert lease.position == position
    assert lease.headers["color"] == "red"
    assert blobs.read(db, lease).read() == data_of(size)
    assert leases.check(db).ok
    leases.ack(db, lease)
    assert leases.check(db).ok
    assert kept_keys(db, blobs.queue) == []


@pytest.mark.parametrize("kind", ["PriorityQueue by turns", "RelaxedQueue"])
def test_no_kind_of_dequeue_removes_a_blob_unread(db: Any, space: Subspace, kind: str) -> None:
    made = KINDS[kind](Queue(space))
    blobs = Blobs(made)
    position = write(blobs, db, data_of(100))
    with pytest.raises(CodecError, match="a dequeue would remove unread"):
        made.dequeue(db)

    assert blobs.read(db, position).read() == data_of(100)
    assert blobs.check(db).ok


def test_a_waiting_dequeue_raises_and_a_waiting_lease_gets_the_item(db: Any, space: Subspace) -> None:
    staged = StagedQueue(Queue(space))
    other = StagedQueue(Queue(space))
    blobs = Blobs(staged)
    got: list[Any] = []

    def wait() -> None:
        try:
            got.append(staged.dequeue(db, timeout=30))
        except CodecError as error:
            got.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not staged.stats(db).requests:
        pass
    position = write(blobs, db, data_of(100))
    thread.join()
    assert isinstance(got[0], CodecError)

    lease = other.lease(db, timeout=30)
    assert lease is not None
    assert lease.position == position
    assert blobs.read(db, lease).read() == data_of(100)
    assert blobs.check(db).ok


def test_a_blob_has_a_priority_a_delay_and_a_time_to_live(db: Any, space: Subspace) -> None:
    made = PriorityQueue(Queue(space), levels=3)
    blobs = Blobs(made)
    made.enqueue(db, b"plain", priority=1)
    urgent = write(blobs, db, data_of(100), priority=0)
    later = write(blobs, db, data_of(90), priority=0, delay=1_000)

    assert next(item.position for item in made.queue.browse(db)) == urgent
    assert blobs.read(db, later).read() == data_of(90)
    out = blobs.write(db, priority=7)
    with pytest.raises(ValueError, match="priority"):
        out.write(data_of(100))
    assert made.leases.check(db).ok


def test_a_subscription_gets_blobs_by_their_headers_also_while_it_waits(db: Any, space: Subspace) -> None:
    made = Subscriptions(Queue(space))
    blobs = Blobs(made)
    red = made.subscribe(db, "red", selector="color = 'red'")
    made.subscribe(db, "blue", selector="color = 'blue'")
    write(blobs, db, data_of(100), headers={"color": "red"})
    lease = red.lease(db)
    assert lease is not None
    assert blobs.read(db, lease).read() == data_of(100)
    red.ack(db, lease)
    assert blobs.write(db, immediate=True).commit() is None

    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(red.lease(db, timeout=30)))
    thread.start()
    while not _waits(db, made):
        pass
    with blobs.write(db, headers={"color": "red"}, immediate=True) as out:
        out.write(data_of(200))
    thread.join()
    assert out.position == got[0].position
    assert blobs.read(db, got[0]).read() == data_of(200)
    assert made.leases.check(db).ok
    red.ack(db, got[0])
    assert kept_keys(db, blobs.queue) == []

    with blobs.write(db, headers={"color": "red"}, immediate=True) as out:
        out.write(data_of(200))
    assert out.position is None, "no consumer waits"
    assert kept_keys(db, blobs.queue) == []


def _waits(db: Any, made: Subscriptions) -> bool:
    span = made.leases.layout.waiting.range()
    return bool(list(db.get_range(span.start, span.stop, limit=1)))


def test_a_smart_queue_compares_values_and_moves_or_drops_the_data(db: Any, space: Subspace) -> None:
    smart = smart_queue(space)
    blobs = Blobs(smart)
    first = write(blobs, db, data_of(100), Progress("a.iso", 1))
    with blobs.write(db, Progress("a.iso", 2)) as out:
        out.write(data_of(200))

    assert out.position == first, "the queued item took the values of the incoming one"
    assert out.enqueued is not None
    lease = smart.leases.lease(db)
    assert lease is not None
    assert lease.value == Progress("a.iso", 2)
    assert blobs.read(db, lease).read() == data_of(200)
    assert blobs.stats(db).blobs == 1
    assert smart.check(db).ok
    smart.leases.ack(db, lease)
    assert kept_keys(db, blobs.queue) == []

    write(blobs, db, data_of(100), Progress("a.iso", 1))
    smart.enqueue(db, Progress("a.iso", 2))
    assert kept_keys(db, blobs.queue) == [], "the message that replaces an item replaces its data too"
    assert smart.check(db).ok


def test_a_full_smart_queue_refuses_at_the_end_and_takes_the_item_when_there_is_room(db: Any, space: Subspace) -> None:
    smart = SmartQueue(smart_queue(space).queue, limit=Limit(1))
    blobs = Blobs(smart)
    smart.enqueue(db, Progress("b.iso", 1))
    out = blobs.write(db, Progress("a.iso", 1))
    out.write(data_of(100))
    with pytest.raises(QueueFull):
        out.commit()
    smart.dequeue(db)

    position = out.commit()
    assert position is not None
    assert blobs.read(db, position).read() == data_of(100)
    assert smart.check(db).ok


def test_a_consumer_reads_blobs_in_its_handler(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    blobs = Blobs(leases)
    write(blobs, db, data_of(100))
    write(blobs, db, data_of(20))
    read = []

    def handle(lease: Any) -> None:
        read.append(blobs.read(db, lease).read())
        if len(read) == 2:
            consumer.stop()

    consumer = Consumer(leases, handle, concurrency=1)
    consumer.run(db)
    assert read == [data_of(100), data_of(20)]
    assert kept_keys(db, leases.queue) == []


def test_an_operation_log_has_every_transaction_of_an_upload(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space["queue"]))
    log = OperationLog(space["log"], leases.queue)
    logged = log.of(db, by="me")
    write(Blobs(leases), logged, data_of(200))

    lease = leases.lease(logged)
    assert lease is not None
    value: Any = lease.value
    assert isinstance(value, Blob)
    assert len(list(log.records(db))) >= 5
