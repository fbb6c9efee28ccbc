"""Results: a caller waits for the end of an item, and other items follow it."""

from __future__ import annotations

import asyncio
import pickle
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import fdbqueue
from fdbqueue import CodecError, CompletionError, ItemTooLarge, LeaseLost, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    ACKED,
    Completion,
    Consumer,
    Done,
    FollowUp,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.smart import Decision, Messages, MessageType, SmartQueue
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import FaultyDatabase
from tests.helpers.processes import Processes
from tests.helpers.reading import Reading
from tests.helpers.staging import has_requests, wait_until
from tests.helpers.subscribing import standing


@dataclass
class Receipt:
    number: int
    text: str


@pytest.fixture
def results(leases: Leases) -> Results[Any]:
    return Results(leases, keep=60)


def taken(leases: Leases, db: Any) -> Lease:
    lease = leases.lease(db)
    assert lease is not None
    return lease


def outcome_of(completion: Completion[Any]) -> str:
    with pytest.raises(CompletionError) as told:
        completion.wait(timeout=5)
    return told.value.outcome


def consistent(leases: Leases, db: Any) -> bool:
    report = leases.check(db)
    assert report.problems == ()
    return report.counted


def test_a_completion_gives_the_result_of_the_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    assert completion.outcome(db) is None

    leases.ack(db, taken(leases, db), result={"n": [1, b"two", None]})

    assert completion.wait(timeout=5) == {"n": [1, b"two", None]}
    found = completion.outcome(db)
    assert found is not None
    assert (found.state, found.ended_at) == ("done", 1_000_000.0)
    assert leases.stats(db).outcomes == 1
    assert consistent(leases, db)


def test_an_ack_without_a_result_gives_the_result_none(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    leases.ack(db, taken(leases, db))
    assert completion.wait(timeout=5) is None


def test_a_waiting_call_wakes_at_the_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(completion.wait(timeout=60)))
    waiting.start()

    leases.ack(db, taken(leases, db), result=7)

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
        completion.wait(timeout=5)
    assert told.value.outcome == "gone"

    tr.commit().wait()
    leases.ack(db, taken(leases, db), result=1)
    assert completion.wait(timeout=5) == 1


