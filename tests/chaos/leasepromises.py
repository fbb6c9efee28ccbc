"""Promises about leases, and what keeps them: one at a time, ended once, counted and timed (I3, I4, I10, I11)."""

from __future__ import annotations

from collections import Counter

from fdbqueue import Position
from fdbqueue.stored.shapes import Due
from tests.chaos.claims import WAITS, Claims, LeaseOf
from tests.chaos.invariant import Invariant
from tests.chaos.motions import is_sharing, is_untaken, now_us, timers_of
from tests.chaos.operatorpromises import operated_on
from tests.chaos.replay import Replay, Standing, Step
from tests.chaos.rules import Rules

OF_ITEMS = (Due.LEASE, Due.DELAY, Due.TTL)
"""Kinds of timers that an item has where it is. Others are of ends, which are removed later."""
AWAY = ("leased", "delayed", "dead", "claimed")
"""States in which items are counted."""


class OneLease(Invariant):
    name, says = "I3", "at most one live lease per item; a stale token can neither confirm nor extend"

    def see(self, step: Step, replay: Replay) -> None:
        for position in step.twice:
            self.broken(f"{position} stands in two places", step.record)
        for position, before, after in step.moves:
            if after is not None and after.state == "leased":
                self._leased(step, position, before, after)
            if before is not None and before.state == "leased":
                self._left(step, position, before, after)

    def _leased(self, step: Step, position: Position, before: Standing | None, after: Standing) -> None:
        if not after.notes.token:
            self.broken(f"{position} is leased without a token", step.record)
        same = before is not None and before.state == "leased" and before.notes.token == after.notes.token
        tried = before.notes.attempt if before is not None else 0
        untaken = before is not None and before.state == "leased" and is_untaken(step, before, after)
        if after.notes.attempt != tried + (not same) - untaken:
            self.broken(f"{position} has its attempt {after.notes.attempt} after {tried}", step.record)
        self.tally["leases"] += not same

    def _left(self, step: Step, position: Position, before: Standing, after: Standing | None) -> None:
        record, notes = step.record, before.notes
        expired = notes.expires_at_us <= now_us(record)
        # A delivered item is leased in its subscription's name, until the call that waits for it collects it. A call
        # whose commit's outcome is unknown gives it back.
        delivered = notes.consumer == notes.subscription and record.call.startswith(WAITS)
        mine = delivered or (notes.consumer == record.by and is_sharing(record.call))
        used = self.claims.used.get(record.by, {})
        lease: LeaseOf = (position, notes.token)
        if after is not None and after.state == "leased" and after.notes.token == notes.token:
            kind, fine = "extended", mine or lease in used.get("extend", ())
        elif after is not None and after.state == "leased":
            kind, fine = "leased again", expired or is_untaken(step, before, after)
        elif after is None and step.counts["dequeued"] > 0:
            kind, fine = "acked", lease in used.get("ack", ()) or mine or expired or is_untaken(step, before, None)
        else:
            kind, fine = "given back", expired or mine or lease in used.get("return", ())
            if not fine and is_untaken(step, before, after):
                kind, fine = "given back untaken", True
            if not fine and operated_on(self.claims, record) == position:
                kind, fine = "taken away by an operator", True
        self.tally[kind + (" after it expired" if expired and kind != "acked" else "")] += 1
        if not fine:
            self.broken(f"{position} was {kind} by {record.by}, who had not its lease of {notes.consumer}", record)


class AckOrRedelivery(Invariant):
    name, says = "I4", "confirming and redelivering never both succeed"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._ends: dict[str, Counter[LeaseOf]] = {"ack": Counter(), "return": Counter(), "extend": Counter()}
        self._acked: set[Position] = set()

    def see(self, step: Step, replay: Replay) -> None:
        for position, before, after in step.moves:
            if position in self._acked and after is not None:
                self.broken(f"{position} is {after.state} though it was acked", step.record)
            if before is None or before.state != "leased" or operated_on(self.claims, step.record) == position:
                continue
            lease: LeaseOf = (position, before.notes.token)
            if after is None:
                self._ends["ack"][lease] += 1
                if lease in self.claims.used.get(step.record.by, {}).get("ack", ()):
                    self._acked.add(position)
            elif after.state == "leased" and after.notes.token == before.notes.token:
                self._ends["extend"][lease] += 1
            else:
                self._ends["return"][lease] += 1
            if after is not None and after.state == "dead" and before.notes.attempt < self.rules.max_attempts:
                self.broken(f"{position} died at its attempt {before.notes.attempt}", step.record)
            if after is not None and after.state == "dead" and 0 < after.notes.ttl_at_us <= after.notes.died_at_us:
                self.broken(f"{position} is a dead letter though its time to live was over", step.record)

    def end(self, replay: Replay) -> None:
        for kind, told in self.claims.told_used.items():
            ends = self._ends["ack"] + self._ends["return"] if kind == "return" else self._ends[kind]
            for lease, times in told.items():
                self.tally[f"told that it worked: {kind}"] += times
                if ends[lease] < times:
                    self.broken(f"{lease[0]}: {times} callers were told that their {kind} worked, of {ends[lease]}")
                if kind == "ack" and times > 1:
                    self.broken(f"{lease[0]}: the same lease was acked {times} times")


class Recount(Invariant):
    name, says = "I10", "counters equal a recount"

    def see(self, step: Step, replay: Replay) -> None:
        counters, sizes = replay.counters, replay.sizes
        gone = sum(counters[name] for name in ("dequeued", "expired", "purged", "deleted"))
        away = sum(counters[name] for name in AWAY)
        wrong = [name for name in AWAY if counters[name] != sizes[name]]
        if counters["enqueued"] - gone - away != sizes["available"]:
            wrong.append("available")
        if +replay.levels != +replay.ranks:
            wrong.append("levels")
        if wrong:
            self.broken(
                f"the counters of {', '.join(wrong)} are wrong: {dict(counters)} for {dict(sizes)}", step.record
            )
        self.tally["recounts"] += 1


class Swept(Invariant):
    name, says = "I11", "dead requests and leases are swept within a stated time"

    def see(self, step: Step, replay: Replay) -> None:
        for position, _, after in step.moves:
            wanted = set(timers_of(after))
            found = {timer for timer in replay.timers.get(position, ()) if timer[1] in OF_ITEMS}
            if wanted - found:
                self.broken(f"{position} is {after.state if after else 'gone'} without its timer", step.record)
            if found - wanted:
                self.broken(f"{position} left a timer behind", step.record)
            self.tally["timers"] += len(wanted)

    def end(self, replay: Replay) -> None:
        requests = replay.layout.requests.key()[len(replay.layout.prefix) :]
        left = [key for key in replay.values if key.startswith(requests)]
        if left:
            self.broken(f"{len(left)} requests are left, long after they expired")
        timers = [(position, *timer) for position, of_it in replay.timers.items() for timer in sorted(of_it)]
        if timers:
            told = ", ".join(f"{kind} of {position} at {at_us} us" for position, at_us, kind in timers[:5])
            self.broken(f"{len(timers)} timers are left, long after they fell due: {told}")
