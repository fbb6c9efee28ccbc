"""Look whether a database and its queues are well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fdbqueue import __version__
from fdbqueue.base.reprs import counted, utc
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import behind
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import Steps, rows, run
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError
from fdbqueue.layers.sessions.session.records import SessionName, name_of, pointer_of
from fdbqueue.observe.figures import QueueFigures, Wanted, highest_attempt, read_all
from fdbqueue.observe.reading import OwnKeys, keys_of
from fdbqueue.stored.items import BLOB_FORMAT_VERSION, MANY_ATTEMPTS
from fdbqueue.stored.layout import CATALOGUE, DELAY, Layout, pack

GRACE_SECONDS = 5.0
"""A lease counts as stuck if it expired so long ago."""
LONG_WAIT_SECONDS = 600.0
"""A session that waits for longer is worth a look."""
MOST_DELAYED = 16
"""How many delayed items, and timers of each line of sessions, are read for the warnings."""
ROUNDS = 3
"""How many commits are measured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What still counts as well."""

    age_s: float | None = None
    """The age of the oldest available item; None: any."""
    commit_s: float = 2.0
    """The time of a commit."""
    skew_s: float = 5.0
    """How far a stored time may be ahead of this clock."""


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
    stuck: dict[str, int] = field(default_factory=dict)
    """Leases that have expired and that nobody ends, by queue."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """What can't be read, by queue."""
    problems: list[str] = field(default_factory=list)
    """What is wrong, as sentences."""
    warnings: dict[str, list[str]] = field(default_factory=dict)
    """What is worth a look though nothing is wrong, by queue."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def record(self) -> dict[str, Any]:
        """Return the report as a JSON object has it."""
        return {
            "ok": self.ok,
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

    *Conflicts:* none. *Cost:* three commits that write nothing, and the reads of a scrape (`read_all`). A queue with
    delayed items or waiting sessions has one bounded read more, and one for each shard of its sessions.
    """
    limits, wanted, names = limits or Limits(), wanted or Wanted(), list[str]()

    def is_wanted(queue: str) -> bool:
        names.append(queue)
        return wanted(queue)

    report = HealthReport(commit_s=sorted(_commit_seconds(db) for _ in range(ROUNDS))[ROUNDS // 2])
    for one in read_all(db, is_wanted, clock=clock, grace=GRACE_SECONDS):
        report.queues += 1
        report.ahead_s = max(report.ahead_s, one.ahead_s)
        if one.oldest_age_s is not None and one.oldest_age_s > (report.oldest_age_s or -1.0):
            report.oldest_age_s, report.oldest_queue = one.oldest_age_s, one.queue
        if one.stuck:
            report.stuck[one.queue] = one.stuck
        if one.problem:
            report.unreadable[one.queue] = one.problem
        if told := list(_warnings(db, one, clock())):
            report.warnings[one.queue] = told
    report.problems = wanted.unmatched(names) + _problems(report, limits)
    return report


def _warnings(db: Database, one: QueueFigures, now: float) -> Iterator[str]:
    """Yield what people want to know of a queue though it may be meant so."""
    dead = (one.stats.dead if one.stats else 0) + (one.sessions.dead if one.sessions else 0)
    if dead > 0:
        yield counted(dead, "dead letter")
    if one.paused:
        yield f"paused {one.pause}".rstrip()
    attempt, waits = one.attempt, None
    if (one.stats and one.stats.delayed) or (one.sessions and one.sessions.waiting):
        delayed, waits = run(attempts(db, partial(_read_waiting, own=keys_of(one.prefix))))
        attempt = max(attempt, delayed)
    if attempt >= MANY_ATTEMPTS:
        yield f"an item at attempt {attempt}"
    if waits is not None and waits[0] > now + LONG_WAIT_SECONDS:
        yield f"the session {waits[1]!r} waits until {utc(waits[0])} UTC"


def _read_waiting(tr: Transaction, own: OwnKeys) -> Steps[tuple[int, tuple[float, SessionName] | None]]:
    """Read the highest attempt of some items that wait, and which session waits longest, and until when."""
    view, delayed = tr.snapshot, own.layout.delayed
    found = yield from rows(view, delayed.begin, delayed.end, limit=MOST_DELAYED)
    longest: tuple[float, SessionName] | None = None
    for line in own.shards.layouts():
        span = line.timers.range()
        for timer in (yield from rows(view, span.start, span.stop, limit=MOST_DELAYED, reverse=True)):
            with suppress(FormatError):
                at_us, position, kind = line.timer_of(timer.key)
                key = line.delayed.key(pack(position))
                pointers = yield from rows(view, key, key + b"\x00", limit=1)
                if kind != DELAY or not pointers:
                    continue
                pointer = pointer_of(pointers[0].value)
                items = Layout.at(own.sessions.items + pointer.name + fdb_tuple.pack((pointer.generation,))).available
                found += yield from rows(view, items.begin, items.end, limit=1)
                longest = max(longest or (0.0, ""), (at_us / 1e6, name_of(pointer.name)), key=lambda one: one[0])
                break
    return highest_attempt(found), longest


def _problems(report: HealthReport, limits: Limits) -> list[str]:
    found: list[str] = []
    if report.commit_s > limits.commit_s:
        found.append(f"A commit takes {report.commit_s:.2f} s, more than {limits.commit_s:g} s.")
    if report.ahead_s > limits.skew_s:
        found.append(
            f"An item was enqueued {report.ahead_s:.1f} s ahead of this clock. Set the clocks of the machines by NTP."
        )
    if limits.age_s is not None and report.oldest_age_s is not None and report.oldest_age_s > limits.age_s:
        found.append(
            f"The first item of {report.oldest_queue} has waited {report.oldest_age_s:,.0f} s, more than"
            f" {limits.age_s:g} s."
        )
    for queue, number in report.stuck.items():
        told = "a lease that has expired, and nobody ends it"
        if number > 1:
            told = f"{number} leases that have expired, and nobody ends them"
        found.append(f"{queue} has {told}: start a consumer, or run Watchdog.sweep.")
    found += [f"{queue}: {problem}" for queue, problem in report.unreadable.items()]
    return found


def _commit_seconds(db: Database) -> float:
    """Return how long a commit takes. It writes nothing: it only says that it conflicts with a key that nobody has."""
    key = behind(CATALOGUE) + os.urandom(8)

    def body(tr: Transaction) -> Steps[None]:
        tr.add_write_conflict_key(key)
        yield from ()

    began = time.perf_counter()
    run(attempts(db, body))
    return time.perf_counter() - began
