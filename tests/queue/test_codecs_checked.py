"""A queue's items are read and written by the codec that the queue is registered with, and by no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import OtherCodec, Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Messages, MessageType, PriorityQueue, Sessions, SmartQueue, Subscriptions
from tests.helpers.reading import Reading

REFUSED = r"registered with the codec 'json', and not with 'msgpack'"


class Views:
    """A program's own codec."""

    name = "views"

    def encode(self, value: Any) -> bytes:
        return b"v%d" % value

    def decode(self, data: bytes) -> Any:
        return int(data[1:])


def following(queue: Queue[Any], db: Any, position: Position) -> object:
    with Subscriptions(Leases(queue)).follow(db) as browser:
        return next(browser)


VERBS: dict[str, Callable[[Queue[Any], Any, Position], object]] = {
    "peek": lambda queue, db, position: queue.peek(db),
    "get": lambda queue, db, position: queue.get(db, position),
    "get_many": lambda queue, db, position: queue.get_many(db, [position]),
    "browse": lambda queue, db, position: list(queue.browse(db)),
    "inspect": lambda queue, db, position: queue.inspect(db),
    "to_arrow": lambda queue, db, position: queue.to_arrow(db),
    "to_arrow_batches": lambda queue, db, position: list(queue.to_arrow_batches(db)),
    "to_pandas": lambda queue, db, position: queue.to_pandas(db),
    "dequeue_arrow": lambda queue, db, position: queue.dequeue_arrow(db),
    "dequeue": lambda queue, db, position: queue.dequeue(db),
    "dequeue_many": lambda queue, db, position: queue.dequeue_many(db),
    "enqueue": lambda queue, db, position: queue.enqueue(db, 53),
    "enqueue_many": lambda queue, db, position: queue.enqueue_many(db, [53]),
    "update": lambda queue, db, position: queue.update(db, position, value=53),
    "update_many": lambda queue, db, position: queue.update_many(db, [position], value=53),
    "register": lambda queue, db, position: queue.register(db),
    "Leases.lease": lambda queue, db, position: Leases(queue).lease(db),
    "Leases.browse": lambda queue, db, position: list(Leases(queue).browse(db)),
    "Leases.get": lambda queue, db, position: Leases(queue).get(db, position),
    "Leases.update": lambda queue, db, position: Leases(queue).update(db, position, value=53),
    "Subscriptions.browse": lambda queue, db, position: list(Subscriptions(Leases(queue)).browse(db)),
    "Subscriptions.follow": following,
}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_another_codec_is_refused_by_every_verb_which_says_which_one_it_is(db: Any, space: Subspace, name: str) -> None:
    position = Queue(space, codec="json").enqueue(db, 5)
    before = [(row.key, row.value) for row in db.get_range_startswith(space.key())]

    with pytest.raises(OtherCodec, match=REFUSED if name != "register" else "have the codec 'json'"):
        VERBS[name](Queue(space, codec="msgpack"), db, position)

    left = Queue(space, codec="json")
    assert left.get(db, position).value == 5  # type: ignore[union-attr]
    kept = dict(before)
    assert {row.key: row.value for row in db.get_range_startswith(space.key()) if row.key in kept} == kept


@pytest.mark.parametrize("name", ["peek", "get", "update", "inspect", "to_arrow"])
def test_another_codec_is_refused_in_a_callers_transaction_and_when_awaited(
    db: Any, space: Subspace, name: str
) -> None:
    position = Queue(space, codec="json").enqueue(db, 5)
    with pytest.raises(OtherCodec, match=REFUSED):
        VERBS[name](Queue(space, codec="msgpack"), db.create_transaction(), position)

    async def peek() -> object:
        return await Queue(space, codec="msgpack").peek.aio(db)

    with pytest.raises(OtherCodec, match=REFUSED):
        asyncio.run(peek())


@pytest.mark.parametrize(
    ("registered", "given", "value"), [("bytes", "json", 1), ("json", Views(), 1), (Views(), "json", 1)]
)
def test_bytes_and_a_programs_own_codec_are_codecs_like_the_others(
    db: Any, space: Subspace, registered: Any, given: Any, value: int
) -> None:
    Queue(space, codec=registered).enqueue(db, b"1" if registered == "bytes" else value)
    for call in (Queue(space, codec=given).peek, lambda db: Queue(space, codec=given).enqueue(db, value)):
        with pytest.raises(OtherCodec, match="is registered with the codec"):
            call(db)


