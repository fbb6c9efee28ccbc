"""Spark takes items out of queues that other layers use: completions, groups, blobs, sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue import CodecError, Queue, StreamError
from fdbqueue.layers import Blobs, Groups, Leases, Results, Sessions
from fdbqueue.spark import claim, drain_to_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.engines("file", "cluster")]


def test_a_drain_ends_completions_and_groups_and_stops_before_a_blob(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    leases = Leases(Queue(queue_name, codec="str"))
    completion = Results(leases, keep=600).enqueue(db, "waited for")
    group = Groups(leases).open(db, "g")
    group.enqueue_many(db, ["a", "b"])
    group.close(db)
    with Blobs(leases).write(db, "with a blob") as file:
        file.write(bytes(1_200_000))
    given: dict[str, Any] = {"url": url, "queue": queue_name, "checkpoint": tmp_path / "c", "codec": "str"}

    with pytest.raises(Exception, match=r"bytes in a blob, which an ack would remove unread"):
        drain_to_table(spark, **given, path=tmp_path / "out")

    assert completion.wait(timeout=600) is None
    assert group.wait(timeout=600).done == 2
    lease = leases.lease(db)
    assert lease is not None
    assert len(Blobs(leases).read(db, lease).read()) == 1_200_000
    leases.ack(db, lease)
    drain_to_table(spark, **given, path=tmp_path / "out")
    assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ["a", "b", "waited for"]
    assert leases.check(db).ok


def test_the_ack_of_a_claim_ends_completions_and_a_blob_is_refused(
    db: Any, url: str, queue_name: str, spark_is_here: None
) -> None:
    leases = Leases(Queue(queue_name, codec="str"))
    completion = Results(leases, keep=600).enqueue(db, "x")
    one = claim(url=url, queue=queue_name, name="one")
    one.ack()
    assert completion.wait(timeout=600) is None
    with Blobs(leases).write(db, "with a blob") as file:
        file.write(bytes(1_200_000))
    with pytest.raises(CodecError, match="bytes in a blob"):
        claim(url=url, queue=queue_name, name="two")
    assert leases.queue.stats(db).available == 1


def test_what_takes_items_refuses_a_queue_with_sessions(
    spark: SparkSession, db: Any, url: str, queue_name: str, tmp_path: Path
) -> None:
    Sessions(Queue(queue_name, codec="str")).enqueue(db, "x", session="ann")
    with pytest.raises(StreamError, match="items in sessions"):
        claim(url=url, queue=queue_name, name="one")
    with pytest.raises(Exception, match="items in sessions"):
        drain_to_table(spark, url=url, queue=queue_name, checkpoint=tmp_path / "c", path=tmp_path / "out")
    with pytest.raises(Exception, match="items in sessions"):
        spark.read.format("fdbqueue").options(url=url, queue=queue_name, limit="5").load().collect()
