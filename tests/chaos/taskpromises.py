"""The promises of tasks: each call takes effect once, and so does each tick; unique calls and limits hold."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import pairwise
from typing import Any

import fdbqueue
from fdbqueue.engine import Subspace
from tests.chaos.history import OK, Told
from tests.chaos.oracle import Verdict
from tests.chaos.taskhands import TICK_S, TaskSpaces, app_of

TICK = "tick "


def judge_tasks(db: Any, space: Subspace, calls: list[Told]) -> Verdict:
    """Judge what the calls of a drained round did."""
    spaces = TaskSpaces(space)
    effects = {
        spaces.effects.unpack(row.key)[0]: int.from_bytes(row.value, "little")
        for row in db.get_range_startswith(spaces.effects.key())
    }
    noted = [str(spaces.broken.unpack(row.key)) for row in db.get_range_startswith(spaces.broken.key())]
    ticks = {name: times for name, times in effects.items() if name.startswith(TICK)}
    # A call that took effect is one operation, though it was enqueued, leased and acked.
    done = sum(effects.values())
    verdict = Verdict(records=done, operations=done, calls=Counter(told.outcome for told in calls))
    verdict.violations = {
        "calls": list(_of_calls(effects.keys() - ticks.keys(), effects, calls)),
        "ticks": list(_of_ticks(ticks)),
        "unique calls": noted,
        "limits": [problem for told in calls for problem in told.answer.get("broken", ())],
        "tasks check": [
            problem
            for lane in app_of(space, lambda: 0.0).lanes_of(None)
            for problem in fdbqueue.check(db, lane.queue).problems
        ],
    }
    verdict.tallies = {
        "calls": Counter({"effects": sum(effects.values()) - sum(ticks.values())}),
        "ticks": Counter({"ticks": len(ticks)}),
        "unique calls": Counter(f"is_new={told.answer['is_new']}" for told in calls if "is_new" in told.answer),
        "limits": Counter({"looks": sum("broken" in told.answer for told in calls)}),
    }
    return verdict


def _of_calls(done: set[str], effects: dict[str, int], calls: list[Told]) -> Any:
    """Yield what is wrong with the effects of calls: one if the enqueue was answered, at most one if it was not."""
    asked = {name: told for told in calls for name in told.asked.get("calls", ())}
    for name in done - asked.keys():
        yield f"{name} took effect, and nobody enqueued it"
    for name, told in asked.items():
        times = effects.get(name, 0)
        # A transaction that is repeated after an unknown outcome may find its own call, and answer that it is not new.
        least = int(told.outcome == OK and told.answer.get("is_new", True))
        if not least <= times <= 1:
            yield f"{name} ({told.verb}, {told.outcome}) took effect {times} times, and not {least} to 1"


def _of_ticks(ticks: dict[str, int]) -> Any:
    """Yield what is wrong with ticks: each is there once, and none between two of them is missing."""
    for name, times in ticks.items():
        if times != 1:
            yield f"{name} took effect {times} times"
    at = sorted(datetime.fromisoformat(name.removeprefix(TICK)) for name in ticks)
    for one, following in pairwise(at):
        if abs((following - one).total_seconds() - TICK_S) > 0.01:
            yield f"Between the ticks at {one} and {following} others are missing"