def test_the_codec_bytes_shows_every_item_and_adds_none(db: Any, space: Subspace) -> None:
    position = Queue(space, codec="json").enqueue(db, [5])
    rescue: Queue[Any] = Queue(space)

    assert rescue.peek(db).value == rescue.get(db, position).value == b"[5]"  # type: ignore[union-attr]
    refused = "registered with the codec 'json', and not with 'bytes'"
    with pytest.raises(OtherCodec, match=refused):
        rescue.enqueue(db, b"6")
    with pytest.raises(OtherCodec, match=refused):
        rescue.update(db, position, value=b"6")
    assert rescue.update(db, position, headers={"color": "red"}) == position
    assert rescue.dequeue(db).value == b"[5]"  # type: ignore[union-attr]


def test_messages_in_json_are_read_by_the_codec_json_and_not_by_msgpack(db: Any, space: Subspace) -> None:
    SmartQueue(Queue(space, codec=Messages(MessageType("call")))).enqueue(db, {"type": "call"})

    assert Queue(space, codec="json").peek(db).value == {"type": "call"}  # type: ignore[union-attr]
    other: Queue[Any] = Queue(space, codec=Messages(MessageType("call"), format="msgpack"))
    for codec in ("msgpack", "str"):
        with pytest.raises(OtherCodec, match="'json messages'"):
            Queue(space, codec=codec).peek(db)
    with pytest.raises(OtherCodec, match="'json messages'"):
        SmartQueue(other).enqueue(db, {"type": "call"})


def test_a_session_is_not_blocked_by_a_worker_with_another_codec(db: Any, space: Subspace) -> None:
    right, wrong = (Sessions(Queue(space, codec=codec)) for codec in ("json", "msgpack"))
    position = right.enqueue(db, 5, session="ann")
    for call in (
        lambda: wrong.lease(db),
        lambda: wrong.lease(db.create_transaction()),
        lambda: wrong.get(db, "ann", position),
        lambda: wrong.update(db, "ann", position, value=53),
        lambda: wrong.enqueue(db, 53, session="ann"),
    ):
        with pytest.raises(OtherCodec, match=REFUSED):
            call()

    lease = right.lease(db, timeout=10)
    assert lease is not None
    assert (lease.value, lease.attempt) == (5, 1)


def test_an_order_of_its_own_checks_too(db: Any, space: Subspace) -> None:
    PriorityQueue(Queue(space, codec="json"), levels=3).enqueue(db, 5)
    with pytest.raises(OtherCodec, match=REFUSED):
        PriorityQueue(Queue(space, codec="msgpack"), levels=3).dequeue(db)


@pytest.mark.engines("memory", "file")
@pytest.mark.parametrize("name", ["peek", "get", "browse", "inspect", "update"])
def test_a_verb_reads_the_settings_once_and_then_no_more(db: Any, space: Subspace, name: str) -> None:
    position = Queue(space, codec="json").enqueue(db, 5)
    queue: Queue[Any] = Queue(space, codec="json")
    Queue(space, codec="json").peek(db)
    reading = Reading(db)
    queue.update(reading, position, headers={"color": "red"})  # its first commit looks for old markers
    queue.layout.known.doubt()
    counts = []
    for _ in range(3):
        before = reading.reads
        VERBS[name](queue, reading, position)
        counts.append(reading.reads - before)

    assert counts[0] == counts[1] + 2 == counts[2] + 2, "it counts reads of keys"
    raw: Queue[Any] = Queue(space)
    before = reading.reads
    raw.peek(reading)
    raw.peek(reading)
    assert reading.reads == before + 2


def test_a_reader_notices_within_a_second_that_the_queue_has_another_codec_now(db: Any, space: Subspace) -> None:
    reader, writer = Queue(space, codec="json"), Queue(space, codec="json")
    writer.enqueue(db, 5)
    assert reader.peek(db).value == 5  # type: ignore[union-attr]
    writer.clear(db)
    Queue(space, codec="msgpack").enqueue(db, 53)

    reader.layout.known.doubt()
    with pytest.raises(OtherCodec, match="registered with the codec 'msgpack'"):
        reader.peek(db)


