"""Promises about items: none is lost or made, and they come out in order (I1, I2, I5), and have effect once (I9)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from fdbqueue import Position
from fdbqueue.layers.common.levels import PRIORITY
from tests.chaos.claims import HALVED, ONE_TRANSACTION, TRIED_ONCE, Claims, LeaseOf, is_unknown
from tests.chaos.history import OK, REFUSED
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import CREDIT, HAVE_LEVELS, LEVELS, ON_THE_QUEUE, Kind
from tests.chaos.motions import cause_of, is_taken
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules


class NothingLost(Invariant):
    name, says = "I1", "nothing acknowledged is lost"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._came: set[bytes] = set()
        self._out: Counter[tuple[str, Position]] = Counter()

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        for position, before, after in step.moves:
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
    kinds = tuple(kind for kind in ON_THE_QUEUE if kind is not Kind.blobs)  # "blobs" is about what theirs contain

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._contents: dict[Position, bytes] = {}

    def see(self, step: Step, replay: Replay) -> None:
        attempted = self.claims.attempted.get(step.record.by, set())
        for position, _, after in step.moves:
            if after is None:
                continue
            if position in self._contents:
                # A report takes over the values of a newcomer (I8 says when).
                # An operator may give it another one.
                changed = step.record.call.startswith(("smart#", "operate#")) and after.content in attempted
                if self._contents[position] != after.content and not changed:
                    self.broken(f"{position} has another content than it came with", step.record)
                self._contents[position] = after.content
                continue
            self._contents[position] = after.content
            self.tally["items seen"] += 1
            if after.content not in attempted and after.content not in step.left_the_dead:
                self.broken(f"{position} has a content that {step.record.by} never enqueued", step.record)

    def end(self, replay: Replay) -> None:
        known = set().union(*self.claims.attempted.values()) if self.claims.attempted else set()
        for content in self.claims.delivered - known:
            self.broken(f"the content {content.hex()} was delivered, and nobody enqueued it")
        self.tally["contents delivered"] = len(self.claims.delivered)


class Order(Invariant):
    name, says = "I5", "items go in commit order to those who come in theirs, but for what returns to its place"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._versions: list[int] = []
        self._live: list[int] = []
        self._seen: set[Position] = set()

    def see(self, step: Step, replay: Replay) -> None:
        taken = [position for position, before, after in step.moves if is_taken(step, position, before, after)]
        if taken:
            self.tally["items taken"] += len(taken)
            for last in self._last_ones(taken):
                self._taken_in_order(step, replay, last)
        for position, before, after in step.moves:
            if before is None and after is not None and position not in self._seen:
                self._seen.add(position)
                self._came(step, position)
                self.tally["items delivered as they came"] += after.state == "leased"
            if after is not None and after.state in ("leased", "delayed") and replay.high_water_mark < position.index:
                self.broken(
                    f"{position} is {after.state}, and the high-water mark is {replay.high_water_mark}", step.record
                )
        self._versions.append(step.record.version)
        self._live.append(replay.live_index())

    def _last_ones(self, taken: list[Position]) -> list[Position]:
        """Return the items in front of which none may be left: the last, or with weights the last of each level.

        With relaxed order there is none: what was among the first when it was read need not be so at the commit.
        """
        match self.rules.kind:
            case Kind.weights:
                return list({position.rank: position for position in sorted(taken)}.values())
            case Kind.relaxed:
                return []
            case _:
                return [max(taken)]

    def _taken_in_order(self, step: Step, replay: Replay, last: Position) -> None:
        name = self._subscription(step, last)
        in_front: Iterable[Position] = islice(replay.available, bisect_left(replay.available, last))
        if self.rules.kind is Kind.weights:
            in_front = (one for one in in_front if one.rank == last.rank)
        passed = next((one for one in in_front if self._wanted(replay, name, one)), None)
        if passed is not None and not self._fell_to_requests(step, replay):
            self.broken(f"{last} was taken though {passed} stood before it", step.record)

    def _fell_to_requests(self, step: Step, replay: Replay) -> bool:
        """Say whether what was taken is what fell to the requests that were served, by their places among all.

        What stands before it falls to requests in front then, which take it, or are granted it, in their turn.
        """
        taken = [position for position, before, after in step.moves if is_taken(step, position, before, after)]
        items = sorted([*replay.available, *taken])
        due: list[Position] = []
        offset = 0
        for key, wanted in sorted((replay.requests | step.served).items()):
            due += items[offset : offset + wanted] if key in step.served else []
            offset += wanted
        return bool(taken) and sorted(taken) == due[: len(taken)]

    def _subscription(self, step: Step, taken: Position) -> str:
        after = step.after[taken]
        return after.notes.subscription if after is not None else ""

    def _wanted(self, replay: Replay, name: str, position: Position) -> bool:
        """Say whether an item is wanted by who takes: by all, or by the subscription of a color."""
        standing = replay.standing(position)
        if name not in CREDIT or standing is None:
            return True
        return self.claims.headers.get(standing.content, {}).get("color") == name

    def _came(self, step: Step, position: Position) -> None:
        record = step.record
        after = step.after[position]
        if self.rules.kind in HAVE_LEVELS and after is not None:
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
        for position, before, after in step.moves:
            if before is None and after is not None and position not in self._known:
                self._known.add(position)
                self._came[after.content] += after.content not in step.left_the_dead
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
        most = 10 if verb in HALVED else 1
        if times > most or (outcome == OK and acts and not times):
            self.broken(f"{by} {call} took effect {times} times, and was told {outcome}")
        if times and (outcome == REFUSED or (outcome.startswith("error") and not unknown)):
            self.broken(f"{by} {call} took effect, and was told {outcome}")
