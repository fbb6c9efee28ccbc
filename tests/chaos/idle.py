"""Idle workers are killed, then there is work: attempts are counted against the handlers that really began."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.optional import members_of
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.processes import Processes, kill_9
from tests.helpers.staging import wait_until

WORKERS = 4
MOST_ATTEMPTS = 2
SOON_SECONDS = 20.0
"""Far more than it takes to pass by the requests of all dead workers, on a machine that is busy."""
FINE, POISON = "fine", "poison"


def leases_of(space: Subspace) -> Leases[str]:
    return Leases(Queue(space, codec="str"), max_attempts=MOST_ATTEMPTS)


def work(url: str, prefix: bytes, begun: str, up: Any) -> None:
    """Write down each item in hand, and die of the poisoned one."""
    db = fdbqueue.open(url)
    staged = StagedQueue(leases_of(Subspace(rawPrefix=prefix)))
    log = os.open(begun, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    up.put(None)
    while True:
        lease = staged.lease(db, timeout=None, duration=1.0)
        if lease is not None:
            os.write(log, f"{lease.value}\n".encode())
            if lease.value == POISON:
                os.kill(os.getpid(), signal.SIGKILL)
            staged.ack(db, lease)


def counted_wrongly(db: Any, url: str, space: Subspace) -> list[str]:
    """Kill idle workers and enqueue; then let live workers die of an item. Say what was counted wrongly, or late."""
    leases = leases_of(space)
    found = []
    try:
        with Processes() as processes, tempfile.TemporaryDirectory() as folder:
            found += _kill_idle(db, url, space, leases, processes, Path(folder) / "idle")
            found += _poison(db, url, space, leases, processes, Path(folder) / "poisoned")
    finally:
        leases.queue.clear(db)
    return found


def _start(db: Any, url: str, space: Subspace, leases: Leases, processes: Processes, begun: Path) -> list[Any]:
    staged = StagedQueue(leases)
    up = processes.queue()
    workers = [processes.start(work, url, space.key(), str(begun), up) for _ in range(WORKERS)]
    for _ in workers:
        up.get(timeout=120)
    wait_until(lambda: staged.stats(db).requests == WORKERS)
    time.sleep(0.2)  # the watches are set right after the requests
    return workers


def _kill_idle(db: Any, url: str, space: Subspace, leases: Leases, processes: Processes, begun: Path) -> list[str]:
    for worker in _start(db, url, space, leases, processes, begun):
        kill_9(worker)
    values = [f"item {number}" for number in range(WORKERS + 1)]  # one more than they could get
    leases.enqueue_many(db, values)
    staged = StagedQueue(leases)
    began = time.monotonic()
    got: list[Lease[str]] = []
    while len(got) < len(values) and (lease := staged.lease(db, timeout=2 * SOON_SECONDS, duration=60)) is not None:
        got.append(lease)
        staged.ack(db, lease)
    took = time.monotonic() - began
    found = [f"{one.value} was at its attempt {one.attempt}, and no worker had it" for one in got if one.attempt != 1]
    if sorted(one.value for one in got) != values:
        found.append(f"of {values}, {[one.value for one in got]} came: {leases.stats(db)}")
    if members_of(db).own_id() and [one.value for one in got] != values:
        found.append(f"dead workers were granted items, which came late: {[one.value for one in got]}")
    if took > SOON_SECONDS:
        found.append(f"killed idle workers made the items {took:.1f} s late")
    if begun.exists() and begun.read_text():
        found.append("a worker that was killed while it was idle began an item")
    return found


def _poison(db: Any, url: str, space: Subspace, leases: Leases, processes: Processes, begun: Path) -> list[str]:
    _start(db, url, space, leases, processes, begun)
    leases.enqueue_many(db, [FINE, POISON, f"{FINE} too"])

    def over() -> bool:
        leases.reclaim(db)
        return leases.stats(db).dead == 1

    wait_until(over)
    times = Counter(begun.read_text().split("\n"))[POISON]
    # On a cluster the first attempt may not count, if its process died before it could tell.
    if times not in ((MOST_ATTEMPTS,) if members_of(db).own_id() else (MOST_ATTEMPTS, MOST_ATTEMPTS + 1)):
        return [f"{times} handlers began an item that died after {MOST_ATTEMPTS} attempts"]
    return []
