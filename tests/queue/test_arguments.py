"""Arguments of a wrong kind are refused by a sentence. `test_every_wrong_kind.py` tries all verbs."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import (
    Leases,
)


@pytest.fixture
def queue(db: Any, space: Subspace) -> Queue[str]:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "x")
    return queue


def test_the_error_of_an_attempt_is_stored_without_its_lone_surrogates(db: Any, queue: Queue[str]) -> None:
    leases = Leases(queue, max_attempts=1)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease, error="a\ud800b")
    assert [dead.error for dead in leases.dead.browse(db)] == ["a?b"]


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
