"""Consumers that are killed at any point of a staged call strand nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.processes import Processes
from tests.helpers.staging import GRANT_S, PATIENCE_SECONDS, hurry, left_behind

pytestmark = pytest.mark.slow  # they wait


class Dying(FaultyDatabase):
    """Kills its process at a commit, before or after its effect."""

    def __init__(self, db: Any, number: int, when: str) -> None:
        super().__init__(db, self._die)
        self._number = number
        self._when = when

    def _die(self) -> Fault | None:
        if self.commits <= self._number:
            return None
        if self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return None


def consume_and_die(url: str, prefix: bytes, verb: str, number: int, when: str) -> None:
    """Consume until killed, and never ack."""
    hurry(pytest.MonkeyPatch())
    db = Dying(fdbqueue.open(url), number, when)
    staged = StagedQueue(Leases(Queue(Subspace(rawPrefix=prefix), codec="str")))
    while True:
        if verb == "dequeue":
            staged.dequeue(db, timeout=None)
        else:
            staged.lease(db, duration=GRANT_S, timeout=None)
        if when == "after" and db.commits > number:
            time.sleep(60)  # the end is near


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("verb", ["dequeue", "lease"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_consumers_killed_at_their_commits_strand_no_item_and_no_request(
    db: Any,
    url: str,
    space: Subspace,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    when: str,
) -> None:
    hurry(monkeypatch)
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    staged = StagedQueue(leases)
    victims = [processes.start(consume_and_die, url, space.key(), verb, number, when) for number in range(4)]
    amount = 40
    for n in range(amount):
        staged.enqueue(db, f"{n}")
    for victim in victims:
        victim.join(600)
        assert victim.exitcode == -signal.SIGKILL
    survived: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        item = staged.dequeue(db, timeout=4 * GRANT_S)
        if item is not None:
            survived.append(item.value)
        elif (stats := leases.stats(db)).available == stats.leased == stats.delayed == 0:
            break
        assert time.monotonic() < deadline, f"stranded: {leases.stats(db)}"
    assert len(survived) == len(set(survived))
    stats = leases.stats(db)
    assert stats.dequeued == stats.enqueued == amount
    if verb == "lease":
        assert sorted(map(int, survived)) == list(range(amount))
    else:  # each victim takes at most one item per commit with it
        assert len(survived) >= amount - sum(range(1, 5))
    grants = queue.layout.grants.key()
    assert [key for key in left_behind(queue, db) if not key.startswith(grants)] == []
    assert leases.check(db).ok
