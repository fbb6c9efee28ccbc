"""The options of a look at a queue and of a stream out of one, checked before anything runs.

| option of both | default | meaning |
| --- | --- | --- |
| ``url`` | ``FDBQUEUE_URL`` | the database, as for the sink (`options.py`) |
| ``queue``, ``queueKey`` | required | the queue's name, or the prefix of its subspace in hex |
| ``codec`` | ``bytes`` | ``bytes`` makes ``value`` binary; ``str``, ``json``, ``msgpack`` and ``tuple`` make it text,
  the last two as JSON |
| ``onBadItem`` | ``fail`` | an item that does not decode: ``fail``, ``null``, and for streams ``dead`` |
| ``minPartitions`` | 1 | at least so many partitions, if there are enough items |

| option of a look | default | meaning |
| --- | --- | --- |
| ``states`` | all | some of ``available``, ``leased``, ``delayed``, ``dead``, ``claimed``, with commas between |
| ``from`` | the first | the first position to read |
| ``to`` | no end | the position to stop before |
| ``limit`` | none | how many items; then one partition reads them |
| ``includeSessions`` | ``false`` | whether items in sessions are shown too, with a column ``session`` |

| option of a stream | default | meaning |
| --- | --- | --- |
| ``streamName`` | required | the stream; one query may use it |
| ``maxItemsPerTrigger`` | 10000 | how many items a batch has at most |
| ``maxBytesPerTrigger`` | 8000000 | about how many bytes of payload a batch has at most; the first item always passes |
| ``minItemsPerTrigger`` | 1 | wait for so many items |
| ``maxTriggerDelay`` | ``15m`` | but no longer than this |
| ``maxItemsPerPartition`` | 5000 | about how many items a task has at most |
| ``includeHeaders`` | ``false`` | whether there is a column ``headers`` |
| ``failOnDataLoss`` | ``true`` | whether a batch whose items are gone is an error; otherwise it is empty |
| ``onLostCheckpoint`` | ``fail`` | what a new checkpoint does with the open batch of a lost one: ``fail``,
  ``redeliver`` or ``drop`` |
| ``onPaused`` | none | while the queue is paused: ``wait``, or ``fail``. Without it a query that ends, as with
  availableNow, fails, and one that runs on waits |
| ``maxAttempts`` | none | the ``max_attempts`` of other consumers, whose expired leases the stream gives back |
| ``limit`` | none | with availableNow: how many new items a run takes; without it, it is refused |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fdbqueue.base.position import Position
from fdbqueue.spark.optionvalues import (
    CODECS,
    boolean,
    choice,
    database,
    duration,
    flag,
    known,
    layout_of,
    name_of,
    names_of,
    not_empty,
    one_of,
    option,
    queue_of,
    values_of,
    whole,
)
from fdbqueue.stored.layout import Layout, pack
from fdbqueue.stored.states import ALL_STATES

FAIL, NULL, DEAD, WAIT = "fail", "null", "dead", "wait"


def _states(name: str, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ALL_STATES
    chosen = {one_of(name, one.strip(), ALL_STATES) for one in value.split(",")}
    return tuple(state for state in ALL_STATES if state in chosen)


def _position(name: str, value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        return pack(Position.parse(value))
    except ValueError as error:
        raise ValueError(f"The option {name} is a position, as the column of that name shows it: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a look and a stream have in common."""

    url: str = option("url", database, required=True)
    queue: str | bytes = option("queue queueKey", None, required=True)
    codec: str = option("codec", choice("bytes", *CODECS))
    on_bad: str = option("onBadItem", choice(FAIL, FAIL, NULL))
    min_partitions: int = option("minPartitions", whole(1, 100_000))

    def layout(self) -> Layout:
        """Return the keys of the queue."""
        return layout_of(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions(ReadOptions):
    """The parsed options of a look."""

    states: tuple[str, ...] = option("states", _states)
    begin: bytes | None = option("from", _position)
    """The packed position to begin with; None: the first."""
    end: bytes | None = option("to", _position)
    """The packed position to stop before; None: no end."""
    limit: int | None = option("limit", whole())
    sessions: bool = option("includeSessions", flag(False))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(ReadOptions):
    """The parsed options of a stream."""

    stream: str = option("streamName", not_empty, required=True)
    on_bad: str = option("onBadItem", choice(FAIL, FAIL, NULL, DEAD))
    max_items: int = option("maxItemsPerTrigger", whole(10_000))
    max_bytes: int = option("maxBytesPerTrigger", whole(8_000_000))
    min_items: int = option("minItemsPerTrigger", whole(1))
    max_delay: float = option("maxTriggerDelay", duration(900.0))
    split_items: int = option("maxItemsPerPartition", whole(5_000))
    headers: bool = option("includeHeaders", flag(False))
    fail_on_data_loss: bool = option("failOnDataLoss", flag(True))
    on_lost: str = option("onLostCheckpoint", choice(FAIL, FAIL, "redeliver", "drop"))
    on_paused: str | None = option("onPaused", choice(None, FAIL, WAIT))
    """``fail`` or ``wait``; None: a query that ends fails, and one that runs on waits."""
    max_attempts: int | None = option("maxAttempts", whole())
    limit: int | None = option("limit", whole())


_SHARED = names_of(ReadOptions)
LOOK_NAMES = names_of(LookOptions)
STREAM_NAMES = names_of(StreamOptions)
_CONSUMING = {name.lower() for name in STREAM_NAMES} - {name.lower() for name in LOOK_NAMES}
_CONSUMING |= {"consume", "ack", "dequeue", "delete", "remove", "take", "lease"}


def is_stream(given: Mapping[str, str]) -> bool:
    """Return whether the options are a stream's. Spark does not say so when it asks for the schema."""
    return any(name.lower() == "streamname" for name in given)


def is_claim(given: Mapping[str, str]) -> bool:
    """Return whether the options are those of a named claim (`claims.py`)."""
    return any(name.lower() == "claim" for name in given)


def parse_claim(given: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a named claim's DataFrame.

    Raises:
        ValueError: an option is unknown, missing or not valid.
    """
    headers = name_of(StreamOptions, "headers")
    values = known(given, (*_SHARED, headers, "claim"), "A claim's DataFrame")
    return StreamOptions(
        **values_of(ReadOptions, values),
        queue=queue_of(values),
        stream=not_empty("claim", values.get("claim")) or "",
        headers=boolean(headers, values.get(headers), False),
    )


def parse_look(given: Mapping[str, str]) -> LookOptions:
    """Parse the options of a look.

    Raises:
        ValueError: an option is unknown, missing or not valid; or it would consume items.
    """
    consuming = sorted(name for name in given if name.lower() in _CONSUMING)
    if consuming:
        raise ValueError(
            f"spark.read only looks at a queue, and {', '.join(consuming)} would take items out: every action reads"
            " again, and none says that its job succeeded. Use fdbqueue.spark.drain_to_table, readStream with"
            " trigger(availableNow=True), or fdbqueue.spark.claim for a batch program. A readStream needs a streamName."
        )
    values = known(given, LOOK_NAMES, "A look at a queue")
    options = LookOptions(**values_of(LookOptions, values), queue=queue_of(values))
    begin, end = options.begin, options.end
    if begin is not None and end is not None and end < begin:
        raise ValueError(f"The option to, {values['to']}, comes before the option from, {values['from']}.")
    if options.sessions and not (begin is end is None):
        raise ValueError("from and to name positions of the queue, and each session has its own: omit includeSessions.")
    return options


def parse_stream(given: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream.

    Raises:
        ValueError: an option is unknown, missing or not valid.
    """
    refused = [name for name in given if name.lower() in ("startingoffsets", "endingoffsets", "startingposition")]
    if refused:
        raise ValueError(
            f"There is no {refused[0]}: a stream begins at the head of its queue, and takes what is there."
        )
    values = known(given, STREAM_NAMES, "A stream out of a queue")
    options = StreamOptions(**values_of(StreamOptions, values), queue=queue_of(values))
    if options.stream is None:
        raise ValueError(
            "The option streamName is missing. It identifies the stream in the queue, so that a lost or a copied"
            " checkpoint is noticed. Give each query its own."
        )
    if options.min_items > options.max_items:
        raise ValueError(
            f"The option minItemsPerTrigger, {options.min_items:,}, is over maxItemsPerTrigger, {options.max_items:,}."
        )
    return options
