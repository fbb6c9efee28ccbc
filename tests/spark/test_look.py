"""`spark.read`: all items in all states, each once, though others move them; it takes nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue, StreamError
from fdbqueue.arrow.stored import Range, pages
from fdbqueue.engine import Subspace
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.spark.looks import ranges
from fdbqueue.spark.options import LOOK, parse
from fdbqueue.spark.schemas import ItemTable, look_schema
from fdbqueue.stored.items import envelope
from fdbqueue.stored.places import ALL_STATES
from fdbqueue.stored.positions import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def seen(
    db: Any, queue: Queue[Any], *, parts: int = 1, states: tuple[str, ...] = ALL_STATES
) -> list[tuple[bytes, str]]:
    found = []
    for span in ranges(db, queue.layout, Range(None, None), states, parts):
        for page in pages(db, queue.layout, span, states, payloads=True):
            found += [(item.packed, item.state) for item in page]
    return found


def test_a_look_sees_every_item_of_every_state_once_in_order(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    leases = Leases(queue, max_attempts=1)
    positions = [leases.enqueue(db, b"%d" % number, delay=100 if number == 6 else None) for number in range(8)]
    claimed = Stream(queue, "s").claim(db, Terms(epoch="e", batch=1, run="", items=2, size_bytes=100))
    assert claimed.count == 2
    dead = leases.lease(db)
    assert dead is not None
    leases.nack(db, dead)
    assert leases.lease(db) is not None
    states = ["claimed", "claimed", "dead", "leased", "available", "available", "delayed", "available"]
    assert seen(db, queue) == [(pack(one), state) for one, state in zip(positions, states, strict=True)]
    assert [state for _, state in seen(db, queue, states=("dead", "delayed"))] == ["dead", "delayed"]


@pytest.mark.parametrize("codec", ["bytes", "json"])
def test_a_look_shows_no_value_where_a_blob_is_the_value(db: Any, space: Subspace, codec: str) -> None:
    queue = Queue(space)
    for value in b"", b'"beside"':
        with Blobs(Leases(queue)).write(db, *([value] if value else [])) as file:
            file.write(bytes(1_200_000))
    options = parse(LOOK, {"url": "file:x", "queueKey": space.key().hex(), "codec": codec})
    table = ItemTable(options, look_schema(options))
    (page,) = pages(db, queue.layout, Range(None, None), ALL_STATES, payloads=True)
    assert table.batch(page).column("value").to_pylist() == [None, b'"beside"' if codec == "bytes" else '"beside"']


def test_a_look_refuses_a_queue_with_items_in_sessions(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    Sessions(queue).enqueue(db, b"x", session="ann")
    with pytest.raises(StreamError, match=r"items in sessions, and a look does not see these.*layers\.Sessions"):
        seen(db, queue)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 350])
def test_pages_and_ranges_of_any_number_are_whole(db: Any, space: Subspace, count: int) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, [b"%d" % number for number in range(count)])
    for parts in 1, 3:
        assert len(seen(db, queue, parts=parts)) == len(set(seen(db, queue, parts=parts))) == count
    limited = list(pages(db, queue.layout, Range(None, None), ALL_STATES, payloads=True, limit=70))
    assert sum(map(len, limited)) == min(count, 70)


def test_an_item_that_is_only_moved_is_seen_exactly_once(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    leases = Leases(queue)
    queue.enqueue_many(db, [b"%d" % number for number in range(600)])
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set():
            for lease in leases.lease_many(db, limit=50):
                leases.nack(db, lease, delay=0.01)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        looks = [[packed for packed, _ in seen(db, queue, parts=3)] for _ in range(5)]
    finally:
        stop.set()
        mover.join()
    for look in looks:
        assert len(look) == len(set(look)) == 600


def test_ranks_are_ranges_too(db: Any, space: Subspace) -> None:
    urgent = PriorityQueue(Queue(space), levels=3)
    for number in range(30):
        urgent.enqueue(db, b"%d" % number, priority=number % 3)
    assert len(seen(db, urgent.queue, parts=4)) == len(set(seen(db, urgent.queue, parts=4))) == 30


def test_large_payloads_are_read_with_their_items(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    large = [bytes([number]) * 1_200_000 for number in range(4)]
    queue.enqueue_many(db, large)
    found = [item for page in pages(db, queue.layout, Range(None, None), ALL_STATES, payloads=True) for item in page]
    assert [item.payload for item in found] == large


def test_options_are_checked_and_a_consuming_read_points_to_what_consumes() -> None:
    plain = {"url": "file:/x", "queue": "q"}
    assert parse(LOOK, plain).states == ALL_STATES
    assert parse(LOOK, {**plain, "STATES": "dead, Leased"}).states == ("leased", "dead")
    for wrong, told in (
        ({"streamName": "s"}, "drain_to_table"),
        ({"consume": "true"}, "fdbqueue.spark.claim"),
        ({"states": "gone"}, "states is one of available"),
        ({"from": "7"}, "from is a position"),
        ({"from": "8:00", "to": "7:00"}, "comes before"),
        ({"limit": "0"}, "limit is a whole number"),
        ({"jobId": "x"}, "There is no option 'jobId'"),
        ({"queueKey": "00"}, "not both"),
    ):
        with pytest.raises(ValueError, match=told):
            parse(LOOK, {**plain, **wrong})


def read(spark: SparkSession, url: str, queue_name: str, **options: str) -> DataFrame:
    return spark.read.format("fdbqueue").options(url=url, queue=queue_name, **options).load()


@pytest.mark.spark
@pytest.mark.engines("file", "cluster")
def test_spark_shows_the_queue_with_its_columns(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    queue = Queue(queue_name, codec="json")
    leases = Leases(queue, max_attempts=1)
    leases.enqueue(db, {"n": 1}, headers={"color": "red", "size": 3}, ttl=1000)
    leases.enqueue(db, {"n": 2}, delay=1000)
    leases.enqueue(db, {"n": 3})
    lease = leases.lease(db, consumer="me")
    assert lease is not None
    leases.nack(db, lease, error="broken")
    assert leases.lease(db, consumer="me") is not None
    df = read(spark, url, queue_name, codec="json")
    dead, delayed, leased = df.collect()
    assert (dead.state, delayed.state, leased.state) == ("dead", "delayed", "leased")
    assert (dead.value, dead.headers, dead.error, dead.attempts) == (
        '{"n":1}',
        {"color": "red", "size": "3"},
        "broken",
        1,
    )
    assert dead.position == lease.position.text
    assert (dead["index"], dead["rank"]) == (1, None)
    assert dead.enqueued_at is not None
    assert dead.died_at is not None
    assert delayed.visible_at > delayed.enqueued_at
    assert (leased.consumer, leased.lease_expires_at > leased.enqueued_at) == ("me", True)
    assert df.filter("state = 'dead'").union(df.filter("state <> 'dead'")).count() == 3
    assert df.count() == 3
    assert read(spark, url, queue_name, states="dead,leased").count() == 2
    assert read(spark, url, queue_name, limit="1").count() == 1
    assert [row.state for row in read(spark, url, queue_name, **{"from": delayed.position}).collect()] == [
        "delayed",
        "leased",
    ]
    assert read(spark, url, queue_name, to=delayed.position).count() == 1
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW looked USING fdbqueue OPTIONS (url '{url}', queue '{queue_name}')")
    assert spark.sql("SELECT count(*) AS n FROM looked WHERE state = 'dead'").collect()[0].n == 1
    pruned = spark.read.format("fdbqueue").schema("state string, position string").options(url=url, queue=queue_name)
    assert pruned.load().columns == ["state", "position"]
    assert pruned.load().count() == 3
    assert queue.stats(db).leased == 1


@pytest.mark.spark
@pytest.mark.engines("file")
def test_spark_refuses_wrong_columns_and_items_that_do_not_decode(
    spark: SparkSession, db: Any, url: str, queue_name: str
) -> None:
    Queue(queue_name, codec="str").enqueue(db, "x")
    with pytest.raises(Exception, match=r"registered with the codec 'str', and the option codec is 'json'.*codec=str"):
        read(spark, url, queue_name, codec="json").collect()
    states = (
        spark.read.format("fdbqueue").schema("state string").options(url=url, queue=queue_name, codec="json").load()
    )
    assert states.collect() == [("available",)], "without values nothing is decoded"
    queue = Queue(queue_name)
    queue.register(db, on_codec="replace")
    queue.clear(db)
    queue.enqueue(db, b"\xff")
    for schema, told in (
        ("nothing string", "no column 'nothing'"),
        ("value string", "value.* is binary, not string"),
        ("state string, state string", "each once|COLUMN_ALREADY_EXISTS"),
    ):
        with pytest.raises(Exception, match=told):
            spark.read.format("fdbqueue").schema(schema).options(url=url, queue=queue_name).load().collect()
    Queue(queue_name, codec="json").register(db, on_codec="replace")
    with pytest.raises(Exception, match="does not decode by the codec json"):
        read(spark, url, queue_name, codec="json").collect()
    assert [row.value for row in read(spark, url, queue_name, codec="json", onBadItem="null").collect()] == [None]
    queue.register(db, on_codec="replace")
    with pytest.raises(Exception, match="drain_to_table"):
        read(spark, url, queue_name, streamName="s").collect()
    position = queue.enqueue(db, b"x")
    db[queue.layout.item_key(position)] = b"\xf4" + envelope(b"x")
    with pytest.raises(Exception, match="newer version"):
        read(spark, url, queue_name).collect()
    assert read(spark, url, queue_name, onBadItem="null").count() == 2


@pytest.mark.spark
@pytest.mark.engines("file", "cluster")
def test_many_items_come_in_several_partitions(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    Queue(queue_name).enqueue_many(db, [b"%06d" % number for number in range(110_000)])
    df = read(spark, url, queue_name)
    assert df.count() == df.select("position").distinct().count() == 110_000
    assert df.rdd.getNumPartitions() >= 2
