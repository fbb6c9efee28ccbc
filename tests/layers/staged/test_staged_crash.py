"""Consumers that are killed at any point of a staged dequeue strand nothing."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.faults import Dying, When
from tests.helpers.processes import Processes
from tests.helpers.staging import GRANT_S, PATIENCE_SECONDS, hurry, left_behind

pytestmark = pytest.mark.slow  # they wait


def consume_and_die(url: str, prefix: bytes, number: int, when: When) -> None:
    """Dequeue until killed."""
    hurry(pytest.MonkeyPatch())
    staged = StagedQueue(Queue(Subspace(rawPrefix=prefix), codec="str"))
    db = Dying(fdbqueue.open(url), number, when)
    while True:
        staged.dequeue(db, timeout=None)


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("when", ["before", "after"])
def test_consumers_killed_at_their_commits_strand_no_item_and_no_request(
    db: Any,
    url: str,
    space: Subspace,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    hurry(monkeypatch)
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    staged = StagedQueue(leases)
    victims = [processes.start(consume_and_die, url, space.key(), number, when) for number in range(4)]
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
    assert len(survived) >= amount - sum(range(1, 5))  # each victim takes at most one item per commit with it
    grants = queue.layout.grants.key()
    assert [key for key in left_behind(queue, db) if not key.startswith(grants)] == []
    assert leases.check(db).ok
