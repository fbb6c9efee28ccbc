"""What the verbs of sessions read, write and commit: it grows neither with the sessions nor with their items."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.embedded.client.read_api import ReadApi
from fdbqueue.engine.embedded.client.write_api import WriteApi
from fdbqueue.layers import Consumer, Gate, SessionLease, Sessions
from fdbqueue.layers.staged.requests import Requests
from tests.benchmarks.contended import CountingDatabase
from tests.helpers.counted import Counted
from tests.helpers.rounds import Rounds
from tests.helpers.sessions import fill, lease_of
from tests.helpers.staging import wait_until


def drain_by_threads(db: Any, owns: list[Sessions]) -> None:
    """Do all items by eight threads, which share some objects."""

    def work(own: Sessions) -> None:
        lease = own.lease(db, duration=600)
        while lease is not None:
            lease = own.ack_and_next(db, lease) or own.lease(db, duration=600)

    threads = [threading.Thread(target=work, args=(owns[n % len(owns)],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cost(counted: Counted, call: Any) -> dict[str, int]:
    counted.did.clear()
    call(counted)
    return dict(counted.did)


@pytest.mark.engines("memory")
def test_the_cost_of_a_verb_grows_neither_with_the_sessions_nor_with_their_items(db: Any, space: Subspace) -> None:
    costs = []
    for size in (3, 300):
        sessions = Sessions(Queue(space[size], codec="str"))
        sessions.enqueue_many(db, ["x"] * size, session="long")
        for number in range(size):
            sessions.enqueue(db, "x", session=f"s{number}")
        sessions.enqueue(db, "x", session="other")
        sessions.line.joined_until = float("inf")  # else a worker looks for former shards once a second
        leases: list[SessionLease] = []
        counted = Counted(db)
        sessions.enqueue(counted, "x", session="other")  # it compares the codec with the queue's, once a minute

        def lease(db: Any, sessions: Sessions = sessions, leases: list[SessionLease] = leases) -> None:
            leases.append(lease_of(sessions, db))

        found = {
            "enqueue": cost(counted, lambda db, own=sessions: own.enqueue(db, "y", session="long")),
            "first": cost(counted, lambda db, own=sessions: own.enqueue(db, "y", session="new")),
            "lease": cost(counted, lease),
            "next": cost(counted, lambda db, own=sessions: leases.append(own.ack_and_next(db, leases[-1]))),  # noqa: B023
            "ack": cost(counted, lambda db, own=sessions: own.ack(db, leases[-1])),  # noqa: B023
        }
        costs.append(found)
    assert costs[0] == costs[1]
    assert all(one["commits"] == 1 for one in costs[0].values())
    assert costs[0]["enqueue"] == {"reads": 4, "writes": 4, "commits": 1}
    assert costs[0]["first"]["reads"] <= 6
    assert costs[0]["lease"]["reads"] <= 8
    assert costs[0]["ack"]["reads"] <= 6
    assert costs[0]["next"]["writes"] <= 11


@pytest.mark.engines("memory")
def test_enqueues_into_sessions_that_have_items_write_no_key_in_common_but_totals(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    names = [f"s{n}" for n in range(40)]
    fill(sessions, db, *(f"{name}:1" for name in names))
    written: Counter[bytes] = Counter()
    for name in names:
        counted = Counted(db)
        sessions.enqueue(counted, "2", session=name)
        written.update(counted.written)
    shared = [key for key, times in written.items() if times > 1]
    kinds = {space.unpack(key)[0] for key in shared}
    assert kinds == {"summed", "once"}, "the commit marker is this process's own"
    assert len([key for key in shared if space.unpack(key)[0] == "summed"]) > 8, "totals are spread"


@pytest.mark.engines("memory")
def test_new_items_and_new_sessions_add_no_conflict_but_that_of_their_writes(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[bytes] = []
    add = WriteApi.add_write_conflict_range

    def counting_add(self: WriteApi, begin: Any, end: Any) -> None:
        ranges.append(begin)
        add(self, begin, end)

    monkeypatch.setattr(WriteApi, "add_write_conflict_range", counting_add)
    sessions = Sessions(Queue(space, codec="str"))
    guards = []
    for number in (3, 30):
        tr = db.create_transaction()
        ranges.clear()
        sessions.enqueue_many(tr, ["x"] * number, session=f"s{number}")
        guards.append(len(ranges))

    assert guards == [1, 1]  # of the session's record


@pytest.mark.engines("memory")
def test_workers_of_a_process_share_transactions(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, *(f"s{number}:1" for number in range(100)))
    sessions.stats(db)
    counted = Counted(db)

    async def lease_at_once() -> None:
        for _ in range(4):
            leases = await asyncio.gather(*(sessions.lease.aio(counted) for _ in range(16)))
            assert None not in leases

    asyncio.run(lease_at_once())
    assert counted.did["commits"] <= 4 * 3, "sixteen calls at once share their transactions"


@pytest.mark.engines("memory")
def test_leases_that_share_a_transaction_wait_for_their_reads_together(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, *(f"s{number}:1" for number in range(12)))
    slow = Rounds(db)
    for limit in (1, 1, 8):
        assert len(sessions.staged.lease_many(slow, limit=limit)) == limit
    assert slow.rounds == 2, "one answer has the line, and one round of them has all eight sessions"


def test_slots_of_one_session_that_are_leased_together_have_items_of_their_own(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), concurrency=3)
    sessions.enqueue_many(db, ["1", "2", "3"], session="ann")
    sessions.enqueue_many(db, ["4", "5", "6"], session="bob")
    leased = sessions.staged.lease_many(Rounds(db), limit=6)
    assert len({lease.value.row.key for lease in leased if lease.value.row}) == 6


def test_acks_of_sessions_that_share_a_transaction_count_them_together(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, *(f"s{number}:1" for number in range(8)), "s0:2")
    leases = [lease_of(sessions, db) for _ in range(8)]
    counted = Counted(db)

    async def ack_at_once() -> None:
        await asyncio.gather(*(sessions.ack.aio(counted, lease) for lease in leases))

    asyncio.run(ack_at_once())
    assert counted.did["commits"] == 2, "the first call is alone, and seven share the next transaction"
    assert counted.did["writes"] <= 8 * 7 + 2 * 3 + 4, "each transaction changes a counter of the line once"
    assert sessions.stats(db).dequeued == 8
    assert sessions.check(db).ok


class Noting(Counter[str]):
    """A counter that also notes the order of what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def __setitem__(self, kind: str, times: int) -> None:
        self.order.append(kind)
        super().__setitem__(kind, times)


