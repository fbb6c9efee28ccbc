"""Processes that are killed while they write or read a blob; and how much memory they take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases
from tests.helpers.blobs import data_of, kept_keys
from tests.helpers.clock import Clock
from tests.helpers.faults import Dying, When
from tests.helpers.processes import Processes

SIZE = 4_000_000


def write_and_die(url: str, prefix: bytes, number: int, when: When) -> None:
    db = Dying(fdbqueue.open(url), number, when)
    with Blobs(Leases(Queue(Subspace(rawPrefix=prefix)))).write(db) as out:
        out.write(data_of(SIZE))


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_that_is_killed_leaves_the_whole_item_or_nothing(
    db: Any, url: str, space: Subspace, processes: Processes, when: str
) -> None:
    clock = Clock(0)
    leases = Leases(Queue(space))
    finished = False
    number = 0
    while not finished:
        process = processes.start(write_and_die, url, space.key(), number, when)
        process.join(600)
        finished = process.exitcode == 0
        assert finished or process.exitcode == -signal.SIGKILL
        number += 1
        lease = leases.lease(db)
        assert not finished or lease is not None
        if lease is not None:
            assert Blobs(leases).read(db, lease).read() == data_of(SIZE)
            leases.ack(db, lease)
        clock.now = 1e12
        assert Blobs(leases).check(db).ok, "an upload that was interrupted is no problem"
        Blobs(leases, clock=clock).sweep(db)
        assert kept_keys(db, leases.queue) == []
        assert Blobs(leases).check(db).ok
    assert number > 4


def read_and_die(url: str, prefix: bytes, began: Any) -> None:
    db = fdbqueue.open(url)
    leases = Leases(Queue(Subspace(rawPrefix=prefix)))
    lease = leases.lease(db, duration=1)
    assert lease is not None
    with Blobs(leases).read(db, lease) as data:
        data.read(1_000_000)
        began.set()
        signal.pause()


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
def test_an_item_of_a_killed_reader_returns_with_all_its_data(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    clock = Clock(4e9)
    leases = Leases(Queue(space), clock=clock)
    blobs = Blobs(leases)
    with blobs.write(db) as out:
        out.write(data_of(SIZE))
    began = processes.event()
    process = processes.start(read_and_die, url, space.key(), began)
    assert began.wait(60)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()

    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 2
    assert blobs.read(db, lease).read() == data_of(SIZE)
    leases.ack(db, lease)
    assert kept_keys(db, leases.queue) == []


MEMORY = """
import resource, sys
import fdbqueue
from fdbqueue.layers import Blobs, Leases
url, megabytes = sys.argv[1], int(sys.argv[2])
db = fdbqueue.open(url)
leases = Leases(fdbqueue.Queue(("memory", url)))
blobs = Blobs(leases)
piece = bytes(1_000_000)
for size in (20, megabytes):
    with blobs.write(db) as out:
        for _ in range(size):
            out.write(piece)
    with blobs.read(db, leases.lease(db)) as data:
        read = 0
        while part := data.read(1_000_000):
            read += len(part)
    assert read == size * 1_000_000
    print([line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")][0])
leases.queue.clear(db)
"""


@pytest.mark.slow
@pytest.mark.engines("file")
def test_memory_does_not_grow_with_the_size(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, f"file:{tmp_path / 'db'}?durability=relaxed", "200"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

    small, large = (int(line) for line in ran.stdout.split())
    assert large - small < 20_000, "in KiB: 180 MB more data take less than 20 MB more memory"
