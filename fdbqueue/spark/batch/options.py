"""The sink's options, checked before anything runs.

| option | meaning |
| --- | --- |
| ``url`` | the database, as for `fdbqueue.open`, but never ``memory:``; without it ``FDBQUEUE_URL``. A relative
  path starts at the folder where Spark was started. The variable is that of the process that started Spark |
| ``queue`` | the queue's name |
| ``queueKey`` | instead of a name: the prefix of the queue's subspace, in hex |
| ``queueColumn`` | a column that names the queue of each row; a null there means ``queue`` |
| ``codec`` | ``bytes`` (default), ``str``, ``json``, ``msgpack`` or ``tuple`` |
| ``valueColumn`` | the column with the values; default ``value``, for the last three codecs all columns, as a record |
| ``headersColumn`` | a column with the headers of each row, a map from string |
| ``sessionColumn`` | a column that names the session of each row, a string or binary (`in_sessions.py`) |
| ``sessions`` | ``module:function``; it takes a queue's subspace and returns its `Sessions`, if they have other rules
  than ``Sessions(queue)`` |
| ``priorityColumn`` | a column with the priority of each row, a whole number; smaller is sooner, null is the last. In
  sessions it is the row's level |
| ``levels`` | how many priorities the queue has; default 10, in sessions 2. A queue keeps its number |
| ``delayColumn`` | a column with seconds until each row becomes available, from when its task read it |
| ``ttlColumn`` | a column with seconds after which each row is removed |
| ``jobId`` | the job's identity; required unless ``delivery`` is ``atLeastOnce`` |
| ``delivery`` | ``exactlyOnce`` (default) or ``atLeastOnce`` |
| ``partitions`` | the most partitions of the DataFrame; a job with more is refused, and so is a failed job that is
  submitted again with another number in this option. A job with fewer goes through |
| ``smart`` | ``module:function``; it takes a queue's subspace and returns its `SmartQueue`, and each row is compared
  (`checked.py`); required if the queue is smart |
| ``batchRows`` | rows in one transaction, at most; default 4,000 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fdbqueue.layers.common.levels import MAX_LEVELS
from fdbqueue.spark.job.attempt import BATCH_ROWS
from fdbqueue.spark.job.keys import JOBS_WITHOUT_A_QUEUE
from fdbqueue.spark.optionvalues import (
    CODECS,
    choice,
    database,
    from_hex,
    known,
    layout_of,
    named,
    names_of,
    not_empty,
    option,
    values_of,
    whole,
)
from fdbqueue.stored.layout import Layout

RECORD_CODECS = ("json", "msgpack", "tuple")
EXACTLY_ONCE = "exactlyOnce"
AT_LEAST_ONCE = "atLeastOnce"
LEVELS = 10
SESSION_LEVELS = 2
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)
MAX_BATCH_ROWS = 6_000
"""One log entry has room for this many digests."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The parsed options. The tasks get them with the writer."""

    url: str = option("url", database, required=True)
    queue: str | None = option("queue", named)
    queue_key: bytes | None = option("queueKey", from_hex)
    queue_column: str | None = option("queueColumn", not_empty)
    codec: str = option("codec", choice("bytes", *CODECS))
    value_column: str | None = option("valueColumn", not_empty)
    """The column with the values; None: all columns are one record."""
    headers_column: str | None = option("headersColumn", not_empty)
    session_column: str | None = option("sessionColumn", not_empty)
    sessions: str | None = option("sessions", not_empty)
    """Names the function that makes the rows' sessions; None: they have the default rules."""
    priority_column: str | None = option("priorityColumn", not_empty)
    levels: int = option("levels", whole(LEVELS, MAX_LEVELS))
    delay_column: str | None = option("delayColumn", not_empty)
    ttl_column: str | None = option("ttlColumn", not_empty)
    job_id: str | None = option("jobId", not_empty)
    delivery: str = option("delivery", choice(EXACTLY_ONCE, *DELIVERIES))
    partitions: int | None = option("partitions", whole())
    smart: str | None = option("smart", not_empty)
    """Names the function that makes the rows' smart queues; None: rows are appended without checks."""
    batch_rows: int = option("batchRows", whole(BATCH_ROWS, MAX_BATCH_ROWS))

    @property
    def exactly_once(self) -> bool:
        """Whether rows are logged."""
        return self.delivery == EXACTLY_ONCE

    @property
    def other_columns(self) -> tuple[str, ...]:
        """The columns that are no part of the values."""
        named = (
            *(self.queue_column, self.headers_column, self.session_column),
            *(self.priority_column, self.delay_column, self.ttl_column),
        )
        return tuple(name for name in named if name is not None)

    @property
    def layered(self) -> bool:
        """Whether rows have a session, a priority, a delay or a time to live."""
        return not (self.session_column is self.priority_column is self.delay_column is self.ttl_column is None)

    @property
    def names_a_queue(self) -> bool:
        """Whether there is a queue for rows that name none."""
        return self.queue is not None or self.queue_key is not None

    def home(self) -> Layout:
        """Return the queue that has the job's records."""
        if self.queue_key is not None:
            return layout_of(self.queue_key)
        return layout_of(JOBS_WITHOUT_A_QUEUE if self.queue is None else self.queue)


NAMES = names_of(BatchOptions)


def parse(given: Mapping[str, str]) -> BatchOptions:
    """Parse the given options. Their names are case-insensitive.

    Raises:
        ValueError: an option is unknown, missing or not valid; the message says what to do.
    """
    values = known(given, NAMES, "The fdbqueue sink")
    options = BatchOptions(**values_of(BatchOptions, values))
    if options.value_column is None and options.codec not in RECORD_CODECS:
        options = replace(options, value_column="value")
    if options.session_column is not None and "levels" not in values:
        options = replace(options, levels=SESSION_LEVELS)
    if options.smart is not None and options.codec not in ("json", "msgpack"):
        raise ValueError(
            "The option smart needs codec=json or codec=msgpack, as the smart queue's messages are stored."
        )
    if options.queue is not None and options.queue_key is not None:
        raise ValueError("Give one of the options queue and queueKey, not both.")
    if options.smart is not None and options.layered:
        raise ValueError(
            "The option smart can't be combined with priorityColumn, sessionColumn, delayColumn and ttlColumn: the"
            " smart queue's own function decides about its messages. Put the values into the messages."
        )
    if options.sessions is not None and options.session_column is None:
        raise ValueError("The option sessions needs the option sessionColumn.")
    if options.sessions is not None and "levels" in values:
        raise ValueError("The option levels can't be combined with sessions: that function's Sessions have levels.")
    if "levels" in values and options.priority_column is options.session_column is None:
        raise ValueError("The option levels needs the option priorityColumn or sessionColumn.")
    if not options.names_a_queue and options.queue_column is None:
        raise ValueError("The option queue is missing: the queue's name. (Or queueColumn: a column that names it.)")
    if options.exactly_once and options.job_id is None:
        raise ValueError(
            "The option jobId is missing. It identifies a job that is submitted again. Derive it from the input: the"
            " date or the files that it loads, or the version of a table. Without an id use delivery=atLeastOnce; then"
            " rows may be in the queue more than once."
        )
    return options


def refuse_overwrite() -> None:
    """Refuse the mode ``overwrite``."""
    raise ValueError(
        'mode("overwrite") is refused, because it would remove items that belong to consumers. Use mode("append").'
        " To empty the queue, call Queue.clear."
    )
