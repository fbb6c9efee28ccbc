"""Look whether a database and its queues are well: the troubles of the queues, and how long a commit takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fdbqueue import __version__
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import behind
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.observe.figures import Wanted, find_wanted, read_these
from fdbqueue.observe.judging import Limits
from fdbqueue.reads.trouble import Trouble, Troubles, worst_first
from fdbqueue.stored.items import BLOB_FORMAT_VERSION
from fdbqueue.stored.layout import CATALOGUE

__all__ = ["HealthReport", "Limits", "check_health"]

ROUNDS = 3
"""How many commits are measured."""


@dataclass(slots=True)
class HealthReport:
    """How a database is."""

    commit_s: float = 0.0
    """The median time of a commit."""
    queues: int = 0
    """How many queues were read."""
    oldest_age_s: float | None = None
    """The age of the oldest available item."""
    oldest_queue: str = ""
    """The queue that has it."""
    ahead_s: float = 0.0
    """By how many seconds the time of an item is ahead of this clock: the clocks of two machines differ by that."""
    troubles: Troubles = field(default_factory=Troubles)
    """What is wrong, the worst first: the list of `fdbqueue.troubles`, and a slow commit."""
    unmatched: list[str] = field(default_factory=list)
    """Sentences about patterns that fit no queue."""

    @property
    def problems(self) -> list[str]:
        """What is wrong, as sentences."""
        return self.unmatched + [one.sentence for one in self.troubles if one.severity == "problem"]

    @property
    def warnings(self) -> dict[str, list[str]]:
        """What is worth a look though nothing is wrong, by queue: warnings and notes."""
        found: dict[str, list[str]] = {}
        for one in self.troubles:
            if one.severity != "problem":
                found.setdefault(one.queue, []).append(one.text)
        return found

    @property
    def stuck(self) -> dict[str, int]:
        """Leases that have expired and that nobody ends, by queue."""
        return {one.queue: one.many for one in self._problems("expired_leases")}

    @property
    def unreadable(self) -> dict[str, str]:
        """What can't be read, by queue."""
        return {one.queue: one.text for one in self._problems("unreadable", "newer_format")}

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def _problems(self, *kinds: str) -> list[Trouble]:
        return [one for one in self.troubles if one.kind in kinds and one.severity == "problem"]

    def record(self) -> dict[str, Any]:
        """Return the report as a JSON object has it."""
        return {
            "ok": self.ok,
            "troubles": [one.record() for one in self.troubles],
            "problems": self.problems,
            "commit_s": round(self.commit_s, 6),
            "ahead_s": round(self.ahead_s, 3),
            "queues": self.queues,
            "oldest_age_s": None if self.oldest_age_s is None else round(self.oldest_age_s, 3),
            "oldest_queue": self.oldest_queue,
            "stuck_leases": self.stuck,
            "unreadable": self.unreadable,
            "warnings": self.warnings,
            "version": __version__,
            "format_version": BLOB_FORMAT_VERSION,
        }


def check_health(
    db: Database, *, wanted: Wanted | None = None, limits: Limits | None = None, clock: Callable[[], float] = time.time
) -> HealthReport:
    """Look whether a database and its registered queues are well.

    Args:
        db: a database.
        wanted: which queues to look at; None: all.
        limits: what still counts as well.
        clock: seconds since 1970.

    Raises:
        FDBError: the database can't be reached.

    *Conflicts:* none. *Cost:* three commits that write nothing, and the reads of `fdbqueue.troubles`.
    """
    limits, wanted, names = limits or Limits(), wanted or Wanted(), list[str]()

    def is_wanted(queue: str) -> bool:
        names.append(queue)
        return wanted(queue)

    report = HealthReport(commit_s=sorted(_commit_seconds(db) for _ in range(ROUNDS))[ROUNDS // 2])
    found = _slow_commit(report, limits)
    for one in read_these(db, find_wanted(db, is_wanted), clock=clock, limits=limits):
        report.queues += 1
        report.ahead_s = max(report.ahead_s, one.ahead_s)
        if one.oldest_age_s is not None and one.oldest_age_s > (report.oldest_age_s or -1.0):
            report.oldest_age_s, report.oldest_queue = one.oldest_age_s, one.queue
        found += one.troubles
    report.troubles, report.unmatched = worst_first(found), wanted.unmatched(names)
    return report


def _slow_commit(report: HealthReport, limits: Limits) -> list[Trouble]:
    if report.commit_s <= limits.commit_s:
        return []
    text = f"A commit takes {report.commit_s:.2f} s, more than {limits.commit_s:g} s."
    return [Trouble("slow_commit", "problem", "", text, command="fdbqueue health", method="check_health(db)")]


def _commit_seconds(db: Database) -> float:
    """Return how long a commit takes. It writes nothing: it only says that it conflicts with a key that nobody has."""
    key = behind(CATALOGUE) + os.urandom(8)

    async def body(tr: Transaction) -> None:
        tr.add_write_conflict_key(key)

    began = time.perf_counter()
    run(attempts(db, body))
    return time.perf_counter() - began
