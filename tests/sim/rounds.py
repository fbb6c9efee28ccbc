"""Rounds of chaos whose processes are fibers: the same hands, faults and promises, in virtual time."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fdbqueue
from fdbqueue.engine import Subspace
from tests.chaos.faults import Odds
from tests.chaos.hand import Hand
from tests.chaos.history import History, read_histories
from tests.chaos.judging import judged
from tests.chaos.kinds import Kind
from tests.chaos.oracle import Verdict
from tests.chaos.stage import ENDED_WITHIN_SECONDS, KILLED, STOPPED, STOPPED_SECONDS, Actor, Round, Wanted
from tests.chaos.worker import ROLES, ROLES_OF, THREADS, Part, tools_of
from tests.sim.cluster import FarDatabase, Network
from tests.sim.fibers import Killed, Process, Scheduler, simulating, the

KINDS: Final = tuple(kind for kind in Kind if kind is not Kind.agents)
"""Those of agents talk by sockets, which are the machine's."""
CUT_OFF: Final = "cut off from the database"
CUT_SECONDS: Final = (0.1, 3.0)
ODDS: Final = Odds(commit=0.03, death=0.002, skew=True)


class _Stop:
    """What ends a round, in place of a file."""

    def __init__(self) -> None:
        self._there = False

    def exists(self) -> bool:
        return self._there

    def touch(self) -> None:
        self._there = True


@dataclass(slots=True)
class SimulatedRound(Round):
    """One round of a simulation."""

    network: Network = field(init=False)
    failed: list[str] = field(default_factory=list)
    """What ended hands that nothing should have ended."""
    calls: bytes = b""
    """What all processes noted: the same for the same seed."""

    def _run(self, folder: Path) -> Verdict:
        self.network = Network(self.seed)
        self._prepare()
        stop = _Stop()
        playing = [self._begin(Actor(role, f"{role}-{number}"), folder, stop) for number, role in enumerate(self.cast)]
        self._disturbed(playing, folder, stop)
        stop.touch()
        stuck = self._ended([process for _, process in playing])
        stuck += self._drain(folder)
        self.calls = b"".join(path.read_bytes() for path in sorted(folder.glob("*.history")))
        calls, notes = read_histories(folder)
        self.faults.update(notes)
        verdict = judged(self.db, self.space, self.kind, calls)
        verdict.violations["processes"] = stuck + self.failed
        return verdict

    def _begin(self, actor: Actor, folder: Path, stop: Any) -> tuple[Actor, Process]:
        actor.lives += 1
        by = f"{actor.name}.{actor.lives}"
        seed, space = f"{self.seed}/{by}", self.space.key()
        part = Part(self.url, space, folder, by, actor.role, self.kind, seed, stop, self.wanted.odds)
        process = Process(by)
        process.main = the().spawn(lambda: self._play(part, process), process)
        return actor, process

    def _play(self, part: Part, process: Process) -> None:
        history = History(part.folder, part.by)
        try:
            tools = tools_of(part, history, FarDatabase(self.db, self.network, process))
            role = ROLES_OF.get(part.kind, ROLES)[part.role]
            hands = [role(tools, number, f"{part.seed}/{number}") for number in range(THREADS)]
            threads = [threading.Thread(target=self._work, args=(hand, part, process)) for hand in hands]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            history.close()

    def _work(self, hand: Hand, part: Part, process: Process) -> None:
        try:
            hand.work(part.stop)
        except Killed:
            raise
        except BaseException:  # noqa: BLE001 - as in chaos' own processes
            if process.alive:
                self.failed.append(f"{process.name}: {traceback.format_exc()}")

    def _disturbed(self, playing: list[tuple[Actor, Process]], folder: Path, stop: Any) -> None:
        dice = random.Random(f"{self.seed}/disturb")
        until = the().now + self.seconds
        while the().now < until:
            the().block(dice.uniform(0.05, 0.4))
            for at, (actor, process) in enumerate(playing):
                if not process.alive:
                    playing[at] = self._begin(actor, folder, stop)
            self._disturb_one(dice.choice(playing)[1], dice)

    def _disturb_one(self, process: Process, dice: random.Random) -> None:
        if process.stopped or process in self.network.cut:
            return
        chance = dice.random()
        if chance < 0.12:
            the().kill(process)
            self.faults[KILLED] += 1
        elif chance < 0.22:
            the().stop(process)
            the().after(dice.uniform(*STOPPED_SECONDS), lambda: the().resume(process))
            self.faults[STOPPED] += 1
        elif chance < 0.28:
            self.network.cut.add(process)
            the().after(dice.uniform(*CUT_SECONDS), lambda: self.network.cut.discard(process))
            self.faults[CUT_OFF] += 1

    def _ended(self, processes: list[Process]) -> list[str]:
        """Wait until all processes have ended. Return where those are that have not."""
        deadline = the().now + ENDED_WITHIN_SECONDS
        while any(process.running() for process in processes) and the().now < deadline:
            the().block(0.1)
        stuck = []
        for process in processes:
            if process.running():
                frames = (fiber.gr_frame for fiber in process.fibers)
                where = "\n".join("".join(traceback.format_stack(frame)) for frame in frames if frame)
                stuck.append(f"{process.name} did not come back within {ENDED_WITHIN_SECONDS:.0f} s:\n{where}")
            the().kill(process)
        return stuck


@dataclass(slots=True)
class Outcome:
    """What a simulation did, and found."""

    seed: str
    kind: Kind
    verdict: Verdict
    round: SimulatedRound
    scheduler: Scheduler


def simulate(seed: str, kind: Kind, seconds: float) -> Outcome:
    """Simulate a round, and judge it.

    Args:
        seed: decides everything.
        kind: of the round.
        seconds: for how long processes work, in virtual time.

    Raises:
        Stuck: nothing could go on, or something went on without end.
    """
    random.seed(seed)
    found: list[Outcome | BaseException] = []

    def act() -> None:
        with fdbqueue.open("memory:") as db:
            played = SimulatedRound(db, "memory:", seed, seconds, Wanted(ODDS, kills=True), Subspace((seed,)), kind)
            found.append(Outcome(seed, kind, played.run(), played, scheduler))

    with simulating(seed) as scheduler:
        scheduler.run(scheduler.spawn(_kept(act, found)))
    if isinstance(found[0], BaseException):
        raise found[0]
    found[0].verdict.violations["fibers"] = [repr(error) for error in scheduler.errors]
    return found[0]


def _kept(act: Callable[[], None], found: list[Any]) -> Callable[[], None]:
    def acting() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is to report it
            found.append(error)

    return acting
