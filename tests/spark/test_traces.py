"""A trace goes through Spark: out of one queue and into another, in batches and in streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases
from tests.observe.conftest import Heard
from tests.observe.test_telemetry import ids, linked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def heard() -> Iterator[Heard]:
    found = Heard()
    found.instrument()
    yield found
    found.close()


def nothing(lease: Lease) -> None:
    """Do nothing."""


@pytest.mark.spark
@pytest.mark.engines("file")
def test_through_spark_out_of_one_queue_and_into_another(
    spark: SparkSession, db: Any, url: str, space: Subspace, heard: Heard, tmp_path: Path
) -> None:
    """A job reads a queue, and writes into a second one. A stream goes from that into a third one."""
    first, _, third = (Leases(Queue(space[name], codec="str")) for name in ("first", "second", "third"))
    with heard.tracer.start_as_current_span("request"):
        for value in ("a", "b"):
            first.enqueue(db, value)
    keys = {name: space[name].key().hex() for name in ("first", "second", "third")}
    own = {"url": url, "codec": "str"}
    seen = spark.read.format("fdbqueue").options(**own, queueKey=keys["first"]).load()
    into = {**own, "valueColumn": "value", "headersColumn": "headers"}
    rows = seen.select("value", "headers")
    rows.write.format("fdbqueue").mode("append").options(**into, queueKey=keys["second"], jobId="copy").save()
    source = spark.readStream.format("fdbqueue").options(**own, queueKey=keys["second"], streamName="s")
    stream = source.option("includeHeaders", "true").load().select("value", "headers").writeStream.format("fdbqueue")
    stream.options(**into, queueKey=keys["third"], streamName="t", checkpointLocation=str(tmp_path / "c"))
    stream.trigger(availableNow=True).start().awaitTermination()
    Consumer(third, nothing).drain(db)
    sent, processed = heard.spans("enqueue "), heard.spans("process")
    assert sorted(linked(span) for span in processed) == sorted([ids(span)] for span in sent)
    assert {ids(span)[0] for span in processed} == {ids(heard.span("request"))[0]}
