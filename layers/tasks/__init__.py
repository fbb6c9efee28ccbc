"""Tasks: functions whose calls are enqueued, and run by workers.

Challenge
    Most programs that need a queue need it for calls of functions: later, elsewhere, again if they fail, every morning.
    An item, a lease and a consumer are more than they want to write.

Keys
    The items, and all that layers keep of them, as `leases`, `sessions`, `results`, `groups` and `schedules` document
    it. Beside them, behind the tuple of the app's queue:

    ==================================  ==================================================================
    ``("smart", "task", key, i, rnd)``  empty; a unique call is there, as in the index of a smart queue
    ``("completion", 1, key)``          a unique call was enqueued in this period: an outcome that is kept for it
    ``("rate", (task, n, key))``        a token bucket
    ==================================  ==================================================================

    A call is JSON, ``{"task": "send", "args": {"to": "Ann"}}``, so that programs in any language can enqueue it.

Ordering
    That of the queue: calls start in the order of their enqueues, by priority if there are any. With `session` they run
    one at a time and in order for each value, and all values have fair turns.

Guarantees
    A call is enqueued in the caller's transaction, or not at all. Its result, its follow-ups and its ack are one
    transaction. With `Tasks.transaction` the writes of the task are in it, too: exactly once, whatever dies.

    An attempt that fails is tried again, by the policy of its task. After the last one the call is a dead letter. So is
    a call whose task no worker knows, or whose arguments do not fit any more; its error says which. A redrive runs it
    with the code of then. A worker that dies has used up an attempt.

    A unique call is compared in the transaction that enqueues it. Of two equal ones at the same time one conflicts, and
    then finds the other.

Limits
    At least once for effects elsewhere, as for every lease. A function in a thread can't be interrupted: after its
    `timeout` it runs on. Uniqueness in sessions holds within a session. Calls that other programs enqueue are neither
    unique nor in sessions. A call has at most 8,000,000 bytes.

Source
    Procrastinate and Dramatiq for the words of tasks and workers; River for unique jobs in the caller's transaction.
"""

from __future__ import annotations

from ._arguments import Concurrency, Rate, Unique
from ._running import Running
from ._task import AsyncTask, BaseTask, Call, CallGroup, EnqueuedGroup, Handle, Task
from ._tasks import Tasks, UnknownTask
from ._worker import Worker

__all__ = [
    "AsyncTask",
    "BaseTask",
    "Call",
    "CallGroup",
    "Concurrency",
    "EnqueuedGroup",
    "Handle",
    "Rate",
    "Running",
    "Task",
    "Tasks",
    "Unique",
    "UnknownTask",
    "Worker",
]
