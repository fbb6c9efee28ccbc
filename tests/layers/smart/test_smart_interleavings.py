"""Two at once, laid out by hand: who would have decided otherwise, had it seen the other, conflicts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from fdbqueue import FdbQueueError
from fdbqueue.engine import Subspace
from fdbqueue.layers.smart import NOTHING, OWN_KEY, OWN_TYPE, Decision, Limit, MessageType, Outcome, Replace, SmartQueue
from fdbqueue.stored.places import RANGE_READ_ITEMS
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.rounds import Rounds
from tests.helpers.smart import (
    CONFIRMATION,
    Confirmation,
    Note,
    Order,
    Progress,
    contents,
    enqueue_unchecked,
    file_of,
    note,
    number_of,
    position_of,
    smart_queue,
)


def both(db: Any, one: Callable[[Any], Any], other: Callable[[Any], Any]) -> bool:
    """Do both in transactions that don't see each other, and say whether the second to commit conflicts."""
    first, second = db.create_transaction(), db.create_transaction()
    second.get_read_version().wait()
    one(first)
    other(second)
    assert not conflicts(first)
    return conflicts(second)


def test_of_two_reports_of_progress_at_once_never_both_stay(db: Any, smart: SmartQueue) -> None:
    assert both(db, lambda tr: smart.enqueue(tr, Progress("a", 1)), lambda tr: smart.enqueue(tr, Progress("a", 2)))
    smart.enqueue(db, Progress("a", 2))
    assert contents(smart, db) == [Progress("a", 2)]


def test_two_replacements_of_one_item_conflict(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 0))
    assert both(db, lambda tr: smart.enqueue(tr, Progress("a", 1)), lambda tr: smart.enqueue(tr, Progress("a", 2)))


def test_messages_with_disjoint_relations_do_not_conflict(db: Any, smart: SmartQueue) -> None:
    for message in (Progress("a", 0), Progress("b", 0), Order(1)):
        smart.enqueue(db, message)
    transactions = [db.create_transaction() for _ in range(5)]
    for tr in transactions:
        tr.get_read_version().wait()
    smart.enqueue(transactions[0], Progress("a", 1))
    smart.enqueue(transactions[1], Progress("b", 1))
    smart.enqueue(transactions[2], Progress("c", 1))
    smart.enqueue(transactions[3], Confirmation(1))
    smart.enqueue(transactions[4], Order(2))
    assert [conflicts(tr) for tr in transactions[:4]] == [False] * 4
    assert conflicts(transactions[4]), "it saw the order that was confirmed meanwhile"
    assert contents(smart, db) == [Progress("a", 1), Progress("b", 1), Progress("c", 1)]


def test_a_confirmation_that_races_a_dequeue_has_one_winner(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Order(1))
    assert both(db, lambda tr: smart.queue.dequeue(tr), lambda tr: smart.enqueue(tr, Confirmation(1)))
    assert smart.enqueue(db, Confirmation(1)).decision is Decision.queue
    assert contents(smart, db) == [Confirmation(1)]
    smart.queue.clear(db)
    smart.enqueue(db, Order(1))
    assert both(db, lambda tr: smart.enqueue(tr, Confirmation(1)), lambda tr: smart.queue.dequeue(tr))
    assert contents(smart, db) == []


ends: dict[str, Callable[[SmartQueue, Any, Any], Any]] = {
    "ack": lambda smart, tr, lease: smart.leases.ack(tr, lease),
    "nack": lambda smart, tr, lease: smart.leases.nack(tr, lease),
    "extend": lambda smart, tr, lease: smart.leases.extend(tr, lease),
}


@pytest.mark.parametrize("end", ends)
@pytest.mark.parametrize("confirmed_first", [True, False])
def test_a_confirmation_that_races_the_end_of_a_lease_has_one_winner(
    db: Any, smart: SmartQueue, end: str, confirmed_first: bool
) -> None:
    smart.enqueue(db, Order(1))
    lease = smart.leases.lease(db)
    calls = [lambda tr: smart.enqueue(tr, Confirmation(1)), lambda tr: ends[end](smart, tr, lease)]
    assert both(db, *(calls if confirmed_first else calls[::-1]))
    assert smart.check(db).ok


def test_a_lease_conflicts_with_a_replacement_of_its_item(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 1))
    assert both(db, lambda tr: smart.enqueue(tr, Progress("a", 2)), lambda tr: smart.leases.lease(tr))
    lease = smart.leases.lease(db)
    assert lease is not None
    assert lease.value == Progress("a", 2)
    smart.leases.ack(db, lease)
    smart.enqueue(db, Progress("a", 1))
    assert both(db, lambda tr: smart.leases.lease(tr), lambda tr: smart.enqueue(tr, Progress("a", 2)))


def test_a_check_of_a_leased_item_conflicts_with_its_return(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 1))
    lease = smart.leases.lease(db)
    assert lease is not None
    assert both(db, lambda tr: smart.leases.nack(tr, lease), lambda tr: smart.enqueue(tr, Progress("a", 2)))


