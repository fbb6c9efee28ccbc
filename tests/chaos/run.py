"""A chaos run: rounds, one after the other, until the time is over; what went wrong, and what that broke."""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.engine import Subspace
from tests.chaos.faults import COMMIT_FAULTS, DEATHS, JUMP, Odds
from tests.chaos.idle import counted_wrongly
from tests.chaos.kinds import IN_TURN, Kind
from tests.chaos.oracle import Verdict
from tests.chaos.same import answered_differently
from tests.chaos.server import CUT, DELAYED, PROGRAM_VARIABLE, SERVER_KILLED, find_program, running
from tests.chaos.stage import BUGGIFIED, KILLED, STOPPED, Round, Wanted
from tests.chaos.waking import not_told, not_woken
from tests.helpers.processes import preload

ROUND_SECONDS = 12.0
PATIENCE = 1.0
PROGRAM_STEPS = 120
MOST_TOLD = 5
"""Violations of one promise in one round that are told."""
SAME, WOKEN, IDLE = "I13", "woken", "idle"
ASKED_FOR = (*COMMIT_FAULTS, *DEATHS, JUMP, KILLED, STOPPED)
"""What is asked for in every run, and has to happen."""


@dataclass(slots=True)
class Report:
    """What a run did, and found."""

    seed: str
    url: str
    rounds: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    """Of those rounds, how many were of each kind."""
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    faults: Counter[str] = field(default_factory=Counter)
    asked_for: tuple[str, ...] = ASKED_FOR
    programs: int = 0
    """Programs whose answers were compared between the engines."""
    kept: list[Path] = field(default_factory=list)
    """Folders with what the rounds wrote that broke a promise."""

    def add(self, other: Report) -> None:
        """Take over what another run did, and found."""
        self.rounds += other.rounds
        self.kinds.update(other.kinds)
        self.seconds = max(self.seconds, other.seconds)
        self.verdict.add(other.verdict)
        self.faults.update(other.faults)
        self.asked_for = tuple(dict.fromkeys((*self.asked_for, *other.asked_for)))
        self.programs += other.programs
        self.kept += other.kept

    def never(self) -> list[str]:
        """Return the faults that were asked for and never happened."""
        return [kind for kind in self.asked_for if not self.faults[kind]]

    def ok(self) -> bool:
        """Say whether all that was to go wrong did, and broke nothing."""
        return not self.never() and not self.verdict.count()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run takes place."""

    url: str
    machines: tuple[Callable[[random.Random], str], ...] = ()
    """What can be done to its server."""
    asked_for: tuple[str, ...] = ()
    """Faults that are asked for there, beside those that are everywhere."""


def odds_of(number: int) -> Odds:
    """Return what goes wrong in the round of that number: quiet ones, and stormy ones, so that work gets done too."""
    return (
        Odds(commit=0.25, death=0.003, skew=False, machine=0.3),
        Odds(commit=0.05, death=0.0015, skew=True, machine=0.1),
        Odds(commit=0.02, death=0.0005, skew=True, machine=0.03),
    )[number % 3]


def run(
    url: str,
    seed: str,
    seconds: float,
    tell: Callable[[str], None] = print,
    *,
    until_broken: bool = False,
    kind: str | None = None,
    patience: float = PATIENCE,
    round_seconds: float = ROUND_SECONDS,
) -> Report:
    """Run rounds on the database of a URL until `seconds` have passed; at least one.

    Args:
        url: of any engine that several processes can open; "file:" is a temporary folder, "server:" a server of the
            run's own, which is killed too.
        seed: what processes do and what goes wrong; the order of what they do at the same time is not in it.
        seconds: how long it takes, but for the last round's end.
        tell: told after every round.
        until_broken: end after the first round that broke a promise.
        kind: of the rounds; None: of all kinds that are `IN_TURN`.
        patience: how much longer it may take, as a part of `seconds`, until every fault has happened at least once.
        round_seconds: how long a round lasts, without its start and its end.
    """
    preload("tests.chaos.worker")
    started = time.monotonic()
    kinds = random.Random(seed).sample(IN_TURN, len(IN_TURN)) if kind is None else [Kind(kind)]
    with _place(url) as place, fdbqueue.open(place.url) as db:
        report = Report(seed, place.url, asked_for=(*ASKED_FOR, *place.asked_for))
        _ask(db, report, seed)
        while _goes_on(report, time.monotonic() - started, seconds, patience, round_seconds):
            left = seconds - (time.monotonic() - started)
            one = Round(
                db,
                place.url,
                f"{seed}/{report.rounds}",
                max(4.0, min(round_seconds, left * 0.7)) if left > 0 else round_seconds,
                Wanted(odds_of(report.rounds), kills=True, buggify=bool(place.machines), machines=place.machines),
                Subspace(("fdbqueue chaos", secrets.token_hex(6))),
                kinds[report.rounds % len(kinds)],
            )
            if report.rounds % len(kinds) == 0:  # once for all kinds, in a long run again and again
                idle = counted_wrongly(db, place.url, Subspace(("fdbqueue chaos", secrets.token_hex(6))))
                report.verdict.violations.setdefault(IDLE, []).extend(idle)
            report.kinds[one.kind] += 1
            found = one.run()
            report.verdict.add(found)
            report.faults.update(one.faults)
            report.rounds += 1
            tell(
                f"round {report.rounds} ({one.seed}, {one.kind}): {found.records:,} records, {found.operations:,} "
                f"operations, {found.count()} violations"
            )
            for name, broken in found.violations.items():
                for what in broken[:MOST_TOLD]:
                    tell(f"    {name}: {what}")
            if one.kept:
                report.kept.append(one.kept)
                tell(f"    kept in {one.kept}")
            _ask(db, report, one.seed)
            if until_broken and report.verdict.count():
                break
        report.seconds = time.monotonic() - started
    return report


def _goes_on(report: Report, taken: float, seconds: float, patience: float, round_seconds: float) -> bool:
    """Say whether another round is to be: while there is time, and some time more if a fault has not happened yet."""
    if not report.rounds or taken < seconds - round_seconds:
        return True
    return bool(report.never()) and taken < (1 + patience) * seconds


def _ask(db: Any, report: Report, seed: str) -> None:
    """Ask what is to be asked when nothing goes wrong."""
    waiting = [
        one for ask in (not_woken, not_told) for one in ask(db, Subspace(("fdbqueue chaos", secrets.token_hex(6))))
    ]
    report.verdict.violations.setdefault(WOKEN, []).extend(waiting)
    if not report.url.startswith("fdb:"):
        return  # one in memory has the same engine
    with fdbqueue.open("memory:") as memory:
        space = Subspace(("fdbqueue chaos", secrets.token_hex(6)))
        found = answered_differently([memory, db], space, seed, steps=PROGRAM_STEPS)
    report.programs += 1
    report.verdict.violations.setdefault(SAME, []).extend(found)


@contextmanager
def _place(url: str) -> Iterator[Place]:
    """Make ready what a URL means."""
    if url == "server:":
        program = find_program()
        if program is None:
            raise SystemExit(f"There is no fdbserver on the path; name one in {PROGRAM_VARIABLE}.")
        with running(program) as server:
            yield Place(f"fdb:{server.cluster_file}", server.faults(), (SERVER_KILLED, CUT, DELAYED, BUGGIFIED))
        return
    if url != "file:":
        yield Place(url)
        return
    folder = tempfile.mkdtemp(prefix="fdbqueue-chaos-")
    try:
        yield Place(f"file:{Path(folder) / 'db'}")
    finally:
        shutil.rmtree(folder)
