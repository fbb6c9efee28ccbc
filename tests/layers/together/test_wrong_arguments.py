"""A wrong argument is refused by a sentence with its name, the value and the remedy, and no key is touched.

`TABLE` has verbs and classes, an argument, wrong values, the error and its text; `CALLS` has what fits in no row of it.
`test_every_wrong_kind.py` gives every argument of every verb and class a value of every kind, and asks for no text.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf, nan
from typing import Any

import pytest

import fdbqueue.agents
import fdbqueue.layers
from fdbqueue import CodecError, ItemTooLarge, JsonCodec, Position, Queue, aio
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Concurrency,
    Consumer,
    EarliestDeadline,
    FollowUp,
    Gate,
    Groups,
    LeaseHandle,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    Rate,
    Results,
    SessionHandle,
    Sessions,
    Tasks,
    Unique,
)
from fdbqueue.layers.leases import Lease
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from fdbqueue.layers.schedules import Schedules
from fdbqueue.layers.streams import Stream
from fdbqueue.layers.tasks import UnknownTask
from fdbqueue.observe import MetricsServer
from fdbqueue.transfer import export_items
from fdbqueue.web import AdminApp
from tests.helpers.verbs import Scene
from tests.layers.together.test_every_wrong_kind import MADE, forms, maker, plain_terms, raw
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER

L: Any = fdbqueue.layers
A: Any = fdbqueue.agents
Q: Any = Queue
Verb = Callable[..., Any]
Of = Callable[[Any], Any]
Row = tuple[str | tuple[str, ...], str, list[Any], Any, str]


class From:
    """A wrong value that a scene has."""

    def __init__(self, make: Of) -> None:
        self.make = make


def filled(wrong: Any, scene: Scene) -> Any:
    """Return a wrong value, in which all parts of the scene are in their places."""
    if isinstance(wrong, dict):
        return {key: filled(value, scene) for key, value in wrong.items()}
    return wrong.make(scene) if isinstance(wrong, From) else wrong


class Frame:
    """A data frame of a library that nobody here knows: iterated over, it gives the names of its columns."""

    def __dataframe__(self) -> None:
        """Hand the frame to another library."""

    def __iter__(self) -> Iterator[str]:
        return iter(["sku"])


def frames(kind: str) -> From:
    """Return a table of pandas or pyarrow, which are imported only then."""

    def make(s: Scene) -> Any:
        import pandas as pd
        import pyarrow as pa

        data = {"sku": ["teapot"]}
        made: dict[str, Callable[[], Any]] = {
            "DataFrame": lambda: pd.DataFrame(data),
            "Series": lambda: pd.Series(data["sku"]),
            "Table": lambda: pa.table(data),
            "RecordBatch": lambda: pa.record_batch(data),
        }
        return made[kind]()

    return From(make)


def work() -> None: ...
def named(name: str) -> None: ...
async def awaited(*given: Any) -> None: ...


class Awaited:
    async def __call__(self, *given: Any) -> None: ...


@dataclass
class AsksLater:
    n: int = 0

    async def check(self, new: Any) -> Any: ...


def generates() -> Any:
    yield 1


def app(s: Scene) -> Any:
    return Tasks(s.space["app"])


def tasks_of(s: Scene, codec: Any, kind: Any = Leases) -> Any:
    return Tasks(kind(Queue(s.space["app"], codec=codec)))


def task_options(s: Scene) -> Verb:
    def make(**options: Any) -> None:
        made = app(s)
        try:
            made.task(**options)(named)
        finally:
            assert made.tasks == {}

    return make


def configured(s: Scene) -> Verb:
    return app(s).task(named).configure  # type: ignore[no-any-return]


def schedule(s: Scene, task: Verb = work) -> Any:
    """Return an app with a task, and a decorator that gives it a schedule."""
    made = app(s)
    return lambda *rule, **terms: made.periodic(*rule, **terms)(made.task(task))


PLACE, RANKED = Position(1, b"12345678"), Position(1, b"12345678", rank=0)
ALSO_MADE: dict[str, Callable[[Scene], tuple[Verb, dict[str, Any]]]] = {
    "AdminApp": lambda s: (AdminApp, {"db": s.db}),
    "AgentClient": lambda s: (A.AgentClient, {}),
    "AgentServer": lambda s: (A.AgentServer, {"db": s.db}),
    "AgentWatchdog": lambda s: (A.AgentWatchdog, {"source": s.leases, "command": ["true"]}),
    "LeaseHandle": lambda s: (LeaseHandle, {"position": PLACE, "token": b"t"}),
    "LeaseHandle.parse": lambda s: (LeaseHandle.parse, {}),
    "Limits": lambda s: (A.Limits, {}),
    "MetricsServer": lambda s: (MetricsServer, {}),
    "Position.parse": lambda s: (Position.parse, {}),
    "Schedules": lambda s: (Schedules, {"queue": s.queue, "clock": lambda: 0}),
    "SessionHandle": lambda s: (SessionHandle, {"position": PLACE, "token": b"t", "session": "ann", "turn": PLACE}),
    "SessionHandle.parse": lambda s: (SessionHandle.parse, {}),
    "Stream": lambda s: (Stream, {"queue": s.queue, "name": "s"}),
    "TokenBucket": lambda s: (TokenBucket, {"queue": s.queue, "name": "smtp", "count": 1}),
    "aio": lambda s: (lambda future: asyncio.run(aio(future)), {}),
    "open": lambda s: (fdbqueue.open, {}),
    "periodic": lambda s: (lambda *, cron=None, **terms: schedule(s)(cron, **terms), {"every": 5}),
    "queue_of_type": lambda s: (A.queue_of_type, {}),
    "task": lambda s: (task_options(s), {}),
    "configure": lambda s: (configured(s), {}),
}
T, V, TV = TypeError, ValueError, (TypeError, ValueError)
SURROGATE = "a\udc80"
LIMITED = (
    *("Deadlines.claim", "Leases.lease_many", "Leases.reclaim", "PriorityQueue.dequeue_many", "Queue.dequeue_many"),
    *("Queue.inspect", "RelaxedQueue.dequeue_many", "Resend.fetch_many", "SmartQueue.dequeue_many"),
    *("StagedQueue.dequeue_many", "StagedQueue.lease_many", "Subscription.lease_many", "Subscriptions.count"),
    "Queue.dequeue_arrow",
)
BROWSERS = tuple(
    f"{layer}.browse"
    for layer in ("DeadLetters", "Groups", "Leases", "PriorityQueue", "Queue", "RelaxedQueue", "Subscriptions")
)
WITH_HEADERS = (
    *("FollowUp", "Leases.enqueue", "Leases.enqueue_many", "PriorityQueue.enqueue", "Queue.enqueue"),
    *("Results.enqueue", "Sessions.enqueue", "SmartQueue.enqueue", "SmartSessions.enqueue", "StagedQueue.enqueue"),
    *("Leases.update", "Subscriptions.enqueue"),
)
SWITCHES = (
    *(("Subscriptions.enqueue", "immediate"), ("Subscriptions.subscribe", "exclusive"), ("Consumer", "signals")),
    *(("Worker", "signals"), ("Tasks", "eager"), ("SmartQueue", "debug"), ("SmartSessions", "debug")),
    *(("AgentServer", "everybody"), ("AgentServer", "reuse_port"), ("AdminApp", "allow_changes")),
)
TIMES = ("delay", "ttl", "at")
NO_NAMES = ["", 200 * "é", None, 5, b"red", ["red"], {"red": 1}]
PART = "duty_cycle is a part of the time"
SOME_LEASES = ("Leases.ack", "Leases.nack", "Leases.snooze", "Subscription.ack", "StagedQueue.ack")
NO_LEASES: list[Any] = ["", "x", b"", {}, None, 5]
SEVERAL = r"{0} takes leases, as in {0}\(db, \[lease\]\), not {1}"
NO_DEAD_LETTER = "A dead letter is named by its Position, as browse shows it, not by"
NO_HANDLE = r"The text of a handle is a str, as str\(lease\.handle\) makes it, not"
NO_QUEUE = r"Leases\(Queue\('orders'\)\)+, not (of )?'mails'"
AWAITED = "A selector is called and not awaited"
NEVER_BOTH = "neither delay nor at"
MANY_LEASES = tuple(f"Leases.{verb}_many" for verb in ("ack", "nack", "snooze", "extend"))
OF_SESSIONS = r"^That of 'ann' is a session's lease, and nothing was done to it\. Give it to its sessions: Sessions\."
CONSUMERS = (*("Leases.lease", "Leases.lease_many", "Subscription.lease", "StagedQueue", "Sessions", "Consumer"),)
VALUES = tuple(f"{layer}.enqueue_many" for layer in ("Queue", "Leases", "PriorityQueue", "SmartQueue"))
RECIPIENTS = tuple(f"Resend.{verb}" for verb in ("register", "unregister", "fetch", "fetch_many", "confirm", "reset"))
SHORT = r"{name} is a number of seconds, at least a microsecond \(1e-06\), not 4e-07\.$"
SHORTEST: dict[str, tuple[str, ...]] = {
    "duration": (
        *(
            "Leases.lease",
            "Leases.lease_many",
            "Leases.extend",
            "Leases.extend_many",
            "StagedQueue.lease",
            "Group.hold",
        ),
        *("StagedQueue.lease_many", "Sessions.lease", "Sessions.extend", "Sessions.ack_and_next"),
        *("Subscription.lease", "Consumer"),
    ),
    "ttl": (
        *("Leases.enqueue", "Leases.enqueue_many", "Sessions.enqueue", "Subscriptions.enqueue", "SmartQueue.enqueue"),
        *("SmartSessions.enqueue", "FollowUp", "task"),
    ),
    "keep": ("Results", "Results.enqueue", "Subscriptions.follow", "Groups.open"),
    "interval": ("Watchdog", "Monitor"),
    "seconds": ("TokenBucket", "TimeLimit", "Rate"),
    "handler_timeout": ("Consumer",),
    "hold": ("Groups.open",),
    "claim_seconds": ("Monitor",),
    "lock": ("AgentWatchdog",),
    "lease": ("Blobs",),
    "first": ("exponential",),
    "longest": ("exponential",),
    "timeout": ("task",),
    "keep_result": ("task",),
}
"""Where a duration of less than a microsecond would be 0, which means no lease, or no end."""
POSITIONS: list[tuple[Position, Any, str]] = [
    (Position("7", b"r"), T, "The index of a position is a whole number, not '7'"),  # type: ignore[arg-type]
    (Position(1.5, b"r"), T, "The index of a position is a whole number, not 1.5"),  # type: ignore[arg-type]
    (Position(-1, b"r"), V, r"The index of a position is 0 or more, and below 2\^64, not -1"),
    (Position(1 << 9_000, b"r"), V, r"below 2\^64, not one of 9,001 bits"),
    (Position(1, b"r", rank=-5), V, "The rank of a position is 0 or more, .*, not -5"),
    (Position(1, b"r", rank="5"), T, "The rank of a position is a whole number, not '5'"),  # type: ignore[arg-type]
    (Position(1, None), T, "The random part of a position is bytes, not None"),  # type: ignore[arg-type]
    (Position(1, "x"), T, "The random part of a position is bytes, not 'x'"),  # type: ignore[arg-type]
]
BY_POSITION = {
    **{f"Queue.{verb}": "position" for verb in ("get", "cancel", "update", "reschedule")},
    "Queue.get_many": "positions",
    "Queue.browse": "after",
    "Leases.browse": "before",
    "Leases.cancel": "position",
    "DeadLetters.redrive": "position",
    "DeadLetters.purge": "position",
    "Results.completion": "item",
    "LeaseHandle": "position",
    "SessionHandle": "turn",
}
OF_ITEMS = tuple(f"Leases.{verb}" for verb in ("get", "cancel", "update", "reschedule"))
WAITED = ("Results.enqueue", "Groups.open")
LAYERED = ("Leases.enqueue", "Group.enqueue", "Group.enqueue_many", "Results.enqueue")
"""Verbs that enqueue into leases."""


def leases_(s: Scene) -> list[Any]:
    return [s.session_lease]


def handles_(s: Scene) -> list[Any]:
    return [s.session_lease.handle]


TABLE: list[Row] = [
    (LIMITED, "limit", ["3", None, 1.5, True], T, "limit is how many .*, an integer, not {wrong!r}"),
    (LIMITED, "limit", [0, -1], V, "limit is how many .*, at least 1, not {wrong}"),
    ("Subscriptions.stats", "limit", ["3", True, 1.5, [1], 0, -1], TV, "limit is how many"),
    ("Queue.dequeue_many", "limit", [10**30], V, r"limit is how many items to take, less than 2\^63, not 1000"),
    (BROWSERS, "limit", ["3"], T, "limit is how many items to look at, an integer, or None for all, not '3'"),
    (BROWSERS, "limit", [-1], V, "limit is how many items to look at"),
    (BROWSERS, "after", [5], T, "an item's Position, not 5"),
    (BROWSERS, "before", [5], T, "an item's Position, not 5"),
    (BROWSERS, "reverse", ["yes", 1, None], T, "reverse is True or False, not"),
    (BROWSERS, "duty_cycle", [None, "0.5", True], T, f"{PART}, a number over 0 and up to 1, not"),
    (BROWSERS, "duty_cycle", [0, -1, 1.1, 2, nan], V, f"{PART}, over 0 and up to 1, not {{wrong}}"),
    (BROWSERS, "duty_cycle", [10**400], V, r"too large|larger|up to 1|longest|most"),
    ("Leases.browse", "state", ["lost"], V, "state is one of 'available', 'leased', 'delayed', 'dead', not 'lost'"),
    ("PriorityQueue.browse", "level", [-1, 3], V, "from 0 to 2"),
    *(
        (verb, "limit", ["3"], T, "limit is how many dead letters, an integer, or None for all, not '3'")
        for verb in ("DeadLetters.redrive", "DeadLetters.purge")
    ),
    (CONSUMERS, "consumer", [5], T, "consumer is a text, the name in its"),
    (CONSUMERS, "consumer", [""], TV, "consumer"),
    (CONSUMERS, "consumer", [SURROGATE, "\ud800"], V, "The name of a consumer has a lone surrogate, which is no text"),
    (WITH_HEADERS, "headers", ["", b"", [], 0, False, 5, "red", [("c", "red")]], CodecError, "Headers are a mapping"),
    *((verb, name, ["no", "", 0, 1, None], T, f"{name} is True or False, not {{wrong!r}}") for verb, name in SWITCHES),
    *(("Subscriptions.enqueue", name, ["", (), True], T, f"{name} is a number of seconds") for name in TIMES),
    *(("Subscriptions.enqueue", name, [2e13, 1e300], V, f"{name} is a number .* which is over 1e") for name in TIMES),
    *(("Leases.enqueue", "", [{"delay": None, name: 2.1e12}], V, "which is over 1e") for name in TIMES),
    ("Leases.nack", "last", [1, "yes", None], T, "last is True or False"),
    *((verbs, name, [4e-7], V, SHORT.replace("{name}", name)) for name, verbs in SHORTEST.items()),
    ("Leases.lease", "duration", [9.9e-7, 5e-324, Fraction(1, 3_000_000)], V, r"at least a microsecond .* {wrong}\.$"),
    (("Leases.enqueue", "Leases.nack", "Sessions.nack"), "delay", ["", (), True, "30"], T, "delay is a number of sec"),
    ("Leases.enqueue", "ttl", ["30"], T, "ttl is a number of seconds"),
    ("Leases.enqueue", "delay", [10**400], V, r"too large|larger|up to 1|longest|most"),
    ("Leases.enqueue", "", [{"delay": 1, "at": 1}], V, "not both"),
    ("Leases.lease", "duration", [0, inf, nan, -1, 1e300], V, "duration is a number of seconds"),
    (("Leases.lease", "StagedQueue.lease"), "duration", ["30", None], T, "duration is a number of seconds"),
    ("StagedQueue.lease", "duration", [0], V, "duration"),
    (("StagedQueue.dequeue", "Subscription.lease", "Resend.fetch"), "timeout", ["30"], T, "timeout is a number of sec"),
    (("StagedQueue.dequeue", "Subscription.lease", "Resend.fetch"), "timeout", [-1, nan], V, "timeout"),
    ("StagedQueue.lease", "timeout", [10**400], V, r"too large|larger|up to 1|longest|most"),
    ("Sessions.lease", "timeout", [-1, nan, "soon"], TV, "timeout is a number of seconds"),
    (("SmartQueue.enqueue", "SmartSessions.enqueue"), "timeout", [-1, "1"], TV, "timeout"),
    (SOME_LEASES, "lease", [None, "1:ab:cd", From(lambda s: s.leases)], T, "Give a lease, or its handle, not"),
    (SOME_LEASES, "lease", [From(lambda s: s.queue.peek(s.db))], T, "Give a lease, or its handle, not"),
    ("Leases.extend", "lease", [None, "1:ab:cd", From(lambda s: s.queue.peek(s.db))], T, "Give a lease, or its handle"),
    (SOME_LEASES, "lease", [From(lambda s: s.session_lease), From(lambda s: s.session_lease.handle)], T, OF_SESSIONS),
    ("Leases.extend", "lease", [From(lambda s: s.session_lease)], T, OF_SESSIONS),
    ("Leases.ack", "", [{"lease": From(lambda s: s.session_lease), "result": 1}], T, OF_SESSIONS),
    ("Leases.ack_many", "", [{"leases": From(leases_), "results": [1]}], T, OF_SESSIONS),
    (MANY_LEASES, "leases", [[None]], T, "Give a lease, or its handle, not None"),
    (MANY_LEASES, "leases", [From(leases_)], T, OF_SESSIONS),
    (MANY_LEASES[:3], "leases", [From(handles_)], T, OF_SESSIONS),
    *((verb, "leases", NO_LEASES, T, SEVERAL.format(verb[7:], "{wrong!r}")) for verb in MANY_LEASES),
    *(
        (verb, "leases", [From(lambda s: s.lease), From(lambda s: s.lease.handle)], T, SEVERAL.format(verb[7:], ""))
        for verb in MANY_LEASES
    ),
    ("Leases.extend", "lease", [From(lambda s: s.lease.handle)], T, "so it takes the lease, not LeaseHandle"),
    ("Leases.extend", "lease", [From(lambda s: s.session_lease.handle)], T, "takes the lease, not SessionHandle"),
    ("Leases.extend_many", "leases", [From(handles_)], T, "extend returns the lease with its new end, so it takes the"),
    ("Leases.ack_many", "", [{"leases": [], "results": [1]}], V, "Give a result for each lease"),
    ("Leases.ack_many", "results", [7, "x", {"x": 1}], T, "results are one for each lease, as a list, not"),
    (("Leases.nack", "Sessions.nack"), "error", [V("x")], T, r"error is a text, as in error=str\(error\), not"),
    ("DeadLetters.redrive", "to", ["front"], V, "'front'"),
    (("DeadLetters.redrive", "DeadLetters.purge"), "position", ["", b"", {}, "1:ab", [5], 5], T, NO_DEAD_LETTER),
    *(
        (verb, name, [[wrong] if name == "positions" else wrong], error, said + r".*Take .* or Position\.parse")
        for verb, name in BY_POSITION.items()
        for wrong, error, said in POSITIONS
    ),
    (OF_ITEMS, "position", [None, "7:6162", 7, b"x", ["a"], {"a": 1}, object], T, "Position"),
    (OF_ITEMS, "position", [From(lambda s: s.lease)], T, "Give its `position`"),
    (tuple(f"{verb}_many" for verb in OF_ITEMS), "positions", [None, "7:6162", 7, b"x", ["a"]], T, "[pP]osition"),
    ("Leases.reschedule", "", [{"delay": None}, {"at": 1}, {"delay": -1}, {"priority": 1}], V, ""),
    ("Leases.reschedule", "delay", ["soon"], T, ""),
    ("Leases.update", "value", [7], V, "a value must be str"),
    ("Leases.update", "headers", [None], TV, ""),
    ("LeaseHandle.parse", "text", ["7:xy"], V, "not a lease's handle"),
    ("SessionHandle.parse", "text", ["7:72616e64:746f6b65"], V, "is no handle of a session's lease"),
    (("LeaseHandle.parse", "SessionHandle.parse"), "text", [None, 7, b"7:72:74"], T, NO_HANDLE),
    ("LeaseHandle", "token", [None, "abc"], T, "The token of a handle is bytes, as lease.token, not {wrong!r}"),
    ("LeaseHandle", "position", [None], T, "The position of a handle is a Position, .* not None"),
    ("SessionHandle", "turn", [3], T, "The turn of a handle is a Position, as lease.turn, not 3"),
    ("SessionHandle", "generation", ["0"], T, "The generation of a handle is a whole number, 0 or more, not '0'"),
    ("Position.parse", "text", [None, 7, b"7:72"], T, r"The text of a position is a str, as `Position\.text` makes it"),
    (
        "Position.parse",
        "text",
        [*("", "7", "7:xy", "7:7", "x:72", "1:2:3:72", "1" * 5_000 + ":72", "²:72", "a:00", "7:zz", "-1:00", "1::00")],
        V,
        r"is not a position\. A position looks like INDEX:RANDOM",
    ),
    ("Position.parse", "text", [f"{1 << 64}:72"], V, r"is not a position\. A position looks like INDEX:RANDOM"),
    ("aio", "future", [1, None, "x", range(3)], T, r"aio awaits a future of a transaction, as in .*\.dequeue\.aio"),
    ("open", "url", [""], V, "."),
    # values
    (VALUES, "values", [Frame()], T, "not a Frame of .* Give a list of its rows"),
    (VALUES, "values", ["teapot"], T, r"not one str. Give \[value\]"),
    (VALUES, "values", [b"teapot", memoryview(b"teapot"), {"sku": 1}], T, "not one (bytes|memoryview|dict)"),
    (VALUES, "values", [None, 7, AsksLater()], T, "such as a list, not (NoneType|int|AsksLater)"),
    (
        VALUES,
        "values",
        [From(lambda s: s.db), From(lambda s: s.tr), From(lambda s: s.tr.snapshot)],
        T,
        "the database or the transaction comes first, then the values",
    ),
    ("SmartQueue.enqueue_many", "values", [frames("DataFrame")], T, r"not a DataFrame of pandas.* frame.to_dict\('rec"),
    ("SmartQueue.enqueue_many", "values", [frames("Series")], T, r"not a Series of pandas.* series.to_list\(\)"),
    ("SmartQueue.enqueue_many", "values", [frames("Table")], T, r"not a Table of pyarrow.* Give table.to_pylist\(\)"),
    ("SmartQueue.enqueue_many", "values", [frames("RecordBatch")], T, "not a RecordBatch of pyarrow"),
    (("Group.enqueue_many", "Sessions.enqueue_many", "SmartSessions.enqueue_many"), "values", ["abc"], T, "iterable"),
    ("SmartSessions.enqueue_many", "values", [b"bytes", {"a": 1}, None, 7], T, "Values to enqueue are an iterable"),
    ("Sessions.enqueue_many", "values", [7], T, "are an iterable"),
    # parameters that another layer has
    ("Queue.enqueue", "delay", [5], T, r"'delay': Leases\(queue\)\.enqueue has it"),
    (("Queue.enqueue", *LAYERED), "priority", [0, 1], T, r"'priority': PriorityQueue\(queue\)\.enqueue has it"),
    (LAYERED, "session", ["a"], T, r"keyword argument 'session': Sessions\(queue\)\.enqueue has it"),
    ("Queue.enqueue_many", "ttl", [5], T, r"'ttl': Leases\(queue\)\.enqueue_many has it"),
    ("Queue.dequeue", "timeout", [5], T, r"'timeout': StagedQueue\(queue\)\.dequeue has it"),
    ("Queue.dequeue", "limit", [5], T, "'limit': dequeue_many has it"),
    ("Leases.lease", "timeout", [5], T, r"'timeout': StagedQueue\(queue\)\.lease has it"),
    ("Leases.lease_many", "timeout", [5], T, r"'timeout': StagedQueue\(queue\)\.lease_many has it"),
    ("StagedQueue.enqueue", "delay", [0], T, r"'delay': Leases\(queue\)\.enqueue has it"),
    # queues
    ("Queue", "name", ["", b"", (), Subspace()], V, "A queue needs a"),
    ("Queue", "name", [SURROGATE, ("a", SURROGATE), (("a", SURROGATE),)], V, r"queue has a lone surrogate.*os\.fsenc"),
    ("Queue", "name", [({},)], V, r"The name \(\{\},\) can't be a key: "),
    ("Queue", "order", [EarliestDeadline], T, r"not the class EarliestDeadline: give order=EarliestDeadline\(\)"),
    ("Queue", "order", ["fifo"], T, "order is an object with a name and rank.*not 'fifo'. Leave it out for first in"),
    ("Queue", "order", [len], T, "order is an object with a name and rank"),
    ("Queue", "codec", [""], TV, "codec"),
    ("Queue", "codec", [str], T, r"codec='str' is the codec for str"),
    ("Queue", "codec", [JsonCodec], T, r"codec=JsonCodec\(\)"),
    ("Queue", "codec", [dict], T, r"codec=JsonCodec\(dict\)"),
    ("Queue", "codec", [dict[str, int]], T, r"codec=JsonCodec\(dict\[str, int\]\)"),
    ("Queue", "codec", [7], T, "has a name, encode and decode, and 7 does not"),
    ("Queue.register", "max_attempts", [0, "3"], TV, "max_attempts"),
    ("Queue.register", "backoff", [7], T, "backoff"),
    ("Queue.register", "on_codec", ["ignore"], V, "on_codec is 'fail' or 'replace', not 'ignore'"),
    ("Queue.pause", "reason", [7, b"x"], T, "is a text"),
    ("Queue.pause", "by", [1], T, "is a text"),
    ("Queue.pause", "by", [""], TV, "by"),
    ("Queue.pause", "reason", ["x" * 1_001], V, "at most 1,000 bytes"),
    *(("Queue.pause", name, [SURROGATE], V, "has a lone surrogate, which is no text") for name in ("reason", "by")),
    ("Queue.set_quota", "items", ["5", 5.0, True, [5], From(lambda s: s.db)], T, "a whole number of items"),
    ("Queue.set_quota", "items", [0, -1, 1 << 63], V, "at least 1"),
    ("Queue.set_quota", "", [{"items": n, "when_full": "drop oldest"} for n in (5, None)], V, "when_full is"),
    ("Queue.set_quota", "size_bytes", ["5", 5e6, True, [5]], T, "a whole number of bytes"),
    ("Queue.set_quota", "size_bytes", [0, 999_999, 1 << 63], V, "A quota of bytes is at least 1,000,000, not"),
    ("Queue.to_arrow", "states", ["gone"], V, "states are some of available.* not 'gone'"),
    ("Queue.to_arrow", "states", [[]], V, "an empty list"),
    ("Queue.to_arrow", "columns", [["valeu"]], V, "no column 'valeu'. There are position"),
    ("Queue.to_arrow", "columns", [[]], V, "at least one column"),
    ("Queue.to_arrow", "columns", ["value"], T, r"columns=\['value'\]"),
    ("Queue.to_arrow", "limit", ["3"], T, "limit is how many items"),
    ("Queue.to_arrow", "after", [7], T, "is an item's Position"),
    ("Queue.to_arrow", "on_bad", ["skip"], V, "on_bad is 'fail', or 'null'"),
    ("check", "queue", [From(lambda s: s.leases)], T, r"check is of a Queue, as in .*, not of Leases"),
    ("check", "queue", ["orders"], T, "check is of a Queue"),
    ("queues", "limit", [0], V, "at least 1"),
    (("queues", "troubles", "find_queues"), "within", [""], TV, "."),
    ("troubles", "", [{"queue": "", "within": None}], TV, "."),
    ("troubles", "queue", ["a"], T, "not both"),
    ("rename", "new", ["", None, 7], TV, "."),
    ("rename", "old", ["", None, From(lambda s: s.queue)], TV, "."),
    ("OperationLog.of", "by", [""], TV, "."),
    # leases, levels, heads
    ("Leases", "max_attempts", [0], V, "at least 1"),
    ("Leases", "max_attempts", ["5", 1.5, True], T, "max_attempts is a whole number"),
    ("Leases", "backoff", [5], T, "backoff is a function of the attempt"),
    ("Leases", "head", ["x"], T, "head is a Head"),
    (("Leases", "StagedQueue", "SmartQueue", "Subscriptions"), "queue", ["mails"], T, NO_QUEUE),
    ("PriorityQueue", "queue", ["mails"], T, r"as in PriorityQueue\(Queue\('jobs'\)\), not of 'mails'"),
    ("PriorityQueue", "levels", ["3"], T, "levels is a number of levels, or Levels, .* not '3'"),
    ("PriorityQueue", "weights", [3], T, r"weights has an integer for each level, as in weights=\[3, 2, 1\], not 3"),
    (
        ("PriorityQueue.enqueue", "PriorityQueue.enqueue_many"),
        "priority",
        [10**30, -1, 3, 1.5, "1", "0", True],
        V,
        "A priority of this queue is an integer from 0 to 2, not {wrong!r}",
    ),
    ("PriorityQueue.enqueue_many", "", [{"priority": None, "headers": {"priority": 3}}], V, "integer from 0 to 2"),
    ("RelaxedQueue", "queue", [None, "q"], T, "RelaxedQueue takes a Queue or its Leases"),
    ("RelaxedQueue", "window", ["3", True], T, "window is among how many first items to pick, an integer, not"),
    ("RelaxedQueue", "window", [0], V, "window"),
    (("Levels", "AmqpLevels"), "count", ["x", None, 2.5, True], T, "count is the number of levels, an integer, not"),
    ("Levels", "count", [0, 257], V, "1 to 256 levels"),
    ("AmqpLevels", "count", [0, 11, 257], V, "1 to 10 priorities"),
    ("Levels", "of", ["size"], T, "of is a function from a value to its priority, not 'size'"),
    (("Blobs", "Leases", "Sessions", "Stream", "Tasks", "TokenBucket"), "clock", [5], T, "function"),
    ("exponential", "first", [-1], V, "first is a number of seconds, more than 0, not -1"),
    ("exponential", "first", ["1"], T, "first is a number of seconds, not '1'"),
    ("exponential", "factor", [0.5], V, "factor is a number, 1 or more, not 0.5"),
    ("exponential", "factor", [None, True], T, "factor is a number, not {wrong}"),
    ("exponential", "factor", [inf], V, "factor is a number, .* finite, not inf"),
    ("exponential", "jitter", [-0.1], V, "jitter is a number, 0 or more, not -0.1"),
    ("exponential", "jitter", [inf], V, "jitter is a number, .* finite, not inf"),
    ("exponential", "longest", [0], V, "longest is a number of seconds, more than 0, not 0"),
    ("constant", "seconds", [-1], V, "seconds is a number of seconds, 0 or more, not -1"),
    ("constant", "seconds", ["1"], T, "seconds is a number of seconds, not '1'"),
    # consumers
    ("Consumer", "source", [From(lambda s: s.queue)], T, "Consumer takes Leases, .* what becomes of items that fail"),
    ("Consumer", "handler", [None, "handle"], T, "can't be"),
    ("Consumer", "handler", [lambda: None, lambda lease, more: None], T, "one argument, the lease"),
    ("Consumer", "concurrency", [0], V, r"concurrency is .* from 1 to 1,000,000, not 0"),
    ("Consumer", "prefetch", [-1], V, "prefetch"),
    ("Consumer", "duration", [0], V, "duration"),
    ("Consumer", "on_bad", ["null"], V, "on_bad is 'fail' or 'dead', not 'null'"),
    ("Consumer", "metrics", ["127.0.0.1:9464"], T, "MetricsServer"),
    ("Consumer", "health", ["", "file:", -1, 70_000, "x", "host:", "host:99999", 1.5, True, ["file:x"]], TV, "health"),
    ("Watchdog", "leases", [From(lambda s: s.queue)], T, "Watchdog takes Leases, .* what becomes of items that fail"),
    ("Watchdog", "interval", ["1", 0], TV, "interval is a number of seconds,( more than 0,)? not {wrong!r}"),
    ("Watchdog", "batch", [0], V, "batch is how many timers one transaction fires, at least 1, not 0"),
    ("Watchdog", "batch", [True], T, "batch is how many timers .*, not True"),
    ("Watchdog", "hook", ["restart"], T, "and .* can't be"),
    ("Watchdog", "hook", [awaited], T, "A watchdog's hook is called and not awaited"),
    ("Monitor", "handler", [None], T, "and .* can't be"),
    ("Monitor", "near", ["soon"], T, "and .* can't be"),
    ("Monitor", "handler", [awaited], T, "A monitor's handler is called and not awaited"),
    ("Monitor", "near", [awaited], T, "handler of near deadlines is called and not awaited"),
    ("RateLimit", "db", ["memory:"], T, "takes the database"),
    ("RateLimit", "count", [0, "5"], TV, "count"),
    *(("RateLimit", name, [wrong], TV, name) for name, wrong in (("seconds", 0), ("burst", 0), ("key", 7))),
    ("RetryIn", "seconds", [-1, "5", None, nan, True], TV, "seconds"),
    ("TimeLimit", "seconds", [0, -1, "5", inf, None], TV, "seconds"),
    ("RetryBy", "rules", [{}, None, [V], {"ValueError": 5}, {V: "5"}, {V: -1}, {V: int}], TV, "RetryBy|rule|exception"),
    *(("LogItems", name, [wrong], T, name) for name, wrong in (("logger", "x"), ("level", "INFO"), ("values", "yes"))),
    ("TokenBucket", "queue", ["mails"], T, "belongs to a Queue"),
    ("TokenBucket", "count", [0], V, "count is how many tokens are added, at least 1, not 0"),
    ("TokenBucket", "count", [1.5], T, "count is how many tokens are added, an integer, not"),
    ("TokenBucket", "seconds", [0], V, "seconds is a number of seconds"),
    ("TokenBucket", "burst", [0], V, "burst is how many tokens the bucket holds"),
    ("TokenBucket", "name", [{"a": 1}], V, "can't be named"),
    # blobs and streams
    ("Blobs", "lease", [0], V, "lease is a number of seconds, more than 0"),
    ("Blobs", "queue", [None, "memory:", 7, b"x"], T, "Blobs takes a Queue, or a layer that enqueues"),
    ("Blobs.read", "item", [None, "memory:", 7, b"x"], T, "A lease, its handle or a Position names the item to read"),
    ("Stream", "name", ["", "x" * 501], V, "1 to 500 bytes"),
    ("Stream", "name", [b"s"], T, "named by a str"),
    ("Stream", "name", [SURROGATE], V, "has a lone surrogate, which is no text"),
    # results and groups
    (("Results.enqueue", "Done"), "then", ["", b"", "x", 7, [7]], T, "`then` is a FollowUp"),
    ("Results.enqueue", "then", [None, From(lambda s: s.leases)], T, "`then` is a FollowUp"),
    (WAITED, "then", [From(lambda s: [FollowUp(s.leases, "y")] * 20)], ItemTooLarge, "follow-ups take about"),
    (WAITED, "then", [From(lambda s: FollowUp(s.leases, "y", at=5))], V, "can't have a time `at`"),
    (("Results.enqueue", "Results"), "keep", [0, -1, nan], V, "keep is a number of seconds"),
    ("Results.completion", "item", [None, 7, From(lambda s: s.db)], T, "An item is named by the text"),
    ("Results.completion", "item", ["7"], V, "is not a position"),
    ("Results", "type", ["int", 7, object()], T, "is not supported"),
    *(
        (
            kind,
            "source",
            [From(lambda s: s.queue), From(lambda s: s.staged), None, "orders", From(lambda s: s.db)],
            T,
            said,
        )
        for kind, said in (("Results", "Results takes Leases, as in"), ("Groups", "Groups takes Leases, as in"))
    ),
    ("Groups", "source", [From(lambda s: Results(s.groups))], T, "a member of one group at most: give Groups"),
    ("Groups.open", "name", [None, 7, b"x", From(lambda s: s.leases)], T, "A group is named by a str"),
    ("Groups.enqueue", "group", [None, 7, b"x", From(lambda s: s.leases)], T, "A group is named by a str"),
    ("Groups.open", "name", ["", "x" * 101, "é" * 51], V, "The name of a group has 1 to 100 bytes"),
    ("Groups.open", "name", [SURROGATE], V, "has a lone surrogate, which is no text"),
    ("Groups.group", "name", [""], TV, "."),
    ("Groups.enqueue", "group", [""], TV, "."),
    ("Groups.open", "then", [From(lambda s: s.leases)], T, "`then` is a FollowUp"),
    ("Groups.open", "hold", [0], V, "hold is a number of seconds"),
    ("Groups.open", "keep", [-1], V, "keep is a number of seconds"),
    (("Group.hold", "Groups.open"), "token", [b"x" * 1_001, b"x" * 20_000], V, "at most 1,000 bytes, .* Give a hash"),
    ("Groups.list", "after", [7, ""], TV, "."),
    ("Groups.list", "limit", [0, "1"], TV, "."),
    ("FollowUp", "value", [7], CodecError, "."),
    (
        "FollowUp",
        "target",
        [From(lambda s: s.staged), None, "orders", From(lambda s: s.db), From(lambda s: Consumer(s.leases, print))],
        T,
        "A follow-up is enqueued in a transaction",
    ),
    ("FollowUp", "priority", [1], T, "priority"),
    ("FollowUp", "level", [9], T, r"has the arguments of its target's enqueue.*'level'\. Give those"),
    ("FollowUp", "at", [2e12], V, "at is a number of seconds, 0 or more, not 2000000000000.0, which is over"),
    ("FollowUp", "at", [-1], V, "at is"),
    ("FollowUp", "", [{"at": 5, "delay": 5}], V, "not both"),
    ("FollowUp", "ttl", [0], V, "ttl is a number of seconds, more than 0"),
    ("FollowUp", "headers", [7], V, "Headers are a mapping"),
    ("FollowUp", "headers", [{"x": "y" * 100_000}], ItemTooLarge, ""),
    *(
        ("FollowUp", "", [{"target": From(make), **terms}], error, said)
        for make, terms, error, said in (
            (lambda s: s.sessions, {"session": "ann", "level": 9}, V, "A level of .* is an integer from 0 to 1, not 9"),
            (lambda s: Results(s.sessions), {"session": "ann", "level": -1}, V, "not -1"),
            (lambda s: s.sessions, {"session": "ann", "delay": 2e12}, V, "delay is"),
            (lambda s: s.jobs, {"priority": 9}, V, "9"),
            (lambda s: s.jobs, {"delay": -1}, V, "delay"),
            (lambda s: s.subscriptions, {"priority": 1}, V, "has no levels, and so no priorities"),
            (lambda s: s.sessions, {}, T, "session"),
            (lambda s: Results(s.sessions), {}, T, r"^Results\(.* enqueues into sessions: give session="),
        )
    ),
    # sessions
    ("Sessions", "queue", ["orders"], T, r"Sessions are of a Queue, as in Sessions\(Queue\('orders'\)\)"),
    ("Sessions", "queue", [From(lambda s: s.leases)], T, "have leases and levels of their own"),
    ("Sessions", "queue", [From(lambda s: s.jobs.queue)], TV, "give the queue without an order"),
    ("Sessions", "queue", [From(lambda s: Queue("x" * 7_000))], V, "queue's name .* sessions"),
    ("Sessions", "levels", [0], V, "levels is the number of levels of a session, from 1 to 256"),
    ("Sessions", "levels", ["2"], T, "levels is the number of levels of a session, an integer"),
    ("Sessions", "quantum", [0], V, "quantum is how many items .* at least 1"),
    ("Sessions", "quantum", [True], T, "quantum is how many items .* an integer"),
    ("Sessions", "max_attempts", [0], V, "max_attempts is at least 1"),
    ("Sessions", "weights", [3], T, "weights is a function"),
    ("Sessions", "backoff", [1.0], T, "backoff is a function"),
    ("Sessions", "clock", [7], T, "clock is a function"),
    ("Sessions", "gates", [[Gate("acme", 1)]], T, "gates is a function"),
    ("Sessions", "on_dead", ["stop"], V, "on_dead is 'go on' or 'block', not 'stop'"),
    ("Sessions", "delays", ["wait"], V, "delays is 'pass' or 'hold', not 'wait'"),
    ("Gate", "name", [None, 3, "", (), ["acme"], (object(),)], TV, "gate"),
    (("Sessions.gate", "Sessions.set_limit"), "gate", [None, 3, "", (), ["acme"], (object(),)], TV, "gate"),
    ("Sessions.enqueue", "session", [None, 7], T, "named by a str, bytes or a tuple, not {wrong}"),
    (("Sessions.enqueue", "Sessions.enqueue_many"), "session", ["", (), b""], V, "needs a name"),
    ("Sessions.enqueue", "session", [({},)], T, "can't be a key"),
    ("Sessions.enqueue", "session", ["x" * 1_001], V, "It may have 1,000"),
    ("Sessions.enqueue", "session", [SURROGATE], V, "has a lone surrogate, which is no text"),
    ("Sessions.enqueue", "session", [lambda value: "ann"], T, r"name of .* Sessions\.enqueue_many takes a function"),
    ("Sessions.enqueue", "level", [2, "high", True], V, "an integer from 0 to 1, not {wrong!r}"),
    ("Sessions.enqueue", "delay", [-1], V, "delay is a number of seconds, 0 or more"),
    ("Sessions.enqueue", "", [{"delay": 1, "at": 2}], V, "after a delay, or at a time; not both"),
    ("Sessions.enqueue", "ttl", [0], V, "ttl is a number of seconds, more than 0"),
    ("Sessions.enqueue", "value", [b"x"], CodecError, "codec is 'str'"),
    ("Sessions.enqueue", "value", ["x" * 8_000_001], ItemTooLarge, "over the limit"),
    ("Sessions.enqueue_many", "session", [lambda value: None], T, "not None"),
    ("Sessions.lease", "duration", [0], V, "duration is a number of seconds, more than 0"),
    ("Sessions.ack", "lease", [None, "ann", Lease(PLACE, "", {}, b"", 0.0, 1, "")], T, "A session's lease was exp"),
    ("Sessions.ack", "state", ["text"], CodecError, "must be bytes"),
    ("Sessions.ack", "state", [bytes(90_001)], V, "at most 90,000 bytes, not 90,001"),
    (("Sessions.ack", "Sessions.set_state"), "state", [3], CodecError, "The state_codec of .* codec is 'bytes', so a"),
    ("Sessions.ack_and_next", "duration", [-1], V, "duration is a number of seconds"),
    ("Sessions.snooze", "delay", [nan], V, "delay is a number of seconds"),
    ("Sessions.extend", "duration", [None], T, "duration is a number of seconds"),
    ("Sessions.pause", "session", [7], T, "named by a str, bytes or a tuple"),
    (tuple(f"Sessions.{verb}" for verb in ("pause", "remove", "purge", "cancel")), "session", [""], V, "needs a name"),
    ("Sessions.cancel", "session", [None], T, ""),
    ("Sessions.cancel", "position", [None, "1:2:61", 7], T, "Position"),
    ("Sessions.reschedule", "", [{"delay": None}, {"level": 2}], V, ""),
    ("Sessions.remove", "later", ["drop"], V, "later is 'refuse' or 'renew', not 'drop'"),
    (("Sessions.redrive", "Sessions.purge"), "position", ["first", "", b"", {"a": 1}, 5], T, "named by its Position"),
    ("Sessions.purge", "position", [[Position(1, b""), 7]], T, "named by its Position"),
    (("Sessions.redrive", "Sessions.purge"), "limit", [0], V, "limit is how many dead letters"),
    (("Sessions.dead", "Sessions.scheduled"), "limit", [-1], V, "limit is how many items"),
    (("Sessions.dead", "Sessions.scheduled"), "limit", ["all"], T, "limit is how many items"),
    (tuple(f"Sessions.{v}" for v in ("dead", "scheduled", "redrive", "purge")), "limit", [10**19], V, r"than 2\^63"),
    (("Sessions.dead", "DeadLetters.browse"), "on_bad", ["skip"], V, "on_bad is 'fail' or 'null', not 'skip'"),
    ("Sessions.list", "limit", ["3"], T, "limit is how many items to show, an integer"),
    ("Sessions.list", "status", ["asleep"], V, "status is one of 'ready'"),
    ("Sessions.list", "after", [""], TV, "."),
    *(
        (
            "SmartQueue",
            "queue",
            [From(make)],
            T,
            r"For checks within a session take SmartSessions\(sessions\).*taken by",
        )
        for make in (lambda s: s.sessions, lambda s: Results(s.sessions), lambda s: Groups(s.sessions))
    ),
    *(
        (("StagedQueue", "RelaxedQueue", "Subscriptions"), "queue", [From(make)], T, r"Consumer\(sessions, handler\)")
        for make in (lambda s: Results(s.sessions), lambda s: Groups(s.sessions))
    ),
    # smart queues
    ("MessageType", "name", [None, 7], T, "message type"),
    ("MessageType", "cls", ["Progress"], T, "message type"),
    ("MessageType", "cls", [AsksLater], T, "check of the message type 'call' is called and not awaited"),
    ("MessageType", "check", [7, fdbqueue.layers.Decision.ignore], T, "message type"),
    ("MessageType", "key", ["file"], T, "message type"),
    ("MessageType", "expires", ["60", True], T, "message type"),
    ("MessageType", "deadline", [False, [1]], T, "message type"),
    ("MessageType", "sees", ["own", None], T, "message type"),
    ("MessageType", "limit", [3], T, "message type"),
    ("MessageType", "key_limit", [(3, "drop oldest")], T, "message type"),
    ("MessageType", "confirms", ["B"], T, "message type"),
    *(
        ("MessageType", name, [awaited, Awaited()], T, f"{name} of the message type 'call' is called and not awaited")
        for name in ("check", "key", "expires", "deadline", "confirms")
    ),
    ("Messages", "format", ["xml"], V, ""),
    ("Limit", "most", [1.5, 3.0, True, "3", None], T, "whole number"),
    ("Limit", "most", [0], V, ""),
    ("Limit", "when_full", ["panic"], V, ""),
    ("Replace", "terms", ["both"], V, "'own' or 'incoming'"),
    *(
        (("SmartQueue", "SmartSessions"), name, [None, "3", 0, -1, [1], inf], V, f"{name} is a bound, a number")
        for name in ("max_items", "max_bytes", "check_seconds")
    ),
    (("SmartQueue", "SmartSessions"), "max_items", [True, 0.5], V, "max_items is a bound, .*, not {wrong}"),
    (("SmartQueue", "SmartSessions"), "limit", [3], T, r"limit is a Limit, as in Limit\(100\)"),
    ("SmartQueue.enqueue", "priority", [0], V, "Use the leases of a PriorityQueue"),
    ("SmartQueue.enqueue_many", "priority", [0], V, "has no levels"),
    ("SmartQueue.enqueue", "ttl", [0, -1, nan, "10"], TV, "ttl"),
    (RECIPIENTS, "recipient", [None, 7, b"B", ["B"]], T, "A recipient is named by a str"),
    ("Resend.register", "recipient", [""], V, "bytes"),
    ("Resend.confirm", "copy", ["7", "7:00@x"], V, ""),
    ("Resend.confirm", "copy", [7, PLACE], T, ""),
    ("Resend.confirm", "position", ["7:00@x"], T, ""),
    (
        "SmartSessions",
        "sessions",
        [None, "orders", *map(From, (lambda s: s.queue, lambda s: s.leases, lambda s: s.smart_sessions))],
        T,
        r"SmartSessions are made of Sessions, as in Smart",
    ),
    ("SmartSessions", "sessions", [From(lambda s: Results(s.smart_sessions))], T, "are made of Sessions, as in Smart"),
    ("SmartSessions", "sessions", [From(lambda s: Sessions(Queue("q", codec="json")))], T, "is a Messages, not 'json'"),
    ("SmartSessions.enqueue", "session", [None, 7, lambda message: "ann"], T, ""),
    ("SmartSessions.enqueue", "session", ["", "a" * 2_000], V, ""),
    ("SmartSessions.enqueue", "level", [2, True], V, ""),
    ("SmartSessions.enqueue", "", [{"delay": 1, "at": 1}, {"delay": -1}, {"ttl": 0}], V, ""),
    ("SmartSessions.enqueue", "value", [None, "text", {"type": "unknown"}, 7], Exception, "registered type|not a mess"),
    # subscriptions
    ("Subscription.grant", "items", [1.5, inf, True, -1], V, "an integer from 0 on"),
    ("Subscription.grant", "size_bytes", ["9"], V, "an integer from 0 on"),
    ("Subscription.grant", "", [{"items": None, "size_bytes": False}], V, "an integer from 0 on"),
    (("Subscriptions.subscribe", "Subscriptions.unsubscribe"), "name", NO_NAMES, TV, "subscription is named|name of a"),
    ("Subscriptions.follow", "name", ["", 200 * "é"], TV, "."),
    ("Subscriptions.stats", "after", [wrong for wrong in NO_NAMES if wrong], TV, "subscription is named|name of a"),
    ("Subscriptions.subscribe", "name", [SURROGATE], V, "has a lone surrogate, which is no text"),
    ("Subscriptions.subscribe", "selector", [5], T, r"A selector is a condition, as in .* or a function, not 5"),
    ("Subscriptions.browse", "selector", [5], T, r"A selector is a condition, as in .* or a function, not 5"),
    (("Subscriptions.subscribe", "Subscriptions.browse"), "selector", [awaited], T, AWAITED),
    *((f"Subscriptions.{verb}", "selector", [""], TV, ".") for verb in ("subscribe", "follow", "browse")),
    ("Subscriptions.subscribe", "", [{"exclusive": True, "ownership": 4e-7}], V, SHORT.replace("{name}", "ownership")),
    ("Selector", "text", ["", " \n"], TV, "."),
    ("Selector", "text", [None], T, "The text of a selector is a str"),
    ("Selector", "text", [f"a = '{SURROGATE}'"], V, "A selector has a lone surrogate"),
    (("Subscriptions.enqueue", "Subscriptions.enqueue_many"), "priority", [0], V, "no levels, and so no priorities"),
    ("Subscriptions.enqueue", "", [{"delay": 1, "immediate": True}, {"at": 2e9, "immediate": True}], V, NEVER_BOTH),
    (("Subscriptions.enqueue", "Subscriptions.enqueue_many"), "", [{"ttl": 5, "delay": 1, "at": 1}], V, "not both"),
    (("Subscriptions.enqueue", "Subscriptions.enqueue_many"), "delay", ["soon"], T, "delay is a number of seconds"),
    ("Subscriptions.enqueue", "", [{"value": 7, "delay": 1}], CodecError, ""),
    # tasks
    (
        "Tasks",
        "queue",
        [7, None, [], object(), From(lambda s: s.queue), From(lambda s: s.staged)],
        T,
        "Tasks are in a queue that is named",
    ),
    *(
        (
            "Tasks",
            "queue",
            [From(partial(lambda kind, codec, s: kind(Queue(s.space["x"], codec=codec)), kind, codec))],
            T,
            "as JSON",
        )
        for kind, codec in ((Leases, "msgpack"), (PriorityQueue, "str"), (Sessions, "tuple"))
    ),
    ("Tasks", "queue", [""], V, "needs a name"),
    ("Tasks", "queue", [From(lambda s: s.smart)], T, "For other layers enqueue their items in"),
    ("Tasks", "levels", [0], V, "levels is the number of priorities, at least 1"),
    ("Tasks", "levels", ["3"], T, "levels is the number of priorities, an integer"),
    (("Tasks", "task"), "retries", [-1], V, "retries is how often"),
    (("Tasks", "task"), "retries", [1.5, True], T, "retries is how often"),
    (("Tasks", "task"), "backoff", [5], T, "backoff is a function"),
    ("task", "retires", [1], T, "no option 'retires'"),
    ("task", "timeout", [0], V, "timeout is a number of seconds"),
    ("task", "timeout", ["1"], T, "timeout is a number of seconds"),
    ("task", "ttl", [-1], V, "ttl is a number of seconds"),
    ("task", "keep_result", [True], T, "keep_result is a number of seconds"),
    ("task", "name", ["", 7, "\ud800", "a\x00"], T, "A task is named by a text"),
    ("task", "aliases", ["old", 7], T, "aliases and limits are lists"),
    ("task", "aliases", [[7]], T, "A task is named by a text"),
    ("task", "limits", [7, Rate(1)], T, "aliases and limits are lists"),
    ("task", "limits", [[7]], T, "A limit is Concurrency"),
    ("task", "limits", [[Rate(1, by="nobody")]], T, "by names the parameter 'nobody'"),
    ("task", "priority", [1], T, "has no priorities. Give the tasks some"),
    (("task"), "session", [7], T, "Give the name of a parameter"),
    ("task", "unique", [7], T, "Give the name of a parameter"),
    ("task", "session", ["nobody"], T, "session names the parameter 'nobody'"),
    ("task", "unique", ["nobody"], T, "by names the parameter 'nobody'"),
    ("task", "unique", ["", b"", [], 0], T, "name of a parameter|names the parameter"),
    ("task", "", [{"session": "name", "limits": [Concurrency(2)]}], T, "a session, which runs one call at a time"),
    *(
        ("task", "", [{**terms, "unique": Unique(until="started")}], T, "until='done'")
        for terms in ({"session": "name"}, {"limits": [Concurrency(2)]})
    ),
    ("task", "queue", [7], T, "Tasks are in a queue that is named"),
    *(("configure", name, [wrong], TV, "is a number of seconds") for name, wrong in (("delay", -1), ("delay", "1"))),
    *(("configure", name, [wrong], TV, "is a number of seconds") for name, wrong in (("at", -1), ("ttl", 0))),
    ("configure", "keep_result", [0], V, "is a number of seconds"),
    ("configure", "priority", [1], T, "has no priorities"),
    ("Concurrency", "limit", [0], V, ""),
    ("Concurrency", "limit", [1.0], T, ""),
    (("Concurrency", "Unique"), "by", [7], T, ""),
    ("Rate", "count", [0], V, ""),
    *(("Rate", name, [10**400], V, "too large|larger|up to 1|longest|most") for name in ("count", "burst")),
    ("Rate", "seconds", [0], V, ""),
    ("Rate", "seconds", ["x"], T, ""),
    ("Rate", "burst", [0], V, ""),
    ("Unique", "until", ["later"], V, ""),
    ("Unique", "period", [0], V, ""),
    ("periodic", "", [{"cron": cron, "every": None} for cron in ("", "x", "* * * *", "61 * * * *")], V, "cron expr"),
    ("periodic", "", [{"cron": cron, "every": None} for cron in ("* * * * * *", "* * 31 2 *")], V, "cron expression"),
    ("periodic", "cron", ["* * * * *"], V, "not both"),
    ("periodic", "every", [0, -1, nan], V, "every"),
    ("periodic", "every", [1e-6], V, "every is at least a millisecond"),
    ("periodic", "catch_up", ["some"], V, "catch_up is 'none', 'last' or 'all'"),
    ("periodic", "jitter", [-1], V, "jitter"),
    ("periodic", "name", [7], T, "A schedule is named by a str"),
    ("Schedules", "queue", [7, "work", None], T, "Schedules belong to the Queue"),
    ("Schedules", "clock", [7, "work", None], T, "A clock is a function"),
    ("Worker", "concurrency", [0], V, "concurrency is how many tasks"),
    ("Worker", "queues", ["mail"], T, "queues are a list of names"),
    ("Worker", "queues", [["missing"]], V, "No task of"),
    ("Worker", "grace", ["long"], T, "grace"),
    ("Worker", "health", [-1], V, "health is 'file:PATH'"),
    ("Worker", "no_such", [1], T, r"A Worker has no argument 'no_such'\. Beside its own .* concurrency, .* signals\."),
    # servers
    *(
        ("Limits", name, [0, -1, "8", None, nan, True], V, f"{name} is a number over 0")
        for name in ("max_size", "connections", "in_flight", "line_bytes", "line_seconds", "data_seconds")
    ),
    ("Limits", "max_size", [2**31 + 1], V, "max_size is at most 2,147,483,648 bytes"),
    ("AgentServer", "tls", ["server.pem"], T, r"tls is a fdbqueue\.agents\.Tls, or None, not 'server\.pem'"),
    ("AgentServer", "limits", [7], T, r"limits is a fdbqueue\.agents\.Limits"),
    ("AgentServer", "access", [{"*": 5}], T, r"access is a fdbqueue\.agents\.Access"),
    ("AgentServer", "access", [A.Access({})], V, "need TLS"),
    ("AgentServer", "db", [From(lambda s: s.tr)], T, "transaction"),
    ("queue_of_type", "type", ["5", None, -1, 70_000, 5.0, True], V, "type is a whole number from 0 to 65,536, not"),
    ("AgentClient", "timeout", [0], V, "timeout is a number"),
    ("AgentClient", "tls", [True], T, r"tls is an ssl\.SSLContext"),
    *(
        ("MetricsServer", "listen", [listen], TV, r"127\.0\.0\.1:9464")
        for listen in ("9464", ":9464", "host:", "host:99999", "host:x", "host:٣", 9464, None)
    ),
    ("MetricsServer", "limit", [0], V, "at least 1"),
    ("AdminApp", "db", [None], T, "AdminApp takes"),
    ("AdminApp", "hosts", ["example.org", 5, [5]], T, "hosts is a list"),
    ("AdminApp", "token", [5], T, "token is a text"),
    ("AdminApp", "token", ["short"], V, "token"),
]
"""Verb or class, argument, wrong values, error, text. Without an argument, each wrong value is several arguments."""


def in_sessions(s: Any) -> Any:
    return L.Blobs(s.sessions)


def bucket(s: Any) -> Any:
    return TokenBucket(s.queue, "smtp", count=1, seconds=1, burst=2)


def smart_in_sessions(rule: Any) -> Any:
    return L.SmartSessions(Sessions(Queue("q", codec=Messages(MessageType("job", **rule)))))


def task(s: Any) -> Any:
    return app(s).task(named)


def doubled(s: Any) -> Any:
    """Name the queue of an app as that of a task."""
    return tasks_of(s, "json").task(queue=Leases(Queue(s.space["app"], codec="json")))(named)


def later(s: Any) -> Any:
    one = task(s)
    return one.then(one.configure(at=1e9).call("Ann"))


def alone(s: Any) -> Any:
    unique = app(s).task(unique=True)(named)
    return unique.enqueue_many(s.db, [unique.call("Ann")])


def followed(one: Any) -> Any:
    return one.app.group([one.call("a")]).then(one)


def group(s: Any, *kinds: str, then: Any = ()) -> Any:
    """Make a group of calls of the kinds of tasks."""
    one = app(s)
    tasks = {
        "plain": one.task(named),
        "elsewhere": one.task(name="elsewhere", queue=s.space["elsewhere"])(named),
        "unique": one.task(name="unique", unique=True)(named),
        "another": ELSEWHERE,
    }
    calls = [tasks[kind].call("Ann") for kind in kinds]
    return one.group(calls).then(*(tasks[kind].call("Bob") if kind in tasks else kind for kind in then))


ELSEWHERE: Any = Tasks("another").task(named)
TAKES_NONE = MessageType("x", check=lambda: fdbqueue.layers.Decision.ignore)
CALLS: list[tuple[Of, Any, str]] = [
    (lambda s: Q.open("orders", s.space), T, "database or a transaction"),
    *((partial(lambda wrong, s: Q.open(s.db, wrong), wrong), TV, ".") for wrong in (None, 7, b"", "")),
    (lambda s: L.Messages("x"), T, r"Messages\(MessageType"),
    (lambda s: L.SmartQueue(Q("q", codec="json")), T, "is a Messages, not 'json'"),
    (lambda s: L.SmartQueue(Q("q", codec=Messages(TAKES_NONE))), T, "takes the queued message and the newcomer"),
    *(
        (partial(lambda rule, s: smart_in_sessions(rule), rule), T, "keys of its types name the session")
        for rule in ({"deadline": 5.0}, {"confirms": lambda message: "A"})
    ),
    (lambda s: s.smart.resend.fetch(s.tr, "B", timeout=None), V, "needs a database"),
    (lambda s: s.smart.resend.confirm(s.db, "C", copy="7:00@7"), V, ""),
    (lambda s: s.leases.update(s.db, PLACE), V, ""),
    (lambda s: s.leases.reschedule(s.db, PLACE, delay=1, at=1), V, ""),
    (lambda s: s.leases.reschedule(s.db, PLACE), V, ""),
    (lambda s: s.sessions.update(s.db, "ann", PLACE), V, ""),
    (lambda s: s.sessions.reschedule(s.db, "ann", PLACE), V, ""),
    (lambda s: Results(s.sessions).enqueue(s.db, "x", session=lambda v: "a"), T, "enqueue_many takes a function"),
    (lambda s: Results(s.sessions).enqueue(s.db, "x"), T, "session"),
    (lambda s: Results(s.sessions).enqueue(s.db, "x", session=None), T, "session"),
    (lambda s: Results(s.sessions).completion(s.db, RANKED), T, "in which session the item is"),
    (lambda s: L.Results(s.sessions).peek(None), T, "`list`, `scheduled` and `info`"),
    (
        lambda s: s.results.completion(s.tr, "7:ab"),
        T,
        r"Results\.completion makes its own .* Call it with the database",
    ),
    (lambda s: s.groups.group(s.tr, "import"), T, r"Groups\.group makes its own .* Call it with the database"),
    (lambda s: s.subscriptions.follow(s.tr), T, "not a transaction. In a transaction use .*browse"),
    (lambda s: s.subscriptions.open("none", function=awaited), T, AWAITED),
    (lambda s: s.subscriptions.open(""), TV, "."),
    (lambda s: bucket(s).take(s.db, 3), V, "holds at most 2 tokens, and never 3"),
    (lambda s: bucket(s).take(s.db, True), T, "tokens is how many are taken"),
    (lambda s: export_items(s.db, s.queue, "/nowhere/out.jsonl", where=""), TV, "."),
    # blobs
    (lambda s: s.blobs.write(s.tr, "x"), T, r"Blobs.write makes its own .* not a transaction. To enqueue in yours"),
    (lambda s: s.blobs.write(s.db, "x", priority=1), T, "Leases.enqueue takes at, delay, headers, ttl, not 'priority'"),
    (lambda s: L.Blobs(s.queue).write(s.db, "x", delay=1), T, "takes headers, not 'delay'. Give Blobs the layer"),
    (lambda s: L.Blobs(Q("q")).write(s.db, "text"), CodecError, "value must be bytes"),
    (lambda s: L.Blobs(Q("q", codec="json")).write(s.db), T, "needs a value for the item"),
    (lambda s: L.Blobs(s.smart).write(s.db), T, "needs a value for the item"),
    (lambda s: s.blobs.write(s.db, "x", headers="").commit(), CodecError, "Headers are a mapping whose keys are str"),
    (
        lambda s: s.blobs.write(s.db, "x").write("text"),
        T,
        r"takes bytes.*'text'. Encode it: write\(text.encode\(\)\)\.",
    ),
    *(
        (partial(lambda wrong, s: s.blobs.write(s.db, "x").write(wrong), wrong), T, "A blob takes bytes, or an object")
        for wrong in (None, "memory:", 7)
    ),
    *(
        (partial(lambda wrong, s: s.blobs.write(s.db, "x").commit(wrong), wrong), T, "was expected")
        for wrong in ("memory:", 7, b"x")
    ),
    *((partial(lambda kind, s: L.Blobs(kind(s.smart)), kind), T, "give its SmartQueue") for kind in (Results, Groups)),
    (lambda s: in_sessions(s).write(s.db, "x"), T, "session"),
    (lambda s: in_sessions(s).write(s.db, "x", session=7).commit(), T, "named by"),
    (lambda s: in_sessions(s).write(s.db, "x", session="a", priority=1), T, "not 'priority'"),
    (lambda s: in_sessions(s).write(s.db, session="a"), T, "needs a value"),
    (lambda s: in_sessions(s).write(s.tr, "x", session="a"), T, r"commit\(tr\)"),
    (lambda s: in_sessions(s).read(s.db, s.lease), T, "lease of a session"),
    (lambda s: in_sessions(s).read(s.db, RANKED), T, "give session="),
    (lambda s: in_sessions(s).read(s.db, None), T, "names the item"),
    (lambda s: in_sessions(s).read(s.db, PLACE, session=7), T, "named by a str"),
    (lambda s: s.blobs.read(s.db, s.session_lease), T, "give Blobs the Sessions"),
    (lambda s: s.blobs.read(s.db, PLACE, session="ann"), T, "give Blobs the Sessions"),
    # agents
    (lambda s: A.AgentClient("127.0.0.1:1").send(5, b"data", size=4), V, "size is for a file"),
    (lambda s: A.AgentClient("127.0.0.1:1").send(5, io.BytesIO(b"data"), size=-1), V, "size is a whole number"),
    (lambda s: A.AgentClient("127.0.0.1:1").receive(5, max_size=-1), V, "max_size is a whole number"),
    (lambda s: A.AgentClient("127.0.0.1:1").receive(5, into=io.StringIO()), T, "into is a file"),
    (lambda s: A.AgentWatchdog(s.leases, ["true"]).run(s.tr), T, "it takes a database, not a transaction. In a trans"),
    (
        lambda s: A.AgentWatchdog(s.leases, ["true"]).drain(s.tr),
        T,
        "it takes a database, not a transaction. In a trans",
    ),
    # tasks
    *(
        (partial(lambda wrong, s: app(s).task(wrong), wrong), T, "made of a function")
        for wrong in (7, "name", int, print)
    ),
    (lambda s: app(s).task(generates), T, "is a generator"),
    (lambda s: tasks_of(s, "json").task(session="name")(named), T, "needs sessions"),
    (lambda s: tasks_of(s, "json", Sessions).task(named), T, "needs session="),
    (lambda s: tasks_of(s, "json", Sessions).task(limits=[Concurrency(2)])(named), T, "Make it a gate of its sessions"),
    (
        lambda s: L.Tasks(Leases(Queue(s.space["app"], codec="json")), levels=2),
        T,
        "levels are those of a queue that is",
    ),
    (lambda s: L.Tasks(s.space["app"], levels=2).task(priority=2)(named), V, "priority"),
    (lambda s: doubled(s), T, "already, as"),
    (lambda s: task(s).enqueue(s.db), T, "other arguments"),
    (lambda s: task(s).enqueue(s.db, 7), T, "not of its annotation"),
    (lambda s: task(s).enqueue("Ann", "Ann"), T, "A database or a transaction was expected"),
    (lambda s: task(s).call("Ann").enqueue(7), T, "A database or a transaction was expected"),
    (lambda s: task(s).configure(delay=1, at=1e9).enqueue(s.db, "Ann"), V, "not both"),
    *((partial(lambda wrong, s: task(s).then(wrong), wrong), T, "can follow") for wrong in (7, "x", named, ELSEWHERE)),
    *(
        (partial(lambda wrong, s: task(s).call("Ann").then(wrong), wrong), T, "can follow")
        for wrong in (7, "x", named, ELSEWHERE)
    ),
    (lambda s: later(s), V, "can't have a time `at`"),
    (lambda s: task(s).enqueue_many(s.db, [("Ann",)]), T, "takes calls of its own task"),
    (lambda s: task(s).enqueue_many(s.db, [app(s).task(work).call()]), T, "takes calls of its own task"),
    (lambda s: alone(s), T, "decided call by call"),
    (lambda s: task(s).handle(s.db, "no handle"), V, "position"),
    (lambda s: group(s, "plain", "elsewhere"), T, "all of them in one queue, not in 2: "),
    (lambda s: group(s), T, "A group has at least one call"),
    (lambda s: app(s).group(task(s).call("a")), T, "A group has a list of calls"),
    (lambda s: app(s).group([task(s)]), T, "A group has calls"),
    (lambda s: group(s, "another"), T, "A group has calls"),
    (lambda s: group(s, "unique"), T, "is unique"),
    (lambda s: group(s, "plain", then=["unique"]), T, "is unique"),
    (lambda s: group(s, "plain", then=[7]), T, "can follow"),
    (lambda s: followed(task(s)), T, "other arguments"),
    (lambda s: app(s).periodic("* * * * *", tz="Europe/Nowhere"), V, "There is no time zone 'Europe/Nowhere'"),
    (lambda s: app(s).periodic(every=5)(work), T, r"Put @app.periodic above @app.task"),
    (lambda s: schedule(s, named)(every=5), T, "other arguments"),
    (lambda s: app(s).periodic(every=5)(L.Tasks("another").task(work)), T, "of another app"),
    (lambda s: app(s).find([]), UnknownTask, "knows no task"),
    *(
        (
            partial(lambda verb, s: getattr(app(s).schedules, verb)(s.db, "missing"), verb),
            LookupError,
            "no schedule 'mis",
        )
        for verb in ("pause", "resume", "reset", "remove")
    ),
    (lambda s: s.tasks.schedules.change(s.db, "note"), V, "Give a cron expression"),
    (lambda s: L.Worker(s.tasks).drain(s.tr), T, "A Worker makes its own transactions"),
    (lambda s: s.tasks.run_due(s.tr), T, "A Worker"),
]
"""Calls, the error and its text."""
CELLS = [
    pytest.param(place, name, wrong, error, said, id=f"{place}-{name}-{wrong!r:.11}")
    for places, name, wrongs, error, said in TABLE
    for place in ([places] if isinstance(places, str) else places)
    for wrong in wrongs
]


def refused(call: Verb, error: Any, said: str) -> None:
    """Check that a call is refused by a sentence of the library's."""
    with pytest.raises(error, match=said or None) as caught:
        call()
    assert not raw(caught.value) or "missing" in str(caught.value)  # which is Python's own


