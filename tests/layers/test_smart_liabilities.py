"""Checks that go wrong cost an error that names type and item, and nothing is written."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fdbqueue import CheckFailed, CodecError, FormatError, ItemTooLarge, Queue, QueueFull, ScanTooLarge
from fdbqueue.engine import Subspace
from fdbqueue.items import INLINE_BYTES, MAX_ITEM_BYTES
from layers.comparing.room import WATCHED_ENTRIES
from layers.decisions import Asked, Decision, TakeOver
from layers.earliest import EarliestDeadline
from layers.leasing.timers import SETTLE_LIMIT
from layers.limits import Limit
from layers.messages import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, Sees, types
from layers.smart import SmartQueue
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import contents, rows_of, smart_queue

Data = dict[str, Any]


def forever(queued: Data, new: Data) -> Decision:
    while True:
        pass


def forever_and_stubborn(queued: Data, new: Data) -> Decision:
    while True:
        try:
            forever(queued, new)
        except Exception:  # noqa: BLE001 - that is what the stubborn do
            continue


def raises(queued: Data, new: Data) -> Decision:
    raise KeyError("percent")


def changes_the_newcomer(queued: Data, new: Data) -> Decision:
    new["more"] = 1
    return Decision.dont_care


def changes_itself_and_lets_it_in(queued: Data, new: Data) -> Decision:
    queued["more"] = 1
    return Decision.queue


def changes_itself_and_does_not_care(queued: Data, new: Data) -> Decision:
    queued["more"] = 1
    return Decision.dont_care


def changes_itself_and_deletes_itself(queued: Data, new: Data) -> Decision:
    queued["more"] = 1
    return Decision.ignore_and_delete


def changes_its_key(queued: Data, new: Data) -> Decision:
    queued["key"] = "another"
    return Decision.ignore


def changes_its_type(queued: Data, new: Data) -> Decision:
    queued["type"] = "y"
    return Decision.ignore


def becomes_nothing_that_can_be_stored(queued: Data, new: Data) -> Decision:
    queued["key"] = object()
    return Decision.ignore


def becomes_no_message(queued: Data, new: Data) -> TakeOver:
    return TakeOver("text")


bad: dict[str, tuple[Callable[[Data, Data], Any], str]] = {
    "raises": (raises, "raised KeyError"),
    "never returns": (forever, "did not return within"),
    "never returns and catches all": (forever_and_stubborn, "did not return within"),
    "changes the newcomer": (changes_the_newcomer, "changed the newcomer"),
    "changes itself and lets it in": (changes_itself_and_lets_it_in, "did not answer 'ignore'|answered 'queue'"),
    "changes itself, not caring": (changes_itself_and_does_not_care, "did not answer 'ignore'"),
    "changes itself and deletes itself": (changes_itself_and_deletes_itself, "answered 'ignore and delete'"),
    "changes its key": (changes_its_key, "changed the key"),
    "changes its type": (changes_its_type, "type 'y'"),
    "can't be stored": (becomes_nothing_that_can_be_stored, "can't be stored"),
    "is no message": (becomes_no_message, "can't be stored"),
    "returns None": (lambda queued, new: None, "returned None"),
    "returns True": (lambda queued, new: True, "returned True"),
    "returns text": (lambda queued, new: "maybe", "returned 'maybe'"),
}


@pytest.mark.parametrize("fault", bad)
@pytest.mark.parametrize("own", [True, False], ids=["own transaction", "caller's"])
def test_a_bad_check_is_named_with_its_item_and_nothing_is_written(
    db: Any, space: Subspace, fault: str, own: bool
) -> None:
    check, why = bad[fault]

    def sometimes(queued: Data, new: Data) -> Any:
        return check(queued, new) if queued.get("bad") else Decision.dont_care

    def key(message: Data) -> str:
        return str(message.get("key", ""))

    clock = Clock()
    smart = smart_queue(
        space,
        MessageType("x", check=sometimes, key=key, sees=types("x", "y")),
        MessageType("y", expires=5.0, sees=NOTHING),
        clock=clock,
        check_seconds=0.1,
    )
    smart.enqueue_many(db, [{"type": "y"}, {"type": "x"}])
    broken = smart.enqueue(db, {"type": "x", "bad": True}).position
    smart.enqueue(db, {"type": "y", "n": 2})
    clock.now += 6
    before = rows_of(smart, db)
    tr = db if own else db.create_transaction()
    with pytest.raises(CheckFailed, match=why) as failed:
        smart.enqueue(tr, {"type": "x"})
    assert (failed.value.type, failed.value.position) == ("x", broken)
    assert "'x'" in str(failed.value)
    assert str(broken) in str(failed.value)
    if not own:
        tr.set(space.pack(("mine",)), b"")
        tr.commit().wait()
        assert [row for row in rows_of(smart, db) if row[0] != space.pack(("mine",))] == before
    else:
        assert rows_of(smart, db) == before


def test_a_leased_item_can_not_take_over_values(db: Any, space: Subspace) -> None:
    def check(queued: Data, new: Data, asked: Asked) -> Any:
        return TakeOver(new)

    smart = smart_queue(space, MessageType("x", check=check))
    smart.enqueue(db, {"type": "x", "n": 1})
    smart.leases.lease(db)
    with pytest.raises(CheckFailed, match="leased"):
        smart.enqueue(db, {"type": "x", "n": 2})
    assert smart.enqueue(db, {"type": "x", "n": 1}).decision is Decision.ignore


def never(message: Data) -> float | None:
    if message.get("n") == 2:
        raise LookupError("no time for 2")
    return message.get("until")


@pytest.mark.parametrize(
    ("answer", "headers", "raised"),
    [
        (Decision.queue_and_delete, {"no": object()}, CodecError),
        (TakeOver({"type": "x", "n": 2}), None, LookupError),
        (TakeOver({"type": "x", "n": 3, "large": "x" * MAX_ITEM_BYTES}), None, ItemTooLarge),
    ],
)
def test_an_enqueue_that_fails_has_written_nothing_whatever_becomes_of_the_transaction(
    db: Any, space: Subspace, clock: Clock, answer: Any, headers: Any, raised: type[Exception]
) -> None:
    def check(queued: Data, new: Data) -> Any:
        return answer if new["n"] == 9 else Decision.queue

    smart = smart_queue(space, MessageType("x", check=check, expires=never), clock=clock)
    smart.enqueue(db, {"type": "x", "n": 0, "until": clock.now + 1})  # it would be removed on the way
    smart.enqueue(db, {"type": "x", "n": 1})
    clock.now += 2
    before = rows_of(smart, db)
    tr = db.create_transaction()
    with pytest.raises(raised):
        smart.enqueue(tr, {"type": "x", "n": 9}, headers=headers)
    tr.commit().wait()
    assert rows_of(smart, db) == before
    assert smart.check(db).problems == ()


@pytest.mark.parametrize("in_front", [0, 1])
def test_an_enqueue_by_rank_that_fails_has_written_nothing(db: Any, space: Subspace, in_front: int) -> None:
    queue = Queue(space, codec=Messages(MessageType("x", check=raises)), order=EarliestDeadline())
    smart = SmartQueue(queue)
    queue.enqueue(db, {"type": "x"}, headers={"deadline": 8})
    tr = db.create_transaction()
    for _ in range(in_front):
        queue.enqueue(tr, {"type": "x"}, headers={"deadline": 9})
    before = rows_of(smart, tr)
    with pytest.raises(CheckFailed):
        smart.enqueue(tr, {"type": "x"}, headers={"deadline": 10})
    assert rows_of(smart, tr) == before


def test_a_check_that_is_not_deterministic_is_found_by_the_debug_mode(db: Any, space: Subspace) -> None:
    counter = itertools.count()

    def counts(queued: Data, new: Data) -> Any:
        return TakeOver({"type": "x", "n": next(counter)})

    def wavers(queued: Data, new: Data) -> Decision:
        return Decision.queue if next(counter) % 2 else Decision.dont_care

    for check in (counts, wavers):
        smart = smart_queue(space[check.__name__], MessageType("x", check=check), debug=True)
        smart.enqueue(db, {"type": "x"})
        with pytest.raises(CheckFailed, match="asked twice"):
            smart.enqueue(db, {"type": "x"})
    steady = smart_queue(space["steady"], MessageType("x", check=lambda old, new: TakeOver(new)), debug=True)
    steady.enqueue_many(db, [{"type": "x", "n": n} for n in range(3)])
    assert contents(steady, db) == [{"type": "x", "n": 2}]


def test_an_event_loop_and_a_thread_go_on_after_a_check_that_never_returns(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", check=forever), check_seconds=0.1)
    smart.enqueue(db, {"type": "x"})
    failures = []

    def enqueue() -> None:
        try:
            smart.enqueue(db, {"type": "x"})
        except CheckFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 3

    async def main() -> None:
        with pytest.raises(CheckFailed):
            await smart.enqueue.aio(db, {"type": "x"})
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (MessageType("x"), "OWN_TYPE"),
        (MessageType("x", sees=OWN_TYPE), "give the type 'x' a key"),
        (MessageType("x", sees=OWN_TYPE, key=lambda data: 1), "OWN_KEY"),
        (MessageType("x", sees=OWN_KEY, key=lambda data: 1), "finer key"),
    ],
)
def test_a_queue_too_large_to_scan_is_refused_with_the_index_that_would_help(
    db: Any, space: Subspace, given: MessageType, remedy: str
) -> None:
    given = dataclasses.replace(given, check=lambda queued, new: Decision.dont_care)
    smart = smart_queue(space, given, max_items=20)
    for _ in range(21):
        smart.enqueue(db, {"type": "x"})
    before = rows_of(smart, db)
    with pytest.raises(ScanTooLarge, match=remedy):
        smart.enqueue(db, {"type": "x"})
    assert rows_of(smart, db) == before
    smaller = SmartQueue(smart.leases, max_bytes=100)
    with pytest.raises(ScanTooLarge, match="100 bytes"):
        smaller.enqueue(db, {"type": "x"})


def test_an_item_that_is_too_large_to_be_compared_is_not_read(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"), max_bytes=INLINE_BYTES)
    position = smart.enqueue(db, {"type": "x", "large": "x" * INLINE_BYTES}).position
    assert position is not None
    begin, end = smart.queue.layout.chunk_range(position)
    assert list(db[begin:end])
    db.clear_range(begin, end)
    with pytest.raises(ScanTooLarge):
        smart.enqueue(db, {"type": "x"})


def test_an_item_that_can_not_be_read_stops_whoever_has_to_see_it(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"), MessageType("y", sees=OWN_TYPE))
    position = smart.queue.enqueue(db, {"type": "x"})
    key = smart.queue.layout.item_key(position)
    db.set(key, b"\xf0from the future")
    with pytest.raises(FormatError, match="newer version"):
        smart.enqueue(db, {"type": "x"})
    db.set(key, b'\x10{"type":"z"}')
    with pytest.raises(CodecError, match="not registered"):
        smart.enqueue(db, {"type": "x"})
    assert smart.enqueue(db, {"type": "y"}).position is not None


def test_what_others_wrote_in_another_order_is_no_change(db: Any, space: Subspace) -> None:
    class Struct(msgspec.Struct):
        a: int
        b: float

        def check(self, new: Any) -> Decision:
            return Decision.dont_care

    smart = smart_queue(space, MessageType("s", Struct))
    position = smart.queue.enqueue(db, Struct(1, 2.0))
    db.set(smart.queue.layout.item_key(position), b'\x10{ "b": 2, "a": 1, "type": "s" }')
    assert smart.enqueue(db, Struct(1, 2)).by is None
    assert contents_of(smart, db) == [Struct(1, 2.0), Struct(1, 2.0)]


def contents_of(smart: SmartQueue, db: Any) -> list[Any]:
    return [item.value for item in smart.queue.browse(db)]


def limited(space: Subspace, when_full: Any, **terms: Any) -> SmartQueue:
    return smart_queue(
        space,
        MessageType("x", key=lambda data: data["of"], sees=OWN_KEY, key_limit=Limit(2, when_full), expires=100.0),
        **terms,
    )


def x(of: str, n: int) -> Data:
    return {"type": "x", "of": of, "n": n}


def numbers(smart: SmartQueue, db: Any) -> list[tuple[str, int]]:
    return [(message["of"], message["n"]) for message in contents(smart, db)]


def test_a_limit_refuses(db: Any, space: Subspace) -> None:
    smart = limited(space, "refuse")
    smart.enqueue_many(db, [x("a", 1), x("a", 2), x("b", 1)])
    before = rows_of(smart, db)
    with pytest.raises(QueueFull, match="most=2") as full:
        smart.enqueue(db, x("a", 3))
    assert full.value.limit == Limit(2)
    assert rows_of(smart, db) == before
    smart.enqueue(db, x("b", 2))


def test_a_limit_drops_the_newest(db: Any, space: Subspace) -> None:
    smart = limited(space, "drop newest")
    outcomes = smart.enqueue_many(db, [x("a", n) for n in range(4)])
    assert [outcome.full for outcome in outcomes] == [False, False, True, True]
    assert numbers(smart, db) == [("a", 0), ("a", 1)]


def test_who_leaves_a_newcomer_out_deletes_nothing_for_it(db: Any, space: Subspace) -> None:
    smart = smart_queue(
        space,
        MessageType("old", check=lambda queued, new: Decision.queue_and_delete, sees=NOTHING),
        MessageType(
            "x",
            key=lambda message: message["of"],
            sees=types("old"),
            key_limit=Limit(1, "drop oldest"),
            limit=Limit(2, "drop newest"),
        ),
    )
    smart.enqueue_many(db, [x("a", 1), x("b", 1)])
    smart_queue(space, MessageType("x", key=lambda message: message["of"], sees=NOTHING)).enqueue(db, x("c", 1))
    smart.enqueue(db, {"type": "old", "of": "o", "n": 0})
    before = rows_of(smart, db)
    tr = db.create_transaction()
    outcome = smart.enqueue(tr, x("a", 2))
    tr.commit().wait()
    assert (outcome.full, outcome.position, outcome.deleted) == (True, None, ())
    assert rows_of(smart, db) == before


def test_a_limit_drops_the_oldest_that_nobody_has_leased(db: Any, space: Subspace) -> None:
    smart = limited(space, "drop oldest")
    smart.enqueue_many(db, [x("a", 0), x("b", 0), x("a", 1)])
    assert smart.leases.lease(db) is not None
    outcome = smart.enqueue(db, x("a", 2))
    assert len(outcome.deleted) == 1
    assert numbers(smart, db) == [("b", 0), ("a", 2)]
    smart.leases.lease_many(db)
    with pytest.raises(QueueFull, match="leased"):
        smart.enqueue(db, x("a", 3))


def test_items_whose_life_is_over_make_room(db: Any, space: Subspace) -> None:
    clock = Clock()
    for at, smart in enumerate(
        (
            limited(space["key"], "refuse", clock=clock),
            smart_queue(space["queue"], MessageType("x", expires=100.0), clock=clock, limit=Limit(2)),
        )
    ):
        smart.enqueue_many(db, [x("a", 1), x("a", 2)])
        clock.now += 101
        assert len(smart.enqueue(db, x("a", 3)).expired) == 2, at
        assert numbers(smart, db) == [("a", 3)]


def test_items_whose_life_is_over_make_room_for_a_newcomer_that_does_not_see_them(db: Any, space: Subspace) -> None:
    clock = Clock()
    mortal = MessageType("x", expires=100.0, sees=NOTHING, limit=Limit(2, "drop oldest"))
    smart = smart_queue(space, mortal, clock=clock)
    first = smart.enqueue(db, x("a", 1)).position
    clock.now += 99
    smart.enqueue(db, x("a", 2))
    clock.now += 2
    outcome = smart.enqueue(db, x("a", 3))
    assert (outcome.expired, outcome.deleted) == ((first,), ())
    assert numbers(smart, db) == [("a", 2), ("a", 3)]


@pytest.mark.parametrize("sees", [EVERYTHING, NOTHING], ids=["seen", "not seen"])
@pytest.mark.parametrize("of", ["type", "queue"])
def test_an_item_whose_life_is_over_stays_with_the_consumer_who_has_it(
    db: Any, space: Subspace, sees: Sees, of: str
) -> None:
    clock, limit = Clock(), Limit(1)
    mortal = MessageType("x", expires=10.0, sees=sees, limit=limit if of == "type" else None)
    smart = smart_queue(space, mortal, clock=clock, limit=limit if of == "queue" else None)
    smart.enqueue(db, x("a", 1))
    lease = smart.leases.lease(db, duration=100)
    assert lease is not None
    clock.now += 11
    with pytest.raises(QueueFull):
        smart.enqueue(db, x("a", 2))
    smart.leases.ack(db, lease)
    assert smart.enqueue(db, x("a", 2)).expired == ()


def test_items_whose_life_is_over_make_room_in_the_queue_behind_many_others_that_are_due(
    db: Any, space: Subspace
) -> None:
    clock, delayed = Clock(), 2 * SETTLE_LIMIT
    mortal, other = MessageType("x", expires=100.0, sees=NOTHING), MessageType("y", sees=NOTHING)
    smart = smart_queue(space, mortal, other, clock=clock, limit=Limit(delayed + 1))
    smart.enqueue(db, x("a", 1))
    for _ in range(delayed):
        smart.enqueue(db, {"type": "y"}, delay=1)
    db[smart.queue.layout.timers.pack((1, "of a newer version"))] = b""
    clock.now += 101
    assert len(smart.enqueue(db, {"type": "y"}).expired) == 1
    with pytest.raises(QueueFull):
        smart.enqueue(db, {"type": "y"})


@pytest.mark.parametrize("when_full", ["refuse", "drop newest", "drop oldest"])
def test_a_limit_of_the_queue_counts_every_item_and_no_dead_letter(db: Any, space: Subspace, when_full: Any) -> None:
    smart = smart_queue(space, MessageType("x"), MessageType("y"), limit=Limit(3, when_full))
    smart.enqueue(db, {"type": "y"})
    smart.queue.enqueue(db, {"type": "x", "n": 0})
    smart.enqueue(db, {"type": "x", "n": 1}, delay=9)
    if when_full == "refuse":
        with pytest.raises(QueueFull):
            smart.enqueue(db, {"type": "x", "n": 2})
    else:
        outcome = smart.enqueue(db, {"type": "x", "n": 2})
        assert (outcome.full, len(outcome.deleted)) == ((True, 0) if when_full == "drop newest" else (False, 1))
    stats = smart.queue.stats(db)
    assert stats.available + stats.delayed == 3
    smart.dequeue(db)
    assert smart.enqueue(db, {"type": "x", "n": 3}).position is not None


def test_a_limit_that_was_lowered_drops_as_many_as_it_takes(db: Any, space: Subspace) -> None:
    smart_queue(space, MessageType("x")).enqueue_many(db, [{"type": "x", "n": n} for n in range(9)])
    smart = smart_queue(space, MessageType("x", limit=Limit(3, "drop oldest")))
    assert len(smart.enqueue(db, {"type": "x", "n": 9}).deleted) == 7
    assert [message["n"] for message in contents(smart, db)] == [7, 8, 9]


def test_one_that_waits_for_room_comes_in_when_there_is_some_and_refuses_in_time(db: Any, space: Subspace) -> None:
    for at, smart in enumerate(
        (limited(space["key"], "wait"), smart_queue(space["all"], MessageType("x"), limit=Limit(2, "wait")))
    ):
        smart.enqueue_many(db, [x("a", 1), x("a", 2)])
        with pytest.raises(QueueFull):
            smart.enqueue(db, x("a", 3), timeout=0.05)
        with pytest.raises(QueueFull):
            smart.enqueue(db.create_transaction(), x("a", 3))
        waiting = threading.Thread(target=smart.enqueue, args=(db, x("a", 3)), kwargs={"timeout": 30})
        waiting.start()
        smart.queue.dequeue(db)
        waiting.join()
        assert numbers(smart, db) == [("a", 2), ("a", 3)], at


def test_one_that_waits_for_room_goes_on_when_the_database_says_try_again(db: Any, space: Subspace) -> None:
    smart = limited(space, "wait")
    smart.enqueue_many(db, [x("a", 1), x("a", 2)])
    # The first commit is the one that sets the watches: a newcomer that finds no room has nothing to write.
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1007))
    with pytest.raises(QueueFull):
        smart.enqueue(faulty, x("a", 3), timeout=0.05)
    assert faulty.faults == 1


def test_one_that_waits_for_one_of_very_many_to_go_comes_in_too(db: Any, space: Subspace) -> None:
    amount = WATCHED_ENTRIES + 1
    smart = smart_queue(space, MessageType("x", sees=NOTHING, limit=Limit(amount, "wait")))
    smart.enqueue_many(db, [x("a", n) for n in range(amount)])
    waiting = threading.Thread(target=smart.enqueue, args=(db, x("a", -1)), kwargs={"timeout": 30})
    waiting.start()
    lease = smart.leases.lease_many(db)[-1]
    smart.leases.ack(db, lease)
    waiting.join()
    assert smart.stats(db).types["x"] == amount


@pytest.mark.parametrize("full", ["type", "queue"])
def test_one_that_waits_for_a_limit_that_was_given_twice_rests_until_there_is_room(
    db: Any, space: Subspace, full: str
) -> None:
    two = Limit(2, "wait")
    type_limit = two if full == "type" else None
    given = MessageType("x", key=lambda data: data["of"], sees=NOTHING, key_limit=two, limit=type_limit)
    smart = smart_queue(space, given, limit=two if full == "queue" else None)
    smart.enqueue_many(db, [x("a", 1), x("b", 2)])
    looked = FaultyDatabase.failing_at(db, set(), ("before", 1020))
    with pytest.raises(QueueFull):
        smart.enqueue(looked, x("c", 3), timeout=0.05)
    assert looked.commits <= 3, "its key has room: it did not rest"
    waiting = threading.Thread(target=smart.enqueue, args=(db, x("c", 3)), kwargs={"timeout": 30})
    waiting.start()
    smart.queue.dequeue(db)
    waiting.join()
    assert numbers(smart, db) == [("b", 2), ("c", 3)]


def test_one_that_waits_comes_in_when_a_life_ends_that_nobody_settles(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x", limit=Limit(1, "wait"), expires=0.1), clock=time.time)
    smart.enqueue(db, {"type": "x", "n": 1})
    smart.enqueue(db, {"type": "x", "n": 2}, timeout=30)
    assert smart.queue.stats(db).expired == 1


def test_many_that_wait_for_room_come_in_one_by_one_without_an_event_loop_being_blocked(
    db: Any, space: Subspace
) -> None:
    smart = limited(space, "wait")

    async def main() -> None:
        coming = asyncio.gather(*(smart.enqueue.aio(db, x("a", n), timeout=30) for n in range(8)))
        taken = 0
        while taken < 8:
            taken += len(await smart.dequeue_many.aio(db))
            await asyncio.sleep(0)
        await coming

    asyncio.run(main())
    assert smart.queue.stats(db).dequeued == 8


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError):
        Limit(0)
    with pytest.raises(ValueError):
        Limit(1, "panic")  # type: ignore[arg-type]
