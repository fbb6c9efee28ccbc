"""Interleaved transactions on one queue, against a sorted dictionary.

Whatever a committed transaction saw must be what the model shows when the transactions are replayed one after the
other in commit order; those that fail must leave no trace.
"""

from __future__ import annotations

import secrets
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import FDBError

SLOTS = 3
steps = st.tuples(
    st.integers(0, SLOTS - 1),
    st.sampled_from(
        ["enqueue", "enqueue", "enqueue_many", "dequeue", "dequeue_many", "peek", "is_empty", "commit", "commit"]
    ),
)


class Recorded:
    """An open transaction, and what it did and saw."""

    def __init__(self, db: Any) -> None:
        self.tr = db.create_transaction()
        self.log: list[tuple[str, Any]] = []


class Model:
    """What the queue holds."""

    def __init__(self) -> None:
        self.items: dict[Position, bytes] = {}
        self.enqueued = self.dequeued = 0

    def take(self, limit: int) -> list[tuple[Position, bytes]]:
        first = sorted(self.items.items())[:limit]
        for position, _ in first:
            del self.items[position]
        self.dequeued += len(first)
        return first

    def replay(self, log: list[tuple[str, Any]]) -> None:
        for verb, seen in log:
            if verb == "enqueue":
                self.items.update(seen)
                self.enqueued += len(seen)
            elif verb == "dequeue":
                assert self.take(1 if len(seen) <= 1 else 2) == seen
            elif verb == "peek":
                assert sorted(self.items.items())[:1] == seen
            else:
                assert (not self.items) == seen


def as_rows(*items: Any) -> list[tuple[Position, bytes]]:
    return [(item.position, item.value) for item in items if item is not None]


@given(program=st.lists(steps, min_size=5, max_size=60))
def test_committed_transactions_are_serializable_and_failed_ones_leave_no_trace(
    db: Any, program: list[tuple[int, str]]
) -> None:
    queue = Queue(("fdbqueue tests", "model", secrets.token_hex(4)))
    model = Model()
    slots = [Recorded(db) for _ in range(SLOTS)]
    for number, (slot, verb) in enumerate([*program, *((slot, "commit") for slot in range(SLOTS))]):
        recorded = slots[slot]
        tr, log = recorded.tr, recorded.log
        if verb == "enqueue":
            log.append((verb, {queue.enqueue(tr, b"%d" % number): b"%d" % number}))
        elif verb == "enqueue_many":
            report = queue.enqueue_many(tr, [b"%da" % number, b"%db" % number])
            assert report.first is not None
            assert report.last is not None
            log.append(("enqueue", {report.first: b"%da" % number, report.last: b"%db" % number}))
        elif verb == "dequeue":
            log.append((verb, as_rows(queue.dequeue(tr))))
        elif verb == "dequeue_many":
            log.append(("dequeue", as_rows(*queue.dequeue_many(tr, limit=2))))
        elif verb == "peek":
            log.append((verb, as_rows(queue.peek(tr))))
        elif verb == "is_empty":
            log.append((verb, queue.is_empty(tr)))
        else:
            try:
                tr.commit().wait()
            except FDBError as error:
                only_enqueued = all(verb == "enqueue" for verb, _ in log)
                if only_enqueued or error.code != 1020:
                    raise
            else:
                if any(verb in ("enqueue", "dequeue") and seen for verb, seen in log):
                    model.replay(log)
            slots[slot] = Recorded(db)
    assert as_rows(*queue.browse(db)) == sorted(model.items.items())
    stats = queue.stats(db)
    assert (stats.enqueued, stats.dequeued) == (model.enqueued, model.dequeued)
    assert queue.check(db).ok
    queue.clear(db)
