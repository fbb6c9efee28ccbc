"""Calls of one process that wait for items of one subscription: they share a request, and hand it on."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.waiting import Promise
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged.requests import wished
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.consuming import until
from tests.helpers.held import HeldDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.processes import Processes, kill_9
from tests.helpers.standin import StandIn
from tests.helpers.subscribing import (
    around_takes,
    of_color,
    requests_of,
    stand_in_line,
    started,
    until_waiting,
    waiting,
)

MANY = 50
LONG: dict[str, Any] = {"duration": 600.0, "timeout": 100.0}


@pytest.fixture
def subscriptions(space: Subspace) -> Subscriptions:
    return Subscriptions(Queue(space, codec="str"))


@pytest.fixture(params=["shared", "sole"])
def everything(request: pytest.FixtureRequest, db: Any, subscriptions: Subscriptions) -> Subscription:
    return subscriptions.subscribe(db, "all", exclusive=request.param == "sole")


class CountingDatabase(StandIn):
    """Counts the transactions of a database."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.transactions = 0

    def create_transaction(self) -> Any:
        self.transactions += 1
        return self._db.create_transaction()


def let_threads_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("fdbqueue-finish"):
            thread.join()


async def many_wait(
    subscriptions: Subscriptions, db: Any, one: Subscription, number: int = MANY, *, through: Any = None
) -> list[Any]:
    """Let so many calls wait, through another handle of the database if one is given."""
    tasks = [asyncio.create_task(one.lease.aio(through or db, **LONG)) for _ in range(number)]
    await until(lambda: len(waiting(subscriptions, db)) == number)
    return tasks


