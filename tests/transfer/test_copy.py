"""A copy moves every item to the other database once, interrupted at any point, while both are in use."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import ChecksBypassed, Queue, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import TransferError
from fdbqueue.layers import Blobs, Groups, Leases, Results, Sessions, Subscriptions
from fdbqueue.transfer import copy_queue, copying, release_copy
from tests.helpers.smart import Progress, smart_queue
from tests.transfer.histories import HISTORIES, kept, live, queue_of
from tests.transfer.test_export import Cut, cut_at

MOVED = ("available", "delayed", "dead")


@pytest.fixture(scope="module")
def other() -> Iterator[Any]:
    """A second database."""
    with fdbqueue.open("memory:") as opened:
        yield opened


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches small."""
    monkeypatch.setattr(copying, "BATCH_ITEMS", 3)


def rows(db: Any, queue: Queue[Any], states: tuple[str, ...] = MOVED) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = queue.to_arrow(db, states=states).to_pylist()
    return found


def test_a_copy_registers_the_queue_as_the_source_has_it(db: Any, space: Subspace, other: Any) -> None:
    Leases(Queue(space, codec="json"), max_attempts=3).enqueue(db, 1)
    before = fdbqueue.queues(db, within=space)[0]
    assert copy_queue(db, other, Queue(space)).items == 1
    after = fdbqueue.queues(other, within=space)[0]
    assert (after.codec, after.policy, after.registered_at) == ("json", before.policy, before.registered_at)


def is_well(db: Any, queue: Queue[Any]) -> bool:
    return fdbqueue.check(db, queue).ok


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("back", [False, True])
@settings(max_examples=12)
@given(HISTORIES, st.booleans(), st.lists(st.integers(0, 22), max_size=4))
@example([("plain", b"1")] * 9, False, [7, 8, 9, 10, 11, 12, 13])
def test_a_history_moves_as_it_is(
    db: Any, other: Any, back: bool, history: Any, ordered: bool, cuts: list[int]
) -> None:
    source, target = (other, db) if back else (db, other)
    space = Subspace(("fdbqueue tests", os.urandom(8)))
    queue = queue_of(space, ordered=ordered)
    live(source, queue, history)
    moving, staying = rows(source, queue), rows(source, queue, ("leased", "claimed"))
    for number in cuts:
        with contextlib.suppress(Cut), cut_at(number):
            copy_queue(source, target, queue)
        assert is_well(source, queue)
        assert is_well(target, queue)
    report = copy_queue(source, target, queue)
    assert (report.items, report.left, report.proved) == (len(moving), len(staying), True)
    assert (rows(target, queue), rows(source, queue, ("leased", "claimed"))) == (moving, staying)
    assert rows(source, queue) == []
    assert is_well(source, queue)
    assert is_well(target, queue)
    if kept(target, queue):
        assert queue.enqueue(target, b"later").index > max(row["index"] for row in moving + staying)
    for database in source, target:
        database.clear_range_startswith(space.key())