def test_a_queue_without_a_record_is_looked_at_by_each_call(db: Any, space: Subspace) -> None:
    writer = Queue(space, codec="json")
    writer.enqueue(db, 5)
    del db[writer.layout.catalogue_key]
    reader = Queue(space, codec="json")
    assert reader.peek(db).value == 5  # type: ignore[union-attr]
    Queue(space, codec="msgpack").register(db)

    with pytest.raises(OtherCodec, match="registered with the codec 'msgpack'"):
        reader.peek(db)


@pytest.mark.parametrize("verb", ["dequeue", "peek", "Leases.lease"])
def test_a_look_at_an_empty_queue_says_nothing_about_the_items_of_the_next_attempt(
    verb: str, db: Any, space: Subspace
) -> None:
    reader, writer = Queue(space, codec="msgpack"), Queue(space, codec="json")
    leases = Leases(reader)
    call: Callable[[Any], object] = leases.lease if verb == "Leases.lease" else getattr(reader, verb)
    tr = db.create_transaction()
    assert call(tr) is None
    writer.enqueue(db, 5)

    tr.reset()
    with pytest.raises(OtherCodec, match=REFUSED):
        call(tr)
    assert writer.dequeue(db).value == 5  # type: ignore[union-attr]


def test_one_object_checks_in_each_of_its_databases(db: Any, space: Subspace) -> None:
    Queue(space, codec="json").enqueue(db, 5)
    queue = Queue(space, codec="json")
    assert queue.peek(db).value == 5  # type: ignore[union-attr]
    with fdbqueue.open("memory:") as other:
        Queue(space, codec="msgpack").enqueue(other, 5)
        with pytest.raises(OtherCodec, match="registered with the codec 'msgpack'"):
            queue.peek(other)


@pytest.mark.parametrize("state", ["available", "leased", "delayed", "dead", "session"])
def test_a_registration_replaces_the_codec_of_items_only_if_that_is_asked_for(
    db: Any, space: Subspace, state: str
) -> None:
    queue = Queue(space, codec="json")
    leases = Leases(queue, max_attempts=1)
    if state == "session":
        Sessions(queue).enqueue(db, 5, session="ann")
    else:
        leases.enqueue(db, 5, delay=100 if state == "delayed" else None)
    if state in ("leased", "dead"):
        lease = leases.lease(db)
        assert lease is not None
        if state == "dead":
            leases.nack(db, lease)
    other = Queue(space, codec="msgpack")

    with pytest.raises(OtherCodec, match=r"have the codec 'json'.*on_codec='replace'"):
        other.register(db)
    Queue(space, codec="json").register(db)
    other.register(db, on_codec="replace")

    assert fdbqueue.queues(db, within=space)[0].codec == "msgpack"


def test_an_empty_queue_is_registered_with_any_codec(db: Any, space: Subspace) -> None:
    Queue(space, codec="json").enqueue(db, 5)
    Queue(space, codec="json").dequeue(db)
    Queue(space, codec="msgpack").register(db)
    Queue(space, codec="msgpack").enqueue(db, 5)
    assert Queue.open(db, space).dequeue(db).value == 5  # type: ignore[union-attr]


def test_a_redrive_by_bytes_moves_items_of_any_codec(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="json"), max_attempts=1)
    leases.enqueue(db, 5)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease)

    assert Leases(Queue(space)).dead.redrive(db, to="tail") == 1
    assert fdbqueue.queues(db, within=space)[0].codec == "json"
    assert leases.lease(db).value == 5  # type: ignore[union-attr]


def test_an_export_by_bytes_names_the_codec_of_the_items(db: Any, space: Subspace, tmp_path: Path) -> None:
    from fdbqueue.transfer import export_items, import_items

    queue = Queue(space["a"], codec="json")
    queue.enqueue_many(db, [5, [6]])
    with pytest.raises(OtherCodec, match=REFUSED):
        export_items(db, Queue(space["a"], codec="msgpack"), tmp_path / "a.jsonl")
    assert not list(tmp_path.iterdir())

    export_items(db, Queue(space["a"]), tmp_path / "a.jsonl")
    import_items(db, Queue(space["b"], codec="json"), tmp_path / "a.jsonl")
    assert [item.value for item in Queue.open(db, space["b"]).browse(db)] == [5, [6]]
