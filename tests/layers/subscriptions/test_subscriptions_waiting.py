"""Subscriptions that wait: who is woken, by what, and in whose way nobody stands."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, cast

import pytest

import fdbqueue
from fdbqueue import CodecError, Queue, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.requests import wished
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions._awaiting import Awaiting
from fdbqueue.layers.subscriptions.waiters import Waiters
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.consuming import until
from tests.helpers.faults import FaultyDatabase
from tests.helpers.subscribing import around_takes, of_color, stand_in_line, started, until_waiting, waiting


@pytest.fixture
def subscriptions(space: Subspace) -> Subscriptions:
    return Subscriptions(Queue(space, codec="str"))


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


def test_a_waiting_call_ends_at_its_timeout_and_is_removed(db: Any, subscriptions: Subscriptions) -> None:
    red = of_color(subscriptions, db, "red")
    subscriptions.leases.enqueue(db, "blue", headers={"color": "blue"})
    assert red.lease(db, timeout=0.05) is None
    assert waiting(subscriptions, db) == []


@pytest.mark.slow
def test_one_enqueue_wakes_the_first_waiter_and_one_that_wants_it(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        served = [subscriptions.subscribe(db, f"{n}", selector=f"n = {n}") for n in range(8)]
        twice = [one for one in served for _ in range(2)]
        looks: Counter[str] = Counter()
        for one in twice:

            def counting(take: Any, *terms: Any, name: str = one.name) -> Any:
                looks[name] += 1
                return take(*terms)

            around_takes(one, counting)
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


def test_a_renewed_registration_does_not_make_later_waiters_look(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        everything, leases = subscriptions.subscribe(db, "all"), subscriptions.leases
        line = Waiters(leases.layout)
        looks = 0

        def counting(take: Any, *terms: Any) -> Any:
            nonlocal looks
            looks += 1
            return take(*terms)

        around_takes(everything, counting)
        stand_in_line(subscriptions, db, b"in front", "all")
        [task] = await started(subscriptions, db, everything)
        quiet = 0
        while quiet != looks:
            quiet = looks
            await asyncio.sleep(0.3)
        [front, _] = run(line.first(db.create_transaction(), limit=0))
        tr = db.create_transaction()
        line.put(tr, front.key, wished(tr, b"in front", 1, now_us=leases.now_us() + 1_000_000, consumer="all"))
        tr.commit().wait()
        await asyncio.sleep(0.3)
        assert looks == quiet
        leases.enqueue(db, "x")
        tr = db.create_transaction()
        line.remove(tr, front.key)  # it goes without looking at what arrived
        tr.commit().wait()
        assert (await task).value == "x"

    asyncio.run(session())


def test_a_waiter_takes_the_place_of_a_dead_one_ahead(db: Any, space: Subspace) -> None:
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


def test_a_dead_waiter_is_removed_without_any_enqueue(db: Any, space: Subspace) -> None:
    async def session() -> None:
        now = time.time()
        subscriptions = Subscriptions(Leases(Queue(space, codec="str"), clock=lambda: now))
        everything = subscriptions.subscribe(db, "all")
        stand_in_line(subscriptions, db, b"dies", "all")
        now += 29.9
        [task] = await started(subscriptions, db, everything)
        now += 1
        await until_waiting(subscriptions, db, 1)
        subscriptions.leases.enqueue(db, "x")
        assert (await task).value == "x"

    asyncio.run(session())


def test_a_long_waiting_call_renews_its_registration(db: Any, space: Subspace) -> None:
    async def session() -> None:
        now = time.time()
        subscriptions = Subscriptions(Leases(Queue(space, codec="str"), clock=lambda: now))
        line = Waiters(subscriptions.leases.layout)

        def expires_at_us() -> int:
            [own] = run(line.first(db.create_transaction(), limit=0))
            return own.wish.expires_at_us

        [task] = await started(subscriptions, db, of_color(subscriptions, db, "red"))
        before = expires_at_us()
        now += 20
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})  # which wakes it, and is not for it
        await until(lambda: expires_at_us() >= before + 20_000_000)
        subscriptions.leases.enqueue(db, "r", headers={"color": "red"})
        assert (await task).value == "r"

    asyncio.run(session())


@pytest.mark.parametrize("fault", ["item", "selector"])
def test_a_failing_waiter_deregisters_and_blocks_no_other(db: Any, subscriptions: Subscriptions, fault: str) -> None:
    queue = subscriptions.leases.queue
    as_json = Subscriptions(Queue(queue.layout.space, codec="json"))

    def refuse(headers: Any) -> bool:
        raise KeyError("color")

    async def session() -> None:
        bad = as_json.subscribe(db, "bad", selector="color = 'red'" if fault == "item" else refuse)
        failing, good = await started(subscriptions, db, bad, of_color(subscriptions, db, "blue"))
        await queue.enqueue.aio(db, "no JSON", headers={"color": "red"})
        with pytest.raises((CodecError, KeyError)):
            await asyncio.wait_for(failing, 120)
        assert waiting(subscriptions, db) == ["blue"]
        await queue.enqueue.aio(db, "b", headers={"color": "blue"})
        assert (await asyncio.wait_for(good, 120)).value == "b"

    asyncio.run(session())


def test_a_delivery_that_its_consumer_can_not_read_goes_back_at_once(db: Any, subscriptions: Subscriptions) -> None:
    as_json = Subscriptions(Queue(subscriptions.leases.queue.layout.space, codec="json"))

    async def session() -> None:
        [failing] = await started(subscriptions, db, as_json.subscribe(db, "all"))
        delivery = await subscriptions.enqueue.aio(db, "no JSON")
        assert delivery is not None
        assert delivery.subscription == "all"
        with pytest.raises(CodecError):
            await asyncio.wait_for(failing, 120)

    asyncio.run(session())
    assert waiting(subscriptions, db) == []
    assert subscriptions.leases.stats(db).available == 1
    assert subscriptions.check(db).problems == ()


@pytest.mark.parametrize("who", ["subscription", "staged"])
@pytest.mark.parametrize("what", ["newer", "none"])
def test_a_waiting_call_does_not_spin_on_a_due_timer_that_can_not_fire(
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


def test_a_waiting_call_without_a_watch_polls_after_a_pause(space: Subspace) -> None:
    with fdbqueue.open("memory:") as own:
        own.options.set_max_watches(1)
        counting = FaultyDatabase(own, lambda: None)
        red = Subscriptions(Queue(space, codec="str")).subscribe(own, "red", selector="color = 'red'")
        assert red.lease(counting, timeout=0.3) is None
        assert StagedQueue(Queue(space["staged"])).dequeue(counting, timeout=0.3) is None
        assert counting.commits < 12


def test_the_end_of_a_subscription_wakes_its_waiters_with_an_error(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        red, blue = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue")
        tasks = await started(subscriptions, db, red, blue, red)
        subscriptions.unsubscribe(db, "red")
        assert waiting(subscriptions, db) == ["blue"]
        for task in (tasks[0], tasks[2]):
            with pytest.raises(SubscriptionError, match="removed"):
                await task
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})
        assert (await tasks[1]).value == "b"

    asyncio.run(session())


def test_a_waiting_call_follows_a_new_selector(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        [task] = await started(subscriptions, db, of_color(subscriptions, db, "red"))
        subscriptions.leases.enqueue(db, "b", headers={"color": "blue"})
        subscriptions.subscribe(db, "red", selector="color = 'blue'")
        assert waiting(subscriptions, db) == []
        assert (await task).value == "b"

    asyncio.run(session())


def test_a_resumed_subscription_gives_its_waiters_the_missed_items(db: Any, subscriptions: Subscriptions) -> None:
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
def test_starting_to_wait_conflicts_with_the_end_of_its_subscription_only(
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


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("grant", [{"items": 1}, {"items": None, "size_bytes": 3}])
def test_a_waiting_call_gets_an_item_when_credit_returns(
    db: Any, subscriptions: Subscriptions, exclusive: bool, grant: dict[str, Any]
) -> None:
    async def session() -> None:
        everything = subscriptions.subscribe(db, "all", exclusive=exclusive)
        everything.grant(db, **grant)
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


def test_a_call_behind_one_that_was_woken_and_died_gets_the_item_soon(
    db: Any, subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.layers.staged.requests.REQUEST_SECONDS", 3_000.0)
    monkeypatch.setattr("fdbqueue.layers.staged.requests.UNSEEN_SECONDS", 3_000.0)  # on a cluster, too
    monkeypatch.setitem(cast(Any, Awaiting.__init__).__kwdefaults__, "every", 3_000.0)  # nobody looks by the clock

    async def session() -> None:
        red, everything = of_color(subscriptions, db, "red"), subscriptions.subscribe(db, "all")
        first = asyncio.ensure_future(red.lease.aio(db, timeout=None))  # it looks for all
        await until_waiting(subscriptions, db, 1)
        stand_in_line(subscriptions, db, b"dead", "all")
        [task] = await started(subscriptions, db, everything)
        await subscriptions.leases.enqueue.aio(db, "x")
        lease = await task
        assert (lease.value, lease.attempt) == ("x", 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    asyncio.run(session())
    assert subscriptions.check(db).problems == ()


def test_idle_calls_of_one_process_do_not_look_at_each_other_again_and_again(
    db: Any, subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    serve = Awaiting.serve

    async def watched(self: Awaiting, leader: Any) -> Any:
        alarm = await serve(self, leader)
        if alarm is not None and alarm[1] is not None:
            rests.append(alarm[1])
        return alarm

    monkeypatch.setattr(Awaiting, "serve", watched)

    async def session() -> None:
        each = [subscriptions.subscribe(db, "all") for _ in range(3)]  # so that each has a request
        tasks = await started(subscriptions, db, *each)
        await until(lambda: len(rests) >= 3)
        for task in tasks:
            task.cancel()

    asyncio.run(session())
    assert rests
    assert min(rests) > 1.0