@pytest.mark.parametrize(("place", "name", "wrong", "error", "said"), CELLS)
def test_a_wrong_argument_is_refused(
    db: Any, space: Subspace, place: str, name: str, wrong: Any, error: Any, said: str
) -> None:
    scene = Scene(db, space)
    calls: list[Verb]
    if place in ALSO_MADE:
        make, terms = ALSO_MADE[place](scene)
        calls = [make]
    elif place in MADE:
        calls, terms = [maker(place)], MADE[place](scene)
    else:
        call = (EITHER | DATABASE_ONLY)[place](scene)
        terms = plain_terms(call)
        given = (db, scene.tr) if place in EITHER else (db,)
        calls = [partial(form, one) for form in forms(call.verb) for one in given]
    wrong = filled(wrong, scene)
    terms = {**terms, **wrong} if name == "" else {**terms, name: wrong}
    before = scene.rows()
    for one in calls:
        refused(lambda one=one: one(**terms), error, said.format(wrong=wrong) if "{wrong" in said else said)
    scene.tr.commit().wait()
    assert scene.rows() == before


@pytest.mark.parametrize(("call", "error", "said"), CALLS)
def test_a_wrong_call_is_refused(db: Any, space: Subspace, call: Of, error: Any, said: str) -> None:
    scene = Scene(db, space)
    refused(lambda: call(scene), error, said)  # its scene is there then
    before = scene.rows()
    refused(lambda: call(scene), error, said)
    assert scene.rows() == before


