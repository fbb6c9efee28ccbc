"""Items are asked, rewritten and forgotten in whatever state they are: leased, delayed, dead, over, or taken out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace, transactional
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.leases.taking import Allotment
from fdbqueue.layers.smart import Messages, MessageType, SmartQueue
from fdbqueue.layers.smart.types import Answer, Decision, Replace
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.delivery import HeadDelivery
from tests.helpers.clock import Clock
from tests.helpers.smart import (
    ORDER,
    Confirmation,
    Note,
    Order,
    Progress,
    contents,
    note,
    position_of,
    rows_of,
    smart_queue,
)


def test_a_leased_item_is_asked_by_a_check_that_wants_to_know_and_says_that_it_is(db: Any, smart: SmartQueue) -> None:
    first = position_of(smart, db, Order(1))
    assert smart.enqueue(db, Order(2)).by is None
    assert smart.leases.lease(db) is not None
    assert smart.enqueue(db, Order(3)).by == first


def test_a_leased_item_is_not_asked_by_a_check_that_does_not_know_of_leases(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 10))
    lease = smart.leases.lease(db)
    assert lease is not None
    outcome = smart.enqueue(db, Progress("a", 20))
    assert (outcome.decision, outcome.by, outcome.asked) == (Decision.queue, None, 0)
    smart.leases.nack(db, lease)
    assert contents(smart, db) == [Progress("a", 10), Progress("a", 20)]


def test_a_leased_item_that_is_deleted_is_lost_to_its_holder(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Order(1))
    lease = smart.leases.lease(db)
    assert lease is not None
    assert smart.enqueue(db, Confirmation(1)).deleted == (lease.position,)
    with pytest.raises(LeaseLost):
        smart.leases.ack(db, lease)
    assert contents(smart, db) == []


@pytest.mark.parametrize("way", ["dequeue", "plain dequeue", "dequeue_many", "ack", "staged", "staged ack", "clear"])
def test_the_index_follows_an_item_however_it_leaves(db: Any, smart: SmartQueue, way: str) -> None:
    smart.enqueue(db, Progress("a", 1))
    if way == "dequeue":
        smart.dequeue(db)
    elif way == "plain dequeue":
        smart.queue.dequeue(db)
    elif way == "dequeue_many":
        smart.queue.dequeue_many(db, limit=5)
    elif way == "staged":
        StagedQueue(smart.leases).dequeue(db)
    elif way == "staged ack":
        staged = StagedQueue(smart.leases)
        lease = staged.lease(db)
        assert lease is not None
        staged.ack(db, lease)
    elif way == "clear":
        smart.queue.clear(db)
    else:
        lease = smart.leases.lease(db)
        assert lease is not None
        smart.leases.ack(db, lease)
    assert smart.stats(db).types["progress"] == 0
    assert contents(smart, db) == []
    assert smart.enqueue(db, Progress("a", 2)).by is None


def test_an_item_put_back_for_a_cancelled_caller_is_in_the_index_again(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 1))
    delivery = HeadDelivery(smart.leases)
    allotment = Allotment(1, 0, "", own=True)

    @transactional
    def take(tr: Any) -> None:
        run(delivery.take(tr, delivery.look(tr, limit=1), [allotment]))

    @transactional
    def give_back(tr: Any) -> None:
        run(smart.leases.taking.put_back(tr, allotment.got))

    take(db)
    assert contents(smart, db) == []
    give_back(db)
    assert contents(smart, db) == [Progress("a", 1)]
    assert smart.enqueue(db, Progress("a", 2)).rewritten is not None


def test_a_dead_letter_is_out_of_the_queue_until_it_is_redriven(db: Any, space: Subspace) -> None:
    smart = smart_queue(space)
    smart = SmartQueue(Leases(smart.queue, max_attempts=1, clock=smart.leases.clock))
    long = "k" * 950  # its notes have to hold the key and the error
    for to in ("place", "tail"):
        smart.enqueue(db, Progress(long, 1))
        lease = smart.leases.lease(db)
        assert lease is not None
        smart.leases.nack(db, lease, error="x" * 5_000)
        assert smart.enqueue(db, Progress(long, 2)).by is None
        assert smart.dequeue(db) is not None
        smart.leases.dead.redrive(db, to=to)
        assert smart.check(db).problems == ()
        assert smart.enqueue(db, Progress(long, 3)).rewritten is not None
        assert contents(smart, db) == [Progress(long, 3)]
        smart.dequeue(db)


class UrgentFirst:
    """An order by what a note is about."""

    name = "urgent first"

    def rank(self, value: Any, headers: Any) -> int:
        return 0 if value.text.startswith("urgent") else 1


def test_checks_of_an_ordered_queue_run_in_its_order(db: Any, space: Subspace) -> None:
    smart = SmartQueue(Queue(space, codec=Messages(MessageType("note", Note)), order=UrgentFirst()))
    later = position_of(smart, db, note("later", new="queue and delete"))
    urgent = position_of(smart, db, note("urgent", new="take over", other="ignore"))
    before = rows_of(smart, db)
    assert smart.enqueue(db, note("other")).by == urgent
    assert [row for row in rows_of(smart, db) if b"once" not in row[0]] == [
        row for row in before if b"once" not in row[0]
    ]
    smart.enqueue(db, note("urgent, too"))
    assert [message.text for message in contents(smart, db)] == ["urgent", "urgent, too", "later"]
    outcome = smart.enqueue(db, note("new"))
    assert (outcome.by, outcome.rewritten) == (urgent, urgent)
    assert [message.text for message in contents(smart, db)] == ["new", "urgent, too", "later"]
    assert later.rank == 1


def test_enqueue_many_gives_all_the_same_delay_and_headers(db: Any, space: Subspace, clock: Clock) -> None:
    smart = smart_queue(space, clock=clock)
    reports = [Progress("a", 1), Progress("b", 1), Progress("a", 2)]
    for given in (db, db.create_transaction()):
        smart.queue.clear(db)
        at = clock.now + 10
        outcomes = smart.enqueue_many(given, reports, at=at, headers={"color": "red"})
        smart.enqueue_many(given, [Progress("c", 1)], at=at, headers={"color": "red"})
        if given is not db:
            given.commit().wait()
        assert [outcome.decision for outcome in outcomes] == [Decision.queue, Decision.queue, Decision.ignore]
        assert smart.dequeue(db) is None
        clock.now += 11
        items = smart.dequeue_many(db)
        assert [(item.value, dict(item.headers)) for item in items] == [
            (Progress("a", 2), {"color": "red"}),
            (Progress("b", 1), {"color": "red"}),
            (Progress("c", 1), {"color": "red"}),
        ]


def test_a_delayed_item_is_checked_and_can_be_replaced(db: Any, space: Subspace) -> None:
    clock = Clock()
    smart = smart_queue(space, clock=clock)
    smart.enqueue(db, Progress("a", 1), delay=10)
    assert smart.enqueue(db, Progress("a", 2)).rewritten is not None
    assert smart.dequeue(db) is None
    clock.now += 11
    assert contents(smart, db) == []
    item = smart.dequeue(db)
    assert item is not None
    assert item.value == Progress("a", 2)


def test_an_expired_item_is_removed_before_any_check_is_asked(db: Any, space: Subspace) -> None:
    clock = Clock()
    order = dataclasses.replace(ORDER, expires=10.0)
    smart = smart_queue(space, order, clock=clock)
    old = position_of(smart, db, Order(1))
    clock.now += 11
    outcome = smart.enqueue(db, Order(2))
    assert (outcome.expired, outcome.asked, outcome.by) == ((old,), 0, None)
    clock.now += 11
    assert smart.dequeue(db) is None
    assert smart.queue.stats(db).expired == 2
    assert contents(smart, db) == []


def test_a_time_to_live_function_is_called_again_for_new_values(db: Any, space: Subspace) -> None:
    clock = Clock()

    def until(message: dict[str, Any]) -> float | None:
        return message.get("until")

    def check(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
        return Replace(new)

    smart = smart_queue(space, MessageType("x", check=check, expires=until), clock=clock)
    smart.enqueue(db, {"type": "x", "until": clock.now + 5})
    smart.enqueue(db, {"type": "x", "until": clock.now + 50})
    clock.now += 10
    assert len(contents(smart, db)) == 1
    smart.enqueue(db, {"type": "x"})
    clock.now += 100
    assert contents(smart, db) == [{"type": "x"}]
    item = smart.dequeue(db)
    assert item is not None
