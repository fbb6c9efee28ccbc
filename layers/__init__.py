"""Layers: recipes on top of the queue, each in a folder.

The public classes are here too, so one import is enough. Their modules are loaded when you first use them:

>>> from fdbqueue.layers import Consumer, Leases, StagedQueue

=================  ====================================================================================
`leases`           lend an item for a time: ack, nack, back-off, delays, dead letters
`consumer`         run a handler for each leased item; `Watchdog` gives expired leases back
`middleware`       limits of time and rate, retries by exception, log lines around a consumer's handler
`staged`           many consumers at one head, which wait without polling; `RelaxedQueue` gives up strict order
`sessions`         items in order per session, one worker a session, a fair turn for each
`priority`         levels of urgency, and earliest deadline first
`subscriptions`    named consumers with selectors and credit
`smart`            compare a new item with the queued ones, in the enqueueing transaction
`smart_sessions`   the same within each session
`results`          wait for an item's result; let other items follow it
`blobs`            items of up to 2 GiB, written and read as files
`groups`           wait for all items of a group; let one item follow them; cancel the rest
`oplog`            log every change to a queue
`tasks`            functions whose calls are enqueued, and run by workers
`schedules`        what is enqueued at its times, by any number of workers, each time once
`streams`          numbered batches for a reader with a log of its own, such as Spark
=================  ====================================================================================

A layer keeps all its keys under the queue's own subspace. Each layer is a folder: its ``__init__`` has the recipe and
the public names, and a name that begins with an underscore is internal. `common` has parts that several layers use.
Imports go one way: leases <- common <- staged <- priority, groups, results, schedules, sessions, smart,
streams, subscriptions <- blobs, consumer, middleware, smart_sessions <- tasks.

The folder is at the top of the repository. ``fdbqueue/layers`` is a symbolic link to it, and `fdbqueue.layers` is its
only import name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blobs import Blob, BlobReader, Blobs, BlobWriter
    from .consumer import ACKED, Consumer, ConsumerReport, GiveUp, RetryIn, Snooze, Watchdog
    from .groups import Group, Groups, GroupStats
    from .leases import DeadLetters, Disposition, Lease, LeaseHandle, Leases, constant, exponential, immediately
    from .middleware import ItemFields, LogItems, RateLimit, RetryBy, TimeLimit
    from .oplog import OperationLog
    from .priority import AmqpLevels, EarliestDeadline, Levels, PriorityQueue
    from .results import Completion, Done, FollowUp, Results
    from .schedules import Schedule, Schedules
    from .sessions import (
        UNCHANGED,
        Gate,
        GateInfo,
        NewState,
        SessionHandle,
        SessionInfo,
        SessionLease,
        Sessions,
        SessionStats,
    )
    from .smart import (
        EVERYTHING,
        NOTHING,
        OWN_KEY,
        OWN_TYPE,
        Deadlines,
        Decision,
        Limit,
        Messages,
        MessageType,
        Monitor,
        Outcome,
        Replace,
        Resend,
        SmartQueue,
        keyed,
        types,
    )
    from .smart_sessions import SmartSessions
    from .staged import RelaxedQueue, StagedQueue
    from .subscriptions import Follower, Selector, Subscription, Subscriptions
    from .tasks import (
        AsyncTask,
        BaseTask,
        Call,
        Concurrency,
        Handle,
        Rate,
        Task,
        Tasks,
        Unique,
        Worker,
    )

_ROOMS = {
    "ACKED": "consumer",
    "AmqpLevels": "priority",
    "Completion": "results",
    "Blob": "blobs",
    "BlobReader": "blobs",
    "BlobWriter": "blobs",
    "Blobs": "blobs",
    "Consumer": "consumer",
    "ConsumerReport": "consumer",
    "DeadLetters": "leases",
    "Deadlines": "smart",
    "Decision": "smart",
    "Done": "results",
    "EVERYTHING": "smart",
    "EarliestDeadline": "priority",
    "Disposition": "leases",
    "FollowUp": "results",
    "Follower": "subscriptions",
    "Gate": "sessions",
    "GiveUp": "consumer",
    "GateInfo": "sessions",
    "Group": "groups",
    "GroupStats": "groups",
    "Groups": "groups",
    "ItemFields": "middleware",
    "Lease": "leases",
    "LeaseHandle": "leases",
    "Leases": "leases",
    "Levels": "priority",
    "Limit": "smart",
    "LogItems": "middleware",
    "MessageType": "smart",
    "Messages": "smart",
    "Monitor": "smart",
    "NOTHING": "smart",
    "NewState": "sessions",
    "OWN_KEY": "smart",
    "OWN_TYPE": "smart",
    "OperationLog": "oplog",
    "Outcome": "smart",
    "PriorityQueue": "priority",
    "RateLimit": "middleware",
    "RelaxedQueue": "staged",
    "Resend": "smart",
    "Results": "results",
    "RetryBy": "middleware",
    "RetryIn": "consumer",
    "Selector": "subscriptions",
    "SessionHandle": "sessions",
    "SessionInfo": "sessions",
    "SessionLease": "sessions",
    "SessionStats": "sessions",
    "Sessions": "sessions",
    "SmartQueue": "smart",
    "SmartSessions": "smart_sessions",
    "Snooze": "consumer",
    "StagedQueue": "staged",
    "Subscription": "subscriptions",
    "Subscriptions": "subscriptions",
    "Replace": "smart",
    "TimeLimit": "middleware",
    "UNCHANGED": "sessions",
    "Watchdog": "consumer",
    "AsyncTask": "tasks",
    "BaseTask": "tasks",
    "Call": "tasks",
    "Concurrency": "tasks",
    "Handle": "tasks",
    "Rate": "tasks",
    "Schedule": "schedules",
    "Schedules": "schedules",
    "Task": "tasks",
    "Tasks": "tasks",
    "Unique": "tasks",
    "Worker": "tasks",
    "constant": "leases",
    "exponential": "leases",
    "immediately": "leases",
    "keyed": "smart",
    "types": "smart",
}

__all__ = [
    "ACKED",
    "EVERYTHING",
    "NOTHING",
    "OWN_KEY",
    "OWN_TYPE",
    "UNCHANGED",
    "AmqpLevels",
    "AsyncTask",
    "BaseTask",
    "Blob",
    "BlobReader",
    "BlobWriter",
    "Blobs",
    "Call",
    "Completion",
    "Concurrency",
    "Consumer",
    "ConsumerReport",
    "DeadLetters",
    "Deadlines",
    "Decision",
    "Disposition",
    "Done",
    "EarliestDeadline",
    "FollowUp",
    "Follower",
    "Gate",
    "GateInfo",
    "GiveUp",
    "Group",
    "GroupStats",
    "Groups",
    "Handle",
    "ItemFields",
    "Lease",
    "LeaseHandle",
    "Leases",
    "Levels",
    "Limit",
    "LogItems",
    "MessageType",
    "Messages",
    "Monitor",
    "NewState",
    "OperationLog",
    "Outcome",
    "PriorityQueue",
    "Rate",
    "RateLimit",
    "RelaxedQueue",
    "Replace",
    "Resend",
    "Results",
    "RetryBy",
    "RetryIn",
    "Schedule",
    "Schedules",
    "Selector",
    "SessionHandle",
    "SessionInfo",
    "SessionLease",
    "SessionStats",
    "Sessions",
    "SmartQueue",
    "SmartSessions",
    "Snooze",
    "StagedQueue",
    "Subscription",
    "Subscriptions",
    "Task",
    "Tasks",
    "TimeLimit",
    "Unique",
    "Watchdog",
    "Worker",
    "constant",
    "exponential",
    "immediately",
    "keyed",
    "types",
]


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{room}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
