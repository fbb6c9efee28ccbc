"""Fetching copies to send them again: several at once, and waiting for the next one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import CodecError
from fdbqueue.engine import Subspace
from fdbqueue.engine.waiting import until_changed
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import NOTHING, OWN_KEY, MessageType, Replace, SmartQueue, capacity
from fdbqueue.layers.smart._resend import Copy
from fdbqueue.moves.taking import Takes
from tests.helpers.clock import Clock
from tests.helpers.copies import FRAME, RECEIVED, WAIT, fetch, frame, numbers, registered
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import smart_queue


@pytest.fixture
def smart(db: Any, space: Subspace) -> SmartQueue:
    """A queue with one recipient, B."""
    return registered(smart_queue(space, FRAME, RECEIVED), db)


@pytest.fixture
def merging(db: Any, space: Subspace) -> SmartQueue:
    """A queue whose frames take over the values of the next one with their key."""
    own = MessageType("frame", check=lambda queued, new: Replace(new), key=lambda message: message["key"], sees=OWN_KEY)
    return registered(smart_queue(space, own, RECEIVED), db)


def test_many_are_fetched_in_order_and_at_most_so_many(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(n) for n in range(150)])
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B", limit=70)] == list(range(70))
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B", limit=200)] == list(range(70, 150))
    assert smart.resend.fetch_many(db, "B") == []


def test_large_copies_come_a_few_at_a_time(db: Any, smart: SmartQueue) -> None:
    for n in range(4):
        smart.enqueue(db, {**frame(n), "large": "x" * 900_000})
    amounts = [len(smart.resend.fetch_many(db, "B")) for _ in range(3)]
    assert sum(amounts) == 4
    assert amounts[0] == 2


@pytest.mark.parametrize("many", [False, True])
def test_an_unreadable_item_ends_a_fetch_and_is_raised_when_first(db: Any, smart: SmartQueue, many: bool) -> None:
    outcomes = smart.enqueue_many(db, [frame(1), frame(2), frame(3)])
    assert outcomes[1].position is not None
    key = smart.queue.layout.item_key(outcomes[1].position)
    kept, damaged = db[key], bytes(db[key]).replace(b'"type"', b'"tope"')
    db[key] = damaged
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B")] == [1]
    with pytest.raises(CodecError):
        _ = smart.resend.fetch_many(db, "B") if many else smart.resend.fetch(db, "B")
    db[key] = bytes(kept)
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B")] == [2, 3]


@pytest.mark.parametrize("composed", [False, True])
def test_a_fetch_settles_due_timers_as_a_lease_does(db: Any, space: Subspace, composed: bool) -> None:
    clock = Clock()
    smart = registered(smart_queue(space, FRAME, clock=clock), db)
    smart.enqueue_many(db, [frame(0), frame(1)])
    assert smart.leases.lease(db, duration=5) is not None
    smart.enqueue(db, frame(2), delay=5)
    smart.enqueue(db, frame(3), ttl=5)
    clock.now += 6
    tr = db.create_transaction() if composed else db
    assert [copy.value["n"] for copy in smart.resend.fetch_many(tr, "B")] == [0, 1, 2]
    if composed:
        tr.commit().wait()
    assert smart.queue.stats(db).expired == 1
    assert numbers(smart, db) == [0, 1, 2]


def test_more_timers_than_one_transaction_settles_are_settled_before_the_first_copy(db: Any, space: Subspace) -> None:
    clock = Clock()
    smart = registered(smart_queue(space, FRAME, clock=clock), db)
    smart.enqueue_many(db, [frame(n) for n in range(150)], delay=5)
    smart.enqueue(db, frame(999))
    clock.now += 6
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B", limit=200)] == [*range(150), 999]


def test_many_expired_items_are_removed_in_several_transactions(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Takes, "EXPIRED_LIMIT", 3)
    smart = registered(smart_queue(space, MessageType("frame", sees=NOTHING, expires=lambda data: data["n"] < 7)), db)
    smart.enqueue_many(db, [frame(n) for n in range(9)])
    counting = FaultyDatabase(db, lambda: None)
    assert [copy.value["n"] for copy in smart.resend.fetch_many(counting, "B")] == [7, 8]
    assert counting.commits == 3


def test_a_fetch_that_finds_nothing_in_time_returns_none_and_writes_nothing(db: Any, smart: SmartQueue) -> None:
    counting = FaultyDatabase(db, lambda: None)
    began = time.monotonic()
    assert smart.resend.fetch(counting, "B", timeout=0.05) is None
    assert time.monotonic() - began >= 0.05
    assert smart.resend.fetch(db, "B") is None


class Waiting:
    """A fetch that waits in a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits = threading.Event()
        self._pool = ThreadPoolExecutor(1)

        def waits(*given: Any) -> Any:
            self._waits.set()
            return until_changed(*given)

        monkeypatch.setattr(capacity, "until_changed", waits)

    def begin(self, smart: SmartQueue, db: Any) -> Future[Copy | None]:
        """Return when it waits."""
        fetched = self._pool.submit(lambda: smart.resend.fetch(db, "B", timeout=WAIT))
        assert self._waits.wait(WAIT)
        return fetched

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    """A thread that fetches."""
    opened = Waiting(monkeypatch)
    yield opened
    opened.close()


