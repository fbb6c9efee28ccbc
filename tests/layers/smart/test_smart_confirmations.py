"""A confirmation confirms the copy that it names and no other; a fetch waits, settles timers, and fetches many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from fdbqueue import CheckFailed, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import OWN_KEY, Decision, Messages, MessageType, Replace, SmartQueue
from fdbqueue.layers.smart._resend import Copy
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.copies import FRAME, RECEIVED, Received, fetch, frame, numbers, registered
from tests.helpers.smart import smart_queue


@pytest.fixture
def smart(db: Any, space: Subspace) -> SmartQueue:
    """A queue with one recipient, B."""
    return registered(smart_queue(space, FRAME, RECEIVED), db)


@pytest.fixture
def urgent(db: Any, space: Subspace) -> SmartQueue:
    """The same, with three levels."""
    queue = Queue(space, codec=Messages(FRAME, RECEIVED), order=Levels(3))
    return registered(SmartQueue(Leases(queue, clock=Clock())), db)


def by_priority(smart: SmartQueue, db: Any) -> list[Copy]:
    smart.enqueue(db, frame(1), priority=2)
    first = fetch(smart, db)
    smart.enqueue(db, frame(2), priority=0)
    return [first, fetch(smart, db)]


def by_delay(smart: SmartQueue, db: Any) -> list[Copy]:
    smart.enqueue(db, frame(2), delay=9)
    smart.enqueue(db, frame(1))
    first = fetch(smart, db)
    cast(Clock, smart.leases.clock).now += 10
    return [first, fetch(smart, db)]


def by_nack(smart: SmartQueue, db: Any) -> list[Copy]:
    smart.enqueue_many(db, [frame(2), frame(1)])
    lease = smart.leases.lease(db)
    assert lease is not None
    first = fetch(smart, db)
    smart.leases.nack(db, lease)
    return [first, fetch(smart, db)]


def in_order(smart: SmartQueue, db: Any) -> list[Copy]:
    smart.enqueue_many(db, [frame(1), frame(2)])
    return smart.resend.fetch_many(db, "B")


ORDERS: dict[str, Callable[[SmartQueue, Any], list[Copy]]] = {
    "priority": by_priority,
    "delay": by_delay,
    "nack": by_nack,
    "first in, first out": in_order,
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_bare_confirmation_of_one_of_several_is_refused_and_a_name_confirms_the_one_that_is_meant(
    db: Any, urgent: SmartQueue, order: str
) -> None:
    first, second = ORDERS[order](urgent, db)
    assert (first.value["n"], second.value["n"]) == (1, 2)
    for bare in (
        lambda: urgent.resend.confirm(db, "B"),
        lambda: urgent.enqueue(db, Received("B")),
        lambda: urgent.enqueue(db, Received(["B", None])),
        lambda: urgent.enqueue_many(db, [Received("B")]),
    ):
        with pytest.raises(ValueError, match="fetched several copies"):
            bare()
    assert sorted(numbers(urgent, db)) == [1, 2]
    for _ in range(3):  # however often it comes
        urgent.enqueue(db, Received(["B", first.name]))
    assert numbers(urgent, db) == [2]
    assert urgent.resend.confirm(db, "B", copy=second) == (second.position, True)
    assert urgent.queue.is_empty(db)


def test_a_repeated_bare_confirmation_confirms_nothing_before_the_next_fetch(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2)])
    first = fetch(smart, db)
    assert smart.enqueue(db, Received("B")).deleted == (first.position,)
    assert smart.enqueue(db, Received("B")).decision is Decision.ignore
    assert numbers(smart, db) == [2]


def test_confirming_one_copy_at_a_time_needs_no_name(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(n) for n in range(6)])
    fetch(smart, db)
    smart.queue.dequeue(db)  # gone without a confirmation
    copy = fetch(smart, db)
    smart.resend.confirm(db, "B", copy=copy)
    copy = fetch(smart, db)
    assert smart.resend.confirm(db, "B") == (copy.position, True)
    assert smart.resend.confirm(db, "B") == (None, False)
    fetch(smart, db)
    fetch(smart, db)
    with pytest.raises(ValueError, match="After a reset"):
        smart.resend.confirm(db, "B")
    smart.resend.reset(db, "B")
    assert smart.resend.confirm(db, "B") == (None, False)
    assert fetch(smart, db).value["n"] == 3
    assert smart.resend.confirm(db, "B")[1]
    assert numbers(smart, db) == [4, 5]


def test_a_bare_confirmation_ignores_the_fetches_of_other_recipients(db: Any, smart: SmartQueue) -> None:
    registered(smart, db, "C")
    smart.enqueue_many(db, [frame(1), frame(2)])
    assert len(smart.resend.fetch_many(db, "C")) == 2
    copy = fetch(smart, db)
    assert smart.resend.confirm(db, "B") == (copy.position, False)


@pytest.mark.parametrize("says", ["name", "position", "pair of a copy"])
def test_confirms_may_give_a_name_or_a_position(db: Any, space: Subspace, says: str) -> None:
    kept: list[Copy] = []

    def confirms(got: Received) -> Any:
        copy = kept[got.says]
        return "B", {"name": copy.name, "position": copy.position, "pair of a copy": copy}[says]

    smart = registered(smart_queue(space, FRAME, MessageType("received", Received, confirms=confirms)), db)
    smart.enqueue_many(db, [frame(1), frame(2), frame(3)])
    kept += smart.resend.fetch_many(db, "B")
    outcome = smart.enqueue(db, Received(1))
    assert (outcome.decision, outcome.by) == (Decision.ignore_and_delete, kept[1].position)
    assert smart.enqueue(db, Received(1)).decision is Decision.ignore
    assert numbers(smart, db) == [1, 3]


@pytest.mark.parametrize("says", [7, None, ["B"], ["B", 7], [7, "x"], ["B", "1:zz"], ["B", "no name"], ["B", ""]])
def test_a_bad_confirmation_is_refused(db: Any, smart: SmartQueue, says: Any) -> None:
    smart.enqueue(db, frame(1))
    fetch(smart, db)
    with pytest.raises(CheckFailed, match="'confirms' of the message type 'received' failed"):
        smart.enqueue(db, Received(says))
    assert numbers(smart, db) == [1]


def test_a_bad_copy_name_is_refused(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1))
    copy = fetch(smart, db)
    with pytest.raises(ValueError):
        smart.resend.confirm(db, "B", copy=copy, position=copy.position)
    with pytest.raises(ValueError, match="not registered"):
        smart.resend.confirm(db, "C", copy=copy)
    assert smart.resend.confirm(db, "B", copy=Position(99, b"x").text) == (None, False)
    assert smart.resend.confirm(db, "B", position=Position(99, b"x")) == (None, False)
    assert numbers(smart, db) == [1]


def test_a_confirmation_after_a_reset_is_taken_as_the_copy_has_arrived(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2)])
    first, second = smart.resend.fetch_many(db, "B")
    smart.resend.reset(db, "B")
    assert smart.resend.confirm(db, "B", copy=first.name)[1]
    assert smart.resend.confirm(db, "B", position=second.position)[1]
    assert smart.resend.fetch(db, "B") is None


def test_a_copy_that_its_recipient_has_never_fetched_is_not_confirmed(db: Any, smart: SmartQueue) -> None:
    registered(smart, db, "C")
    smart.enqueue_many(db, [frame(1), frame(2)])
    [seen] = smart.resend.fetch_many(db, "C", limit=1)
    [unseen] = smart.queue.browse(db, after=seen.position)
    for recipient, position in (("B", seen.position), ("C", unseen.position)):
        for by in ({"position": position}, {"copy": position.text}):
            assert smart.resend.confirm(db, recipient, **cast(Any, by)) == (None, False)
    assert smart.enqueue(db, Received(["B", seen.name])).decision is Decision.ignore
    smart.resend.reset(db, "B")
    assert smart.resend.confirm(db, "B", position=seen.position) == (None, False), "nothing to fetch again"
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B")] == [1, 2]
    assert smart.resend.confirm(db, "C", copy=seen) == (seen.position, False)
    assert smart.resend.confirm(db, "B", copy=seen.name) == (seen.position, True), "the copies have one name"
    assert numbers(smart, db) == [2]


def test_a_confirmation_of_a_redriven_item_waits_for_its_fetch(db: Any, smart: SmartQueue) -> None:
    mortal = SmartQueue(Leases(smart.queue, max_attempts=1, clock=smart.leases.clock))
    mortal.enqueue(db, frame(1))
    copy = fetch(mortal, db)
    lease = mortal.leases.lease(db)
    assert lease is not None
    mortal.leases.nack(db, lease)
    mortal.leases.dead.redrive(db)
    assert mortal.resend.confirm(db, "B", copy=copy) == (None, False)
    again = fetch(mortal, db)
    assert mortal.resend.confirm(db, "B", copy=again)[1]


def test_a_bare_confirmation_stays_refused_when_all_but_one_are_confirmed(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2)])
    first, second = smart.resend.fetch_many(db, "B")
    smart.resend.confirm(db, "B", copy=first)
    with pytest.raises(ValueError, match="After a reset"):
        smart.resend.confirm(db, "B")
    smart.resend.reset(db, "B")
    fetch(smart, db)
    assert smart.resend.confirm(db, "B") == (second.position, True)


def test_a_position_names_replaced_values_after_a_reset(db: Any, merging: SmartQueue) -> None:
    merging.enqueue(db, frame(1))
    merging.enqueue(db, frame(2))
    copy = fetch(merging, db)
    merging.resend.reset(db, "B")
    assert merging.resend.confirm(db, "B", position=copy.position) == (copy.position, True)


@pytest.fixture
def merging(db: Any, space: Subspace) -> SmartQueue:
    """A queue whose frames take over the values of the next one with their key."""
    own = MessageType("frame", check=lambda queued, new: Replace(new), key=lambda message: message["key"], sees=OWN_KEY)
    return registered(smart_queue(space, own, RECEIVED), db)


@pytest.mark.parametrize("is_fetched_again", [False, True])
def test_a_late_confirmation_of_former_values_confirms_nothing(
    db: Any, merging: SmartQueue, is_fetched_again: bool
) -> None:
    merging.enqueue(db, frame(1))
    former = fetch(merging, db)
    assert merging.enqueue(db, frame(2)).rewritten == former.position
    copy = fetch(merging, db) if is_fetched_again else None
    assert merging.enqueue(db, Received(["B", former.name])).decision is Decision.ignore
    if not is_fetched_again:
        assert merging.resend.confirm(db, "B", position=former.position) == (None, False)
        assert merging.resend.confirm(db, "B") == (None, False)
    copy = copy or fetch(merging, db)
    assert (copy.value["n"], copy.position) == (2, former.position)
    assert copy.name != former.name
    merging.enqueue(db, frame(3))
    assert merging.resend.confirm(db, "B", copy=copy) == (None, False)
    last = fetch(merging, db)
    assert merging.resend.confirm(db, "B", position=last.position) == (last.position, True)
    assert merging.check(db).problems == ()


def test_a_copy_of_an_older_version_has_its_position_for_a_name(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1))
    copy = fetch(smart, db)
    assert copy.name == copy.position.text
    del db[smart.queue.layout.fetched.pack((1,))]  # a process that does not note what it fetches has fetched it
    assert smart.resend.confirm(db, "B") == (None, False)
    assert smart.resend.confirm(db, "B", copy=copy)[1]


def test_a_fetch_makes_a_bare_confirmation_conflict_and_leaves_a_named_one_alone(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2), frame(3)])
    copy = fetch(smart, db)
    bare, named = db.create_transaction(), db.create_transaction()
    smart.resend.confirm(bare, "B")
    fetch(smart, db)
    assert conflicts(bare)
    smart.resend.confirm(named, "B", copy=copy)
    fetch(smart, db)
    assert not conflicts(named)
    assert numbers(smart, db) == [2, 3]


def test_of_two_fetches_one_learns_that_there_are_several(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2)])
    one, other = db.create_transaction(), db.create_transaction()
    smart.resend.fetch(one, "B")
    smart.resend.fetch(other, "B")
    assert not conflicts(one)
    assert conflicts(other)


def test_in_one_transaction_what_was_fetched_can_be_confirmed(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(1), frame(2)])
    tr = db.create_transaction()
    for n in (1, 2):
        copy = smart.resend.fetch(tr, "B")
        assert copy is not None
        assert copy.value["n"] == n
        assert smart.resend.confirm(tr, "B") == (copy.position, True)
    assert smart.resend.fetch_many(tr, "B") == []
    tr.commit().wait()
    assert smart.queue.is_empty(db)


# Fetching.


def test_a_copy_is_an_item_and_says_so(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1), headers={"a": 1})
    copy = fetch(smart, db)
    assert (copy.headers, copy.value["n"]) == ({"a": 1}, 1)
    assert copy.name in repr(copy)
