"""The promise of gates: no more items run than their limits allow, and none waits beside a free slot."""

from __future__ import annotations

from fdbqueue.layers.oplog import Record
from fdbqueue.layers.sessions.session.records import name_of
from fdbqueue.lowlevel import fdb_tuple
from tests.chaos.kinds import GATES, Kind, gates_of
from tests.chaos.sessionpromises import OfSessions
from tests.chaos.sessionreplay import Pointed, SessionReplay, SessionStep

PACKED: dict[str, bytes] = {gate: fdb_tuple.pack((gate,)) for gate in GATES}


class WithinGates(OfSessions):
    name, says = "gates", "no item begins beyond the limit of a gate, and none waits beside a free slot"
    kinds = (Kind.gates,)

    def look(self, step: SessionStep, replay: SessionReplay) -> None:
        for before, after in step.pointers.values():
            if after is not None and _runs(after) and (before is None or not _same(before, after)):
                self._begun(step.record, after, replay)
        for gate, packed in PACKED.items():
            record, waiting = replay.gates.get(packed), replay.gated.get(packed)
            if waiting and (record is None or record.held < record.limit):
                self.broken(f"{len(waiting)} pointers wait at {gate!r}, which has a free slot", step.record)
            for pointer in (waiting or {}).values():
                if pointer.name not in replay.records:
                    self.broken(f"{name_of(pointer.name)!r} left its pointer behind at {gate!r}", step.record)

    def _begun(self, record: Record, after: Pointed, replay: SessionReplay) -> None:
        session = str(name_of(after.pointer.name))
        running = [
            name_of(one.pointer.name) for places in replay.pointers.values() for one in places.values() if _runs(one)
        ]
        self.tally["items begun"] += 1
        if running.count(session) > 1:
            self.broken(f"{session!r} has several items in progress", record)
        for gate in gates_of(session):
            stored = replay.gates.get(PACKED[gate])
            limit = 0 if stored is None else stored.limit
            of_gate = sum(gate in gates_of(str(one)) for one in running)
            self.tally["items begun at a full gate"] += of_gate == limit
            if of_gate > limit:
                self.broken(f"an item of {session!r} began as number {of_gate} at {gate!r} of limit {limit}", record)


def _runs(one: Pointed) -> bool:
    return bool(one.token and one.pointer.current)


def _same(before: Pointed, after: Pointed) -> bool:
    return before.token == after.token and before.pointer.current == after.pointer.current