def test_a_waiting_fetch_is_woken_by_an_enqueue(db: Any, smart: SmartQueue, waiting: Waiting) -> None:
    fetched = waiting.begin(smart, db)
    smart.enqueue(db, frame(1))
    copy = fetched.result(WAIT)
    assert copy is not None
    assert copy.value["n"] == 1


def test_a_waiting_fetch_is_woken_by_an_item_given_back(db: Any, smart: SmartQueue, waiting: Waiting) -> None:
    smart.enqueue(db, frame(1))
    lease = smart.leases.lease(db)
    assert lease is not None
    fetched = waiting.begin(smart, db)
    smart.leases.nack(db, lease)
    assert fetched.result(WAIT) is not None


def test_a_waiting_fetch_is_woken_by_a_reset(db: Any, smart: SmartQueue, waiting: Waiting) -> None:
    smart.enqueue(db, frame(1))
    fetch(smart, db)
    fetched = waiting.begin(smart, db)
    smart.resend.reset(db, "B")
    assert fetched.result(WAIT) is not None


def test_a_waiting_fetch_is_woken_by_a_replacement(db: Any, merging: SmartQueue, waiting: Waiting) -> None:
    merging.enqueue(db, frame(1))
    fetch(merging, db)
    fetched = waiting.begin(merging, db)
    merging.enqueue(db, frame(2))
    copy = fetched.result(WAIT)
    assert copy is not None
    assert copy.value["n"] == 2


def test_a_waiting_fetch_is_woken_by_a_redriven_letter(db: Any, smart: SmartQueue, waiting: Waiting) -> None:
    mortal = Leases(smart.queue, max_attempts=1, clock=smart.leases.clock)
    smart.enqueue(db, frame(1))
    lease = mortal.lease(db)
    assert lease is not None
    mortal.nack(db, lease)
    fetched = waiting.begin(smart, db)
    mortal.dead.redrive(db)
    assert fetched.result(WAIT) is not None


def test_a_waiting_fetch_fails_when_its_recipient_is_unregistered(db: Any, smart: SmartQueue, waiting: Waiting) -> None:
    fetched = waiting.begin(smart, db)
    smart.resend.unregister(db, "B")
    with pytest.raises(ValueError, match="not registered"):
        fetched.result(WAIT)


def test_a_waiting_fetch_gets_a_delayed_item_when_its_time_has_come(db: Any, space: Subspace) -> None:
    smart = registered(smart_queue(space, FRAME, clock=time.time), db)
    smart.enqueue(db, frame(1), delay=0.2)
    assert smart.resend.fetch(db, "B", timeout=None) is not None


def test_a_fetch_can_be_awaited_and_cancelled(db: Any, smart: SmartQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        waits = asyncio.Event()

        def tell(*given: Any) -> Any:
            waits.set()
            return until_changed(*given)

        monkeypatch.setattr(capacity, "until_changed", tell)
        task = asyncio.create_task(smart.resend.fetch.aio(db, "B", timeout=WAIT))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await smart.enqueue.aio(db, frame(1))
        [copy] = await smart.resend.fetch_many.aio(db, "B", timeout=None)
        assert copy.value["n"] == 1

    asyncio.run(main())
