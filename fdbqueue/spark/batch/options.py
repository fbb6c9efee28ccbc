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
| ``sessionColumn`` | a column that names the session of each row, a string or binary (`insessions.py`) |
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
from dataclasses import dataclass

from fdbqueue.layers.common.levels import MAX_LEVELS
from fdbqueue.spark.job.attempt import BATCH_ROWS
from fdbqueue.spark.job.keys import JOBS_WITHOUT_A_QUEUE
from fdbqueue.spark.optionvalues import CODECS, from_hex, known, layout_of, not_empty, number, one_of, url_of
from fdbqueue.stored.layout import Layout

RECORD_CODECS = ("json", "msgpack", "tuple")
EXACTLY_ONCE = "exactlyOnce"
AT_LEAST_ONCE = "atLeastOnce"
LEVELS = 10
SESSION_LEVELS = 2
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)
MAX_BATCH_ROWS = 6_000
"""One log entry has room for this many digests."""
NAMES = (
    "url",
    "queue",
    "queueKey",
    "queueColumn",
    "codec",
    "valueColumn",
    "headersColumn",
    "sessionColumn",
    "sessions",
    "priorityColumn",
    "levels",
    "delayColumn",
    "ttlColumn",
    "jobId",
    "delivery",
    "partitions",
    "smart",
    "batchRows",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options. The tasks get them with the writer."""

    url: str
    queue: str | None = None
    queue_key: bytes | None = None
    queue_column: str | None = None
    codec: str = "bytes"
    value_column: str | None = None
    """The column with the values; None: all columns are one record."""
    headers_column: str | None = None
    session_column: str | None = None
    sessions: str | None = None
    """Names the function that makes the rows' sessions; None: they have the default rules."""
    priority_column: str | None = None
    levels: int = LEVELS
    delay_column: str | None = None
    ttl_column: str | None = None
    job_id: str | None = None
    delivery: str = EXACTLY_ONCE
    partitions: int | None = None
    smart: str | None = None
    """Names the function that makes the rows' smart queues; None: rows are appended without checks."""
    batch_rows: int = BATCH_ROWS

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


def parse(given: Mapping[str, str]) -> Options:
    """Parse the given options. Their names are case-insensitive.

    Raises:
        ValueError: an option is unknown, missing or not valid; the message says what to do.
    """
    values = known(given, NAMES, "The fdbqueue sink")
    codec = one_of("codec", values.get("codec", "bytes"), CODECS)
    session_column = not_empty("sessionColumn", values.get("sessionColumn"))
    levels = LEVELS if session_column is None else SESSION_LEVELS
    options = Options(
        url=url_of(values.get("url")),
        queue=not_empty("queue", values.get("queue")),
        queue_key=from_hex("queueKey", values.get("queueKey")),
        queue_column=not_empty("queueColumn", values.get("queueColumn")),
        codec=codec,
        value_column=not_empty("valueColumn", values.get("valueColumn")) or _default_value_column(codec),
        headers_column=not_empty("headersColumn", values.get("headersColumn")),
        session_column=session_column,
        sessions=not_empty("sessions", values.get("sessions")),
        priority_column=not_empty("priorityColumn", values.get("priorityColumn")),
        levels=number("levels", values.get("levels"), MAX_LEVELS) or levels,
        delay_column=not_empty("delayColumn", values.get("delayColumn")),
        ttl_column=not_empty("ttlColumn", values.get("ttlColumn")),
        job_id=not_empty("jobId", values.get("jobId")),
        delivery=one_of("delivery", values.get("delivery", EXACTLY_ONCE), DELIVERIES),
        partitions=number("partitions", values.get("partitions")),
        smart=_smart(values.get("smart"), codec),
        batch_rows=number("batchRows", values.get("batchRows"), MAX_BATCH_ROWS) or BATCH_ROWS,
    )
    if options.queue is not None and options.queue_key is not None:
        raise ValueError("Give one of the options queue and queueKey, not both.")
    if options.smart is not None and options.layered:
        raise ValueError(
            "The option smart can't be combined with priorityColumn, sessionColumn, delayColumn and ttlColumn: the"
            " smart queue's own function decides about its messages. Put the values into the messages."
        )
    if options.sessions is not None and session_column is None:
        raise ValueError("The option sessions needs the option sessionColumn.")
    if options.sessions is not None and "levels" in values:
        raise ValueError("The option levels can't be combined with sessions: that function's Sessions have levels.")
    if "levels" in values and options.priority_column is session_column is None:
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


def _default_value_column(codec: str) -> str | None:
    return None if codec in RECORD_CODECS else "value"


def _smart(value: str | None, codec: str) -> str | None:
    if value is not None and codec not in ("json", "msgpack"):
        raise ValueError(
            "The option smart needs codec=json or codec=msgpack, as the smart queue's messages are stored."
        )
    return not_empty("smart", value)
