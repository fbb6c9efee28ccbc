"""Faults of a process' own: commits that fail, or that it does not survive, and clocks that are wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

from fdbqueue import FDBError
from tests.chaos.history import History
from tests.helpers.faults import Fault, FaultyDatabase, FaultyTransaction

COMMIT_FAULTS: dict[str, Fault] = {
    "1020 at a commit": ("before", 1020),
    "1007 at a commit": ("before", 1007),
    "1021 at a commit that took no effect": ("before", 1021),
    "1021 at a commit that took effect": ("after", 1021),
    "1031 at a commit that took no effect": ("before", 1031),
    "1031 at a commit that took effect": ("after", 1031),
}
DEATHS = {"killed before a commit": "before", "killed after a commit": "after"}
JUMP = "clock jumped"
SKEW_SECONDS = 300.0
"""Clocks are up to so many seconds ahead or behind."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely what goes wrong is, at each commit or call unless said otherwise."""

    commit: float = 0.0
    """That a commit fails; with each of the faults in turn."""
    death: float = 0.0
    """That the process does not survive a commit."""
    skew: bool = False
    """Whether clocks disagree, and jump."""
    machine: float = 0.0
    """That the server or its connections are disturbed, at each look at a round's processes."""


class ChaosDatabase(FaultyDatabase):
    """A database whose commits fail, or kill their process, by the dice of a seed."""

    def __init__(self, db: Any, odds: Odds, history: History, seed: str) -> None:
        super().__init__(db, self._draw)
        self._odds = odds
        self._history = history
        self._dice = random.Random(seed)

    def create_transaction(self) -> ChaosTransaction:
        return ChaosTransaction(self._db.create_transaction(), self)

    def _draw(self) -> Fault | None:
        if self._dice.random() >= self._odds.commit:
            return None
        kind = self._dice.choice(list(COMMIT_FAULTS))
        self._history.note(kind)
        return COMMIT_FAULTS[kind]

    def draw_death(self) -> str:
        """Return when at this commit the process dies: "before", "after", or "" for not at all."""
        if self._dice.random() >= self._odds.death:
            return ""
        kind = self._dice.choice(list(DEATHS))
        self._history.note(kind)
        return DEATHS[kind]

    def answered(self, code: int) -> None:
        """Note an error that the database itself gave."""
        self._history.note(f"{code} by the database itself")


class ChaosTransaction(FaultyTransaction):
    """A transaction of a `ChaosDatabase`."""

    _db: ChaosDatabase

    def commit(self) -> Any:
        self._faults = self._db.faults
        death = self._db.draw_death()
        if death == "before":
            strike()
        future = super().commit()
        if death == "after":
            # It may fail, too. An error that came from here would say that nothing was committed.
            with contextlib.suppress(FDBError):
                future.wait()
            strike()
        return future

    def on_error(self, error: Any) -> Any:
        if self._db.faults == getattr(self, "_faults", self._db.faults):
            self._db.answered(getattr(error, "code", error))
        return self._tr.on_error(error)


class ChaosClock:
    """A clock that is minutes wrong, and that jumps when told."""

    def __init__(self, odds: Odds, history: History, seed: str) -> None:
        self._odds = odds
        self._history = history
        self._dice = random.Random(seed)
        # Some are right, so that there are both.
        self._ahead = self._draw() if self._dice.random() < 0.7 else 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def maybe_jump(self) -> None:
        """Jump, sometimes."""
        if self._odds.skew and self._dice.random() < 0.002:
            self._ahead = self._draw()
            self._history.note(JUMP)

    def _draw(self) -> float:
        return self._dice.uniform(-SKEW_SECONDS, SKEW_SECONDS) if self._odds.skew else 0.0


def strike() -> None:
    """End this process where it stands."""
    os.kill(os.getpid(), signal.SIGKILL)
