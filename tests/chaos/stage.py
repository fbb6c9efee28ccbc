"""One round: processes at work on a fresh queue, disturbed for some seconds, then a drain and the oracle."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.chaos.agenthands import CAST as AGENTS_CAST
from tests.chaos.agenthands import drain_agents
from tests.chaos.blobhands import drain_blobs, sweep_all
from tests.chaos.evidence import keep
from tests.chaos.faults import Odds
from tests.chaos.history import OK, History, read_histories, told_claims, told_leases
from tests.chaos.judging import judged
from tests.chaos.kinds import CREDIT, WITH_OPERATORS, WITH_SESSIONS, Kind, log_of, most_attempts, queue_of
from tests.chaos.oracle import Verdict
from tests.chaos.owners import reset
from tests.chaos.sessionhands import drain_sessions
from tests.chaos.streamhands import drain_streams
from tests.chaos.taskhands import drain_tasks
from tests.chaos.worker import Part, play
from tests.helpers.processes import Processes, kill_9

CAST = ("producer", "loader", "consumer", "consumer", "consumer", "keeper")
STOPPED_SECONDS = (1.1, 2.0)
"""For how long a process is stopped: longer than its leases last."""
STARTED_WITHIN_SECONDS = 600.0
ENDED_WITHIN_SECONDS = 300.0
BACK_WITHIN_SECONDS = 180.0
STACKS_SECONDS = 1.0
"""How long a stuck process takes to write where its threads are."""
FAR_AHEAD_S = 7_200.0
"""How far the drain's clock is ahead, so that whatever waits for its time is due."""

