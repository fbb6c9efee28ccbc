"""Those who keep a queue: settle what is due, redrive and purge dead letters, and look."""

from __future__ import annotations

from typing import Any, ClassVar

from fdbqueue.layers.consumer import Watchdog
from fdbqueue.layers.leases import State
from fdbqueue.layers.smart import Deadlines
from tests.chaos.hand import Hand
from tests.chaos.kinds import Kind
from tests.chaos.owners import reset

STATES: tuple[State, ...] = ("available", "leased", "delayed", "dead")


class Keeper(Hand):
    """Does what no producer and no consumer does."""

    VERBS: ClassVar[dict[str, int]] = {
        "reclaim": 4,
        "watchdog": 3,
        "redrive": 3,
        "redrive to the tail": 2,
        "purge": 1,
        "look": 3,
        "pause": 4,
    }

    def verbs(self) -> dict[str, int]:
        match self.tools.kind:
            case Kind.exclusive:
                return {**self.VERBS, "reset": 8}
            case Kind.smart:
                return {**self.VERBS, "missed": 40}  # both hands at the same time, as often as not
            case _:
                return self.VERBS

    def missed(self) -> None:
        """Claim deadlines that are missed."""
        smart = self.tools.smart
        if smart is None:
            raise RuntimeError("there are no smart checks in this round")

        def act() -> dict[str, Any]:
            claimed = Deadlines(smart).claim(self.db, limit=20)
            return {"missed": [(one.position.text, round(one.at * 1e6)) for one in claimed]}

        self.call("missed", {}, act)

    def reset(self) -> None:
        """Let the exclusive subscription be nobody's, whoever owns it."""
        subscribed = self.tools.subscribed
        if subscribed is None:
            raise RuntimeError("there are no subscriptions in this round")
        self.call("reset", {}, lambda: reset(self.db, subscribed))

    def reclaim(self) -> None:
        self.call("reclaim", {}, lambda: {"count": len(self.leases.reclaim(self.db, limit=100).reclaimed)})

    def watchdog(self) -> None:
        self.call("watchdog", {}, lambda: {"report": str(Watchdog(self.leases, batch=50).sweep(self.db))})

    def redrive(self) -> None:
        self.call("redrive", {}, lambda: {"count": self.leases.dead.redrive(self.db, limit=30)})

    def redrive_to_the_tail(self) -> None:
        self.call("redrive to the tail", {}, lambda: {"count": self.leases.dead.redrive(self.db, limit=5, to="tail")})

    def purge(self) -> None:
        self.call("purge", {}, lambda: {"count": self.leases.dead.purge(self.db, limit=3)})

    def look(self) -> None:
        """Look at all that can be looked at, which changes nothing."""

        def act() -> None:
            tools = self.tools
            tools.staged.stats(self.db)
            self.queue.peek(self.db)
            for state in STATES:
                list(self.leases.browse(self.db, state=state, limit=50))

        self.call("look", {}, act)
