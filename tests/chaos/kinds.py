"""Kinds of rounds: which layers stand on the queue, beside leases, staged calls and consumers, which are in all."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.common.levels import PRIORITY, Levels
from fdbqueue.layers.leases import Head
from fdbqueue.layers.oplog import OperationLog
from fdbqueue.layers.priority import WeightedHead
from fdbqueue.layers.smart import Decision, Messages, MessageType, Replace, keyed
from fdbqueue.layers.staged import RelaxedHead

LEVELS = Levels(4)
WEIGHTS = (4, 3, 2, 1)
CREDIT = {"red": 7, "blue": 25}
"""Of the subscriptions, each of which selects the items of the color that it is named after."""
COLORS = (*CREDIT, "green")
EXCLUSIVE = "mine"
"""The subscription that has one owner, who gets whatever is first."""
EXCLUSIVE_CREDIT = {EXCLUSIVE: 12}
OWNERSHIP_S = 0.5
"""Shorter than a process is stopped for."""
MAX_ATTEMPTS = 6
QUANTUM = 3
"""Of sessions: small, so that turns end often."""
SESSIONS = tuple(f"session {number}" for number in range(12))
SESSION_LEVELS = 2
GATES = {f"tenant {number}": 3 for number in range(2)} | {f"user {number}": 2 for number in range(4)}
"""Gates, and their limits unless a keeper changes them."""
SESSION_ACKS = frozenset({"session ack", "session ack and next"})
DEADLINE_S = 0.3
"""Of reports: short, so that many are missed."""


class Kind(StrEnum):
    """A kind of round."""

    plain = "plain"
    priority = "priorities"
    weights = "weights"
    relaxed = "relaxed order"
    subscriptions = "subscriptions"
    exclusive = "exclusive subscription"
    smart = "smart checks"
    blobs = "blobs"
    results = "results"
    streams = "streams"
    sessions = "sessions"
    gates = "sessions with gates"
    agents = "agents"
    tasks = "tasks"


WITH_SESSIONS = (Kind.sessions, Kind.gates)
OF_THEIR_OWN = (*WITH_SESSIONS, Kind.agents, Kind.tasks)
"""Kinds that have processes and promises of their own."""
IN_TURN = tuple(kind for kind in Kind if kind is not Kind.tasks)
"""Kinds that a run of all kinds has. Rounds of tasks are new, and are played by name only until long runs were made."""
ON_THE_QUEUE = tuple(kind for kind in Kind if kind not in OF_THEIR_OWN)


HAVE_LEVELS = (Kind.priority, Kind.weights)
WITH_OPERATORS = (Kind.plain, Kind.priority, Kind.weights, Kind.relaxed)
"""In which keepers operate: they change items by position, pause the queue, and come with another codec."""


def gates_of(session: str) -> list[str]:
    """Return the names of the gates of a session, the outermost first."""
    number = int(session.rpartition(" ")[2])
    return [f"tenant {number % 2}", f"user {number % 4}"]


def answer(queued: dict[str, Any], new: dict[str, Any]) -> Any:
    """Answer as a queued report about a newcomer: the check of every round with smart checks."""
    if queued["lane"] != new["lane"]:
        return Decision.dont_care
    match new["type"]:
        case "report":
            return Replace(new)
        case "confirm":
            return Decision.ignore_and_delete
        case _:
            return Decision.queue_and_delete


def _key(message: dict[str, Any]) -> str:
    key: str = message["key"]
    return key


MESSAGES = Messages(
    MessageType("report", check=answer, key=_key, sees=keyed("report"), deadline=DEADLINE_S),
    MessageType("confirm", key=_key, sees=keyed("report")),
    MessageType("override", key=_key, sees=keyed("report")),
)


def queue_of(space: Subspace, kind: Kind) -> Queue:
    """Return the round's queue."""
    if kind is Kind.smart:
        return Queue(space["queue"], codec=MESSAGES)
    return Queue(space["queue"], order=LEVELS if kind in HAVE_LEVELS else None)


def head_of(queue: Queue, kind: Kind) -> Head | None:
    """Return in which order the round's items are leased, if that is not the queue's."""
    match kind:
        case Kind.weights:
            return WeightedHead(queue.layout, WEIGHTS)
        case Kind.relaxed:
            return RelaxedHead(queue.layout)
        case _:
            return None


def credit_of(kind: Kind) -> dict[str, int]:
    """Return what the consumers of each of the round's subscriptions may have at once."""
    return {Kind.subscriptions: CREDIT, Kind.exclusive: EXCLUSIVE_CREDIT}.get(kind, {})


def log_of(space: Subspace, kind: Kind) -> OperationLog:
    """Return the log of the round's queue."""
    return OperationLog(space["log"], queue_of(space, kind))


def most_attempts(kind: Kind) -> int:
    """Return after how many failed attempts an item of the round is a dead letter.

    Few in rounds with results, in which the ends of dead letters matter.
    """
    return 2 if kind is Kind.results else MAX_ATTEMPTS


def some_headers(kind: Kind, dice: random.Random, name: str) -> dict[str, Any] | None:
    """Return headers for an item, or none."""
    match kind:
        case Kind.priority | Kind.weights if dice.random() < 0.8:
            return {PRIORITY: dice.randrange(LEVELS.count)}
        case Kind.subscriptions if dice.random() < 0.9:
            return {"color": dice.choice(COLORS)}
        case _:
            return {"of": name} if dice.random() < 0.3 and kind not in HAVE_LEVELS else None


def encoded(value: Any) -> bytes:
    """Return a value of any round as its queue stores it."""
    return value if isinstance(value, bytes) else MESSAGES.encode(value)
