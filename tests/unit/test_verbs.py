"""Verbs tell of themselves what plain methods do."""

from __future__ import annotations

import inspect
import pydoc

import fdbqueue
from fdbqueue import Queue


def test_help_on_a_verb_is_that_of_its_method() -> None:
    orders = Queue("orders")

    assert repr(orders.enqueue) == "<verb Queue.enqueue of Queue(('orders',), codec='bytes')>"
    assert "Append an item" in pydoc.render_doc(orders.enqueue)
    assert list(inspect.signature(orders.dequeue).parameters) == ["tr"]
    assert inspect.signature(orders.dequeue_many).return_annotation == "list[Item]"


def test_help_on_the_class_shows_how_verbs_are_called() -> None:
    shown = pydoc.plain(pydoc.render_doc(Queue))

    assert "dequeue_many(self, tr: 'Transaction | Database', *, limit: 'int' = 100) -> 'list[Item]'" in shown


def test_a_verb_of_the_class_is_called_with_its_object() -> None:
    with fdbqueue.open("memory:") as db:
        Queue.enqueue(Queue("orders"), db, b"x")

        assert Queue("orders").stats(db).available == 1
