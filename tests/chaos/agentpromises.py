"""The promise of agent servers: exactly the items that were answered by the final OK are in, and none is lost."""

from __future__ import annotations

from collections import Counter

from tests.chaos.claims import Claims
from tests.chaos.history import OK, REFUSED
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import Kind
from tests.chaos.replay import Replay
from tests.chaos.rules import Rules


class AsAnswered(Invariant):
    name, says = "agents", "exactly the data that was answered by the final OK is in, until it is confirmed"
    kinds = (Kind.agents,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._in: set[str] = set()
        self._not_in: set[str] = set()
        self._attempted: set[str] = set()
        self._seen: Counter[str] = Counter()
        """Data that a client received, or the drain found."""
        self._drained: Counter[str] = Counter()
        self._confirmed: Counter[str] = Counter()
        self._perhaps: set[str] = set()
        """Data whose confirm was asked for, and perhaps took effect."""
        for told in claims.calls.values():
            match told.verb:
                case "agent send" | "agent cut send":
                    [sent] = (one.hex() for one in told.contents())
                    self._attempted.add(sent)
                    if told.verb == "agent send" and told.outcome == OK:
                        self._in.add(sent)
                    elif told.outcome == REFUSED or told.answer.get("whole") is False:
                        self._not_in.add(sent)
                case "agent receive" if "received" in told.answer:
                    self._seen[told.answer["received"][1]] += 1
                case "agent confirm" | "agent cut confirm":
                    confirmed = told.asked["confirms"][1]
                    if told.verb == "agent confirm" and told.outcome == OK:
                        self._confirmed[confirmed] += 1
                    elif told.outcome != REFUSED and told.answer.get("whole") is not False:
                        self._perhaps.add(confirmed)
                case "agent drain" if told.outcome == OK:
                    self._drained[told.answer["drained"]] += 1
                    self._seen[told.answer["drained"]] += 1

    def end(self, replay: Replay) -> None:
        self.tally["sent"] = len(self._in)
        self.tally["not sent"] = len(self._not_in)
        self.tally["received"] = self._seen.total() - self._drained.total()
        self.tally["confirmed"] = self._confirmed.total()
        self.tally["left for the drain"] = self._drained.total()
        for data in self._in:
            if data not in self._drained and data not in self._confirmed and data not in self._perhaps:
                self.broken(f"{data} was answered by OK, and is lost")
        for data in self._not_in & self._seen.keys():
            self.broken(f"{data} was not answered by OK, and is in")
        for data in self._seen.keys() - self._attempted:
            self.broken(f"{data} was received, and nobody sent it")
        for data in self._confirmed.keys() & self._drained.keys():
            self.broken(f"{data} was confirmed, and is still there")
        for what, times in (("confirmed", self._confirmed), ("drained", self._drained)):
            for data, count in times.items():
                if count > 1:
                    self.broken(f"{data} was {what} {count} times")
