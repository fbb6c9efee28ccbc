"""How the rows of a job or a stream get into their queues: each way in has one appender, and `writing_of` chooses it.

Plain rows pass `Admission` and `append_items`, as those of an enqueue do. A delay and a time to live stand in the notes
of a row's envelope (`columns.py`), and a priority in its headers, where `fdbqueue.layers.PriorityQueue` puts it too.

Rows in sessions and rows that are compared with queued items go through `Sessions` and `SmartQueue`, which admit their
items themselves, in the transaction that logs the rows. So a repeated attempt decides about no row a second time. An
ignored row is logged like an appended row. The rows of a partition are in their session in the partition's order. This
also holds after a failure, if each attempt has the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run
from fdbqueue.errors import OtherCodec
from fdbqueue.layers.leases.done import sessions_of
from fdbqueue.layers.priority import Levels
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.sessions.workers.rows import SessionRow, append_rows
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.moves.admission import Admission
from fdbqueue.spark.attempts import BATCH_ROWS, COMMITS_IN_FLIGHT, COMMITS_IN_FLIGHT_EMBEDDED, At, JobAttempt
from fdbqueue.spark.options import Options, function_named
from fdbqueue.spark.partition_log import NoLog
from fdbqueue.spark.waiting_rows import SparkRows
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.items import NO_NOTES, Notes, chunks_of, has_notes, headers_of, notes_of, parse
from fdbqueue.stored.known import Registration
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import new_random
from fdbqueue.verbs.queue import Queue
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


LAYERED_ROWS = 1_000
"""Rows in one transaction: each takes several writes."""
CHECKED_ROWS = 100
"""Each row reads the writes of the rows before it. All comparisons have to fit into a transaction's time."""
L = TypeVar("L")


class LayeredAppender(Appender):
    """Writes rows into the places that their delays name, with timers and ranks.

    Args:
        home: the queue of rows that name no queue.
        codec: the codec of the rows.
        levels: the order of the queues; None: they are first in, first out.
    """

    def __init__(self, home: Layout, codec: str, levels: Levels | None) -> None:
        super().__init__(home, codec, None if levels is None else levels.name)
        self._levels = levels

    def terms(self, rows: SparkRows) -> tuple[list[int] | None, list[Notes] | None]:
        """Return the ranks, as the headers say, and the notes in the envelopes."""
        levels, notes = self._levels, [notes_of(one) if has_notes(one) else NO_NOTES for one in rows.stored]
        ranks = None if levels is None else [levels.rank(None, headers_of(one)) for one in rows.stored]
        return ranks, notes


class ThroughLayer(Appender, Generic[L]):
    """Writes rows through a layer, which admits them itself and registers the queues.

    Args:
        home: the queue of rows that name no queue.
        make: makes the layer of a queue.
        write: writes rows by it.
    """

    def __init__(
        self, home: Layout, make: Callable[[Layout], L], write: Callable[[Transaction, L, SparkRows], None]
    ) -> None:
        super().__init__(home)
        self._make = make
        self._into = write
        self._layers = {home.prefix: make(home)}

    def prepare(self, tr: Transaction, rows: SparkRows) -> Callable[[], None]:
        """Return what writes the rows. The layer reads what it needs then."""
        return partial(self._write_all, tr, rows)

    def _write_all(self, tr: Transaction, rows: SparkRows) -> None:
        for tail, some in self.by_queue(rows):
            prefix = tail.layout.prefix
            if prefix not in self._layers:
                self._layers[prefix] = self._make(tail.layout)
            self._into(tr, self._layers[prefix], some)


def _compare(tr: Transaction, smart: SmartQueue, rows: SparkRows) -> None:
    """Compare and enqueue the rows one after the other."""
    for stored, large in zip(rows.stored, rows.large or repeat(None), strict=rows.large is not None):
        opened = parse(stored)
        message = smart.messages.decode(opened.payload if large is None else large)
        smart.enqueue(tr, message, headers=dict(opened.headers) or None)


