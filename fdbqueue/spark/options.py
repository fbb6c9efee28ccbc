"""Spark's options: one table for all reads and writes, checked before anything runs. Spark gives each as text.

`OPTIONS` says of each option its name, what takes it, how its text is read, its default and its meaning. The errors for
options that are unknown, missing or wrong come from it, and a test compares the guides' tables with it. `parse` reads
the options of one use into `Options`, whose attributes are named as the options.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from fdbqueue.base.position import Position
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import MAX_LEVELS
from fdbqueue.spark.partition_log import JOBS_WITHOUT_A_QUEUE
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.names import queue_named, queue_text
from fdbqueue.stored.places import ALL_STATES
from fdbqueue.stored.positions import pack

T = TypeVar("T")
Reader: TypeAlias = Callable[[str, str], object]
"""Takes an option's name and its text, and returns the value."""
Lost: TypeAlias = Literal["fail", "continue", "redeliver", "drop"]
"""What a query does whose name belongs to another checkpoint."""
CODECS = ("bytes", "str", "json", "msgpack", "tuple")
RECORD_CODECS = ("json", "msgpack", "tuple")
EXACTLY_ONCE, AT_LEAST_ONCE = "exactlyOnce", "atLeastOnce"
FAIL, NULL, DEAD, WAIT = "fail", "null", "dead", "wait"
SESSION_LEVELS = 2
MAX_BATCH_ROWS = 6_000
"""One log entry has room for this many digests."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPARKS = ("checkpointlocation", "queryname", "path")
"""Options that Spark adds to a stream's sink itself."""


class Use(Flag):
    """What takes an option."""

    LOAD = auto()
    LOOK = auto()
    STREAM = auto()
    CLAIM = auto()
    SINK = auto()


