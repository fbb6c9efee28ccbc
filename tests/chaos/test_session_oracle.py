"""The oracle notices what breaks a promise of sessions, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Gate, Sessions
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.sessions.session.records import GateRecord, pack_gate_record, pack_name
from fdbqueue.lowlevel import Notes, pack, with_notes
from tests.chaos.gatepromises import PACKED
from tests.chaos.history import OK, History, read_histories, value_of
from tests.chaos.kinds import GATES, QUANTUM, Kind, gates_of, log_of, queue_of
from tests.chaos.oracle import judge
from tests.chaos.rules import Rules
from tests.chaos.sessionhands import asked_of, told_of

pytestmark = pytest.mark.engines("memory")


class Worker:
    """A process with sessions, whose calls are logged, and in its history."""

    def __init__(self, db: Any, space: Subspace, folder: Path, by: str, **terms: Any) -> None:
        self.queue: Queue[bytes] = queue_of(space, Kind.sessions)  # the same one in a round with gates
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

    def edit(self, lease: Any, verb: str) -> None:
        terms: dict[str, dict[str, Any]] = {"update": {"headers": {"n": 1}}, "reschedule": {"delay": 0}}
        number = self.history.begin("session edit", {})
        with calling(f"session edit#{number}"):
            getattr(self.sessions, verb)(self.db, lease.session, lease.position, **terms.get(verb, {}))
        self.history.end(number, OK, {})

    def do(self, items: int) -> None:
        """Work through as many items, turn by turn."""
        while items:
            lease = self.lease()
            while lease is not None:
                lease = self.next(lease)
                items -= 1


def broken(db: Any, space: Subspace, folder: Path, kind: Kind = Kind.sessions) -> dict[str, list[str]]:
    log, layout = log_of(space, kind), queue_of(space, kind).layout
    verdict = judge(db, layout, log, read_histories(folder)[0], Rules(kind, max_attempts=6))
    return {name: found for name, found in verdict.violations.items() if found}


def test_work_in_turns_breaks_nothing(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    for session in ("a", "b") * 5:
        worker.enqueue(session)
    worker.enqueue("a", told_level=0, level=0)
    worker.do(11)
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


@pytest.mark.parametrize("verb", ["cancel", "update", "reschedule"])
def test_an_edit_of_the_item_in_progress_breaks_nothing(db: Any, space: Subspace, tmp_path: Path, verb: str) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    for _ in range(3):
        worker.enqueue("a")
    lease = worker.lease()
    worker.edit(lease, verb)
    worker.do(2 if verb == "cancel" else 3)
    assert broken(db, space, tmp_path) == {}


def test_an_edit_that_leaves_the_item_in_progress_breaks_i6(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann")
    worker.enqueue("a")
    lease = worker.lease()
    layout = worker.sessions.line.session(pack_name("a")).layout
    key = layout.available.key(pack(lease.position))
    with calling("session edit#1"):
        tr = worker.db.create_transaction()
        tr.set(key, with_notes(bytes(tr[key]), Notes(error="It was updated.")))
        tr.commit().wait()
    worker.next(lease)
    assert "was edited, and is still in progress" in str(broken(db, space, tmp_path)["I6"])


def gates(session: str) -> list[Gate]:
    return [Gate(gate, GATES[gate]) for gate in gates_of(session)]


def test_work_within_gates_breaks_nothing(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann", gates=gates)
    for number in (0, 4, 8, 2, 6, 10, 0, 4):
        worker.enqueue(f"session {number}")
    worker.sessions.set_limit(worker.db, "tenant 0", 2)
    worker.do(8)
    assert broken(db, space, tmp_path, Kind.gates) == {}


def test_an_item_that_begins_beyond_the_limit_of_its_gate_is_noticed(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker, other = Worker(db, space, tmp_path, "ann", gates=gates), Worker(db, space, tmp_path, "bob")
    for number in (0, 4):
        worker.enqueue(f"session {number}")
    other.enqueue("session 8")  # it takes no slot
    leases = [worker.lease() for _ in range(3)]
    for lease in leases:
        assert worker.next(lease) is None
    assert "as number 3 at 'user 0' of limit 2" in str(broken(db, space, tmp_path, Kind.gates)["gates"])


def test_a_session_that_waits_beside_a_free_slot_is_noticed(db: Any, space: Subspace, tmp_path: Path) -> None:
    worker = Worker(db, space, tmp_path, "ann", gates=gates)
    for number in (0, 4, 8):
        worker.enqueue(f"session {number}")
    key = worker.sessions.line.keys.gate(PACKED["user 0"])
    tr = worker.db.create_transaction()
    tr.set(key, pack_gate_record(GateRecord(limit=3, held=2, default=2)))
    tr.commit().wait()
    assert "which has a free slot" in str(broken(db, space, tmp_path, Kind.gates)["gates"])
