"""What a task reads of a stream's batch, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.base.position import Position
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.spark.options import STREAM, parse
from fdbqueue.spark.readers import SplitPartition, read_split
from fdbqueue.spark.schemas import stream_schema


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("columns", [None, ["position", "attempts"]], ids=["all columns", "no values"])
def test_items_of_every_kind_are_read_in_order(db: Any, url: str, queue_name: str, columns: list[str] | None) -> None:
    queue = Queue(queue_name, codec="str")
    leases = Leases(queue)
    positions: list[Position] = []
    expected: list[tuple[str, Any, int]] = []
    for number in range(140):
        value, headers = f"{number}", None
        if number % 50 == 49:
            value *= 50_000  # in chunks
        if number % 7 == 3:
            headers = {"n": f"{number}"}
        verb = leases.enqueue if number % 9 == 5 else queue.enqueue
        positions.append(verb(db, value, headers=headers))
        expected.append((value, headers and [("n", f"{number}")], 0))
    first = leases.lease(db)
    assert first is not None
    leases.nack(db, first)
    expected[0] = (*expected[0][:2], 1)
    batch = Stream(queue, "s").claim(
        db, Terms(epoch="e", batch=1, run="", items=1_000, size_bytes=1 << 40, at_least_splits=3)
    )
    options = parse(STREAM, {"url": url, "queue": queue_name, "streamName": "s", "codec": "str"})
    schema = stream_schema(options, headers=True)
    if columns is not None:
        schema = type(schema)([schema[name] for name in columns])
    rows: list[dict[str, Any]] = []
    for split in batch.splits:
        for page in read_split(options, schema, SplitPartition(1, "e", split)):
            rows += page.to_pylist()
    assert [row["position"] for row in rows] == [position.text for position in positions]
    assert [row["attempts"] for row in rows] == [attempts for _, _, attempts in expected]
    if columns is None:
        assert [(row["value"], row["headers"]) for row in rows] == [(value, headers) for value, headers, _ in expected]
        assert {row["queue"] for row in rows} == {queue_name}