LOAD, LOOK, STREAM, CLAIM, SINK = Use
READS, WRITES = LOOK | STREAM | CLAIM, LOAD | SINK
_TOLD = {
    LOAD: "The fdbqueue sink",
    LOOK: "A look at a queue",
    STREAM: "A stream out of a queue",
    CLAIM: "A claim's DataFrame",
    SINK: "A stream into a queue",
}


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the allowed value that is meant, whatever the case."""
    for one in allowed:
        if value.lower() == one.lower():
            return one
    raise ValueError(f"The option {name} is one of {', '.join(allowed)}, not {value!r}.")


def _choice(*allowed: str) -> Reader:
    return lambda name, value: one_of(name, value, allowed)


def _whole(most: int | None = None) -> Reader:
    def reader(name: str, value: str) -> int:
        if not value.isdecimal() or int(value) < 1 or (most is not None and int(value) > most):
            upper = "" if most is None else f" to {most:,}"
            raise ValueError(f"The option {name} is a whole number from 1{upper}, not {value!r}.")
        return int(value)

    return reader


def _flag(name: str, value: str) -> bool:
    return one_of(name, value, ("true", "false")) == "true"


def _duration(name: str, value: str) -> float:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*", value)
    if found is None:
        raise ValueError(f"The option {name} is a duration such as 500ms, 15s or 15m, not {value!r}.")
    return float(found[1]) * _UNITS[found[2]]


def _text(name: str, value: str) -> str:
    if not value:
        raise ValueError(f"The option {name} is empty.")
    return value


def _queue(name: str, value: str) -> str:
    queue_named(_text(name, value))
    return value


def _hex(name: str, value: str) -> bytes:
    try:
        return bytes.fromhex(_text(name, value))
    except ValueError as error:
        raise ValueError(f"The option {name} is the prefix of a subspace in hex, not {value!r}.") from error


def _states(name: str, value: str) -> tuple[str, ...]:
    chosen = {one_of(name, one.strip(), ALL_STATES) for one in value.split(",")}
    return tuple(state for state in ALL_STATES if state in chosen)


def _position(name: str, value: str) -> bytes:
    try:
        return pack(Position.parse(value))
    except ValueError as error:
        raise ValueError(f"The option {name} is a position, as the column of that name shows it: {error}") from error


def _url(_: str, value: str) -> str:
    return url_of(value)


class Option(NamedTuple):
    """A row of the table."""

    name: str
    of: Use
    read: Reader
    default: str | None
    """The text that stands for an option that was not given; None: it has no value then."""
    meaning: str
    """In Markdown, as the guides have it."""
    told: str = "none"
    """What the guides call a default that is no text."""

    @property
    def attribute(self) -> str:
        """The attribute of `Options`."""
        return {"from": "begin", "to": "end"}.get(self.name) or in_words(self.name)


def in_words(name: str) -> str:
    """Return an option's name as Python writes it.

    >>> in_words("maxItemsPerTrigger")
    'max_items_per_trigger'
    """
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


_FROM_1 = _whole()
OPTIONS = (
    Option(
        *("url", READS | WRITES, _url, None),
        "the database: `file:PATH` or `fdb:`; a relative path begins at the driver's folder",
        "`FDBQUEUE_URL`",
    ),
    Option("queue", READS | WRITES, _queue, None, "the queue's name as [text](names-as-texts.md)", "required"),
    Option("queueKey", READS | WRITES, _hex, None, "instead of a name: the prefix of the queue's subspace in hex"),
    Option(
        "jobId",
        LOAD,
        _text,
        None,
        "identifies a job that is submitted again; not needed with `delivery=atLeastOnce`",
        "required",
    ),
    Option(
        *("delivery", LOAD, _choice(EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE),
        "`atLeastOnce` notes no rows: a task that is tried again writes its rows again",
    ),
    Option(
        *("partitions", LOAD, _FROM_1, None),
        "the most partitions of the DataFrame, the same number whenever the job is submitted",
    ),
    Option("streamName", STREAM, _text, None, "the stream's name; one query may use it", "required"),
    Option("streamName", SINK, _text, None, "identifies the stream in the queue", "the query's id"),
    Option("claim", CLAIM, _text, None, "the name of the claim", "required"),
    Option("queueColumn", WRITES, _text, None, "a column that names the queue of each row; null means `queue`"),
    Option(
        *("codec", WRITES, _choice(*CODECS), "bytes"),
        "`bytes`, `str`, `json`, `msgpack` or `tuple`; a queue that is registered with another one is refused",
    ),
    Option(
        *("codec", READS, _choice(*CODECS), "bytes"),
        "`bytes` makes `value` binary; `str`, `json`, `msgpack` and `tuple` make it text. Another codec than the"
        " queue's is refused, except `bytes`",
    ),
    Option(
        *("valueColumn", WRITES, _text, None),
        "the column with the values; for the last three codecs all columns, as a record",
        "`value`",
    ),
    Option("headersColumn", WRITES, _text, None, "a column with headers, a map from string"),
    Option(
        *("priorityColumn", WRITES, _text, None),
        "a column with priorities, for a `PriorityQueue`: smaller is sooner, null is the last",
    ),
    Option("levels", WRITES, _whole(MAX_LEVELS), "10", "how many priorities there are; with `sessionColumn` 2"),
    Option("sessionColumn", WRITES, _text, None, "a column that names the session of each row: string or binary"),
    Option(
        *("sessions", WRITES, _text, None),
        "`module:function` that returns the `Sessions` of a subspace, if they have other rules",
    ),
    Option("delayColumn", WRITES, _text, None, "a column with seconds until the item is available"),
    Option("ttlColumn", WRITES, _text, None, "a column with seconds until the item is removed"),
    Option(
        *("smart", WRITES, _text, None),
        "`module:function` that returns the `SmartQueue` of a subspace; a smart queue needs it",
    ),
    Option("batchRows", WRITES, _whole(MAX_BATCH_ROWS), "4000", "rows in one transaction, at most"),
    Option(
        *("onLostCheckpoint", SINK, _choice(FAIL, "continue"), FAIL),
        "a new checkpoint under a name that has another one: `fail` or `continue`",
    ),
    Option(
        *("staging", SINK, _choice("always", "repeated"), "always"),
        "`repeated`: tasks write to the queue at once, and only repeated batches are stored aside",
    ),
    Option(
        *("onBadItem", LOOK | CLAIM, _choice(FAIL, NULL), FAIL),
        "`null` shows an item that does not decode without its value",
    ),
    Option(
        *("onBadItem", STREAM, _choice(FAIL, NULL, DEAD), FAIL),
        "an item that does not decode: `fail`, `null`, or `dead`, which makes it a dead letter",
    ),
    Option("states", LOOK, _states, ",".join(ALL_STATES), "some states, with commas between", "all"),
    Option("from", LOOK, _position, None, "the first position"),
    Option("to", LOOK, _position, None, "the position to stop before"),
    Option("limit", LOOK, _FROM_1, None, "how many items; one task reads them"),
    Option(
        *("limit", STREAM, _FROM_1, None),
        "with `availableNow`: how many new items a run takes; without `availableNow` it is refused",
    ),
    Option(
        *("includeSessions", LOOK, _flag, "false"),
        "items in sessions too, with their names as texts in a column `session`; else a queue that has some is refused",
    ),
    Option(
        *("minPartitions", READS, _whole(100_000), "1"),
        "at least so many tasks, as far as the database knows where to cut",
    ),
    Option("maxItemsPerTrigger", STREAM, _FROM_1, "10000", "how many items a batch has at most"),
    Option(
        "maxBytesPerTrigger",
        STREAM,
        _FROM_1,
        "8000000",
        "about how many bytes of payload; the first item always passes",
    ),
    Option("minItemsPerTrigger", STREAM, _FROM_1, "1", "wait for so many items"),
    Option("maxTriggerDelay", STREAM, _duration, "15m", "but no longer than this"),
    Option("maxItemsPerPartition", STREAM, _FROM_1, "5000", "about how many items a task has at most"),
    Option("includeHeaders", STREAM | CLAIM, _flag, "false", "whether there is a column `headers`"),
    Option("failOnDataLoss", STREAM, _flag, "true", "`false` makes a batch whose items are gone an empty one"),
    Option(
        *("onLostCheckpoint", STREAM, _choice(FAIL, "redeliver", "drop"), FAIL),
        "what a new checkpoint does with the open batch of a lost one: `fail`, `redeliver`, `drop`",
    ),
    Option(
        *("onPaused", STREAM, _choice(FAIL, WAIT), None),
        "while the queue is paused: `wait` or `fail`; without it only `availableNow` fails",
    ),
    Option(
        *("maxAttempts", STREAM, _FROM_1, None),
        "after how many failed attempts an item is dead, if the queue stores no number: it is stored then",
    ),
)
"""The table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed options of one use; those of other uses have their defaults. Tasks get them with their reader or
    writer."""

    url: str
    queue: str | None
    queue_key: bytes | None
    codec: str
    # Loads, and streams into a queue:
    job_id: str | None
    delivery: str
    partitions: int | None
    queue_column: str | None
    value_column: str | None
    """The column with the values; None: all columns are one record."""
    headers_column: str | None
    priority_column: str | None
    levels: int
    session_column: str | None
    sessions: str | None
    delay_column: str | None
    ttl_column: str | None
    smart: str | None
    batch_rows: int
    stream_name: str | None
    """The stream, either way, or the claim; None: a sink's has the query's id."""
    on_lost_checkpoint: Lost
    staging: str
    # Looks, streams out of a queue, and claims:
    on_bad_item: Literal["fail", "null", "dead"]
    states: tuple[str, ...]
    begin: bytes | None
    """The packed position to begin with."""
    end: bytes | None
    """The packed position to stop before."""
    limit: int | None
    include_sessions: bool
    min_partitions: int
    max_items_per_trigger: int
    max_bytes_per_trigger: int
    min_items_per_trigger: int
    max_trigger_delay: float
    max_items_per_partition: int
    include_headers: bool
    fail_on_data_loss: bool
    on_paused: str | None
    max_attempts: int | None
    claim: str | None

    @property
    def exactly_once(self) -> bool:
        """Whether a load logs its rows."""
        return self.delivery == EXACTLY_ONCE

    @property
    def at_once(self) -> bool:
        """Whether tasks of a stream write to the queue at once, unless their batch is a repeated one."""
        return self.staging == "repeated"

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

    @property
    def stream(self) -> str:
        """The name of a stream out of the queue, or of a claim."""
        return self.stream_name or ""

    def layout(self) -> Layout:
        """Return the keys of the queue. Without one they are those that have the records of such jobs."""
        if self.queue_key is not None:
            return Layout(Subspace(rawPrefix=self.queue_key))
        return Layout(JOBS_WITHOUT_A_QUEUE) if self.queue is None else Layout(queue_named(self.queue))


_DEFAULTS = {row.attribute: None if row.default is None else row.read(row.name, row.default) for row in OPTIONS}
_TAKES = re.compile("consume|ack|dequeue|delete|remove|take|lease")


def of(use: Use) -> dict[str, Option]:
    """Return the options of a use, by their names in lower case: Spark does not keep the case."""
    return {row.name.lower(): row for row in OPTIONS if use in row.of}


def parse(use: Use, given: Mapping[str, str]) -> Options:
    """Parse the options of one use.

    Raises:
        ValueError: an option is unknown, missing or not valid; the message says what to do.
    """
    rows, values = of(use), {name.lower(): value for name, value in given.items()}
    unknown = [name for name in given if name.lower() not in rows and not (use is SINK and name.lower() in _SPARKS)]
    if unknown:
        raise ValueError(_refusal(use, unknown, rows))
    read = {row.attribute: row.read(row.name, values[name]) for name, row in rows.items() if name in values}
    url = read.get("url") or url_of(None)
    options = Options(**{**_DEFAULTS, **read, "url": url})  # type: ignore[arg-type]  # the table's readers give these types
    if options.queue is not None and options.queue_key is not None:
        raise ValueError("Give one of the options queue and queueKey, not both.")
    if not options.names_a_queue and options.queue_column is None:
        column = " (Or queueColumn: a column that names it.)" if use in WRITES else ""
        raise ValueError(f"The option queue is missing: the queue's name.{column}")
    if use in WRITES:
        return _checked_rows(use, options, has_levels="levels" in values)
    if use is CLAIM:
        if options.claim is None:
            raise ValueError("The option claim is missing: the name of the claim.")
        return replace(options, stream_name=options.claim)
    return _checked_look(options, values) if use is LOOK else _checked_stream(options)


def _refusal(use: Use, names: list[str], rows: Mapping[str, Option]) -> str:
    """Return the sentence about options that a use does not take."""
    told = ", ".join(sorted(names))
    others = {name for name in names for row in OPTIONS if row.name.lower() == name.lower() and row.of & READS}
    if use is LOOK and (others or any(_TAKES.fullmatch(name.lower()) for name in names)):
        return (
            f"spark.read only looks at a queue, and {told} would take items out: every action reads again, and none"
            " says that its job succeeded. Use fdbqueue.spark.drain_to_table, readStream with"
            " trigger(availableNow=True), or fdbqueue.spark.claim for a batch program. A readStream needs a streamName."
        )
    if use is SINK and any(name.lower() in of(LOAD) for name in names):
        return (
            f"{told} is an option of the batch sink. A stream's batches are identified by its checkpoint; the option"
            " streamName names the stream."
        )
    if use is STREAM and any(
        name.lower() in ("startingoffsets", "endingoffsets", "startingposition") for name in names
    ):
        return f"There is no {told}: a stream begins at the head of its queue, and takes what is there."
    return f"There is no option {names[0]!r}. {_TOLD[use]} has {', '.join(row.name for row in rows.values())}."


def _checked_rows(use: Use, options: Options, *, has_levels: bool) -> Options:
    """Check the options of rows to write, and fill in defaults that depend on other options."""
    if options.value_column is None and options.codec not in RECORD_CODECS:
        options = replace(options, value_column="value")
    if options.session_column is not None and not has_levels:
        options = replace(options, levels=SESSION_LEVELS)
    if options.smart is not None and options.codec not in ("json", "msgpack"):
        raise ValueError(
            "The option smart needs codec=json or codec=msgpack, as the smart queue's messages are stored."
        )
    if options.smart is not None and options.layered:
        raise ValueError(
            "The option smart can't be combined with priorityColumn, sessionColumn, delayColumn and ttlColumn: the"
            " smart queue's own function decides about its messages. Put the values into the messages."
        )
    if options.sessions is not None and options.session_column is None:
        raise ValueError("The option sessions needs the option sessionColumn.")
    if options.sessions is not None and has_levels:
        raise ValueError("The option levels can't be combined with sessions: that function's Sessions have levels.")
    if has_levels and options.priority_column is options.session_column is None:
        raise ValueError("The option levels needs the option priorityColumn or sessionColumn.")
    if use is LOAD and options.exactly_once and options.job_id is None:
        raise ValueError(
            "The option jobId is missing. It identifies a job that is submitted again. Derive it from the input: the"
            " date or the files that it loads, or the version of a table. Without an id use delivery=atLeastOnce; then"
            " rows may be in the queue more than once."
        )
    return options


def _checked_look(options: Options, values: Mapping[str, str]) -> Options:
    if options.begin is not None and options.end is not None and options.end < options.begin:
        raise ValueError(f"The option to, {values['to']}, comes before the option from, {values['from']}.")
    if options.include_sessions and not (options.begin is options.end is None):
        raise ValueError("from and to name positions of the queue, and each session has its own: omit includeSessions.")
    return options


def _checked_stream(options: Options) -> Options:
    if options.stream_name is None:
        raise ValueError(
            "The option streamName is missing. It identifies the stream in the queue, so that a lost or a copied"
            " checkpoint is noticed. Give each query its own."
        )
    least, most = options.min_items_per_trigger, options.max_items_per_trigger
    if least > most:
        raise ValueError(f"The option minItemsPerTrigger, {least:,}, is over maxItemsPerTrigger, {most:,}.")
    return options


def read_use(given: Mapping[str, str]) -> Use:
    """Return what reads by these options. Spark does not say so when it asks for the schema."""
    names = {name.lower() for name in given}
    return STREAM if "streamname" in names else CLAIM if "claim" in names else LOOK


def url_of(given: str | None) -> str:
    """Return the database's URL, with an absolute path: executors have other folders than the driver.

    Raises:
        ValueError: there is none, it is empty, or it is ``memory:``. TypeError: it is no str.
    """
    if given is not None and not isinstance(given, str):
        raise TypeError(f"url is a str, not {type(given).__name__}: tasks open the database themselves.")
    url = os.environ.get("FDBQUEUE_URL") if given is None else _text("url", given)
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
        path, mark, query = rest.partition("?")
        return f"file:{_absolute(path)}{mark}{query}" if path else url
    if scheme == "fdb" and rest:
        return f"fdb:{_absolute(rest)}"
    return url


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def naming(queue: Name) -> dict[str, str]:
    """Return the option that names a queue, by the text of its name.

    Raises:
        TypeError: it is no queue's name. ValueError: the name is not valid.
    """
    return {"queue": queue_text(Layout(queue).prefix)}


def function_named(option: str, name: str, returns: type[T]) -> Callable[[Subspace], T]:
    """Return the function ``module:function`` that takes a queue's subspace.

    Raises:
        ValueError: there is none.
    """
    try:
        found: Callable[[Subspace], T] = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The option {option} is 'module:function', where executors can import it, and {name!r} is not: {error}."
        ) from error
    if not callable(found):
        raise ValueError(
            f"The option {option} names a function that returns a {returns.__name__}; {name!r} is not one."
        )
    return found
