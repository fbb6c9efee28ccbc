"""Only smart enqueues add items to a smart queue. Every layer can still take and move its items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import BulkInterrupted, ChecksBypassed, FdbQueueError, ItemTooLarge, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.results import Results
from fdbqueue.layers.smart import OWN_KEY, OWN_TYPE, Messages, MessageType, SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.moves.admission import refuse_smart
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import contents, enqueue_unchecked, rows_of, smart_queue

X = {"type": "x"}
CODEC = Messages(MessageType("x", sees=OWN_TYPE))


def new_queue(space: Subspace) -> Queue:
    """Return the queue as a process sees it that has not used it yet."""
    return Queue(space, codec=CODEC)


def subscribe(queue: Queue, db: Any) -> Subscriptions:
    """Subscribe, for those doors that deliver."""
    subscriptions = Subscriptions(queue)
    subscriptions.subscribe(db, "all")
    return subscriptions


DOORS: dict[str, Callable[[Queue, Any], object]] = {
    "Queue.enqueue": lambda queue, db: queue.enqueue(db, X),
    "Queue.enqueue with headers": lambda queue, db: queue.enqueue(db, X, headers={"a": 1}),
    "Queue.enqueue_many": lambda queue, db: queue.enqueue_many(db, [X, X]),
    "Leases.enqueue": lambda queue, db: Leases(queue).enqueue(db, X),
    "Leases.enqueue with a delay": lambda queue, db: Leases(queue).enqueue(db, X, delay=9),
    "Leases.enqueue_many": lambda queue, db: Leases(queue).enqueue_many(db, [X, X], ttl=9),
    "StagedQueue.enqueue": lambda queue, db: StagedQueue(queue).enqueue(db, X),
    "Subscriptions.enqueue": lambda queue, db: Subscriptions(queue).enqueue(db, X),
    "Subscriptions.enqueue at once": lambda queue, db: Subscriptions(queue).enqueue(db, X, immediate=True),
    "Queue.enqueue awaited": lambda queue, db: asyncio.run(queue.enqueue.aio(db, X)),
}
COMPOSED = {name: call for name, call in DOORS.items() if not name.startswith("StagedQueue")}


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_every_other_enqueue_is_refused_with_the_remedy(db: Any, space: Subspace, door: str, is_lent: bool) -> None:
    smart = smart_queue(space, MessageType("x", sees=OWN_TYPE))
    smart.enqueue(db, X)
    if is_lent:  # then the queue has a tail too
        smart.enqueue(db, X)
        assert smart.leases.lease(db) is not None
    before = rows_of(smart, db)
    for queue in (new_queue(space), smart.queue):
        with pytest.raises(ChecksBypassed, match=r"SmartQueue\(\.\.\.\)\.enqueue"):
            DOORS[door](queue, db)
    # A mark of a call that committed nothing is no item; nothing else was touched.
    assert [row for row in rows_of(smart, db) if b"once" not in row[0]] == [
        row for row in before if b"once" not in row[0]
    ]
    assert smart.check(db).problems == ()


@pytest.mark.parametrize("door", DOORS)
def test_the_queue_of_a_smart_queue_takes_no_other_enqueue_from_the_beginning(
    db: Any, space: Subspace, door: str
) -> None:
    queue = new_queue(space)
    subscribe(queue, db)
    smart = SmartQueue(queue)
    for own in (queue, smart.queue, smart.leases.queue):
        with pytest.raises(ChecksBypassed, match=r"SmartQueue\(\.\.\.\)\.enqueue"):
            DOORS[door](own, db)
    assert contents(smart, db) == []
    smart.enqueue(db, X)
    assert contents(smart, db) == [X]
    assert smart.check(db).problems == ()


def test_the_leases_of_a_smart_queue_take_no_other_enqueue_also_after_a_clear(db: Any, space: Subspace) -> None:
    leases = Leases(new_queue(space))
    smart = SmartQueue(leases)
    for layer in (leases, smart.leases, Results(leases), StagedQueue(leases)):
        with pytest.raises(ChecksBypassed):
            layer.enqueue(db, X)
    smart.enqueue(db, X)
    smart.clear(db)
    with pytest.raises(ChecksBypassed):
        leases.enqueue(db, X)
    jobs = PriorityQueue(new_queue(space["jobs"]), levels=3)
    SmartQueue(jobs)
    with pytest.raises(ChecksBypassed):
        jobs.enqueue(db, X)


@pytest.mark.parametrize("smart_is_first", [True, False])
@pytest.mark.parametrize("smart_has_levels", [True, False])
def test_a_priority_queue_of_the_same_queue_bypasses_no_check(
    db: Any, space: Subspace, smart_is_first: bool, smart_has_levels: bool
) -> None:
    queue = new_queue(space)
    if smart_has_levels:
        jobs = PriorityQueue(queue, levels=3)
        SmartQueue(jobs.leases)
    elif smart_is_first:
        SmartQueue(queue)
        jobs = PriorityQueue(queue, levels=3)
    else:
        jobs = PriorityQueue(queue, levels=3)
        SmartQueue(queue)
    for call in (
        lambda: jobs.enqueue(db, X, priority=0),
        lambda: jobs.enqueue_many(db, [X]),
        lambda: jobs.leases.enqueue(db, X),
        lambda: jobs.queue.enqueue(db, X),
        lambda: queue.enqueue(db, X),
    ):
        with pytest.raises(ChecksBypassed, match=r"SmartQueue\(\.\.\.\)\.enqueue"):
            call()
    assert jobs.dequeue(db) is None


@pytest.mark.parametrize("door", COMPOSED)
def test_other_enqueues_are_refused_in_the_first_smart_enqueues_transaction_too(
    db: Any, space: Subspace, door: str
) -> None:
    smart = smart_queue(space, MessageType("x", sees=OWN_TYPE))
    tr = db.create_transaction()
    smart.enqueue(tr, X)
    with pytest.raises(ChecksBypassed):
        COMPOSED[door](smart.queue, tr)
    smart.enqueue(tr, X)
    tr.commit().wait()
    assert contents(smart, db) == [X, X]


def test_a_priority_queue_refuses_enqueues_after_smart_enqueues_by_rank(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(new_queue(space), levels=3)
    jobs.enqueue(db, X)
    jobs.queue.clear(db)
    smart = SmartQueue(jobs.leases)
    smart.enqueue(db, X, headers={"priority": 1})
    for call in (
        lambda: jobs.enqueue(db, X, priority=0),
        lambda: jobs.enqueue_many(db, [X]),
        lambda: jobs.queue.enqueue_many(db, [X]),
        lambda: Queue(space, codec=CODEC, order=Levels(3)).enqueue(db, X),
        lambda: Queue(space, codec=CODEC).enqueue(db, X),
    ):
        with pytest.raises(ChecksBypassed):
            call()
    assert smart.enqueue(db, X, headers={"priority": 0}).position is not None
    assert [item.headers["priority"] for item in smart.dequeue_many(db)] == [0, 1]


def test_a_bulk_load_under_way_is_refused_when_the_queue_becomes_smart(db: Any, space: Subspace) -> None:
    smart, queue = smart_queue(space, MessageType("x", sees=OWN_TYPE)), new_queue(space)

    def values() -> Any:
        for _ in range(600):  # its first transaction is begun when half of a batch is there
            yield X
        smart.enqueue(db, X)
        for _ in range(6_000):  # more than the transactions take that are begun ahead
            yield X

    with pytest.raises(BulkInterrupted, match="is smart") as caught:
        queue.enqueue_many(db, values())
    assert isinstance(caught.value.__cause__, ChecksBypassed)
    assert queue.stats(db).available == 1 + caught.value.report.items


def test_every_layer_can_take_and_move_items_of_a_smart_queue(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    mortal = Leases(smart.queue, max_attempts=1, clock=smart.leases.clock)
    smart.enqueue_many(db, [{"type": "x", "n": n} for n in range(4)])
    for _ in range(2):
        lease = mortal.lease(db)
        assert lease is not None
        mortal.nack(db, lease)
    assert mortal.dead.redrive(db, to="place", limit=1) == 1
    assert mortal.dead.redrive(db, to="tail") == 1
    assert [message["n"] for message in contents(smart, db)] == [0, 2, 3, 1]
    first = smart.queue.dequeue(db)
    second = StagedQueue(mortal).dequeue(db)
    assert first is not None
    assert second is not None
    assert (first.value["n"], second.value["n"]) == (0, 2)
    assert len(contents(smart, db)) == 2


def test_a_redrive_does_not_block_a_smart_enqueue_in_its_transaction(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    mortal = Leases(smart.queue, max_attempts=1, clock=smart.leases.clock)
    smart.enqueue(db, X)
    lease = mortal.lease(db)
    assert lease is not None
    mortal.nack(db, lease)
    tr = db.create_transaction()
    mortal.dead.redrive(tr, to="tail")
    smart.enqueue(tr, X)
    with pytest.raises(ChecksBypassed):
        smart.queue.enqueue(tr, X)
    tr.commit().wait()
    assert len(contents(smart, db)) == 2


def test_an_older_versions_smart_queue_is_marked_by_its_next_smart_enqueue(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue(db, X)
    del db[smart.queue.layout.type_key]
    smart.queue.layout.known.has_high_water_mark = False
    other = new_queue(space)
    other.enqueue(db, X)  # nothing says yet that it is smart
    smart.enqueue(db, X)
    with pytest.raises(ChecksBypassed):
        other.enqueue(db, X)
    assert len(smart.dequeue_many(db)) == 3


def test_a_cleared_queue_is_not_smart_any_more(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue(db, X)
    smart.queue.clear(db)
    new_queue(space).enqueue(db, X)
    tr = db.create_transaction()
    smart.queue.clear(tr)
    smart.enqueue(tr, X)
    smart.queue.clear(tr)
    new_queue(space).enqueue(tr, X)
    tr.commit().wait()
    assert smart.queue.stats(db).available == 1


def test_a_first_smart_enqueue_that_is_refused_has_written_nothing(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", key=lambda message: message["key"]))
    tr = db.create_transaction()
    with pytest.raises(ItemTooLarge):
        smart.enqueue(tr, X | {"key": "k" * 2_000})
    tr.commit().wait()

    assert rows_of(smart, db) == []
    assert db[smart.queue.layout.catalogue_key] is None


def test_a_second_smart_enqueue_leaves_the_type_key_alone(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue(db, X)
    db[smart.queue.layout.type_key] = b"smart"
    rows = rows_of(smart, db)
    smart.enqueue(db, X)
    changed = {key for key, _ in rows_of(smart, db)} - {key for key, _ in rows}
    assert smart.queue.layout.type_key not in changed


def test_concurrent_first_smart_enqueues_do_not_conflict(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", key=lambda message: message["n"], sees=OWN_KEY))
    one, other = db.create_transaction(), db.create_transaction()
    smart.enqueue(one, {"type": "x", "n": 1})
    smart.enqueue(other, {"type": "x", "n": 2})
    assert not conflicts(one)
    assert not conflicts(other)
    assert len(contents(smart, db)) == 2


def test_a_plain_enqueue_does_not_conflict_with_a_smart_one_and_check_tells_of_what_slipped_in(
    db: Any, space: Subspace
) -> None:
    smart = smart_queue(space, MessageType("x", sees=OWN_TYPE))
    one, other = db.create_transaction(), db.create_transaction()
    smart.enqueue(one, X)
    new_queue(space).enqueue(other, X)
    assert not conflicts(one)
    assert not conflicts(other)
    assert any("do not name its index entry" in problem for problem in smart.check(db).problems)


def test_finding_that_a_queue_is_smart_costs_no_extra_read(db: Any, space: Subspace) -> None:
    queue = new_queue(space)
    queue.enqueue(db, X)
    counting = FaultyDatabase(db, lambda: None)
    queue.enqueue(counting, X)
    assert counting.commits == 1
    assert not queue.layout.known.has_high_water_mark, "one read of the last key has told all"


def test_an_early_refuse_smart_does_not_hide_a_later_smart_enqueue(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    run(refuse_smart(db.create_transaction(), smart.queue.layout))
    smart.enqueue(db, X)
    with pytest.raises(ChecksBypassed, match="is smart"):
        run(refuse_smart(db.create_transaction(), smart.queue.layout))


def leave_available(queue: Queue, leases: Leases, db: Any) -> None:
    queue.enqueue(db, X)


def leave_leased(queue: Queue, leases: Leases, db: Any) -> None:
    queue.enqueue(db, X)
    assert leases.lease(db) is not None


def leave_delayed(queue: Queue, leases: Leases, db: Any) -> None:
    leases.enqueue(db, X, delay=60)


def leave_dead(queue: Queue, leases: Leases, db: Any) -> None:
    queue.enqueue(db, X)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease)


@pytest.mark.parametrize("leave", [leave_available, leave_leased, leave_delayed, leave_dead])
@pytest.mark.parametrize("many", [False, True])
def test_a_queue_with_plain_items_becomes_no_smart_one(
    db: Any, space: Subspace, leave: Callable[[Queue, Leases, Any], None], many: bool
) -> None:
    queue = new_queue(space)
    leave(queue, Leases(queue, max_attempts=1), db)
    smart = SmartQueue(new_queue(space))
    before = rows_of(smart, db)
    with pytest.raises(FdbQueueError) as caught:
        smart.enqueue_many(db, [X]) if many else smart.enqueue(db, X)
    error = caught.value.__cause__ if isinstance(caught.value, BulkInterrupted) else caught.value
    assert isinstance(error, ChecksBypassed)
    assert "Take them out first" in str(error)
    assert [row for row in rows_of(smart, db) if b"once" not in row[0]] == [
        row for row in before if b"once" not in row[0]
    ]
    queue.enqueue(db, X)  # it is still a plain queue
    queue.clear(db)
    assert smart.enqueue(db, X).position is not None
    assert smart.check(db).problems == ()


def test_plain_items_of_the_same_transaction_are_refused_too(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", sees=OWN_TYPE))
    tr = db.create_transaction()
    new_queue(space).enqueue(tr, X)
    with pytest.raises(ChecksBypassed, match="Take them out first"):
        smart.enqueue(tr, X)


def test_check_reports_an_item_that_an_older_version_appended(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue(db, X)
    enqueue_unchecked(smart, db, X)
    assert any("do not name its index entry" in problem for problem in smart.check(db).problems)
