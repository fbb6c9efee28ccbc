"""Smart checks do what their pattern says: who is asked, what is decided, and what is written then."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fdbqueue import BulkInterrupted, CodecError, ItemTooLarge, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import Limit, SmartQueue
from fdbqueue.layers.smart import admitting as _batches
from fdbqueue.layers.smart import scanning as _scanning
from fdbqueue.layers.smart.messages import Messages
from fdbqueue.layers.smart.types import (
    EVERYTHING,
    NOTHING,
    OWN_KEY,
    OWN_TYPE,
    Answer,
    Asked,
    Decision,
    MessageType,
    Replace,
    Sees,
    keyed,
    types,
)
from fdbqueue.stored.items import INLINE_BYTES
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase, When
from tests.helpers.smart import (
    Confirmation,
    Order,
    Progress,
    contents,
    enqueue_unchecked,
    note,
    position_of,
    rows_of,
    smart_queue,
)


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


@pytest.mark.parametrize("sees", [EVERYTHING, OWN_TYPE], ids=["everything", "own type"])
def test_items_of_all_states_are_asked_in_queue_order_however_many_windows_they_fill(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, sees: Sees
) -> None:
    monkeypatch.setattr(_scanning, "WINDOW", 2)
    met: list[int] = []

    def check(queued: dict[str, Any], new: dict[str, Any], asked: Asked) -> Decision:
        met.append(queued["n"])
        return Decision.dont_care

    smart = smart_queue(space, MessageType("x", check=check, sees=sees))
    for n in range(9):
        smart.enqueue(db, {"type": "x", "n": n}, delay=100 if n in (2, 3, 7) else None)
    taken = smart.leases.lease_many(db, limit=4)
    for lease in taken[1:3]:
        smart.leases.nack(db, lease)
    met.clear()
    smart.enqueue(db, {"type": "x", "n": 9})
    assert met == list(range(9))


def test_an_empty_queue_accepts_every_message(db: Any, smart: SmartQueue) -> None:
    outcome = smart.enqueue(db, note("new"))
    assert (outcome.decision, outcome.by, outcome.asked, outcome.items_read) == (Decision.queue, None, 0, 0)


def test_a_replaced_message_keeps_its_key_its_headers_and_its_place(db: Any, smart: SmartQueue) -> None:
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
            return Replace(Level(max(self.value, new.value)))

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


def test_a_large_message_is_asked_and_rewritten_with_its_chunks(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, note("x" * 200_000, new="take over", small="take over"))
    smart.enqueue(db, note("new"))
    assert [message.text for message in contents(smart, db)] == ["new"]
    smart.queue.clear(db)
    smart.enqueue(db, note("small", **{"y" * 200_000: "take over"}))
    assert smart.enqueue(db, note("y" * 200_000)).rewritten is not None
    assert [len(message.text) for message in contents(smart, db)] == [200_000]


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


@pytest.mark.slow
def test_enqueue_many_says_which_are_in_when_one_fails(db: Any, smart: SmartQueue) -> None:
    good: list[Any] = [Order(n) for n in range(120)]
    with pytest.raises(BulkInterrupted) as interrupted:
        smart.enqueue_many(db, [*good, "no message"])
    assert interrupted.value.missing == [(120, 121)]
    assert interrupted.value.report.items == 120
    with pytest.raises(CodecError):
        smart.enqueue_many(db, ["no message"])
    assert len(contents(smart, db)) == 120


def test_enqueue_many_says_which_are_in_when_a_check_fails_in_the_middle_of_a_batch(db: Any, space: Subspace) -> None:
    def fails_at_five(queued: dict[str, Any], new: dict[str, Any]) -> Decision:
        if new["n"] == 5:
            raise KeyError(5)
        return Decision.dont_care

    smart = smart_queue(space, MessageType("x", check=fails_at_five, sees=OWN_TYPE))
    with pytest.raises(BulkInterrupted, match="after 5 messages were dealt with: The check of 'x'") as interrupted:
        smart.enqueue_many(db, [{"type": "x", "n": n} for n in range(9)])
    assert (interrupted.value.missing, interrupted.value.unknown) == ([(5, 9)], [])
    ends = (interrupted.value.report.first, interrupted.value.report.last)
    items = list(smart.queue.browse(db))
    assert ends == (items[0].position, items[-1].position)
    assert [message["n"] for message in contents(smart, db)] == [0, 1, 2, 3, 4]


def test_enqueue_many_puts_about_a_megabyte_into_a_transaction(db: Any, smart: SmartQueue) -> None:
    counting = FaultyDatabase(db, lambda: None)
    smart.enqueue_many(counting, [Order(n, "x" * (_batches.BATCH_BYTES // 3)) for n in range(4)])
    assert counting.commits == 2


@pytest.mark.slow
def test_enqueue_many_halves_what_is_too_large_for_one_transaction(
    db: Any, smart: SmartQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_batches, "BATCH_BYTES", 1 << 30)
    smart.enqueue_many(db, [Order(n, "x" * 3_000_000) for n in range(4)])
    assert [order.number for order in contents(smart, db)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_enqueue_many_says_which_were_read_and_are_not_in_when_the_input_fails(db: Any, smart: SmartQueue) -> None:
    def broken() -> Iterator[Order]:
        yield from map(Order, range(130))
        raise OSError

    with pytest.raises(BulkInterrupted) as interrupted:
        smart.enqueue_many(db, broken())
    assert (interrupted.value.report.items, interrupted.value.missing) == (100, [(100, 130)])
    assert len(contents(smart, db)) == 100


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_enqueue_many_names_the_messages_in_doubt_when_a_commit_times_out(
    db: Any, smart: SmartQueue, when: When
) -> None:
    with pytest.raises(BulkInterrupted, match="nobody knows") as interrupted:
        smart.enqueue_many(FaultyDatabase.failing_at(db, {1}, (when, 1031)), [Order(n) for n in range(120)])
    assert (interrupted.value.missing, interrupted.value.unknown) == ([], [(100, 120)])
    assert len(contents(smart, db)) == (120 if when == "after" else 100)


def test_a_browse_sees_a_large_message_as_replaced_meanwhile(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", check=lambda queued, new: Replace(new), key=first, sees=OWN_KEY))
    large = "x" * (INLINE_BYTES + 1)
    for name in "ab":
        smart.enqueue(db, {"type": "x", "text": name + large})
    looks: list[Any] = [smart.queue.browse(db), smart.leases.browse(db, state="available")]
    for number, look in enumerate(looks):
        next(look)
        smart.enqueue(db, {"type": "x", "text": f"b{number}" + large})
        assert next(look).value["text"] == f"b{number}" + large


def first(message: Any) -> str:
    return str(message["text"][0])


def test_a_callers_transaction_has_all_of_it_or_nothing(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Order(1))
    before = rows_of(smart, db)
    tr = db.create_transaction()
    assert smart.enqueue(tr, Order(2)).position is not None
    assert smart.enqueue(tr, Confirmation(2)).decision is Decision.ignore_and_delete
    assert smart.enqueue(tr, Confirmation(1)).decision is Decision.ignore_and_delete
    del tr
    assert rows_of(smart, db) == before


KEYS: list[Any] = [1 << 3_000, ("a", -(1 << 3_000)), {}, "\ud800"]


@pytest.mark.parametrize("key", KEYS, ids=["long", "long in a tuple", "a dict", "no text"])
def test_a_key_that_can_not_be_stored_is_refused_before_any_key_is_touched(db: Any, space: Subspace, key: Any) -> None:
    smart = smart_queue(space, MessageType("x", key=lambda message: key, sees=OWN_KEY, key_limit=Limit(1)))
    for call in (smart.enqueue, lambda db, message: smart.enqueue_many(db, [message])):
        with pytest.raises(CodecError, match="relation key of a 'x' can't be stored"):
            call(db, {"type": "x"})
    assert rows_of(smart, db) == []


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
    enqueue_unchecked(smart, db, Progress("b", 1))
    assert len(smart.check(db).problems) == 2
    smart.queue.clear(db)
    smart.enqueue(db, Progress("a", 1))
    for name in ("progress", "a\0b"):
        db.set(smart.queue.layout.smart.pack((name, b"x", 7, b"random")), b"")
    problems = smart.check(db).problems
    assert len(problems) == 2
    assert all("7:72616e646f6d of type" in problem and "no such item" in problem for problem in problems)
    smart.queue.clear(db)
    Queue(space).enqueue(db, b"no message")
    assert any("can't be read as a message" in problem for problem in smart.check(db).problems)


def test_check_reports_dependent_keys_without_an_item(db: Any, smart: SmartQueue) -> None:
    smart.resend.register(db, "B")
    smart.enqueue(db, Progress("a", 1))
    layout = smart.queue.layout
    assert smart.check(db).problems == ()
    for stray in layout.deadlines["near"][7], layout.copies[1], layout.unsent[1]:
        db[stray.pack((7, b"random"))] = b""
    told = "\n".join(smart.check(db).problems)
    assert [f"of a {name} belongs to no item" in told for name in ("deadline", "copy", "unsent")] == [True] * 3


def test_check_goes_on_behind_an_item_that_can_not_be_read(db: Any, smart: SmartQueue) -> None:
    position = position_of(smart, db, Progress("a", 1))
    enqueue_unchecked(smart, db, Progress("b", 1))
    db[smart.queue.layout.item_key(position)] = b"\xf0from the future"
    told = "\n".join(smart.check(db).problems)
    assert "newer version" in told
    assert "notes that do not name its index entry" in told


def test_dead_letters_are_nothing_that_check_misses_in_the_index(db: Any, smart: SmartQueue) -> None:
    smart.enqueue(db, Progress("a", 1))
    leases = Leases(smart.queue, max_attempts=1)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease)
    assert leases.stats(db).dead == 1
    assert smart.check(db).problems == ()


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


def test_a_check_gets_its_context(db: Any, space: Subspace) -> None:
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
