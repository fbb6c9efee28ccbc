"""Rows with a priority, a delay or a time to live: what other layers keep of an item, written with it.

The priority stands in the row's headers, where `fdbqueue.layers.PriorityQueue` puts it too. The times stand in the
notes of its envelope (`columns.py`).
"""

from __future__ import annotations

from fdbqueue.errors import CodecError
from fdbqueue.layers.priority import Levels
from fdbqueue.spark.batch import checked
from fdbqueue.spark.batch import in_sessions as insessions
from fdbqueue.spark.batch.checked import CheckedAppender
from fdbqueue.spark.batch.in_sessions import SessionAppender
from fdbqueue.spark.batch.options import BatchOptions
from fdbqueue.spark.job.attempt import BATCH_ROWS, COMMITS_IN_FLIGHT, COMMITS_IN_FLIGHT_EMBEDDED
from fdbqueue.spark.rows.appender import Appender
from fdbqueue.spark.rows.rows import SparkRows
from fdbqueue.stored.items import NO_NOTES, Notes, has_notes, headers_of, notes_of
from fdbqueue.stored.layout import Layout

LAYERED_ROWS = 1_000
"""Each row takes several writes."""


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


def appender_of(options: BatchOptions) -> Appender:
    """Return what writes the rows of a job or a stream.

    Raises:
        ValueError: the option ``smart`` or ``sessions`` names no function. TypeError: that returns something else.
    """
    if options.smart is not None:
        return CheckedAppender(options.home(), options.smart)
    if options.session_column is not None:
        return SessionAppender(options)
    if options.layered:
        return LayeredAppender(options.home(), options.codec, levels_of(options))
    return Appender(options.home(), options.codec)


def rows_at_once(options: BatchOptions) -> int:
    """Return how many rows one transaction writes at most."""
    most = checked.BATCH_ROWS if options.smart is not None else LAYERED_ROWS if options.layered else BATCH_ROWS
    return min(most, options.batch_rows)


def commits_in_flight(options: BatchOptions) -> int:
    """Return how many transactions of an attempt are under way at once."""
    if options.smart is not None:
        return checked.COMMITS_IN_FLIGHT
    if options.session_column is not None:
        return insessions.COMMITS_IN_FLIGHT
    return COMMITS_IN_FLIGHT_EMBEDDED if options.url.startswith("file:") else COMMITS_IN_FLIGHT


def levels_of(options: BatchOptions) -> Levels | None:
    """Return the order of a queue with priorities; None without a column of priorities, and for sessions."""
    if options.priority_column is None or options.session_column is not None:
        return None
    return Levels(options.levels)


def check_priority(levels: Levels, priority: int | None, column: str) -> None:
    """Refuse a priority that the queue does not have.

    Raises:
        CodecError: it is not one of the levels.
    """
    try:
        if priority is not None:
            levels.rank_of(priority)
    except ValueError as error:
        raise CodecError(f"The column {column!r}: {error}") from error
