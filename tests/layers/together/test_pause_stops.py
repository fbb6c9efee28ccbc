"""After a pause no process begins another item, also of those that it holds; they go back, uncounted."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import BulkInterrupted, Queue, QueueRenamed, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Gate, Groups, Leases, NewState, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.common.batcher import Batcher
from fdbqueue.layers.consumer.holds import ConsumerReport
from fdbqueue.layers.sessions.session.records import Held
from fdbqueue.layers.staged.head_coordinator import HeadCoordinator
from fdbqueue.layers.subscriptions._awaiting import Awaiting
from fdbqueue.lowlevel import Layout, Permit, run
from fdbqueue.stored.known import LOOK_SECONDS
from fdbqueue.stored.looks import made_exclusive
from fdbqueue.verbs.administered import write_pause
from tests.helpers.consuming import until
from tests.helpers.sessions import lease_of
from tests.helpers.staging import wait_until
from tests.helpers.subscribing import stand_in_line, waiting

MANY = 40


@pytest.fixture
def each_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last second be over before each item."""
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("fdbqueue.layers.consumer._turns.LOOK_SECONDS", 0.0)


@pytest.fixture
def sessions(queue: Queue) -> Sessions:
    return Sessions(queue, quantum=30)


def pause_elsewhere(db: Any, queue: Queue) -> None:
    """Pause a queue as another process does: this one does not know of it."""
    tr = db.create_transaction()
    write_pause(tr, Layout(queue.layout.space), "Ann", "stocktaking", 0)
    tr.commit().wait()


class Numbered:
    """A handler that does something at its third item."""

    def __init__(self, at_third: Callable[[], object]) -> None:
        self.begun: list[str] = []
        self.at_third = at_third

    async def __call__(self, lease: Any) -> Any:
        self.begun.append(lease.value)
        if len(self.begun) == 3:
            self.at_third()
        return NewState(lease.value.encode()) if hasattr(lease, "state") else None


def stopped(db: Any, consumer: Consumer, when: Callable[[], object]) -> ConsumerReport:
    """Run a consumer until `when` is true, and stop it."""

    async def main() -> ConsumerReport:
        async with consumer.running(db):
            await until(when)
        return consumer.report

    return asyncio.run(main())


def names(number: int = MANY) -> list[str]:
    return [str(n) for n in range(number)]


# --- the permit