def test_an_enqueue_behind_the_item_that_decided_does_not_conflict(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Note("a", {"new": "ignore"}))
    smart.enqueue(db, Note("b", {}))

    def left_out(tr: Any) -> None:
        assert smart.enqueue(tr, Note("new", {})).decision is Decision.ignore
        tr.set(smart.queue.layout.space.pack(("left out",)), b"")

    assert not both(db, lambda tr: smart.enqueue(tr, Note("other", {})), left_out)
    assert both(db, lambda tr: smart.queue.dequeue(tr), left_out)


@pytest.mark.parametrize("news", [1, 2])
@pytest.mark.parametrize("amount", [2, RANGE_READ_ITEMS])
def test_changes_behind_the_deciding_item_do_not_conflict(db: Any, space: Subspace, amount: int, news: int) -> None:
    db = Rounds(db)  # what several messages will see is read together where reads have trips
    smart = smart_queue(space, MessageType("note", Note, key=lambda message: 0, sees=OWN_KEY))
    first = position_of(smart, db, note("first", new="ignore"))
    smart.enqueue_many(db, [note(f"{n}") for n in range(amount - 2)])
    smart.enqueue(db, note("last", over="ignore and delete"))

    def left_out(tr: Any) -> None:
        assert {outcome.by for outcome in smart.enqueue_many(tr, [note("new")] * news)} == {first}
        tr.set(smart.queue.layout.space.pack(("left out",)), b"")

    assert not both(db, lambda tr: smart.enqueue(tr, note("another")), left_out)
    if amount >= RANGE_READ_ITEMS:  # fewer are read with a conflict each
        assert not both(db, lambda tr: smart.enqueue(tr, note("over")), left_out)
    assert both(db, lambda tr: smart.dequeue(tr), left_out)


@pytest.mark.parametrize("seed", range(8))
def test_messages_of_one_call_decide_as_one_by_one_where_reads_have_trips(db: Any, space: Subspace, seed: int) -> None:
    chance, rounds = Random(seed), Rounds(db)
    notes = MessageType("note", Note, sees=OWN_TYPE)
    progress = MessageType("progress", Progress, key=file_of, sees=OWN_KEY, key_limit=Limit(2, "drop oldest"))
    order = MessageType("order", Order, key=number_of, sees=OWN_TYPE, limit=Limit(3, "drop newest"))
    report = MessageType("report", Confirmation, key=number_of, sees=NOTHING, key_limit=Limit(1, "drop oldest"))
    one, many = (
        smart_queue(space[name], notes, progress, order, report, limit=Limit(9, "drop oldest")) for name in (1, 2)
    )

    def drawn() -> Any:
        number = chance.randrange(3)
        return chance.choice(
            [
                Progress(f"{number}", chance.randrange(9)),
                Order(number),
                Confirmation(number),
                note(f"{number}", **{f"{chance.randrange(3)}": chance.choice(["take over", "ignore and delete"])}),
            ]
        )

    for _ in range(6):
        messages = [drawn() for _ in range(chance.randint(2, 9))]
        wanted, found = [one.enqueue(db, message) for message in messages], many.enqueue_many(rounds, messages)
        assert [told(outcome) for outcome in found] == [told(outcome) for outcome in wanted]
        assert contents(many, db) == contents(one, db)
        if chance.randrange(2):
            for smart in (one, many):
                smart.queue.dequeue(db)


def told(outcome: Outcome) -> tuple[object, ...]:
    """Return what two queues have in common of an outcome."""
    return outcome.decision, outcome.by is None, outcome.full, outcome.asked, len(outcome.deleted), outcome.items_read


def test_an_arrival_ahead_of_the_deciding_item_conflicts(db: Any, smart: SmartQueue) -> None:
    slow = db.create_transaction()
    smart.enqueue(slow, Progress("a", 1))
    for n in range(3):
        enqueue_unchecked(smart, db, Note(f"{n}", {"new": "ignore"}))
    tr = db.create_transaction()
    smart.queue.dequeue(db)
    assert smart.enqueue(tr, Note("new", {})).decision is Decision.ignore
    tr.set(smart.queue.layout.space.pack(("decided",)), b"")
    assert not conflicts(slow)
    assert conflicts(tr)


def test_a_check_of_everything_conflicts_with_every_unseen_enqueue(db: Any, smart: SmartQueue) -> None:
    assert both(db, lambda tr: smart.enqueue(tr, Progress("a", 1)), lambda tr: smart.enqueue(tr, Note("new", {})))


def test_a_failure_that_is_caught_depends_on_what_was_seen(db: Any, space: Subspace) -> None:
    def check(queued: dict[str, Any], new: dict[str, Any]) -> Decision:
        raise RuntimeError("broken")

    smart = smart_queue(space, MessageType("x", check=check))
    smart.enqueue(db, {"type": "x"})
    tr = db.create_transaction()
    with pytest.raises(FdbQueueError):
        smart.enqueue(tr, {"type": "x"})
    tr.set(space.pack(("gave up",)), b"")
    smart.dequeue(db)
    assert conflicts(tr)


