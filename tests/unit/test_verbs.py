"""Verbs tell of themselves what plain methods do."""

from __future__ import annotations

import inspect
import pickle
import pydoc

import pytest

import fdbqueue
import fdbqueue.layers
from fdbqueue import Queue
from fdbqueue.engine.verb import Verb


def test_help_on_a_verb_is_that_of_its_method() -> None:
    orders = Queue("orders")

    assert repr(orders.enqueue) == "<verb Queue.enqueue of Queue('orders', codec='bytes')>"
    assert "Append an item" in pydoc.render_doc(orders.enqueue)
    assert list(inspect.signature(orders.dequeue).parameters) == ["tr"]
    assert inspect.signature(orders.dequeue_many).return_annotation == "list[Item[V]]"


def test_help_on_the_class_shows_how_verbs_are_called() -> None:
    shown = pydoc.plain(pydoc.render_doc(Queue))

    assert "dequeue_many(self, tr: 'Transaction | Database', *, limit: 'int' = 100) -> 'list[Item[V]]'" in shown


def test_a_verb_of_the_class_is_called_with_its_object() -> None:
    with fdbqueue.open("memory:") as db:
        Queue.enqueue(Queue("orders"), db, b"x")

        assert Queue("orders").stats(db).available == 1


def test_help_shows_the_signature_of_a_verb_in_both_forms() -> None:
    orders = Queue("orders")
    signature = str(inspect.signature(orders.enqueue))
    assert signature.startswith("(tr: 'Transaction | Database', value: 'V', *, headers:")
    assert signature.endswith(" -> 'Position'")
    for verb, kind in ((orders.enqueue, ""), (orders.enqueue.aio, "async ")):
        shown = pydoc.plain(pydoc.render_doc(verb))  # Python 3.13 breaks a long signature
        assert "".join(f"{kind}enqueue{signature} Append an item".split()) in "".join(shown.split())


def test_a_notebook_shows_the_docstring_and_signature_of_a_verb_in_both_forms() -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    shell.push({"orders": Queue("orders")})

    for name in ("orders.enqueue", "orders.enqueue.aio"):
        shown = shell.object_inspect(name)
        assert shown["docstring"].startswith("Append an item and return its position.")
        assert "headers: 'Mapping[str, object] | None' = None" in shown["definition"]
        assert not shown.get("call_def")


def test_every_verb_of_the_library_shows_the_signature_of_its_steps() -> None:
    seen = 0
    for layer in (fdbqueue, fdbqueue.layers):
        for name in layer.__all__:
            kind = getattr(layer, name)
            for member in vars(kind).values() if isinstance(kind, type) else ():
                if isinstance(member, Verb):
                    seen += 1
                    assert inspect.getdoc(member)
                    assert "Steps[" not in str(inspect.signature(member))
    assert seen > 50


def test_the_awaitable_form_is_known_as_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(Queue("orders").enqueue.aio)


def test_a_verb_can_be_pickled_with_its_object() -> None:
    again = pickle.loads(pickle.dumps(Queue("orders", codec="str").dequeue))

    assert repr(again) == "<verb Queue.dequeue of Queue('orders', codec='str')>"