def test_what_is_near_a_wrong_argument_is_taken(db: Any, space: Subspace) -> None:
    scene = Scene(db, space)
    assert list(scene.queue.browse(db, limit=0)) == []
    assert scene.groups.open(db, "book", token=b"x" * 1_000).name == "book"
    assert Position.parse(f"{(1 << 64) - 1}:72").index == (1 << 64) - 1
    handlers: list[Any] = [print, lambda lease: None, lambda *leases: None, lambda lease, more=1: None]
    for handler in handlers:
        Consumer(scene.leases, handler)
    FollowUp(scene.sessions, "x", session="ann", level=0)
    FollowUp(scene.jobs, "x", priority=2, delay=1)
    FollowUp(scene.leases, "x", at=5)
    scene.queue.clear(db)
    scene.queue.enqueue(db, "x", headers={})
    assert scene.queue.peek(db).headers == {}  # type: ignore[union-attr]
    scene.queue.set_quota(db, 5, size_bytes=2_000_000, when_full="wait")
    assert scene.queue.quota(db).text == "at most 5 items and about 2,000,000 bytes, then wait"  # type: ignore[union-attr]


def test_a_parameter_that_no_layer_has_is_reported_as_python_does(db: Any, space: Subspace) -> None:
    with pytest.raises(TypeError, match=r"enqueue\(\) got an unexpected keyword argument 'colour'$"):
        Q(space).enqueue(db, 1, colour="red")


