"""Promises about streams: what a stream took is in its sink, once, and nothing else is."""

from __future__ import annotations

from fdbqueue import Position
from tests.chaos.claims import Claims
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import Kind
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules
from tests.chaos.streamhands import SUNK


class StreamsLoseNothing(Invariant):
    name, says = "streams", "every item that a stream acked is in its sink, once, and no other item is"
    kinds = (Kind.streams,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._acked: dict[Position, bytes] = {}

    def see(self, step: Step, replay: Replay) -> None:
        for position, before, after in step.moves:
            if after is not None and after.state == "claimed":
                self.tally["claimed"] += before is None or before.state != "claimed"
                if position in self._acked:
                    self.broken(f"{position} is claimed though it was acked", step.record)
            if before is not None and before.state == "claimed" and after is None:
                self._acked[position] = before.content

    def end(self, replay: Replay) -> None:
        sunk: dict[Position, bytes] = {}
        for told in self.claims.calls.values():
            if told.verb != SUNK:
                continue
            for text, content in told.answer["items"]:
                position = Position.parse(text)
                if position in sunk:
                    self.broken(f"{position} is in a sink twice")
                sunk[position] = bytes.fromhex(content)
        self.tally["in sinks"] = len(sunk)
        for position in self._acked.keys() - sunk.keys():
            self.broken(f"{position} was acked by its stream, and no sink has it")
        for position in sunk.keys() - self._acked.keys():
            self.broken(f"{position} is in a sink, and its stream did not ack it")
        for position in sunk.keys() & self._acked.keys():
            if sunk[position] != self._acked[position]:
                self.broken(f"{position} is in a sink with another content")