@pytest.mark.engines("memory")
def test_acks_that_share_a_transaction_read_before_they_write(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, *(f"s{number}:1" for number in range(8)))
    leases = [lease_of(sessions, db) for _ in range(8)]
    counted = Counted(db)
    counted.did = noting = Noting()

    async def ack_at_once() -> None:
        await asyncio.gather(*(sessions.ack.aio(counted, lease) for lease in leases))

    asyncio.run(ack_at_once())
    together = noting.order[noting.order.index("commits") + 1 :]
    assert together.count("reads") == 7 * 3
    assert "reads" not in together[together.index("writes") :], "a read behind a write is slower"


@pytest.mark.slow
def test_workers_hardly_conflict(db: Any, space: Subspace) -> None:
    counting = CountingDatabase(db)
    owns = [Sessions(Queue(space, codec="str"), quantum=5) for _ in range(4)]
    numbers = iter(range(600))
    owns[0].enqueue_many(db, ["x"] * 600, session=lambda value: f"s{next(numbers) % 60}")

    drain_by_threads(counting, owns)
    assert owns[0].stats(db).dequeued == 600
    assert counting.counted.conflicts < 0.05 * 600, counting.counted


@pytest.mark.engines("memory")
def test_a_consumer_makes_few_transactions_per_item(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    numbers = iter(range(1_000))
    sessions.enqueue_many(db, ["x"] * 1_000, session=lambda value: f"s{next(numbers) % 10}")
    counted = Counted(db)

    async def handle(lease: SessionLease) -> None:
        """Do nothing."""

    report = Consumer(sessions, handle, concurrency=8).drain(counted)
    assert report.acked == 1_000
    assert counted.did["commits"] < 500


@pytest.mark.engines("memory")
def test_the_cost_of_a_slot_that_goes_on_does_not_grow_with_the_sessions_that_wait(db: Any, space: Subspace) -> None:
    costs = []
    for size in (5, 200):
        sessions = Sessions(Queue(space[size], codec="str"), gates=lambda _: (Gate("tenant", 3), Gate("user", 2)))
        sessions.enqueue_many(db, map(str, range(size)), session=lambda value: value)
        lease = lease_of(sessions, db)
        counted = Counted(db)
        sessions.ack(counted, lease)
        costs.append(dict(counted.did))
        records = sessions.layout.space["gate"]["limit"].key()
        assert not any(key.startswith(records) for key in counted.written), "a slot that goes on changes no record"
        sessions.enqueue(counted, "x", session="3")  # the first call with a database looks for the registration
        costs.append(cost(counted, lambda db, own=sessions: own.enqueue(db, "x", session="4")))
        assert costs[-1] == {"reads": 4, "writes": 4, "commits": 1}
    assert costs[:2] == costs[2:]
    assert costs[0]["reads"] <= 22
    assert costs[0]["writes"] <= 22


@pytest.mark.slow
def test_workers_of_sessions_with_gates_seldom_conflict(db: Any, space: Subspace) -> None:
    counting = CountingDatabase(db)
    gates = [(Gate(("tenant", tenant), 4),) for tenant in range(10)]
    owns = [
        Sessions(Queue(space, codec="str"), quantum=5, gates=lambda session: gates[session[0] % 10]) for _ in range(4)
    ]
    numbers = iter(range(600))
    owns[0].enqueue_many(db, ["x"] * 600, session=lambda value: (next(numbers) % 60,))

    drain_by_threads(counting, owns)
    assert owns[0].stats(db).dequeued == 600
    assert counting.counted.conflicts < 0.05 * 600, counting.counted


@pytest.mark.engines("memory")
@pytest.mark.parametrize("terms", [{"concurrency": 2}, {"gates": lambda _: (Gate("all", 2),)}])
def test_a_consumer_makes_at_most_two_transactions_per_item_of_a_session_with_slots(
    db: Any, space: Subspace, terms: dict[str, Any]
) -> None:
    sessions = Sessions(Queue(space, codec="str"), **terms)
    sessions.enqueue_many(db, ["x"] * 60, session="ann")
    counted = Counted(db)

    async def handle(lease: SessionLease) -> None:
        """Do nothing."""

    assert Consumer(sessions, handle, concurrency=2).drain(counted).acked == 60
    assert counted.did["commits"] < 2.5 * 60  # a busy machine adds a look now and then
    assert counted.did["reads"] <= 20 * 60


@pytest.mark.engines("memory")
def test_a_wake_of_a_worker_reads_no_range_slowly(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded engine is slow to read a range in which the transaction has read or written a key."""
    slow: list[bytes] = []
    any_page = ReadApi._any_page

    def noting(self: Any, begin: Any, *args: Any) -> Any:
        slow.append(bytes(begin.key))
        return any_page(self, begin, *args)

    monkeypatch.setattr(ReadApi, "_any_page", noting)
    sessions = Sessions(Queue(space, codec="str"))
    leases: list[SessionLease | None] = []
    waiting = threading.Thread(target=lambda: leases.append(sessions.lease(db, timeout=30)))
    waiting.start()
    wait_until(lambda: sessions.staged.contention_stats().looks >= 2)
    sessions.enqueue(db, "1", session="ann")
    waiting.join()

    assert [lease and lease.value for lease in leases] == ["1"]
    line = sessions.line.layout
    assert {line.begin, Requests(line).begin} & set(slow) == set()
