"""Appends rows to their queues, under keys that no other writer uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import run
from fdbqueue.moves.admission import Admission
from fdbqueue.spark.rows.rows import SparkRows
from fdbqueue.stored.items import Notes, chunks_of
from fdbqueue.stored.known import Registration
from fdbqueue.stored.layout import Layout, new_random
from fdbqueue.writes.appending import append_items


@dataclass(slots=True, eq=False)
class Tail:
    """The end of one queue, as far as this writer knows. There is one per queue, however the rows name the queue."""

    layout: Layout
    next_index: int = 1


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
        self._tails: dict[str, Tail] = {}
        self._random = new_random()

    def prepare(self, tr: Transaction, rows: SparkRows) -> Callable[[], None]:
        """Start to read the end of each queue that `rows` go into. Return what writes them after that.

        The reads do not see this writer's own commits under way, so its own last index counts too.
        """
        parts = [(tail, some, Admission(tr, tail.layout, self._order)) for tail, some in self.by_queue(rows)]
        return partial(self._write, tr, parts)

    def _write(self, tr: Transaction, parts: list[tuple[Tail, SparkRows, Admission]]) -> None:
        for tail, rows, last in parts:
            index = max(run(last.steps(len(rows))) + 1, tail.next_index)
            tail.next_index = index + len(rows)
            large = [(at, chunks_of(payload)) for at, payload in enumerate(rows.large or ()) if payload]
            ranks, notes = self.terms(rows)
            append_items(tr, tail.layout, index, self._random, rows.stored, ranks, large, self._order, notes=notes)

    def terms(self, rows: SparkRows) -> tuple[list[int] | None, list[Notes] | None]:
        """Return the ranks and the notes of the items; None: they have none."""
        return None, None

    def by_queue(self, rows: SparkRows) -> list[tuple[Tail, SparkRows]]:
        """Return the rows of each queue."""
        if rows.queues is None:
            return [(self._home, rows)]
        places: dict[Tail, list[int]] = {}
        for place, name in enumerate(rows.queues):
            tail = self._home if name is None else self._tails.get(name) or self._new_tail(name)
            places.setdefault(tail, []).append(place)
        return [(tail, rows.pick(found)) for tail, found in places.items()]

    def _new_tail(self, name: str) -> Tail:
        layout = Layout(name)
        # A row may name the queue that is also the home queue. Two tails of one queue would give out the same keys.
        tail = self._home if layout.prefix == self._home.layout.prefix else self._tail_of(layout)
        self._tails[name] = tail
        return tail

    def _tail_of(self, layout: Layout) -> Tail:
        if self._codec is not None:
            layout.known.registration = Registration(self._codec, self._order or "", ())
        return Tail(layout)
