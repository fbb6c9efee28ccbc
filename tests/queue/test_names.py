"""No verb on a name changes or shows another one, unless one of the two is within the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import FDBError, NestedQueue, Queue, find_queues, queues, rename
from fdbqueue.engine import Subspace, steps
from fdbqueue.engine.keys import bytes_behind, is_within, within
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers import (
    Groups,
    Leases,
    OperationLog,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
    Watchdog,
)
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.observe.figures import queue_names
from fdbqueue.stored.catalogue import About, write_about
from fdbqueue.stored.layout import CATALOGUE, Layout, name_of
from fdbqueue.stored.names import queue_text
from fdbqueue.transfer import copy_queue, export_items, import_items, release_copy
from fdbqueue.verbs import renaming
from fdbqueue.web.app import is_below
from tests.helpers.names import Name, pairs_apart, registered_before
from tests.helpers.smart import Progress, smart_queue

pytestmark = pytest.mark.engines("memory", "cluster")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for old transactions in a rename."""

    async def pause(seconds: float) -> None:
        pass

    monkeypatch.setattr(renaming, "pause", pause)


def kept(db: Any, name: Name) -> list[tuple[bytes, bytes]]:
    """All that a queue has: its keys, and its record."""
    layout = Layout(name)
    own = [(bytes(row.key), bytes(row.value)) for row in db.get_range(*within(layout.prefix))]
    return [*own, (layout.catalogue_key, bytes(db.get(layout.catalogue_key) or b""))]


def plain(db: Any, name: Name) -> Queue[str]:
    queue = Queue(name, codec="str")
    queue.enqueue(db, "of " + "x" * 100_000)
    queue.enqueue_many(db, ["a", "b", "c"])
    leases = Leases(queue)
    leases.enqueue(db, "later", delay=60)
    leases.lease(db)
    return queue


def used(db: Any, name: Name) -> None:
    """Use all that a plain queue can do."""
    queue = plain(db, name)
    leases = Leases(queue)
    first = queue.peek(db)
    assert first is not None
    queue.get(db, first.position)
    queue.update(db, first.position, value="new")
    queue.reschedule(db, first.position, delay=60)
    queue.cancel(db, first.position)
    queue.pause(db, reason="a test")
    queue.resume(db)
    queue.set_quota(db, 1_000)
    queue.set_quota(db, None)
    leases.lease_many(db, limit=1)
    StagedQueue(leases).lease(db)
    Watchdog(leases).sweep(db)
    results = Results(leases)
    results.enqueue(db, "with a result")
    queue.dequeue(db)
    queue.dequeue_many(db)


def shown(db: Any, name: Name) -> None:
    """Look at a queue that has items; what is shown is its own."""
    queue = Queue(name, codec="str")
    assert [item.value for item in queue.browse(db)] == ["a", "b", "c"]
    stats = queue.stats(db)
    assert (stats.available, stats.leased, stats.delayed) == (3, 1, 1)
    assert queue.check(db).problems == ()
    assert queue.to_arrow(db).num_rows == 5
    assert [info.name for info in queues(db, within=name)] == [name_of(Layout(name).prefix)]
    assert [info.name for info in find_queues(db, within=name)] == [name_of(Layout(name).prefix)]
    queue.inspect(db)


@pytest.mark.slow
@given(names=pairs_apart())
@example(names=(("a",), ("a\x00b",)))
@example(names=((b"a",), (b"a\x00",)))
@example(names=((("a",),), (("a", None),)))
def test_no_verb_on_a_queue_changes_or_shows_another_one(names: tuple[Name, Name], db: Any, space: Subspace) -> None:
    one, other = ((*fdbqueue.engine.tuple.unpack(space.key()), *name) for name in names)
    for name in (one, other):
        plain(db, name)
    before = kept(db, other)

    shown(db, one)
    assert not is_below(Layout(other), one)
    used(db, one)
    Queue(one, codec="str").clear(db)
    assert Queue(one, codec="str").is_empty(db)
    assert [info.name for info in find_queues(db, within=one)] == []
    assert kept(db, other) == before
    shown(db, other)
    Queue(other).clear(db)