class Moved:
    """The time of a permit."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Moved:
    moved = Moved()
    monkeypatch.setattr("fdbqueue.stored.known.monotonic", moved.monotonic)
    return moved


def permit_that(answers: Iterator[bool], moved: Moved, seconds: float = 0.0) -> Permit:
    """Return a permit whose reads take so long."""

    async def look() -> bool:
        moved.now += seconds
        return next(answers)

    return Permit(look)


def test_a_permit_is_good_for_a_second_from_before_its_read(moved: Moved) -> None:
    permit = permit_that(iter([True]), moved, 0.75)

    assert not permit.is_good()
    assert run(permit.ask())
    assert permit.is_good()
    moved.now += LOOK_SECONDS - 0.76
    assert permit.is_good()
    moved.now += 0.01
    assert not permit.is_good()


def test_a_refusal_is_asked_again_each_time_and_a_pause_of_this_process_counts_at_once(moved: Moved) -> None:
    permit = permit_that(iter([False, False, True]), moved)

    assert not run(permit.ask())
    assert not run(permit.ask())
    assert run(permit.ask())
    made_exclusive()
    assert not permit.is_good()


def test_a_slow_read_lets_one_item_begin(moved: Moved) -> None:
    permit = permit_that(iter([True]), moved, 2 * LOOK_SECONDS)

    assert run(permit.ask())
    assert not permit.is_good()


# --- sessions


def test_a_pause_ends_the_turn_of_a_session_and_keeps_its_place(db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, names(5), session="Ann")
    first = lease_of(sessions, db)
    second = sessions.ack_and_next(db, first)
    assert second is not None
    sessions.enqueue(db, "other", session="Bob")

    sessions.queue.pause(db)

    assert sessions.ack_and_next(db, second, state=b"2") is None
    sessions.queue.resume(db)
    third = lease_of(sessions, db)
    assert (third.session, third.value, third.attempt, third.state) == ("Ann", "2", 1, b"2")
    assert sessions.check(db).problems == ()


def test_a_pause_of_another_process_ends_the_turn_after_a_second(
    db: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions.enqueue_many(db, names(5), session="Ann")
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 60.0)  # on a busy machine a second may be over
    lease = lease_of(sessions, db)
    pause_elsewhere(db, sessions.queue)

    following = sessions.ack_and_next(db, lease)
    assert following is not None, "this process has looked within the last second"
    sessions.line.layout.known.look.until -= 60

    assert sessions.ack_and_next(db, following) is None
    assert sessions.lease(db) is None
    assert sessions.check(db).problems == ()


def test_ack_and_next_in_a_transaction_stops_as_well(db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, names(5), session="Ann")
    lease = lease_of(sessions, db)
    sessions.queue.pause(db)

    tr = db.create_transaction()
    assert sessions.ack_and_next(tr, lease) is None
    tr.commit().wait()
    assert sessions.info(db, "Ann").items == 4  # type: ignore[union-attr]


@pytest.mark.usefixtures("each_looks")
@pytest.mark.parametrize("who", ["this process", "another process"])
def test_a_consumer_of_a_lone_session_stops_at_a_pause(db: Any, sessions: Sessions, who: str) -> None:
    sessions.enqueue_many(db, names(), session="Ann")
    pauses = sessions.queue.pause if who == "this process" else lambda db: pause_elsewhere(db, sessions.queue)
    handler = Numbered(lambda: pauses(db))

    def is_given_back() -> bool:
        return sessions.line.leases.stats(db).leased == 0

    report = stopped(db, Consumer(sessions, handler), lambda: len(handler.begun) == 3 and is_given_back())

    assert (handler.begun, report.acked, report.failed) == (["0", "1", "2"], 3, 0)
    sessions.queue.resume(db)
    following = lease_of(sessions, db)
    assert (following.value, following.attempt, following.state) == ("3", 1, b"2")
    assert sessions.check(db).problems == ()


@pytest.mark.usefixtures("each_looks")
def test_a_consumer_does_not_finish_the_quantum_of_a_session_that_is_paused(db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, names(), session="Ann")
    sessions.enqueue(db, "other", session="Bob")
    handler = Numbered(lambda: sessions.pause(db, "Ann"))

    stopped(db, Consumer(sessions, handler, concurrency=1, prefetch=0), lambda: "other" in handler.begun)

    assert handler.begun == ["0", "1", "2", "other"]
    sessions.resume(db, "Ann")
    assert lease_of(sessions, db).value == "3"
    assert sessions.check(db).problems == ()


def test_an_ack_tells_a_consumer_that_the_session_is_paused(
    db: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.layers.consumer._turns.LOOK_SECONDS", 60.0)
    sessions.enqueue_many(db, names(), session="Ann")
    begun: list[str] = []
    consumer: Consumer

    async def handle(lease: Any) -> None:
        begun.append(lease.value)
        if len(begun) == 3:
            acked = consumer.report.acked
            sessions.pause(db, "Ann")
            # The ack of an item before is under way, or ends here: the next ack reads what the pause has written.
            await until(lambda: consumer.report.acked >= 2 or acked >= 2)
        if len(begun) == 4:
            await until(lambda: consumer.report.acked >= 3)

    consumer = Consumer(sessions, handle, concurrency=1)
    stopped(db, consumer, lambda: begun and sessions.line.leases.stats(db).leased == 0)

    assert begun in (["0", "1", "2"], ["0", "1", "2", "3"])


@pytest.mark.usefixtures("each_looks")
def test_a_session_that_was_leased_ahead_and_is_paused_then_does_not_begin(db: Any, sessions: Sessions) -> None:
    for name in ("Ann", "Bob", "Cleo"):
        sessions.enqueue(db, name, session=name)
    begun: list[str] = []

    async def handle(lease: Any) -> None:
        begun.append(lease.value)
        if lease.value == "Ann":
            await until(lambda: sessions.line.leases.stats(db).leased == 3)
            sessions.pause(db, "Bob")

    stopped(db, Consumer(sessions, handle, concurrency=1, prefetch=2), lambda: "Cleo" in begun)

    assert begun == ["Ann", "Cleo"]
    sessions.resume(db, "Bob")
    assert lease_of(sessions, db).attempt == 1
    assert sessions.check(db).problems == ()


@pytest.mark.usefixtures("each_looks")
def test_a_session_that_was_leased_ahead_waits_at_a_gate_whose_limit_is_lowered(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue, gates=lambda name: [Gate("crane", 3)] if name == "Bob" else [])
    for name in ("Ann", "Bob", "Cleo"):
        sessions.enqueue(db, name, session=name)
    begun: list[str] = []

    async def handle(lease: Any) -> None:
        begun.append(lease.value)
        if lease.value == "Ann":
            await until(lambda: sessions.line.leases.stats(db).leased == 3)
            sessions.set_limit(db, "crane", 0)

    stopped(db, Consumer(sessions, handle, concurrency=1, prefetch=2), lambda: "Cleo" in begun)

    assert begun == ["Ann", "Cleo"]
    assert sessions.check(db).problems == ()
    sessions.set_limit(db, "crane", 1)
    assert lease_of(sessions, db).value == "Bob"


def test_a_granted_session_that_was_paused_since_is_not_opened(db: Any, sessions: Sessions) -> None:
    sessions.enqueue(db, "0", session="Ann")
    pointer = sessions.staged.lease(db)
    assert pointer is not None
    sessions.pause(db, "Ann")

    # As if another process had granted it: this one has not read the item.
    granted = dataclasses.replace(pointer, value=Held(pointer.value.pointer, None, None))
    assert run(sessions._working.opened(db, granted)) is None

    assert sessions.line.leases.stats(db).leased == 0
    sessions.resume(db, "Ann")
    assert lease_of(sessions, db).attempt == 1


# --- plain leases, and subscriptions


@pytest.mark.usefixtures("each_looks")
@pytest.mark.parametrize("source", ["leases", "subscription"])
@pytest.mark.parametrize("prefetch", [0, 20, None])
def test_items_that_were_leased_ahead_go_back_at_a_pause(
    db: Any, queue: Queue, source: str, prefetch: int | None
) -> None:
    leases = Leases(queue)
    queue.enqueue_many(db, names())
    given: Any = leases if source == "leases" else Subscriptions(leases).subscribe(db, "all")
    handler = Numbered(lambda: pause_elsewhere(db, queue))

    def is_given_back() -> bool:
        return leases.stats(db).leased == 0

    consumer = Consumer(given, handler, concurrency=1, prefetch=prefetch)
    report = stopped(db, consumer, lambda: len(handler.begun) == 3 and is_given_back())

    assert (handler.begun, report.acked, report.failed, report.lost) == (["0", "1", "2"], 3, 0, 0)
    queue.resume(db)
    left = leases.lease_many(db, limit=100)
    assert [(lease.value, lease.attempt) for lease in left] == [(name, 1) for name in names()[3:]]


def test_items_that_were_leased_ahead_go_back_while_handlers_are_busy(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    queue.enqueue_many(db, names())
    begun: list[str] = []

    async def main() -> None:
        may_end = asyncio.Event()

        async def handle(lease: Any) -> None:
            begun.append(lease.value)
            await may_end.wait()

        async with Consumer(leases, handle, concurrency=2, prefetch=8).running(db):
            await until(lambda: len(begun) == 2 and leases.stats(db).leased == 10)
            pause_elsewhere(db, queue)
            await until(lambda: leases.stats(db).leased == 2)
            may_end.set()
            await until(lambda: leases.stats(db).leased == 0)
            assert len(begun) == 2
            queue.resume(db)
            await until(lambda: len(begun) == MANY)

    asyncio.run(main())
    assert sorted(begun) == sorted(names())
    assert leases.check(db).problems == ()


def test_a_waiting_consumer_begins_nothing_after_a_pause(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    begun: list[str] = []

    async def handle(lease: Any) -> None:
        begun.append(lease.value)

    async def main() -> None:
        async with Consumer(leases, handle, concurrency=2).running(db):
            queue.enqueue(db, "a")
            await until(lambda: begun)
            queue.pause(db)
            queue.enqueue_many(db, names())
            queue.resume(db)
            await until(lambda: len(begun) == 1 + MANY)

    asyncio.run(main())


class StandsStill:
    """Lets the waiting calls of other threads stand still before they look again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *coordinators: type[Batcher[Any, Any]]) -> None:
        self._may = threading.Condition()
        self._stands = False
        self._inside = 0
        for kind in coordinators:
            monkeypatch.setattr(kind, "serve", self._late(kind.serve))

    def _late(self, serve: Any) -> Any:
        async def late(one: Any, leader: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                return await serve(one, leader)
            with self._may:
                assert self._may.wait_for(lambda: not self._stands, 20)
                self._inside += 1
            try:
                return await serve(one, leader)
            finally:
                self._inside -= 1

        return late

    def stop(self) -> None:
        """Let them stand still from now on."""
        with self._may:
            self._stands = True
        wait_until(lambda: not self._inside)

    def go_on(self) -> None:
        with self._may:
            self._stands = False
            self._may.notify_all()


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch) -> StandsStill:
    return StandsStill(monkeypatch, HeadCoordinator, Awaiting)


