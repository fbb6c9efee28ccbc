"""Rows in sessions: each goes into the session that its column names, at the level that its priority is.

A `Sessions` of the queue writes them, in the transaction that logs them. Workers take them by `Sessions` too. An
attempt writes one transaction after the other. So the rows of a partition are in their session in the partition's
order. This also holds after a failure, if each attempt has the same order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from msgspec.structs import replace

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import run
from fdbqueue.errors import CodecError, OtherCodec
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.layers.sessions.workers.rows import SessionRow, append_rows
from fdbqueue.spark.batch.options import BatchOptions
from fdbqueue.spark.optionvalues import function_named
from fdbqueue.spark.rows.appender import Appender, QueuePart
from fdbqueue.spark.rows.rows import SparkRows
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.items import NO_NOTES, chunks_of, has_notes, notes_of
from fdbqueue.stored.layout import Layout
from fdbqueue.verbs.queue import Queue

COMMITS_IN_FLIGHT = 1
"""A transaction that begins before the previous one has committed could not see the last place in a session. The rows
of both would be mixed."""


class SessionAppender(Appender):
    """Writes rows into sessions.

    Args:
        options: the sink's options.

    Raises:
        ValueError: the option ``sessions`` names no function. TypeError: that returns no `Sessions` of the queue.
    """

    def __init__(self, options: BatchOptions) -> None:
        super().__init__(options.home())
        self._options = options
        self._sessions: dict[bytes, Sessions] = {}
        self._of(options.home())

    def write(self, tr: Transaction, parts: list[QueuePart]) -> None:
        """Write the items and the pointers of their sessions, after the types of the queues were read."""
        for part in parts:
            run(part.last.steps(0))  # refuses a smart queue and a queue with an order
            run(append_rows(tr, self._of(part.tail.layout), _items(part.rows)))

    def _of(self, layout: Layout) -> Sessions:
        sessions = self._sessions.get(layout.prefix)
        if sessions is None:
            sessions = self._sessions[layout.prefix] = sessions_at(self._options, layout)
        return sessions


def sessions_at(options: BatchOptions, layout: Layout) -> Sessions:
    """Return the sessions of a queue.

    Raises:
        ValueError: the option ``sessions`` names no function. TypeError: that returns no `Sessions` of the queue.
        OtherCodec: these have another codec than the option ``codec``.
    """
    if options.sessions is None:
        queue: Queue[Any] = Queue(layout.space, codec=options.codec)
        return Sessions(queue, levels=options.levels)
    made = function_named("sessions", options.sessions, "Sessions")(layout.space)
    found = getattr(made, "sessions", made)  # those of Results or Groups
    if not isinstance(found, Sessions) or found.layout.prefix != layout.prefix:
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


class Places:
    """Makes the session and the level of each row from their columns.

    Args:
        options: the sink's options.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._levels = sessions_at(options, options.home()).levels

    def of(self, names: Sequence[object], levels: Sequence[int | None] | None) -> list[tuple[bytes, int]]:
        """Return packed names and levels.

        Raises:
            CodecError: a value is no session's name, or no level.
        """
        packed = {name: self._name(name) for name in set(names)}
        found = {level: self._level(level) for level in set(levels or (None,))}
        return [(packed[name], found[level]) for name, level in zip(names, levels or repeat(None), strict=False)]

    def _name(self, name: object) -> bytes:
        column = self._options.session_column
        if name is None:
            raise CodecError(f"The column {column!r} has a null, and each row needs a session. Filter those rows out.")
        try:
            return pack_name(name)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise CodecError(f"The column {column!r}: {error}") from error

    def _level(self, level: int | None) -> int:
        if level is None:
            return self._levels - 1
        if not 0 <= level < self._levels:
            raise CodecError(
                f"The column {self._options.priority_column!r}: a level of these sessions is 0 to {self._levels - 1},"
                f" not {level}. The option levels says how many there are."
            )
        return level


def _items(rows: SparkRows) -> list[SessionRow]:
    now_us = time.time_ns() // 1_000
    plain = replace(NO_NOTES, enqueued_at_us=now_us)
    items = []
    for stored, payload, place in zip(rows.stored, rows.large or repeat(None), rows.sessions or (), strict=False):
        notes = replace(notes_of(stored), enqueued_at_us=now_us) if has_notes(stored) else plain
        items.append(SessionRow(*place, stored, chunks_of(payload or b""), notes))
    return items
