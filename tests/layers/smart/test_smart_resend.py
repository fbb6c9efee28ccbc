"""Keeping mode: copies are fetched, confirmed, and sent again; nothing gets behind a recipient's cursor unseen."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fdbqueue import FormatError, Position
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import NOTHING, Decision, MessageType, Replace, SmartQueue
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.smart import contents, rows_of, smart_queue


@dataclass
class Received:
    """A confirmation."""

    by: str
    name: str | None = None


FRAME = MessageType("frame", sees=NOTHING)
RECEIVED = MessageType("received", Received, confirms=lambda received: (received.by, received.name))


def frame(n: int) -> dict[str, Any]:
    return {"type": "frame", "n": n}


@pytest.fixture
def smart(db: Any, space: Subspace) -> SmartQueue:
    queue = smart_queue(space, FRAME, RECEIVED)
    queue.resend.register(db, "B")
    return queue


def fetched(smart: SmartQueue, db: Any, recipient: str = "B") -> Iterator[int]:
    """Fetch until there is nothing left."""
    while (item := smart.resend.fetch(db, recipient)) is not None:
        yield item.value["n"]


def test_a_fetch_returns_a_copy_and_moves_the_cursor(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(n) for n in range(3)])
    assert list(fetched(smart, db)) == [0, 1, 2]
    assert len(contents(smart, db)) == 3


def test_a_bare_confirmation_deletes_the_only_one_that_was_fetched(db: Any, smart: SmartQueue) -> None:
    outcomes = smart.enqueue_many(db, [frame(n) for n in range(3)])
    smart.resend.fetch(db, "B")
    confirmed = smart.enqueue(db, Received("B"))
    assert confirmed.decision is Decision.ignore_and_delete
    assert confirmed.by == outcomes[0].position
    assert confirmed.deleted == (outcomes[0].position,)
    assert [message["n"] for message in contents(smart, db)] == [1, 2]


def test_a_confirmation_of_nothing_changes_nothing(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1))
    outcome = smart.enqueue(db, Received("B"))
    assert (outcome.decision, outcome.by, outcome.position) == (Decision.ignore, None, None)
    assert len(contents(smart, db)) == 1


def test_a_reset_resends_from_the_oldest(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(n) for n in range(5)])
    first, *_ = smart.resend.fetch_many(db, "B")
    smart.resend.confirm(db, "B", copy=first)
    assert smart.resend.reset(db, "B") == 4
    assert smart.resend.reset(db, "B") == 0
    assert list(fetched(smart, db)) == [1, 2, 3, 4]


def test_a_large_reset_takes_several_transactions(db: Any, smart: SmartQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.layers.smart._resend.RESET_ITEMS", 3)
    smart.enqueue_many(db, [frame(n) for n in range(8)])
    assert len(list(fetched(smart, db))) == 8
    assert smart.resend.reset(db, "B") == 8
    assert list(fetched(smart, db)) == list(range(8))


def test_an_item_is_gone_when_all_have_confirmed(db: Any, smart: SmartQueue) -> None:
    smart.resend.register(db, "C")
    smart.enqueue(db, frame(1))
    for name in ("B", "C"):
        assert list(fetched(smart, db, name)) == [1]
    assert smart.enqueue(db, Received("B")).deleted == ()
    assert smart.enqueue(db, Received("B")).by is None
    assert len(contents(smart, db)) == 1
    assert len(smart.enqueue(db, Received("C")).deleted) == 1
    assert contents(smart, db) == []


def test_a_later_recipient_gets_later_items_only(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1))
    smart.resend.register(db, "C")
    smart.resend.register(db, "C")
    assert smart.resend.recipients(db) == ["B", "C"]
    smart.enqueue(db, frame(2))
    assert list(fetched(smart, db, "C")) == [2]
    assert list(fetched(smart, db, "B")) == [1, 2]


def test_unregistering_frees_the_items_that_waited(db: Any, smart: SmartQueue) -> None:
    smart.resend.register(db, "C")
    smart.enqueue_many(db, [frame(1), frame(2)])
    smart.resend.fetch(db, "B")
    smart.resend.confirm(db, "B")
    assert smart.resend.unregister(db, "C") == 1
    assert smart.resend.unregister(db, "C") == 0
    assert [message["n"] for message in contents(smart, db)] == [2]
    with pytest.raises(ValueError, match="not registered"):
        smart.resend.fetch(db, "C")


@pytest.mark.parametrize("composed", [False, True])
def test_a_recipient_of_many_items_is_unregistered_in_several_transactions(
    db: Any, smart: SmartQueue, monkeypatch: pytest.MonkeyPatch, composed: bool
) -> None:
    monkeypatch.setattr("fdbqueue.layers.smart._resend.UNREGISTER_ITEMS", 2)
    smart.resend.register(db, "C")
    smart.enqueue_many(db, [frame(n) for n in range(5)])
    for copy in smart.resend.fetch_many(db, "B", limit=3):
        smart.resend.confirm(db, "B", copy=copy)
    if composed:
        tr = db.create_transaction()
        assert smart.resend.unregister(tr, "C") == 3
        tr.commit().wait()
    else:
        counting = FaultyDatabase(db, lambda: None)
        assert smart.resend.unregister(counting, "C") == 3
        assert counting.commits == 3
    assert [message["n"] for message in contents(smart, db)] == [3, 4]
    assert smart.resend.recipients(db) == ["B"]


def test_restarted_indices_hide_no_item_from_recipients(db: Any, smart: SmartQueue) -> None:
    positions = [outcome.position for outcome in smart.enqueue_many(db, [frame(n) for n in range(5)])]
    for _ in range(5):
        smart.resend.fetch(db, "B")
        smart.resend.confirm(db, "B")
    assert smart.queue.is_empty(db)
    again = smart.enqueue(db, frame(9)).position
    assert again is not None
    assert positions[-1] is not None
    assert again.index < positions[-1].index
    assert list(fetched(smart, db)) == [9]


def test_a_slow_producers_item_in_front_of_the_cursor_is_fetched(db: Any, smart: SmartQueue) -> None:
    slow = db.create_transaction()
    smart.enqueue(slow, frame(0))
    smart.enqueue_many(db, [frame(1), frame(2), frame(3)])
    assert list(fetched(smart, db)) == [1, 2, 3]
    slow.commit().wait()
    assert list(fetched(smart, db)) == [0]


def test_a_deleted_item_under_the_cursor_does_not_stop_it(db: Any, smart: SmartQueue) -> None:
    smart.enqueue_many(db, [frame(n) for n in range(4)])
    smart.resend.fetch(db, "B")
    smart.queue.dequeue_many(db, limit=2)
    (two, three) = smart.resend.fetch_many(db, "B")
    assert (two.value["n"], three.value["n"]) == (2, 3)
    smart.resend.confirm(db, "B", copy=two)
    assert [message["n"] for message in contents(smart, db)] == [3]


def test_leased_and_delayed_items_are_fetched_once_available(db: Any, space: Subspace) -> None:
    clock = Clock()
    smart = smart_queue(space, FRAME, clock=clock)
    smart.resend.register(db, "B")
    smart.enqueue(db, frame(1))
    lease = smart.leases.lease(db)
    assert lease is not None
    smart.enqueue(db, frame(2), delay=10)
    smart.enqueue(db, frame(3))
    assert list(fetched(smart, db)) == [3]
    smart.leases.nack(db, lease)
    clock.now += 11
    smart.leases.reclaim(db)
    assert list(fetched(smart, db)) == [1, 2]


def test_outdated_items_are_removed_and_not_fetched(db: Any, space: Subspace) -> None:
    clock = Clock()
    smart = smart_queue(space, dataclasses.replace(FRAME, expires=10.0), clock=clock)
    smart.resend.register(db, "B")
    smart.enqueue(db, frame(1))
    clock.now += 11
    smart.enqueue(db, frame(2))
    assert list(fetched(smart, db)) == [2]
    assert smart.queue.stats(db).expired == 1


def test_one_of_many_can_be_confirmed_by_its_position(db: Any, smart: SmartQueue) -> None:
    outcomes = smart.enqueue_many(db, [frame(1), frame(2)])
    assert list(fetched(smart, db)) == [1, 2]
    assert smart.resend.confirm(db, "B", position=outcomes[1].position) == (outcomes[1].position, True)
    assert smart.resend.confirm(db, "B", position=outcomes[1].position) == (None, False)
    assert [message["n"] for message in contents(smart, db)] == [1]


def test_a_redriven_item_is_sent_again(db: Any, smart: SmartQueue) -> None:
    mortal = SmartQueue(Leases(smart.queue, max_attempts=1, clock=smart.leases.clock))
    mortal.enqueue(db, frame(1))
    assert list(fetched(mortal, db)) == [1]
    lease = mortal.leases.lease(db)
    assert lease is not None
    mortal.leases.nack(db, lease)
    assert mortal.resend.confirm(db, "B") == (None, False)
    mortal.leases.dead.redrive(db, to="tail")
    assert mortal.resend.confirm(db, "B") == (None, False), "it has not been fetched again"
    assert list(fetched(mortal, db)) == [1]
    assert mortal.resend.confirm(db, "B")[1]


def test_a_replaced_item_is_sent_to_all_recipients_again(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("frame", check=lambda queued, new: Replace(new), deadline=30.0))
    smart.resend.register(db, "B")
    smart.resend.register(db, "C")
    smart.resend.register(db, "D")
    smart.enqueue(db, frame(1))
    smart.resend.unregister(db, "D")
    smart.resend.register(db, "E")
    for recipient in "BC":
        assert list(fetched(smart, db, recipient)) == [1]
    smart.resend.confirm(db, "B")
    assert smart.enqueue(db, frame(2)).position is None
    for recipient in "BCE":
        assert list(fetched(smart, db, recipient)) == [2]
    assert smart.check(db).problems == ()
    assert [smart.resend.confirm(db, recipient)[1] for recipient in "BCE"] == [False, False, True]
    assert smart.check(db).problems == ()


def test_unreadable_recipients_are_an_error(db: Any, smart: SmartQueue) -> None:
    db[smart.queue.layout.recipients_key] = b"\xc1"
    with pytest.raises(FormatError) as caught:
        smart.enqueue(db, frame(1))
    key = smart.queue.layout.recipients_key
    assert f"The recipients of the key {key!r} of {smart.queue.layout.describe()} can't be read" in str(caught.value)
    assert smart.queue.dequeue(db) is None


def test_stats_disturb_no_recipient_and_are_disturbed_by_none(db: Any, smart: SmartQueue, space: Subspace) -> None:
    smart.enqueue(db, frame(1))
    tr = db.create_transaction()
    assert smart.stats(tr).recipients["B"].unsent == 1
    tr[space.pack(("seen",))] = b""
    assert list(fetched(smart, db)) == [1]
    assert not conflicts(tr)


def test_there_are_at_most_32_recipients_with_names(db: Any, smart: SmartQueue) -> None:
    for n in range(31):
        smart.resend.register(db, f"C{n}")
    with pytest.raises(ValueError, match="32"):
        smart.resend.register(db, "D")
    with pytest.raises(ValueError, match="bytes"):
        smart.resend.register(db, "")
    assert smart.enqueue(db, frame(1)).position is not None
    assert smart.stats(db).recipients["C7"].unconfirmed == 1


@pytest.mark.parametrize("fault", [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)])
def test_calls_are_exactly_once_under_faults(db: Any, smart: SmartQueue, fault: Fault) -> None:
    def failing() -> FaultyDatabase:
        return FaultyDatabase.failing_at(db, {0}, fault)

    smart.resend.register(failing(), "C")
    smart.enqueue_many(failing(), [frame(1), frame(2), frame(3)])
    item = smart.resend.fetch(failing(), "B")
    assert item is not None
    assert item.value == frame(1)
    item = smart.resend.fetch(failing(), "B")
    assert item is not None
    assert item.value == frame(2)
    assert smart.resend.reset(failing(), "B") == 2
    [first, second] = smart.resend.fetch_many(failing(), "B", limit=2)
    smart.resend.confirm(failing(), "B", copy=first)
    smart.enqueue(failing(), Received("B", second.name))
    assert list(fetched(smart, db)) == [3]
    smart.resend.unregister(failing(), "C")
    assert [message["n"] for message in contents(smart, db)] == [3]


def fails_with(tr: Any) -> int:
    """Commit and return the error's code, 0 for none."""
    try:
        tr.commit().wait()
    except FDBError as error:
        return int(error.code)
    return 0