SWAPPED = ("Queue", "Leases", "StagedQueue", "PriorityQueue", "Subscriptions", "SmartQueue")


@pytest.mark.parametrize("name", SWAPPED)
def test_a_value_in_the_place_of_the_database_is_named(db: Any, space: Subspace, name: str) -> None:
    verbs = EITHER | DATABASE_ONLY
    with pytest.raises(TypeError, match=r"a database.*not dict.*fdbqueue\.open returned|A database .*, not dict"):
        verbs[f"{name}.enqueue"](Scene(db, space)).verb({"type": "call"}, db)
    if f"{name}.enqueue_many" in verbs:
        with pytest.raises(TypeError, match=r"A database or a transaction was expected, not list: the first argument"):
            verbs[f"{name}.enqueue_many"](Scene(db, space)).verb([1], db)


NONE_FOR_ALL = {
    **{f"{layer}.{verb}": "position" for layer in ("DeadLetters", "Sessions") for verb in ("redrive", "purge")},
    "OperationLog.forget": "until",
}


@pytest.mark.parametrize("name", NONE_FOR_ALL)
def test_none_for_all_is_told_to_the_line_that_gives_it(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    argument = NONE_FOR_ALL[name]
    call = EITHER[name](scene)
    given = f"None as .*{argument}.* is deprecated since 0.3.0 .* Use the call without it, for all"
    nothing: Any = {argument: None}

    async def awaited() -> None:
        await call.verb.aio(db, *call.args, **nothing)

    for form in (lambda: call.verb(db, *call.args, **nothing), lambda: asyncio.run(awaited())):
        with pytest.warns(DeprecationWarning, match=given) as told:
            form()
        assert [one.filename for one in told] == [__file__]
    call.verb(db, *call.args)  # without it there is no warning, which would be an error here


def test_places_and_sizes_in_a_blob_are_integers(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="json"))
    with L.Blobs(leases).write(db, 1) as out:
        out.write(b"data")
    with L.Blobs(leases).read(db, leases.lease(db)) as data:
        calls: list[Verb] = [data.seek, data.read, data.read1]
        for call in calls:
            with pytest.raises(TypeError, match="integer"):
                call(1.5)
        assert data.read() == b"data"
