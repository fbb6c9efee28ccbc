"""Invariant: one promise, as the oracle checks it."""

from __future__ import annotations

from collections import Counter

from fdbqueue.layers.oplog import Record
from tests.chaos.claims import Claims
from tests.chaos.kinds import ON_THE_QUEUE, Kind
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules


class Invariant:
    """A promise."""

    name = ""
    says = ""

    kinds: tuple[Kind, ...] = ON_THE_QUEUE
    """In which rounds it can be kept or broken."""

    def __init__(self, claims: Claims, rules: Rules) -> None:
        self.claims = claims
        self.rules = rules
        self.violations: list[str] = []
        self.tally: Counter[str] = Counter()
        """What was seen, for those who want to know that there was something to check."""

    def see(self, step: Step, replay: Replay) -> None:
        """Look at what a record did."""

    def end(self, replay: Replay) -> None:
        """Look at what is left when the queue was drained."""

    def broken(self, what: str, record: Record | None = None) -> None:
        """Tell a violation."""
        where = f" [{record.by} {record.call or 'no call'} at {record.stamp.hex()}]" if record else ""
        self.violations.append(what + where)