def test_a_leased_item_moves_when_it_has_come_back(db: Any, other: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue_many(db, ["a", "b", "c"])
    first, second = leases.lease_many(db, limit=2)
    assert copy_queue(db, other, leases.queue).left == 2
    leases.ack(db, first)
    leases.nack(db, second)
    leases.enqueue(db, "d")
    report = copy_queue(db, other, leases.queue)
    assert (report.moved, report.items, report.left, report.proved) == (2, 3, 0, True)
    assert [item.value for item in leases.queue.browse(other)] == ["b", "c", "d"]
    assert (leases.stats(db).dequeued, leases.stats(other).enqueued) == (4, 3)


def test_a_queue_in_use_on_both_sides_gives_each_item_once(db: Any, other: Any, space: Subspace, few: None) -> None:
    leases = Leases(Queue(space, codec="json"))
    leases.enqueue_many(db, range(150))
    taken: list[Any] = []
    done = threading.Event()

    def consume(database: Any) -> None:
        while not done.is_set():
            for lease in leases.lease_many(database, limit=4):
                leases.ack(database, lease)
                taken.append(lease.value)

    threads = [threading.Thread(target=consume, args=(database,)) for database in (db, other)]
    for thread in threads:
        thread.start()
    for number in range(150, 170):
        leases.enqueue(db, number)
    try:
        while copy_queue(db, other, leases.queue).left:
            pass
        while not leases.queue.is_empty(other) or leases.stats(other).leased:
            pass
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(taken) == [*range(170)]


def test_items_of_the_target_come_behind_those_of_the_source(db: Any, other: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, ["a", "b"])
    copy_queue(db, other, queue)
    queue.enqueue(other, "d")
    leases = Leases(queue)
    assert not copy_queue(db, other, queue).proved  # the target has more than what moved
    assert [lease.value for lease in leases.lease_many(other)] == ["a", "b", "d"]


def test_large_items_move_with_their_chunks(db: Any, other: Any, space: Subspace) -> None:
    queue = Queue(space)
    large = [bytes([number]) * 700_000 for number in range(5)]
    queue.enqueue_many(db, large)
    assert copy_queue(db, other, queue).proved
    assert [item.value for item in queue.browse(other)] == large
    begin, end = queue.layout.chunks.range().start, queue.layout.chunks.range().stop
    assert list(db.get_range(begin, end)) == []


def test_what_can_not_move_is_refused_before_any_item_moves(db: Any, other: Any, space: Subspace) -> None:
    group, blob, result = (Leases(Queue(space[name])) for name in ("group", "blob", "result"))
    Groups(group).open(db, "nightly").enqueue(db, b"member")
    Results(result).enqueue(db, b"awaited")
    with Blobs(blob).write(db) as file:
        file.write(bytes(1_200_000))
    Sessions(Queue(space["sessions"])).enqueue(db, b"x", session="ann")
    smart_queue(space["smart"]).enqueue(db, Progress("a.iso", 1))
    filled = Queue(space["filled"])
    filled.enqueue(db, b"x")
    filled.enqueue(other, b"y")
    untyped: Callable[..., Any] = copy_queue
    for arguments, kind, told in (
        ((db, other, group.queue), TransferError, "has group, which a copy can't take along.*Let the group end"),
        ((db, other, result.queue), TransferError, "has completion"),
        ((db, other, blob.queue), TransferError, r"has blob.*layers\.Blobs"),
        ((db, other, Queue(space["sessions"])), StreamError, "a copy does not see these"),
        ((db, other, Queue(space["smart"])), ChecksBypassed, "is smart"),
        ((db, other, filled), TransferError, "has items at the target already"),
        ((db, db, filled), TransferError, "the source and the target are one"),
        ((db.create_transaction(), other, filled), TypeError, "takes a database"),
        ((db, "file:x", filled), TypeError, "takes a database, not str"),
        ((db, other, group), TypeError, "Of a layer give its `queue`"),
    ):
        with pytest.raises(kind, match=told):
            untyped(*arguments)
    for queue in group.queue, result.queue, blob.queue, filled:
        assert queue.stats(db).available == 1
    assert list(other.get_range_startswith(group.layout.prefix)) == []


def test_a_copy_does_not_go_on_to_a_third_database(db: Any, other: Any, space: Subspace, few: None) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, [b"%d" % number for number in range(9)])
    with pytest.raises(Cut), cut_at(11):  # a batch is claimed
        copy_queue(db, other, queue)
    with fdbqueue.open("memory:") as third, pytest.raises(TransferError, match="is being copied to another database"):
        copy_queue(db, third, queue)
    assert copy_queue(db, other, queue).proved


