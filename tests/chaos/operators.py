"""Operators: they change items by their positions, whoever holds them, pause the queue, and come with another codec."""

from __future__ import annotations

import time
from typing import Any, ClassVar, cast

from fdbqueue import CodecError, Position, Queue
from fdbqueue.layers.leases import Leases, State
from tests.chaos.hand import DURATION_S
from tests.chaos.history import value_of
from tests.chaos.keepers import Keeper
from tests.chaos.kinds import HAVE_LEVELS, WITH_OPERATORS

LONG_PAUSE_S = 7.0
"""Long enough that each process has looked, and has done what it began before."""
SIZE = 40


class Operator(Keeper):
    """A keeper who also operates, in the kinds of rounds whose promises know it."""

    OPERATIONS: ClassVar[dict[str, int]] = {"operate": 14, "stop and go": 1, "come with another codec": 2}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._long_pauses = 0

    def verbs(self) -> dict[str, int]:
        verbs = super().verbs()
        return {**verbs, **self.OPERATIONS} if self.tools.kind in WITH_OPERATORS else verbs

    def operate(self) -> None:
        """Cancel, change or reschedule an item, most often one that a consumer has."""
        state = cast(State, self.dice.choice(["leased", "leased", "available", "delayed", "dead"]))
        found: list[Position] = []
        self.call(
            "look", {}, lambda: found.extend(one.position for one in self.leases.browse(self.db, state=state, limit=30))
        )
        if not found:
            return
        position = self.dice.choice(found)
        verbs = ["cancel", "reschedule"] if self.tools.kind in HAVE_LEVELS else ["cancel", "update", "reschedule"]
        verb = self.dice.choice(verbs)
        asked: dict[str, Any] = {"operation": verb, "position": position.text}
        terms: dict[str, Any] = {}
        if verb == "update":
            name = self.name()
            asked |= {"name": name, "count": 1, "size": SIZE, "headers": None}
            terms = {"value": value_of(name, 0, SIZE), "headers": {}}
        elif verb == "reschedule":
            terms = {"delay": self.dice.choice([0.0, 0.0, 0.5])}
        act = getattr(self.leases, verb)
        self.call("operate", asked, lambda: {"fate": str(act(self.db, position, **terms))})

    def stop_and_go(self) -> None:
        """Pause the queue for a while. Another keeper, or the drain, resumes it if this one is killed."""
        seconds = self.dice.choice([0.1, 0.3, 0.5])
        if not self._long_pauses and self.dice.random() < 0.4:
            self._long_pauses, seconds = 1, LONG_PAUSE_S
        if self.call("stop", {}, lambda: {"fate": str(self.queue.pause(self.db))}):
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self._over():
                time.sleep(0.05)
        self.call("go", {}, lambda: {"fate": str(self.queue.resume(self.db))})

    def come_with_another_codec(self) -> None:
        """Try to take items by a codec that is not the queue's. The drain would miss them."""
        other: Queue[Any] = Queue(self.queue.layout.space, codec="json", order=self.queue.order)
        lends = self.dice.random() < 0.5

        def act() -> dict[str, Any]:
            try:
                if lends:
                    got: Any = Leases(other, clock=self.tools.clock).lease(self.db, duration=DURATION_S)
                else:
                    got = other.dequeue(self.db)
            except CodecError as error:
                return {"refused": type(error).__name__}
            return {"refused": "" if got is not None else "nothing there"}

        self.call("other codec", {}, act)

    def _over(self) -> bool:
        return (self.tools.folder / "stop").exists()
