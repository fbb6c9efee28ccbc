"""The options of a stream into queues. They are those of the batch sink (`options.py`), without the job's identity.

| option | default | meaning |
| --- | --- | --- |
| ``url``, ``queue``, ``queueKey``, ``queueColumn``, ``codec``, ``valueColumn``, ``headersColumn``, ``sessionColumn``,
  ``sessions``, ``priorityColumn``, ``levels``, ``delayColumn``, ``ttlColumn``, ``smart``, ``batchRows`` | | as for the
  batch sink |
| ``streamName`` | the query's id | identifies the stream in the queue, so that a lost checkpoint is noticed |
| ``onLostCheckpoint`` | ``fail`` | a new checkpoint meets the stream's record: ``fail`` or ``continue`` |
| ``staging`` | ``always`` | which batches are stored aside first: ``always``, or ``repeated`` ones (`at_once.py`) |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fdbqueue.spark.batch.options import AT_LEAST_ONCE, BatchOptions, parse
from fdbqueue.spark.optionvalues import choice, name_of, names_of, not_empty, option, values_of
from fdbqueue.spark.sink.staging import Lost

_SPARKS = ("checkpointlocation", "queryname", "path")
"""Options that Spark adds itself."""
_JOBS = tuple(name_of(BatchOptions, one).lower() for one in ("job_id", "delivery", "partitions"))


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options."""

    rows: BatchOptions
    """How the rows are written."""
    stream: str | None = option("streamName", not_empty)
    lost: Lost = option("onLostCheckpoint", choice("fail", "fail", "continue"))  # noqa: RUF009  it is a field
    staging: str = option("staging", choice("always", "always", "repeated"))

    @property
    def at_once(self) -> bool:
        """Whether tasks write to the queue at once, unless their batch is a repeated one."""
        return self.staging == "repeated"


_OWN = names_of(SinkOptions)


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
    return SinkOptions(parse({**rest, "delivery": AT_LEAST_ONCE}), **values_of(SinkOptions, values))