STOP = "stop"
"""The file that ends a round."""
KILLED, STOPPED = "killed at a random point", "stopped beyond its leases and continued"
BUGGIFIED = "client with buggify"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to go wrong."""

    odds: Odds
    kills: bool
    """Processes are killed, and stopped, from outside."""
    buggify: bool = False
    machines: tuple[Callable[[random.Random], str], ...] = ()
    """What can be done to the server and its connections; each says what it did."""


@dataclass(slots=True)
class Actor:
    """A process of the round, and its successors."""

    role: str
    name: str
    process: BaseProcess | None = None
    lives: int = 0


@dataclass(slots=True)
class Round:
    """One round on a database.

    Args:
        db: the database itself, without faults.
        url: of it, for the processes.
        seed: decides what the processes do and what goes wrong.
        seconds: for how long.
    """

    db: Any
    url: str
    seed: str
    seconds: float
    wanted: Wanted
    space: Subspace
    kind: Kind = Kind.plain
    cast: tuple[str, ...] = CAST
    faults: Counter[str] = field(default_factory=Counter)
    kept: Path | None = None
    """Where what the round wrote is kept, if it broke a promise."""

    def run(self) -> Verdict:
        """Play, drain and judge; what the round wrote is gone afterwards, and a copy is kept if a promise is broken."""
        with tempfile.TemporaryDirectory(prefix="fdbqueue-chaos-") as folder:
            try:
                verdict = self._run(Path(folder))
                if verdict.count():
                    self.kept = keep(self.db, self.space, self.kind, self.seed, Path(folder), verdict.violations)
                return verdict
            except Exception as error:
                self.kept = keep(self.db, self.space, self.kind, self.seed, Path(folder), {"run": [f"{error!r}"]})
                error.add_note(f"What the round wrote is kept in {self.kept}")
                raise
            finally:
                self.db.clear_range_startswith(self.space.key())

    def _run(self, folder: Path) -> Verdict:
        self._prepare()
        with Processes() as processes:
            cast = AGENTS_CAST if self.kind is Kind.agents else self.cast
            actors = [Actor(role, f"{role}-{number}") for number, role in enumerate(cast)]
            for actor in actors:
                self._start(processes, actor, folder)
            # On a busy machine processes take their time to start.
            _wait_for(lambda: len(list(folder.glob("*.history"))) == len(actors))
            self._disturb(processes, actors, folder)
            (folder / STOP).touch()
            stuck = self._wait(actors, folder)
        stuck += self._drain(folder)
        calls, notes = read_histories(folder)
        self.faults.update(notes)
        verdict = judged(self.db, self.space, self.kind, calls)
        verdict.violations["processes"] = stuck + [path.read_text() for path in sorted(folder.glob("*.failed"))]
        return verdict

    def _prepare(self) -> None:
        """Register what the round's processes find there."""
        if self.kind is Kind.subscriptions:
            db = log_of(self.space, self.kind).of(self.db, by="stage")
            subscriptions = Subscriptions(queue_of(self.space, self.kind))
            for name, credit in CREDIT.items():
                subscriptions.subscribe(db, name, selector=f"color = '{name}'").grant(db, items=credit)
        if self.kind is Kind.exclusive:
            db = log_of(self.space, self.kind).of(self.db, by="stage")
            reset(db, Subscriptions(queue_of(self.space, self.kind)))

    def _disturb(self, processes: Processes, actors: list[Actor], folder: Path) -> None:
        until = time.monotonic() + self.seconds
        dice = random.Random(f"{self.seed}/disturb")
        stopped: list[tuple[float, BaseProcess]] = []
        machines, at = dice.sample(self.wanted.machines, len(self.wanted.machines)), 0
        answer = _asked(self.db)
        while time.monotonic() < until:
            for actor in actors:
                if actor.process is None or actor.process.exitcode == -signal.SIGKILL:
                    self._start(processes, actor, folder)
            time.sleep(dice.uniform(0.05, 0.4))
            while stopped and stopped[0][0] < time.monotonic():
                _signal(stopped.pop(0)[1], signal.SIGCONT)
            # A server that is still coming back is disturbed seldom: else a slow machine's is down all the time.
            odds = self.wanted.odds.machine * (1 if answer.is_ready() else 0.1)
            if self.wanted.machines and dice.random() < odds:
                self.faults[machines[at % len(machines)](dice)] += 1
                at += 1
                answer = _asked(self.db)
            if not self.wanted.kills:
                continue
            victim = dice.choice(actors).process
            if victim is None or not victim.is_alive() or any(victim is process for _, process in stopped):
                continue
            if dice.random() < 0.12:
                kill_9(victim)
                self.faults[KILLED] += 1
            elif dice.random() < 0.12:
                _signal(victim, signal.SIGSTOP)
                stopped.append((time.monotonic() + dice.uniform(*STOPPED_SECONDS), victim))
                stopped.sort(key=lambda one: one[0])
                self.faults[STOPPED] += 1
        for _, process in stopped:
            _signal(process, signal.SIGCONT)

    def _start(self, processes: Processes, actor: Actor, folder: Path) -> None:
        actor.lives += 1
        by = f"{actor.name}.{actor.lives}"
        buggify = self.wanted.buggify and actor.lives % 2 == 1
        self.faults[BUGGIFIED] += buggify
        part = Part(
            self.url,
            self.space.key(),
            folder,
            by,
            actor.role,
            self.kind,
            f"{self.seed}/{by}",
            folder / STOP,
            self.wanted.odds,
            buggify,
        )
        actor.process = processes.start(play, part)

    def _wait(self, actors: list[Actor], folder: Path) -> list[str]:
        stuck = []
        _wait_for(_asked(self.db).is_ready, seconds=BACK_WITHIN_SECONDS)  # a starved server may still be coming back
        deadline = time.monotonic() + ENDED_WITHIN_SECONDS
        for actor in actors:
            if actor.process is None:
                continue
            actor.process.join(max(0.1, deadline - time.monotonic()))
            if actor.process.exitcode is None:
                by = f"{actor.name}.{actor.lives}"
                _signal(actor.process, signal.SIGUSR1)
                time.sleep(STACKS_SECONDS)
                where = (folder / f"{by}.stacks").read_text()
                stuck.append(f"{by} did not come back within {ENDED_WITHIN_SECONDS:.0f} s:\n{where}")
                kill_9(actor.process)
            elif actor.process.exitcode not in (0, -signal.SIGKILL):
                stuck.append(f"{actor.name}.{actor.lives} ended with {actor.process.exitcode}.")
        return stuck

    def _drain(self, folder: Path) -> list[str]:
        """Take everything out that is there, as a consumer whose clock says that all times have come.

        Returns what can't be taken out.
        """
        history = History(folder, "drain")
        queue = queue_of(self.space, self.kind)
        passed = 0

        def ahead() -> float:
            return time.time() + FAR_AHEAD_S + passed

        def later() -> float:
            # What the drain ended or asked again itself is removed later than all else.
            return ahead() + FAR_AHEAD_S

        if self.kind in WITH_SESSIONS:
            for clock in (ahead, later):
                logged = log_of(self.space, self.kind).of(self.db, by="drain", clock=clock)
                drain_sessions(logged, queue, history, clock=clock, kind=self.kind)
            return []
        if self.kind is Kind.agents:
            for clock in (ahead, later):
                logged = log_of(self.space, self.kind).of(self.db, by="drain", clock=clock)
                drain_agents(logged, queue, history, clock=clock)
            return []
        if self.kind is Kind.tasks:
            return drain_tasks(self.db, self.space, ahead, history)
        stuck = []
        if self.kind is Kind.streams:
            logged = log_of(self.space, self.kind).of(self.db, by="drain")
            stuck = drain_streams(logged, queue, folder, history, time.time)
        if self.kind in WITH_OPERATORS:
            queue.resume(log_of(self.space, self.kind).of(self.db, by="drain"))
        leases = Leases(queue, max_attempts=most_attempts(self.kind), clock=ahead)
        staged = StagedQueue(leases, consumer="drain")
        db = log_of(self.space, self.kind).of(self.db, by="drain", clock=ahead)
        while True:
            self._reclaim_all(db, leases)
            leases.dead.redrive(db)
            passed += 1  # what comes back waits for the queue's back-off, a tenth of a second
            number = history.begin("staged lease many", {})
            taken = staged.lease_many(db, limit=200)
            history.end(number, OK, {"leases": told_leases(taken)})
            if not taken:
                break
            if self.kind is Kind.blobs:
                drain_blobs(db, leases, taken, history)
            number = history.begin("staged ack", {"claims": told_claims(taken)})
            leases.ack_many(db, taken)
            history.end(number, OK, {})
        if self.kind is Kind.blobs:
            sweep_all(db, queue, history, ahead)
        leases = Leases(queue, max_attempts=most_attempts(self.kind), clock=later)
        self._reclaim_all(log_of(self.space, self.kind).of(self.db, by="drain", clock=later), leases)
        return stuck

    def _reclaim_all(self, db: Any, leases: Leases) -> None:
        while leases.reclaim(db).more:
            continue


def _asked(db: Any) -> Any:
    """Return a future that the database answers when it is there."""
    return db.create_transaction().get_read_version()


def _wait_for(condition: Callable[[], bool], seconds: float = STARTED_WITHIN_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, number)
