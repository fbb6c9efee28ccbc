"""An enqueue in a transaction that cannot read everything any more, since it writes versionstamped keys."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue


def write_log(tr: Any, space: Subspace) -> None:
    """Write a key with a versionstamp, as a log does."""
    prefix = space["log"].key()
    tr.set_versionstamped_key(prefix + b"\xff" * 10 + struct.pack("<I", len(prefix)), b"")


@pytest.mark.parametrize("had", ["nothing", "items", "items that were leased"])
def test_a_transaction_that_has_written_a_log_in_front_of_an_empty_queue_enqueues_there(
    db: Any, space: Subspace, had: str
) -> None:
    queue = Queue(space["orders"])
    leases = Leases(queue)
    if had == "items":
        queue.enqueue(db, b"gone")
        queue.dequeue(db)
    elif had == "items that were leased":
        queue.enqueue(db, b"gone")
        leases.ack_many(db, leases.lease_many(db))
    for enqueue in (queue.enqueue, leases.enqueue):
        tr = db.create_transaction()
        write_log(tr, space)
        enqueue(tr, b"x")
        enqueue(tr, b"y")
        tr.commit().wait()
        assert [item.value for item in queue.dequeue_many(db)] == [b"x", b"y"]


def test_so_does_one_into_a_queue_with_an_order(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space["orders"]), levels=3)
    tr = db.create_transaction()
    write_log(tr, space)
    jobs.enqueue(tr, b"x", priority=1)
    tr.commit().wait()
    assert [item.value for item in jobs.browse(db)] == [b"x"]
