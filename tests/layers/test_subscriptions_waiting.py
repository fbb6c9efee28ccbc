"""Subscriptions that wait, and enqueues that deliver to them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layout import pack
from layers.awaiting import Awaiting
from layers.leases import Leases
from layers.pointing import Habit
from layers.staged import StagedQueue
from layers.subscription import Subscription
from layers.subscriptions import Subscriptions
from layers.waitingline import WaitingLine
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import FaultyDatabase
from tests.helpers.subscribing import stand_in_line, standing


@pytest.fixture
def subscriptions(space: Subspace) -> Subscriptions:
    return Subscriptions(Queue(space, codec="str"))


def of_color(subscriptions: Subscriptions, db: Any, color: str) -> Subscription:
    return subscriptions.subscribe(db, color, selector=f"color = '{color}'")


def waiting(subscriptions: Subscriptions, db: Any) -> list[str]:
    return [name for name, _ in standing(subscriptions, db)]


async def until_waiting(subscriptions: Subscriptions, db: Any, amount: int) -> None:
    """Let the others go on until so many stand in the line."""
    deadline = time.monotonic() + 100
    while len(waiting(subscriptions, db)) != amount:
        assert time.monotonic() < deadline, waiting(subscriptions, db)
        await asyncio.sleep(0.001)


async def started(subscriptions: Subscriptions, db: Any, *served: Subscription, **terms: Any) -> list[Any]:
    """Let each subscription wait for an item, in this order."""
    tasks = []
    before = len(waiting(subscriptions, db))
    for number, subscription in enumerate(served, 1):
        tasks.append(asyncio.create_task(subscription.lease.aio(db, timeout=100, **terms)))
        await until_waiting(subscriptions, db, before + number)
    return tasks


def test_a_call_that_waits_gets_what_a_plain_producer_enqueues(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        red, blue = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue")
        blues, reds = await started(subscriptions, db, blue, red)
        await subscriptions.leases.queue.enqueue.aio(db, "r", headers={"color": "red"})
        assert (await reds).value == "r"
        assert not blues.done()
        await subscriptions.leases.queue.enqueue_many.aio(db, ["nobody's"])
        await subscriptions.leases.enqueue.aio(db, "b", headers={"color": "blue"})
        assert (await blues).value == "b"

    asyncio.run(session())
    assert waiting(subscriptions, db) == []
    assert subscriptions.check(db).problems == ()


def test_a_call_that_waits_gets_what_is_given_back_and_what_falls_due(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        everything, leases = subscriptions.subscribe(db, "all"), subscriptions.leases
        leases.enqueue(db, "x")
        lease = everything.lease(db)
        assert lease is not None
        [task] = await started(subscriptions, db, everything, duration=0.2)
        leases.nack(db, lease)
        assert (await task).attempt == 2
        [task] = await started(subscriptions, db, everything)
        assert (await task).attempt == 3  # when the lease of 0.2 seconds had ended

    asyncio.run(session())


def test_a_call_that_waits_ends_when_its_time_is_over_and_leaves_the_line(
    db: Any, subscriptions: Subscriptions
) -> None:
    red = of_color(subscriptions, db, "red")
    subscriptions.leases.enqueue(db, "blue", headers={"color": "blue"})
    assert red.lease(db, timeout=0.05) is None
    assert waiting(subscriptions, db) == []
    with pytest.raises(ValueError, match="timeout"):
        red.lease(db, timeout=-1)
    with pytest.raises(ValueError, match="give a database"):
        red.lease(db.create_transaction(), timeout=1)


def test_a_call_that_is_cancelled_leaves_the_line_and_keeps_nothing(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        red = of_color(subscriptions, db, "red")
        [task] = await started(subscriptions, db, red)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_waiting(subscriptions, db, 0)

    asyncio.run(session())
    assert subscriptions.enqueue(db, "x", headers={"color": "red"}, immediate=True) is None


def test_one_enqueue_wakes_the_first_in_line_and_one_who_wants_it_and_not_all(
    db: Any, subscriptions: Subscriptions
) -> None:
    async def session() -> None:
        served = [subscriptions.subscribe(db, f"{n}", selector=f"n = {n}") for n in range(8)]
        twice = [one for one in served for _ in range(2)]
        looks: Counter[str] = Counter()
        for one in twice:
            take = one._take

            def counting(tr: Any, terms: Any, take: Any = take, name: str = one.name) -> Any:
                looks[name] += 1
                return take(tr, terms)

            one._take = counting  # type: ignore[method-assign]
        tasks = [asyncio.create_task(one.lease.aio(db, timeout=None)) for one in twice]
        await until_waiting(subscriptions, db, len(tasks))
        quiet = 0
        while quiet != looks.total():  # they look once more when they stand in the line
            quiet = looks.total()
            await asyncio.sleep(0.5)
        looks.clear()
        await subscriptions.leases.queue.enqueue.aio(db, "x", headers={"n": 7})
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        taken = [task.result() for task in done]
        assert [lease.value for lease in taken if lease is not None] == ["x"]
        assert len(looks) <= 3, looks  # and whoever stood behind the one who left the line
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    asyncio.run(session())


def test_who_stands_behind_does_not_look_for_items_when_the_one_in_front_renews_its_stand(
    db: Any, subscriptions: Subscriptions
) -> None:
    async def session() -> None:
        everything, leases = subscriptions.subscribe(db, "all"), subscriptions.leases
        line = WaitingLine(leases.layout)
        looks = 0
        take = everything._take

        def counting(tr: Any, terms: Any) -> Any:
            nonlocal looks
            looks += 1
            return take(tr, terms)

        everything._take = counting  # type: ignore[method-assign]
        stand_in_line(subscriptions, db, b"in front", "all")
        [task] = await started(subscriptions, db, everything)
        quiet = 0
        while quiet != looks:
            quiet = looks
            await asyncio.sleep(0.3)
        [front, _] = run(line.first(db.create_transaction(), limit=0))
        tr = db.create_transaction()
        line.put(tr, front.key, line.wish(b"in front", "all", leases.now_us() + 1_000_000))
        tr.commit().wait()
        await asyncio.sleep(0.3)
        assert looks == quiet
        leases.enqueue(db, "x")
        tr = db.create_transaction()
        line.remove(tr, front.key)  # it goes without looking at what arrived
        tr.commit().wait()
        assert (await task).value == "x"

    asyncio.run(session())


def test_who_stands_behind_one_who_died_waiting_takes_its_place(db: Any, space: Subspace) -> None:
    async def session() -> None:
        now = time.time()
        leases = Leases(Queue(space, codec="str"), clock=lambda: now)
        subscriptions = Subscriptions(leases)
        everything = subscriptions.subscribe(db, "all")
        stand_in_line(subscriptions, db, b"dies", "all")
        now += 29.9
        [task] = await started(subscriptions, db, everything)
        leases.enqueue(db, "x")
        now += 1
        assert (await task).value == "x"

    asyncio.run(session())


@pytest.mark.parametrize("fault", ["item", "selector"])
def test_a_call_that_fails_while_it_waits_leaves_the_line_and_is_in_nobodys_way(
    db: Any, subscriptions: Subscriptions, fault: str
) -> None:
    queue = subscriptions.leases.queue
    as_json = Subscriptions(Queue(queue.layout.space, codec="json"))

    def refuse(headers: Any) -> bool:
        raise KeyError("color")

    async def session() -> None:
        bad = as_json.subscribe(db, "bad", selector="color = 'red'" if fault == "item" else refuse)
        failing, good = await started(subscriptions, db, bad, of_color(subscriptions, db, "blue"))
        await queue.enqueue.aio(db, "no JSON", headers={"color": "red"})
        with pytest.raises((CodecError, KeyError)):
            await asyncio.wait_for(failing, 10)
        assert waiting(subscriptions, db) == ["blue"]
        await queue.enqueue.aio(db, "b", headers={"color": "blue"})
        assert (await asyncio.wait_for(good, 10)).value == "b"

    asyncio.run(session())


def test_a_delivery_that_its_consumer_can_not_read_goes_back_at_once(db: Any, subscriptions: Subscriptions) -> None:
    as_json = Subscriptions(Queue(subscriptions.leases.queue.layout.space, codec="json"))

    async def session() -> None:
        [failing] = await started(subscriptions, db, as_json.subscribe(db, "all"))
        delivery = await subscriptions.enqueue.aio(db, "no JSON")
        assert delivery is not None
        assert delivery.subscription == "all"
        with pytest.raises(CodecError):
            await asyncio.wait_for(failing, 10)

    asyncio.run(session())
    assert waiting(subscriptions, db) == []
    assert subscriptions.leases.stats(db).available == 1
    assert subscriptions.check(db).problems == ()


@pytest.mark.parametrize("who", ["subscription", "staged"])
@pytest.mark.parametrize("what", ["newer", "none"])
def test_who_waits_rests_beside_a_timer_that_is_due_and_that_nobody_here_can_settle(
    db: Any, space: Subspace, clock: Clock, who: str, what: str
) -> None:
    leases = Leases(Queue(space), clock=clock)
    leases.enqueue(db, b"x")
    lease = leases.lease(db, duration=1)
    assert lease is not None
    if what == "newer":
        db[leases.layout.leased.key(pack(lease.position))] = b"\x20newer"
    else:
        leases.ack(db, lease)
        db[leases.layout.timers.key() + b"\x15\x01none"] = b""
    clock.now += 5
    red = Subscriptions(leases).subscribe(db, "red", selector="color = 'red'")
    counting = FaultyDatabase(db, lambda: None)
    if who == "subscription":
        assert red.lease(counting, timeout=0.3) is None
    else:
        assert StagedQueue(leases).dequeue(counting, timeout=0.3) is None
    assert counting.commits < 12


def test_who_waits_where_no_more_watches_can_be_set_looks_again_after_a_while_and_not_at_once(space: Subspace) -> None:
    with fdbqueue.open("memory:") as own:
        own.options.set_max_watches(1)
        counting = FaultyDatabase(own, lambda: None)
        red = Subscriptions(Queue(space, codec="str")).subscribe(own, "red", selector="color = 'red'")
        assert red.lease(counting, timeout=0.3) is None
        assert StagedQueue(Queue(space["staged"])).dequeue(counting, timeout=0.3) is None
        assert counting.commits < 12


def test_who_waits_for_a_subscription_that_ends_is_woken_and_told(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        red, blue = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue")
        tasks = await started(subscriptions, db, red, blue, red)
        subscriptions.unsubscribe(db, "red")
        assert waiting(subscriptions, db) == ["blue"]
        for task in (tasks[0], tasks[2]):
            with pytest.raises(SubscriptionError, match="unsubscribed"):
                await task
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})
        assert (await tasks[1]).value == "b"

    asyncio.run(session())


def test_who_waits_for_a_subscription_with_a_new_selector_gets_what_it_wants_now(
    db: Any, subscriptions: Subscriptions
) -> None:
    async def session() -> None:
        [task] = await started(subscriptions, db, of_color(subscriptions, db, "red"))
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})
        subscriptions.subscribe(db, "red", selector="color = 'blue'")
        assert waiting(subscriptions, db) == []
        assert (await task).value == "b"

    asyncio.run(session())


def test_who_waits_for_a_subscription_that_is_suspended_gets_what_came_meanwhile_when_it_is_resumed(
    db: Any, subscriptions: Subscriptions
) -> None:
    async def session() -> None:
        red = of_color(subscriptions, db, "red")
        # The first in line passes by what nobody in it may have now.
        tasks = await started(subscriptions, db, of_color(subscriptions, db, "blue"), red)
        red.suspend(db)
        assert waiting(subscriptions, db) == ["blue"]
        subscriptions.leases.enqueue(db, "r", headers={"color": "red"})
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})
        assert (await tasks[0]).value == "b"
        red.resume(db)
        assert (await tasks[1]).value == "r"

    asyncio.run(session())


@pytest.mark.parametrize("name", ["red", "blue"])
@pytest.mark.parametrize("end", ["unsubscribed", "suspended", "with a new selector"])
def test_who_comes_to_wait_when_its_subscription_ends_conflicts_with_that_and_others_do_not(
    db: Any, subscriptions: Subscriptions, end: str, name: str
) -> None:
    red = of_color(subscriptions, db, "red")
    ending = db.create_transaction()
    if end == "unsubscribed":
        subscriptions.unsubscribe(ending, "red")
    elif end == "suspended":
        red.suspend(ending)
    else:
        subscriptions.subscribe(ending, "red", selector="color = 'pink'")
    stand_in_line(subscriptions, db, b"client", name)
    assert conflicts(ending) == (name == "red")


def test_who_waits_without_credit_gets_an_item_when_some_comes_back(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        everything = subscriptions.subscribe(db, "all")
        everything.grant(db, items=1)
        subscriptions.leases.enqueue_many(db, ["0", "1"])
        lease = everything.lease(db)
        assert lease is not None
        task = asyncio.create_task(everything.lease.aio(db, timeout=100))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        assert waiting(subscriptions, db) == []
        await everything.ack.aio(db, lease)
        again = await task
        assert again is not None
        assert again.value == "1"

    asyncio.run(session())


def test_an_enqueue_delivers_to_one_who_waits_and_begins_behind_the_one_served_last(
    db: Any, subscriptions: Subscriptions
) -> None:
    async def session() -> None:
        served = [subscriptions.subscribe(db, name) for name in ("a", "b", "c")]
        counts: Counter[str] = Counter()
        for _ in range(2):
            tasks = await started(subscriptions, db, *served, *served)
            for n in [0, 1, 2, 0, 1, 2]:
                delivery = await subscriptions.enqueue.aio(db, f"{n}")
                assert delivery is not None
                assert delivery.subscription == "abc"[n]
                counts[delivery.subscription] += 1
            taken = await asyncio.gather(*tasks)
            assert [lease.value for lease in taken] == ["0", "1", "2", "0", "1", "2"]
            subscriptions.leases.ack_many(db, taken)
        assert set(counts.values()) == {4}

    asyncio.run(session())
    assert subscriptions.leases.stats(db).leased == 0
    assert subscriptions.check(db).problems == ()


def test_an_enqueue_passes_by_who_does_not_want_it_or_has_no_credit(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        red, blue, small = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue"), None
        small = subscriptions.subscribe(db, "small")
        tasks = await started(subscriptions, db, blue, red, small)
        small.grant(db, items=None, size_bytes=2)
        delivery = await subscriptions.enqueue.aio(db, "larger", headers={"color": "green"})
        assert delivery is not None
        assert delivery.subscription is None
        assert await subscriptions.enqueue.aio(db, "larger", headers={"color": "green"}, immediate=True) is None
        delivery = await subscriptions.enqueue.aio(db, "x", headers={"color": "red"}, immediate=True)
        assert delivery is not None
        assert delivery.subscription == "red"
        assert (await tasks[1]).value == "x"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(session())
    assert [item.value for item in subscriptions.leases.queue.browse(db)] == ["larger"]


def dispatched(subscriptions: Subscriptions, db: Any) -> Any:
    """Look at what arrived for all in the line; return the transaction."""
    tr = db.create_transaction()
    run(WaitingLine(subscriptions.leases.layout).dispatch(tr, subscriptions.leases.now_us(), Habit()))
    return tr


def dispatch(subscriptions: Subscriptions, db: Any) -> None:
    tr = dispatched(subscriptions, db)
    tr.commit().wait()


@pytest.mark.parametrize("grant", [{"items": 1}, {"items": None, "size_bytes": 3}])
def test_who_has_no_credit_for_an_item_does_not_keep_it_from_those_behind(
    db: Any, subscriptions: Subscriptions, grant: dict[str, Any]
) -> None:
    of_color(subscriptions, db, "blue")
    few = subscriptions.subscribe(db, "few")
    few.grant(db, **grant)
    subscriptions.subscribe(db, "all")
    for client, name in (b"b", "blue"), (b"1", "few"), (b"2", "few"), (b"a", "all"):
        stand_in_line(subscriptions, db, client, name)
    subscriptions.leases.enqueue_many(db, ["x", "y"])
    dispatch(subscriptions, db)
    # One has the first item. The other one has to know when credit comes back, and the line does not tell.
    assert waiting(subscriptions, db) == ["blue"]


def test_of_a_dispatch_and_a_lease_on_the_last_credit_at_once_one_conflicts(
    db: Any, subscriptions: Subscriptions
) -> None:
    few = subscriptions.subscribe(db, "few")
    few.grant(db, items=1)
    stand_in_line(subscriptions, db, b"1", "few")
    subscriptions.leases.enqueue_many(db, ["x", "y"])
    tr = dispatched(subscriptions, db)
    assert few.lease(db) is not None
    assert conflicts(tr)


def test_one_whose_selector_is_a_function_does_not_keep_an_item_from_those_behind(
    db: Any, subscriptions: Subscriptions
) -> None:
    subscriptions.subscribe(db, "by function", selector=lambda headers: "color" in headers)
    of_color(subscriptions, db, "red")
    for client, name in (b"1", "by function"), (b"2", "by function"), (b"r", "red"):
        stand_in_line(subscriptions, db, client, name)
    subscriptions.leases.enqueue(db, "x", headers={"color": "red"})
    dispatch(subscriptions, db)
    assert standing(subscriptions, db) == [("by function", b"2")], "one of them is enough to tell"


def test_who_leaves_at_the_moment_that_it_is_woken_leaves_the_item_to_those_behind(
    db: Any, subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = subscriptions.subscribe(db, "one")
    subscriptions.subscribe(db, "all")

    def time_is_over(call: Awaiting) -> float:
        if waiting(subscriptions, db) != ["one"]:
            return 1.0
        stand_in_line(subscriptions, db, b"behind", "all")
        subscriptions.leases.enqueue(db, "x")
        dispatch(subscriptions, db)
        assert waiting(subscriptions, db) == ["all"]
        return 0.0

    monkeypatch.setattr(Awaiting, "_seconds_left", time_is_over)
    assert one.lease(db, timeout=1) is None
    dispatch(subscriptions, db)
    assert waiting(subscriptions, db) == []


def test_a_delivery_that_nobody_collects_stands_in_its_place_again(db: Any, space: Subspace) -> None:
    now = 1_000_000.0
    leases = Leases(Queue(space, codec="str"), clock=lambda: now)
    subscriptions = Subscriptions(leases)
    everything = subscriptions.subscribe(db, "all")
    line = WaitingLine(leases.layout)
    tr = db.create_transaction()
    line.register(tr, line.wish(b"dead", "all", leases.now_us()))
    tr.commit().wait()
    everything.grant(db, items=1)
    delivery = subscriptions.enqueue(db, "pushed", immediate=True)
    assert delivery is not None
    assert everything.credit(db).items == 0
    leases.enqueue(db, "behind")
    assert everything.lease(db) is None
    now += 11
    lease = everything.lease(db)
    assert lease is not None
    assert (lease.value, lease.position, lease.attempt) == ("pushed", delivery.position, 2)


def test_large_items_are_delivered_too(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        everything = subscriptions.subscribe(db, "all")
        [task] = await started(subscriptions, db, everything)
        await subscriptions.enqueue.aio(db, "x" * 200_000, immediate=True)
        lease = await task
        assert lease.value == "x" * 200_000
        subscriptions.leases.ack(db, lease)

    asyncio.run(session())
    assert subscriptions.check(db).problems == ()


def test_of_two_immediate_items_for_one_who_waits_one_is_delivered(db: Any, subscriptions: Subscriptions) -> None:
    subscriptions.subscribe(db, "all")
    stand_in_line(subscriptions, db, b"client", "all")
    first, second = db.create_transaction(), db.create_transaction()
    assert subscriptions.enqueue(first, "1", immediate=True) is not None
    assert subscriptions.enqueue(second, "2", immediate=True) is not None
    assert not conflicts(first)
    assert conflicts(second)
    assert subscriptions.enqueue(db, "2", immediate=True) is None
    stats = subscriptions.leases.stats(db)
    assert (stats.enqueued, stats.leased, stats.available) == (1, 1, 0)


def test_an_immediate_item_that_is_not_delivered_was_never_there(db: Any, subscriptions: Subscriptions) -> None:
    # Qpid: between the look at the flag and the removal another could acquire the entry, and then lose it.
    everything = subscriptions.subscribe(db, "all")
    pushing, taking = db.create_transaction(), db.create_transaction()
    assert subscriptions.enqueue(pushing, "x", immediate=True) is None
    assert everything.lease(taking) is None
    assert not conflicts(pushing)
    assert not conflicts(taking)
    assert subscriptions.leases.stats(db).enqueued == 0


def test_an_immediate_item_conflicts_with_its_consumer_that_leaves_the_line(
    db: Any, subscriptions: Subscriptions
) -> None:
    subscriptions.subscribe(db, "all")
    stand_in_line(subscriptions, db, b"client", "all")
    line = WaitingLine(subscriptions.leases.layout)
    pushing, leaving = db.create_transaction(), db.create_transaction()
    assert subscriptions.enqueue(pushing, "x", immediate=True) is not None
    [request] = run(line.first(leaving, limit=0))
    line.remove(leaving, request.key)
    assert not conflicts(leaving)
    assert conflicts(pushing)
    assert subscriptions.enqueue(db, "x", immediate=True) is None


def test_a_delivery_conflicts_with_a_lease_on_the_same_credit(db: Any, subscriptions: Subscriptions) -> None:
    everything = subscriptions.subscribe(db, "all")
    everything.grant(db, items=1)
    stand_in_line(subscriptions, db, b"client", "all")
    for order in ("lease first", "delivery first"):
        lending, pushing = db.create_transaction(), db.create_transaction()
        assert subscriptions.enqueue(pushing, "pushed", immediate=True) is not None
        subscriptions.leases.enqueue(lending, "own")
        lease = everything.lease(lending)
        assert lease is not None
        first, second = (lending, pushing) if order == "lease first" else (pushing, lending)
        assert not conflicts(first)
        assert conflicts(second)
        assert everything.credit(db).items == 0
        if order == "lease first":
            subscriptions.leases.ack(db, lease)


def test_a_delivery_conflicts_with_an_item_that_comes_to_stand_in_front(db: Any, subscriptions: Subscriptions) -> None:
    everything, leases = subscriptions.subscribe(db, "all"), subscriptions.leases
    leases.enqueue(db, "front")
    lease = everything.lease(db)
    assert lease is not None
    stand_in_line(subscriptions, db, b"client", "all")
    pushing = db.create_transaction()
    assert subscriptions.enqueue(pushing, "x", immediate=True) is not None
    leases.nack(db, lease)
    assert conflicts(pushing)
    assert subscriptions.enqueue(db, "x", immediate=True) is None, "what is in front goes first"
