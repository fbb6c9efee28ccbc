"""Promises of sessions: strictly serial within each (I6), fair among them (I7), and nothing lost or done twice."""

from __future__ import annotations

from collections import Counter

from fdbqueue import Position
from fdbqueue.layers.oplog import Record
from fdbqueue.layers.sessions.session.records import name_of
from fdbqueue.stored.positions import Place, pack
from tests.chaos.claims import Claims, is_unknown
from tests.chaos.history import OK, Told, value_of
from tests.chaos.history import content as content_of
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import QUANTUM, SESSION_ACKS, WITH_SESSIONS, Kind
from tests.chaos.motions import is_untaken, now_us
from tests.chaos.replay import Replay, Standing, Step
from tests.chaos.rules import Rules
from tests.chaos.sessionreplay import ItemKey, Pointed, SessionReplay, SessionStep

Used = tuple[str, str, bytes]
"""A session's name, the text of an item's position, and the token of a lease."""


def is_edit(record: Record) -> bool:
    """Return whether an operator has changed or cancelled an item by its position."""
    return record.call.startswith("session edit")


def position_of(packed: bytes) -> Position:
    """Return a packed position."""
    return Place(b"").position(packed)


class OfSessions(Invariant):
    """A promise of sessions."""

    kinds: tuple[Kind, ...] = (Kind.sessions,)

    def see(self, step: Step, replay: Replay) -> None:
        if not isinstance(step, SessionStep) or not isinstance(replay, SessionReplay):
            raise TypeError("this promise is about sessions")
        self.look(step, replay)

    def look(self, step: SessionStep, replay: SessionReplay) -> None:
        """Look at what a record did to sessions."""


def used_by(claims: Claims, verbs: frozenset[str]) -> dict[str, set[Used]]:
    """Return the leases that each process used in calls of these verbs, unless it was refused."""
    used: dict[str, set[Used]] = {}
    for (by, _), told in claims.calls.items():
        if told.verb in verbs and (told.outcome == OK or is_unknown(told)):
            used.setdefault(by, set()).add(_used(told))
    return used


def _used(told: Told) -> Used:
    session, position, token = told.asked["lease"]
    return session, position, bytes.fromhex(token)


