"""The oracle notices what breaks a promise of sessions, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions
from fdbqueue.layers.oplog._oplog import calling
from tests.chaos.history import OK, History, read_histories, value_of
from tests.chaos.kinds import QUANTUM, Kind, log_of, queue_of
from tests.chaos.oracle import judge
from tests.chaos.rules import Rules
from tests.chaos.sessionhands import asked_of, told_of

pytestmark = pytest.mark.engines("memory")


class Worker:
    """A process with sessions, whose calls are logged, and in its history."""

    def __init__(self, db: Any, space: Subspace, folder: Path, by: str, **terms: Any) -> None:
        self.queue: Queue[bytes] = queue_of(space, Kind.sessions)
        self.sessions: Sessions[bytes] = Sessions(self.queue, consumer=by, **{"quantum": QUANTUM, **terms})
        self.db = log_of(space, Kind.sessions).of(db, by=by)
        self.history = History(folder, by)
        self._names = itertools.count()

    def enqueue(self, session: str, *, told_level: int = 1, **terms: Any) -> None:
        name = f"{self.history.by}/{next(self._names)}"
        asked = {"name": name, "count": 1, "size": 20, "headers": None, "sessions": [session], "level": told_level}
        number = self.history.begin("session enqueue", asked)
        with calling(f"session enqueue#{number}"):
            self.sessions.enqueue(self.db, value_of(name, 0, 20), session=session, **terms)
        self.history.end(number, OK, {"count": 1})

    def lease(self) -> Any:
        number = self.history.begin("session lease", {})
        with calling(f"session lease#{number}"):
            lease = self.sessions.lease(self.db)
        self.history.end(number, OK, told_of(lease))
        assert lease is not None
        return lease

    def next(self, lease: Any) -> Any:
        number = self.history.begin("session ack and next", asked_of(lease))
        with calling(f"session ack and next#{number}"):
            following = self.sessions.ack_and_next(self.db, lease)
        self.history.end(number, OK, told_of(following))
        return following


def broken(db: Any, space: Subspace, folder: Path) -> dict[str, list[str]]:
    log, layout = log_of(space, Kind.sessions), queue_of(space, Kind.sessions).layout
    verdict = judge(db, layout, log, read_histories(folder)[0], Rules(Kind.sessions, max_attempts=6))
    return {name: found for name, found in verdict.violations.items() if found}


def test_work_in_turns_breaks_nothing(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    for session in ("a", "b") * 5:
        worker.enqueue(session)
    worker.enqueue("a", told_level=0, level=0)
    left = 11
    while left:
        lease = worker.lease()
        while lease is not None:
            lease = worker.next(lease)
            left -= 1
    assert broken(db, space, tmp_path) == {}


def test_a_worker_that_ends_an_item_of_another_s_lease_breaks_i6(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker, thief = Worker(db, space, tmp_path, "ann"), Worker(db, space, tmp_path, "bob")
    worker.enqueue("a")
    thief.sessions.ack(thief.db, worker.lease())
    assert "did not ack its lease" in str(broken(db, space, tmp_path)["I6"])


def test_a_worker_that_stays_beyond_its_quantum_breaks_i7(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann", quantum=50)
    for session in ("a", "b", *"a" * (QUANTUM + 1)):
        worker.enqueue(session)
    lease = worker.lease()
    while lease is not None:
        lease = worker.next(lease)
    worker.next(worker.lease())
    assert "began one more item after" in str(broken(db, space, tmp_path)["I7"])


def test_an_item_at_another_level_than_its_caller_asked_for_is_noticed(
    db: Any, space: Subspace, tmp_path: Path
) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    worker.enqueue("a", told_level=0)
    worker.next(worker.lease())
    assert "at this level" in str(broken(db, space, tmp_path)["sessions"])


def test_a_pointer_that_is_gone_too_early_breaks_i6(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    worker.enqueue("a")
    layout = worker.sessions.line.layout
    tr = worker.db.create_transaction()
    tr.clear_range(layout.begin, layout.end)
    tr.commit().wait()
    assert "has items and no pointer" in str(broken(db, space, tmp_path)["I6"])
