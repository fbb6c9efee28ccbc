"""Browsers that stay: told of every arrival in order, taking nothing, and waiting without polling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.engine.waiting import until_changed
from fdbqueue.layers import Follower, Leases, PriorityQueue, SmartQueue, Subscriptions
from fdbqueue.layers.subscriptions import following
from fdbqueue.stored.items import envelope
from tests.helpers.smart import Note, smart_queue
from tests.helpers.staging import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def subscriptions_of(space: Subspace, clock: Callable[[], float] | None = None) -> Subscriptions[str]:
    queue = Queue(space, codec="str")
    return Subscriptions(Leases(queue) if clock is None else Leases(queue, clock=clock))


def told(follower: Follower[Any]) -> list[Any]:
    """The values of all items that it tells without waiting."""
    values: list[Any] = []
    while found := follower.next_many(timeout=0):
        values += [item.value for item in found]
    return values


def at_once(follower: Follower[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it store its place whenever it looks."""
    monkeypatch.setattr(following, "STORE_SECONDS", 0.0)
    monkeypatch.setattr(following, "QUIET_SECONDS", 0.0)


def test_it_tells_what_is_there_and_then_what_arrives_and_takes_nothing(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue_many(db, ["a", "b"])
    with subscriptions.follow(db) as follower:
        assert told(follower) == ["a", "b"]
        queue.enqueue(db, "c")
        queue.enqueue_many(db, ["d", "e"])
        assert [item.value for item in follower.next_many(limit=2)] == ["c", "d"]
        assert next(follower).value == "e"
        assert told(follower) == []
        assert queue.stats(db).available == 5
        assert subscriptions.check(db).problems == ()


def test_from_the_tail_it_tells_later_arrivals_only(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    subscriptions.leases.queue.enqueue_many(db, [str(number) for number in range(300)])
    with subscriptions.follow(db, start="tail") as follower:
        assert told(follower) == []
        subscriptions.leases.queue.enqueue(db, "later")
        assert told(follower) == ["later"]


def test_an_item_that_comes_back_is_told_again(db: Any, space: Subspace) -> None:
    clock = Clock()
    subscriptions = subscriptions_of(space, clock)
    leases = Leases(subscriptions.leases.queue, max_attempts=2, clock=clock)
    leases.enqueue_many(db, ["a", "b", "c"])
    with subscriptions.follow(db) as follower:
        assert told(follower) == ["a", "b", "c"]
        for attempt in (2, 0):
            lease = leases.lease(db)
            assert lease is not None
            assert lease.value == "a"
            leases.nack(db, lease)
            if attempt == 0:
                assert told(follower) == [], "it is a dead letter"
                leases.dead.redrive(db)
            [again] = follower.next_many()
            assert (again.value, again.attempt) == ("a", 1 if attempt else 0)
        leases.enqueue(db, "later", delay=60)
        assert told(follower) == []
        clock.now += 61
        leases.reclaim(db)
        assert told(follower) == ["later"]


def test_an_item_that_is_placed_in_front_is_told_when_it_arrives(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=3)
    with Subscriptions(jobs).follow(db) as follower:
        for number, priority in enumerate([2, 0, 1, 0]):
            jobs.enqueue(db, str(number), priority=priority)
        assert told(follower) == ["0", "1", "2", "3"], "in the order of their commits"
    with Subscriptions(jobs).follow(db) as other:
        assert told(other) == ["1", "3", "2", "0"], "those that are there: in the order of the queue"


def test_items_of_a_smart_queue_are_told(db: Any, space: Subspace) -> None:
    smart: SmartQueue = smart_queue(space)
    with Subscriptions(smart.leases).follow(db) as follower:
        smart.enqueue(db, Note("hello", {}))
        assert told(follower) == [Note("hello", {})]


def test_a_slow_producer_is_told_of_after_a_fast_one(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    with subscriptions.follow(db) as follower:
        slow, fast = db.create_transaction(), db.create_transaction()
        for number in range(40):
            queue.enqueue(slow, f"slow {number}")
            queue.enqueue(fast, f"fast {number}")
        fast.commit().wait()
        assert told(follower) == [f"fast {number}" for number in range(40)]
        slow.commit().wait()
        assert sorted(told(follower)) == sorted(f"slow {number}" for number in range(40))
        assert told(follower) == []


def test_items_between_those_of_a_slow_bulk_are_not_told_again(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    with subscriptions.follow(db) as follower:
        slow, fast = db.create_transaction(), db.create_transaction()
        queue.enqueue_many(slow, [f"slow {number}" for number in range(40)])
        queue.enqueue_many(fast, [f"fast {number}" for number in range(40)])
        fast.commit().wait()
        assert told(follower) == [f"fast {number}" for number in range(40)]
        slow.commit().wait()
        assert told(follower) == [f"slow {number}" for number in range(40)]


def test_items_between_those_that_come_back_together_are_not_told_again(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    for number in range(60):
        subscriptions.leases.enqueue(db, str(number), headers={"color": ("red", "blue")[number % 2]})
    with subscriptions.follow(db) as follower:
        assert len(told(follower)) == 60
        subscriptions.leases.nack_many(db, red.lease_many(db))
        assert told(follower) == [str(number) for number in range(0, 60, 2)]


@pytest.mark.parametrize("start", ["head", "tail"])
def test_an_enqueue_that_began_before_the_browser_is_told(db: Any, space: Subspace, start: Any) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue_many(db, ["a", "b"])
    slow = db.create_transaction()
    queue.enqueue(slow, "slow")
    with subscriptions.follow(db, start=start) as follower:
        slow.commit().wait()
        assert told(follower) == (["a", "b", "slow"] if start == "head" else ["slow"])
        queue.enqueue(db, "c")
        assert told(follower) == ["c"]


def test_a_name_keeps_the_place(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue_many(db, ["a", "b", "c"])
    with subscriptions.follow(db, "audit") as follower:
        assert [item.value for item in follower.next_many(limit=3)] == ["a", "b", "c"]
    queue.enqueue_many(db, ["d", "e"])
    with subscriptions.follow(db, "audit", start="head") as follower:
        assert told(follower) == ["d", "e"]
    with subscriptions.follow(db, "audit", start="tail") as follower:
        assert told(follower) == []
    assert subscriptions.unsubscribe(db, "audit")
    with subscriptions.follow(db, "audit") as follower:
        assert told(follower) == ["a", "b", "c", "d", "e"]


def test_what_was_read_ahead_and_not_given_out_is_told_after_a_restart(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue_many(db, ["a", "b", "c"])
    for value in "abc":
        with subscriptions.follow(db, "audit") as follower:
            assert next(follower).value == value
    queue.enqueue_many(db, ["d", "e"])
    for value in "fg":
        queue.enqueue(db, value)
    for value in "defg":
        with subscriptions.follow(db, "audit") as follower:
            assert next(follower).value == value
    with subscriptions.follow(db, "audit") as follower:
        assert told(follower) == []


def test_after_a_crash_nothing_is_missed(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    follower = subscriptions.follow(db, "audit")
    at_once(follower, monkeypatch)
    for value in "abc":
        queue.enqueue(db, value)
        assert next(follower).value == value  # this call stores that the caller is done with the items before
    queue.enqueue(db, "d")
    again = subscriptions.follow(db, "audit")

    assert told(again) == ["c", "d"]


def test_a_place_inside_a_large_arrival_and_inside_the_scan_is_kept(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ROWS_AT_ONCE", 7)
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue_many(db, [str(number) for number in range(30)])
    values = []
    for _ in range(20):
        with subscriptions.follow(db, "audit") as follower:
            values += [item.value for item in follower.next_many(limit=7, timeout=0)]
        if len(values) == 30:
            queue.enqueue_many(db, [str(number) for number in range(30, 60)])

    assert values == [str(number) for number in range(60)]


def test_an_item_that_was_taken_before_the_look_is_not_told(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    with subscriptions.follow(db) as follower:
        queue.enqueue_many(db, ["a", "b"])
        queue.dequeue(db)
        assert told(follower) == ["b"]


@pytest.mark.parametrize("selector", ["color = 'red'", lambda headers: headers.get("color") == "red"])
def test_a_selector_chooses_what_is_told(db: Any, space: Subspace, selector: Any) -> None:
    subscriptions = subscriptions_of(space)
    with subscriptions.follow(db, selector=selector) as follower:
        for value, color in (("sky", "blue"), ("rose", "red"), ("blood", "red")):
            subscriptions.leases.enqueue(db, value, headers={"color": color})
        assert told(follower) == ["rose", "blood"]


def test_an_item_that_does_not_decode_raises_once_and_the_next_call_goes_on(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    queue.enqueue(db, "a")
    wrong = queue.enqueue(db, "b")
    queue.enqueue(db, "c")
    db[queue.layout.item_key(wrong)] = envelope(b"\xff")
    with subscriptions.follow(db) as follower:
        assert [item.value for item in follower.next_many()] == ["a"]
        with pytest.raises(CodecError, match="does not decode"):
            follower.next_many()
        assert told(follower) == ["c"]


def test_large_items_are_told_whole(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    subscriptions.leases.queue.enqueue(db, "x" * 200_000)
    with subscriptions.follow(db) as follower:
        assert len(next(follower).value) == 200_000


def test_arrivals_are_kept_for_a_silent_browser_and_then_its_place_is_lost(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    subscriptions = subscriptions_of(space, clock)
    consumers = subscriptions.subscribe(db, "consumers")
    silent = subscriptions.follow(db, "audit", keep=3_600)
    at_once(silent, monkeypatch)
    assert told(silent) == []

    def consume(values: str) -> None:
        for value in values:
            clock.now += 120
            subscriptions.leases.enqueue(db, value)
            lease = consumers.lease(db)
            assert lease is not None
            subscriptions.leases.snooze(db, lease, delay=0)

    consume("ab")
    assert told(silent)[:2] == ["a", "b"]
    clock.now += 3_700
    consume("cd")
    for _ in range(3):  # the first of them makes the arrivals unneeded, a later one removes them
        clock.now += 61
        with subscriptions.follow(db, start="tail") as other:
            told(other)
    with pytest.raises(SubscriptionError, match=r"silent for longer than 3600 s.*Unsubscribe it"):
        silent.next_many(timeout=0)


def test_a_browser_of_a_dead_process_is_removed_by_the_next_one(db: Any, space: Subspace) -> None:
    clock = Clock()
    subscriptions = subscriptions_of(space, clock)
    subscriptions.follow(db)
    named = subscriptions.follow(db, "audit")
    assert subscriptions.count(db) == 2
    clock.now += 601
    with subscriptions.follow(db):
        assert subscriptions.count(db) == 2
    named.close()
    assert [one.name for one in subscriptions.stats(db)] == ["audit"]
    assert subscriptions.stats(db)[0].browser


def test_an_item_that_came_back_while_the_browser_was_closed_is_told_again(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    leases = subscriptions.leases
    follower = subscriptions.follow(db, "audit")
    tr = db.create_transaction()
    for value in "abc":
        leases.queue.enqueue(tr, value)
    tr.commit().wait()
    leases.queue.enqueue(db, "d")
    assert [item.value for item in follower.next_many(limit=3, timeout=0)] == ["a", "b", "c"]
    follower.close()
    leases.nack_many(db, leases.lease_many(db, limit=3))

    with subscriptions.follow(db, "audit") as follower:
        assert sorted(told(follower)) == ["a", "b", "c", "d"]


def test_the_last_browser_without_a_name_leaves_no_trace(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    layout = subscriptions.leases.layout
    with subscriptions.follow(db) as follower:
        subscriptions.leases.enqueue(db, "a")
        told(follower)
    left = [row.key for row in db.get_range(*layout.whole_range()) if not layout.counts.contains(row.key)]

    assert [key for key in left if not layout.markers.contains(key)] == [left[-1]], "only the item"
    assert subscriptions.check(db).problems == ()
    with pytest.raises(SubscriptionError, match="was closed"):
        follower.next_many(timeout=0)
    follower.close()


class Looks:
    """Counts the transactions of a database."""

    def __init__(self, db: Any) -> None:
        self._db, self.count = db, 0

    def create_transaction(self) -> Any:
        self.count += 1
        return self._db.create_transaction()


def test_it_waits_by_watches_and_not_by_polling(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    looks: Any = Looks(db)
    follower = subscriptions.follow(looks)
    before = looks.count
    with ThreadPoolExecutor(1) as threads:
        for value in "abc":
            waiting = threads.submit(follower.next_many, timeout=60)
            assert not waiting.done()
            queue.enqueue(db, value)
            assert [item.value for item in waiting.result()] == [value]
    # Of each call: one look that finds nothing, one per wake-up.
    assert looks.count - before <= 9
    follower.close()


def test_an_item_that_is_given_back_wakes_it(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()

    def waiting_now(*arguments: Any) -> Any:
        waits.set()
        return until_changed(*arguments)

    monkeypatch.setattr(following, "QUIET_SECONDS", 3_600.0)
    monkeypatch.setattr(following, "until_changed", waiting_now)
    subscriptions = subscriptions_of(space)
    subscriptions.leases.enqueue(db, "a")
    lease = subscriptions.leases.lease(db)
    assert lease is not None
    with subscriptions.follow(db) as follower, ThreadPoolExecutor(1) as threads:
        assert told(follower) == []
        waiting = threads.submit(follower.next_many, timeout=20)
        assert waits.wait(20)
        subscriptions.leases.nack(db, lease)
        assert [item.value for item in waiting.result(600)] == ["a"]


def test_an_event_loop_is_not_blocked_and_a_cancelled_wait_loses_nothing(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue

    async def main() -> list[str]:
        values = []
        async with await subscriptions.follow.aio(db, "audit") as follower:
            waiting = asyncio.create_task(follower.next_many.aio(timeout=60))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await follower.next_many.aio(timeout=0.01) == []
            enqueued = asyncio.create_task(queue.enqueue_many.aio(db, ["a", "b", "c"]))
            async for item in follower:
                values.append(item.value)
                if len(values) == 3:
                    break
            await enqueued
        return values

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_a_blocking_wait_in_a_running_loop_names_the_other_form(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)

    async def main() -> None:
        told = pytest.warns(RuntimeWarning, match=r"Follower\.next_many blocks the event loop")
        with subscriptions.follow(db) as follower, told:
            follower.next_many(timeout=0.01)

    asyncio.run(main())


def test_two_browsers_and_consumers_do_not_disturb_each_other(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    queue = subscriptions.leases.queue
    first, second = subscriptions.follow(db), subscriptions.follow(db, "second")
    tr = db.create_transaction()
    queue.enqueue(tr, "a")
    assert told(first) == told(second) == []
    tr.commit().wait()
    taking = db.create_transaction()
    item = queue.dequeue(taking)
    assert item is not None
    assert told(first) == told(second) == ["a"]
    taking.commit().wait()


def test_a_browser_whose_name_is_removed_wakes_and_raises(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    follower = subscriptions.follow(db, "audit")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(follower.next_many, timeout=60)
        subscriptions.unsubscribe(db, "audit")
        with pytest.raises(SubscriptionError, match="was unsubscribed"):
            waiting.result()
    follower.close()


def test_a_name_is_a_browser_or_a_subscription(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    subscriptions.subscribe(db, "red")
    follower = subscriptions.follow(db, "audit")
    with pytest.raises(SubscriptionError, match=r"'red' of .* is a subscription. Give another name"):
        subscriptions.follow(db, "red")
    with pytest.raises(SubscriptionError, match=r"'audit' of .* is a browser. Give another name"):
        subscriptions.subscribe(db, "audit")
    with pytest.raises(SubscriptionError, match="is a browser, which takes nothing"):
        subscriptions.open("audit").lease(db)
    with pytest.raises(SubscriptionError, match="can't be exclusive"):
        subscriptions.subscribe(db, "sole", exclusive=True)
    follower.close()


def test_an_exclusive_subscription_with_an_owner_keeps_browsers_out(db: Any, space: Subspace) -> None:
    subscriptions = subscriptions_of(space)
    subscriptions.subscribe(db, "sole", exclusive=True)
    with pytest.raises(SubscriptionError, match="is exclusive"):
        subscriptions.follow(db)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"name": 3}, TypeError, "named by a str"),
        ({"name": ""}, ValueError, "1 to 200 bytes"),
        ({"name": b"a"}, TypeError, "named by a str"),
        ({"start": "end"}, ValueError, "'head' or 'tail'"),
        ({"start": None}, ValueError, "'head' or 'tail'"),
        ({"keep": 0}, ValueError, "keep"),
        ({"keep": "1"}, TypeError, "keep"),
        ({"keep": float("nan")}, ValueError, "keep"),
        ({"selector": 3}, TypeError, "A selector is a condition"),
        ({"selector": "color ="}, fdbqueue.SelectorError, "ends too early"),
    ],
)
def test_wrong_arguments_are_refused_before_any_key_is_touched(
    db: Any, space: Subspace, arguments: Any, error: Any, match: str
) -> None:
    subscriptions = subscriptions_of(space)
    with pytest.raises(error, match=match):
        subscriptions.follow(db, **arguments)
    assert not list(db.get_range(*subscriptions.leases.layout.whole_range()))


@pytest.mark.parametrize("limit", [0, -1, None, "3", True])
def test_a_wrong_limit_is_refused(db: Any, space: Subspace, limit: Any) -> None:
    with subscriptions_of(space).follow(db) as follower, pytest.raises((TypeError, ValueError), match="limit"):
        follower.next_many(limit=limit, timeout=0)


def test_an_item_whose_handling_failed_is_told_again_under_the_name(db: Any, space: Subspace) -> None:
    queue = Queue(space["handled"], codec="str")
    queue.enqueue_many(db, ["a", "b", "c"])
    source = Subscriptions(queue)

    def fail_at_b() -> None:
        with source.follow(db, "audit", start="head") as follower:
            for item in follower:
                if item.value == "b":
                    raise OSError(item.value)

    with pytest.raises(OSError, match="b"):
        fail_at_b()
    with source.follow(db, "audit") as follower:
        assert [item.value for item in follower.next_many(timeout=0)] == ["b", "c"]
    with source.follow(db, "audit") as follower:
        assert follower.next_many(timeout=0) == []


def test_a_named_browser_that_waited_long_and_is_interrupted_goes_on(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "STORE_SECONDS", 0.0)
    monkeypatch.setattr(following, "QUIET_SECONDS", 0.02)
    clock = Clock()
    subscriptions = subscriptions_of(space, clock)
    queue = subscriptions.leases.queue
    follower = subscriptions.follow(db, "me", selector="colour = 'red'")
    places: list[bytes] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(follower.next_many, timeout=20)
        for _ in range(3):  # each wakes it; then it looks, stores its place, and removes what all have seen
            clock.now += 60
            places.append(bytes(db[follower.key]))
            queue.enqueue(db, "blue")
            wait_until(lambda: bytes(db[follower.key]) not in places)
        leases = subscriptions.leases
        leases.enqueue(db, "b", headers={"colour": "red"})
        assert [item.value for item in waiting.result(20)] == ["b"]
    follower.close(handled=False)
    with subscriptions.follow(db, "me", selector="colour = 'red'") as follower:
        assert told(follower) == ["b"]
