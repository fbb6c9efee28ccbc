"""What is promised, each by its name, checked record by record while the log is replayed, and at its end.

Every one is told what a record did to the items (`Step`), and what the callers said (`Claims`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from fdbqueue import Position
from layers.levels import PRIORITY
from layers.oprecords import Record
from tests.chaos.claims import ONE_TRANSACTION, TRIED_ONCE, Claims, LeaseOf, is_unknown
from tests.chaos.history import OK, REFUSED
from tests.chaos.kinds import LEVELS, Kind
from tests.chaos.motions import cause_of, from_the_dead, is_sharing, is_taken, moves, now_us, timers_of
from tests.chaos.replay import Replay, Standing, Step
from tests.chaos.rules import Rules


class Invariant:
    """A promise."""

    name = ""
    says = ""

    kinds = tuple(Kind)
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


class NothingLost(Invariant):
    name, says = "I1", "nothing acknowledged is lost"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._came: set[bytes] = set()
        self._out: Counter[tuple[str, Position]] = Counter()

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        for position, before, after in moves(step):
            if before is None and after is not None:
                self._came.add(after.content)
            if before is not None and after is None:
                cause = cause_of(step, position, before, self.claims)
                self.tally[cause] += 1
                if cause == "taken out":
                    self._out[record.by, position] += 1
                elif cause == "vanished":
                    self.broken(f"{position} vanished from among the {before.state} items", record)
            if before is None and after is not None and self._out[record.by, position]:
                self._out[record.by, position] -= 1  # nobody wanted it any more, and it went back
                self.tally["went back"] += 1

    def end(self, replay: Replay) -> None:
        for content in self.claims.acknowledged - self._came:
            self.broken(f"the content {content.hex()} was acknowledged and never came")
        for position, places in replay.items.items():
            self.broken(f"{position} is still {', '.join(places)} after the drain")
        for (by, position), times in self._out.items():
            told = self.claims.taken_out[by, position]
            if times > told:
                if by in self.claims.in_doubt:
                    self.tally["taken out by a call that did not learn of it"] += 1
                else:
                    self.broken(f"{position} was taken out by {by}, and none of its callers got it")


class NothingMade(Invariant):
    name, says = "I2", "nothing comes out that was not put in"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._contents: dict[Position, bytes] = {}

    def see(self, step: Step, replay: Replay) -> None:
        attempted = self.claims.attempted.get(step.record.by, set())
        for position, _, after in moves(step):
            if after is None:
                continue
            if position in self._contents:
                # A report takes over the values of a newcomer (I8 says when).
                smart = step.record.call.startswith("smart#") and after.content in attempted
                if self._contents[position] != after.content and not smart:
                    self.broken(f"{position} has another content than it came with", step.record)
                self._contents[position] = after.content
                continue
            self._contents[position] = after.content
            self.tally["items seen"] += 1
            if after.content not in attempted and not from_the_dead(step, after.content):
                self.broken(f"{position} has a content that {step.record.by} never enqueued", step.record)

    def end(self, replay: Replay) -> None:
        known = set().union(*self.claims.attempted.values()) if self.claims.attempted else set()
        for content in self.claims.delivered - known:
            self.broken(f"the content {content.hex()} was delivered, and nobody enqueued it")
        self.tally["contents delivered"] = len(self.claims.delivered)


class OneLease(Invariant):
    name, says = "I3", "at most one live lease per item; a stale token can neither confirm nor extend"

    def see(self, step: Step, replay: Replay) -> None:
        for position in step.twice:
            self.broken(f"{position} stands in two places", step.record)
        for position, before, after in moves(step):
            if after is not None and after.state == "leased":
                self._leased(step, position, before, after)
            if before is not None and before.state == "leased":
                self._left(step, position, before, after)

    def _leased(self, step: Step, position: Position, before: Standing | None, after: Standing) -> None:
        if not after.notes.token:
            self.broken(f"{position} is leased without a token", step.record)
        same = before is not None and before.state == "leased" and before.notes.token == after.notes.token
        tried = before.notes.attempt if before is not None else 0
        if after.notes.attempt != tried + (not same):
            self.broken(f"{position} has its attempt {after.notes.attempt} after {tried}", step.record)
        self.tally["leases"] += not same

    def _left(self, step: Step, position: Position, before: Standing, after: Standing | None) -> None:
        record, notes = step.record, before.notes
        expired = notes.expires_at_us <= now_us(record)
        mine = notes.consumer == record.by and is_sharing(record.call)
        used = self.claims.used.get(record.by, {})
        lease: LeaseOf = (position, notes.token)
        if after is not None and after.state == "leased" and after.notes.token == notes.token:
            kind, fine = "extended", mine or lease in used.get("extend", ())
        elif after is not None and after.state == "leased":
            kind, fine = "leased again", expired
        elif after is None and step.counts["dequeued"] > 0:
            kind, fine = "acked", lease in used.get("ack", ()) or mine or expired
        else:
            kind, fine = "given back", expired or mine or lease in used.get("return", ())
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
        for position, before, after in moves(step):
            if position in self._acked and after is not None:
                self.broken(f"{position} is {after.state} though it was acked", step.record)
            if before is None or before.state != "leased":
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

    def end(self, replay: Replay) -> None:
        for kind, told in self.claims.told_used.items():
            ends = self._ends["ack"] + self._ends["return"] if kind == "return" else self._ends[kind]
            for lease, times in told.items():
                self.tally[f"told that it worked: {kind}"] += times
                if ends[lease] < times:
                    self.broken(f"{lease[0]}: {times} callers were told that their {kind} worked, of {ends[lease]}")
                if kind == "ack" and times > 1:
                    self.broken(f"{lease[0]}: the same lease was acked {times} times")


class Order(Invariant):
    name, says = "I5", "delivery order is commit order, but for what returns to its place"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._versions: list[int] = []
        self._live: list[int] = []
        self._seen: set[Position] = set()

    def see(self, step: Step, replay: Replay) -> None:
        taken = [position for position, before, after in moves(step) if is_taken(step, position, before, after)]
        if taken:
            self.tally["items taken"] += len(taken)
            last = max(taken)
            name = self._subscription(step, last)
            passed = next((one for one in replay.available if one < last and self._wanted(replay, name, one)), None)
            if passed is not None:
                self.broken(f"{last} was taken though {passed} stood before it", step.record)
        for position, before, after in moves(step):
            if before is None and after is not None and position not in self._seen:
                self._seen.add(position)
                self._came(step, position)
            if after is not None and after.state in ("leased", "delayed") and replay.tail < position.index:
                self.broken(f"{position} is {after.state}, and the tail is at {replay.tail}", step.record)
        self._versions.append(step.record.version)
        self._live.append(replay.live_index())

    def _subscription(self, step: Step, taken: Position) -> str:
        after = step.after[taken]
        return after.notes.subscription if after is not None else ""

    def _wanted(self, replay: Replay, name: str, position: Position) -> bool:
        """Say whether an item is wanted by who takes: by all, or by the subscription of a color."""
        standing = replay.standing(position)
        if not name or standing is None:
            return True
        return self.claims.headers.get(standing.content, {}).get("color") == name

    def _came(self, step: Step, position: Position) -> None:
        record = step.record
        after = step.after[position]
        if self.rules.kind is Kind.priority and after is not None:
            priority = self.claims.headers.get(after.content, {}).get(PRIORITY, LEVELS.count - 1)
            if position.rank != priority:
                self.broken(f"{position} has not the rank of its priority {priority}", record)
        read = record.call_version if record.call.startswith("bulk") else record.read_version
        if not read:
            self.tally["came, and what it had read is not known"] += 1
            return
        self.tally["items came"] += 1
        at = bisect_right(self._versions, read)
        if at and position.index <= self._live[at - 1]:
            self.broken(f"{position} came behind {self._live[at - 1]}, which its transaction had seen", record)


class ZeroOrOnce(Invariant):
    name, says = "I9", "an aborted or unknown commit takes effect 0 or 1 times"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._records: Counter[tuple[str, str]] = Counter()
        self._came: Counter[bytes] = Counter()
        self._leased: Counter[LeaseOf] = Counter()
        self._known: set[Position] = set()

    def see(self, step: Step, replay: Replay) -> None:
        if step.before:
            self._records[step.record.by, step.record.call] += 1
        for position, before, after in moves(step):
            if before is None and after is not None and position not in self._known:
                self._known.add(position)
                self._came[after.content] += not from_the_dead(step, after.content)
            if after is not None and after.state == "leased":
                self._leased[position, after.notes.token] += 1

    def end(self, replay: Replay) -> None:
        for content, times in self._came.items():
            if times > 1:
                self.broken(f"the content {content.hex()} came {times} times")
        self.tally["contents that came without an acknowledgement"] = len(self._came.keys() - self.claims.acknowledged)
        for lease, times in self.claims.leased.items():
            if not self._leased[lease]:
                self.broken(f"a caller has a lease of {lease[0]} that was never given")
            if times > 1:
                self.broken(f"{times} callers have the same lease of {lease[0]}")
        for (by, position), times in self.claims.taken_out.items():
            if times > 1:
                self.broken(f"{by} took {position} out {times} times")
        for (by, call), told in self.claims.calls.items():
            self._call(
                by, call, told.verb, told.outcome, is_unknown(told), bool(told.asked or told.answer.get("items"))
            )

    def _call(self, by: str, call: str, verb: str, outcome: str, unknown: bool, acts: bool) -> None:
        if outcome.startswith("error") and outcome != "error 1031" and verb not in TRIED_ONCE:
            where = self.claims.calls[by, call].answer.get("where", "")
            self.broken(f"{by} {call} ended with {outcome}, which it should have repeated\n{where}")
        if verb not in ONE_TRANSACTION:
            return
        times = self._records[by, call]
        self.tally[
            "unknown, and took effect" if unknown and times else "unknown, and did not" if unknown else "known"
        ] += 1
        if times > 1 or (outcome == OK and acts and times != 1):
            self.broken(f"{by} {call} took effect {times} times, and was told {outcome}")
        if times and (outcome == REFUSED or (outcome.startswith("error") and not unknown)):
            self.broken(f"{by} {call} took effect, and was told {outcome}")


class Recount(Invariant):
    name, says = "I10", "counters equal a recount"

    def see(self, step: Step, replay: Replay) -> None:
        counters, sizes = replay.counters, replay.sizes
        gone = sum(counters[name] for name in ("dequeued", "expired", "purged", "deleted"))
        away = sum(counters[name] for name in ("leased", "delayed", "dead"))
        wrong = [name for name in ("leased", "delayed", "dead") if counters[name] != sizes[name]]
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
        for position, _, after in moves(step):
            wanted = set(timers_of(after))
            found = replay.timers.get(position, set())
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
        if any(replay.timers.values()):
            self.broken("timers are left, long after they fell due")