def test_items_of_a_batch_are_safe_if_the_target_is_cleared(db: Any, other: Any, space: Subspace, few: None) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, [b"%d" % number for number in range(9)])
    claim = copying.DatabaseCopy.claim

    def cleared_after_a_claim(copy: Any, state: str) -> int:
        number = claim(copy, state)
        queue.clear(other)
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying.DatabaseCopy, "claim", cleared_after_a_claim)
        with pytest.raises(TransferError, match=r"was cleared at the target.*3 items .* are safe at the source"):
            copy_queue(db, other, queue)
    assert queue.stats(db).claimed == 3
    assert queue.stats(db).available == 6


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("cut", range(4, 24, 2))
def test_a_copy_that_is_released_can_go_to_a_third_database(
    db: Any, other: Any, space: Subspace, cut: int, lost: bool
) -> None:
    queue: Queue[Any] = Queue(space, codec="json")
    leases = Leases(queue, max_attempts=1)
    leases.enqueue(db, -1)
    leases.nack(db, lease) if (lease := leases.lease(db)) else None
    leases.enqueue_many(db, range(4))
    leases.enqueue(db, 9, delay=1e6)
    before = rows(db, queue)
    with contextlib.suppress(Cut), cut_at(cut):
        copy_queue(db, other, queue)
    if queue.stats(db).claimed + queue.stats(db).dequeued == 0:
        return  # it was cut before it began
    if lost:
        queue.clear(other)
    moved = rows(other, queue)

    with fdbqueue.open("memory:") as third:
        with pytest.raises(TransferError, match=r"end it: fdbqueue\.transfer\.release_copy\(source, Queue\("):
            copy_queue(db, third, queue)
        with pytest.raises(TransferError, match="not being copied to this target"):
            release_copy(db, queue, target=third)
        claimed = queue.stats(db).claimed
        back = release_copy(db, queue, target=None if lost else other)

        assert back in ((claimed,) if lost else (0, claimed))
        assert queue.stats(db).claimed == 0
        assert is_well(db, queue)
        here = rows(db, queue)
        if not lost:
            assert sorted(map(str, [*here, *moved])) == sorted(map(str, before))
        with pytest.raises(TransferError, match="is not being copied from this database"):
            release_copy(db, queue)
        assert copy_queue(db, third, queue).left == 0
        assert rows(third, queue) == here


@pytest.mark.usefixtures("few")
def test_a_copy_that_still_runs_fails_when_it_is_released(db: Any, other: Any, space: Subspace) -> None:
    queue: Queue[Any] = Queue(space, codec="json")
    queue.enqueue_many(db, range(5))
    copy = copying.DatabaseCopy(db, other, queue)
    copy.begin()
    number = copy.claim("available")
    items = run(attempts(db, partial(copy.read_batch, number=number)))

    assert release_copy(db, queue, target=other) == 3

    with pytest.raises(TransferError, match="was ended"):
        run(queue.transact(other, partial(copy.write_batch, number=number, items=items)))
    assert (queue.stats(db).available, queue.stats(other).available) == (5, 0)


def test_a_copy_writes_nothing_into_a_queue_that_became_smart_meanwhile(db: Any, other: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, 1)
    copy = copying.DatabaseCopy(db, other, queue)
    copy.begin()
    number = copy.claim("available")
    smart_queue(space).enqueue(other, Progress("a.iso", 1))

    with pytest.raises(ChecksBypassed, match="is smart"):
        copy.write(number)
    assert queue.stats(other).enqueued == 1


@pytest.mark.usefixtures("few")
def test_a_subscription_sees_the_items_that_a_copy_gives_back(db: Any, other: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Queue(space, codec="json"))
    subscription = subscriptions.subscribe(db, "all")
    subscriptions.enqueue_many(db, range(4))
    copy = copying.DatabaseCopy(db, other, Queue(space, codec="json"))
    copy.begin()
    copy.claim("available")
    assert [lease.value for lease in subscription.lease_many(db, limit=9)] == [3]

    assert release_copy(db, Queue(space, codec="json"), target=other) == 3

    assert [lease.value for lease in subscription.lease_many(db, limit=9)] == [0, 1, 2]
