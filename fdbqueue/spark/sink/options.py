"""The options of a stream into queues. They are those of the batch sink (`options.py`), without the job's identity.

| option | default | meaning |
| --- | --- | --- |
| ``url``, ``queue``, ``queueKey``, ``queueColumn``, ``codec``, ``valueColumn``, ``headersColumn``, ``sessionColumn``,
  ``sessions``, ``priorityColumn``, ``levels``, ``delayColumn``, ``ttlColumn``, ``smart``, ``batchRows`` | | as for the
  batch sink |
| ``streamName`` | the query's id | identifies the stream in the queue, so that a lost checkpoint is noticed |
| ``onLostCheckpoint`` | ``fail`` | a new checkpoint meets the stream's record: ``fail`` or ``continue`` |
| ``staging`` | ``always`` | which batches are stored aside first: ``always``, or ``repeated`` ones only (`atonce.py`) |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from fdbqueue.spark.batch.options import AT_LEAST_ONCE, Options, parse
from fdbqueue.spark.optionvalues import not_empty, one_of
from fdbqueue.spark.sink.staging import Lost

_OWN = ("streamName", "onLostCheckpoint", "staging")
_SPARKS = ("checkpointlocation", "queryname", "path")
"""Options that Spark adds itself."""
_JOBS = ("jobid", "delivery", "partitions")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options."""

    rows: Options
    """How the rows are written."""
    stream: str | None
    lost: Lost
    at_once: bool = False
    """Whether tasks write to the queue at once, unless their batch is a repeated one."""


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """Parse the given options.

    Raises:
        ValueError: an option is unknown, missing or not valid.
    """
    own = {name.lower(): name for name in _OWN}
    values = {own[name.lower()]: value for name, value in given.items() if name.lower() in own}
    jobs = [name for name in given if name.lower() in _JOBS]
    if jobs:
        raise ValueError(
            f"{', '.join(jobs)} is an option of the batch sink. A stream's batches are identified by its checkpoint;"
            " the option streamName names the stream."
        )
    rest = {name: value for name, value in given.items() if name.lower() not in (*own, *_SPARKS)}
    return SinkOptions(
        parse({**rest, "delivery": AT_LEAST_ONCE}),
        not_empty("streamName", values.get("streamName")),
        cast(Lost, one_of("onLostCheckpoint", values.get("onLostCheckpoint", "fail"), ("fail", "continue"))),
        one_of("staging", values.get("staging", "always"), ("always", "repeated")) == "repeated",
    )
