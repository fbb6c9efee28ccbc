"""No verb on a name changes or shows another one, unless one of the two is within the other."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Queue, find_queues, queues, rename
from fdbqueue.engine import Subspace, steps
from fdbqueue.engine.keys import bytes_behind, is_within, within
from fdbqueue.layers import (
    Groups,
    Leases,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
    Watchdog,
)
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.stored.layout import Layout, name_of
from fdbqueue.transfer import copy_queue, export_items, import_items, release_copy
from fdbqueue.verbs import renaming
from fdbqueue.web.app import _is_below
from tests.helpers.names import Name, pairs_apart
from tests.helpers.smart import Progress, smart_queue

pytestmark = pytest.mark.engines("memory", "cluster")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for old transactions in a rename."""

    def pause(seconds: float) -> steps.Steps[None]:
        yield from ()

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
    assert not _is_below(Layout(other), one)
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
