"""Arguments of a wrong kind are refused by a sentence. `test_every_wrong_kind.py` tries all verbs."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import (
    Blobs,
    Consumer,
    Groups,
    Leases,
    Selector,
    Sessions,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.streams import Stream
from fdbqueue.stored.layout import Layout

SURROGATE = "a\udc80"


@pytest.fixture
def queue(db: Any, space: Subspace) -> Queue[str]:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "x")
    return queue


@pytest.mark.parametrize("text", [None, 7, b"7:72"])
def test_a_position_is_parsed_from_a_text(text: Any) -> None:
    with pytest.raises(TypeError, match=r"The text of a position is a str, as `Position\.text` makes it, not"):
        Position.parse(text)


@pytest.mark.parametrize("text", ["", "7", "7:xy", "7:7", "x:72", "1:2:3:72", "1" * 5_000 + ":72", "²:72"])
def test_a_text_that_is_no_position_is_refused_in_one_way(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position\. A position looks like INDEX:RANDOM"):
        Position.parse(text)


@pytest.mark.parametrize("name", [SURROGATE, ("a", SURROGATE), (("a", SURROGATE),)])
def test_a_name_with_a_lone_surrogate_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"The name of a queue has a lone surrogate.*os\.fsencode"):
        Layout(name)


def test_a_name_with_a_part_that_is_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"The name \(\{\},\) can't be a key: "):
        Queue(({},))


def test_other_names_with_a_lone_surrogate_are_refused(db: Any, queue: Queue[str]) -> None:
    for call in (
        lambda: Groups(Leases(queue)).open(db, SURROGATE),
        lambda: Subscriptions(queue).subscribe(db, SURROGATE),
        lambda: Sessions(Queue(queue.layout.space["sessions"], codec="str")).enqueue(db, "x", session=SURROGATE),
        lambda: Stream(queue, SURROGATE),
        lambda: queue.pause(db, reason=SURROGATE),
        lambda: queue.pause(db, by=SURROGATE),
    ):
        with pytest.raises(ValueError, match="has a lone surrogate, which is no text"):
            call()
    with pytest.raises(ValueError, match="A selector has a lone surrogate") as refused:
        Subscriptions(queue).subscribe(db, "s", selector=f"a = 1 or\nb = '{SURROGATE}'")
    assert (refused.value.line, refused.value.column) == (2, 7)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [SURROGATE, "\ud800"])
def test_the_name_of_a_consumer_with_a_lone_surrogate_is_refused(db: Any, queue: Queue[str], name: str) -> None:
    leases = Leases(queue)
    subscription = Subscriptions(leases).subscribe(db, "s")
    for call in (
        lambda: leases.lease(db, consumer=name),
        lambda: leases.lease_many(db, consumer=name),
        lambda: subscription.lease(db, consumer=name),
        lambda: StagedQueue(leases, consumer=name),
        lambda: Sessions(queue, consumer=name),
        lambda: Consumer(leases, print, consumer=name),
    ):
        with pytest.raises(ValueError, match="The name of a consumer has a lone surrogate, which is no text"):
            call()
    assert leases.stats(db).available == 1


def test_the_error_of_an_attempt_is_stored_without_its_lone_surrogates(db: Any, queue: Queue[str]) -> None:
    leases = Leases(queue, max_attempts=1)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease, error="a\ud800b")
    assert [dead.error for dead in leases.dead.browse(db)] == ["a?b"]


def test_a_selector_is_a_text_or_a_function(db: Any, queue: Queue[str]) -> None:
    with pytest.raises(TypeError, match="The text of a selector is a str"):
        Selector(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"A selector is a condition, as in .* or a function, not 5"):
        Subscriptions(queue).browse(db, selector=5)  # type: ignore[arg-type]


def test_an_ack_of_nothing_is_refused_in_every_layer(db: Any, queue: Queue[str]) -> None:
    leases = Leases(queue)
    for ack in leases.ack, StagedQueue(leases).ack, Subscriptions(leases).subscribe(db, "s").ack:
        with pytest.raises(TypeError, match="Give a lease, or its handle, not None"):
            ack(db, None)  # type: ignore[arg-type]
    for results in 7, "x", {"x": 1}:
        with pytest.raises(TypeError, match="results are one for each lease, as a list, not"):
            leases.ack_many(db, [], results=results)  # type: ignore[arg-type]


def test_what_layers_call_checks_its_arguments(db: Any, queue: Queue[Any]) -> None:
    tr, position = db.create_transaction(), Position(1, b"none")
    for wrong in None, 7, b"x", "x":
        with pytest.raises(TypeError, match="A row of a queue is a KeyValue that was read, not"):
            queue.look_at(db, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="An item is named by its Position, not by"):
            queue.item(tr, wrong, b"x")  # type: ignore[arg-type, unused-coroutine]
        if wrong != b"x":
            with pytest.raises(TypeError, match="The stored bytes of an item are bytes"):
                queue.item(tr, position, wrong)  # type: ignore[arg-type, unused-coroutine]
            with pytest.raises(TypeError, match="The stored bytes of an item are bytes"):
                queue.check_dequeue(position, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="An item is named by its Position, not by"):
            queue.open_envelope(wrong, b"x")  # type: ignore[arg-type]
        for call in queue.read, queue.transact:
            with pytest.raises(TypeError, match="body is a function that takes a transaction and returns steps, not"):
                call(db, wrong)  # type: ignore[arg-type, unused-coroutine]
        for rows in wrong, [wrong], []:
            with pytest.raises(TypeError, match="The rows to take out are a list of KeyValues that were read, not"):
                queue.take_rows(tr, rows)  # type: ignore[arg-type, unused-coroutine]
        if wrong != 7:
            with pytest.raises(ValueError, match="wanted is how many indices to reserve"):
                queue.next_index(tr, wrong)  # type: ignore[arg-type, unused-coroutine]
        with pytest.raises(ValueError, match="entry is one of 'plain', 'smart', 'any', not"):
            queue.next_index(tr, 1, entry=wrong)  # type: ignore[arg-type, unused-coroutine]
    with pytest.raises(TypeError, match="order is the name of an order"):
        queue.next_index(tr, 1, order=7)  # type: ignore[arg-type, unused-coroutine]
    terms = dict.fromkeys(("delay", "at", "ttl", "headers"))
    for wrong_terms in None, {}, {"delay": 1}, terms | {"priority": 1}, 7:
        with pytest.raises(TypeError, match="terms are a mapping with at, delay, headers, ttl, not"):
            run(Leases(queue).enqueue_rows(tr, ["x"], terms=wrong_terms, columns={}))  # type: ignore[arg-type]
    for columns in None, {"x": None}, 7:
        with pytest.raises(TypeError, match="columns are a mapping with names of column, delay_column"):
            run(Leases(queue).enqueue_rows(tr, ["x"], terms=terms, columns=columns))  # type: ignore[arg-type]


def test_a_blob_takes_bytes(db: Any, queue: Queue[str]) -> None:
    with Blobs(Leases(queue)).write(db, "x") as file:
        with pytest.raises(TypeError, match=r"A blob takes bytes.*not 'text'. Encode it: write\(text.encode\(\)\)\."):
            file.write("text")  # type: ignore[arg-type]
        assert file.write(b"bytes") == 5
