"""Whatever transactions interleave, each decision is the one that the serial state at its commit gives.

Random operations run in transactions that are open at the same time, each logging under its commit's versionstamp what
it was told. Afterwards the log is replayed in commit order against a plain model, which has to be told the same.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import LeaseLost, Position, QueueFull
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Lease
from fdbqueue.layers.smart import Limit, SmartQueue
from fdbqueue.layers.smart.types import (
    EVERYTHING,
    OWN_KEY,
    OWN_TYPE,
    Answer,
    Asked,
    Decision,
    MessageType,
    Outcome,
    Replace,
    Sees,
    keyed,
)
from tests.helpers.clock import Clock
from tests.helpers.smart import smart_queue

LIFE = 10.0
LIMIT = 2
SCOPES: dict[str, Sees] = {
    "all": EVERYTHING,
    "own": OWN_TYPE,
    "key": OWN_KEY,
    "cross": keyed("key", "cross"),
    "capped": OWN_KEY,
}
_ANSWERS = ("don't care", "don't care", "take over", "queue", "queue and delete", "ignore and delete", "ignore")


def said(kind: str, mine: int, other: int, state: str) -> str:
    """Return what a queued message says to a newcomer, in the model and in the check."""
    answer = _ANSWERS[(3 * mine + 5 * other + len(kind)) % len(_ANSWERS)]
    if kind == "capped":
        return "don't care"
    return "queue" if state == "leased" and answer == "take over" else answer


def check(queued: dict[str, Any], new: dict[str, Any], asked: Asked) -> Answer:
    answer = said(queued["type"], queued["n"], new["n"], asked.state)
    return Replace({**queued, "n": new["n"]}) if answer == "take over" else Decision(answer)


def types() -> list[MessageType]:
    return [
        MessageType(
            name,
            check=check,
            key=lambda message: message["key"],
            sees=sees,
            expires=LIFE if name == "own" else None,
            key_limit=Limit(LIMIT, "drop oldest") if name == "capped" else None,
        )
        for name, sees in SCOPES.items()
    ]


@dataclass
class Modelled:
    kind: str
    key: int
    n: int
    state: str = "available"
    ends: float | None = None
    token: bytes = b""


@dataclass
class Serial:
    """The plain model: one operation after the other."""

    items: dict[Position, Modelled] = field(default_factory=dict)

    def in_order(self, wanted: Callable[[Modelled], bool] = lambda item: True) -> list[Position]:
        return [position for position in sorted(self.items) if wanted(self.items[position])]

    def enqueue(self, now: float, message: dict[str, Any], told: Any) -> Any:
        """Return what the enqueue has to be told; its position is taken from what it was told."""
        kind, key, n = message["type"], message["key"], message["n"]
        expired = []
        by, answer = None, "don't care"
        for position in self.in_order(lambda item: sees(kind, key, item)):
            item = self.items[position]
            if item.ends is not None and item.ends <= now:
                expired += [position] if item.state != "leased" else []
                continue
            answer = said(item.kind, item.n, n, item.state)
            if answer != "don't care":
                by = position
                break
        deleted = [by] if by is not None and answer.endswith("delete") else []
        queued = answer.startswith(("don't", "queue"))
        if queued and kind == "capped":
            alike = self.in_order(lambda item: (item.kind, item.key) == (kind, key))
            standing = [position for position in alike if position not in deleted]
            surplus = len(standing) - LIMIT + 1
            free = [position for position in standing if self.items[position].state != "leased"]
            if surplus > len(free):
                return "full"
            deleted += free[: max(0, surplus)]
        for position in [*expired, *deleted]:
            del self.items[position]
        rewritten = by if answer == "take over" and by is not None and self.items[by].n != n else None
        if rewritten is not None and by is not None:
            self.items[by].n = n
            self.items[by].ends = now + LIFE if self.items[by].kind == "own" else None
        if queued and isinstance(told, Outcome) and told.position is not None:
            self.items[told.position] = Modelled(kind, key, n, ends=now + LIFE if kind == "own" else None)
        decision = "ignore" if answer == "take over" else "queue" if answer == "don't care" else answer
        return decision, by, queued, rewritten, tuple(deleted), tuple(expired)

    def settle(self, now: float) -> None:
        for position in self.in_order(lambda item: item.state == "available" and 0 < (item.ends or 0) <= now):
            del self.items[position]

    def first(self, now: float) -> Position | None:
        self.settle(now)
        return next(iter(self.in_order(lambda item: item.state == "available")), None)

    def dequeue(self, now: float, _: None, told: Any) -> Any:
        position = self.first(now)
        if position is not None:
            del self.items[position]
        return position

    def lease(self, now: float, token: bytes, told: Any) -> Any:
        position = self.first(now)
        if position is not None:
            self.items[position].state, self.items[position].token = "leased", token
        return position

    def end(self, now: float, how: tuple[str, Position, bytes], told: Any) -> Any:
        verb, position, token = how
        item = self.items.get(position)
        if item is None or item.state != "leased" or item.token != token:
            return "lost"
        if verb == "ack" or 0 < (item.ends or 0) <= now:
            del self.items[position]
        else:
            item.state = "available"
        return "ended"


def sees(kind: str, key: int, item: Modelled) -> bool:
    if kind == "all":
        return True
    if kind == "own":
        return item.kind == "own"
    related = ("key", "cross") if kind == "cross" else (kind,)
    return item.kind in related and item.key == key


def told_of(result: Any) -> Any:
    """Return of a result what the model says too."""
    if isinstance(result, Outcome):
        queued = result.position is not None
        return str(result.decision), result.by, queued, result.rewritten, result.deleted, result.expired
    return result


def log_of(space: Subspace) -> Subspace:
    """Return where the log stands: behind the queue, whose end is found by a key selector from behind."""
    return space["queue's log"]


class Interleaved:
    """Operations in transactions that are open at the same time."""

    def __init__(self, db: Any, smart: SmartQueue, clock: Clock, log: Subspace) -> None:
        self.db, self.smart, self.clock, self.log = db, smart, clock, log
        self.open: dict[int, Any] = {}
        self.records: list[tuple[str, float, Any, Any]] = []
        self.leases: list[Lease] = []
        self.conflicts = 0

    def do(self, slot: int, verb: str, argument: Any) -> None:
        if slot not in self.open:
            self.open[slot] = self.db.create_transaction()
            self.open[slot].get_read_version().wait()
        tr = self.open[slot]
        if verb == "enqueue":
            result: Any = self.enqueue(tr, argument)
        elif verb == "dequeue":
            item = self.smart.dequeue(tr)
            argument, result = None, item and item.position
        elif verb == "lease":
            lease = self.smart.leases.lease(tr, duration=1e6)
            self.leases += [lease] if lease else []
            argument, result = (lease.token, lease.position) if lease else (b"", None)
        elif self.leases:
            lease = self.leases[argument["n"] % len(self.leases)]
            verb, argument, result = "end", (verb, lease.position, lease.token), self.end(tr, verb, lease)
        else:
            return
        stamp = self.log.key() + b"\x00" * 10 + struct.pack(">I", len(self.records))
        tr.set_versionstamped_key(stamp + struct.pack("<I", len(self.log.key())), b"")
        self.records.append((verb, self.clock.now, argument, result))

    def enqueue(self, tr: Any, message: dict[str, Any]) -> Any:
        try:
            return self.smart.enqueue(tr, message)
        except QueueFull:
            return "full"

    def end(self, tr: Any, verb: str, lease: Lease) -> str:
        try:
            (self.smart.leases.ack if verb == "ack" else self.smart.leases.nack)(tr, lease)
        except LeaseLost:
            return "lost"
        return "ended"

    def commit(self, slot: int) -> None:
        tr = self.open.pop(slot, None)
        if tr is None:
            return
        try:
            tr.commit().wait()
        except FDBError as error:
            if error.code not in (1020, 1007):
                raise
            self.conflicts += 1

    def replay(self) -> Serial:
        """Tell the model what was committed, in commit order, and compare what both were told."""
        serial = Serial()
        for row in self.db.get_range_startswith(self.log.key()):
            verb, now, argument, told = self.records[struct.unpack(">I", row.key[-4:])[0]]
            assert getattr(serial, verb)(now, argument, told) == told_of(told), (verb, argument)
        return serial


messages = st.builds(
    lambda kind, key, n: {"type": kind, "key": key, "n": n},
    st.sampled_from(sorted(SCOPES)),
    st.integers(0, 1),
    st.integers(0, 6),
)
verbs = st.sampled_from(["enqueue"] * 6 + ["dequeue", "lease", "ack", "nack", "commit", "commit", "time"])
steps = st.lists(st.tuples(st.integers(0, 2), verbs, messages), min_size=5, max_size=40)


@given(history=steps)
def test_committed_decisions_match_the_serial_order_of_their_commits(
    db: Any, history: list[tuple[int, str, dict[str, Any]]]
) -> None:
    clock = Clock()
    space = Subspace(("fdbqueue tests", "serial", secrets.token_bytes(8)))
    smart = smart_queue(space["queue"], *types(), clock=clock, debug=True)
    run = Interleaved(db, smart, clock, log_of(space))
    for slot, verb, message in history:
        if verb == "commit":
            run.commit(slot)
        elif verb == "time":
            clock.now += 3
        else:
            run.do(slot, verb, message)
    for slot in range(3):
        run.commit(slot)
    serial = run.replay()
    assert smart.check(db).problems == ()
    there = {item.position: item.value["n"] for item in smart.queue.browse(db)}
    available = serial.in_order(lambda item: item.state == "available")
    assert there == {position: serial.items[position].n for position in available}
    db.clear_range_startswith(space.key())


@pytest.mark.engines("memory")
def test_the_replay_notices_a_decision_that_the_serial_order_does_not_give(db: Any, space: Subspace) -> None:
    clock = Clock()
    run = Interleaved(db, smart_queue(space["queue"], *types(), clock=clock), clock, log_of(space))
    run.do(0, "enqueue", {"type": "key", "key": 0, "n": 0})
    run.do(0, "enqueue", {"type": "key", "key": 0, "n": 4})
    run.commit(0)
    verb, now, message, told = run.records[1]
    run.records[1] = (verb, now, {**message, "n": 5}, told)
    with pytest.raises(AssertionError):
        run.replay()
