"""Terms of a smart enqueue, whose terms an item has that takes over values, and checks that ask who is the last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from fdbqueue import CheckFailed, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import AmqpLevels, Levels
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.smart import EVERYTHING, NOTHING, OWN_KEY, Deadlines, Limit, Messages, MessageType, SmartQueue
from fdbqueue.layers.smart.types import Answer, Asked, Decision, Outcome, Replace
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.smart import contents, enqueue_unchecked, smart_queue

Data = dict[str, Any]
X = MessageType("x", sees=NOTHING)


def by_levels(space: Subspace, *types: MessageType, clock: Clock | None = None, **rules: Any) -> SmartQueue:
    queue = Queue(space, codec=Messages(*types), order=Levels(3))
    return SmartQueue(Leases(queue, clock=clock or Clock()), **rules)


# Terms.


def test_a_priority_gives_the_rank_and_is_in_the_headers(db: Any, space: Subspace) -> None:
    smart = by_levels(space, X)
    smart.enqueue(db, {"type": "x", "n": 2}, priority=2)
    smart.enqueue(db, {"type": "x", "n": 0}, priority=0, headers={"a": 1})
    smart.enqueue_many(db, [{"type": "x", "n": 1}] * 2, priority=1)
    items = smart.dequeue_many(db)
    assert [item.value["n"] for item in items] == [0, 1, 1, 2]
    assert items[0].headers == {"a": 1, "priority": 0}


def test_a_priority_queues_leases_make_a_smart_queue_with_priorities(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec=Messages(X)), levels=AmqpLevels(10))
    smart = SmartQueue(jobs.leases)
    for priority in (0, 9, 4):
        smart.enqueue(db, {"type": "x", "n": priority}, priority=priority)
    assert [item.value["n"] for item in jobs.dequeue_many(db)] == [9, 4, 0]


def test_a_priority_that_the_queue_has_not_is_refused(db: Any, space: Subspace) -> None:
    smart = by_levels(space["levels"], X)
    for wrong in (3, -1, True, "1", 1.0):
        with pytest.raises(ValueError, match="A priority of this queue"):
            smart.enqueue(db, {"type": "x"}, priority=cast(Any, wrong))
    assert smart.queue.is_empty(db)


@pytest.mark.parametrize(
    ("expires", "ttl", "life"),
    [(None, 10.0, 10), (20.0, 10.0, 10), (10.0, 20.0, 10), (10.0, None, 10), (lambda message: None, 10.0, 10)],
)
def test_a_time_to_live_ends_a_life_unless_its_type_does_so_sooner(
    db: Any, space: Subspace, clock: Clock, expires: Any, ttl: float | None, life: int
) -> None:
    smart = smart_queue(space, MessageType("x", expires=expires), clock=clock)
    smart.enqueue(db, {"type": "x"}, ttl=ttl)
    smart.enqueue_many(db, [{"type": "x"}], ttl=ttl)
    clock.now += life - 1
    assert len(contents(smart, db)) == 2
    clock.now += 1
    assert smart.dequeue(db) is None
    assert smart.queue.stats(db).expired == 2


# Whose terms stay.


def taking_over(terms: Any = "own", **rules: Any) -> MessageType:
    """Return a type whose items take over the newcomer, with terms."""

    def check(queued: Data, new: Data) -> Answer:
        return Replace(new, terms=terms)

    return MessageType("x", check=check, key=lambda message: message.get("key"), sees=OWN_KEY, **rules)


def test_a_replaced_item_keeps_its_headers_its_rank_and_its_delay(db: Any, space: Subspace, clock: Clock) -> None:
    smart = by_levels(space, taking_over(), clock=clock)
    first = smart.enqueue(db, {"type": "x", "n": 1}, priority=2, headers={"a": 1}, delay=10)
    smart.enqueue(db, {"type": "x", "n": 5, "key": 5}, priority=1)
    outcome = smart.enqueue(db, {"type": "x", "n": 2}, priority=0, headers={"b": 2}, delay=99, ttl=1)
    assert (outcome.decision, outcome.rewritten, outcome.terms) == (Decision.ignore, first.position, "own")
    assert (outcome.position, outcome.deleted) == (None, ())
    clock.now += 11
    other, item = smart.dequeue_many(db)
    assert (other.value["n"], item.value["n"]) == (5, 2)
    assert (item.position, item.headers) == (first.position, {"a": 1, "priority": 2})


def test_an_item_keeps_its_time_to_live_if_its_type_has_none(db: Any, space: Subspace, clock: Clock) -> None:
    smart = smart_queue(space, taking_over(), clock=clock)
    smart.enqueue(db, {"type": "x", "n": 1}, ttl=10)
    smart.enqueue(db, {"type": "x", "n": 2}, ttl=99)
    clock.now += 10
    assert smart.dequeue(db) is None
    assert smart.check(db).problems == ()


def test_an_item_that_changes_itself_keeps_its_own_terms_too(db: Any, space: Subspace) -> None:
    @dataclass
    class Progress:
        percent: int

        def check(self, new: Any) -> Answer:
            self.percent = new.percent
            return Decision.ignore

    smart = smart_queue(space, MessageType("progress", Progress))
    smart.enqueue(db, Progress(1), headers={"a": 1})
    outcome = smart.enqueue(db, Progress(2), headers={"a": 2})
    assert outcome.terms == "own"
    assert smart.enqueue(db, Progress(2), headers={"a": 2}).terms is None, "nothing was taken over"
    item = smart.dequeue(db)
    assert item is not None
    assert (item.value, item.headers) == (Progress(2), {"a": 1})


def test_a_replaced_item_can_get_the_new_messages_headers(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, taking_over("incoming"))
    first = smart.enqueue(db, {"type": "x", "n": 1}, headers={"a": 1})
    smart.enqueue(db, {"type": "x", "n": 5, "key": 5})
    outcome = smart.enqueue(db, {"type": "x", "n": 2}, headers={"b": 2})
    assert (outcome.decision, outcome.rewritten, outcome.terms) == (Decision.ignore, first.position, "incoming")
    assert [message["n"] for message in contents(smart, db)] == [2, 5]
    item = smart.dequeue(db)
    assert item is not None
    assert (item.position, item.headers) == (first.position, {"b": 2})


def test_new_headers_are_taken_also_with_the_same_values(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, taking_over("incoming"))
    smart.enqueue(db, {"type": "x"}, headers={"a": 1})
    assert smart.enqueue(db, {"type": "x"}).terms == "incoming"
    item = smart.dequeue(db)
    assert item is not None
    assert item.headers == {}


@pytest.mark.parametrize(("was", "delay"), [(None, 9.0), (9.0, None), (9.0, 20.0), (9.0, 9.0)])
def test_a_replaced_item_can_get_the_new_messages_delay(
    db: Any, space: Subspace, clock: Clock, was: float | None, delay: float | None
) -> None:
    smart = smart_queue(space, taking_over("incoming"), clock=clock)
    smart.resend.register(db, "B")
    first = smart.enqueue(db, {"type": "x", "n": 1}, delay=was, ttl=500)
    outcome = smart.enqueue(db, {"type": "x", "n": 2}, delay=delay, ttl=600)
    assert outcome.rewritten == first.position
    assert smart.check(db).problems == ()
    stats = smart.leases.stats(db)
    assert (stats.available, stats.delayed) == ((1, 0) if delay is None else (0, 1))
    clock.now += delay or 0
    copy = smart.resend.fetch(db, "B")
    assert copy is not None
    assert copy.value["n"] == 2
    clock.now += 599 - (delay or 0)
    assert [kept.value["n"] for kept in smart.leases.browse(db, state="available")] == [2]
    clock.now += 1
    assert smart.dequeue(db) is None
    assert smart.check(db).problems == ()


def test_an_item_that_takes_another_rank_leaves_its_place_and_is_appended_there(db: Any, space: Subspace) -> None:
    smart = by_levels(space, taking_over("incoming", deadline=30.0, limit=Limit(3, "drop newest")))
    smart.resend.register(db, "B")
    first = smart.enqueue(db, {"type": "x", "n": 1}, priority=2)
    for key in (5, 6):
        smart.enqueue(db, {"type": "x", "n": key, "key": key}, priority=1)
    outcome = smart.enqueue(db, {"type": "x", "n": 2}, priority=0, headers={"a": 1})
    assert (outcome.decision, outcome.terms, outcome.rewritten) == (Decision.queue_and_delete, "incoming", None)
    assert outcome.deleted == (first.position,)
    assert (outcome.full, outcome.by) == (False, first.position)
    assert outcome.position is not None
    assert outcome.position.rank == 0
    assert [message["n"] for message in contents(smart, db)] == [2, 5, 6]
    assert smart.queue.stats(db).available == 3
    assert smart.enqueue(db, {"type": "x", "n": 3}, priority=0).rewritten == outcome.position
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B")] == [3, 5, 6]
    assert len(Deadlines(smart).claim(db, lead=31)) == 3
    assert smart.check(db).problems == ()


def test_a_leased_item_takes_no_terms_either(db: Any, space: Subspace) -> None:
    def check(queued: Data, new: Data, asked: Asked) -> Answer:
        return Replace(new, terms="incoming")

    smart = smart_queue(space, MessageType("x", check=check))
    smart.enqueue(db, {"type": "x"})
    smart.leases.lease(db)
    with pytest.raises(CheckFailed, match="leased"):
        smart.enqueue(db, {"type": "x"}, headers={"a": 1})


def test_terms_are_the_items_own_or_the_new_messages(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, taking_over("mine"))
    smart.enqueue(db, {"type": "x"})
    with pytest.raises(CheckFailed, match="'own' or 'incoming'"):
        smart.enqueue(db, {"type": "x"})


def test_an_enqueue_that_replaces_no_item_reports_no_terms(db: Any, space: Subspace) -> None:
    outcome = smart_queue(space, X).enqueue(db, {"type": "x"})
    assert outcome.terms is None
    assert isinstance(outcome, Outcome)


# Merging with the last one.


@dataclass
class Event:
    """Merges with the newcomer if it is the last in the queue, and of the same kind."""

    kind: str
    amount: int = 1

    def check(self, new: Any, *, last: bool) -> Answer:
        if not last or new.kind != self.kind:
            return Decision.dont_care
        self.amount += new.amount
        return Decision.ignore


EVENT = MessageType("event", Event, sees=EVERYTHING)
BY_KIND = MessageType("event", Event, key=lambda event: event.kind, sees=OWN_KEY)


@pytest.fixture(params=[EVENT, BY_KIND], ids=["sees everything", "sees its key"])
def events(request: pytest.FixtureRequest, space: Subspace, clock: Clock) -> SmartQueue:
    """A queue of events that merge with the last one."""
    return smart_queue(space, request.param, X, clock=clock)


def test_an_event_merges_with_the_last_one_and_with_no_other(db: Any, events: SmartQueue) -> None:
    for kind in "aababb":
        events.enqueue(db, Event(kind))
    assert contents(events, db) == [Event("a", 2), Event("b"), Event("a"), Event("b", 2)]


def test_delayed_leased_and_other_items_count_as_the_last_too(db: Any, events: SmartQueue) -> None:
    events.enqueue(db, Event("a"))
    events.enqueue(db, {"type": "x"}, delay=5)
    assert events.enqueue(db, Event("a")).position is not None
    leased = events.leases.lease_many(db)
    assert len(leased) == 2
    for lease in leased[:1]:
        events.leases.nack(db, lease)
    assert events.enqueue(db, Event("a")).position is not None, "the last one is leased, and the first is not the last"
    assert events.check(db).problems == ()


def test_many_events_of_one_transaction_merge_with_each_other(db: Any, events: SmartQueue) -> None:
    events.enqueue_many(db, [Event(kind) for kind in "aabba"])
    tr = db.create_transaction()
    for kind in "aab":
        events.enqueue(tr, Event(kind))
    tr.commit().wait()
    assert contents(events, db) == [Event("a", 2), Event("b", 2), Event("a", 3), Event("b")]


@pytest.mark.parametrize("state", ["available", "delayed"])
def test_a_merge_with_the_last_item_conflicts_with_a_later_append(db: Any, events: SmartQueue, state: str) -> None:
    events.enqueue(db, Event("a"))
    tr, slow = db.create_transaction(), db.create_transaction()
    assert events.enqueue(tr, Event("a")).rewritten is not None
    events.enqueue(slow, {"type": "x"}, delay=5 if state == "delayed" else None)
    assert not conflicts(slow)
    assert conflicts(tr)


def test_a_merge_check_depends_on_the_last_item_only(db: Any, space: Subspace) -> None:
    events = smart_queue(space, BY_KIND, X)
    events.enqueue(db, Event("a"))
    events.enqueue(db, {"type": "x"})
    one, other = db.create_transaction(), db.create_transaction()
    for tr in (one, other):
        assert events.enqueue(tr, Event("a")).position is not None
    events.enqueue(db, {"type": "x"})
    assert not conflicts(one), "what is appended behind the last one changes nothing"
    another = db.create_transaction()
    events.enqueue(another, Event("a"))
    events.queue.dequeue_many(db, limit=9)
    assert conflicts(another)


def test_a_check_may_ask_for_both_what_is_known_of_its_item_and_whether_it_is_the_last(
    db: Any, space: Subspace
) -> None:
    told: list[tuple[str, bool]] = []

    def check(queued: Data, new: Data, asked: Asked, *, last: bool) -> Answer:
        told.append((asked.state, last))
        return Decision.dont_care

    smart = smart_queue(space, MessageType("x", check=check), debug=True)
    smart.enqueue(db, {"type": "x"})
    smart.enqueue(db, {"type": "x"}, delay=9)
    told.clear()
    smart.enqueue(db, {"type": "x"})
    assert told == [("available", False)] * 2 + [("delayed", True)] * 2


def test_a_check_with_last_in_the_third_place_gets_it_there(db: Any, space: Subspace) -> None:
    told: list[Any] = []

    def check(queued: Data, new: Data, last: bool) -> Answer:
        told.append(last)
        return Decision.dont_care

    smart = smart_queue(space, MessageType("x", check=check))
    for _ in range(3):
        smart.enqueue(db, {"type": "x"})
    assert told == [True, False, True]


def test_queues_without_a_merge_check_do_not_read_the_last_item(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("looked for")

    monkeypatch.setattr("fdbqueue.layers.smart.admitting.last_of", never)
    smart = smart_queue(space, MessageType("x", check=lambda queued, new, asked: Decision.queue))
    smart.enqueue(db, {"type": "x"})
    enqueue_unchecked(smart, db, {"type": "x"})
    assert smart.enqueue(db, {"type": "x"}).position is not None


def test_terms_can_be_awaited_too(db: Any, space: Subspace) -> None:
    smart = by_levels(space, X)
    asyncio.run(smart.enqueue.aio(db, {"type": "x"}, priority=1, ttl=5, delay=1))
    assert smart.leases.stats(db).delayed == 1
