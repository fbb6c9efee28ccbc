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
| ``jobId`` | the job's identity; required unless ``delivery`` is ``atLeastOnce`` |
| ``delivery`` | ``exactlyOnce`` (default) or ``atLeastOnce`` |
| ``partitions`` | how many partitions the DataFrame has; a job with more is refused, and so is a failed job that is
  submitted again with another number |
| ``smart`` | ``module:function``; it takes a queue's subspace and returns its `SmartQueue`, and each row is compared
  (`checked.py`); required if the queue is smart |
| ``batchRows`` | rows in one transaction, at most; default 4,000 |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fdbqueue.engine import Subspace
from fdbqueue.layout import Layout
from fdbqueue.spark.attempt import BATCH_ROWS
from fdbqueue.spark.keys import JOBS_WITHOUT_A_QUEUE

CODECS = ("bytes", "str", "json", "msgpack", "tuple")
RECORD_CODECS = ("json", "msgpack", "tuple")
EXACTLY_ONCE = "exactlyOnce"
AT_LEAST_ONCE = "atLeastOnce"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)
MAX_BATCH_ROWS = 6_000
"""One mark has room for this many digests."""
NAMES = (
    "url",
    "queue",
    "queueKey",
    "queueColumn",
    "codec",
    "valueColumn",
    "headersColumn",
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
    job_id: str | None = None
    delivery: str = EXACTLY_ONCE
    partitions: int | None = None
    smart: str | None = None
    """Names the function that makes the rows' smart queues; None: rows are appended without checks."""
    batch_rows: int = BATCH_ROWS

    @property
    def exactly_once(self) -> bool:
        """Whether rows get marks."""
        return self.delivery == EXACTLY_ONCE

    @property
    def names_a_queue(self) -> bool:
        """Whether there is a queue for rows that name none."""
        return self.queue is not None or self.queue_key is not None

    def home(self) -> Layout:
        """Return the queue that has the job's records."""
        if self.queue_key is not None:
            return Layout(Subspace(rawPrefix=self.queue_key))
        return Layout(JOBS_WITHOUT_A_QUEUE if self.queue is None else self.queue)


def parse(given: Mapping[str, str]) -> Options:
    """Parse the given options. Their names are case-insensitive.

    Raises:
        ValueError: an option is unknown, missing or not valid; the message says what to do.
    """
    known = {name.lower(): name for name in NAMES}
    values = {}
    for name, value in given.items():
        if name.lower() not in known:
            raise ValueError(f"There is no option {name!r}. The fdbqueue sink has {', '.join(NAMES)}.")
        values[known[name.lower()]] = value
    codec = _one_of("codec", values.get("codec", "bytes"), CODECS)
    options = Options(
        url=_url(values.get("url")),
        queue=_not_empty("queue", values.get("queue")),
        queue_key=_hex(values.get("queueKey")),
        queue_column=_not_empty("queueColumn", values.get("queueColumn")),
        codec=codec,
        value_column=_not_empty("valueColumn", values.get("valueColumn")) or _default_value_column(codec),
        headers_column=_not_empty("headersColumn", values.get("headersColumn")),
        job_id=_not_empty("jobId", values.get("jobId")),
        delivery=_one_of("delivery", values.get("delivery", EXACTLY_ONCE), DELIVERIES),
        partitions=_number("partitions", values.get("partitions")),
        smart=_smart(values.get("smart"), codec),
        batch_rows=_number("batchRows", values.get("batchRows"), MAX_BATCH_ROWS) or BATCH_ROWS,
    )
    if options.queue is not None and options.queue_key is not None:
        raise ValueError("Give one of the options queue and queueKey, not both.")
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


def _url(given: str | None) -> str:
    url = given or os.environ.get("FDBQUEUE_URL")
    if not url:
        raise ValueError(
            "The option url is missing, and FDBQUEUE_URL is not set. Give file:PATH or fdb:[CLUSTER_FILE]."
        )
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise ValueError(
            "memory: is private to one process, and every task of Spark is another. Use file:PATH on one machine, or"
            " fdb:[CLUSTER_FILE]."
        )
    if rest.startswith("//"):
        return url  # absolute, or refused at the opening
    if scheme == "file":
        # Executors have other working folders than the driver.
        path, mark, query = rest.partition("?")
        return f"file:{os.path.abspath(path)}{mark}{query}" if path else url
    if scheme == "fdb" and rest:
        return f"fdb:{os.path.abspath(rest)}"
    return url


def _default_value_column(codec: str) -> str | None:
    return None if codec in RECORD_CODECS else "value"


def _smart(value: str | None, codec: str) -> str | None:
    if value is not None and codec not in ("json", "msgpack"):
        raise ValueError(
            "The option smart needs codec=json or codec=msgpack, as the smart queue's messages are stored."
        )
    return _not_empty("smart", value)


def _not_empty(name: str, value: str | None) -> str | None:
    if value is not None and not value:
        raise ValueError(f"The option {name} is empty.")
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    for one in allowed:
        if value.lower() == one.lower():
            return one
    raise ValueError(f"The option {name} is one of {', '.join(allowed)}, not {value!r}.")


def _number(name: str, value: str | None, most: int | None = None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1 or (most is not None and int(value) > most):
        upper = "" if most is None else f" to {most:,}"
        raise ValueError(f"The option {name} is a whole number from 1{upper}, not {value!r}.")
    return int(value)


def _hex(value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        return bytes.fromhex(value)
    except ValueError as error:
        raise ValueError(f"The option queueKey is the prefix of a subspace in hex, not {value!r}.") from error
