"""Layers that know nothing of each other, on one queue: smart checks, priorities, subscriptions, staged dequeue."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.smart import Decision
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.stored.layout import APPENDED_BYTES, MAX_KEY_BYTES
from fdbqueue.stored.shapes import NAME_BYTES
from tests.helpers.smart import ORDER, Confirmation, Note, Order, Progress, as_another_process, contents, smart_queue


def test_a_smart_check_sees_and_deletes_an_item_of_a_subscription(db: Any, space: Subspace) -> None:
    smart = smart_queue(space)
    subscriptions = Subscriptions(smart.leases)
    big = subscriptions.subscribe(db, "big", selector="size > 5")
    big.grant(db, items=1)
    smart.enqueue(db, Order(1), headers={"size": 1})
    smart.enqueue(db, Order(2), headers={"size": 9})
    smart.enqueue(db, Order(3), headers={"size": 8})
    [held] = big.lease_many(db)
    assert held.value == Order(2)

    assert smart.enqueue(db, Confirmation(2)).decision is Decision.ignore_and_delete
    with pytest.raises(LeaseLost):
        smart.leases.ack(db, held)
    assert [lease.value for lease in big.lease_many(db)] == [Order(3)], "its credit came back"
    assert contents(smart, db) == [Order(1)]
    assert subscriptions.check(db).problems == ()


def test_a_subscription_gets_replaced_values_and_no_deleted_items(db: Any, space: Subspace) -> None:
    smart = smart_queue(space)
    subscriptions = Subscriptions(smart.leases)
    everything = subscriptions.subscribe(db, "everything")
    smart.enqueue(db, Order(1))
    smart.enqueue(db, Progress("a", 10))
    smart.enqueue(db, Progress("b", 10))
    smart.enqueue(db, Progress("a", 90))
    smart.enqueue(db, Confirmation(1))
    assert [lease.value for lease in everything.lease_many(db)] == [Progress("a", 90), Progress("b", 10)]
    assert smart.check(db).problems == subscriptions.check(db).problems == ()


def test_a_sooner_item_moves_a_subscription_back_and_a_released_one_as_well(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(Queue(space, codec="str"), levels=3)
    subscriptions = Subscriptions(queue.leases)
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    for number, priority in enumerate([2, 1, 2]):
        queue.enqueue(db, f"red{number}", priority=priority, headers={"color": "red"})
    queue.enqueue(db, "blue", priority=0, headers={"color": "blue"})
    [first, second] = red.lease_many(db, limit=2)
    assert [first.value, second.value] == ["red1", "red0"]

    queue.enqueue(db, "urgent", priority=0, headers={"color": "red"})
    queue.leases.nack(db, first)
    assert [lease.value for lease in red.lease_many(db)] == ["urgent", "red1", "red2"]
    last = StagedQueue(queue.leases).dequeue(db, timeout=60)
    assert last is not None
    assert last.value == "blue"
    assert queue.check(db).problems == subscriptions.check(db).problems == ()


def test_an_item_leased_by_a_staged_call_is_checked_and_returns_to_its_place(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, ORDER)
    staged = StagedQueue(smart.leases)
    smart.enqueue(db, Order(1))
    smart.enqueue(db, Order(2))
    lease = staged.lease(db, timeout=60)
    assert lease is not None
    assert lease.value == Order(1)
    assert smart.enqueue(db, Order(3)).decision is Decision.queue, "asked while it is leased, it lets the newcomer in"
    smart.leases.nack(db, lease)
    assert contents(smart, db) == [Order(1), Order(2), Order(3)]


def test_all_of_it_works_under_the_longest_name_of_a_queue(db: Any, space: Subspace) -> None:
    room = MAX_KEY_BYTES - APPENDED_BYTES - len(space.pack(("",)))
    smart = smart_queue(Subspace(rawPrefix=space.pack(("n" * room,))))
    assert len(smart.queue.layout.prefix) == MAX_KEY_BYTES - APPENDED_BYTES
    subscriptions = Subscriptions(smart.leases)
    longest = subscriptions.subscribe(db, "\0" * NAME_BYTES["subscription"])
    staged = StagedQueue(smart.leases)
    smart.enqueue(db, Order(1), delay=600)
    for number in range(2, 5):
        smart.enqueue(db, Order(number))
    held = longest.lease(db, timeout=60)
    assert held is not None
    smart.leases.nack(db, held)
    for _ in range(3):
        lease = staged.lease(db, timeout=60)
        assert lease is not None
        smart.leases.ack(db, lease)
    smart.enqueue_many(db, [Note("a" * 100_000, {})])
    assert smart.queue.dequeue(db) is not None
    assert smart.check(db).problems == subscriptions.check(db).problems == ()
    smart.queue.clear(db)
    as_another_process(smart.queue).enqueue_many(db, [Progress("a" * 100_000, 1)])
    smart.queue.clear(db)
    assert db.get_range(*smart.queue.layout.whole_range()) == []
