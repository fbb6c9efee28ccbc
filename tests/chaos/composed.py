"""Promises of layers that stand on the queue in some rounds: smart checks (I8), deadlines, credit (I12), owners."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import Any

from fdbqueue import Position
from fdbqueue.layers.oplog import Record
from fdbqueue.layers.smart.scanning import MISSED
from tests.chaos.claims import Claims
from tests.chaos.history import OK, content
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import EXCLUSIVE, Kind, credit_of
from tests.chaos.motions import is_taken
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules


class SerialDecision(Invariant):
    name, says = "I8", "a smart put's decision is the one of the serial state at its commit"
    kinds = (Kind.smart,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._reports: dict[str, list[Position]] = {}
        """By key, the reports that can be asked, in queue order, as of the last record."""
        self._messages: dict[Position, dict[str, Any]] = {}

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        if record.call.startswith("smart#") and any(step.before):
            told = self.claims.calls.get((record.by, record.call))
            if told is None:
                self.broken("a smart enqueue that nobody called", record)
            else:
                self._decided(step, told.asked["message"], told.answer if told.outcome == OK else None)
        self._follow(step)

    def _decided(self, step: Step, new: dict[str, Any], answer: dict[str, Any] | None) -> None:
        queued = self._reports.get(new["key"], [])
        by = next((position for position in queued if self._messages[position]["lane"] == new["lane"]), None)
        expected = "queue" if by is None else _DECISIONS[new["type"]]
        found, where = self._found(step, new, by)
        self.tally[expected if by is not None else "nobody cared"] += 1
        self.tally["reports that were there to ask"] += len(queued)
        if found != expected:
            self.broken(f"the decision about {new} was {found!r}, and should be {expected!r} by {by}", step.record)
        if answer is not None:
            told = (answer["decision"], answer["by"], answer["position"])
            if told != (expected, by and by.text, where and where.text):
                self.broken(f"of {new} was told {told}, and it was {expected!r} by {by}, at {where}", step.record)

    def _found(self, step: Step, new: dict[str, Any], by: Position | None) -> tuple[str, Position | None]:
        """Return the decision that the record carried out, and where the newcomer stands, if it came."""
        came = [position for position, before, after in step.moves if before is None and after is not None]
        deleted = [position for position, before, after in step.moves if before is not None and after is None]
        rewritten = [
            position for position, before, after in step.moves if before and after and before.content != after.content
        ]
        where = came[0] if came else None
        if len(came) > 1 or any(position != by for position in (*deleted, *rewritten)):
            return f"{len(came)} came, {deleted} deleted, {rewritten} rewritten", where
        if came:
            return "queue and delete" if deleted else "queue", where
        if rewritten:
            after = step.after[rewritten[0]]
            return "ignore" if after and after.content == content(new) else "ignore, with other values", None
        return "ignore and delete" if deleted else "ignore, without its values", None

    def _follow(self, step: Step) -> None:
        for position, _, after in step.moves:
            old = self._messages.pop(position, None)
            if old is not None:
                self._reports[old["key"]].remove(position)
            # A leased item is not asked, and neither are messages of other types.
            message = self.claims.messages.get(after.content) if after is not None else None
            asked = after is not None and after.state in ("available", "delayed")
            if message is not None and asked and message["type"] == "report":
                self._messages[position] = message
                insort(self._reports.setdefault(message["key"], []), position)


_DECISIONS = {"report": "ignore", "confirm": "ignore and delete", "override": "queue and delete"}


class ToldOnce(Invariant):
    name, says = "deadlines", "a missed deadline is claimed once, while its item is there"
    kinds = (Kind.smart,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._there: set[bytes] = set()
        self._claimed: Counter[tuple[str, str, int]] = Counter()

    def see(self, step: Step, replay: Replay) -> None:
        record, layout = step.record, replay.layout
        deadlines = layout.part_of(layout.deadlines[MISSED])
        for change in record.changes:
            if not change.key.startswith(deadlines):
                continue
            if change.operation == "set":
                self._there.add(change.key)
                continue
            if record.call.startswith("missed#"):
                _, at_us, position = layout.own_parts("deadlines", layout.prefix + change.key)
                self._claimed[record.by, position.text, at_us] += 1
                if change.key not in self._there:
                    self.broken(f"the deadline of {position} was claimed when it had gone", record)
            self._there.discard(change.key)

    def end(self, replay: Replay) -> None:
        self.tally["claimed"] = self._claimed.total()
        told = Counter(
            (by, position, at_us)
            for (by, _), call in self.claims.calls.items()
            for position, at_us in call.answer.get("missed", ())
        )
        self.tally["told"] = told.total()
        for (by, position, at_us), times in (told - self._claimed).items():
            self.broken(f"{by} was told {times} times too often of the deadline {at_us} of {position}")


class WithinCredit(Invariant):
    name, says = "I12", "credit is never below 0 or above its grant"
    kinds = (Kind.subscriptions, Kind.exclusive)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._credit = credit_of(rules.kind)
        self._leased: dict[str, set[Position]] = {name: set() for name in self._credit}

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        for position, before, after in step.moves:
            old = before.notes.subscription if before is not None and before.state == "leased" else ""
            new = after.notes.subscription if after is not None and after.state == "leased" else ""
            if old:
                self._leased[old].discard(position)
            if new:
                self._leased[new].add(position)
                self._taken(new, record, again=old == new)
        for name, credit in self._credit.items():
            held = replay.held.get(name, 0)
            if held != len(self._leased[name]):
                self.broken(f"{name} has {len(self._leased[name])} items, and {held} are counted", record)
            if held > credit:
                self.broken(f"{name} has {held} items, over its credit of {credit}", record)
            self.tally["times that all credit was used"] += held == credit

    def _taken(self, name: str, record: Record, *, again: bool) -> None:
        self.tally[f"leases for {name}"] += not again


class OneOwner(Invariant):
    name, says = "owner", "an exclusive subscription's items go to who took it over last"
    kinds = (Kind.exclusive,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._owner: tuple[str, int] | None = None
        """Process and hand; None: nobody."""

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        key = replay.layout.subscriptions.pack((EXCLUSIVE,))[len(replay.layout.prefix) :]
        if any(change.operation == "set" and change.key == key for change in record.changes):
            if record.call.startswith("take over#"):
                self._owner = self._hand(record)
                self.tally["takeovers"] += 1
            elif record.call.startswith("reset#"):
                self._owner = None
        if not record.call.startswith("owned lease#"):
            return
        for position, before, after in step.moves:
            if is_taken(step, position, before, after):
                self.tally["leases"] += 1
                if self._hand(record) != self._owner:
                    self.broken(f"{position} went to hand {self._hand(record)}, and {self._owner} owns it", record)

    def _hand(self, record: Record) -> tuple[str, int] | None:
        told = self.claims.calls.get((record.by, record.call))
        return (record.by, told.asked["hand"]) if told is not None else None