@pytest.mark.slow
@given(names=pairs_apart())
@example(names=(("a",), ("a\x00b",)))
def test_a_rename_and_a_copy_of_a_queue_leave_another_one(
    names: tuple[Name, Name], db: Any, space: Subspace, tmp_path: Any
) -> None:
    one, other = ((*fdbqueue.engine.tuple.unpack(space.key()), "from", *name) for name in names)
    target = (*fdbqueue.engine.tuple.unpack(space.key()), "to", *names[0])
    Queue(one, codec="str").enqueue(db, "mine")
    plain(db, other)
    before = kept(db, other)

    file = tmp_path / f"{uuid4()}.jsonl"
    export_items(db, Queue(one, codec="str"), file)
    with fdbqueue.open("memory:") as there:
        plain(there, other)
        first = kept(there, other)
        assert copy_queue(db, there, Queue(one)).left == 0
        assert Queue(one).stats(there).available == 1
        assert kept(there, other) == first
        release_copy(db, Queue(one), target=there)
    Queue(one, codec="str").enqueue(db, "mine")
    assert rename(db, one, target).items == 1
    Queue(one).clear(db)
    assert import_items(db, Queue(one, codec="str"), file).items == 1
    assert kept(db, other) == before
    for name in (one, other, target):
        Queue(name).clear(db)


session_names = pairs_apart().map(
    lambda names: tuple(
        name[0] if len(name) == 1 and name[0] and isinstance(name[0], str | bytes) else name for name in names
    )
)


@given(names=session_names)
@example(names=("a", "a\x00b"))
@example(names=(("a",), ("a", None)))
def test_no_verb_on_a_session_changes_or_shows_another_one(names: tuple[Any, Any], db: Any, space: Subspace) -> None:
    one, other = names
    sessions = Sessions(Queue(space, codec="str"), state_codec="str")

    def fill(name: Any) -> None:
        sessions.enqueue_many(db, ["1", "2"], session=name)
        sessions.enqueue(db, "later", session=name, delay=60)
        sessions.set_concurrency(db, name, 2)
        sessions.set_limit(db, name, 2)

    def keys() -> list[tuple[bytes, bytes]]:
        """The keys that have the other session's name, except those of its place in the line."""
        own = sessions.line.keys
        parts = (own.record(b""), own.items, own.slots, own.states, own.gate(), own.waiters(b""))
        spans = [bytes_behind(part + pack_name(other)) for part in parts]  # a slot's id is random bytes
        return [
            (bytes(row.key), bytes(row.value))
            for span in spans
            for row in db.get_range(*span)
            if is_within(row.key, span[0]) or span[0].startswith(own.slots)
        ]

    fill(other)
    sessions.pause(db, other)
    before = keys()
    fill(one)
    lease = sessions.lease(db)
    assert lease is not None
    assert lease.session == one
    sessions.set_state(db, lease, "a state")
    sessions.nack(db, lease, last=True)
    assert [item.value for item in sessions.dead(db, one)] == ["1"]
    assert sessions.dead(db, other) == []
    assert sessions.state(db, other) is None
    assert sessions.redrive(db, one) == 1
    assert sessions.skip(db, one) in (True, False)
    info = sessions.info(db, one)
    assert info is not None
    sessions.remove(db, one, later="renew")
    while (lease := sessions.lease(db)) is not None:
        assert lease.session == one
        sessions.ack(db, lease)
    assert keys() == before
    assert sessions.check(db).problems == ()
    assert [item.value for item in sessions.scheduled(db, other)] == ["1", "2", "later"]
    Queue(space).clear(db)


texts_apart = st.tuples(st.text("a\x00\xff", min_size=1, max_size=3), st.text("\x00\xffb", min_size=1, max_size=2)).map(
    lambda parts: (parts[0], parts[0] + parts[1])
)
"""Two texts of which the second goes on where the first ends."""


@given(names=texts_apart)
@example(names=("a", "a\x00b"))
def test_no_verb_on_a_stream_changes_or_shows_another_one(names: tuple[str, str], db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, ["1" * 100_000, "2", "3"])
    terms = Terms(epoch="1f", batch=1, run="", items=1, size_bytes=200_000)
    one, other = (Stream(queue, name) for name in names)
    other.claim(db, terms)
    Leases(queue).enqueue(db, "4")
    one.claim(db, terms)
    assert queue.check(db).problems == ()
    before = other.state(db)

    one.ack(db, terms)
    one.claim(db, Terms(epoch="1f", batch=2, run="", items=1, size_bytes=200_000))
    one.release(db)
    assert other.state(db) == before
    [split] = other.claim(db, terms).splits
    assert [row.value for page in other.read(db, terms.epoch, 1, split) for row in page] != []
    assert queue.check(db).problems == ()
    queue.clear(db)


