"""Positions, handles and terms that a caller made of wrong parts are refused by a sentence, and not by a raw error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import CodecError, Position, Queue, aio
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Groups,
    LeaseHandle,
    Leases,
    Messages,
    MessageType,
    RelaxedQueue,
    Results,
    SessionHandle,
    Sessions,
    SmartQueue,
    Watchdog,
    exponential,
)
from tests.layers.together.test_every_wrong_kind import raw

PLACE = Position(1, b"12345678")


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


def made(index: Any, random: Any = b"12345678", rank: Any = None) -> Position:
    return Position(index, random, rank=rank)


POSITIONS: dict[str, tuple[Position, type[Exception], str]] = {
    "a text as index": (made("7"), TypeError, "The index of a position is a whole number, not '7'"),
    "a fraction as index": (made(1.5), TypeError, "The index of a position is a whole number, not 1.5"),
    "a negative index": (made(-1), ValueError, r"The index of a position is 0 or more, and below 2\^64, not -1"),
    "a giant index": (made(1 << 9_000), ValueError, r"below 2\^64, not one of 9,001 bits"),
    "a negative rank": (made(1, rank=-5), ValueError, "The rank of a position is 0 or more, .*, not -5"),
    "a text as rank": (made(1, rank="5"), TypeError, "The rank of a position is a whole number, not '5'"),
    "no random part": (made(1, None), TypeError, "The random part of a position is bytes, not None"),
    "a text as random part": (made(1, "x"), TypeError, "The random part of a position is bytes, not 'x'"),
}
OF_POSITIONS: dict[str, Callable[[Queue, Any, Position], object]] = {
    "get": lambda queue, db, given: queue.get(db, given),
    "get_many": lambda queue, db, given: queue.get_many(db, [given]),
    "cancel": lambda queue, db, given: queue.cancel(db, given),
    "update": lambda queue, db, given: queue.update(db, given, value=1),
    "reschedule": lambda queue, db, given: queue.reschedule(db, given, delay=1),
    "Leases.cancel": lambda queue, db, given: Leases(queue).cancel(db, given),
    "redrive": lambda queue, db, given: Leases(queue).dead.redrive(db, given),
    "purge": lambda queue, db, given: Leases(queue).dead.purge(db, given),
    "browse": lambda queue, db, given: list(queue.browse(db, after=given)),
    "Leases.browse": lambda queue, db, given: list(Leases(queue).browse(db, before=given)),
    "Results.completion": lambda queue, db, given: Results(Leases(queue)).completion(db, given).wait(timeout=0),
    "LeaseHandle": lambda queue, db, given: LeaseHandle(given, b"token"),
    "SessionHandle": lambda queue, db, given: SessionHandle(PLACE, b"token", session="ann", turn=given),
}


@pytest.mark.parametrize("verb", OF_POSITIONS)
@pytest.mark.parametrize("wrong", POSITIONS)
def test_a_position_of_wrong_parts_is_refused(db: Any, queue: Queue, verb: str, wrong: str) -> None:
    position, kind, said = POSITIONS[wrong]
    with pytest.raises(kind, match=rf"{said}.*Take the position that enqueue returned, or Position\.parse") as refused:
        OF_POSITIONS[verb](queue, db, position)
    assert not raw(refused.value)


def test_a_text_with_a_giant_index_is_no_position() -> None:
    with pytest.raises(ValueError, match=r"is not a position\. A position looks like INDEX:RANDOM"):
        Position.parse(f"{1 << 64}:72")
    assert Position.parse(f"{(1 << 64) - 1}:72").index == (1 << 64) - 1


@pytest.mark.parametrize("kind", [LeaseHandle, SessionHandle])
@pytest.mark.parametrize("wrong", [None, 7, b"7:72:74"])
def test_a_handle_is_parsed_from_a_text(kind: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"The text of a handle is a str, as str\(lease\.handle\) makes it, not"):
        kind.parse(wrong)


HANDLES: dict[str, tuple[Callable[[], object], str]] = {
    "no token": (lambda: LeaseHandle(PLACE, None), "The token of a handle is bytes, as lease.token, not None"),  # type: ignore[arg-type]
    "a text as token": (lambda: LeaseHandle(PLACE, "abc"), "The token of a handle is bytes, as lease.token, not 'abc'"),  # type: ignore[arg-type]
    "no position": (lambda: LeaseHandle(None, b"t"), "The position of a handle is a Position, .* not None"),  # type: ignore[arg-type]
    "a number as turn": (
        lambda: SessionHandle(PLACE, b"t", session="a", turn=3),  # type: ignore[arg-type]
        "The turn of a handle is a Position, as lease.turn, not 3",
    ),
    "a text as generation": (
        lambda: SessionHandle(PLACE, b"t", session="a", turn=PLACE, generation="0"),  # type: ignore[arg-type]
        "The generation of a handle is a whole number, 0 or more, not '0'",
    ),
}


@pytest.mark.parametrize("wrong", HANDLES)
def test_a_handle_of_wrong_parts_is_refused(wrong: str) -> None:
    make, said = HANDLES[wrong]
    with pytest.raises(TypeError, match=said):
        make()


def test_the_token_of_a_hold_fits_a_key(db: Any, queue: Queue) -> None:
    groups = Groups(Leases(queue))
    group = groups.open(db, "book", token=b"x" * 1_000)
    calls: list[Callable[[], object]] = [
        lambda: group.hold(db, token=b"x" * 1_001),
        lambda: groups.open(db, "other", token=b"x" * 20_000),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"The token of a hold has at most 1,000 bytes, not .* Give a hash of it"):
            call()


@pytest.mark.parametrize("wrong", [1, None, "x", range(3)])
def test_aio_awaits_a_future(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"aio awaits a future of a transaction, as in .*, not .*queue\.dequeue\.aio"):
        asyncio.run(aio(wrong))


def test_groups_are_not_made_of_groups(queue: Queue) -> None:
    groups = Groups(Leases(queue))
    for inner in (groups, Results(groups)):
        with pytest.raises(
            TypeError, match="An item is a member of one group at most: give Groups the source of Groups"
        ):
            Groups(inner)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"priority": 1}, r"keyword argument 'priority': PriorityQueue\(queue\)\.enqueue has it"),
        ({"session": "a"}, r"keyword argument 'session': Sessions\(queue\)\.enqueue has it"),
    ],
)
def test_a_term_that_the_source_has_not_is_named_with_the_layer(
    db: Any, queue: Queue, terms: dict[str, Any], said: str
) -> None:
    leases = Leases(queue)
    group = Groups(leases).open(db, "book")
    for call in (
        lambda: leases.enqueue(db, 1, **terms),
        lambda: group.enqueue(db, 1, **terms),
        lambda: group.enqueue_many(db, [1], **terms),
        lambda: Results(leases).enqueue(db, 1, **terms),
    ):
        with pytest.raises(TypeError, match=said):
            call()
    assert queue.is_empty(db)


def test_a_state_that_is_not_encoded_names_the_codec_of_states(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue(db, 1, session="ann")
    lease: Any = sessions.lease(db)
    calls: list[Callable[[], object]] = [
        lambda: sessions.ack(db, lease, state=3),
        lambda: sessions.set_state(db, lease, 3),
    ]
    for call in calls:
        with pytest.raises(CodecError, match=r"The state_codec of .* The codec is 'bytes', so a value must be bytes"):
            call()
    sessions.ack(db, lease, state=b"3")


def test_only_enqueue_many_takes_a_function_of_the_session(db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)
    verbs: list[Any] = [sessions.enqueue, Results(sessions).enqueue]
    for enqueue in verbs:
        with pytest.raises(TypeError, match=r"session is the name of .* Sessions\.enqueue_many takes a function"):
            enqueue(db, 1, session=lambda value: "ann")
    assert not list(db.get_range(*queue.layout.whole_range()))
    sessions.enqueue_many(db, [1], session=lambda value: "ann")


def smart(queue: Queue) -> Queue:
    return Queue(queue.layout.space, codec=Messages(MessageType("call")))


COUNTS: dict[str, tuple[Callable[[Queue], object], str]] = {
    "window": (lambda queue: RelaxedQueue(queue, window=True), "window is among how many .*, not True"),
    "batch": (lambda queue: Watchdog(Leases(queue), batch=True), "batch is how many timers .*, not True"),
    "max_items": (lambda queue: SmartQueue(smart(queue), max_items=True), "max_items is a bound, .*, not True"),
    "infinite jitter": (lambda queue: exponential(jitter=math.inf), "jitter is a number, .* finite, not inf"),
    "infinite factor": (lambda queue: exponential(factor=math.inf), "factor is a number, .* finite, not inf"),
    "True as factor": (lambda queue: exponential(factor=True), "factor is a number, not True"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_true_and_infinity_are_no_counts(queue: Queue, name: str) -> None:
    make, said = COUNTS[name]
    with pytest.raises((TypeError, ValueError), match=said):
        make(queue)