class ResendMachine(RuleBasedStateMachine):
    """A queue of copies against lists: what each recipient has to fetch, and to confirm."""

    db: Any

    def __init__(self) -> None:
        super().__init__()
        self.smart = smart_queue(("fdbqueue tests", "resend model", secrets.token_bytes(8)), FRAME)
        self.next = 0
        self.positions: dict[int, Position] = {}
        self.wanted: dict[int, set[str]] = {}
        self.unsent: dict[str, set[int]] = {}
        self.names: dict[int, str] = {}
        self.sent: dict[str, set[int]] = {}
        """What each recipient has fetched at least once."""
        self.several: set[str] = set()
        self.slow: list[tuple[Any, int, Position, set[str]]] = []

    def teardown(self) -> None:
        assert self.smart.check(self.db).problems == ()
        self.smart.queue.clear(self.db)

    def in_order(self, numbers: set[int]) -> list[int]:
        return sorted(numbers, key=self.positions.__getitem__)

    @rule(name=st.sampled_from("BCD"))
    def register(self, name: str) -> None:
        self.smart.resend.register(self.db, name)
        self.unsent.setdefault(name, set())

    @rule(slow=st.booleans())
    def enqueue(self, slow: bool) -> None:
        self.next += 1
        tr = self.db.create_transaction() if slow else self.db
        position = self.smart.enqueue(tr, frame(self.next)).position
        assert position is not None
        if slow and len(self.slow) < 2:
            self.slow.append((tr, self.next, position, set(self.unsent)))
        elif not slow:
            self.arrive(self.next, position)

    def arrive(self, number: int, position: Position) -> None:
        self.positions[number] = position
        self.wanted[number] = set(self.unsent)
        for unsent in self.unsent.values():
            unsent.add(number)

    @precondition(lambda self: self.slow)
    @rule()
    def the_slow_one_commits(self) -> None:
        tr, number, position, knew = self.slow.pop()
        code = fails_with(tr)
        if code == 1007:  # on a busy machine five seconds are over soon
            return
        assert (code == 1020) == (knew != set(self.unsent))
        if not code:
            self.arrive(number, position)

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.unsent)))
        item = self.smart.resend.fetch(self.db, name)
        waiting = self.in_order(self.unsent[name])
        assert (item.value["n"] if item else None) == (waiting[0] if waiting else None)
        if item is not None:
            if {n for n, names in self.wanted.items() if name in names} - self.unsent[name]:
                self.several.add(name)
            self.unsent[name].remove(waiting[0])
            self.names[waiting[0]] = item.name
            self.sent.setdefault(name, set()).add(waiting[0])

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """Confirm one by its name or position, perhaps once more, out of turn, or before it was fetched."""
        name = data.draw(st.sampled_from(sorted(self.unsent)))
        number = data.draw(st.sampled_from(sorted({*self.names, *self.positions}) or [0]))
        if number not in self.names and number not in self.positions:
            return
        by: Any = {"copy": self.names.get(number)}
        if number not in self.names or (number in self.positions and data.draw(st.booleans())):
            by = {"position": self.positions[number]}
        wanted = name in self.wanted.get(number, ()) and number in self.sent.get(name, ())
        position, gone = self.smart.resend.confirm(self.db, name, **by)
        if not wanted:
            assert (position, gone) == (None, False)
            return
        self.confirmed(name, number, position, gone)

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def confirm_bare(self, data: st.DataObject) -> None:
        """Confirm without a name: it is the only one, or there is none, or it is refused."""
        name = data.draw(st.sampled_from(sorted(self.unsent)))
        sent = {n for n, names in self.wanted.items() if name in names} - self.unsent[name]
        if name in self.several:
            with pytest.raises(ValueError, match="fetched several copies"):
                self.smart.resend.confirm(self.db, name)
            return
        assert len(sent) <= 1
        position, gone = self.smart.resend.confirm(self.db, name)
        if not sent:
            assert (position, gone) == (None, False)
            return
        self.confirmed(name, sent.pop(), position, gone)

    def confirmed(self, name: str, number: int, position: Position | None, gone: bool) -> None:
        self.wanted[number].remove(name)
        self.unsent[name].discard(number)
        assert (position, gone) == (self.positions[number], not self.wanted[number])
        if gone:
            self.remove(number)

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.unsent)))
        every = {n for n, names in self.wanted.items() if name in names}
        assert self.smart.resend.reset(self.db, name) == len(every - self.unsent[name])
        self.unsent[name] = every
        self.several.discard(name)

    @rule()
    def dequeue(self) -> None:
        item = self.smart.queue.dequeue(self.db)
        there = self.in_order(set(self.positions))
        assert (item.value["n"] if item else None) == (there[0] if there else None)
        if there:
            self.remove(there[0])

    def remove(self, number: int) -> None:
        del self.positions[number], self.wanted[number]
        for unsent in self.unsent.values():
            unsent.discard(number)

    @invariant()
    def both_look_the_same(self) -> None:
        there = [item.value["n"] for item in self.smart.queue.browse(self.db)]
        assert there == self.in_order(set(self.positions))


@pytest.mark.slow
def test_random_histories_do_what_the_model_does(db: Any) -> None:
    machine = type("Machine", (ResendMachine,), {"db": db})
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=12))


def test_confirming_every_item_leaves_no_key_behind(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, frame(1))
    smart.resend.fetch(db, "B")
    smart.resend.confirm(db, "B")
    left = {smart.queue.layout.space.unpack(key)[0] for key, _ in rows_of(smart, db)}
    assert left <= {"count", "once", "recipients", True}  # under True it says that it is a smart queue
