"""Limits: who is refused, dropped or waits when a queue, a type or a key is full, and who makes room."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fdbqueue import QueueFull
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases.timers import FIRE_LIMIT
from fdbqueue.layers.smart import Decision, Limit, SmartQueue
from fdbqueue.layers.smart.capacity import WATCHED_ENTRIES
from fdbqueue.layers.smart.types import EVERYTHING, NOTHING, OWN_KEY, MessageType, Sees, types
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import contents, enqueue_unchecked, rows_of, smart_queue

Data = dict[str, Any]


def limited(space: Subspace, when_full: Any, **terms: Any) -> SmartQueue:
    return smart_queue(
        space,
        MessageType("x", key=lambda data: data["of"], sees=OWN_KEY, key_limit=Limit(2, when_full), expires=100.0),
        **terms,
    )


def x(of: str, n: int) -> Data:
    return {"type": "x", "of": of, "n": n}


def numbers(smart: SmartQueue, db: Any) -> list[tuple[str, int]]:
    return [(message["of"], message["n"]) for message in contents(smart, db)]


def test_a_limit_refuses(db: Any, space: Subspace) -> None:
    smart = limited(space, "refuse")
    smart.enqueue_many(db, [x("a", 1), x("a", 2), x("b", 1)])
    before = rows_of(smart, db)
    with pytest.raises(QueueFull, match="most=2") as full:
        smart.enqueue(db, x("a", 3))
    assert full.value.limit == Limit(2)
    assert rows_of(smart, db) == before
    smart.enqueue(db, x("b", 2))


def test_a_limit_drops_the_newest(db: Any, space: Subspace) -> None:
    smart = limited(space, "drop newest")
    outcomes = smart.enqueue_many(db, [x("a", n) for n in range(4)])
    assert [outcome.full for outcome in outcomes] == [False, False, True, True]
    assert numbers(smart, db) == [("a", 0), ("a", 1)]


def test_a_limit_that_refuses_a_message_deletes_nothing(db: Any, space: Subspace) -> None:
    smart = smart_queue(
        space,
        MessageType("old", check=lambda queued, new: Decision.queue_and_delete, sees=NOTHING),
        MessageType(
            "x",
            key=lambda message: message["of"],
            sees=types("old"),
            key_limit=Limit(1, "drop oldest"),
            limit=Limit(2, "drop newest"),
        ),
    )
    smart.enqueue_many(db, [x("a", 1), x("b", 1)])
    smart_queue(space, MessageType("x", key=lambda message: message["of"], sees=NOTHING)).enqueue(db, x("c", 1))
    smart.enqueue(db, {"type": "old", "of": "o", "n": 0})
    before = rows_of(smart, db)
    tr = db.create_transaction()
    outcome = smart.enqueue(tr, x("a", 2))
    tr.commit().wait()
    assert (outcome.full, outcome.position, outcome.deleted) == (True, None, ())
    assert rows_of(smart, db) == before


def test_a_limit_drops_the_oldest_item_that_is_not_leased(db: Any, space: Subspace) -> None:
    smart = limited(space, "drop oldest")
    smart.enqueue_many(db, [x("a", 0), x("b", 0), x("a", 1)])
    assert smart.leases.lease(db) is not None
    outcome = smart.enqueue(db, x("a", 2))
    assert len(outcome.deleted) == 1
    assert numbers(smart, db) == [("b", 0), ("a", 2)]
    smart.leases.lease_many(db)
    with pytest.raises(QueueFull, match="leased"):
        smart.enqueue(db, x("a", 3))


def test_expired_items_make_room(db: Any, space: Subspace) -> None:
    clock = Clock()
    for at, smart in enumerate(
        (
            limited(space["key"], "refuse", clock=clock),
            smart_queue(space["queue"], MessageType("x", expires=100.0), clock=clock, limit=Limit(2)),
        )
    ):
        smart.enqueue_many(db, [x("a", 1), x("a", 2)])
        clock.now += 101
        assert len(smart.enqueue(db, x("a", 3)).expired) == 2, at
        assert numbers(smart, db) == [("a", 3)]


def test_unseen_expired_items_make_room(db: Any, space: Subspace) -> None:
    clock = Clock()
    mortal = MessageType("x", expires=100.0, sees=NOTHING, limit=Limit(2, "drop oldest"))
    smart = smart_queue(space, mortal, clock=clock)
    first = smart.enqueue(db, x("a", 1)).position
    clock.now += 99
    smart.enqueue(db, x("a", 2))
    clock.now += 2
    outcome = smart.enqueue(db, x("a", 3))
    assert (outcome.expired, outcome.deleted) == ((first,), ())
    assert numbers(smart, db) == [("a", 2), ("a", 3)]


@pytest.mark.parametrize("sees", [EVERYTHING, NOTHING], ids=["seen", "not seen"])
@pytest.mark.parametrize("of", ["type", "queue"])
def test_an_expired_item_stays_with_its_consumer(db: Any, space: Subspace, sees: Sees, of: str) -> None:
    clock, limit = Clock(), Limit(1)
    mortal = MessageType("x", expires=10.0, sees=sees, limit=limit if of == "type" else None)
    smart = smart_queue(space, mortal, clock=clock, limit=limit if of == "queue" else None)
    smart.enqueue(db, x("a", 1))
    lease = smart.leases.lease(db, duration=100)
    assert lease is not None
    clock.now += 11
    with pytest.raises(QueueFull):
        smart.enqueue(db, x("a", 2))
    smart.leases.ack(db, lease)
    assert smart.enqueue(db, x("a", 2)).expired == ()


def test_expired_items_behind_many_due_ones_make_room(db: Any, space: Subspace) -> None:
    clock, delayed = Clock(), 2 * FIRE_LIMIT
    mortal, other = MessageType("x", expires=100.0, sees=NOTHING), MessageType("y", sees=NOTHING)
    smart = smart_queue(space, mortal, other, clock=clock, limit=Limit(delayed + 1))
    smart.enqueue(db, x("a", 1))
    for _ in range(delayed):
        smart.enqueue(db, {"type": "y"}, delay=1)
    db[smart.queue.layout.timers.pack((1, "of a newer version"))] = b""
    clock.now += 101
    assert len(smart.enqueue(db, {"type": "y"}).expired) == 1
    with pytest.raises(QueueFull):
        smart.enqueue(db, {"type": "y"})


@pytest.mark.parametrize("when_full", ["refuse", "drop newest", "drop oldest"])
def test_a_limit_of_the_queue_counts_every_item_and_no_dead_letter(db: Any, space: Subspace, when_full: Any) -> None:
    smart = smart_queue(space, MessageType("x"), MessageType("y"), limit=Limit(3, when_full))
    smart.enqueue(db, {"type": "y"})
    enqueue_unchecked(smart, db, {"type": "x", "n": 0})
    smart.enqueue(db, {"type": "x", "n": 1}, delay=9)
    if when_full == "refuse":
        with pytest.raises(QueueFull):
            smart.enqueue(db, {"type": "x", "n": 2})
    else:
        outcome = smart.enqueue(db, {"type": "x", "n": 2})
        assert (outcome.full, len(outcome.deleted)) == ((True, 0) if when_full == "drop newest" else (False, 1))
    stats = smart.queue.stats(db)
    assert stats.available + stats.delayed == 3
    smart.dequeue(db)
    assert smart.enqueue(db, {"type": "x", "n": 3}).position is not None


def test_a_limit_that_was_lowered_drops_as_many_as_it_takes(db: Any, space: Subspace) -> None:
    smart_queue(space, MessageType("x")).enqueue_many(db, [{"type": "x", "n": n} for n in range(9)])
    smart = smart_queue(space, MessageType("x", limit=Limit(3, "drop oldest")))
    assert len(smart.enqueue(db, {"type": "x", "n": 9}).deleted) == 7
    assert [message["n"] for message in contents(smart, db)] == [7, 8, 9]


def test_a_waiting_enqueue_goes_in_when_there_is_room_or_times_out(db: Any, space: Subspace) -> None:
    for at, smart in enumerate(
        (limited(space["key"], "wait"), smart_queue(space["all"], MessageType("x"), limit=Limit(2, "wait")))
    ):
        smart.enqueue_many(db, [x("a", 1), x("a", 2)])
        with pytest.raises(QueueFull):
            smart.enqueue(db, x("a", 3), timeout=0.05)
        with pytest.raises(QueueFull):
            smart.enqueue(db.create_transaction(), x("a", 3))
        waiting = threading.Thread(target=smart.enqueue, args=(db, x("a", 3)), kwargs={"timeout": 30})
        waiting.start()
        smart.dequeue(db)
        waiting.join()
        assert numbers(smart, db) == [("a", 2), ("a", 3)], at


def test_a_waiting_enqueue_retries_retryable_errors(db: Any, space: Subspace) -> None:
    smart = limited(space, "wait")
    smart.enqueue_many(db, [x("a", 1), x("a", 2)])
    # The first commit is the one that sets the watches: a newcomer that finds no room has nothing to write.
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1007))
    with pytest.raises(QueueFull):
        smart.enqueue(faulty, x("a", 3), timeout=0.05)
    assert faulty.faults == 1


def test_an_enqueue_that_waits_for_one_of_many_items_goes_in(db: Any, space: Subspace) -> None:
    amount = WATCHED_ENTRIES + 1
    smart = smart_queue(space, MessageType("x", sees=NOTHING, limit=Limit(amount, "wait")))
    smart.enqueue_many(db, [x("a", n) for n in range(amount)])
    waiting = threading.Thread(target=smart.enqueue, args=(db, x("a", -1)), kwargs={"timeout": 30})
    waiting.start()
    lease = smart.leases.lease_many(db)[-1]
    smart.leases.ack(db, lease)
    waiting.join()
    assert smart.stats(db).types["x"] == amount


@pytest.mark.parametrize("full", ["type", "queue"])
def test_one_that_waits_for_a_limit_that_was_given_twice_rests_until_there_is_room(
    db: Any, space: Subspace, full: str
) -> None:
    two = Limit(2, "wait")
    type_limit = two if full == "type" else None
    given = MessageType("x", key=lambda data: data["of"], sees=NOTHING, key_limit=two, limit=type_limit)
    smart = smart_queue(space, given, limit=two if full == "queue" else None)
    smart.enqueue_many(db, [x("a", 1), x("b", 2)])
    looked = FaultyDatabase.failing_at(db, set(), ("before", 1020))
    with pytest.raises(QueueFull):
        smart.enqueue(looked, x("c", 3), timeout=0.05)
    assert looked.commits <= 3, "its key has room: it did not rest"
    waiting = threading.Thread(target=smart.enqueue, args=(db, x("c", 3)), kwargs={"timeout": 30})
    waiting.start()
    smart.queue.dequeue(db)
    waiting.join()
    assert numbers(smart, db) == [("b", 2), ("c", 3)]


def test_one_that_waits_for_room_does_not_spin_on_a_due_timer_that_can_not_fire(
    db: Any, space: Subspace, clock: Clock
) -> None:
    smart = smart_queue(space, MessageType("x", sees=NOTHING, limit=Limit(1, "wait")), clock=clock)
    smart.enqueue(db, x("a", 1))
    lease = smart.leases.lease(db, duration=1)
    assert lease is not None
    db[smart.queue.layout.leased.key(pack(lease.position))] = b"\x20newer"
    clock.now += 5
    counting = FaultyDatabase(db, lambda: None)
    with pytest.raises(QueueFull):
        smart.enqueue(counting, x("a", 2), timeout=0.3)
    assert counting.commits < 12


def test_a_waiting_enqueue_goes_in_when_an_item_expires(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", limit=Limit(1, "wait"), expires=0.1), clock=time.time)
    smart.enqueue(db, {"type": "x", "n": 1})
    smart.enqueue(db, {"type": "x", "n": 2}, timeout=30)
    assert smart.queue.stats(db).expired == 1


def test_many_waiting_enqueues_go_in_one_by_one_and_block_no_event_loop(db: Any, space: Subspace) -> None:
    smart = limited(space, "wait")

    async def main() -> None:
        coming = asyncio.gather(*(smart.enqueue.aio(db, x("a", n), timeout=30) for n in range(8)))
        taken = 0
        while taken < 8:
            taken += len(await smart.dequeue_many.aio(db))
            await asyncio.sleep(0)
        await coming

    asyncio.run(main())
    assert smart.queue.stats(db).dequeued == 8