@pytest.mark.parametrize("verb", ["lease", "dequeue", "lease_many", "dequeue_many"])
def test_an_item_that_was_granted_before_a_pause_goes_back(
    db: Any, queue: Queue, stands_still: StandsStill, verb: str
) -> None:
    own = StagedQueue(Leases(Queue(queue.layout.space, codec=queue.codec)))
    limit = {"limit": 1} if verb.endswith("many") else {}
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(partial(getattr(own, verb), db, timeout=20, **limit))
        wait_until(lambda: own.stats(db).requests == 1)
        stands_still.stop()
        queue.enqueue_many(db, ["a", "b"])
        assert StagedQueue(queue).dequeue(db) is not None
        assert own.stats(db).items.leased == 1, "the first item is granted to the waiting call"
        pause_elsewhere(db, queue)
        own.queue.layout.known.doubt()
        stands_still.go_on()
        wait_until(lambda: own.stats(db).items.leased == 0)
        assert not waits.done()
        queue.resume(db)
        got = waits.result(20)
    [lease] = got if isinstance(got, list) else [got]
    assert lease.value == "a"
    assert getattr(lease, "attempt", 1) == 1


@pytest.mark.parametrize("stop", ["pause", "suspend"])
def test_an_item_that_was_granted_to_a_subscription_before_a_pause_goes_back(
    db: Any, queue: Queue, stands_still: StandsStill, stop: str
) -> None:
    subscriptions = Subscriptions(Leases(queue))
    own = Subscriptions(Leases(Queue(queue.layout.space, codec=queue.codec)))
    subscription = own.subscribe(db, "all")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(subscription.lease, db, timeout=20)
        wait_until(lambda: waiting(own, db))
        stands_still.stop()
        delivery = subscriptions.enqueue(db, "a", immediate=True)
        assert delivery is not None
        assert delivery.subscription == "all"
        if stop == "pause":
            pause_elsewhere(db, queue)
        else:
            subscription.suspend(db)
        own.leases.layout.known.doubt()
        stands_still.go_on()
        wait_until(lambda: waits.done() or own.leases.stats(db).leased == 0)
        assert not waits.done()
        (queue.resume if stop == "pause" else subscription.resume)(db)
        lease = waits.result(20)
    assert lease is not None
    assert (lease.value, lease.attempt) == ("a", 1)