def test_two_messages_for_one_free_place_conflict(db: Any, space: Subspace) -> None:
    limited = MessageType("x", sees=CONFIRMATION.sees, key=lambda data: data["number"], key_limit=Limit(2))
    smart = smart_queue(space, limited, *(given for given in (MessageType("order"),)))
    smart.enqueue(db, {"type": "x", "number": 1})
    one = {"type": "x", "number": 1}
    assert both(db, lambda tr: smart.enqueue(tr, one), lambda tr: smart.enqueue(tr, one))
    assert not both(
        db,
        lambda tr: smart.enqueue(tr, {"type": "x", "number": 2}),
        lambda tr: smart.enqueue(tr, {"type": "x", "number": 3}),
    )


def test_two_messages_for_the_queues_last_place_conflict(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, limit=Limit(2))
    smart.enqueue(db, Order(1))
    assert both(db, lambda tr: smart.enqueue(tr, Progress("a", 1)), lambda tr: smart.enqueue(tr, Progress("b", 1)))


def test_dropping_the_oldest_item_conflicts_with_a_lease_of_it(db: Any, space: Subspace) -> None:
    limited = MessageType("x", sees=NOTHING, key=lambda data: data["number"], key_limit=Limit(1, "drop oldest"))
    smart = smart_queue(space, limited)
    smart.enqueue(db, {"type": "x", "number": 1})
    assert both(
        db, lambda tr: smart.leases.lease(tr), lambda tr: smart.enqueue(tr, {"type": "x", "number": 1, "newer": True})
    )
    assert smart.check(db).ok


def test_renewing_an_item_conflicts_with_expiring_it(db: Any, space: Subspace) -> None:
    clock = Clock()
    mortal = MessageType("x", check=lambda queued, new: Replace(new), expires=100.0)
    given = mortal, MessageType("y", sees=NOTHING)
    smart, lagging = smart_queue(space, *given, clock=clock, limit=Limit(1)), smart_queue(space, *given, clock=Clock())
    smart.enqueue(db, {"type": "x", "n": 1})
    clock.now += 101

    def make_room(tr: Any) -> None:
        assert len(smart.enqueue(tr, {"type": "y"}).expired) == 1

    assert both(db, lambda tr: lagging.enqueue(tr, {"type": "x", "n": 2}), make_room)
    assert contents(lagging, db) == [{"type": "x", "n": 2}]


def test_a_registration_and_an_enqueue_that_does_not_know_of_it_conflict(db: Any, smart: SmartQueue) -> None:
    assert both(db, lambda tr: smart.resend.register(tr, "B"), lambda tr: smart.enqueue(tr, Progress("a", 1)))


def test_of_the_two_last_confirmations_one_sees_that_it_is_the_last(db: Any, smart: SmartQueue) -> None:
    for name in ("B", "C"):
        smart.resend.register(db, name)
    position_of(smart, db, Order(1))
    for name in ("B", "C"):
        smart.resend.fetch(db, name)
    assert both(db, lambda tr: smart.resend.confirm(tr, "B"), lambda tr: smart.resend.confirm(tr, "C"))
    assert smart.resend.confirm(db, "C")[1]
    assert contents(smart, db) == []


def test_fetches_of_different_recipients_do_not_conflict_and_of_the_same_do(db: Any, smart: SmartQueue) -> None:
    for name in ("B", "C"):
        smart.resend.register(db, name)
    smart.enqueue(db, Order(1))
    assert not both(db, lambda tr: smart.resend.fetch(tr, "B"), lambda tr: smart.resend.fetch(tr, "C"))
    smart.enqueue(db, Progress("a", 1))
    assert both(db, lambda tr: smart.resend.fetch(tr, "B"), lambda tr: smart.resend.fetch(tr, "B"))
    smart.enqueue(db, Progress("b", 1))
    assert not both(db, lambda tr: smart.enqueue(tr, Progress("c", 1)), lambda tr: smart.resend.fetch(tr, "C"))


def test_many_producers_and_consumers_at_once_leave_one_report_of_each_file_and_a_true_index(
    db: Any, smart: SmartQueue
) -> None:
    shown: list[Progress] = []

    def produce(of: int) -> None:
        for percent in range(15):
            smart.enqueue(db, Progress(f"{(of + percent) % 3}", percent))

    def consume() -> None:
        for _ in range(15):
            item = smart.dequeue(db)
            shown.extend([item.value] if item else [])
            files = [waiting.value.file for waiting in smart.queue.browse(db.create_transaction())]
            assert len(files) == len(set(files)), "one of each, at any moment"

    with ThreadPoolExecutor(6) as pool:
        for done in [*(pool.submit(produce, of) for of in range(4)), pool.submit(consume), pool.submit(consume)]:
            done.result()
    left = contents(smart, db)
    assert len(left) == len({report.file for report in left})
    stats = smart.queue.stats(db)
    assert stats.enqueued == len(shown) + len(left)
