"""Promises about operators: a pause keeps out, another codec takes nothing, and a drain ends at an empty queue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from fdbqueue import Position
from fdbqueue.layers.oplog import Record
from tests.chaos.claims import Claims
from tests.chaos.history import OK
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import WITH_OPERATORS
from tests.chaos.motions import is_taken
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules

LATE_US = 4_000_000
"""How long after a pause an item may still be taken: a process looks once a second, and is stopped for two at most."""
RECOVERY = 50_000_000
"""A cluster that recovers goes on 100 million versions later. Less than that, and more than a round's pauses take."""


def operated_on(claims: Claims, record: Record) -> Position | None:
    """Return the item that a record's operator changes by its position; None: the record is no operator's."""
    if not record.call.startswith("operate#"):
        return None
    told = claims.calls.get((record.by, record.call))
    return None if told is None else Position.parse(told.asked["position"])


class OperatorsOwn(Invariant):
    name, says = "operators", "a pause keeps consumers out, another codec takes nothing, a drain ends at an empty queue"
    kinds = WITH_OPERATORS

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._paused_at: int | None = None
        self._last_version = 0
        self._versions: list[int] = []
        self._may_end: list[bool] = []
        """By those versions, whether a drain may end then: no item is available, or the queue is paused."""

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        paused = replay.layout.paused_key[len(replay.layout.prefix) :] in replay.values
        self._operated(step)
        passed = record.version - self._last_version
        if self._paused_at is not None and passed > RECOVERY:
            self._paused_at += passed  # versions count no microseconds across a recovery
        self._last_version = record.version
        if self._paused_at is not None and record.read_version > self._paused_at + LATE_US and record.by != "drain":
            taken = [one for one, before, after in step.moves if is_taken(step, one, before, after)]
            if taken:
                late = (record.read_version - self._paused_at) / 1e6
                self.broken(f"{taken[0]} was taken {late:.1f} s after the queue was paused", record)
            self.tally["looks at a paused queue"] += 1
        if not paused:
            self._paused_at = None
        elif self._paused_at is None:
            self._paused_at = record.version
            self.tally["pauses"] += 1
        may_end = paused or not replay.sizes["available"]
        if not self._may_end or may_end is not self._may_end[-1]:
            self._versions.append(record.version)
            self._may_end.append(may_end)

    def _operated(self, step: Step) -> None:
        if not step.record.call.startswith("operate#"):
            return
        own = operated_on(self.claims, step.record)
        for position, before, after in step.moves:
            if position != own:
                self.broken(f"an operator of {own} changed {position}", step.record)
            elif before is not None and before.state == "leased":
                self.tally["operations on items in hand"] += 1
                if after is not None and after.state == "leased":
                    self.broken(f"{position} is still leased though an operator changed it", step.record)

    def end(self, replay: Replay) -> None:
        for told in self.claims.calls.values():
            if told.verb == "other codec" and told.outcome == OK:
                refused = told.answer["refused"]
                self.tally[f"another codec: {refused or 'an item'}"] += 1
                if refused not in ("OtherCodec", "nothing there"):
                    self.broken(f"another codec got past the registered one: {refused or 'it took an item'}")
            if told.verb == "consume" and told.outcome == OK and not told.answer.get("stopped", True):
                self.tally["drains to the end"] += 1
                if not self._could_end(told.answer["from"], told.answer["to"]):
                    self.broken(f"{told.by}: a drain ended though there were items all the time")

    def _could_end(self, since: int, until: int) -> bool:
        first = bisect_right(self._versions, since)
        before = not first or self._may_end[first - 1]
        return before or any(self._may_end[first : bisect_left(self._versions, until + 1)])