def _append_to_sessions(tr: Transaction, sessions: Sessions, rows: SparkRows) -> None:
    """Write the items and the pointers of their sessions. Refuse a queue with an order."""
    run(Admission(tr, sessions.queue.layout, registers=False).steps(0))
    now_us = time.time_ns() // 1_000
    plain = replace(NO_NOTES, enqueued_at_us=now_us)
    items = []
    for stored, payload, place in zip(rows.stored, rows.large or repeat(None), rows.sessions or (), strict=False):
        notes = replace(notes_of(stored), enqueued_at_us=now_us) if has_notes(stored) else plain
        items.append(SessionRow(*place, stored, chunks_of(payload or b""), notes))
    run(append_rows(tr, sessions, items))


def sessions_at(options: Options, layout: Layout) -> Sessions:
    """Return the sessions of a queue.

    Raises:
        ValueError: the option ``sessions`` names no function. TypeError: that returns no `Sessions` of the queue.
        OtherCodec: these have another codec than the option ``codec``.
    """
    if options.sessions is None:
        queue: Queue[Any] = Queue(layout.space, codec=options.codec)
        return Sessions(queue, levels=options.levels)
    made = function_named("sessions", options.sessions, Sessions)(layout.space)
    found = sessions_of(made)  # those of Results or Groups, too
    if found is None or found.layout.prefix != layout.prefix:
        raise TypeError(
            f"The option sessions names a function that returns the Sessions of the subspace that it is given. For"
            f" {layout.describe()}, {options.sessions} returned {made!r}."
        )
    if not fits(options.codec, found.queue.codec.name):
        raise OtherCodec(
            f"The option codec is {options.codec!r}, and {options.sessions} returned sessions with the codec"
            f" {found.queue.codec.name!r}. Give codec={found.queue.codec.name}."
        )
    return found


@dataclass(frozen=True, slots=True)
class Writing:
    """How the rows of a job or a stream are written."""

    appender: Appender
    rows: int
    """How many rows one transaction writes at most."""
    in_flight: int
    """How many transactions of an attempt are under way at once."""

    def attempt(self, db: Database, log: NoLog, partition: int, at: At = lambda point: None) -> JobAttempt:
        """Return an attempt at one partition that writes to the queues at once."""
        return JobAttempt(
            db, log, self.appender, partition=partition, batch_rows=self.rows, in_flight=self.in_flight, at=at
        )


def writing_of(options: Options) -> Writing:
    """Return how to write the rows of a job or a stream.

    With a layer one transaction is under way: one that begins before the previous one has committed could not see its
    rows, or the last place in a session. It would conflict, or mix the rows of both.

    Raises:
        ValueError: the option ``smart`` or ``sessions`` names no function. TypeError: that returns something else.
        OtherCodec: as `sessions_at`.
    """
    home, rows = options.layout(), options.batch_rows
    if options.smart is not None:
        make = function_named("smart", options.smart, SmartQueue)
        checked = ThroughLayer(home, lambda layout: make(layout.space), _compare)
        return Writing(checked, min(CHECKED_ROWS, rows), 1)
    if options.session_column is not None:
        through = ThroughLayer(home, partial(sessions_at, options), _append_to_sessions)
        return Writing(through, min(LAYERED_ROWS, rows), 1)
    in_flight = COMMITS_IN_FLIGHT_EMBEDDED if options.url.startswith("file:") else COMMITS_IN_FLIGHT
    if options.layered:
        layered = LayeredAppender(home, options.codec, levels_of(options))
        return Writing(layered, min(LAYERED_ROWS, rows), in_flight)
    return Writing(Appender(home, options.codec), min(BATCH_ROWS, rows), in_flight)


def levels_of(options: Options) -> Levels | None:
    """Return the order of a queue with priorities; None without a column of priorities, and for sessions."""
    if options.priority_column is None or options.session_column is not None:
        return None
    return Levels(options.levels)
