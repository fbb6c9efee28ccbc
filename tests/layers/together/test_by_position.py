"""Items are found, cancelled, updated and rescheduled by their positions: every verb, state and layer."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import CompletionError, LeaseLost, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    Done,
    EarliestDeadline,
    FollowUp,
    Groups,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    Subscriptions,
)
from fdbqueue.stored.items import MAX_ITEM_BYTES
from tests.helpers.by_position import KINDS, STATES, TERMS, call, item_in, made, sound
from tests.helpers.clock import Clock
from tests.helpers.leasing import lease_of
from tests.helpers.results import outcome_of


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_item_is_found_in_every_state(db: Any, space: Subspace, clock: Clock, kind: str, state: str) -> None:
    own = made(kind, space, clock)
    position, _ = item_in(state, own, db)

    found = own.layer.get(db, position)

    assert (found.position, found.value, found.headers["n"], found.state) == (position, call("old"), 1, state)
    assert own.layer.get(db.create_transaction(), position) == found
    assert own.layer.get(db, Position.parse(position.text)) == found
    assert own.layer.get_many(db, [Position(9_999, b"none"), position]) == [None, found]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_item_is_gone_and_its_holder_learns_it(
    db: Any, space: Subspace, clock: Clock, kind: str, state: str
) -> None:
    own = made(kind, space, clock)
    position, lease = item_in(state, own, db)

    assert own.layer.cancel(db, position) is True

    assert own.layer.get(db, position) is None
    assert own.layer.cancel(db, position) is False
    stats = own.leases.stats(db)
    assert (stats.available, stats.leased, stats.delayed, stats.dead) == (0, 0, 0, 0)
    assert (stats.deleted, stats.purged) == ((0, 1) if state == "dead" else (1, 0))
    sound(own, db)
    if state == "leased":
        with pytest.raises(LeaseLost, match="was cancelled while") as lost:
            own.leases.ack(db, lease)
        assert lost.value.lost == [position]
        with pytest.raises(LeaseLost, match="was cancelled while"):
            own.leases.extend(db, lease)
    if kind != "Queue":  # its outcome ends by the wall clock
        clock.now += 10_000
        own.leases.reclaim(db)
        assert own.leases.stats(db).outcomes == 0
        sound(own, db)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_updated_item_keeps_its_place_and_its_holder_learns_it(
    db: Any, space: Subspace, clock: Clock, kind: str, state: str
) -> None:
    own = made(kind, space, clock)
    position, lease = item_in(state, own, db)
    before = own.layer.get(db, position)

    update = own.layer.update
    assert update(db, position, value=call("new" * 40_000)) == position
    assert update(db, position, headers={"m": 2}) == position
    assert update(db, Position(7_000, b"none"), headers={"m": 2}) is None

    after = own.layer.get(db, position)
    assert (after.value, dict(after.headers)) == (call("new" * 40_000), {"m": 2})
    assert after.state == ("available" if state == "leased" else state)
    assert after.visible_at == before.visible_at
    assert after.enqueued_at == before.enqueued_at
    assert after.attempt == (0 if state == "leased" else before.attempt)
    sound(own, db)
    if lease is not None and state == "leased":
        with pytest.raises(LeaseLost, match="was updated while"):
            own.leases.ack(db, lease)
        again = lease_of(own.leases, db)
        assert (again.value, again.attempt) == (call("new" * 40_000), 1)
    assert update(db, position, value=call("small")) == position
    assert own.layer.get(db, position).value == call("small")
    sound(own, db)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rescheduled_item_comes_at_its_new_time_and_its_holder_learns_it(
    db: Any, space: Subspace, clock: Clock, kind: str, state: str
) -> None:
    own = made(kind, space, clock)
    layer: Any = own.leases if kind == "Queue" else own.layer
    position, lease = item_in(state, own, db)

    assert layer.reschedule(db, position, delay=100) == position

    found = layer.get(db, position)
    assert (found.state, found.visible_at, found.attempt) == ("delayed", clock() + 100, 0)
    sound(own, db)
    if state == "leased":
        with pytest.raises(LeaseLost, match="was rescheduled while"):
            own.leases.nack(db, lease)
    clock.now += 50
    assert own.leases.lease(db) is None
    assert layer.reschedule(db, position, at=clock() + 10) == position
    clock.now += 11
    assert lease_of(own.leases, db).position == position
    assert layer.reschedule(db, position, delay=0) == position
    assert layer.get(db, position).state == "available"
    sound(own, db)


def test_a_queue_with_the_wall_clock_reschedules(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    first, second = queue.enqueue(db, "first"), queue.enqueue(db, "second")

    assert queue.reschedule_many(db, [first, first], delay=1_000) == [first, first]

    assert queue.dequeue(db).position == second  # type: ignore[union-attr]
    assert queue.get(db, first).state == "delayed"  # type: ignore[union-attr]
    assert Leases(queue).check(db).problems == ()


def test_calls_in_a_transaction_take_effect_together_or_not_at_all(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    positions = [queue.enqueue(db, text) for text in "abc"]
    tr = db.create_transaction()
    assert queue.cancel(tr, positions[0])
    assert queue.update(tr, positions[1], value="B") == positions[1]
    assert queue.get(tr, positions[0]) is None
    assert [item.value for item in queue.browse(db)] == ["a", "b", "c"]

    tr.commit().wait()

    assert [item.value for item in queue.browse(db)] == ["B", "c"]


@pytest.mark.parametrize("edit", ["cancel", "update", "reschedule"])
def test_of_an_edit_and_a_lease_at_the_same_time_one_runs_again(db: Any, space: Subspace, edit: str) -> None:
    leases = Leases(Queue(space, codec="str"))
    position = leases.enqueue(db, "a")
    editing, leasing = db.create_transaction(), db.create_transaction()
    getattr(leases, edit)(editing, position, **TERMS.get(edit, {}))
    assert leases.lease(leasing) is not None

    leasing.commit().wait()
    with pytest.raises(FDBError) as refused:
        editing.commit().wait()
    assert refused.value.code == 1020

    assert leases.get(db, position).state == "leased"  # type: ignore[union-attr]


def test_many_items_are_edited_by_one_call(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    positions = [leases.enqueue(db, str(n)) for n in range(120)]
    taken = leases.lease_many(db, limit=20)

    assert leases.update_many(db, positions, headers={"seen": True}) == positions
    assert [item.headers for item in leases.get_many(db, positions) if item] == [{"seen": True}] * 120
    assert leases.cancel_many(db, [*positions[:70], positions[0]]) == [*[True] * 70, False]

    assert leases.stats(db).available == 50
    assert leases.check(db).problems == ()
    with pytest.raises(LeaseLost):
        leases.ack_many(db, taken)


def test_a_large_value_and_a_small_one_replace_each_other(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    position = queue.enqueue(db, b"a" * 200_000, headers={"n": 1})

    for payload in (b"b" * 300_000, b"c", b"d" * 100_000):
        queue.update(db, position, value=payload)
        found = queue.get(db, position)
        assert found is not None
        assert (found.value, found.headers) == (payload, {"n": 1})
        assert queue.check(db).problems == ()
    queue.update(db, position, headers={})
    assert queue.get(db, position).headers == {}  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="over the limit"):
        queue.update(db, position, value=b"e" * (MAX_ITEM_BYTES + 1))
    queue.cancel(db, position)
    begin, end = queue.layout.whole_range()
    assert all(
        row.key.startswith(queue.layout.counts.key()) for row in db.get_range(begin, end) if b"once" not in row.key
    )


# --- priorities and orders


def test_another_priority_moves_an_item_with_its_chunks_and_its_group(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space), levels=3)
    groups = Groups(jobs)
    group = groups.open(db, "g")
    first = jobs.enqueue(db, b"first", priority=1)
    large = group.enqueue(db, b"x" * 150_000, priority=2)

    moved = jobs.reschedule(db, large, priority=0)

    assert moved == Position(large.index, large.random, rank=0)
    assert jobs.get(db, large) is None
    assert [item.position for item in jobs.browse(db)] == [moved, first]
    assert jobs.stats(db).levels == (1, 1, 0)
    assert jobs.check(db).problems == ()
    found = jobs.get(db, moved)
    assert found is not None
    assert (found.value, found.headers["priority"]) == (b"x" * 150_000, 0)
    assert group.stats(db).available == 1
    group.close(db)
    assert [jobs.dequeue(db).position, jobs.dequeue(db).position] == [moved, first]  # type: ignore[union-attr]
    assert group.stats(db).state == "done"


@pytest.mark.parametrize("state", STATES)
def test_another_priority_is_given_in_every_state(db: Any, space: Subspace, clock: Clock, state: str) -> None:
    own = made("PriorityQueue", space, clock)
    position, lease = item_in(state, own, db)

    moved = own.layer.reschedule(db, position, priority=0)

    assert moved == Position(position.index, position.random, rank=0)
    assert own.layer.get(db, moved).state == ("delayed" if state == "delayed" else "available")
    assert own.layer.get(db, position) is None
    sound(own, db)
    if state == "leased":
        with pytest.raises(LeaseLost, match="or it got another priority or rank, or the lease expired"):
            own.leases.ack(db, lease)


def test_headers_that_are_replaced_keep_the_priority_and_can_give_another(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=3)
    position = jobs.enqueue(db, "a", priority=1, headers={"old": 1})

    assert jobs.update(db, position, headers={"new": 2}) == position
    assert jobs.get(db, position).headers == {"priority": 1, "new": 2}  # type: ignore[union-attr]
    moved = jobs.update(db, position, headers={"priority": 2})
    assert moved is not None
    assert moved.rank == 2
    assert jobs.check(db).problems == ()


def test_an_order_by_headers_moves_an_item_with_them(db: Any, space: Subspace) -> None:
    flights = Queue(space, codec="str", order=EarliestDeadline())
    leases = Leases(flights)
    rome = leases.enqueue(db, "Rome", headers={"deadline": 200.0})
    oslo = leases.enqueue(db, "Oslo", headers={"deadline": 300.0})

    moved = leases.update(db, oslo, headers={"deadline": 100.0})

    assert [item.position for item in flights.browse(db)] == [moved, rome]
    with pytest.raises(ValueError, match="no levels"):
        leases.reschedule(db, rome, priority=1)
    assert leases.check(db).problems == ()


# --- what else hangs on an item


def test_a_cancelled_item_ends_its_completion_and_drops_its_follow_ups(db: Any, space: Subspace) -> None:
    mails, receipts = Leases(Queue(space["a"], codec="str")), Leases(Queue(space["b"], codec="str"))
    results = Results(mails)
    completion = results.enqueue(db, "a", then=FollowUp(receipts, "r"))

    assert results.cancel(db, completion.position)

    with pytest.raises(CompletionError, match="cancelled"):
        completion.wait(timeout=60)
    receipts.reclaim(db)
    assert receipts.stats(db).delayed == 0
    assert mails.check(db).problems == receipts.check(db).problems == ()


def test_a_cancelled_member_ends_its_group(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    group = Groups(leases).open(db, "g")
    position = group.enqueue(db, "a")
    group.close(db)
    lease_of(leases, db)

    assert leases.cancel(db, position)

    assert group.wait(timeout=60).cancelled == 1
    assert leases.check(db).problems == ()


def test_a_follow_up_that_waits_gets_another_value_and_delay_and_still_waits(db: Any, space: Subspace) -> None:
    clock = Clock()
    leases = Leases(Queue(space, codec="str"), clock=clock)
    Results(leases).enqueue(db, "first", then=FollowUp(leases, "second"))
    [held] = leases.browse(db, state="delayed")

    leases.update(db, held.position, value="changed")
    leases.reschedule(db, held.position, delay=30)
    with pytest.raises(ValueError, match="waits for another item"):
        leases.reschedule(db, held.position, at=clock() + 5)
    leases.ack(db, lease_of(leases, db))

    assert leases.lease(db) is None
    clock.now += 31
    assert lease_of(leases, db).value == "changed"
    assert leases.check(db).problems == ()


def test_a_dead_letter_that_is_rescheduled_makes_its_completion_pending_again(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"), max_attempts=1)
    completion = Results(leases).enqueue(db, "a")
    leases.nack(db, lease_of(leases, db))
    assert completion.outcome(db).state == "dead"  # type: ignore[union-attr]

    leases.reschedule(db, completion.position, delay=0)

    assert completion.outcome(db) is None
    leases.ack(db, lease_of(leases, db), result=7)
    assert completion.wait(timeout=60) == 7
    assert leases.check(db).problems == ()


def test_a_position_that_a_completion_names_does_not_change(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=3)
    completion = Results(jobs).enqueue(db, "a", priority=1)
    other = jobs.enqueue(db, "b", priority=1)

    with pytest.raises(ValueError, match="its completion names its position"):
        jobs.reschedule_many(db, [other, completion.position], priority=0)

    assert jobs.stats(db).levels == (0, 2, 0)


def test_a_blob_stays_with_its_item_unless_it_is_the_value(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    blobs = Blobs(leases)
    with blobs.write(db) as writer:
        writer.write(b"x" * 2_000_000)
    [item] = leases.browse(db)

    leases.update(db, item.position, headers={"n": 1})
    assert blobs.stats(db).blobs == 1
    assert leases.check(db).problems == ()
    leases.update(db, item.position, value=b"small")
    assert blobs.stats(db).blobs == 0
    assert leases.get(db, item.position).value == b"small"  # type: ignore[union-attr]
    assert leases.check(db).problems == ()


def test_changed_headers_bring_an_item_to_a_subscription_that_has_passed_it(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Queue(space, codec="str"))
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    subscriptions.subscribe(db, "blue", selector="color = 'blue'")
    position = subscriptions.leases.enqueue(db, "a", headers={"color": "green"})
    assert red.lease(db) is None

    subscriptions.update(db, position, headers={"color": "red"})

    lease = red.lease(db)
    assert lease is not None
    assert lease.position == position
    assert subscriptions.cancel(db, position)
    assert red.stats(db).held == 0
    assert subscriptions.check(db).problems == ()


# --- wrong arguments


@pytest.mark.parametrize("verb", ["cancel", "update", "reschedule"])
@pytest.mark.parametrize("kind", ["Leases", "PriorityQueue", "Subscriptions", "SmartQueue"])
def test_a_handler_that_changes_its_own_item_stores_no_result_and_no_follow_up(
    db: Any, space: Subspace, clock: Clock, kind: str, verb: str
) -> None:
    own = made(kind, space["jobs"], clock)
    results, receipts = Results(own.layer), Leases(Queue(space["receipts"], codec="str"))
    completions = [results.enqueue(db, call(text)) for text in ("first", "old", "last")]
    terms: dict[str, Any] = {"update": {"value": call("new")}, "reschedule": {"delay": 1_000}}.get(verb, {})
    edited: list[bool] = []

    def handle(lease: Lease[Any]) -> Any:
        if lease.value["text"] != "old":
            return lease.value["text"]
        edited.append(getattr(own.layer, verb)(db, lease.position, **terms) is not None)
        return Done("of the old one", then=FollowUp(receipts, "a receipt"))

    source: Any = results
    if kind == "Subscriptions":
        source = own.layer.subscribe(db, "all")
    report = Consumer(source, handle, concurrency=3).drain(db)

    again = verb == "update"
    assert (edited, report.lost, report.acked) == ([True], 1, 2 + again)
    assert receipts.stats(db).available == 0
    assert [completions[at].wait(timeout=60) for at in (0, 2)] == ["first", "last"]
    if again:
        assert completions[1].wait(timeout=60) == "new"
    if verb == "cancel":
        assert outcome_of(completions[1]) == "cancelled"
    sound(own, db)