class OneAtATime(OfSessions):
    name, says = "I6", "a session does one item at a time, in order, under the lease of one worker"

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._used = used_by(claims, frozenset({*SESSION_ACKS, "session nack", "session snooze"}))
        self._acks = used_by(claims, SESSION_ACKS)

    def look(self, step: SessionStep, replay: SessionReplay) -> None:
        for position, (before, after) in step.pointers.items():
            self._pointer(step, position, before, after, replay)
        held = {before.pointer.name: before for before, _ in step.pointers.values() if before and before.token}
        if is_edit(step.record):
            self._edited(step, replay)
        for key, (stood, stands) in step.items.items():
            if is_edit(step.record):
                continue
            if stood is not None and stood.state == "available" and (stands is None or stands.state == "dead"):
                self._ended(step, key, stood, stands, held.get(key[0]))
        touched = {name for name, _, _ in step.items}
        touched |= {one.pointer.name for both in step.pointers.values() for one in both if one is not None}
        for name in touched:
            self._fits(step.record, name, replay)

    def _edited(self, step: SessionStep, replay: SessionReplay) -> None:
        """An item was changed by its position: no worker has it in progress any more."""
        self.tally["edits"] += bool(step.items)
        for name, generation, position in step.items:
            for at in replay.leased.get(name, ()):
                pointer = replay.pointers[at]["leased"].pointer
                if (pointer.generation, pointer.current) == (generation, pack(position)):
                    self.broken(f"{position} of {name_of(name)!r} was edited, and is still in progress", step.record)
        self.tally["edits of items in progress"] += any(
            before is not None and before.token and (after is None or after.token != before.token)
            for before, after in step.pointers.values()
        )

    def _pointer(
        self,
        step: SessionStep,
        position: Position,
        before: Pointed | None,
        after: Pointed | None,
        replay: SessionReplay,
    ) -> None:
        record = step.record
        if before is not None and before.token and (after is None or after.token != before.token):
            self._left(step, before, after)
        if after is None:
            return
        name = after.pointer.name
        if sum(one.pointer.name == name for places in replay.pointers.values() for one in places.values()) > 1:
            self.broken(f"{name_of(name)!r} has several pointers", record)
        if not after.token:
            return
        if len(replay.leased[name]) > 1:
            self.broken(f"{name_of(name)!r} is leased by several workers", record)
        new = before is None or before.token != after.token
        self.tally["leases"] += new
        if after.pointer.current and (new or before is None or before.pointer.current != after.pointer.current):
            self._begun(record, after, replay)

    def _begun(self, record: Record, after: Pointed, replay: SessionReplay) -> None:
        """An item is in progress from now on: it is the first, but for those that came at the same time."""
        pointer = after.pointer
        current = position_of(pointer.current)
        ready = replay.ready.get((pointer.name, pointer.generation), [])
        if current not in ready:
            self.broken(f"{name_of(pointer.name)!r} has {current} in progress, which is not there", record)
            return
        self.tally["items begun"] += 1
        self.tally["urgent items begun"] += current.rank == 0
        first = ready[: ready.index(current)]
        passed = [
            one
            for one in first
            if record.read_version and replay.arrived[pointer.name, pointer.generation, one] <= record.read_version
        ]
        if passed:
            self.broken(f"{name_of(pointer.name)!r} has {current} in progress, behind {passed[0]}", record)

    def _fits(self, record: Record, name: bytes, replay: SessionReplay) -> None:
        """A session that has something to do has a pointer, and no other session has one."""
        stored = replay.records.get(name)
        ready = stored is not None and replay.ready.get((name, stored.generation))
        pointed = name in {one.pointer.name for places in replay.pointers.values() for one in places.values()}
        if pointed and stored is None:
            self.broken(f"{name_of(name)!r} left its pointer behind", record)
        if stored is None:
            if any(items for (one, _), items in replay.ready.items() if one == name):
                self.broken(f"{name_of(name)!r} has items and no record", record)
        elif ready and not pointed and not stored.paused and not stored.blocked:
            self.broken(f"{name_of(name)!r} has items and no pointer", record)

    def _left(self, step: SessionStep, before: Pointed, after: Pointed | None) -> None:
        record = step.record
        expired = before.notes.expires_at_us <= now_us(record)
        session = repr(name_of(before.pointer.name))
        current = position_of(before.pointer.current).text if before.pointer.current else ""
        used = (session, current, before.token) in self._used.get(record.by, ())
        own = before.notes.consumer == record.by and (not record.call or record.call.startswith("session lease"))
        self.tally["leases that expired"] += expired and not used
        untaken = is_untaken(step, before, after)
        self.tally["leases that were not taken"] += untaken
        if not (expired or used or own or untaken or is_edit(record)):
            to = "another worker" if after is not None and after.token else "the line"
            self.broken(f"{session} went to {to}, though {before.notes.consumer} has its lease", record)

    def _ended(
        self, step: SessionStep, key: ItemKey, before: Standing, after: Standing | None, held: Pointed | None
    ) -> None:
        name, _, position = key
        if after is None and 0 < before.notes.ttl_at_us <= now_us(step.record):
            self.tally["expired"] += 1
            return
        record, session = step.record, repr(name_of(name))
        if held is None:
            self.broken(f"{position} of {session} ended, and the session was not leased", record)
            return
        current = position_of(held.pointer.current) if held.pointer.current else None
        if current != position:
            self.broken(f"{position} of {session} ended, and {current} was in progress", record)
        if after is None and (session, position.text, held.token) not in self._acks.get(record.by, ()):
            self.broken(f"{position} of {session} was removed by a process that did not ack its lease", record)
        if after is not None and after.notes.attempt < self.rules.max_attempts:
            self.broken(f"{position} of {session} died at its attempt {after.notes.attempt}", record)
        self.tally["acked" if after is None else "died"] += 1