@given(names=texts_apart)
@example(names=("a", "a\x00b"))
def test_no_verb_on_a_group_changes_or_shows_another_one(names: tuple[str, str], db: Any, space: Subspace) -> None:
    groups = Groups(Leases(Queue(space, codec="str")))
    one, other = (groups.open(db, name) for name in names)
    for group in (one, other):
        group.enqueue(db, group.name)
        group.enqueue(db, group.name, delay=60)
    before = other.stats(db)

    assert [group.name for group in groups.list(db, after=one.name)] == [other.name]
    one.close(db)
    one.cancel(db)
    Watchdog(groups.leases).sweep(db)
    assert other.stats(db) == before
    assert [group.name for group in groups.list(db)] == list(names)
    assert groups.leases.check(db).problems == ()
    groups.queue.clear(db)


@given(names=texts_apart)
@example(names=("a", "a\x00b"))
def test_no_verb_on_a_subscription_changes_or_shows_another_one(
    names: tuple[str, str], db: Any, space: Subspace
) -> None:
    one, other = names
    queue = Queue(space, codec="str")
    subscriptions = Subscriptions(Leases(queue))
    first, second = (subscriptions.subscribe(db, name) for name in names)
    subscriptions.enqueue_many(db, ["1", "2", "3"])
    lease = second.lease(db)
    assert lease is not None
    before = next(found for found in subscriptions.stats(db) if found.name == other)

    assert first.lease(db) is not None
    assert subscriptions.unsubscribe(db, one)
    assert [found.name for found in subscriptions.stats(db)] == [other]
    assert next(iter(subscriptions.stats(db))) == before
    second.ack(db, lease)
    assert subscriptions.check(db).problems == ()
    queue.clear(db)


@given(names=texts_apart)
@example(names=("a", "a\x00b"))
def test_a_relation_key_of_a_smart_queue_is_no_other_one(names: tuple[str, str], db: Any, space: Subspace) -> None:
    queue = smart_queue(space)
    for name in names:
        queue.enqueue(db, Progress(name, 1))
        queue.enqueue(db, Progress(name, 2))
    assert [(item.value.file, item.value.percent) for item in queue.browse(db)] == [(name, 2) for name in names]
    assert queue.check(db).problems == ()
    queue.queue.clear(db)


OTHERS = {
    "within": (("shop", "orders"), ("shop", "orders", 0)),
    "around": (("shop", "orders", 0), ("shop", "orders")),
    "deep within": (("shop",), ("shop", "orders", b"x", 1.5)),
}


@pytest.fixture(params=OTHERS)
def nested(request: pytest.FixtureRequest, space: Subspace) -> tuple[Name, Name]:
    """A name, and one within it or around it."""
    own = fdbqueue.engine.tuple.unpack(space.key())
    one, other = ((*own, *name) for name in OTHERS[request.param])
    return one, other


def registered(db: Any, space: Subspace) -> list[Any]:
    return [info.name for info in queues(db, within=space)]


def test_register_refuses_a_name_within_another_one(nested: tuple[Name, Name], db: Any, space: Subspace) -> None:
    one, other = nested
    Queue(one, codec="str").enqueue(db, "first")
    with pytest.raises(NestedQueue, match="lies within") as raised:
        Queue(other, codec="str").register(db)
    assert repr(one) in str(raised.value)
    assert registered(db, space) == [one]
    Queue(one, codec="str").register(db)


def test_a_rename_to_a_name_within_another_one_is_refused(nested: tuple[Name, Name], db: Any, space: Subspace) -> None:
    one, other = nested
    Queue(one, codec="str").enqueue(db, "first")
    outside = (*fdbqueue.engine.tuple.unpack(space.key()), "outside")
    Queue(outside, codec="str").enqueue(db, "second")

    with pytest.raises(NestedQueue, match="lies within"):
        rename(db, outside, other)
    assert registered(db, space) == sorted([one, outside])
    Queue(outside, codec="str").enqueue(db, "it is open")


