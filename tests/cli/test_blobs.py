"""Commands on a queue that has blobs."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from fdbqueue.cli import errors
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases
from fdbqueue.verbs.queue import Queue
from tests.cli.conftest import Run
from tests.helpers.blobs import write

pytestmark = pytest.mark.engines("file", "cluster")
DATA = os.urandom(1_500_000)


def test_commands_show_blobs_and_remove_no_unread_one(db: Any, space: Subspace, run: Run, name: str) -> None:
    leases = Leases(Queue(space))
    blobs = Blobs(leases)
    position = write(blobs, db, DATA)
    blobs.write(db).write(DATA)

    stats = msgspec.json.decode(run("stats", name).stdout)
    assert (stats["blobs"], stats["blob_bytes"]) == (1, len(DATA))
    assert (stats["uploads"], stats["overdue_uploads"]) == (1, 0)
    for command in (["peek", name, "-c", "bytes"], ["browse", name, "-c", "bytes"]):
        assert msgspec.json.decode(run(*command).stdout)["size_bytes"] == len(DATA)
    raw = run("peek", name, "-c", "bytes", "--raw")
    assert raw.exit_code == errors.VALUE
    assert "has 1,500,000 bytes in a blob, which this command does not read" in raw.stderr
    for more in ([], ["--all"]):
        taken = run("dequeue", name, "-c", "bytes", *more)
        assert taken.exit_code == errors.VALUE
        assert "which a dequeue would remove unread. It was left there" in taken.stderr

    leased = msgspec.json.decode(run("lease", name, "-c", "bytes").stdout)
    assert leased["value"]["size_bytes"] == len(DATA)
    assert blobs.read(db, position).read() == DATA
    assert run("check", name).exit_code == 0
    assert run("ack", name, leased["lease"]).exit_code == 0
    assert blobs.stats(db).blobs == 0


def test_a_dequeue_prints_the_items_in_front_of_a_blob_and_stops_there(
    db: Any, space: Subspace, run: Run, name: str
) -> None:
    leases = Leases(Queue(space, codec="json"))
    blobs = Blobs(leases)
    leases.enqueue_many(db, [1, 2])
    position = write(blobs, db, b"beside it", {"name": "film"})
    leases.enqueue(db, 4)
    taken = run("dequeue", name, "--all")

    assert taken.stdout == "1\n2\n"
    assert taken.exit_code == errors.VALUE
    assert "has 9 bytes in a blob" in taken.stderr
    assert blobs.read(db, position).read() == b"beside it"
    assert leases.stats(db).available == 2
    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 1
    assert blobs.check(db).ok