async def ended(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_an_idle_time_of_many_calls_takes_the_transactions_of_one(db: Any, subscriptions: Subscriptions) -> None:
    async def idle(number: int) -> int:
        clock = Clock()
        own = Subscriptions(Leases(Queue(subscriptions.leases.layout.space[number], codec="str"), clock=clock))
        red, line = of_color(own, db, "red"), Waiters(own.leases.layout)
        counting = CountingDatabase(db)

        def expiries() -> list[int]:
            return [one.wish.expires_at_us for one in run(line.first(db.create_transaction(), limit=0))]

        tasks = await many_wait(own, db, red, number, through=counting)
        own.leases.enqueue(db, "looked at", headers={"color": "blue"})
        pointer = own.leases.layout.pointers.pack(("",))
        await until(lambda: db.get(pointer) is not None)  # the first of them has looked at it
        before = counting.transactions
        for renewals in range(1, 6):
            clock.now += 20
            due = max(expiries())
            own.leases.enqueue(db, "nobody's", headers={"color": "blue"})  # which lets the first of them look
            await until(lambda due=due: min(expiries(), default=0) > due)  # type: ignore[misc]
            assert min(expiries()) >= clock.now * 1e6, renewals
        after = counting.transactions
        await ended(tasks)
        return after - before

    of_one = asyncio.run(idle(1))
    assert asyncio.run(idle(MANY)) <= 2 * of_one


def test_calls_share_a_request_and_an_item_wakes_one_of_them(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        counting = CountingDatabase(db)
        tasks = await many_wait(subscriptions, db, everything, through=counting)
        assert requests_of(subscriptions, db) == [("all", MANY)]
        before = counting.transactions
        for number in range(5):
            await subscriptions.leases.enqueue.aio(db, f"{number}")
            lease = await tasks[number]
            assert lease.value == f"{number}", "the call that came first gets the first item"
            await until(lambda left=MANY - number - 1: requests_of(subscriptions, db) == [("all", left)])  # type: ignore[misc]
        assert counting.transactions - before <= 5 * 6
        await ended(tasks)
        await until_waiting(subscriptions, db, 0)

    asyncio.run(session())
    assert subscriptions.check(db).problems == ()


def test_a_burst_of_items_goes_to_waiting_calls_in_their_order(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        tasks = await many_wait(subscriptions, db, everything)
        await subscriptions.leases.queue.enqueue_many.aio(db, [f"{n}" for n in range(MANY - 1)])
        leases = await asyncio.gather(*tasks[:-1])
        assert [lease.value for lease in leases] == [f"{n}" for n in range(MANY - 1)]
        await until(lambda: requests_of(subscriptions, db) == [("all", 1)])
        await ended(tasks)

    asyncio.run(session())


def test_immediate_enqueues_find_a_call_as_long_as_one_waits(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        tasks = await many_wait(subscriptions, db, everything, 5)
        # The loop stands still meanwhile: no call looks.
        for number in range(5):
            assert subscriptions.enqueue(db, f"{number}", immediate=True) is not None
        assert subscriptions.enqueue(db, "one too many", immediate=True) is None
        leases = await asyncio.gather(*tasks)
        assert [(lease.value, lease.attempt) for lease in leases] == [(f"{n}", 1) for n in range(5)]

    asyncio.run(session())
    assert waiting(subscriptions, db) == []
    assert subscriptions.check(db).problems == ()
    span = subscriptions.leases.layout.grants.range()
    assert list(db[span.start : span.stop]) == [], "each has collected its grant"


def test_after_an_item_the_other_calls_still_wait_for_an_immediate_one(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        held = HeldDatabase(db)
        held.release()
        tasks = await many_wait(subscriptions, db, everything, 3, through=held)
        await until(lambda: held.commits > 0)
        held.hold()
        await subscriptions.leases.enqueue.aio(db, "a")
        await until(held.committing.is_set)
        held.release()
        assert (await tasks[0]).value == "a"
        held.hold()  # the next one may look, but can't register
        for value in ("b", "c"):
            assert await subscriptions.enqueue.aio(db, value, immediate=True) is not None
        assert await subscriptions.enqueue.aio(db, "d", immediate=True) is None
        held.release()
        assert [lease.value for lease in await asyncio.gather(*tasks[1:])] == ["b", "c"]

    asyncio.run(session())


def test_an_older_version_that_removes_the_request_with_its_delivery_wakes_the_calls(
    db: Any, subscriptions: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(self: Waiters, tr: Any, request: Any, lease: Any, *, now_us: int) -> None:
        self.fulfill(tr, request, [lease], now_us=now_us, given=1)

    async def session() -> None:
        tasks = await many_wait(subscriptions, db, subscriptions.subscribe(db, "all"), 3)
        monkeypatch.setattr(Waiters, "deliver", deliver)
        for number, task in enumerate(tasks):
            assert await subscriptions.enqueue.aio(db, f"{number}", immediate=True) is not None
            assert (await task).value == f"{number}"
            await until(lambda left=2 - number: len(waiting(subscriptions, db)) == left)  # type: ignore[misc]

    asyncio.run(session())
    assert subscriptions.check(db).problems == ()


class WatchingDatabase(StandIn):
    """Notes the keys that its transactions watch. A call that watches its own request has looked for items before."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.watched: set[bytes] = set()

    def create_transaction(self) -> Any:
        return WatchingTransaction(self._db.create_transaction(), self.watched)


class WatchingTransaction:
    def __init__(self, tr: Any, watched: set[bytes]) -> None:
        self._tr, self._watched = tr, watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def watch(self, key: bytes) -> Any:
        self._watched.add(key)
        return self._tr.watch(key)


def test_a_process_with_many_calls_lets_another_one_have_the_next_item(db: Any, space: Subspace) -> None:
    seen = WatchingDatabase(db)

    async def session() -> None:
        here, there = (Subscriptions(Queue(space, codec="str")) for _ in range(2))
        line = Waiters(here.leases.layout)

        def stand(calls: int) -> bool:
            """Return whether so many calls wait. One that has just registered looks once more, and may take an item."""
            requests = run(line.first(db.create_transaction(), limit=0))
            return sum(one.wish.wanted for one in requests) == calls and all(
                one.key in seen.watched for one in requests
            )

        first = await many_wait(here, db, here.subscribe(db, "all"), 3, through=seen)
        [other] = await started(here, seen, there.subscribe(db, "all"))
        for left, value, task in (4, "0", first[0]), (3, "1", other), (2, "2", first[1]):
            await until(lambda left=left: stand(left))  # type: ignore[misc]
            await here.leases.enqueue.aio(db, value)
            assert (await task).value == value
        await ended(first)

    asyncio.run(session())


def test_a_cancelled_leader_hands_on(db: Any, subscriptions: Subscriptions, everything: Subscription) -> None:
    async def session() -> None:
        tasks = await many_wait(subscriptions, db, everything, 3)
        tasks[0].cancel()
        await until(lambda: requests_of(subscriptions, db) == [("all", 2)])
        await subscriptions.leases.enqueue.aio(db, "x")
        assert (await tasks[1]).value == "x"
        await ended(tasks)
        await until_waiting(subscriptions, db, 0)

    asyncio.run(session())


@pytest.mark.parametrize("what", ["an item", "a delivery"])
def test_what_a_leader_took_as_it_was_cancelled_goes_to_the_next_call(
    db: Any, subscriptions: Subscriptions, everything: Subscription, what: str
) -> None:
    async def session() -> None:
        held = HeldDatabase(db)
        held.release()
        tasks = await many_wait(subscriptions, db, everything, 3, through=held)
        held.hold()
        if what == "an item":
            await subscriptions.leases.enqueue.aio(db, "x")
        else:
            assert await subscriptions.enqueue.aio(db, "x", immediate=True) is not None
        await until(held.committing.is_set)
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        held.release()
        lease = await tasks[1]
        assert (lease.value, lease.attempt) == ("x", 1)
        await until(lambda: requests_of(subscriptions, db) == [("all", 1)])
        await ended(tasks)
        await until_waiting(subscriptions, db, 0)

    asyncio.run(session())
    let_threads_end()
    assert subscriptions.check(db).problems == ()


def test_more_deliveries_than_calls_that_are_left_go_back(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        tasks = await many_wait(subscriptions, db, everything, 3)
        for value in ("a", "b", "c"):
            assert subscriptions.enqueue(db, value, immediate=True) is not None
        for task in tasks[1:]:
            task.cancel()
        assert (await tasks[0]).value == "a"
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(session())
    let_threads_end()
    stats = subscriptions.leases.stats(db)
    assert (stats.leased, stats.available) == (1, 2)
    assert [item.value for item in subscriptions.leases.browse(db, state="available")] == ["b", "c"]
    assert waiting(subscriptions, db) == []


def test_a_call_behind_the_leader_ends_at_its_time(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        tasks = await many_wait(subscriptions, db, everything, 2)
        assert await everything.lease.aio(db, timeout=0.01) is None
        await until(lambda: requests_of(subscriptions, db) == [("all", 2)])
        await ended(tasks)
        await until_waiting(subscriptions, db, 0)

    asyncio.run(session())


def test_a_leader_whose_time_is_over_leaves_the_request_to_the_others(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    async def session() -> None:
        first = asyncio.create_task(everything.lease.aio(db, timeout=0.2))
        await until(lambda: bool(waiting(subscriptions, db)) or first.done())
        tasks: list[Any] = [asyncio.create_task(everything.lease.aio(db, **LONG)) for _ in range(2)]
        assert await first is None
        await until(lambda: requests_of(subscriptions, db) == [("all", 2)])
        await subscriptions.leases.enqueue.aio(db, "x")
        assert (await tasks[0]).value == "x"
        await ended(tasks)

    asyncio.run(session())


def test_a_call_does_not_miss_an_item_because_the_leader_stands_still(db: Any, subscriptions: Subscriptions) -> None:
    everything, late = subscriptions.subscribe(db, "all"), Promise()
    stands = threading.Event()

    async def slow(take: Any, *terms: Any) -> Any:
        if not stands.is_set():
            stands.set()
            await value_of(late)
        return await take(*terms)

    around_takes(everything, slow)

    async def session() -> None:
        leader = asyncio.create_task(everything.lease.aio(db, timeout=100))
        await until(stands.is_set)
        subscriptions.leases.enqueue_many(db, ["a", "b"])
        lease = await everything.lease.aio(db, timeout=0.01)
        assert lease is not None
        late.keep()
        assert {lease.value, (await leader).value} == {"a", "b"}  # type: ignore[union-attr]

    asyncio.run(session())


def test_two_handles_of_a_database_have_a_request_each(url: str, db: Any, subscriptions: Subscriptions) -> None:
    everything = subscriptions.subscribe(db, "all")
    if url.startswith("memory"):
        other: Any = CountingDatabase(db)
    else:
        other = fdbqueue.open(url)

    async def session() -> None:
        tasks = [
            *await many_wait(subscriptions, db, everything, 2),
            *(asyncio.create_task(everything.lease.aio(other, **LONG)) for _ in range(2)),
        ]
        await until(lambda: requests_of(subscriptions, db) == [("all", 2), ("all", 2)])
        subscriptions.leases.queue.enqueue_many(db, ["0", "1", "2", "3"])
        assert sorted([lease.value for lease in await asyncio.gather(*tasks)]) == ["0", "1", "2", "3"]

    asyncio.run(session())
    if other is not None and not url.startswith("memory"):
        other.close()


def test_threads_and_two_event_loops_share_a_request(db: Any, subscriptions: Subscriptions) -> None:
    everything = subscriptions.subscribe(db, "all")

    async def three() -> list[Any]:
        return [
            lease and lease.value
            for lease in await asyncio.gather(*(everything.lease.aio(db, **LONG) for _ in range(3)))
        ]

    with ThreadPoolExecutor(5) as pool:
        threads: list[Any] = [pool.submit(everything.lease, db, **LONG) for _ in range(3)]
        loops = [pool.submit(asyncio.run, three()) for _ in range(2)]
        asyncio.run(until(lambda: requests_of(subscriptions, db) == [("all", 9)]))
        for number in range(9):
            subscriptions.leases.enqueue(db, f"{number}")
        taken = [(lease := one.result(60)) and lease.value for one in threads] + [
            value for loop in loops for value in loop.result(60)
        ]
    assert sorted(taken) == [f"{n}" for n in range(9)]
    assert waiting(subscriptions, db) == []


def test_calls_with_other_terms_share_too_and_keep_their_terms(db: Any, subscriptions: Subscriptions) -> None:
    async def session() -> None:
        everything = subscriptions.subscribe(db, "all")
        tasks = [
            asyncio.create_task(everything.lease_many.aio(db, limit=limit, consumer=f"c{limit}", timeout=100))
            for limit in (2, 3)
        ]
        await until(lambda: requests_of(subscriptions, db) == [("all", 2)])
        await subscriptions.leases.queue.enqueue_many.aio(db, ["0", "1", "2", "3", "4", "5"])
        assert [[lease.value for lease in await task] for task in tasks] == [["0", "1"], ["2", "3", "4"]]
        consumers = Counter(one.consumer for one in subscriptions.leases.browse(db, state="leased"))
        assert consumers == {"c2": 2, "c3": 3}

    asyncio.run(session())


def serve_many(url: str, key: bytes, amount: int) -> None:
    """Wait with so many calls, for ever."""
    db = fdbqueue.open(url)
    everything = Subscriptions(Queue(Subspace((), key))).open("all")
    with ThreadPoolExecutor(amount) as pool:
        for _ in range(amount):
            pool.submit(everything.lease, db, timeout=None)


@pytest.mark.engines("file", "cluster")
def test_the_waiting_calls_of_a_killed_process_hold_up_no_other(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    subscriptions = Subscriptions(Queue(space))
    everything = subscriptions.subscribe(db, "all")

    async def session() -> None:
        worker = processes.start(serve_many, url, space.key(), 20)
        await until(lambda: requests_of(subscriptions, db) == [("all", 20)])
        tasks = await started(subscriptions, db, everything, everything)
        assert requests_of(subscriptions, db) == [("all", 20), ("all", 2)]
        kill_9(worker)
        for task, value in zip(tasks, (b"x", b"y"), strict=True):
            await subscriptions.leases.enqueue.aio(db, value)
            lease = await task
            assert (lease.value, lease.attempt) == (value, 1)

    asyncio.run(session())


@pytest.mark.parametrize("change", ["removed", "renewed"])
def test_a_delivery_to_one_of_several_calls_conflicts_with_a_change_of_their_request(
    db: Any, subscriptions: Subscriptions, change: str
) -> None:
    subscriptions.subscribe(db, "all")
    stand_in_line(subscriptions, db, b"client", "all", calls=3)
    line = Waiters(subscriptions.leases.layout)
    pushing, changing = db.create_transaction(), db.create_transaction()
    assert subscriptions.enqueue(pushing, "x", immediate=True) is not None
    [request] = run(line.first(changing, limit=0))
    if change == "removed":
        line.remove(changing, request.key)
    else:
        line.put(
            changing, request.key, wished(changing, b"client", 5, now_us=subscriptions.leases.now_us(), consumer="all")
        )
    assert not conflicts(changing)
    assert conflicts(pushing)
    assert requests_of(subscriptions, db) == ([] if change == "removed" else [("all", 5)])


def test_deliveries_to_a_dead_process_with_many_calls_come_back_uncounted(db: Any, space: Subspace) -> None:
    clock = Clock()
    subscriptions = Subscriptions(Leases(Queue(space, codec="str"), clock=clock))
    everything = subscriptions.subscribe(db, "all")
    stand_in_line(subscriptions, db, b"\xff" * 8, "all", calls=3)
    for value in ("a", "b", "c"):
        assert subscriptions.enqueue(db, value, immediate=True) is not None
    assert subscriptions.enqueue(db, "d", immediate=True) is None
    clock.now += 2
    assert [(one.value, one.attempt) for one in everything.lease_many(db)] == [("a", 1), ("b", 1), ("c", 1)]
    span = subscriptions.leases.layout.grants.range()
    assert list(db[span.start : span.stop]) == []


@pytest.mark.engines("file")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_by_itself(db: Any, url: str, subscriptions: Subscriptions) -> None:
    everything = subscriptions.subscribe(db, "all")
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(everything.lease, db, **LONG) for _ in range(2)]
        asyncio.run(until(lambda: requests_of(subscriptions, db) == [("all", 2)]))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                lease = everything.lease(fdbqueue.open(url), timeout=60)
                code = 0 if lease is not None else 2
            finally:
                os._exit(code)
        asyncio.run(until(lambda: requests_of(subscriptions, db) == [("all", 2), ("all", 1)]))
        subscriptions.leases.queue.enqueue_many(db, ["a", "b", "c"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all(task.result(60) is not None for task in tasks)


@pytest.mark.slow
def test_calls_that_share_a_request_and_are_cancelled_at_random_lose_nothing(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    draw = random.Random(31)

    async def session() -> None:
        for number in range(40):
            source = subscriptions if number % 2 else subscriptions.leases
            tasks = [asyncio.create_task(everything.lease.aio(db, **LONG)) for _ in range(4)]
            enqueues = [asyncio.create_task(source.enqueue.aio(db, "x")) for _ in range(2)]
            for _ in range(draw.randrange(60)):
                await asyncio.sleep(0)
            victims = draw.sample(tasks, 2)
            for task in victims:
                task.cancel()
            await asyncio.gather(*enqueues)
            taken: list[Any] = []

            async def take(task: Any, taken: list[Any] = taken) -> None:
                try:
                    taken.append(await task)
                except asyncio.CancelledError:
                    return

            takers = [asyncio.ensure_future(take(task)) for task in tasks]
            await until(lambda taken=taken: len(taken) >= 2)  # type: ignore[misc]
            await ended(tasks)
            await asyncio.gather(*takers)
            await asyncio.to_thread(let_threads_end)
            assert len(taken) == 2
            assert {one.attempt for one in taken} == {1}
            await subscriptions.leases.ack_many.aio(db, taken)

    asyncio.run(session())
    stats = subscriptions.leases.stats(db)
    assert (stats.leased, stats.available, stats.dequeued) == (0, 0, 80)
    assert waiting(subscriptions, db) == []
    assert subscriptions.check(db).problems == ()


@pytest.mark.slow
@pytest.mark.engines("memory")
@pytest.mark.parametrize("what", ["an item", "a delivery"])
def test_ctrl_c_at_any_line_of_a_leader_leaves_the_item_to_the_call_behind(
    db: Any, subscriptions: Subscriptions, everything: Subscription, what: str
) -> None:
    behind: list[Any] = []

    def wait_behind(led: threading.Event) -> None:
        led.wait(1)
        behind.append(everything.lease(db, duration=600, timeout=0.1))

    def call() -> None:
        behind.clear()
        led = threading.Event()
        thread = threading.Thread(target=wait_behind, args=(led,))
        other = threading.Thread(target=produce)
        lease = None
        thread.start()
        other.start()
        led.set()
        try:
            lease = everything.lease(db, duration=600, timeout=0.05)
        finally:
            thread.join()
            other.join()
            for one in (lease, *behind):
                if one is not None:
                    assert one.attempt == 1
                    subscriptions.leases.ack(db, one)

    def produce() -> None:
        if what == "an item":
            subscriptions.leases.enqueue(db, "x")
        else:
            subscriptions.enqueue(db, "x")

    def then(place: str) -> None:
        let_threads_end()
        assert subscriptions.leases.stats(db).leased == 0, place
        assert waiting(subscriptions, db) == [], place
        subscriptions.leases.ack_many(db, everything.lease_many(db))

    lines = ("layers/subscriptions/_awaiting.py", "layers/common/batcher.py")
    assert interrupted_at_each_line(call, of=lines, then=then) > 30
    let_threads_end()
    assert subscriptions.check(db).problems == ()


@pytest.mark.parametrize("immediate", [False, True])
def test_an_enqueue_whose_consumer_is_cancelled_delivers_to_no_consumer(
    db: Any, subscriptions: Subscriptions, everything: Subscription, immediate: bool
) -> None:
    held = HeldDatabase(db)

    async def session() -> Any:
        [task] = await started(subscriptions, db, everything, duration=600)
        enqueue = asyncio.create_task(subscriptions.enqueue.aio(held, "x", immediate=immediate))
        await asyncio.to_thread(held.committing.wait, 60)
        await ended([task])
        let_threads_end()
        held.release()
        return await enqueue

    assert (asyncio.run(session()) is None) == immediate
    assert (subscriptions.leases.stats(db).leased, waiting(subscriptions, db)) == (0, [])
    assert [lease.attempt for lease in everything.lease_many(db)] == ([] if immediate else [1])
    assert subscriptions.check(db).problems == ()
