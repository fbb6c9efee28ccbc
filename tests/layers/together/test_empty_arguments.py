"""An empty name or condition is an error everywhere: it never means everything, or a default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Gate, Groups, Leases, OperationLog, Selector, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.streams import Stream
from fdbqueue.transfer import export_items


def calls(queue: Any) -> dict[str, Callable[[Any], Any]]:
    """Return calls with an empty argument."""
    leases: Any = Leases(queue)
    sessions, subscriptions = Sessions(queue), Subscriptions(queue)
    groups, where = Groups(leases), Position(1, b"random")
    return {
        "the name of a queue": lambda db: Queue(""),
        "a tuple as the name of a queue": lambda db: Queue(()),
        "bytes as the name of a queue": lambda db: Queue(b""),
        "a codec": lambda db: Queue("orders", codec=""),
        "open": lambda db: Queue.open(db, ""),
        "rename": lambda db: fdbqueue.rename(db, queue.layout.space, ""),
        "within": lambda db: fdbqueue.queues(db, within=""),
        "troubles within": lambda db: fdbqueue.troubles(db, within=""),
        "troubles of a queue": lambda db: fdbqueue.troubles(db, ""),
        "find_queues": lambda db: list(fdbqueue.find_queues(db, within="")),
        "a URL": lambda db: fdbqueue.open(""),
        "a position": lambda db: Position.parse(""),
        "by": lambda db: queue.pause(db, by=""),
        "a selector": lambda db: Selector(""),
        "a blank selector": lambda db: Selector(" \n"),
        "subscribe's selector": lambda db: subscriptions.subscribe(db, "red", selector=""),
        "subscribe's name": lambda db: subscriptions.subscribe(db, ""),
        "unsubscribe": lambda db: subscriptions.unsubscribe(db, ""),
        "follow's selector": lambda db: subscriptions.follow(db, selector=""),
        "follow's name": lambda db: subscriptions.follow(db, ""),
        "browse's selector": lambda db: list(subscriptions.browse(db, selector="")),
        "open a subscription": lambda db: subscriptions.open(""),
        "export's condition": lambda db: export_items(db, queue, "/nowhere/out.jsonl", where=""),
        "redrive": lambda db: leases.dead.redrive(db, ""),
        "purge": lambda db: leases.dead.purge(db, ""),
        "purge by bytes": lambda db: leases.dead.purge(db, b""),
        "purge by a mapping": lambda db: leases.dead.purge(db, {}),
        "lease's consumer": lambda db: leases.lease(db, consumer=""),
        "a staged consumer": lambda db: StagedQueue(queue, consumer=""),
        "the consumer of sessions": lambda db: Sessions(queue, consumer=""),
        "a Consumer": lambda db: Consumer(leases, print, consumer=""),
        "a session": lambda db: sessions.enqueue(db, b"x", session=""),
        "many in a session": lambda db: sessions.enqueue_many(db, [b"x"], session=""),
        "bytes as a session": lambda db: sessions.enqueue(db, b"x", session=b""),
        "a tuple as a session": lambda db: sessions.enqueue(db, b"x", session=()),
        "pause a session": lambda db: sessions.pause(db, ""),
        "remove a session": lambda db: sessions.remove(db, ""),
        "purge a session": lambda db: sessions.purge(db, ""),
        "an item of a session": lambda db: sessions.cancel(db, "", where),
        "list sessions": lambda db: list(sessions.list(db, after="")),
        "a gate": lambda db: Gate("", 1),
        "open a group": lambda db: groups.open(db, ""),
        "a group": lambda db: groups.group(db, ""),
        "a member of a group": lambda db: groups.enqueue(db, b"x", group=""),
        "list groups": lambda db: list(groups.list(db, after="")),
        "a stream": lambda db: Stream(queue, ""),
        "the name in a log": lambda db: OperationLog(("log", queue.layout.prefix), queue).of(db, by=""),
    }


@pytest.mark.parametrize("call", sorted(calls(Queue("x"))))
def test_an_empty_argument_is_refused_and_changes_nothing(db: Any, space: Subspace, call: str) -> None:
    queue: Any = Queue(space)
    queue.enqueue(db, b"1")
    dead: Any = Leases(queue, max_attempts=1)
    dead.nack(db, dead.lease(db), error="no")
    before = [(bytes(row.key), bytes(row.value)) for row in db.get_range(*queue.layout.whole_range())]

    with pytest.raises((ValueError, TypeError)) as refused:
        calls(queue)[call](db)

    assert str(refused.value)
    assert [(bytes(row.key), bytes(row.value)) for row in db.get_range(*queue.layout.whole_range())] == before
