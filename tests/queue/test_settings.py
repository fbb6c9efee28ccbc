"""What a process knows of a queue's settings, and how long it relies on it."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import NestedQueue, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Subscriptions
from fdbqueue.layers.leases import Leases
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import look
from fdbqueue.verbs.administered import write_pause

POSITION = Position(1, b"not there")


@pytest.fixture(autouse=True)
def long_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look be over, however busy the machine is."""
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 600.0)


@pytest.mark.engines("memory")
@pytest.mark.parametrize("change", ["pause", "codec"])
def test_a_look_at_one_database_says_nothing_of_another(db: Any, space: Subspace, change: str) -> None:
    queue = Queue(space["q"], codec="json")
    queue.enqueue(db, 1)
    assert queue.dequeue(db) is not None
    with fdbqueue.open("memory:") as other:
        theirs = Queue(space["q"], codec="bytes" if change == "codec" else "json")
        theirs.enqueue(other, b"1" if change == "codec" else 1)
        if change == "pause":
            tr = other.create_transaction()
            write_pause(tr, Layout(space["q"]), "Ann", "", 0)  # as another process does
            tr.commit().wait()
            assert queue.dequeue(other) is None
        else:
            with pytest.raises(fdbqueue.OtherCodec):
                queue.dequeue(other)
        assert theirs.stats(other).available == 1
    queue.enqueue(db, 2)
    assert queue.dequeue(db).value == 2  # type: ignore[union-attr]


def test_a_process_does_not_rely_on_a_record_that_was_never_committed(db: Any, space: Subspace) -> None:
    inner, outer = Queue(space["a"][0], codec="str"), Queue(space["a"], codec="str")
    tr = db.create_transaction()
    inner.enqueue(tr, "x")
    assert inner.cancel(tr, POSITION) is False  # it looks, and finds the record of its own transaction
    assert inner.peek(tr) is not None
    tr.cancel()

    assert not inner.layout.known.is_beside(db.create_transaction())
    outer.enqueue(db, "first")
    with pytest.raises(NestedQueue):
        inner.enqueue(db, "x")
    assert outer.check(db).ok


def test_a_process_does_not_rely_on_what_it_has_written_before_the_commit(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    tr = db.create_transaction()
    queue.enqueue(tr, "x")
    queue.enqueue(tr, "y")
    tr.cancel()

    queue.enqueue(db, "z")
    assert len(list(fdbqueue.queues(db, within=space))) == 1


def test_calls_with_and_without_a_transaction_rely_on_one_look(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "x")
    queue.enqueue(db, "y")  # the record was not there at its first look
    last = queue.layout.known.look

    assert queue.peek(db) is not None
    assert queue.dequeue(db) is not None
    assert queue.peek(db.create_transaction()) is not None
    assert queue.layout.known.look is last


def test_one_look_sees_all_settings(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "x")
    Subscriptions(Leases(queue)).subscribe(db, "mine", exclusive=True)
    queue.pause(db)
    layout = Layout(space)

    found = fdbqueue.lowlevel.run(look(db.create_transaction(), layout))

    assert found.record is not None
    assert found.paused is not None
    assert found.owner is not None
    assert found.owner.name == "mine"
    assert (layout.known.is_registered, layout.known.is_unpaused, layout.known.is_open) == (True, False, False)
