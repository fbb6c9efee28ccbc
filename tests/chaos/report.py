"""A chaos run's report, as text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.chaos.lanes import FAILED
from tests.chaos.operations import MEANS
from tests.chaos.oracle import INVARIANTS, REBUILT
from tests.chaos.run import IDLE, MOST_TOLD, SAME, WOKEN, Report

OTHERS = {
    SAME: "both engines answer the same to the same program",
    IDLE: "an idle worker that is killed gets nothing; attempts are handlers that began",
    WOKEN: "who waits for an item, or for its end, is woken by it",
    REBUILT: "the log rebuilds every key that is stored",
    "check": "the queue's own check finds nothing",
    FAILED: "every run that was begun side by side with others comes to its end",
    "processes": "every process ends as it should",
    "calls": "each call of a task takes effect once, and not more often if its enqueue's outcome is unknown",
    "ticks": "each tick of a schedule is enqueued once, and none is missing",
    "unique calls": "no two equal unique calls wait or run at the same time",
    "limits": "no more calls run than a gate lets through",
    "tasks check": "the check of the tasks' queues finds nothing",
}


def lines(report: Report) -> Iterator[str]:
    """Yield a report's lines."""
    verdict = report.verdict
    where = f"{report.url}, {time.strftime('%Y-%m-%d')}, {report.seconds:.0f} s"
    yield f"seed {report.seed}, {where}, {report.rounds} rounds: {_counts(report.kinds)}"
    order = verdict.tallies.get("I5", Counter[str]())
    came, taken = order.get("items came", 0), order.get("items taken", 0)
    yield f"{came:,} items enqueued, {taken:,} taken, in rounds with one order"
    yield f"{verdict.operations:,} operations, and {verdict.drained:,} of the drains. {MEANS}"
    yield f"{verdict.records:,} transactions logged; calls: " + _counts(dict(verdict.calls))
    yield "faults that happened: " + _counts(dict(report.faults))
    for kind in report.never():
        yield f"NEVER HAPPENED, though asked for: {kind}"
    promises = {one.name: one.says for one in INVARIANTS} | OTHERS
    for name, says in promises.items():
        if name == SAME and not report.programs:
            yield f"{name}: not applicable: {says}: there is one engine here"
            continue
        if name not in report.verdict.violations:
            yield f"{name}: not applicable: {says}: no round of this run had that layer"
            continue
        yield from _promise(name, says, report)
    for folder in report.kept:
        yield f"kept; judge it again by: python -m tests.chaos.evidence {folder}"
    yield f"{verdict.count()} violations" + ("" if report.ok() else "; NOT OK")


def _promise(name: str, says: str, report: Report) -> Iterator[str]:
    found = report.verdict.violations.get(name, [])
    tally = report.verdict.tallies.get(name)
    seen = f" ({_counts(dict(tally))})" if tally else ""
    if name == SAME:
        seen = f" ({report.programs} programs)"
    yield f"{name}: {'BROKEN ' + format(len(found), ',') + ' times' if found else 'kept'}: {says}{seen}"
    yield from (f"    {one}" for one in found[:MOST_TOLD])


def _counts(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1]) if count)
