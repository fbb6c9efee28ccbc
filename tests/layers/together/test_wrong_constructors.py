"""Every public class and every run of one refuses every wrong kind of argument by a sentence, when it is given.

`test_every_wrong_kind.py` does the same with the verbs, and says what a raw error is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue.layers
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    AmqpLevels,
    Blobs,
    Completion,
    Concurrency,
    Consumer,
    Deadlines,
    Done,
    EarliestDeadline,
    FollowUp,
    Gate,
    GiveUp,
    Group,
    Groups,
    Leases,
    Levels,
    Limit,
    LogItems,
    Messages,
    MessageType,
    Monitor,
    NewState,
    OperationLog,
    PriorityQueue,
    Rate,
    RateLimit,
    RelaxedQueue,
    Replace,
    Results,
    RetryBy,
    RetryIn,
    Selector,
    Sessions,
    SmartQueue,
    SmartSessions,
    Snooze,
    StagedQueue,
    Subscriptions,
    Tasks,
    TimeLimit,
    Unique,
    Watchdog,
    Worker,
    constant,
    exponential,
    keyed,
    types,
)
from tests.helpers.verbs import Scene
from tests.layers.together.test_every_wrong_kind import raw, told, wrong

pytestmark = pytest.mark.engines("memory")

Made = tuple[Callable[..., Any], dict[str, Any]]


def _handle(given: Any) -> None:
    """Handle nothing."""


def _empty(s: Scene) -> Leases[Any]:
    return Leases(Queue(s.space["more"], codec="str"))


def _smart_sessions(s: Scene) -> Sessions:
    return Sessions(Queue(s.space["more"], codec=Messages(MessageType("call"))))


MADE: dict[str, Callable[[Scene], Made]] = {
    "AmqpLevels": lambda s: (AmqpLevels, {"count": 10}),
    "Blobs": lambda s: (Blobs, {"queue": s.leases}),
    "Completion": lambda s: (Completion, {"queue_leases": s.leases, "position": s.completion.position}),
    "Concurrency": lambda s: (Concurrency, {"limit": 1}),
    "Consumer": lambda s: (Consumer, {"source": _empty(s), "handler": _handle}),
    "Deadlines": lambda s: (Deadlines, {"smart": s.smart}),
    "Done": lambda s: (Done, {}),
    "EarliestDeadline": lambda s: (EarliestDeadline, {}),
    "FollowUp": lambda s: (FollowUp, {"target": s.leases, "value": "x"}),
    "Gate": lambda s: (Gate, {"name": "tenant", "limit": 1}),
    "GiveUp": lambda s: (GiveUp, {}),
    "Group": lambda s: (Group, {"groups": s.groups, "name": "import"}),
    "Groups": lambda s: (Groups, {"source": s.leases}),
    "Leases": lambda s: (Leases, {"queue": s.queue}),
    "Levels": lambda s: (Levels, {"count": 3}),
    "Limit": lambda s: (Limit, {"most": 3}),
    "LogItems": lambda s: (LogItems, {}),
    "MessageType": lambda s: (MessageType, {"name": "call"}),
    "Messages": lambda s: (Messages, {}),
    "Monitor": lambda s: (Monitor, {"deadlines": s.deadlines, "handler": _handle}),
    "NewState": lambda s: (NewState, {"value": 1}),
    "OperationLog": lambda s: (OperationLog, {"name": "log", "queue": s.queue}),
    "PriorityQueue": lambda s: (PriorityQueue, {"queue": Queue(s.space["more"], codec="str")}),
    "Queue": lambda s: (Queue, {"name": "orders"}),
    "Rate": lambda s: (Rate, {"count": 3}),
    "RelaxedQueue": lambda s: (RelaxedQueue, {"queue": s.queue}),
    "RateLimit": lambda s: (RateLimit, {"db": s.db, "count": 2}),
    "Replace": lambda s: (Replace, {"message": {"type": "call"}}),
    "Results": lambda s: (Results, {"source": s.leases}),
    "RetryBy": lambda s: (RetryBy, {"rules": {OSError: 3}}),
    "RetryIn": lambda s: (RetryIn, {"seconds": 1}),
    "Selector": lambda s: (Selector, {"text": "kg > 1"}),
    "Sessions": lambda s: (Sessions, {"queue": Queue(s.space["more"], codec="str")}),
    "SmartQueue": lambda s: (SmartQueue, {"queue": Queue(s.space["more"], codec=Messages(MessageType("call")))}),
    "SmartSessions": lambda s: (SmartSessions, {"sessions": _smart_sessions(s)}),
    "Snooze": lambda s: (Snooze, {"seconds": 1}),
    "StagedQueue": lambda s: (StagedQueue, {"queue": s.queue}),
    "Subscriptions": lambda s: (Subscriptions, {"queue": s.queue}),
    "Tasks": lambda s: (Tasks, {"queue": "tasks"}),
    "TimeLimit": lambda s: (TimeLimit, {"seconds": 1}),
    "Unique": lambda s: (Unique, {}),
    "Watchdog": lambda s: (Watchdog, {"leases": s.leases}),
    "Worker": lambda s: (Worker, {"app": Tasks("tasks")}),
    "constant": lambda s: (constant, {"seconds": 1}),
    "exponential": lambda s: (exponential, {}),
    "keyed": lambda s: (keyed, {}),
    "types": lambda s: (types, {}),
}
"""What users make, and the arguments that it needs."""

NOT_MADE = {
    *("AsyncTask", "BaseTask", "Call", "Handle", "Schedule", "Schedules", "Task"),  # by Tasks
    *("Blob", "BlobReader", "BlobWriter"),  # by Blobs
    *("DeadLetters", "Follower", "GateInfo", "GroupStats", "Lease", "LeaseHandle", "Outcome", "Resend"),
    *("ConsumerReport", "SessionHandle", "SessionInfo", "SessionLease", "SessionStats", "Subscription"),
    *("Decision", "Disposition", "ItemFields"),  # no arguments
}
"""Classes whose objects come from verbs."""

USED: dict[str, Callable[[Any, Any], object]] = {
    "Consumer": lambda made, db: made.drain(db),
    "Leases": lambda made, db: made.stats(db),
    "Monitor": lambda made, db: made.sweep(db),
    "Queue": lambda made, db: made.peek(db),
    "Sessions": lambda made, db: made.stats(db),
    "Watchdog": lambda made, db: made.sweep(db),
    "Worker": lambda made, db: made.drain(db),
}
"""What is done with an object once it is made: it must not fail by what it was made with."""


def test_no_public_class_is_left_out() -> None:
    names = set(fdbqueue.layers.__all__)
    found = {name for name in names if inspect.isclass(getattr(fdbqueue.layers, name))}

    assert found - NOT_MADE == {name for name in MADE if name[0].isupper()} - {"Queue"}


def mistakes(make: Callable[..., Any], plain: dict[str, Any], values: list[Any], use: Any) -> Iterator[str]:
    """Make an object with one wrong argument after the other, and yield the raw errors."""
    for name, one in inspect.signature(make).parameters.items():
        for value in values:
            try:
                if one.kind is one.VAR_POSITIONAL:
                    made = make(*[value], **plain)
                elif one.kind is one.VAR_KEYWORD:
                    continue
                else:
                    made = make(**{**plain, name: value})
                use(made)
            except Exception as error:  # noqa: BLE001  the test is about all of them
                if raw(error):
                    yield f"{name}={value!r:.40}: {told(error)}"


@pytest.mark.parametrize("name", MADE)
def test_a_class_refuses_wrong_arguments_by_its_own_words(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    make, plain = MADE[name](scene)
    use = USED.get(name, lambda made, db: repr(made))

    assert list(mistakes(make, plain, wrong(scene), lambda made: use(made, db))) == []