def test_another_process_waits_by_the_text(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    text = str(completion)
    copy = pickle.loads(pickle.dumps(completion))
    with pytest.raises(ValueError, match="has no database to wait in"):
        copy.wait()

    leases.ack(db, taken(leases, db), result=1)

    assert results.completion(db, text).wait(timeout=5) == 1
    assert results.completion(db, completion.position).wait(timeout=5) == 1
    assert copy.at(db).wait(timeout=5) == 1
    assert Position.parse(text) == completion.position


def test_a_result_has_the_type_that_was_asked_for(db: Any, leases: Leases) -> None:
    receipts = Results(leases, type=Receipt)
    first, second = receipts.enqueue(db, "x"), receipts.enqueue(db, "y")
    leases.ack(db, taken(leases, db), result=Receipt(7, "thanks"))
    leases.ack(db, taken(leases, db), result="no receipt")

    assert first.wait(timeout=5) == Receipt(7, "thanks")
    with pytest.raises(CodecError, match="is not of the type"):
        second.wait(timeout=5)


@pytest.mark.parametrize(("result", "error"), [(object(), CodecError), (b"x" * 90_001, ItemTooLarge)])
def test_a_result_that_cant_be_stored_leaves_the_lease(
    db: Any, leases: Leases, results: Results[Any], result: Any, error: type[Exception]
) -> None:
    completion = results.enqueue(db, "x")
    lease = taken(leases, db)
    with pytest.raises(error):
        leases.ack(db, lease, result=result)
    assert completion.outcome(db) is None
    leases.ack(db, lease, result=b"x" * 89_000)
    assert completion.wait(timeout=5) == b"x" * 89_000


def test_an_item_without_a_completion_ignores_the_result_and_costs_nothing(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "x")
    leases.ack(db, taken(leases, db), result=object())
    assert leases.stats(db).outcomes == 0
    assert list(db.get_range_startswith(leases.layout.completions.prefix)) == []


def test_items_without_completions_cost_no_read(db: Any, leases: Leases, results: Results[Any]) -> None:
    reads: list[int] = []
    for enqueue in leases.enqueue, leases.enqueue, results.enqueue:
        enqueue(db, "x")
        reading = Reading(db)
        leases.ack(reading, taken(leases, reading), result=1)
        reads.append(reading.reads)
    # Not even the item with a completion does: the outcome is a blind write. The first call of a process reads more.
    assert reads[1] == reads[2] == 3


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
    assert said.get(timeout=60) == "waits"
    leases.ack(db, taken(leases, db), result=7)
    assert said.get(timeout=60) == 7
    other.join(60)


def test_a_dead_letter_ends_the_wait_with_its_last_error(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=2, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, taken(leases, db), error="the printer is on fire")
    assert completion.outcome(db) is None
    leases.nack(db, taken(leases, db), error="still on fire")

    with pytest.raises(CompletionError, match="became a dead letter") as told:
        completion.wait(timeout=5)
    assert (told.value.outcome, told.value.error) == ("dead", "still on fire")
    assert consistent(leases, db)


def test_a_redriven_dead_letter_is_pending_again(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, taken(leases, db))
    leases.dead.redrive(db)

    assert completion.outcome(db) is None
    assert leases.stats(db).outcomes == 0
    assert consistent(leases, db)
    leases.ack(db, taken(leases, db), result=2)
    assert completion.wait(timeout=5) == 2
    assert consistent(leases, db)


def test_a_dead_letter_that_goes_to_the_tail_stays_dead_for_its_completion(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, taken(leases, db))
    leases.dead.redrive(db, to="tail")
    leases.ack(db, taken(leases, db), result=2)
    assert outcome_of(completion) == "dead"
    assert consistent(leases, db)


def test_a_purge_keeps_the_outcome_of_the_death(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases).enqueue(db, "x")
    leases.nack(db, taken(leases, db), error="why")
    leases.dead.purge(db)
    assert outcome_of(completion) == "dead"
    assert consistent(leases, db)


def test_an_expired_item_ends_the_wait_even_without_a_consumer(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    available, delayed = results.enqueue(db, "x", ttl=10), results.enqueue(db, "y", ttl=10, delay=5)
    clock.now += 11
    assert [outcome_of(available), outcome_of(delayed)] == ["expired", "expired"]
    assert consistent(leases, db)


def test_a_wait_ends_when_the_time_to_live_ends(db: Any, queue: Queue) -> None:
    completion = Results(Leases(queue)).enqueue(db, "x", ttl=0.2)
    assert outcome_of(completion) == "expired"


def test_a_leased_item_may_outlive_its_time_to_live(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    completion = results.enqueue(db, "x", ttl=10)
    lease = taken(leases, db)
    clock.now += 11
    with pytest.raises(TimeoutError):
        completion.wait(timeout=0.05)
    leases.ack(db, lease, result=1)
    assert completion.wait(timeout=5) == 1


def test_a_cleared_queue_ends_the_wait(db: Any, queue: Queue, results: Results[Any]) -> None:
    completion = results.enqueue(db, "x")
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(outcome_of(completion)))
    waiting.start()
    queue.clear(db)
    waiting.join(30)
    assert found == ["gone"]


def test_a_dequeued_item_is_done_without_a_result(db: Any, leases: Leases, results: Results[Any]) -> None:
    first, second, third = (results.enqueue(db, value) for value in "abc")
    leases.queue.dequeue(db)
    StagedQueue(leases).dequeue(db)
    StagedQueue(leases).dequeue_many(db)
    assert [one.wait(timeout=5) for one in (first, second, third)] == [None, None, None]
    assert consistent(leases, db)


def test_an_outcome_is_removed_after_its_time(db: Any, leases: Leases, results: Results[Any], clock: Clock) -> None:
    completion = results.enqueue(db, "x")
    longer = results.enqueue(db, "y", keep=100)
    for _ in range(2):
        leases.ack(db, taken(leases, db), result=1)
    clock.now += 59
    assert leases.lease(db) is None
    assert completion.wait(timeout=5) == 1

    clock.now += 2
    assert leases.lease(db) is None  # any call that takes items fires the timer

    assert outcome_of(completion) == "gone"
    assert longer.wait(timeout=5) == 1
    assert leases.stats(db).outcomes == 1
    assert consistent(leases, db)
    clock.now += 100
    leases.reclaim(db)
    leases.queue.stats(db)
    assert list(db.get_range(leases.layout.completions.begin, leases.layout.completions.end)) == []
    assert consistent(leases, db)


def test_many_old_outcomes_do_not_delay_the_next_item(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    for batch in range(3):
        tr = db.create_transaction()
        for n in range(100):
            results.enqueue(tr, f"{batch} {n}")
        tr.commit().wait()
    leases.ack_many(db, leases.lease_many(db, limit=300, duration=600))
    leases.enqueue(db, "next", delay=100)
    clock.now += 200
    counted = FaultyDatabase(db, lambda: None)
    assert taken(leases, counted).value == "next"
    assert counted.commits <= 3
    assert leases.stats(db).outcomes == 0
    assert consistent(leases, db)


def test_of_a_redrive_and_the_removal_of_the_outcome_at_once_one_runs_again(
    db: Any, queue: Queue, clock: Clock
) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    for redrive_first in (True, False):
        completion = Results(leases, keep=10).enqueue(db, "x")
        leases.nack(db, taken(leases, db))
        clock.now += 20
        redriving, removing = db.create_transaction(), db.create_transaction()
        assert leases.dead.redrive(redriving) == 1
        leases.reclaim(removing)
        first, second = (redriving, removing) if redrive_first else (removing, redriving)
        assert not conflicts(first)
        assert conflicts(second)
        if not redrive_first:
            leases.dead.redrive(db)
        assert completion.outcome(db) is None
        leases.ack(db, taken(leases, db), result=1)
        assert completion.wait(timeout=5) == 1
        assert consistent(leases, db)


def test_the_timer_of_an_outcome_spares_a_redriven_item(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    completion = Results(leases, keep=10).enqueue(db, "x")
    leases.nack(db, taken(leases, db))
    leases.dead.redrive(db)
    clock.now += 60
    lease = taken(leases, db)
    assert completion.outcome(db) is None
    leases.ack(db, lease, result=1)
    assert completion.wait(timeout=5) == 1


def test_a_consumer_stores_what_its_handler_returns(db: Any, leases: Leases, results: Results[Any]) -> None:
    completions = [results.enqueue(db, str(n)) for n in range(10)]
    plain = leases.enqueue(db, "plain")

    def handle(lease: Lease) -> object:
        return object() if lease.position == plain else int(lease.value) ** 2

    report = Consumer(results, handle).drain(db)
    assert (report.acked, report.failed) == (11, 0)
    assert [one.wait(timeout=5) for one in completions] == [n * n for n in range(10)]
    assert consistent(leases, db)


def test_a_result_that_cant_be_stored_fails_the_attempt_and_no_other(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    results = Results(leases)
    bad, good = results.enqueue(db, "bad"), results.enqueue(db, "good")
    report = Consumer(leases, lambda lease: object() if lease.value == "bad" else 1).drain(db)
    assert (report.acked, report.dead) == (1, 1)
    assert good.wait(timeout=5) == 1
    with pytest.raises(CompletionError, match="A result must be what MessagePack can hold"):
        bad.wait(timeout=5)


def test_a_handler_that_acks_in_its_own_transaction_gives_the_result_there(
    db: Any, leases: Leases, results: Results[Any]
) -> None:
    completion = results.enqueue(db, "x")

    async def handle(lease: Lease) -> object:
        await leases.ack.aio(db, lease, result="mine")
        return ACKED

    assert Consumer(leases, handle).drain(db).acked == 1
    assert completion.wait(timeout=5) == "mine"


def test_an_ack_enqueues_follow_ups_in_its_own_transaction(db: Any, leases: Leases, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space["jobs"], codec="json"))
    leases.enqueue(db, "x")
    lease = taken(leases, db)

    tr = db.create_transaction()
    leases.ack(tr, lease, then=[FollowUp(jobs, {"n": 1}, priority=2), FollowUp(leases.queue, "again")])
    assert jobs.stats(db).items.available == 0
    tr.commit().wait()

    assert [item.headers["priority"] for item in jobs.browse(db)] == [2]
    assert [item.value for item in leases.queue.browse(db)] == ["again"]
    with pytest.raises(LeaseLost):
        leases.ack(db, lease, then=FollowUp(leases, "twice"))
    assert leases.stats(db).available == 1


def test_a_handlers_follow_ups_are_enqueued_with_its_ack(db: Any, leases: Leases, results: Results[Any]) -> None:
    completion = results.enqueue(db, "3")

    def handle(lease: Lease) -> object:
        n = int(lease.value)
        return Done(n, then=FollowUp(leases, str(n - 1)) if n else ())

    assert Consumer(leases, handle, concurrency=2).drain(db).acked >= 1
    assert Consumer(leases, handle).drain(db).failed == 0
    assert completion.wait(timeout=5) == 3
    stats = leases.stats(db)
    assert (stats.enqueued, stats.dequeued) == (4, 4)


def test_a_follow_up_of_an_enqueue_waits_for_the_ack(
    db: Any, leases: Leases, results: Results[Any], space: Subspace, clock: Clock
) -> None:
    mails = Leases(Queue(space["mails"], codec="str"), clock=clock)
    first = results.enqueue(db, "order", then=[FollowUp(mails, "receipt"), FollowUp(mails, "survey", delay=5)])
    assert mails.lease(db) is None
    assert mails.stats(db).delayed == 2

    leases.ack(db, taken(leases, db), result=1)

    assert taken(mails, db).value == "receipt"
    assert mails.lease(db) is None
    clock.now += 6
    assert taken(mails, db).value == "survey"
    assert first.wait(timeout=5) == 1
    assert consistent(mails, db)
    assert consistent(leases, db)


def test_a_chain_of_completions_ends_one_by_one(db: Any, leases: Leases, results: Results[Any]) -> None:
    second = FollowUp(results, "second", then=FollowUp(leases, "third"))
    first = results.enqueue(db, "first", then=second)
    seen: list[str] = []
    Consumer(leases, lambda lease: seen.append(lease.value), concurrency=1).drain(db)
    assert seen == ["first", "second", "third"]
    assert first.wait(timeout=5) is None


def test_the_follow_up_of_an_expired_item_is_removed_and_its_completion_ends(
    db: Any, leases: Leases, results: Results[Any], clock: Clock
) -> None:
    results.enqueue(db, "x", ttl=5, then=FollowUp(results, "follow-up", then=FollowUp(leases, "and its own")))
    [follow_up, last] = leases.browse(db, state="delayed")
    completion = results.completion(db, follow_up.position)
    clock.now += 6
    for _ in range(3):
        assert leases.lease(db) is None
    assert outcome_of(completion) == "deleted"
    stats = leases.stats(db)
    assert (stats.available, stats.delayed, stats.deleted, stats.expired) == (0, 0, 2, 1)
    assert last.position != follow_up.position
    assert consistent(leases, db)


def test_the_follow_up_of_a_dead_letter_waits_for_its_redrive(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    results = Results(leases)
    for value in "ab":
        results.enqueue(db, value, then=FollowUp(leases, f"after {value}"))
        leases.nack(db, taken(leases, db))
    assert leases.lease(db) is None
    [first, second] = leases.dead.browse(db)

    leases.dead.redrive(db, first.position)
    leases.ack(db, taken(leases, db))
    assert taken(leases, db).value == "after a"
    leases.dead.purge(db, second.position)
    assert leases.lease(db) is None
    assert leases.stats(db).deleted == 1
    assert consistent(leases, db)


def test_a_follow_up_wakes_a_consumer_that_waits(db: Any, leases: Leases, space: Subspace) -> None:
    mails = Leases(Queue(space["mails"], codec="str"))
    Results(leases).enqueue(db, "x", then=FollowUp(mails, "receipt"))
    parcels = Subscriptions(Leases(Queue(space["parcels"], codec="str")))
    subscription = parcels.subscribe(db, "all")
    Results(leases).enqueue(db, "y", then=FollowUp(subscription.leases, "parcel"))
    found: list[Any] = []
    calls = [
        lambda: found.append(StagedQueue(mails).lease(db, timeout=10)),
        lambda: found.append(subscription.lease(db, timeout=10)),
    ]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    wait_until(lambda: has_requests(StagedQueue(mails), db, 1) and len(standing(parcels, db)) == 1)
    for _ in range(2):
        leases.ack(db, taken(leases, db))
    for thread in threads:
        thread.join(30)
    assert sorted(lease.value for lease in found) == ["parcel", "receipt"]


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
        results.leases.ack(db, taken(results.leases, db), result="yes")
        assert completion.wait(timeout=5) == "yes"
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
    assert completion.wait(timeout=5) == 1


def test_an_ignored_message_gives_the_completion_of_the_queued_item(db: Any, space: Subspace) -> None:
    first_wins = MessageType("call", key=lambda call: call["to"], check=lambda own, new: Decision.ignore)
    smart = SmartQueue(Queue(space["smart"], codec=Messages(first_wins)))
    results = Results(smart)
    first = results.enqueue(db, {"type": "call", "to": "Ann"})
    second = results.enqueue(db, {"type": "call", "to": "Ann"})
    assert second.position == first.position
    smart.leases.ack(db, taken(smart.leases, db), result="spoken")
    assert [first.wait(timeout=5), second.wait(timeout=5)] == ["spoken", "spoken"]


def test_an_item_that_a_smart_queue_removes_ends_its_completion(db: Any, space: Subspace) -> None:
    cancels = MessageType("call", check=lambda own, new: Decision.ignore_and_delete)
    smart = SmartQueue(Queue(space["smart"], codec=Messages(cancels)))
    results = Results(smart)
    first = results.enqueue(db, {"type": "call"})
    second = results.enqueue(db, {"type": "call"})
    assert [outcome_of(first), outcome_of(second)] == ["deleted", "ignored"]
    assert consistent(smart.leases, db)


def test_the_wrong_arguments_are_named(db: Any, leases: Leases, results: Results[Any]) -> None:
    wrong: Any
    for wrong in (leases.queue, StagedQueue(leases), None, "orders", db):
        with pytest.raises(TypeError, match="Results takes Leases, as in"):
            Results(wrong)
    for wrong in (StagedQueue(leases), None, "orders", db, Consumer(leases, print)):
        with pytest.raises(TypeError, match="A follow-up is enqueued in a transaction"):
            FollowUp(wrong, "x")
    with pytest.raises(TypeError, match="priority"):
        FollowUp(leases, "x", priority=1)
    with pytest.raises(CodecError):
        FollowUp(leases, 7)
    for wrong in ("x", 7, [7], None, leases):
        with pytest.raises(TypeError, match="`then` is a FollowUp"):
            results.enqueue(db, "x", then=wrong)
    with pytest.raises(ItemTooLarge, match="follow-ups take about"):
        results.enqueue(db, "x", then=[FollowUp(leases, "y")] * 20)
    with pytest.raises(ValueError, match="can't have a time `at`"):
        results.enqueue(db, "x", then=FollowUp(leases, "y", at=5))
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="keep is a number of seconds"):
            results.enqueue(db, "x", keep=wrong)
        with pytest.raises(ValueError, match="keep is a number of seconds"):
            Results(leases, keep=wrong)
    for wrong in (None, 7, db):
        with pytest.raises(TypeError, match="An item is named by the text"):
            results.completion(db, wrong)
    with pytest.raises(ValueError, match="is not a position"):
        results.completion(db, "7")
    with pytest.raises(TypeError, match=r"Completion\.at makes its own transactions"):
        results.completion(db.create_transaction(), "7:ab")
    with pytest.raises(ValueError, match="Give a result for each lease"):
        leases.ack_many(db, [], results=[1])
    assert leases.stats(db).enqueued == 0
