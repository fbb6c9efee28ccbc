"""Two at the head at the same time, laid out by hand: who fails, who wakes, and who gets what."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from fdbqueue import Queue
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import LeaseHandle, Leases
from fdbqueue.layers.leases.taking import Allotment
from fdbqueue.layers.leases.timers import FIRE_LIMIT
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.delivery import HeadDelivery
from fdbqueue.layers.staged.requests import REQUEST_SECONDS, Request, Requests, Wish
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.faults import Failed, Fault, FaultyDatabase, FaultyTransaction
from tests.helpers.raw import raw
from tests.helpers.staging import coordinating, has_requests, left_behind, register, value, wait_until


class Interrupting(FaultyDatabase):
    """Does something when one of its transactions first sets a key with a prefix, before that commits."""

    def __init__(self, db: Any, prefix: bytes, action: Callable[[], object]) -> None:
        super().__init__(db, lambda: None)
        self.prefix = prefix
        self.action: Callable[[], object] | None = action

    def create_transaction(self) -> FaultyTransaction:
        return _Interrupted(self._db.create_transaction(), self)


class _Interrupted(FaultyTransaction):
    def __init__(self, tr: Any, db: Interrupting) -> None:
        super().__init__(tr, db)
        self._interrupting = db

    def set(self, key: bytes, stored: bytes) -> None:
        action = self._interrupting.action
        if action is not None and key.startswith(self._interrupting.prefix):
            self._interrupting.action = None
            action()
        self._tr.set(key, stored)


class _Unanswered(FaultyTransaction):
    def get_versionstamp(self) -> Failed:
        return Failed(1021)


def test_a_request_that_is_withdrawn_while_it_is_granted_gets_nothing(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    [sleeping] = left_behind(queue, db)
    helping = Interrupting(db, queue.layout.grants.key(), lambda: db.clear(sleeping))
    assert value(StagedQueue(leases).dequeue(helping, timeout=20)) == "a"
    assert helping.action is None
    assert left_behind(queue, db) == []
    assert queue.stats(db).leased == 0


def test_an_item_given_back_in_front_goes_to_the_first_request(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    queue.enqueue_many(db, ["a", "b", "c"])
    lease = leases.lease(db)
    assert lease is not None
    register(db, queue, clock)
    helping = Interrupting(db, queue.layout.grants.key(), lambda: leases.nack(db, lease))
    assert value(StagedQueue(leases).dequeue(helping, timeout=20)) == "b"
    assert [item.value for item in queue.browse(db)] == ["a", "c"]  # the first is left to the sleeping one


def test_a_request_that_is_granted_before_its_registration_is_known_leaves_no_second_one(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))  # it registers at once
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    queue.enqueue_many(db, ["a", "b"])
    helped: list[Any] = []

    class Unanswered(FaultyDatabase):
        def next_fault(self) -> Fault | None:
            self.commits += 1
            return ("after", 1021) if self.commits == 1 else None

        def create_transaction(self) -> FaultyTransaction:
            if self.commits == 1 and not helped:  # its registration is in, and it does not know
                helped.append(StagedQueue(leases).dequeue(db, timeout=20))
            return _Unanswered(self._db.create_transaction(), self)

    staged = StagedQueue(leases)
    assert value(staged.dequeue(Unanswered(db, lambda: None), timeout=20)) == "a"
    assert value(helped[0]) == "b"
    assert left_behind(queue, db) == []


def test_a_grant_whose_lease_was_lost_is_not_collected(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue(db, "a")
    lease = leases.lease(db, duration=60)
    assert lease is not None
    delivery = HeadDelivery(leases)
    stale = LeaseHandle(lease.position, b"an older token")
    tr = db.create_transaction()
    assert run(delivery.collect(tr, [stale], Allotment(1, 0, "", own=True))) == []
    tr.commit().wait()
    leases.ack(db, lease)


def test_granted_items_without_a_caller_return_to_their_places(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    granted = [lease.handle for lease in leases.lease_many(db, duration=60)]
    tr = db.create_transaction()
    [got] = run(HeadDelivery(leases).collect(tr, granted, Allotment(1, 0, "", own=True)))
    tr.commit().wait()
    assert value(got.given) == "a"
    again = leases.lease_many(db)
    assert [(lease.value, lease.attempt) for lease in again] == [("b", 1), ("c", 1)]
    assert leases.check(db).ok


def test_an_unreadable_granted_item_is_given_back_with_the_items_behind_it(
    db: Any, queue: Queue, leases: Leases
) -> None:
    of_bytes = Leases(raw(queue.layout.space), clock=leases.clock)
    of_bytes.queue.enqueue_many(db, [b"a", b"\xff", b"c"])
    granted = [lease.handle for lease in of_bytes.lease_many(db, duration=60)]
    tr = db.create_transaction()
    [got] = run(HeadDelivery(leases).collect(tr, granted, Allotment(3, 0, "", own=True)))
    tr.commit().wait()
    assert value(got.given) == "a"
    assert [item.value for item in of_bytes.queue.browse(db)] == [b"\xff", b"c"]
    assert leases.check(db).ok


def test_a_registration_with_an_unknown_outcome_is_found(db: Any, queue: Queue) -> None:
    requests = Requests(queue.layout)
    wishes = [Wish(client, 1, 1) for client in (b"one", b"other")]
    for wish in wishes:
        tr = db.create_transaction()
        requests.register(tr, wish)
        tr.commit().wait()
    tr = db.create_transaction()
    assert [run(requests.find(tr, wish)) for wish in wishes] == run(requests.first(tr, limit=0))


def test_a_long_waiting_call_renews_its_request(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)  # nobody is thought to be stuck
    requests = Requests(queue.layout)
    register(db, queue, clock, lives=1_000.0)
    counting = FaultyDatabase(db, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(StagedQueue(leases).dequeue, counting, timeout=20)
        wait_until(lambda: counting.commits >= 2)  # it registered, and waits
        front, before = run(requests.first(db.create_transaction(), limit=0))
        clock.now += 0.6 * REQUEST_SECONDS
        tr = db.create_transaction()
        requests.put(tr, front.key, replace(front.wish, wanted=2))  # which wakes who stands behind
        tr.commit().wait()

        def own() -> Request:
            return run(requests.first(db.create_transaction(), limit=0))[1]

        wait_until(lambda: own().wish.expires_at_us > before.wish.expires_at_us)
        tr = db.create_transaction()
        requests.remove(tr, front.key)
        queue.enqueue(tr, "a")
        tr.commit().wait()
        assert value(waiting.result(20)) == "a"


def test_more_due_timers_than_one_transaction_settles_do_not_change_the_order(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    queue.enqueue_many(db, [str(n) for n in range(FIRE_LIMIT + 2)])
    assert value(leases.lease(db, duration=3)) == "0"
    assert len(leases.lease_many(db, limit=FIRE_LIMIT + 1, duration=1)) == FIRE_LIMIT + 1
    clock.now += 5
    assert value(StagedQueue(leases).dequeue(db)) == "0"


def test_timers_that_can_not_fire_block_no_take(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    queue.enqueue_many(db, [str(n) for n in range(FIRE_LIMIT + 1)])
    for lease in leases.lease_many(db, limit=FIRE_LIMIT, duration=1):
        db[leases.layout.leased.key(pack(lease.position))] = b"\x20newer"
    clock.now += 5
    assert value(StagedQueue(leases).dequeue(db)) == str(FIRE_LIMIT)


def test_when_the_first_request_goes_the_next_one_watches(
    db: Any, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)  # nobody looks by the clock
    first, second = StagedQueue(leases), StagedQueue(leases)
    counting = FaultyDatabase(db, lambda: None)
    with ThreadPoolExecutor(2) as pool:
        leaving = pool.submit(first.dequeue, db, timeout=1.0)
        wait_until(lambda: has_requests(first, db, 1))
        staying = pool.submit(second.dequeue, counting, timeout=250)
        wait_until(lambda: counting.commits >= 2)  # it registered, and waits
        assert leaving.result(20) is None
        queue.enqueue(db, "a")
        assert value(staying.result(20)) == "a"


@pytest.mark.parametrize("how", ["nack", "redrive"])
def test_an_item_that_is_given_back_wakes_a_waiting_call(db: Any, queue: Queue, clock: Clock, how: str) -> None:
    leases = Leases(queue, clock=clock, max_attempts=1 if how == "redrive" else None)
    staged = StagedQueue(leases)
    queue.enqueue(db, "a")
    lease = leases.lease(db)
    assert lease is not None
    if how == "redrive":
        leases.nack(db, lease)
    counting = FaultyDatabase(db, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.dequeue, counting, timeout=250)
        wait_until(lambda: counting.commits >= 2)  # it registered, and waits
        if how == "redrive":
            leases.dead.redrive(db)
        else:
            leases.nack(db, lease)
        assert value(waiting.result(20)) == "a"