class FairTurns(OfSessions):
    name, says = "I7", "a turn ends after its quantum if another session is ready, and goes behind all that are"

    def look(self, step: SessionStep, replay: SessionReplay) -> None:
        done = Counter(
            name for (name, _, _), (stood, stands) in step.items.items() if _is_done(step.record, stood, stands)
        )
        # A session that goes to the tail has another pointer than before.
        kept = {after.pointer.name: after for _, after in step.pointers.values() if after is not None}
        for position, (before, after) in step.pointers.items():
            if before is not None and before.token and done[before.pointer.name]:
                self._counted(step.record, before, kept.get(before.pointer.name), done, replay)
            if before is None and after is not None and after.state == "available":
                self._entered(step.record, position, replay)
            if after is not None and after.token and (before is None or before.token != after.token):
                self._begun(step, position, after, replay)

    def _ready(self, record: Record, replay: SessionReplay) -> list[Position]:
        """Return the pointers that were ready when the transaction began, and still are."""
        since = replay.ready_since.items()
        return [position for position, version in since if version <= record.read_version]

    def _counted(
        self, record: Record, before: Pointed, after: Pointed | None, done: Counter[bytes], replay: SessionReplay
    ) -> None:
        name = before.pointer.name
        used = before.pointer.used + done[name]
        others = [one for one in self._ready(record, replay) if one not in replay.pointers_of(name)]
        self.tally["items done while another session was ready"] += bool(others)
        if after is None or not others:
            return
        if after.token and used >= QUANTUM:
            self.broken(f"{name_of(name)!r} began one more item after {used}, and {len(others)} others waited", record)
        same = after.pointer.current or after.state == "available"
        if same and after.pointer.used not in (used, 0):
            self.broken(f"{name_of(name)!r} did {used} items in its turn, and counts {after.pointer.used}", record)

    def _entered(self, record: Record, position: Position, replay: SessionReplay) -> None:
        self.tally["pointers that entered the line"] += 1
        behind = [one for one in self._ready(record, replay) if one > position]
        if behind and record.read_version:
            self.broken(f"a session entered the line in front of {len(behind)} others", record)

    def _begun(self, step: SessionStep, position: Position, after: Pointed, replay: SessionReplay) -> None:
        """A session is taken from the front, or from behind those that go to the requests in front."""
        record = step.record
        self.tally["turns begun"] += 1
        passed = [one for one in self._ready(record, replay) if one < position]
        self.tally["turns begun behind requests in front"] += bool(passed)
        if passed and len(passed) > replay.line_requests(since=record.read_version):
            self.broken(f"{name_of(after.pointer.name)!r} was taken in front of {len(passed)} others", record)


def _is_done(record: Record, stood: Standing | None, stands: Standing | None) -> bool:
    """Return whether an item was acked."""
    if stood is None or stood.state != "available" or stands is not None or is_edit(record):
        return False
    return not 0 < stood.notes.ttl_at_us <= now_us(record)


class SessionsLoseNothing(OfSessions):
    name, says = "sessions", "every item of a session came once, where it was put, and left once"
    kinds = WITH_SESSIONS

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._wanted: dict[bytes, tuple[str, int]] = {}
        """By content, the session and the level that its caller asked for."""
        self._surely: set[bytes] = set()
        for told in claims.calls.values():
            asked = told.asked
            if "sessions" not in asked:
                continue
            contents = [content_of(value_of(asked["name"], n, asked["size"])) for n in range(len(asked["sessions"]))]
            for one, session in zip(contents, asked["sessions"], strict=True):
                self._wanted[one] = (repr(session), asked["level"])
            if told.outcome == OK:
                self._surely.update(contents)
        self._came: Counter[bytes] = Counter()
        self._acked: Counter[Used] = Counter()
        self._told = Counter(
            _used(told) for told in claims.calls.values() if told.verb in SESSION_ACKS and told.outcome == OK
        )
        self._leases = [
            (told.by, lease) for told in claims.calls.values() for lease in told.answer.get("session leases", ())
        ]
        self._contents: dict[tuple[str, str], set[bytes]] = {}
        """What each item was, by its session and position."""

    def look(self, step: SessionStep, replay: SessionReplay) -> None:
        record = step.record
        tokens = {before.pointer.name: before.token for before, _ in step.pointers.values() if before and before.token}
        for (name, generation, position), (before, after) in step.items.items():
            session = repr(name_of(name))
            if len(replay.of_sessions.get((name, generation, position), ())) > 1:
                self.broken(f"{position} of {session} stands in two places", record)
            if after is not None:
                self._contents.setdefault((session, position.text), set()).add(after.content)
            if before is None and after is not None:
                self._came[after.content] += 1
                if self._wanted.get(after.content) != (session, position.rank):
                    self.broken(f"{position} came into {session}, and nobody put it there at this level", record)
            elif before is not None and after is None and is_edit(record):
                self.tally["cancelled"] += 1
            elif before is not None and after is None:
                self.tally["left"] += 1
                self._acked[session, position.text, tokens.get(name, b"")] += 1

    def end(self, replay: Replay) -> None:
        self.tally["came"] = self._came.total()
        for content, times in self._came.items():
            if times > 1:
                self.broken(f"an item for {self._wanted.get(content)} came {times} times")
        for content in self._surely - self._came.keys():
            self.broken(f"an item for {self._wanted[content]} was acknowledged, and never came")
        for used, times in self._told.items():
            if times > 1 or self._acked[used] != times:
                self.broken(f"{times} callers were told that their ack worked, of {used[:2]}: {self._acked[used]}")
        for by, (session, position, _, content) in self._leases:
            if bytes.fromhex(content) not in self._contents.get((session, position), ()):
                self.broken(f"{by} got {position} of {session} with another value")
        if isinstance(replay, SessionReplay):
            for (name, _, position), places in replay.of_sessions.items():
                self.broken(f"{position} of {name_of(name)!r} is left among {', '.join(places)} after the drain")
