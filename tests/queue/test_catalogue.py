"""The catalogue: a queue registers itself once, without conflicts, and is listed, opened and found by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import CodecError, Queue, UnknownQueue
from fdbqueue.engine import Subspace
from fdbqueue.engine.directory import DirectoryLayer
from fdbqueue.layers import (
    Groups,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    Results,
    Sessions,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.stored.layout import Layout, name_of, names_above
from fdbqueue.stored.names import queue_text
from fdbqueue.verbs import queues as queues_of_a_database


def record(db: Any, queue: Queue[Any]) -> bytes | None:
    value = db[queue.layout.catalogue_key]
    return None if value is None else bytes(value)


def listed(db: Any, space: Subspace) -> list[fdbqueue.QueueInfo]:
    return fdbqueue.queues(db, within=space)


def test_a_queue_is_listed_with_its_figures(db: Any, space: Subspace) -> None:
    first, second = Queue(space["a"], codec="json"), Queue(space["b"])
    first.enqueue_many(db, [1, 2, 3])
    Leases(first).lease(db)
    second.enqueue(db, b"x")

    one, other = listed(db, space)

    assert one.name == (*fdbqueue.Subspace().unpack(space.key()), "a")
    assert (one.codec, one.order, one.policy, one.path, one.paused) == ("json", "", "", (), None)
    assert (one.stats.available, one.stats.leased, other.stats.available) == (2, 1, 1)
    assert one.registered_at is not None
    assert [info.codec for info in asyncio.run(fdbqueue.queues.aio(db, within=space))] == ["json", "bytes"]
    assert fdbqueue.queues(db.create_transaction(), within=space["b"]) == [other]
    assert {one, other} <= set(fdbqueue.queues(db))


def test_a_queue_with_a_damaged_counter_hides_no_other(db: Any, space: Subspace) -> None:
    damaged, whole = Queue(space["a"]), Queue(space["b"])
    for queue in (damaged, whole):
        queue.enqueue(db, b"x")
    db[damaged.layout.count_key("expired")] = bytes(9)

    one, other = listed(db, space)

    assert (one.stats.available, "9 bytes" in one.problem) == (0, True)
    assert (other.stats.available, other.problem) == (1, "")


ENTRANCES: dict[str, Callable[[Any, Subspace], Any]] = {
    "Queue.enqueue": lambda db, space: Queue(space).enqueue(db, b"a"),
    "Queue.enqueue_many": lambda db, space: Queue(space).enqueue_many(db, [b"a"] * 3_000),
    "Leases.enqueue": lambda db, space: Leases(Queue(space)).enqueue(db, b"a", delay=5),
    "StagedQueue.enqueue": lambda db, space: StagedQueue(Queue(space)).enqueue(db, b"a"),
    "PriorityQueue.enqueue": lambda db, space: PriorityQueue(Queue(space), levels=3).enqueue(db, b"a"),
    "Subscriptions.enqueue": lambda db, space: Subscriptions(Queue(space)).enqueue(db, b"a"),
    "SmartQueue.enqueue": lambda db, space: SmartQueue(Queue(space, codec=Messages(MessageType("call")))).enqueue(
        db, {"type": "call"}
    ),
    "Sessions.enqueue": lambda db, space: Sessions(Queue(space)).enqueue(db, b"a", session="ann"),
    "Results.enqueue": lambda db, space: Results(Leases(Queue(space))).enqueue(db, b"a"),
    "Groups.enqueue": lambda db, space: Groups(Leases(Queue(space))).open(db, "g").enqueue(db, b"a"),
}


@pytest.mark.parametrize("name", sorted(ENTRANCES))
def test_every_way_in_registers_the_queue_once(db: Any, space: Subspace, name: str) -> None:
    ENTRANCES[name](db, space["q"])

    [info] = listed(db, space)
    before = record(db, Queue(space["q"]))
    ENTRANCES[name.replace("Groups", "Leases")](db, space["q"])

    assert info.order == ("levels/3" if name.startswith("Priority") else "")
    assert record(db, Queue(space["q"])) == before
    assert [one.name for one in listed(db, space)] == [info.name]


def test_the_policy_of_the_leases_is_registered(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space), max_attempts=4)
    leases.enqueue(db, b"a")

    assert "max_attempts=4" in listed(db, space)[0].policy


def test_two_transactions_that_create_a_queue_do_not_conflict_and_the_first_record_stays(
    db: Any, space: Subspace
) -> None:
    one, other = db.create_transaction(), db.create_transaction()
    Queue(space, codec="json").enqueue(one, 1)
    Queue(space, codec="json").enqueue(other, 2)
    other.commit().wait()
    before = record(db, Queue(space))
    one.commit().wait()

    assert len(listed(db, space)) == 1
    assert record(db, Queue(space)) <= before  # type: ignore[operator]
    assert Queue(space, codec="json").stats(db).available == 2


def test_a_transaction_that_is_rolled_back_registers_nothing_and_its_retry_does(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    tr = db.create_transaction()
    queue.enqueue(tr, "a")
    queue.enqueue(tr, "b")
    tr.reset()
    assert listed(db, space) == []

    queue.enqueue(tr, "c")
    tr.commit().wait()

    assert listed(db, space)[0].stats.available == 1


def test_an_enqueue_reads_the_record_once_a_second(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 60.0)  # on a busy machine a second may be over
    queue = Queue(space)
    for _ in range(2):
        queue.enqueue(db, b"a")
    key = queue.layout.catalogue_key
    del db[key]
    queue.enqueue(db, b"b")
    assert record(db, queue) is None

    queue.layout.known.look.until -= 60
    queue.enqueue(db, b"c")

    assert record(db, queue) is not None


@pytest.mark.engines("memory")
def test_one_queue_object_registers_in_each_of_its_databases(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    with fdbqueue.open("memory:") as other:
        for _ in range(3):
            queue.enqueue(db, b"a")
            queue.enqueue(other, b"a")

        assert len(listed(db, space)) == len(listed(other, space)) == 1


def test_a_cleared_queue_is_not_listed_until_something_is_enqueued(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    for _ in range(2):
        queue.enqueue(db, b"a")
    queue.clear(db)
    assert listed(db, space) == []

    queue.enqueue(db, b"b")

    assert len(listed(db, space)) == 1
    tr = db.create_transaction()
    queue.clear(tr)
    queue.enqueue(tr, b"c")
    tr.commit().wait()
    assert listed(db, space)[0].stats.available == 1


def test_another_codec_is_refused_with_the_remedy_before_anything_is_touched(db: Any, space: Subspace) -> None:
    Queue(space, codec="json").enqueue(db, 5)
    wrong = Queue(space, codec="msgpack")
    before = [(row.key, row.value) for row in db.get_range_startswith(space.key())]

    for call in (wrong.dequeue, Leases(wrong).lease, StagedQueue(wrong).lease, lambda db: wrong.enqueue(db, 7)):
        with pytest.raises(CodecError, match=r"registered with the codec 'json'.*Give codec='json'"):
            call(db)
    assert [(row.key, row.value) for row in db.get_range_startswith(space.key())] == before
    with pytest.raises(CodecError, match="registered with the codec 'json'"):
        wrong.enqueue_many(db, [7])
    assert Queue(space).dequeue(db).value == b"5"  # type: ignore[union-attr]
    wrong.register(db)  # there is no item of another codec now
    wrong.enqueue(db, 7)
    assert wrong.dequeue(db).value == 7  # type: ignore[union-attr]


def test_a_queue_is_opened_by_its_name_alone(db: Any, space: Subspace) -> None:
    Queue(space["orders"], codec="msgpack").enqueue(db, {"n": b"1"})

    opened = Queue.open(db, space["orders"])
    assert opened.dequeue(db).value == {"n": b"1"}  # type: ignore[union-attr]
    assert asyncio.run(Queue.open.aio(db, space["orders"])).codec.name == "msgpack"
    with pytest.raises(UnknownQueue, match="is registered") as unknown:
        Queue.open(db, space["order"])
    assert "Did you mean" in str(unknown.value)
    SmartQueue(Queue(space["smart"], codec=Messages(MessageType("call")))).enqueue(db, {"type": "call"})
    with pytest.raises(CodecError, match="a program's own"):
        Queue.open(db, space["smart"])


def test_a_queue_in_a_directory_is_listed_by_its_path(db: Any, space: Subspace) -> None:
    directories = DirectoryLayer(node_subspace=space["nodes"], content_subspace=space["content"])
    shop = directories.create_or_open(db, ("shop",))
    orders = directories.create_or_open(db, ("shop", "orders"))
    Queue(orders, codec="json").enqueue(db, 1)
    Queue(shop["mails"], codec="str").enqueue(db, "a")

    assert [info.path for info in fdbqueue.queues(db, within=orders)] == [("shop", "orders")]
    assert [info.codec for info in fdbqueue.queues(db, within=shop)] == ["str"]
    assert Queue.open(db, orders).dequeue(db).value == 1  # type: ignore[union-attr]


def test_queues_of_older_versions_work_are_found_and_can_be_registered(db: Any, space: Subspace) -> None:
    for name, codec in (("a", "json"), ("b", "str")):
        old: Queue[Any] = Queue((space["x"], name)[0][name], codec=codec)
        old.enqueue(db, "1")
        del db[old.layout.catalogue_key]
    sessions = Sessions(Queue(space["x"]["s"], codec="str"))
    sessions.enqueue(db, "a", session="ann")
    del db[sessions.queue.layout.catalogue_key]
    for number in range(250):
        db[space["w"].pack((number, "not a queue's"))] = b"1"
    Queue(space["z"]).enqueue(db, b"x")
    for name in ("0", "aa", "b", "zz"):
        Queue(space["empty"][name], codec="json").register(db)
        Queue(space["x"][name], codec="json").register(db)

    found = list(fdbqueue.find_queues(db, within=space))

    empty = [("empty", name) for name in ("0", "aa", "b", "zz")]
    of_x = [("x", name) for name in ("0", "a", "aa", "b", "s", "zz")]
    assert [info.name[-2:] for info in found] == [*empty, *of_x, found[-1].name[-2:]]
    unregistered = [info.name[-1] for info in found if info.registered_at is None]
    assert unregistered == ["a", "s"]
    assert [info.codec for info in found if info.registered_at is None] == ["", ""]
    assert found[-1].codec == "bytes"
    reader = Queue(space["x"]["a"], codec="json")
    assert reader.dequeue(db).value == "1"  # type: ignore[union-attr]
    reader.register(db)
    assert [info.codec for info in listed(db, space["x"]) if info.name[-1] == "a"] == ["json"]


def test_the_names_of_registered_queues_are_read_by_several_transactions(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.verbs.queues.PAGE_NAMES", 2)
    queues: list[Queue[Any]] = [Queue(space[number], codec="json") for number in range(7)]
    for number, queue in enumerate(queues):
        queue.register(db)
        if number % 3:
            queue.enqueue(db, 1)
    begins: list[bytes] = []
    page = queues_of_a_database.registered_in

    def noted(tr: Any, begin: bytes, **more: Any) -> Any:
        begins.append(begin)
        return page(tr, begin, **more)

    monkeypatch.setattr(queues_of_a_database, "registered_in", noted)

    found = list(fdbqueue.find_queues(db, within=space))

    assert [info.name[-1] for info in found] == list(range(7))
    assert begins[1:] == [queues[number].layout.catalogue_key + b"\x00" for number in (1, 3, 5)]


STRANGE = (
    b"\x16\x01",
    b"\x1cab",
    b"\x1b",
    b"!ab",
    b" ab",
    b"\x33ab",
    b"\x02\xff",
    b"\x30a",
    b"\x05" * 3_000,
    b"\x1d\x09",
)
"""Keys that are no tuples, each in its own way."""


def test_keys_of_other_programs_hide_no_queue(db: Any, space: Subspace) -> None:
    for number, key in enumerate(STRANGE):
        db[space.key() + key] = db[space[number].key() + key] = b"x"
    for name in "a", "z":
        Queue(space[name], codec="json").enqueue(db, 1)
        del db[Queue(space[name]).layout.catalogue_key]

    assert [info.name[-1] for info in fdbqueue.find_queues(db, within=space)] == ["a", "z"]


def test_a_key_that_unpacks_to_a_tuple_of_another_place_is_found_there_only(db: Any, space: Subspace) -> None:
    queue = Queue(space[5], codec="json")
    queue.enqueue(db, 1)
    db[space.key() + b"\x16\x00\x05" + b"\x15\x01"] = b"x"  # 5 in two bytes, as no program packs it

    assert [info.name[-1] for info in fdbqueue.find_queues(db, within=space)] == [5]


def test_a_prefix_that_no_program_packs_is_named_by_its_bytes(db: Any, space: Subspace) -> None:
    plain, odd = space[5], Subspace(rawPrefix=space.key() + b"\x16\x00\x05")  # 5 in two bytes
    for one in plain, odd:
        Queue(one, codec="json").enqueue(db, 1)

    assert [info.name for info in listed(db, space)] == [name_of(plain.key()), odd.key()]
    assert Layout(odd).describe() == f"Subspace(rawPrefix={odd.key()!r})"


@given(key=st.binary(min_size=1, max_size=40) | st.sampled_from(STRANGE))
def test_any_key_has_a_name_and_begins(key: bytes) -> None:
    assert all(key.startswith(prefix) and prefix != key for prefix in names_above(key))
    assert queue_text(key) is not None
    name = name_of(key)
    assert key == (name if isinstance(name, bytes) else fdbqueue.Subspace(name).key())
    layout = Layout.at(key)
    assert layout.describe()
    assert layout.timer_of(layout.timers.key() + key) is None or key[:1] in b"\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c"


def test_a_record_that_can_not_be_read_stops_no_enqueue_and_is_listed(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    db[queue.layout.catalogue_key] = b"\xc1" * 20

    queue.layout.known.doubt()
    queue.enqueue(db, "b")
    assert queue.dequeue(db) is not None
    assert [info.codec for info in listed(db, space)] == [""]
    queue.register(db)
    assert [info.codec for info in listed(db, space)] == ["str"]
