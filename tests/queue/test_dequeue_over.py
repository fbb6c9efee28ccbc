"""A plain dequeue removes the items in front that are over, as every other taker does."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fdbqueue import CheckFailed, FormatError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Groups, Leases, Messages, MessageType
from fdbqueue.moves.taking import Takes


def taken_by(verb: str, queue: Queue[Any], tr: Any) -> list[Any]:
    """Return the values that a verb takes."""
    if verb == "dequeue":
        item = queue.dequeue(tr)
        return [] if item is None else [item.value]
    if verb == "dequeue_many":
        return [item.value for item in queue.dequeue_many(tr, limit=1)]
    return list(queue.dequeue_arrow(tr, limit=1).column("value").to_pylist())


VERBS = ("dequeue", "dequeue_many", "dequeue_arrow")


def expire(leases: Leases[Any], db: Any, *values: Any) -> None:
    """Enqueue items whose time to live was over a second ago."""
    past = Leases(leases.queue, clock=lambda: time.time() - 10)
    past.enqueue_many(db, values, ttl=9)


@pytest.mark.parametrize("verb", VERBS)
def test_items_whose_life_is_over_are_removed_and_the_next_one_is_taken(db: Any, space: Subspace, verb: str) -> None:
    leases = Leases(Queue(space, codec="str"))
    expire(leases, db, "over", "over too")
    leases.queue.enqueue(db, "alive")
    leases.queue.enqueue(db, "next")
    assert taken_by(verb, leases.queue, db) == ["alive"]
    assert taken_by(verb, leases.queue, db) == ["next"]
    assert taken_by(verb, leases.queue, db) == []
    stats = leases.stats(db)
    assert (stats.expired, stats.dequeued) == (2, 2)
    assert leases.check(db).problems == ()


def test_a_dequeue_of_many_goes_on_behind_items_that_are_over(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    for _ in range(3):
        leases.queue.enqueue(db, "alive")
        expire(leases, db, "over", "over too")
    tr = db.create_transaction()
    assert [item.value for item in leases.queue.dequeue_many(tr, limit=3)] == ["alive"] * 3
    tr.commit().wait()
    assert leases.stats(db).expired == 4  # those behind the last one stay
    assert leases.check(db).problems == ()


@pytest.mark.parametrize("verb", VERBS)
def test_a_dequeue_removes_many_in_several_transactions(
    db: Any, space: Subspace, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Takes, "EXPIRED_LIMIT", 3)
    leases = Leases(Queue(space, codec="str"))
    expire(leases, db, *["over"] * 10)
    leases.queue.enqueue(db, "alive")
    assert taken_by(verb, leases.queue, db) == ["alive"]
    assert leases.check(db).problems == ()


@pytest.mark.parametrize("verb", VERBS)
def test_members_of_a_cancelled_group_are_removed(db: Any, space: Subspace, verb: str) -> None:
    leases = Leases(Queue(space, codec="str"))
    group = Groups(leases).open(db, "import")
    group.enqueue_many(db, ["member", "another"])
    leases.queue.enqueue(db, "free")
    tr = db.create_transaction()
    group.cancel(tr)  # without the sweep that follows
    tr.commit().wait()
    assert taken_by(verb, leases.queue, db) == ["free"]
    assert group.stats(db).cancelled == 2
    assert leases.check(db).problems == ()


@pytest.mark.parametrize("verb", ["dequeue", "dequeue_many"])
def test_messages_that_their_type_calls_over_are_removed(db: Any, space: Subspace, verb: str) -> None:
    outdated = MessageType("x", expires=lambda message: message["n"] < 2)
    queue: Queue[Any] = Queue(space, codec=Messages(outdated))
    for number in range(3):
        queue.enqueue(db, {"type": "x", "n": number})
    assert taken_by(verb, queue, db) == [{"type": "x", "n": 2}]
    assert queue.stats(db).dequeued == 1


def test_a_message_whose_predicate_fails_stays(db: Any, space: Subspace) -> None:
    queue: Queue[Any] = Queue(space, codec=Messages(MessageType("x", expires=lambda message: message["missing"])))
    queue.enqueue(db, {"type": "x"})
    with pytest.raises(CheckFailed, match="'expires' of the message type 'x' failed"):
        queue.dequeue(db)
    assert not queue.is_empty(db)


def test_items_in_front_of_one_that_cant_be_read_stay(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    expire(leases, db, "over")
    position = leases.queue.enqueue(db, "damaged")
    db[leases.layout.item_key(position)] = b"\xff"
    with pytest.raises(FormatError, match="was left there"):
        leases.queue.dequeue(db)
    assert leases.stats(db).expired == 0
