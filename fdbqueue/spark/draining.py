"""`drain_to_table`: moves what is in a queue into a table, exactly once, and ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fdbqueue.base.position import Position
from fdbqueue.base.times import check_number
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import Stream
from fdbqueue.spark.dataframe import register
from fdbqueue.spark.opening import check_queue, existing
from fdbqueue.spark.options import STREAM, naming, parse, url_of
from fdbqueue.spark.source import NAME
from fdbqueue.spark.telling import own_errors
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.verbs.queue import Queue

POLL_SECONDS = 0.1
"""How often `started` looks at a query."""


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain did."""

    items: int
    """How many items left the queue. This includes the last batch of a run that was interrupted."""
    batches: int
    """In how many batches."""
    seconds: float


def drain_to_table(
    spark: SparkSession,
    *,
    url: str,
    queue: Name,
    checkpoint: str | os.PathLike[str],
    table: str | None = None,
    path: str | os.PathLike[str] | None = None,
    foreach_batch: Callable[[DataFrame, int], None] | None = None,
    format: str = "parquet",
    stream: str | None = None,
    limit: int | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    **options: str,
) -> DrainReport:
    """Move the items that are in a queue now into a table, exactly once.

    If it fails or the driver dies, call it again with the same checkpoint. It returns when it has moved as many items
    as there were at its start, though producers go on. The output must be idempotent by Spark's batch: tables and
    folders of files are; a `foreach_batch` function has to use the batch's number.

    Args:
        spark: a session.
        url: the database, as for `fdbqueue.open`, but never ``memory:``.
        queue: the queue's name, key tuple or subspace.
        checkpoint: a folder that belongs to this drain alone.
        table: the table to append to.
        path: the folder to append to.
        foreach_batch: called with each batch and its number.
        format: the format of the table or the folder.
        stream: the stream's name in the queue; None: made of the queue's and the output's name.
        limit: how many items to take at most, besides the open batch of an earlier call that failed.
        transform: applied to the items before they are written.
        options: further options of the stream, such as ``codec="json"`` or ``maxItemsPerTrigger="5000"``.

    Raises:
        ValueError: not exactly one of `table`, `path` and `foreach_batch` is given, or an option is not valid.
        UnknownQueue: there is no such queue. StorageError: there is no database at the URL. QueuePaused: the queue is
            paused, and ``onPaused`` is not ``wait``. StreamError: the checkpoint does not fit what the queue has of it.
        The errors that Spark raises for a query that failed otherwise.
    """
    if not hasattr(spark, "readStream"):
        raise TypeError(f"drain_to_table takes a SparkSession, not {type(spark).__name__}.")
    if sum(one is not None for one in (table, path, foreach_batch)) != 1:
        raise ValueError("drain_to_table takes one of table, path and foreach_batch.")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit is a whole number from 1, or None, not {limit!r}.")
    name = stream or f"drain to {table or path or getattr(foreach_batch, '__name__', 'a function')}"
    given: dict[str, Any] = {**options, "url": url_of(url), **naming(queue), "streamName": name}
    if limit is not None:
        given["limit"] = str(limit)
    parse(STREAM, given)
    begun = time.monotonic()
    before = _counted(given["url"], queue, name)
    register(spark)
    with own_errors():
        items = spark.readStream.format(NAME).options(**given).load()
        rows = items if transform is None else transform(items)
        writer = rows.writeStream.option("checkpointLocation", os.fspath(checkpoint)).trigger(availableNow=True)
        if foreach_batch is not None:
            query = writer.foreachBatch(foreach_batch).start()
        elif table is not None:
            query = writer.format(format).toTable(table)
        else:
            query = writer.format(format).start(os.fspath(path) if path is not None else None)
        query.awaitTermination()
    after = _counted(given["url"], queue, name)
    return DrainReport(after[0] - before[0], after[1] - before[1], time.monotonic() - begun)


def started(query: StreamingQuery, *, timeout: float = 60.0) -> StreamingQuery:
    """Return a query that Spark has started, when it has looked for items; raise the error if it was refused.

    Spark starts a query before it asks the source and the sink. So a missing ``streamName``, a schema with another
    column, a ``limit`` without ``availableNow`` or a checkpoint that does not fit ends the query a moment later, where
    a program does not look: ``query = started(df.writeStream….start())``.

    Args:
        query: what ``start()`` or ``toTable()`` has returned.
        timeout: how many seconds to wait at most. A query that has not come so far by then is returned as it is.

    Raises:
        TypeError: it is no query. ValueError: an option or the schema is not valid.
        StreamError: the checkpoint does not fit. The library's other errors, and those of Spark.
    """
    if not hasattr(query, "awaitTermination"):
        raise TypeError(f"started takes what start() returns, a StreamingQuery, not {type(query).__name__}.")
    check_number(timeout, "timeout")
    end = time.monotonic() + timeout
    ends_in: Any = query.awaitTermination  # it takes parts of a second, too
    with own_errors():
        while not ends_in(POLL_SECONDS):
            waits = query.status["message"].startswith("Waiting for ")
            if waits or query.lastProgress is not None or time.monotonic() >= end:
                break
    return query


def _counted(url: str, queue: Name, name: str) -> tuple[int, int]:
    """Return how many items and batches of the stream were acked so far."""
    with existing(url) as db:
        check_queue(db, Layout(queue))
        record = Stream(Queue(queue), name).record(db)
    return (0, 0) if record is None else (record.items, record.acked)


def redrive(
    df: DataFrame,
    *,
    url: str,
    queue: Name,
    to: str = "place",
    position_column: str = "position",
) -> int:
    """Make dead letters available again, those whose positions `df` has; return how many there were.

    ``spark.read.format("fdbqueue").option("states", "dead")`` shows them; filter that by error, time or value.

    Args:
        df: the dead letters, as a look shows them.
        url: the database.
        queue: the queue.
        to: "place" or "tail", as for `DeadLetters.redrive`.
        position_column: the column with the positions.

    Raises:
        ValueError: there is no such column, it holds no positions, or there is a column of sessions.
        UnknownQueue: there is no such queue. StorageError: there is no database at the URL.
    """
    if not hasattr(df, "sparkSession"):
        raise TypeError(f"redrive takes a DataFrame of Spark, not {type(df).__name__}.")
    if to not in ("place", "tail"):
        raise ValueError(f"A dead letter goes to its 'place' or to the 'tail', not to {to!r}.")
    if position_column not in df.columns:
        raise ValueError(f"The DataFrame has no column {position_column!r}; it has {', '.join(df.columns)}.")
    if "session" in df.columns:
        raise ValueError(
            "The DataFrame has a column 'session', and the dead letters of a session are redriven by"
            " Sessions(queue).redrive(db, session, position). Drop the column if no row has a session."
        )
    dead = Leases(Queue(queue)).dead
    done, some = 0, []
    with existing(url_of(url)) as db:
        check_queue(db, Layout(queue))
        for row in df.select(position_column).toLocalIterator():
            some.append(Position.parse(row[0]))
            if len(some) == 1_000:
                done += dead.redrive(db, some, to="tail" if to == "tail" else "place")
                some = []
        if some:
            done += dead.redrive(db, some, to="tail" if to == "tail" else "place")
    return done
