"""`spark.read` of items in sessions: each once, in its state, with its session."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import FormatError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions
from fdbqueue.layers.sessions.session.records import name_of
from fdbqueue.lowlevel import pack
from fdbqueue.spark.looks import Stored, session_pages, session_ranges
from fdbqueue.spark.options import LOOK, Options, parse
from fdbqueue.spark.schemas import ItemTable, look_schema
from fdbqueue.stored.names import session_text
from fdbqueue.stored.places import ALL_STATES
from tests.helpers.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(space: Subspace, clock: Clock) -> Sessions[bytes]:
    return Sessions(Queue(space), max_attempts=1, clock=clock)


def look(db: Any, sessions: Sessions[Any], *, parts: int = 1, **how: Any) -> list[Stored]:
    layout, given = sessions.queue.layout, {"states": ALL_STATES, "payloads": True, **how}
    spans = session_ranges(db, layout, parts)
    return [item for span in spans for page in session_pages(db, layout, span, **given) for item in page]


def shown(packed: bytes) -> str:
    return session_text(name_of(packed))


def seen(db: Any, sessions: Sessions[Any], **how: Any) -> list[tuple[str, str, bytes]]:
    return [(shown(item.session), item.state, item.payload or item.value[-1:]) for item in look(db, sessions, **how)]


def test_items_in_every_state_are_shown_once_by_session_and_in_order(
    db: Any, sessions: Sessions[bytes], clock: Clock
) -> None:
    for name in "ann", ("bob", 7), b"\x00":
        for number in range(3):
            sessions.enqueue(db, b"%d" % number, session=name)
        sessions.enqueue(db, b"u", session=name, level=0, delay=50)
    first = sessions.lease(db)
    assert first is not None
    sessions.nack(db, first)
    second = sessions.lease(db, duration=9)
    assert second is not None
    states: dict[Any, list[str]] = {"ann": ["delayed", "dead", "leased", "available"]}
    names = [(b"\x00", '{"base64": "AA=="}'), ("ann", "ann"), (("bob", 7), '["bob", 7]')]
    expected = [
        (text, state, value)
        for name, text in names
        for state, value in zip(
            states.get(name, ["delayed", "available", "available", "available"]), (b"u", b"0", b"1", b"2"), strict=True
        )
    ]
    assert seen(db, sessions) == expected
    assert seen(db, sessions, states=("dead", "leased")) == [one for one in expected if one[1] in ("dead", "leased")]
    assert seen(db, sessions, limit=5) == expected[:5]
    options: Options = parse(
        LOOK, {"url": "file:x", "queueKey": sessions.queue.layout.prefix.hex(), "includeSessions": "true"}
    )
    batch = ItemTable(options, look_schema(options)).batch(look(db, sessions, states=("leased",)))
    (row,) = batch.to_pylist()
    assert (row["session"], row["state"], row["attempts"], row["rank"]) == (
        "ann",
        "leased",
        1,
        1,
    )
    assert row["position"] == second.position.text
    assert row["consumer"]
    assert row["lease_expires_at"].timestamp() == clock() + 9


@pytest.mark.parametrize("counts", [[], [1], [99, 1, 1], [100, 3], [350, 0, 120, 1, 1, 500], [1] * 130])
def test_sessions_of_any_size_are_whole_in_any_ranges(db: Any, sessions: Sessions[bytes], counts: list[int]) -> None:
    for number, count in enumerate(counts):
        if count:
            sessions.enqueue_many(db, [b"x"] * count, session=f"{number:04d}")
    wanted = {f"{number:04d}": count for number, count in enumerate(counts) if count}
    for parts in 1, 3:
        found = look(db, sessions, parts=parts)
        assert len({(item.session, item.packed) for item in found}) == len(found) == sum(counts)
        assert {name: sum(shown(item.session) == name for item in found) for name in wanted} == wanted
    assert len(look(db, sessions, limit=70)) == min(70, sum(counts))


def test_large_payloads_of_sessions_are_read_with_their_items(db: Any, sessions: Sessions[bytes]) -> None:
    large = [bytes([number]) * 1_200_000 for number in range(4)]
    for name in "ab":
        sessions.enqueue_many(db, large, session=name)
    sessions.enqueue(db, b"small", session="c")
    assert [item.payload for item in look(db, sessions)] == [*large, *large, None]
    assert [item.payload for item in look(db, sessions, payloads=False)] == [None] * 9


def test_an_item_that_stays_is_seen_exactly_once_while_workers_move_all(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space), concurrency=2, max_attempts=2)
    counts = [300, 1, 40, 1, 150]
    for number, count in enumerate(counts):
        sessions.enqueue_many(db, [b"x"] * count, session=f"{number}")
    stop = threading.Event()

    def move() -> None:
        draw = random.Random(1)
        while not stop.is_set():
            if (lease := sessions.lease(db)) is not None:
                sessions.nack(db, lease)  # the second time it dies
            if draw.random() < 0.2:
                sessions.redrive(db, f"{draw.randrange(len(counts))}")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        looks = [look(db, sessions, parts=parts) for parts in (1, 2, 3, 1, 2, 3)]
    finally:
        stop.set()
        mover.join()
    for found in looks:
        assert len({(item.session, item.packed) for item in found}) == len(found) == sum(counts)


def test_positions_of_a_queue_name_nothing_in_sessions() -> None:
    with pytest.raises(ValueError, match="each session has its own: omit includeSessions"):
        parse(LOOK, {"url": "file:/x", "queue": "q", "includeSessions": "true", "from": "1:00"})


@pytest.mark.spark
@pytest.mark.engines("file", "cluster")
def test_spark_shows_a_queue_with_its_sessions(spark: SparkSession, db: Any, url: str, queue_name: str) -> None:
    from fdbqueue.spark import redrive

    queue = Queue(queue_name, codec="str")
    sessions = Sessions(queue, max_attempts=1)
    queue.enqueue(db, "plain")
    for number in range(20):
        sessions.enqueue(db, f"{number}", session=f"s{number % 3}")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.nack(db, lease, error="broken")
    given = {"url": url, "queue": queue_name, "codec": "str", "includeSessions": "true"}
    df = spark.read.format("fdbqueue").options(**given).load()
    found = {(row.session, row.value): row.state for row in df.select("session", "value", "state").collect()}
    assert found == {(None, "plain"): "available"} | {
        (f"s{number % 3}", f"{number}"): "dead" if number == 0 else "available" for number in range(20)
    }
    assert df.where("session = 's0' AND state = 'dead'").collect()[0].error == "broken"
    assert spark.read.format("fdbqueue").options(**given, limit="4").load().count() == 4
    assert spark.read.format("fdbqueue").options(**given).schema("session string").load().distinct().count() == 4
    with pytest.raises(ValueError, match=r"Sessions\(queue\).redrive"):
        redrive(df, url=url, queue=queue_name)


def test_a_damaged_pointer_is_named(db: Any, sessions: Sessions[bytes]) -> None:
    sessions.enqueue(db, b"x", session="ann")
    lease = sessions.lease(db)
    assert lease is not None
    db[sessions.line.layout.leased.key(pack(lease.turn))] = b"\x90newer"
    with pytest.raises(FormatError, match=f"item {lease.turn.text} of the line of sessions of "):
        look(db, sessions)
