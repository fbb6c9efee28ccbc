"""Every call that commits by itself, each of its commits answered by 1031: it is told, and took effect 0 or 1 times.

1031 (the transaction timed out) is not retried, and says nothing about the outcome: the caller is told, and has to
find out. What it must never find is an effect twice, a half of one, or a queue that no longer works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Lease, Leases, State
from fdbqueue.layers.staged import RelaxedQueue, StagedQueue
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase, When
from tests.helpers.staging import coordinating, left_behind
from tests.helpers.unanswered import let_threads_end

LATER_S = 61.0
"""After so long all leases, delays, requests and grants of these tests are over."""


@dataclass
class Scene:
    """A queue with items in several states."""

    space: Subspace
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.queue = Queue(self.space, codec="str")
        self.leases = Leases(self.queue, max_attempts=3, clock=self.clock)
        self.staged = StagedQueue(self.leases)
        self.held: list[Lease] = []

    def set(self, db: Any) -> None:
        """Enqueue, lease and kill some items, without faults."""
        self.queue.clear(db)
        self.queue.enqueue_many(db, [f"held {n}" for n in range(3)])
        self.held = self.leases.lease_many(db, limit=3, duration=30)
        self.queue.enqueue(db, "dead")
        [doomed] = self.leases.lease_many(db)
        self.leases.nack(db, doomed, last=True)
        self.queue.enqueue_many(db, ["a", "b", "c"])

    def state(self, db: Any) -> dict[str, list[tuple[str, int]]]:
        """Return the items of each state with their attempts, and the totals, when what ends by itself has ended."""
        self.clock.now += LATER_S
        while self.leases.reclaim(db).more:
            pass
        shown: dict[str, list[tuple[str, int]]] = {}
        for state in STATES:
            shown[state] = [(kept.value, kept.attempt) for kept in self.leases.browse(db, state=state)]
        stats = self.leases.stats(db)
        shown["totals"] = [("enqueued", stats.enqueued), ("dequeued", stats.dequeued), ("purged", stats.purged)]
        assert self.leases.check(db).ok
        return shown


STATES: tuple[State, ...] = ("available", "leased", "delayed", "dead")
Call = Callable[[Scene, Any], object]
CALLS: dict[str, Call] = {
    "Queue.enqueue": lambda scene, db: scene.queue.enqueue(db, "d"),
    "Queue.enqueue_many": lambda scene, db: scene.queue.enqueue_many(db, ["d", "e"]),
    "Queue.dequeue": lambda scene, db: scene.queue.dequeue(db),
    "Queue.dequeue_many": lambda scene, db: scene.queue.dequeue_many(db, limit=2),
    "RelaxedQueue.dequeue": lambda scene, db: RelaxedQueue(scene.leases, window=1).dequeue(db),
    "Leases.enqueue": lambda scene, db: scene.leases.enqueue(db, "d", delay=5, ttl=1_000),
    "Leases.lease": lambda scene, db: scene.leases.lease(db),
    "Leases.lease_many": lambda scene, db: scene.leases.lease_many(db, limit=2),
    "Leases.ack": lambda scene, db: scene.leases.ack(db, scene.held[0]),
    "Leases.ack_many": lambda scene, db: scene.leases.ack_many(db, scene.held),
    "Leases.nack": lambda scene, db: scene.leases.nack(db, scene.held[0], error="no"),
    "Leases.nack_many": lambda scene, db: scene.leases.nack_many(db, scene.held, error="no"),
    "Leases.snooze": lambda scene, db: scene.leases.snooze(db, scene.held[0], delay=5),
    "Leases.extend": lambda scene, db: scene.leases.extend(db, scene.held[0], duration=40),
    "Leases.reclaim": lambda scene, db: scene.leases.reclaim(db),
    "DeadLetters.redrive": lambda scene, db: scene.leases.dead.redrive(db),
    "DeadLetters.purge": lambda scene, db: scene.leases.dead.purge(db),
    "StagedQueue.enqueue": lambda scene, db: scene.staged.enqueue(db, "d"),
    "StagedQueue.dequeue": lambda scene, db: scene.staged.dequeue(db),
    "StagedQueue.dequeue_many": lambda scene, db: scene.staged.dequeue_many(db, limit=2),
    "StagedQueue.lease": lambda scene, db: scene.staged.lease(db),
    "StagedQueue.ack": lambda scene, db: scene.staged.ack(db, scene.held[0]),
}


GIVEN_BACK = {"Leases.lease", "Leases.lease_many"}
"""Calls that keep nothing of what a commit in doubt has taken."""
CASES = [(name, "alone") for name in CALLS] + [(name, "among others") for name in CALLS if name.startswith("Staged")]
"""Calls, and whether staged ones try to take directly, or register at once as if they had just met others."""


def outcome(db: Any, space: Subspace, call: Call, fault: tuple[int, When] | None) -> tuple[Any, int]:
    """Return the state after a call, which has to tell of a fault, and how many commits it made."""
    scene = Scene(space)
    scene.set(db)
    number, when = fault or (-1, "before")
    faulty = FaultyDatabase.failing_at(db, {number}, (when, 1031))
    if call is CALLS["Leases.reclaim"]:
        scene.clock.now += LATER_S
    if fault is None:
        call(scene, faulty)
    else:
        with pytest.raises(FDBError, match="1031"):
            call(scene, faulty)
        let_threads_end()
    state = scene.state(db)
    # It still works.
    scene.queue.enqueue(db, "last")
    assert scene.staged.dequeue_many(db, limit=100)[-1].value == "last"
    assert left_behind(scene.queue, db) == []
    return state, faulty.commits


@pytest.mark.parametrize(("name", "company"), CASES)
def test_a_timed_out_call_raises_and_took_effect_once_or_not_at_all(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, name: str, company: str
) -> None:
    if company == "among others":
        coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
    call = CALLS[name]
    untouched, _ = outcome(db, space, lambda scene, db: None, None)
    done, commits = outcome(db, space, call, None)
    assert commits >= 1
    for number in range(commits):
        for when in ("before", "after"):
            state, _ = outcome(db, space, call, (number, when))
            if when == "after" and number == commits - 1:
                assert state == (untouched if name in GIVEN_BACK else done)
            else:
                assert state in (untouched, done)
            if when == "before" and commits == 1:
                assert state == untouched
