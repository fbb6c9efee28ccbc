"""Results: a caller waits for the end of an item, and other items follow it."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import enum
import pickle
import threading
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, CompletionError, ItemTooLarge, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    ACKED,
    Completion,
    Consumer,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    Subscriptions,
)
from fdbqueue.layers.smart import Decision, Messages, MessageType, SmartQueue
from tests.helpers.clock import Clock
from tests.helpers.leasing import lease_of
from tests.helpers.processes import Processes
from tests.helpers.reading import Reading
from tests.helpers.results import consistent, outcome_of
from tests.helpers.staging import wait_until
from tests.helpers.subscribing import standing

EAST = dt.timezone(dt.timedelta(hours=2))


class Color(enum.Enum):
    red = "r"


@dataclass
class Receipt:
    number: int
    text: str


def test_a_completion_gives_the_result_of_the_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    assert completion.outcome(db) is None

    leases.ack(db, lease_of(leases, db), result={"n": [1, b"two", None]})

    assert completion.wait(timeout=60) == {"n": [1, b"two", None]}
    found = completion.outcome(db)
    assert found is not None
    assert (found.state, found.ended_at) == ("done", 1_000_000.0)
    assert leases.stats(db).outcomes == 1
    assert consistent(leases, db)


def test_an_ack_without_a_result_gives_the_result_none(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    leases.ack(db, lease_of(leases, db))
    assert completion.wait(timeout=60) is None


def test_a_waiting_call_wakes_at_the_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(completion.wait(timeout=60)))
    waiting.start()

    leases.ack(db, lease_of(leases, db), result=7)

    waiting.join(30)
    assert found == [7]


def test_a_completion_can_be_awaited_by_many_tasks(db: Any, leases: Leases, results: Results[Any]) -> None:
    async def main() -> list[Any]:
        completions = [await results.enqueue.aio(db, str(n)) for n in range(20)]

        async def awaited(completion: Completion[Any]) -> Any:
            return await completion

        tasks = [asyncio.create_task(awaited(one)) for one in completions * 2]
        await asyncio.sleep(0)
        for n in range(20):
            lease = await leases.lease.aio(db)
            assert lease is not None
            await leases.ack.aio(db, lease, result=n)
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    assert asyncio.run(main()) == [*range(20), *range(20)]


def test_an_await_that_is_cancelled_leaves_the_item_alone(db: Any, leases: Leases, results: Results[Any]) -> None:
    async def main() -> None:
        completion = await results.enqueue.aio(db, "x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(completion, 0.01)
        await leases.ack.aio(db, taken_of(await leases.lease.aio(db)), result=1)
        assert await completion == 1

    def taken_of(lease: Lease | None) -> Lease:
        assert lease is not None
        return lease

    asyncio.run(main())


def test_a_wait_ends_at_its_timeout(db: Any, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    for timeout in 0, 0.01:
        with pytest.raises(TimeoutError, match="has not ended in"):
            completion.wait(timeout)


def test_in_the_callers_transaction_the_completion_is_there_after_the_commit(
    db: Any, leases: Leases, results: Results[Any]
) -> None:
    tr = db.create_transaction()
    completion = results.enqueue(tr, "x")
    with pytest.raises(CompletionError, match="Nothing is known") as told:
        completion.wait(timeout=60)
    assert told.value.outcome == "gone"

    tr.commit().wait()
    leases.ack(db, lease_of(leases, db), result=1)
    assert completion.wait(timeout=60) == 1


def test_another_process_waits_by_the_text(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    text = str(completion)
    copy = pickle.loads(pickle.dumps(completion))
    with pytest.raises(ValueError, match="has no database to wait in"):
        copy.wait()

    leases.ack(db, lease_of(leases, db), result=1)

    assert results.completion(db, text).wait(timeout=60) == 1
    assert results.completion(db, completion.position).wait(timeout=60) == 1
    assert copy.at(db).wait(timeout=60) == 1
    assert Position.parse(text) == completion.position


def test_a_result_has_the_type_that_was_asked_for(db: Any, leases: Leases) -> None:
    receipts = Results(leases, type=Receipt)
    first, second = receipts.enqueue(db, "x"), receipts.enqueue(db, "y")
    leases.ack(db, lease_of(leases, db), result=Receipt(7, "thanks"))
    leases.ack(db, lease_of(leases, db), result="no receipt")

    assert first.wait(timeout=60) == Receipt(7, "thanks")
    with pytest.raises(CodecError, match="is not of the type"):
        second.wait(timeout=60)


@pytest.mark.parametrize(("result", "error"), [(object(), CodecError), (b"x" * 90_001, ItemTooLarge)])
def test_a_result_that_cant_be_stored_leaves_the_lease(
    db: Any, leases: Leases, results: Results[Any], result: Any, error: type[Exception]
) -> None:
    completion = results.enqueue(db, "x")
    lease = lease_of(leases, db)
    with pytest.raises(error):
        leases.ack(db, lease, result=result)
    assert completion.outcome(db) is None
    leases.ack(db, lease, result=b"x" * 89_000)
    assert completion.wait(timeout=60) == b"x" * 89_000


def test_an_item_without_a_completion_ignores_the_result_and_costs_nothing(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "x")
    leases.ack(db, lease_of(leases, db), result=[7])
    assert leases.stats(db).outcomes == 0
    assert list(db.get_range_startswith(leases.layout.completions.prefix)) == []


def test_items_without_completions_cost_no_read(db: Any, leases: Leases, results: Results[Any]) -> None:
    reads: list[int] = []
    for enqueue in leases.enqueue, leases.enqueue, results.enqueue:
        enqueue(db, "x")
        reading = Reading(db)
        leases.ack(reading, lease_of(leases, reading), result=1)
        reads.append(reading.reads)
    # Not even the item with a completion does: the outcome is a blind write. The first call of a process reads more.
    assert reads[1] == reads[2] == 2


def waits_elsewhere(url: str, space: Subspace, text: str, said: Any) -> None:
    with fdbqueue.open(url) as db:
        results = Results(Leases(Queue(space, codec="str")), type=int)
        said.put("waits")
        said.put(results.completion(db, text).wait(timeout=60))


@pytest.mark.engines("file", "cluster")
def test_another_process_wakes_at_the_ack(db: Any, url: str, queue: Queue, processes: Processes) -> None:
    leases = Leases(queue)
    completion = Results(leases).enqueue(db, "x")
    said = processes.queue()
    other = processes.start(waits_elsewhere, url, queue.layout.space, str(completion), said)
    assert said.get(timeout=600) == "waits"
    leases.ack(db, lease_of(leases, db), result=7)
    assert said.get(timeout=600) == 7
    other.join(60)


def test_a_consumer_stores_what_its_handler_returns(db: Any, leases: Leases, results: Results[Any]) -> None:
    completions = [results.enqueue(db, str(n)) for n in range(10)]
    plain = leases.enqueue(db, "plain")

    def handle(lease: Lease) -> object:
        return object() if lease.position == plain else int(lease.value) ** 2

    report = Consumer(results, handle).drain(db)
    assert (report.acked, report.failed) == (11, 0)
    assert [one.wait(timeout=60) for one in completions] == [n * n for n in range(10)]
    assert consistent(leases, db)


@pytest.mark.parametrize(
    ("result", "kind", "plain"),
    [
        ((1, 2), tuple[int, int], [1, 2]),
        ({1}, set[int], [1]),
        (Receipt(7, "x"), Receipt, {"number": 7, "text": "x"}),
        (Color.red, Color, "r"),
        (dt.date(2026, 1, 2), dt.date, "2026-01-02"),
        (dt.time(3), dt.time, "03:00:00"),
        (dt.datetime(2026, 1, 2), dt.datetime, "2026-01-02T00:00:00"),
        (dt.timedelta(1), dt.timedelta, "P1D"),
        (uuid.UUID(int=1), uuid.UUID, "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.10"), decimal.Decimal, "1.10"),
        (dt.datetime(2026, 1, 2, tzinfo=EAST), dt.datetime, dt.datetime(2026, 1, 1, 22, tzinfo=dt.UTC)),
    ],
)
def test_what_a_result_comes_back_as(db: Any, queue: Queue, result: Any, kind: Any, plain: Any) -> None:
    leases = Leases(queue)
    for results, wanted in ((Results(leases), plain), (Results(leases, type=kind), result)):
        completion = results.enqueue(db, "x")
        leases.ack(db, lease_of(leases, db), result=result)
        found = completion.wait(timeout=60)
        assert (found, type(found)) == (wanted, type(wanted))


def test_a_result_that_cant_be_stored_fails_the_attempt_and_no_other(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    results = Results(leases)
    bad, good = results.enqueue(db, "bad"), results.enqueue(db, "good")
    report = Consumer(leases, lambda lease: object() if lease.value == "bad" else 1).drain(db)
    assert (report.acked, report.dead) == (1, 1)
    assert good.wait(timeout=60) == 1
    with pytest.raises(CompletionError, match="A result must be what MessagePack can hold"):
        bad.wait(timeout=60)


def test_a_handler_that_acks_in_its_own_transaction_gives_the_result_there(
    db: Any, leases: Leases, results: Results[Any]
) -> None:
    completion = results.enqueue(db, "x")

    async def handle(lease: Lease) -> object:
        await leases.ack.aio(db, lease, result="mine")
        return ACKED

    assert Consumer(leases, handle).drain(db).acked == 1
    assert completion.wait(timeout=60) == "mine"


def test_items_of_every_layer_have_completions(db: Any, space: Subspace, clock: Clock) -> None:
    jobs = PriorityQueue(Queue(space["jobs"], codec="str"), clock=clock)
    parcels = Subscriptions(Leases(Queue(space["parcels"], codec="str"), clock=clock))
    smart = SmartQueue(Leases(Queue(space["smart"], codec=Messages(MessageType("call"))), clock=clock))
    made: list[tuple[Results[Any], Any, dict[str, Any]]] = [
        (Results(jobs), "x", {"priority": 1}),
        (Results(parcels), "x", {"headers": {"color": "red"}}),
        (Results(smart), {"type": "call"}, {"delay": 1}),
    ]
    for results, value, terms in made:
        completion = results.enqueue(db, value, **terms)
        clock.now += 2
        results.leases.ack(db, lease_of(results.leases, db), result="yes")
        assert completion.wait(timeout=60) == "yes"
        assert consistent(results.leases, db)


def test_an_item_that_is_delivered_straight_to_a_waiting_consumer_has_its_completion(db: Any, space: Subspace) -> None:
    parcels = Subscriptions(Leases(Queue(space["parcels"], codec="str")))
    subscription = parcels.subscribe(db, "all")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(subscription.lease(db, timeout=60)))
    waiting.start()
    wait_until(lambda: len(standing(parcels, db)) == 1)
    completion = Results(parcels).enqueue(db, "x")
    waiting.join(30)
    assert found[0].wants_result
    parcels.leases.ack(db, found[0], result=1)
    assert completion.wait(timeout=60) == 1


def test_an_ignored_message_gives_the_completion_of_the_queued_item(db: Any, space: Subspace) -> None:
    first_wins = MessageType("call", key=lambda call: call["to"], check=lambda own, new: Decision.ignore)
    smart = SmartQueue(Queue(space["smart"], codec=Messages(first_wins)))
    results = Results(smart)
    first = results.enqueue(db, {"type": "call", "to": "Ann"})
    second = results.enqueue(db, {"type": "call", "to": "Ann"})
    assert second.position == first.position
    smart.leases.ack(db, lease_of(smart.leases, db), result="spoken")
    assert [first.wait(timeout=60), second.wait(timeout=60)] == ["spoken", "spoken"]


def test_an_item_that_a_smart_queue_removes_ends_its_completion(db: Any, space: Subspace) -> None:
    cancels = MessageType("call", check=lambda own, new: Decision.ignore_and_delete)
    smart = SmartQueue(Queue(space["smart"], codec=Messages(cancels)))
    results = Results(smart)
    first = results.enqueue(db, {"type": "call"})
    second = results.enqueue(db, {"type": "call"})
    assert [outcome_of(first), outcome_of(second)] == ["deleted", "ignored"]
    assert consistent(smart.leases, db)
