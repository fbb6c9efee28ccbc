"""The promise of results: every end is told, a follow-up goes once and never too early, a group ends with its last."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from fdbqueue import Position
from fdbqueue.layers.oplog import Record
from fdbqueue.layers.oplog._records import digest
from fdbqueue.moves.ends import CANCELLED, DONE, GroupRecord, read_group
from fdbqueue.moves.ends import OutcomeRecord as Outcome
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import Due
from tests.chaos.claims import Claims
from tests.chaos.history import OK, REFUSED
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import Kind
from tests.chaos.motions import cause_of
from tests.chaos.replay import Replay, Standing, Step
from tests.chaos.rules import Rules

IN_QUEUE = ("available", "leased", "delayed")
HOW = {"acked": "done", "taken out": "done", "expired": "expired", "dropped": "dropped", "purged": "purged"}
"""By the cause for which an item is gone, how it ended."""


def part_of(layout: Layout, key: bytes) -> bytes:
    """Return a key without the queue's prefix, as the replay has it."""
    return key[len(layout.prefix) :]


class EndsAreTold(Invariant):
    name, says = "results", "every end is told; follow-ups go once, after it; a group ends with its last member"
    kinds = (Kind.results,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._ends: defaultdict[Position, set[str]] = defaultdict(set)
        """How each item ended; a dead letter that was redriven has several ends."""
        self._after: defaultdict[Position, set[Position]] = defaultdict(set)
        """By the position of a held follow-up, the items that it follows: one, or also its redriven successors."""
        self._after_groups: dict[Position, str] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._forgotten: set[Position] = set()
        """Items whose outcomes were removed after their time."""

    def see(self, step: Step, replay: Replay) -> None:
        layout, record = replay.layout, step.record
        self._follow_groups(record, replay)
        for position, before, after in step.moves:
            known = after or before
            for prefix, packed in known.notes.then if known is not None else ():
                if prefix == layout.prefix:
                    self._after[layout.available.position(layout.prefix + packed)].add(position)
            if before is not None and after is None:
                how = HOW.get(cause_of(step, position, before, self.claims), "")
                self._ends[position].add(how)
                self.tally[f"ended: {how or 'otherwise'}"] += bool(before.notes.keep_s)
            elif after is not None and after.state == "dead":
                self._ends[position].add("dead")
            self._told(record, position, before, after, replay)
        for position, before, after in step.moves:
            if before is not None and before.notes.held and not (after is not None and after.notes.held):
                self._let_go(step, position, before, after)
        for change in record.changes:
            whole = layout.prefix + change.key
            if change.operation == "clear" and whole.startswith(layout.completions.prefix):
                self._forgotten.add(layout.completions.position(whole))

    def _told(
        self, record: Record, position: Position, before: Standing | None, after: Standing | None, replay: Replay
    ) -> None:
        """The completion of an item is pending while the item is in the queue, and has an outcome after that."""
        known = after or before
        if known is None or not known.notes.keep_s:
            return
        stored = replay.values.get(part_of(replay.layout, replay.layout.completions.key(pack(position))))
        pending = digest(msgspec.msgpack.encode(Outcome(until_us=known.notes.ttl_at_us)))
        if after is not None and after.state in IN_QUEUE:
            if stored != pending:
                self.broken(f"{position} is {after.state}, and its completion is not pending", record)
        elif before is not None and before.state in IN_QUEUE:
            self.tally["completions that were told"] += 1
            if stored in (None, pending):
                self.broken(f"{position} has ended, and its completion was not told", record)
            if not any(kind == Due.RESULT for _, kind in replay.timers.get(position, ())):
                self.broken(f"the outcome of {position} has no timer", record)

    def _let_go(self, step: Step, position: Position, before: Standing, after: Standing | None) -> None:
        """A held follow-up goes if what it follows is done, and is dropped if it ended otherwise."""
        record = step.record
        group = self._groups.get(self._after_groups.get(position, ""))
        ends = {how for one in self._after[position] for how in self._ends[one]}
        if group is not None:
            ends.add("done" if group.state == DONE and group.ended_at_us else group.state)
        if after is not None:
            self.tally["follow-ups that went"] += 1
            if "done" not in ends:
                self.broken(f"{position} went before what it follows was done: {sorted(ends)}", record)
            return
        how = HOW.get(cause_of(step, position, before, self.claims), "")
        self.tally[f"follow-ups: {how}"] += 1
        if how != "expired" and not ends & {"expired", "dropped", "purged", CANCELLED}:
            self.broken(f"{position} was removed, and what it follows ended so: {sorted(ends)}", record)

    def _follow_groups(self, record: Record, replay: Replay) -> None:
        """A group has ended if and only if it has no open member and no hold."""
        layout = replay.layout
        touched: set[str] = set()
        for change in record.changes:
            whole = layout.prefix + change.key
            if not layout.groups.contains(whole):
                continue
            name, *rest = layout.groups.unpack(whole) if change.operation != "clear_range" else _name_in(layout, whole)
            touched.add(name)
            if change.operation == "set" and rest == ["record"]:
                self._groups[name] = read_group(change.notes)
                for prefix, packed in self._groups[name].then:
                    if prefix == layout.prefix:
                        self._after_groups[layout.available.position(prefix + packed)] = name
        for name in touched:
            space = layout.groups[name]
            if part_of(layout, space.pack(("record",))) not in replay.values:
                continue  # it was removed after its time
            members = replay.under(part_of(layout, space["member"].key()))
            holds = replay.under(part_of(layout, space["hold"].key()))
            ended = self._groups[name].ended_at_us > 0
            self.tally["groups that ended"] += ended
            if ended and (members or holds):
                self.broken(f"{name} has ended with {len(members)} members and {len(holds)} holds", record)
            if not ended and not members and not holds:
                self.broken(f"{name} has no members and no holds, and has not ended", record)

    def end(self, replay: Replay) -> None:
        layout = replay.layout
        for prefix in (layout.completions.prefix, layout.groups.key()):
            if left := replay.under(part_of(layout, prefix)):
                self.broken(f"{len(left)} keys of ends are left, such as {left[0]!r}")
        given: defaultdict[str, set[str]] = defaultdict(set)
        surely: dict[str, str] = {}
        for told in self.claims.calls.values():
            if told.verb == "ack with result" and told.outcome != REFUSED:
                [[text, _]] = told.asked["claims"]
                given[text].add(told.asked["result"])
                if told.outcome == OK:
                    surely[text] = told.asked["result"]
        results: defaultdict[str, set[str]] = defaultdict(set)
        for told in self.claims.calls.values():
            if told.verb == "wait" and "ended" in told.answer:
                self._waited(told.asked["of"], told.answer["ended"])
                if told.answer["ended"] == DONE:
                    results[told.asked["of"]].add(told.answer["result"])
        for text, found in results.items():
            may = {surely[text]} if text in surely else given[text] | {"None"}
            if len(found) > 1 or not found <= may:
                self.broken(f"{text} was told to have the results {found}, and got {may}")

    def _waited(self, text: str, ended: str) -> None:
        """A caller was told of an end that the item has had."""
        position = Position.parse(text)
        self.tally[f"callers that were told: {ended}"] += 1
        if ended == "gone":
            if position not in self._forgotten:
                self.broken(f"a caller was told that {text} is gone, and its outcome was not removed")
            return
        as_ended = {"deleted": "dropped", CANCELLED: "dropped"}.get(ended, ended)
        if as_ended not in self._ends[position]:
            self.broken(f"a caller was told that {text} ended as {ended}, and it ended so: {self._ends[position]}")


def _name_in(layout: Layout, begin: bytes) -> tuple[str, ...]:
    """Return the group's name in the begin of a range of its keys."""
    found: tuple[str, ...] = layout.groups.unpack(begin)
    return found