def test_an_uncontended_take_sees_a_pause_of_another_process_at_once(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, names())
    staged = StagedQueue(queue)
    assert [item.value for item in [staged.dequeue(db) for _ in range(5)] if item] == names(5)
    pause_elsewhere(db, queue)
    assert [staged.dequeue(db) for _ in range(3)] == [None] * 3
    assert queue.stats(db).available == MANY - 5


@pytest.mark.usefixtures("each_looks")
def test_a_suspended_subscription_begins_nothing_more(db: Any, queue: Queue) -> None:
    queue.enqueue_many(db, names())
    subscription = Subscriptions(Leases(queue)).subscribe(db, "all")
    handler = Numbered(lambda: subscription.suspend(db))
    consumer = Consumer(subscription, handler, concurrency=1, prefetch=20)

    stopped(db, consumer, lambda: len(handler.begun) == 3 and subscription.leases.stats(db).leased == 0)

    assert handler.begun == ["0", "1", "2"]
    subscription.resume(db)
    lease = subscription.lease(db)
    assert lease is not None
    assert (lease.value, lease.attempt) == ("3", 1)


@pytest.mark.usefixtures("each_looks")
def test_an_exclusive_subscription_of_another_process_ends_a_plain_consumer(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.layers.subscriptions._subscriptions.made_exclusive", lambda: None)
    queue.enqueue_many(db, names())
    others = Subscriptions(Leases(Queue(queue.layout.space, codec="str")))
    owned: list[Any] = []
    handler = Numbered(lambda: owned.append(others.subscribe(db, "mine", exclusive=True)))

    with pytest.raises(SubscriptionError, match="exclusive"):
        Consumer(Leases(queue), handler, concurrency=1, prefetch=20).run(db)

    assert handler.begun == ["0", "1", "2"]
    assert [(lease.value, lease.attempt) for lease in owned[0].lease_many(db, limit=2)] == [("3", 1), ("4", 1)]


@pytest.mark.usefixtures("each_looks")
def test_an_owner_whose_subscription_another_one_has_begins_nothing_more(
    db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(db, names())
    subscriptions = Subscriptions(Leases(queue))
    own = subscriptions.subscribe(db, "mine", exclusive=True)
    owned: list[Any] = []

    def take_over() -> None:
        own.close(db)
        owned.append(
            Subscriptions(Leases(Queue(queue.layout.space, codec="str"))).subscribe(db, "mine", exclusive=True)
        )

    handler = Numbered(take_over)
    with pytest.raises(SubscriptionError, match="another's"):
        Consumer(own, handler, concurrency=1, prefetch=20).run(db)

    assert handler.begun == ["0", "1", "2"]


@pytest.mark.usefixtures("each_looks")
def test_a_rename_by_another_process_ends_a_consumer(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.verbs.renaming.LONGEST_SECONDS", 0.0)
    monkeypatch.setattr("fdbqueue.verbs.renaming.made_exclusive", lambda: None)
    old = Queue(space["old"], codec="str")
    old.enqueue_many(db, names())
    handler = Numbered(lambda: fdbqueue.rename(db, space["old"], space["new"]))

    with pytest.raises(QueueRenamed):
        Consumer(Leases(old), handler, concurrency=1, prefetch=20).run(db)

    assert handler.begun == ["0", "1", "2"]


@pytest.mark.parametrize("exclusive", [False, True], ids=["one of many", "the only one"])
def test_an_enqueue_gives_no_item_to_a_consumer_that_waits_at_a_paused_queue(
    db: Any, queue: Queue, exclusive: bool
) -> None:
    subscriptions = Subscriptions(Leases(queue))
    subscription = subscriptions.subscribe(db, "all", exclusive=exclusive)
    assert subscription.lease(db) is None
    pause_elsewhere(db, queue)
    # It has not noticed the pause yet, and waits.
    stand_in_line(subscriptions, db, b"waiter", "all")
    queue.layout.known.doubt()

    assert subscriptions.enqueue(db, "a", immediate=True) is None
    delivery = subscriptions.enqueue(db, "b")

    assert delivery is not None
    assert delivery.subscription is None
    assert subscriptions.leases.stats(db).leased == 0


def test_a_quota_that_another_process_sets_stops_a_bulk_load(db: Any, queue: Queue) -> None:
    def values() -> Any:
        for number in range(20_000):
            if number == 2_000:
                Queue(queue.layout.space).set_quota(db, 10)
            yield "x" * 1_000

    with pytest.raises(BulkInterrupted):
        queue.enqueue_many(db, values())
    assert queue.stats(db).available <= 6_000, "those of transactions that were open, too"


def test_a_cancelled_group_stops_the_items_that_were_leased_ahead(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    group = Groups(leases).open(db, "month")
    group.enqueue_many(db, names(10))
    handler = Numbered(lambda: group.cancel(db))

    Consumer(leases, handler, concurrency=1, prefetch=8).drain(db)

    assert handler.begun == ["0", "1", "2"]
