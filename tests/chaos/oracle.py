"""The oracle: replays the operation log against a plain model, beside what the callers were told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.layers.oplog import OperationLog
from fdbqueue.stored.layout import Layout
from tests.chaos.agentpromises import AsAnswered
from tests.chaos.blobpromises import WholeOrNotAtAll
from tests.chaos.claims import read_claims
from tests.chaos.composed import OneOwner, SerialDecision, ToldOnce, WithinCredit
from tests.chaos.gatepromises import WithinGates
from tests.chaos.history import Told
from tests.chaos.invariant import Invariant
from tests.chaos.itempromises import NothingLost, NothingMade, Order, ZeroOrOnce
from tests.chaos.kinds import WITH_SESSIONS
from tests.chaos.leasepromises import AckOrRedelivery, OneLease, Recount, Swept
from tests.chaos.operations import operations
from tests.chaos.operatorpromises import OperatorsOwn
from tests.chaos.replay import Replay
from tests.chaos.resultpromises import EndsAreTold
from tests.chaos.rules import Rules
from tests.chaos.sessionpromises import FairTurns, OneAtATime, SessionsLoseNothing
from tests.chaos.sessionreplay import SessionReplay
from tests.chaos.streampromises import StreamsLoseNothing

REBUILT = "log"
"""The name under which it is told that what is stored is not what the log says."""
INVARIANTS: tuple[type[Invariant], ...] = (
    NothingLost,
    NothingMade,
    OneLease,
    AckOrRedelivery,
    Order,
    SerialDecision,
    ToldOnce,
    ZeroOrOnce,
    Recount,
    Swept,
    WithinCredit,
    OneOwner,
    OneAtATime,
    FairTurns,
    WholeOrNotAtAll,
    EndsAreTold,
    SessionsLoseNothing,
    WithinGates,
    StreamsLoseNothing,
    AsAnswered,
    OperatorsOwn,
)


@dataclass(slots=True)
class Verdict:
    """What the oracle found."""

    records: int = 0
    """Transactions that changed the queue."""
    operations: int = 0
    """What these did to items (`tests.chaos.operations`), without the drain's."""
    drained: int = 0
    """Operations of the drain, after the faults."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls, by how they ended."""
    violations: dict[str, list[str]] = field(default_factory=dict)
    """By the promise's name."""
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    """By the promise's name, what there was to see."""

    def add(self, other: Verdict) -> None:
        """Take over what another round found."""
        self.records += other.records
        self.operations += other.operations
        self.drained += other.drained
        self.calls.update(other.calls)
        for name, found in other.violations.items():
            self.violations.setdefault(name, []).extend(found)
        for name, tally in other.tallies.items():
            self.tallies.setdefault(name, Counter()).update(tally)

    def count(self) -> int:
        """Return how many violations there are."""
        return sum(map(len, self.violations.values()))


def judge(db: Any, layout: Layout, log: OperationLog, calls: list[Told], rules: Rules) -> Verdict:
    """Replay the log of a queue that was drained, and judge what happened.

    Args:
        db: the database itself, without faults.
        layout: of the queue.
        log: of the queue.
        calls: of all processes.
        rules: of the round.
    """
    claims = read_claims(calls)
    invariants = [invariant(claims, rules) for invariant in INVARIANTS if rules.kind in invariant.kinds]
    replay = SessionReplay(layout) if rules.kind in WITH_SESSIONS else Replay(layout)
    verdict = Verdict()
    for record in log.records(db):
        step = replay.step(record)
        verdict.records += 1
        if record.by == "drain":
            verdict.drained += operations(step)
        else:
            verdict.operations += operations(step)
        for invariant in invariants:
            invariant.see(step, replay)
    for invariant in invariants:
        invariant.end(replay)
        verdict.violations[invariant.name] = invariant.violations
        verdict.tallies[invariant.name] = invariant.tally
    # Read around every interface of the queue, so that no bug can hide itself.
    rows = [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(layout.prefix)]
    verdict.violations[REBUILT] = replay.differences(rows)
    verdict.calls = Counter(told.outcome for told in calls)
    return verdict
