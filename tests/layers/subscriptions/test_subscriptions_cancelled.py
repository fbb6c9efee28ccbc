"""Calls that are cancelled or interrupted at any moment: they keep no item, no credit, and no place in the line."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.common import waiting as layer_of_waiting
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.layers.subscriptions._awaiting import Awaiting
from tests.helpers.conflicting import conflicts
from tests.helpers.consuming import until
from tests.helpers.faults import FaultyDatabase
from tests.helpers.held import HeldDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.subscribing import started, until_waiting, waiting
from tests.helpers.unanswered import UnansweredDatabase

LONG: dict[str, Any] = {"duration": 600.0, "timeout": 100.0}
CREDIT = 3
CALL = (
    "layers/subscriptions/subscription.py",
    "layers/subscriptions/_awaiting.py",
    "layers/common/batcher.py",
    "layers/common/waiting.py",
    "engine/waiting.py",
    "layers/leases/taking.py",
)


@pytest.fixture
def subscriptions(space: Subspace) -> Subscriptions:
    return Subscriptions(Queue(space, codec="str"))


@pytest.fixture(params=["shared", "sole"])
def everything(request: pytest.FixtureRequest, db: Any, subscriptions: Subscriptions) -> Subscription:
    """A subscription for all items, with credit for some."""
    found = subscriptions.subscribe(db, "all", exclusive=request.param == "sole")
    found.grant(db, items=CREDIT)
    return found


@pytest.fixture(params=["the call notes first that its caller has gone", "the thread ends first"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two comes first: the thread that goes on in a cancelled call, or what its caller does meanwhile."""

    def run_now(target: Callable[..., object], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        thread.start()
        thread.join()

    if request.param == "the thread ends first":
        monkeypatch.setattr(layer_of_waiting, "start", run_now)


def let_threads_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("fdbqueue-finish"):
            thread.join()


def is_as_if_never_called(subscriptions: Subscriptions, db: Any, *, available: int) -> bool:
    """Say whether all items are available, with no attempt counted, credit is whole, and nobody waits."""
    let_threads_end()
    kept = list(subscriptions.leases.browse(db, state="available"))
    stats = subscriptions.leases.stats(db)
    [red] = subscriptions.stats(db)
    assert (stats.leased, stats.available, red.held) == (0, available, 0)
    assert [one.attempt for one in kept] == [0] * available
    assert waiting(subscriptions, db) == []
    assert subscriptions.check(db).problems == ()
    return True


async def until_committing(held: HeldDatabase, begun: Sequence[object] = ("at once",)) -> None:
    """Let the others go on until a commit waits, after something has begun."""
    await until(lambda: begun and held.committing.is_set())


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("timeout", [0.0, 100.0])
@pytest.mark.usefixtures("order")
def test_a_call_that_is_cancelled_as_its_commit_is_answered_gives_the_item_back(
    db: Any, subscriptions: Subscriptions, everything: Subscription, timeout: float
) -> None:
    subscriptions.leases.queue.enqueue(db, "x")
    held = HeldDatabase(db)

    async def session() -> None:
        task = asyncio.create_task(everything.lease.aio(held, duration=600, timeout=timeout))
        await until_committing(held)
        held.release()  # which wakes the task; it is cancelled before it runs
        await cancelled(task)

    asyncio.run(session())
    assert is_as_if_never_called(subscriptions, db, available=1)


def test_a_call_that_is_cancelled_while_its_commit_is_under_way_gives_the_item_back(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    subscriptions.leases.queue.enqueue(db, "x")
    held = HeldDatabase(db)

    async def session() -> None:
        task = asyncio.create_task(everything.lease.aio(held, **LONG))
        await until_committing(held)
        await cancelled(task)

    asyncio.run(session())
    held.release()
    assert is_as_if_never_called(subscriptions, db, available=1)


@pytest.mark.usefixtures("order")
def test_a_call_cancelled_during_its_registration_is_removed(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    held = HeldDatabase(db)

    async def session() -> None:
        task = asyncio.create_task(everything.lease.aio(held, **LONG))
        await until_committing(held)
        held.release()
        await cancelled(task)

    asyncio.run(session())
    assert is_as_if_never_called(subscriptions, db, available=0)


@pytest.mark.usefixtures("order")
def test_a_call_cancelled_during_its_removal_is_removed(
    db: Any, subscriptions: Subscriptions, everything: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDatabase(db)
    leave = Awaiting.leave_waiters
    leaving: list[Awaiting] = []

    def held_leave(self: Awaiting, tr: Any) -> Any:
        held.hold()
        leaving.append(self)
        return leave(self, tr)

    monkeypatch.setattr(Awaiting, "leave_waiters", held_leave)
    # Its time is over as soon as it stands in the line.
    monkeypatch.setattr(Awaiting, "_seconds_left", lambda self: 0.0 if self._request is not None else 100.0)

    async def session() -> None:
        held.release()
        task = asyncio.create_task(everything.lease.aio(held, **LONG))
        await until_committing(held, leaving)
        held.release()
        await cancelled(task)

    asyncio.run(session())
    assert is_as_if_never_called(subscriptions, db, available=0)


@pytest.mark.usefixtures("order")
def test_a_call_that_is_cancelled_while_it_collects_a_delivery_gives_it_back(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    held = HeldDatabase(db)

    async def session() -> None:
        held.release()
        task = asyncio.create_task(everything.lease.aio(held, **LONG))
        await until_waiting(subscriptions, db, 1)
        held.hold()
        delivery = await subscriptions.enqueue.aio(db, "x", immediate=True)
        assert delivery is not None
        assert delivery.subscription == "all"
        await until_committing(held)
        held.release()
        await cancelled(task)

    asyncio.run(session())
    assert is_as_if_never_called(subscriptions, db, available=1)


@pytest.mark.parametrize("immediate", [False, True])
def test_an_enqueue_whose_consumer_is_cancelled_delivers_to_no_consumer(
    db: Any, subscriptions: Subscriptions, everything: Subscription, immediate: bool
) -> None:
    held = HeldDatabase(db)

    async def session() -> Any:
        [task] = await started(subscriptions, db, everything, duration=600)
        enqueue = asyncio.create_task(subscriptions.enqueue.aio(held, "x", immediate=immediate))
        await until_committing(held)
        await cancelled(task)
        let_threads_end()
        held.release()
        return await enqueue

    delivery = asyncio.run(session())
    assert (delivery is None) == immediate
    assert is_as_if_never_called(subscriptions, db, available=0 if immediate else 1)


@pytest.mark.slow
def test_calls_that_are_cancelled_at_random_keep_nothing(
    db: Any, subscriptions: Subscriptions, everything: Subscription
) -> None:
    draw = random.Random(20)

    async def session() -> None:
        for number in range(60):
            source = subscriptions if number % 2 else subscriptions.leases
            task = asyncio.create_task(everything.lease.aio(db, **LONG))
            enqueue = asyncio.create_task(source.enqueue.aio(db, "x"))
            for _ in range(draw.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
            got: Any
            [got, _] = await asyncio.gather(task, enqueue, return_exceptions=True)
            if not isinstance(got, asyncio.CancelledError):
                await subscriptions.leases.ack.aio(db, got)
            await asyncio.to_thread(let_threads_end)
            await subscriptions.leases.ack_many.aio(db, await everything.lease_many.aio(db))

    asyncio.run(session())
    assert is_as_if_never_called(subscriptions, db, available=0)


@pytest.mark.slow
@pytest.mark.engines("memory")
@pytest.mark.parametrize("what", ["an item", "a delivery", "nothing"])
def test_ctrl_c_at_any_line_leaves_no_lease_and_no_waiter(
    db: Any, subscriptions: Subscriptions, everything: Subscription, what: str
) -> None:
    queue = subscriptions.leases.queue

    def call() -> None:
        if what == "an item":
            queue.enqueue(db, "x")
        over = threading.Event()
        producer = threading.Thread(target=deliver, args=(over,))
        if what == "a delivery":
            producer.start()
        try:
            lease = everything.lease(db, duration=600, timeout=0.002 if what == "nothing" else 0.02)
        finally:
            over.set()
            if what == "a delivery":
                producer.join()
        if lease is not None:
            subscriptions.leases.ack(db, lease)

    def deliver(over: threading.Event) -> None:
        while not over.is_set() and subscriptions.enqueue(db, "x", immediate=True) is None:
            pass  # as soon as the call stands in the line

    def then(place: str) -> None:
        let_threads_end()
        assert subscriptions.leases.stats(db).leased == 0, place
        assert waiting(subscriptions, db) == [], place
        subscriptions.leases.ack_many(db, everything.lease_many(db))

    assert interrupted_at_each_line(call, of=CALL, then=then) > 30
    assert is_as_if_never_called(subscriptions, db, available=0)


class _Interrupted(UnansweredDatabase):
    """A database whose first commit is interrupted by Ctrl-C, before the caller has its future."""

    def commit(self, tr: Any) -> Any:
        super().commit(tr)
        raise KeyboardInterrupt


@pytest.mark.parametrize("what", ["an item", "nothing"])
@pytest.mark.parametrize("takes_effect", [True, False])
def test_ctrl_c_within_a_commit_undoes_it_whether_it_took_effect_or_still_would(
    db: Any, subscriptions: Subscriptions, everything: Subscription, takes_effect: bool, what: str
) -> None:
    if what == "an item":
        subscriptions.leases.queue.enqueue(db, "x")
    interrupted = _Interrupted(db, takes_effect=takes_effect)
    with pytest.raises(KeyboardInterrupt):
        everything.lease(interrupted, **LONG)
    if not takes_effect:
        assert conflicts(interrupted.sent)
    assert is_as_if_never_called(subscriptions, db, available=1 if what == "an item" else 0)


@pytest.mark.parametrize("timeout", [0.0, 100.0])
def test_a_call_with_a_timed_out_commit_gives_its_item_back(
    db: Any, subscriptions: Subscriptions, everything: Subscription, timeout: float
) -> None:
    subscriptions.leases.queue.enqueue(db, "x")
    faulty = FaultyDatabase.failing_at(db, {0}, ("after", 1031))
    with pytest.raises(FDBError, match="1031"):
        everything.lease(faulty, duration=600, timeout=timeout)
    assert is_as_if_never_called(subscriptions, db, available=1)
