"""Claims: what the histories of callers say that the log can confirm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fdbqueue import Position
from tests.chaos.history import KILLED, OK, REFUSED, Told

LeaseOf = tuple[Position, bytes]
"""A position and the token of one lease of it."""

ACKS = frozenset({"ack", "ack newest", "ack many", "staged ack", "ack in my transaction", "ack with result"})
RETURNS = frozenset({"nack", "nack later", "snooze"})
EXTENDS = frozenset({"extend"})
TAKES_OUT = frozenset({"dequeue", "dequeue many", "staged dequeue", "staged dequeue many"})
WAITS = ("subscribed lease", "owned lease")
"""Calls that wait for items of a subscription."""
TRIED_ONCE = frozenset({"enqueue two", "ack in my transaction", "reset", "upload in mine"})
"""Calls in a transaction of the caller's own, who does not repeat it: any retryable error comes out."""
ONE_TRANSACTION = frozenset(
    {
        *ACKS - {"staged ack"},
        *RETURNS,
        *EXTENDS,
        "dequeue",
        "dequeue many",
        "enqueue",
        "enqueue later",
        "enqueue mortal",
        "enqueue large",
        "enqueue some",
        "enqueue two",
        "deliver",
        "smart",
        "request",
        "open group",
        "join",
    }
)
"""Calls that take effect in a transaction of their own: all of it, or none."""
HALVED = frozenset({"enqueue some"})
"""Those that go on in halves after two transactions that were too old. No content may come twice all the same."""
NOT_COMMITTED = frozenset({"error 1007", "error 1009", "error 1020", "error 1037"})


@dataclass(slots=True)
class Claims:
    """Everything that callers asked for and were told."""

    calls: dict[tuple[str, str], Told] = field(default_factory=dict)
    """By process, and by the name under which it is in the log."""
    attempted: dict[str, set[bytes]] = field(default_factory=dict)
    """Contents that a process tried to enqueue."""
    acknowledged: set[bytes] = field(default_factory=set)
    """Contents that surely are in."""
    headers: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """By content, the headers of items that have some."""
    messages: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """By content, the messages of rounds with smart checks."""
    used: dict[str, dict[str, set[LeaseOf]]] = field(default_factory=dict)
    """Of a process, by kind of use, the leases that it used and was not refused."""
    told_used: dict[str, Counter[LeaseOf]] = field(default_factory=dict)
    """By kind of use, the leases of which a caller was told that it worked."""
    leased: Counter[LeaseOf] = field(default_factory=Counter)
    """Leases that a caller got."""
    taken_out: Counter[tuple[str, Position]] = field(default_factory=Counter)
    """Items that a caller of a process got out for good."""
    in_doubt: set[str] = field(default_factory=set)
    """Processes of which a call that takes items out did not learn what became of it."""

    @property
    def delivered(self) -> set[bytes]:
        """Contents that a caller got, in whatever way."""
        return {
            bytes.fromhex(got[-1])
            for told in self.calls.values()
            for got in [*told.answer.get("leases", ()), *told.answer.get("items", ()), *told.asked.get("leases", ())]
        }


def read_claims(calls: list[Told]) -> Claims:
    """Sort what callers said."""
    claims = Claims(used={}, told_used={kind: Counter() for kind in ("ack", "return", "extend")})
    for told in calls:
        claims.calls[told.by, f"{told.verb}#{told.number}"] = told
        _enqueued(claims, told)
        _used(claims, told)
        claims.leased.update(_leases(told.answer))
        for position, _ in told.answer.get("items", ()):
            claims.taken_out[told.by, Position.parse(position)] += 1
        if told.verb in TAKES_OUT and told.outcome != OK:
            claims.in_doubt.add(told.by)
    return claims


def is_unknown(told: Told) -> bool:
    """Say whether the caller does not know what became of a call."""
    return told.outcome == KILLED or (told.outcome.startswith("error") and told.outcome not in NOT_COMMITTED)


def kind_of(verb: str) -> str:
    """Return what a verb does with leases: "ack", "return", "extend", or ""."""
    for kind, verbs in (("ack", ACKS), ("return", RETURNS), ("extend", EXTENDS)):
        if verb in verbs:
            return kind
    return ""


def _enqueued(claims: Claims, told: Told) -> None:
    contents = told.contents()
    claims.attempted.setdefault(told.by, set()).update(contents)
    if told.verb == "operate":
        return  # another value of an item that is there, or is not
    if told.asked.get("headers"):
        claims.headers.update(dict.fromkeys(contents, told.asked["headers"]))
    if "message" in told.asked:
        claims.messages[contents[0]] = told.asked["message"]
        if told.answer.get("position") is None:
            return  # it was left out, or that is not known
    if told.answer.get("left out"):
        return
    if told.outcome == OK:
        claims.acknowledged.update(contents)
    elif told.outcome == "interrupted":
        told_of = [*told.answer["missing"], *told.answer["unknown"]]
        not_told = {number for first, end in told_of for number in range(first, end)}
        read = max((end for _, end in told_of), default=len(contents))
        claims.acknowledged.update(content for n, content in enumerate(contents[:read]) if n not in not_told)


def _used(claims: Claims, told: Told) -> None:
    of_process = claims.used.setdefault(told.by, {"ack": set(), "return": set(), "extend": set()})
    if told.verb == "handle":  # what a consumer's handler got is acked, given back and extended for it
        for used in of_process.values():
            used.update(_leases(told.asked))
        claims.leased.update(_leases(told.asked))
        return
    kind = kind_of(told.verb)
    if not kind or told.outcome == REFUSED or told.outcome in NOT_COMMITTED:
        return
    leases = [(Position.parse(position), bytes.fromhex(token)) for position, token in told.asked["claims"]]
    of_process[kind].update(leases)
    if told.outcome == OK:
        claims.told_used[kind].update(leases)


def _leases(told: dict[str, Any]) -> list[LeaseOf]:
    return [(Position.parse(position), bytes.fromhex(token)) for position, token, _ in told.get("leases", ())]
