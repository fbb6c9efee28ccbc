"""Appends rows to their queues, under keys that no other writer uses."""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import run
from fdbqueue.moves.admission import Admission
from fdbqueue.spark.rows.rows import SparkRows
from fdbqueue.stored.items import Notes, chunks_of
from fdbqueue.stored.known import Registration
from fdbqueue.stored.layout import Layout, new_random
from fdbqueue.writes.appending import append_items


@dataclass(slots=True, eq=False)
class _Tail:
    """The end of one queue, as far as this writer knows. There is one per queue, however the rows name the queue."""

    layout: Layout
    next_index: int = 1


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The rows of a transaction that go into one queue, and the read of the queue's last index."""

    tail: _Tail
    rows: SparkRows
    last: Admission


class Appender:
    """Writes the rows of one attempt into their queues.

    It registers each queue, and refuses one that is registered with another codec, as `Queue.enqueue` does.

    Args:
        home: the queue of rows that name no queue.
        codec: the codec of the rows; None: a layer enqueues them, and registers the queues.
        order: the name of the order of the queues; None: they are first in, first out.
    """

    def __init__(self, home: Layout, codec: str | None = None, order: str | None = None) -> None:
        self._codec = codec
        self._order = order
        self._home = self._tail_of(home)
        self._tails: dict[str, _Tail] = {}
        self._random = new_random()

    def prepare(self, tr: Transaction, rows: SparkRows) -> list[QueuePart]:
        """Start to read the end of each queue that `rows` go into.

        The reads do not see this writer's own commits under way, so its own last index counts too.
        """
        return [QueuePart(tail, some, Admission(tr, tail.layout, self._order)) for tail, some in self._by_queue(rows)]

    def write(self, tr: Transaction, parts: list[QueuePart]) -> None:
        """Write the items, after the ends of their queues were read."""
        for part in parts:
            tail, rows = part.tail, part.rows
            index = max(run(part.last.steps(len(rows))) + 1, tail.next_index)
            tail.next_index = index + len(rows)
            large = [(at, chunks_of(payload)) for at, payload in enumerate(rows.large or ()) if payload]
            ranks, notes = self.terms(rows)
            append_items(tr, tail.layout, index, self._random, rows.stored, ranks, large, self._order, notes=notes)

    def terms(self, rows: SparkRows) -> tuple[list[int] | None, list[Notes] | None]:
        """Return the ranks and the notes of the items; None: they have none."""
        return None, None

    def _by_queue(self, rows: SparkRows) -> list[tuple[_Tail, SparkRows]]:
        if rows.queues is None:
            return [(self._home, rows)]
        places: dict[_Tail, list[int]] = {}
        for place, name in enumerate(rows.queues):
            tail = self._home if name is None else self._tails.get(name) or self._new_tail(name)
            places.setdefault(tail, []).append(place)
        return [(tail, rows.pick(found)) for tail, found in places.items()]

    def _new_tail(self, name: str) -> _Tail:
        layout = Layout(name)
        # A row may name the queue that is also the home queue. Two tails of one queue would give out the same keys.
        tail = self._home if layout.prefix == self._home.layout.prefix else self._tail_of(layout)
        self._tails[name] = tail
        return tail

    def _tail_of(self, layout: Layout) -> _Tail:
        if self._codec is not None:
            layout.known.registration = Registration(self._codec, self._order or "", ())
        return _Tail(layout)
