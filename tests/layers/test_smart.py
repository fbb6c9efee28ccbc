"""Smart checks do what their pattern says: who is asked, what is decided, and what is written then."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from fdbqueue import BulkInterrupted, CodecError, ItemTooLarge, LeaseLost, Queue
from fdbqueue.engine import Subspace, transactional
from fdbqueue.engine.steps import run
from layers.decisions import Answer, Asked, Decision, TakeOver
from layers.leases import Leases
from layers.limits import Limit
from layers.messages import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, keyed, types
from layers.serving import Serving, Share
from layers.smart import SmartQueue
from layers.staged import StagedQueue
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.smart import (
    ORDER,
    Clock,
    Confirmation,
    Note,
    Order,
    Progress,
    contents,
    position_of,
    rows_of,
    smart_queue,
)

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]


@pytest.fixture
def smart(space: Subspace) -> SmartQueue:
    return smart_queue(space)


def note(text: str, **to: str) -> Note:
    return Note(text, to)


@pytest.mark.parametrize(
    ("answer", "left", "decision"),
    [
        ("don't care", ["a", "b", "new"], Decision.queue),
        ("ignore", ["a", "b"], Decision.ignore),
        ("take over", ["new", "b"], Decision.ignore),
        ("queue", ["a", "b", "new"], Decision.queue),
        ("queue and delete", ["b", "new"], Decision.queue_and_delete),
        ("ignore and delete", ["b"], Decision.ignore_and_delete),
    ],
)
def test_each_decision_has_the_patterns_meaning(
    db: Any, smart: SmartQueue, answer: str, left: list[str], decision: Decision
) -> None:
    first = position_of(smart, db, note("a", new=answer))
    smart.enqueue(db, note("b", new="ignore and delete") if answer != "don't care" else note("b"))
    outcome = smart.enqueue(db, note("new"))
    assert outcome.decision is decision
    assert outcome.by == (None if answer == "don't care" else first)
    assert [message.text for message in contents(smart, db)] == left
    assert (outcome.position is not None) == ("new" in left[-1:])
    assert outcome.rewritten == (first if answer == "take over" else None)
    assert outcome.deleted == ((first,) if "delete" in answer else ())
    assert smart.queue.stats(db).deleted == len(outcome.deleted)


def test_items_are_asked_in_queue_order_and_the_first_that_cares_decides(db: Any, smart: SmartQueue) -> None:
    asked = position_of(smart, db, note("a"))
    decider = position_of(smart, db, note("b", new="queue and delete"))
    smart.enqueue(db, note("c", new="ignore"))
    outcome = smart.enqueue(db, note("new"))
    assert (outcome.decision, outcome.by, outcome.asked) == (Decision.queue_and_delete, decider, 2)
    assert asked.index < decider.index
    assert [message.text for message in contents(smart, db)] == ["a", "c", "new"]


def test_an_empty_queue_lets_everybody_in(db: Any, smart: SmartQueue) -> None:
    outcome = smart.enqueue(db, note("new"))
    assert (outcome.decision, outcome.by, outcome.asked, outcome.items_read) == (Decision.queue, None, 0, 0)


def test_a_message_that_takes_over_values_keeps_its_key_its_headers_and_its_place(db: Any, smart: SmartQueue) -> None:
    outcome = smart.enqueue(db, Progress("a", 10), headers={"who": "me"})
    smart.enqueue(db, Progress("b", 10))
    later = smart.enqueue(db, Progress("a", 90))
    assert later.by == later.rewritten == outcome.position
    item = smart.dequeue(db)
    assert item is not None
    assert (item.position, item.value, item.headers) == (outcome.position, Progress("a", 90), {"who": "me"})


def test_a_message_that_can_not_be_changed_is_replaced(db: Any, space: Subspace) -> None:
    class Level(msgspec.Struct, frozen=True):
        value: int

        def check(self, new: Level) -> Answer:
            return TakeOver(Level(max(self.value, new.value)))

    smart = smart_queue(space, MessageType("level", Level))
    for value in (3, 7, 5):
        smart.enqueue(db, Level(value))
    assert contents(smart, db) == [Level(7)]


def test_plain_data_is_asked_by_a_function_of_its_type(db: Any, space: Subspace) -> None:
    def check(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
        queued["n"] += new["n"]
        return Decision.ignore

    smart = smart_queue(space, MessageType("sum", check=check, key=lambda data: data["of"], sees=OWN_KEY))
    for n, of in ((1, "x"), (5, "y"), (2, "x")):
        smart.enqueue(db, {"type": "sum", "of": of, "n": n})
    assert contents(smart, db) == [{"type": "sum", "of": "x", "n": 3}, {"type": "sum", "of": "y", "n": 5}]


def test_messages_of_a_type_without_a_check_do_not_care(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("event"))
    for n in range(3):
        outcome = smart.enqueue(db, {"type": "event", "n": n})
        assert (outcome.asked, outcome.items_read) == (0, n)


scopes = {
    "everything": (EVERYTHING, 6),
    "own type": (OWN_TYPE, 3),
    "own key": (OWN_KEY, 2),
    "other types": (types("right"), 3),
    "two types": (types("left", "right"), 6),
    "the key of other types": (keyed("left", "right"), 4),
    "nothing": (NOTHING, 0),
}


@pytest.mark.parametrize("scope", scopes)
def test_a_newcomer_is_compared_with_what_its_type_sees_and_reads_nothing_else(
    db: Any, space: Subspace, scope: str
) -> None:
    sees, expected = scopes[scope]
    asked: list[tuple[str, str]] = []

    def check(queued: dict[str, Any], new: dict[str, Any]) -> Decision:
        if new.get("probe"):
            asked.append((queued["type"], queued["key"]))
        return Decision.dont_care

    def key(message: dict[str, Any]) -> str:
        return str(message["key"])

    smart = smart_queue(
        space, MessageType("left", check=check, key=key, sees=sees), MessageType("right", check=check, key=key)
    )
    everybody = [(side, key) for key in ("k", "other", "k") for side in ("left", "right")]
    for side, at in everybody:
        smart.enqueue(db, {"type": side, "key": at})
    outcome = smart.enqueue(db, {"type": "left", "key": "k", "probe": True})
    assert (outcome.items_read, outcome.asked) == (expected, expected)
    in_order = iter(everybody)
    assert all(one in in_order for one in asked), "in queue order, whatever the index says"


@pytest.mark.parametrize("key", ["", "a\x00b", b"\x00\xff\x00", 0, -5, 2**70, ("a", 1, None), None])
def test_a_relation_key_is_anything_that_a_tuple_can_hold(db: Any, space: Subspace, key: Any) -> None:
    def check(queued: dict[str, Any], new: dict[str, Any]) -> Decision:
        return Decision.ignore

    smart = smart_queue(space, MessageType("x", check=check, key=lambda _: key, sees=OWN_KEY))
    assert smart.enqueue(db, {"type": "x"}).position is not None
    assert smart.enqueue(db, {"type": "x"}).decision is Decision.ignore
    assert len(contents(smart, db)) == 1
    assert smart.stats(db).types == {"x": 1}
    smart.dequeue(db)
    assert contents(smart, db) == []


def test_a_leased_item_is_asked_by_a_check_that_wants_to_know_and_says_that_it_is(db: Any, smart: SmartQueue) -> None:
    first = position_of(smart, db, Order(1))
    assert smart.enqueue(db, Order(2)).by is None
    assert smart.leases.lease(db) is not None
    assert smart.enqueue(db, Order(3)).by == first


def test_a_leased_item_is_not_asked_by_a_check_that_does_not_know_of_leases(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 10))
    lease = smart.leases.lease(db)
    assert lease is not None
    outcome = smart.enqueue(db, Progress("a", 20))
    assert (outcome.decision, outcome.by, outcome.asked) == (Decision.queue, None, 0)
    smart.leases.nack(db, lease)
    assert contents(smart, db) == [Progress("a", 10), Progress("a", 20)]


def test_a_leased_item_that_is_deleted_is_lost_to_its_holder(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Order(1))
    lease = smart.leases.lease(db)
    assert lease is not None
    assert smart.enqueue(db, Confirmation(1)).deleted == (lease.position,)
    with pytest.raises(LeaseLost):
        smart.leases.ack(db, lease)
    assert contents(smart, db) == []


@pytest.mark.parametrize("way", ["dequeue", "plain dequeue", "dequeue_many", "ack", "staged", "staged ack", "clear"])
def test_the_index_follows_whatever_way_an_item_takes_out(db: Any, smart: SmartQueue, way: str) -> None:
    smart.enqueue(db, Progress("a", 1))
    if way == "dequeue":
        smart.dequeue(db)
    elif way == "plain dequeue":
        smart.queue.dequeue(db)
    elif way == "dequeue_many":
        smart.queue.dequeue_many(db, limit=5)
    elif way == "staged":
        StagedQueue(smart.leases).dequeue(db)
    elif way == "staged ack":
        staged = StagedQueue(smart.leases)
        lease = staged.lease(db)
        assert lease is not None
        staged.ack(db, lease)
    elif way == "clear":
        smart.queue.clear(db)
    else:
        lease = smart.leases.lease(db)
        assert lease is not None
        smart.leases.ack(db, lease)
    assert smart.stats(db).types["progress"] == 0
    assert contents(smart, db) == []
    assert smart.enqueue(db, Progress("a", 2)).by is None


def test_an_item_that_was_taken_out_for_somebody_who_had_gone_is_back_in_the_index(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 1))
    serving = Serving(smart.leases)
    share = Share(1, 0, "", own=True)

    @transactional
    def take(tr: Any) -> None:
        run(serving.take(tr, serving.look(tr, limit=1), [share]))

    @transactional
    def put_back(tr: Any) -> None:
        run(serving.put_back(tr, share.got))

    take(db)
    assert contents(smart, db) == []
    put_back(db)
    assert contents(smart, db) == [Progress("a", 1)]
    assert smart.enqueue(db, Progress("a", 2)).rewritten is not None


def test_a_dead_letter_is_out_of_the_queue_until_it_is_redriven(db: Any, space: Subspace) -> None:
    smart = smart_queue(space)
    smart = SmartQueue(Leases(smart.queue, max_attempts=1, clock=smart.leases.clock))
    long = "k" * 950  # its notes have to hold the key and the error
    for to in ("place", "tail"):
        smart.enqueue(db, Progress(long, 1))
        lease = smart.leases.lease(db)
        assert lease is not None
        smart.leases.nack(db, lease, error="x" * 5_000)
        assert smart.enqueue(db, Progress(long, 2)).by is None
        assert smart.dequeue(db) is not None
        smart.leases.dead.redrive(db, to=to)
        assert smart.check(db).problems == ()
        assert smart.enqueue(db, Progress(long, 3)).rewritten is not None
        assert contents(smart, db) == [Progress(long, 3)]
        smart.dequeue(db)


class UrgentFirst:
    """An order by what a note is about."""

    name = "urgent first"

    def rank(self, value: Any, headers: Any) -> int:
        return 0 if value.text.startswith("urgent") else 1


def test_a_queue_with_an_order_of_its_own_is_asked_in_that_order(db: Any, space: Subspace) -> None:
    smart = SmartQueue(Queue(space, codec=Messages(MessageType("note", Note)), order=UrgentFirst()))
    later = position_of(smart, db, note("later", new="queue and delete"))
    urgent = position_of(smart, db, note("urgent", new="take over", other="ignore"))
    before = rows_of(smart, db)
    assert smart.enqueue(db, note("other")).by == urgent
    assert [row for row in rows_of(smart, db) if b"once" not in row[0]] == [
        row for row in before if b"once" not in row[0]
    ]
    smart.enqueue(db, note("urgent, too"))
    assert [message.text for message in contents(smart, db)] == ["urgent", "urgent, too", "later"]
    outcome = smart.enqueue(db, note("new"))
    assert (outcome.by, outcome.rewritten) == (urgent, urgent)
    assert [message.text for message in contents(smart, db)] == ["new", "urgent, too", "later"]
    assert later.rank == 1


def test_a_delayed_item_is_asked_and_can_take_over_values(db: Any, space: Subspace) -> None:
    clock = Clock()
    smart = smart_queue(space, clock=clock)
    smart.enqueue(db, Progress("a", 1), delay=10)
    assert smart.enqueue(db, Progress("a", 2)).rewritten is not None
    assert smart.dequeue(db) is None
    clock.now += 11
    assert contents(smart, db) == []
    item = smart.dequeue(db)
    assert item is not None
    assert item.value == Progress("a", 2)


def test_an_item_whose_life_is_over_is_removed_before_anybody_is_asked(db: Any, space: Subspace) -> None:
    clock = Clock()
    order = dataclasses.replace(ORDER, expires=10.0)
    smart = smart_queue(space, order, clock=clock)
    old = position_of(smart, db, Order(1))
    clock.now += 11
    outcome = smart.enqueue(db, Order(2))
    assert (outcome.expired, outcome.asked, outcome.by) == ((old,), 0, None)
    clock.now += 11
    assert smart.dequeue(db) is None
    assert smart.queue.stats(db).expired == 2
    assert contents(smart, db) == []


def test_a_time_to_live_can_be_a_function_of_the_message_and_begins_anew_with_new_values(
    db: Any, space: Subspace
) -> None:
    clock = Clock()

    def until(message: dict[str, Any]) -> float | None:
        return message.get("until")

    def check(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
        return TakeOver(new)

    smart = smart_queue(space, MessageType("x", check=check, expires=until), clock=clock)
    smart.enqueue(db, {"type": "x", "until": clock.now + 5})
    smart.enqueue(db, {"type": "x", "until": clock.now + 50})
    clock.now += 10
    assert len(contents(smart, db)) == 1
    smart.enqueue(db, {"type": "x"})
    clock.now += 100
    assert contents(smart, db) == [{"type": "x"}]
    item = smart.dequeue(db)
    assert item is not None


def test_a_large_message_is_asked_and_rewritten_with_its_chunks(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, note("x" * 200_000, new="take over", small="take over"))
    smart.enqueue(db, note("new"))
    assert [message.text for message in contents(smart, db)] == ["new"]
    smart.queue.clear(db)
    smart.enqueue(db, note("small", **{"y" * 200_000: "take over"}))
    assert smart.enqueue(db, note("y" * 200_000)).rewritten is not None
    assert [len(message.text) for message in contents(smart, db)] == [200_000]


@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize("second", FAULTS)
def test_every_call_is_exactly_once_under_any_two_faults_in_a_row(
    db: Any, smart: SmartQueue, first: Fault, second: Fault
) -> None:
    def failing() -> FaultyDatabase:
        pending = iter((first, second))
        return FaultyDatabase(db, lambda: next(pending, None))

    assert smart.enqueue(failing(), Order(1)).decision is Decision.queue
    assert smart.enqueue(failing(), Progress("a", 1)).position is not None
    assert smart.enqueue(failing(), Progress("a", 2)).decision is Decision.ignore
    assert smart.enqueue(failing(), Confirmation(1)).decision is Decision.ignore_and_delete
    assert len(smart.enqueue_many(failing(), [Order(5), Order(6)])) == 2
    assert contents(smart, db) == [Progress("a", 2), Order(5), Order(6)]
    item = smart.dequeue(failing())
    assert item is not None
    assert smart.queue.stats(db).dequeued == 1


def test_enqueue_many_compares_each_with_those_before_it(db: Any, smart: SmartQueue) -> None:
    messages = [Progress("a", n) for n in range(150)] + [Progress("b", 1)]
    outcomes = smart.enqueue_many(db, messages)
    assert [outcome.decision for outcome in outcomes] == [Decision.queue, *[Decision.ignore] * 149, Decision.queue]
    assert contents(smart, db) == [Progress("a", 149), Progress("b", 1)]
    tr = db.create_transaction()
    assert [one.decision for one in smart.enqueue_many(tr, [Progress("c", 1), Progress("c", 2)])] == [
        Decision.queue,
        Decision.ignore,
    ]
    tr.commit().wait()
    assert contents(smart, db)[-1] == Progress("c", 2)


def test_enqueue_many_says_which_are_in_when_one_fails(db: Any, smart: SmartQueue) -> None:
    good: list[Any] = [Order(n) for n in range(120)]
    with pytest.raises(BulkInterrupted) as interrupted:
        smart.enqueue_many(db, [*good, "no message"])
    assert interrupted.value.missing == [(100, 101)]
    assert interrupted.value.report.items == 100
    with pytest.raises(CodecError):
        smart.enqueue_many(db, ["no message"])
    assert len(contents(smart, db)) == 100


def test_a_callers_transaction_has_all_of_it_or_nothing(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Order(1))
    before = rows_of(smart, db)
    tr = db.create_transaction()
    assert smart.enqueue(tr, Order(2)).position is not None
    assert smart.enqueue(tr, Confirmation(2)).decision is Decision.ignore_and_delete
    assert smart.enqueue(tr, Confirmation(1)).decision is Decision.ignore_and_delete
    del tr
    assert rows_of(smart, db) == before


def test_a_message_that_does_not_fit_is_refused_before_any_key_is_touched(db: Any, smart: SmartQueue) -> None:
    for bad in ("text", {"type": "progress", "file": "a"}, {"type": "unknown"}, Progress(file="a", percent="x")):  # type: ignore[arg-type]
        with pytest.raises(CodecError):
            smart.enqueue(db, bad)
    with pytest.raises(ItemTooLarge, match="shorter key"):
        smart.enqueue(db, Progress("k" * 2_000, 1))
    assert rows_of(smart, db) == []


def test_verbs_can_be_awaited(db: Any, smart: SmartQueue) -> None:
    async def main() -> None:
        await asyncio.gather(*(smart.enqueue.aio(db, Progress("a", n)) for n in range(5)))
        item = await smart.dequeue.aio(db)
        assert item is not None
        assert item.value.file == "a"
        assert await smart.dequeue.aio(db) is None

    asyncio.run(main())


def test_check_tells_of_items_that_are_not_in_the_index_and_of_entries_without_an_item(
    db: Any, smart: SmartQueue, space: Subspace
) -> None:
    smart.enqueue(db, Progress("a", 1))
    smart.queue.enqueue(db, Progress("b", 1))
    assert len(smart.check(db).problems) == 2
    smart.queue.clear(db)
    smart.enqueue(db, Progress("a", 1))
    db.set(smart.queue.layout.smart.pack(("progress", b"x", 7, b"random")), b"")
    [problem] = smart.check(db).problems
    assert "no such item" in problem
    smart.queue.clear(db)
    Queue(space).enqueue(db, b"no message")
    assert any("can't be read as a message" in problem for problem in smart.check(db).problems)


def test_types_that_do_not_go_together_are_refused() -> None:
    @dataclasses.dataclass
    class Tagged:
        type: str

    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        n: int

    refused: tuple[tuple[MessageType, ...], ...] = (
        (MessageType("a"), MessageType("a")),
        (MessageType("a", sees=types("b")),),
        (MessageType("a", sees=OWN_KEY),),
        (MessageType(""),),
        (MessageType("a", Progress), MessageType("b", Progress)),
        (MessageType("a", expires=0),),
        (MessageType("a", deadline=-1.0),),
        (MessageType("a", limit=Limit(10_001)),),
    )
    for given in refused:
        with pytest.raises(ValueError):
            Messages(*given)
    with pytest.raises(ValueError):
        Messages(format="xml")  # type: ignore[arg-type]
    for cls in (Tagged, Strict, int):
        with pytest.raises(TypeError):
            Messages(MessageType("a", cls))
    with pytest.raises(TypeError):
        SmartQueue(Queue("q"))
    with pytest.raises(TypeError):
        SmartQueue(Queue("q", codec=Messages(MessageType("a", check=lambda queued: Decision.ignore))))


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_registry_stores_messages_with_their_types_name(form: Any) -> None:
    messages = Messages(MessageType("progress", Progress), MessageType("data"), format=form)
    decode = (msgspec.json if form == "json" else msgspec.msgpack).decode
    assert decode(messages.encode(Progress("a", 1))) == {"type": "progress", "file": "a", "percent": 1}
    for message in (Progress("a", 1), {"type": "data", "n": 1}):
        assert messages.decode(messages.encode(message)) == message
    with pytest.raises(CodecError, match="not registered"):
        messages.decode(messages.encode(Progress("a", 1)).replace(b"progress", b"regress_"))


def test_what_a_check_may_know_is_given_to_it(db: Any, space: Subspace) -> None:
    seen: list[Asked] = []

    def check(queued: dict[str, Any], new: dict[str, Any], asked: Asked) -> Decision:
        seen.append(asked)
        return Decision.dont_care

    clock = Clock()
    smart = smart_queue(space, MessageType("x", check=check), clock=clock)
    first = position_of(smart, db, {"type": "x"})
    smart.leases.lease(db)
    smart.enqueue(db, {"type": "x"}, delay=5)
    smart.enqueue(db, {"type": "x"})
    assert [(one.state, one.attempt, one.now) for one in seen] == [
        ("leased", 1, clock.now),
        ("leased", 1, clock.now),
        ("delayed", 0, clock.now),
    ]
    assert seen[0].position == first