def test_a_copy_and_an_import_to_a_name_within_another_one_are_refused(
    nested: tuple[Name, Name], db: Any, space: Subspace, tmp_path: Any
) -> None:
    one, other = nested
    Queue(one, codec="str").enqueue(db, "first")
    with fdbqueue.open("memory:") as source:
        Queue(other, codec="str").enqueue(source, "x")
        export_items(source, Queue(other, codec="str"), tmp_path / "items.jsonl")
        with pytest.raises(NestedQueue, match="lies within"):
            copy_queue(source, db, Queue(other, codec="str"))
        assert Queue(other, codec="str").stats(source).available == 1
    with pytest.raises(NestedQueue, match="lies within"):
        import_items(db, Queue(other, codec="str"), tmp_path / "items.jsonl")
    assert registered(db, space) == [one]


def test_of_two_names_at_the_same_time_one_is_registered(nested: tuple[Name, Name], db: Any, space: Subspace) -> None:
    first, second = (db.create_transaction() for _ in nested)
    for tr, name in zip((first, second), nested, strict=True):
        Queue(name, codec="str").enqueue(tr, "x")
    first.commit().wait()
    with pytest.raises(FDBError) as raised:
        second.commit().wait()
    assert raised.value.code == 1020
    second.on_error(raised.value).wait()
    with pytest.raises(NestedQueue, match="lies within"):
        Queue(nested[1], codec="str").enqueue(second, "x")
    assert registered(db, space) == [nested[0]]


def test_a_clear_keeps_a_queue_that_lies_within(db: Any, space: Subspace) -> None:
    inner = Queue(space["inner"], codec="str")
    outer = Queue(space, codec="str")
    inner.enqueue_many(db, ["1", "2"])
    with pytest.raises(NestedQueue, match="Nothing was changed") as raised:
        outer.clear(db)
    assert inner.layout.describe() in str(raised.value)
    assert inner.stats(db).available == 2


def test_a_clear_of_a_registered_queue_keeps_one_that_lies_within(db: Any, space: Subspace) -> None:
    inner = Queue(space["inner"], codec="str")
    outer = Queue(space, codec="str")
    inner.enqueue(db, "1")
    registered_before(db, space)
    with pytest.raises(NestedQueue, match="Clear the inner queue first") as raised:
        outer.clear(db)
    assert f"rename(db, {inner.layout.describe()}" in str(raised.value)
    assert inner.stats(db).available == 1
    inner.clear(db)
    outer.clear(db)
    assert registered(db, space) == []


def test_a_clear_of_a_name_within_a_queue_keeps_the_queue(db: Any, space: Subspace) -> None:
    outer = Queue(space, codec="str")
    outer.enqueue(db, "1")
    with pytest.raises(NestedQueue, match="lies within"):
        Queue(space["count"], codec="str").clear(db)
    assert outer.stats(db).available == 1


def test_a_clear_and_a_registration_within_it_at_the_same_time_conflict(db: Any, space: Subspace) -> None:
    clears, enqueues = db.create_transaction(), db.create_transaction()
    Queue(space, codec="str").clear(clears)
    Queue(space["inner"], codec="str").enqueue(enqueues, "1")
    enqueues.commit().wait()
    with pytest.raises(FDBError) as raised:
        clears.commit().wait()
    assert raised.value.code == 1020


SETTINGS: dict[str, Callable[[Any, Any], object]] = {
    "pause": lambda db, queue: queue.pause(db),
    "set_quota": lambda db, queue: queue.set_quota(db, 10),
    "subscribe": lambda db, queue: Subscriptions(queue).subscribe(db, "red"),
    "open a group": lambda db, queue: Groups(Leases(queue)).open(db, "batch"),
    "register a recipient": lambda db, queue: smart_queue(queue.layout.space).resend.register(db, "ann"),
    "pause a session": lambda db, queue: Sessions(queue).pause(db, "ann"),
    "remove a session": lambda db, queue: Sessions(queue).remove(db, "ann"),
    "set the concurrency of a session": lambda db, queue: Sessions(queue).set_concurrency(db, "ann", 2),
    "set the limit of a gate": lambda db, queue: Sessions(queue).set_limit(db, "g", 2),
}
"""The calls that write keys of a queue, and do not register it."""


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_a_name_within_a_queue_is_refused(setting: str, db: Any, space: Subspace) -> None:
    outer = Queue(space, codec="str")
    outer.enqueue(db, "1")
    with pytest.raises(NestedQueue, match="Nothing was changed"):
        SETTINGS[setting](db, Queue(space[0], codec="str"))
    assert outer.dequeue(db) is not None
    assert outer.check(db).problems == ()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_a_queue_that_has_no_items_yet_is_kept(setting: str, db: Any, space: Subspace) -> None:
    SETTINGS[setting](db, Queue(space["new"], codec="str"))
    Queue(space["other"], codec="str").enqueue(db, "1")
    assert registered(db, space) == [(*fdbqueue.engine.tuple.unpack(space.key()), "other")]


