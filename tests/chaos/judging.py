"""Judge a drained round: by the oracle, and by the queue's own check."""

from __future__ import annotations

from typing import Any

from fdbqueue.engine import Subspace
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.chaos.history import Told
from tests.chaos.kinds import WITH_SESSIONS, Kind, credit_of, log_of, most_attempts, queue_of
from tests.chaos.oracle import Verdict, judge
from tests.chaos.rules import Rules
from tests.chaos.sessionhands import check_of_sessions
from tests.chaos.taskpromises import judge_tasks


def judged(db: Any, space: Subspace, kind: Kind, calls: list[Told]) -> Verdict:
    """Return what is found in a round that was drained.

    Args:
        db: the database itself, without faults.
        space: where the round wrote.
        kind: of the round.
        calls: of all processes.
    """
    if kind is Kind.tasks:
        verdict = judge_tasks(db, space, calls)
    else:
        rules = Rules(kind, most_attempts(kind))
        verdict = judge(db, queue_of(space, kind).layout, log_of(space, kind), calls, rules)
    verdict.violations["check"] = _checked(db, space, kind)
    return verdict


def _checked(db: Any, space: Subspace, kind: Kind) -> list[str]:
    queue = queue_of(space, kind)
    if kind in WITH_SESSIONS:
        return check_of_sessions(db, queue)
    problems = [*StagedQueue(queue).check(db).problems]
    if credit_of(kind):
        problems += Subscriptions(queue).check(db).problems
    if kind is Kind.smart:
        problems += SmartQueue(queue).check(db).problems
    return problems
