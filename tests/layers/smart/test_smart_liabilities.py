"""Checks that go wrong cost an error that names type and item, and nothing is written."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fdbqueue import CheckFailed, CodecError, FormatError, ItemTooLarge, Queue, ScanTooLarge
from fdbqueue.engine import Subspace
from fdbqueue.layers.priority import EarliestDeadline
from fdbqueue.layers.smart import NOTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, SmartQueue, types
from fdbqueue.layers.smart.types import Asked, Decision, Replace
from fdbqueue.stored.items import INLINE_BYTES, MAX_ITEM_BYTES
from tests.helpers.clock import Clock
from tests.helpers.smart import as_another_process, contents, enqueue_unchecked, rows_of, smart_queue

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


def becomes_no_message(queued: Data, new: Data) -> Replace:
    return Replace("text")


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
    kinds = (
        MessageType("x", check=sometimes, key=key, sees=types("x", "y")),
        MessageType("y", expires=5.0, sees=NOTHING),
    )
    smart = smart_queue(space, *kinds, clock=clock, check_seconds=600.0)
    smart.enqueue_many(db, [{"type": "y"}, {"type": "x"}])
    broken = smart.enqueue(db, {"type": "x", "bad": True}).position
    smart.enqueue(db, {"type": "y", "n": 2})
    clock.now += 6
    before = rows_of(smart, db)
    tr = db if own else db.create_transaction()
    if why == "did not return within":  # a busy machine is patient with all other checks
        smart = smart_queue(space, *kinds, clock=clock, check_seconds=0.1)
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


def test_a_leased_item_can_not_be_replaced(db: Any, space: Subspace) -> None:
    def check(queued: Data, new: Data, asked: Asked) -> Any:
        return Replace(new)

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
        (Replace({"type": "x", "n": 2}), None, CheckFailed),
        (Replace({"type": "x", "n": 3, "large": "x" * MAX_ITEM_BYTES}), None, ItemTooLarge),
    ],
)
def test_a_failed_enqueue_writes_nothing_even_if_the_transaction_commits(
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
    smart = SmartQueue(as_another_process(queue))
    queue.enqueue(db, {"type": "x"}, headers={"deadline": 8})
    tr = db.create_transaction()
    for _ in range(in_front):
        queue.enqueue(tr, {"type": "x"}, headers={"deadline": 9})
    before = rows_of(smart, tr)
    with pytest.raises(CheckFailed):
        smart.enqueue(tr, {"type": "x"}, headers={"deadline": 10})
    assert rows_of(smart, tr) == before


def test_a_first_smart_enqueue_that_fails_does_not_mark_the_queue(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec=Messages(MessageType("x", check=raises)))
    for _ in range(2):  # the second time this object knows that the queue is registered
        queue.enqueue(db, {"type": "x"})
    smart = SmartQueue(queue)
    before = rows_of(smart, db)
    tr = db.create_transaction()
    with pytest.raises(CheckFailed):
        smart.enqueue(tr, {"type": "x"})
    tr.commit().wait()
    assert rows_of(smart, db) == before


def test_a_check_that_is_not_deterministic_is_found_by_the_debug_mode(db: Any, space: Subspace) -> None:
    counter = itertools.count()

    def counts(queued: Data, new: Data) -> Any:
        return Replace({"type": "x", "n": next(counter)})

    def wavers(queued: Data, new: Data) -> Decision:
        return Decision.queue if next(counter) % 2 else Decision.dont_care

    for check in (counts, wavers):
        smart = smart_queue(space[check.__name__], MessageType("x", check=check), debug=True)
        smart.enqueue(db, {"type": "x"})
        with pytest.raises(CheckFailed, match="asked twice"):
            smart.enqueue(db, {"type": "x"})
    steady = smart_queue(space["steady"], MessageType("x", check=lambda old, new: Replace(new)), debug=True)
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


def test_an_unreadable_item_stops_every_check_that_sees_it(db: Any, space: Subspace) -> None:
    smart = smart_queue(space, MessageType("x"), MessageType("y", sees=OWN_TYPE))
    smart.enqueue(db, {"type": "y"})
    position = enqueue_unchecked(smart, db, {"type": "x"})
    key = smart.queue.layout.item_key(position)
    db.set(key, b"\xf0from the future")
    with pytest.raises(FormatError, match="newer version"):
        smart.enqueue(db, {"type": "x"})
    db.set(key, b'\x10{"type":"z"}')
    with pytest.raises(CodecError, match="not registered"):
        smart.enqueue(db, {"type": "x"})
    assert smart.enqueue(db, {"type": "y"}).position is not None


def test_headers_in_another_order_are_no_change(db: Any, space: Subspace) -> None:
    class Struct(msgspec.Struct):
        a: int
        b: float

        def check(self, new: Any) -> Decision:
            return Decision.dont_care

    smart = smart_queue(space, MessageType("s", Struct))
    position = smart.enqueue(db, Struct(1, 2.0)).position
    assert position is not None
    db.set(smart.queue.layout.item_key(position), b'\x10{ "b": 2, "a": 1, "type": "s" }')
    assert smart.enqueue(db, Struct(1, 2)).by is None
    assert contents_of(smart, db) == [Struct(1, 2.0), Struct(1, 2.0)]


def contents_of(smart: SmartQueue, db: Any) -> list[Any]:
    return [item.value for item in smart.queue.browse(db)]