def test_names_beside_each_other_are_registered_without_conflicts(db: Any, space: Subspace) -> None:
    names = [space["a"], space["a\x00b"], space["b"], space["a"], space[b"a"], space[("a",)], space[("a", None)]]
    trs = [db.create_transaction() for _ in names]
    for tr, name in zip(trs, names, strict=True):
        Queue(name, codec="str").enqueue(tr, "x")
    for tr in trs:
        tr.commit().wait()
    assert len(registered(db, space)) == len(names) - 1


def test_names_within_each_other_that_are_there_go_on_and_are_told(
    nested: tuple[Name, Name], db: Any, space: Subspace
) -> None:
    one, other = nested
    registered_before(db, *nested)
    apart = (*fdbqueue.engine.tuple.unpack(space.key()), "apart")
    Queue(apart, codec="str").enqueue(db, "x")
    for name in nested:
        Queue(name).register(db)
        Queue(name).enqueue_many(db, [])

    for found in (queues(db, within=space), list(find_queues(db, within=space))):
        told = {info.name: info.problem for info in found}
        assert told.pop(apart) == ""
        assert told.keys() == {one, other}
        assert all("lies within" in problem for problem in told.values())
    [alone] = queues(db, within=max(nested, key=len))
    assert "lies within" in alone.problem
    [first] = queues(db, within=space, limit=1, after=apart)
    assert "lies within" in first.problem
    for name in nested:
        assert [problem for problem in Queue(name).check(db).problems if "lies within" in problem]
    assert Queue(apart, codec="str").check(db).problems == ()
    inner = max(nested, key=len)
    rename(db, inner, (*apart[:-1], "moved"))
    assert all(info.problem == "" for info in queues(db, within=space))


def test_the_sentence_names_both_queues() -> None:
    with fdbqueue.open("memory:") as db:
        registered_before(db, "shop", ("shop", 0))
        told = {info.problem for info in queues(db)}
    assert told == {
        (
            "The name of the queue ('shop', 0) lies within that of 'shop', so a call on one of them may change the"
            " items of the other."
        )
    }


@pytest.mark.parametrize(
    "prefix",
    [CATALOGUE[:1], CATALOGUE[:9], CATALOGUE, CATALOGUE + b"\x02orders\x00", b"\xff", b"\xff/x", b"\xff\xff/x"],
)
def test_a_prefix_with_the_keys_of_the_catalogue_or_the_database_is_refused(prefix: bytes) -> None:
    for make in (Queue, Layout, lambda name: OperationLog(name, Queue("orders"))):
        with pytest.raises(ValueError, match=r"registrations of all queues|database's own keys") as raised:
            make(Subspace(rawPrefix=prefix))
        assert repr(prefix) in str(raised.value)
    with fdbqueue.open("memory:") as db, pytest.raises(ValueError, match="Give a name"):
        queues(db, within=Subspace(rawPrefix=prefix))


def test_a_prefix_beside_the_catalogue_is_a_queue() -> None:
    with fdbqueue.open("memory:") as db:
        for prefix in (b"\xfe", CATALOGUE[:-1] + b"0", b"\xfc", b"\x00"):
            Queue(Subspace(rawPrefix=prefix), codec="str").enqueue(db, "x")
        assert len(queues(db)) == 4


def test_a_queue_in_the_catalogue_that_is_there_is_listed() -> None:
    """Older versions made such a queue. Nothing names it any more, so its registration stays until it is cleared."""
    with fdbqueue.open("memory:") as db:
        Queue("orders", codec="str").enqueue(db, "x")

        async def body(tr: Any) -> None:
            write_about(tr, Layout.at(CATALOGUE[:1]), About("str"))

        steps.run(attempts(db, body))
        assert [info.name for info in queues(db)] == [("orders",), CATALOGUE[:1]]
        assert queue_names(db) == ["orders", queue_text(CATALOGUE[:1])]
