"""Each record that can't be read is named by its key, in calls, in `check` and in the list of troubles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import FormatError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Gate, Groups, Leases, Results, Sessions
from fdbqueue.moves.ends import group_keys
from fdbqueue.stored.positions import pack

GARBAGE = b"\xc1garbage\xff"


class Damaged:
    """A queue, the key of one of its records, which is damaged, and a call that reads it."""

    def __init__(
        self, db: Any, queue: Queue[str], key: bytes, call: Callable[[], Any], garbage: bytes = GARBAGE
    ) -> None:
        self.db, self.queue, self.key, self.call = db, queue, key, call
        self.mend: Callable[[], Any] | None = None
        assert db[key] is not None
        db[key] = garbage


def pause(db: Any, queue: Queue[str]) -> Damaged:
    queue.enqueue(db, "x")
    queue.pause(db)
    found = Damaged(db, queue, queue.layout.paused_key, lambda: queue.inspect(db))
    found.mend = lambda: queue.resume(db)
    return found


def quota(db: Any, queue: Queue[str]) -> Damaged:
    queue.set_quota(db, items=10)
    found = Damaged(db, queue, queue.layout.type_key, lambda: queue.enqueue(db, "x"), b"quota" + GARBAGE)
    found.mend = lambda: queue.set_quota(db, items=10)
    return found


def registration(db: Any, queue: Queue[str]) -> Damaged:
    queue.enqueue(db, "x")
    found = Damaged(db, queue, queue.layout.catalogue_key, lambda: Queue.open(db, queue.layout.space))
    found.mend = lambda: queue.register(db, on_codec="replace")
    return found


def outcome(db: Any, queue: Queue[str]) -> Damaged:
    completion = Results(Leases(queue)).enqueue(db, "x")
    return Damaged(db, queue, queue.layout.completions.key(pack(completion.position)), partial(completion.outcome, db))


def session(db: Any, queue: Queue[str]) -> Damaged:
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session="ann")
    key = sessions.line.session(b"\x02ann\x00").record_key
    found = Damaged(db, queue, key, lambda: sessions.enqueue(db, "x", session="ann"))
    found.mend = lambda: sessions.resume(db, "ann")
    return found


def total(db: Any, queue: Queue[str]) -> Damaged:
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session="ann")
    span = queue.layout.space["summed"].range()
    [row] = db.get_range(span.start, span.stop)
    return Damaged(db, queue, row.key, lambda: sessions.stats(db))


def gate(db: Any, queue: Queue[str]) -> Damaged:
    sessions = Sessions(queue, gates=lambda name: [Gate("one", 1)])
    sessions.enqueue(db, "x", session="ann")
    return Damaged(db, queue, sessions.line.keys.gate(b"\x02one\x00"), lambda: sessions.gate(db, "one"))


def waiters(db: Any, queue: Queue[str]) -> Damaged:
    sessions = Sessions(queue, gates=lambda name: [Gate("one", 1)])
    for name in ("ann", "bob"):
        sessions.enqueue(db, "x", session=name)
    return Damaged(db, queue, sessions.line.keys.waiters(b"\x02one\x00"), lambda: sessions.gate(db, "one"))


def pointer(db: Any, queue: Queue[str]) -> Damaged:
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session="ann")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.nack(db, lease, delay=60)
    span = queue.layout.space["line"]["delay"].range()
    [row] = db.get_range(span.start, span.stop)
    return Damaged(db, queue, row.key, lambda: list(sessions.list(db)), b"\x20newer")


def members(db: Any, queue: Queue[str]) -> Damaged:
    groups = Groups(Leases(queue))
    group = groups.open(db, "g")
    groups.enqueue(db, "x", group=group)
    return Damaged(db, queue, group_keys(queue.layout, "g").count_key("available"), lambda: group.stats(db))


KINDS = (pause, quota, registration, outcome, session, total, gate, waiters, pointer, members)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def damaged(db: Any, space: Subspace, request: pytest.FixtureRequest) -> Any:
    return request.param(db, Queue(space, codec="str"))


def test_a_call_names_the_key(damaged: Damaged) -> None:
    with pytest.raises(FormatError) as told:
        damaged.call()
    assert repr(damaged.key) in str(told.value)


def test_a_check_names_the_key(db: Any, damaged: Damaged) -> None:
    problems = fdbqueue.check(db, damaged.queue).problems
    named = (repr(damaged.key), "In the line of sessions: The item")
    assert [problem for problem in problems if any(name in problem for name in named)]


def test_the_way_out_that_the_error_names_works(db: Any, damaged: Damaged) -> None:
    if damaged.mend is not None:
        damaged.mend()
        assert fdbqueue.check(db, damaged.queue).problems == ()
