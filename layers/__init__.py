"""Layers: recipes that stand on the queue, each in one module.

The public classes are here too, so one import is enough. Their modules are loaded when they are first used:

>>> from fdbqueue.layers import Consumer, Leases, StagedQueue

=================  ====================================================================================
`leases`           lend an item for a time; it comes back when its consumer dies
`consumer`         run a handler for each leased item
`backoff`          how long a failed item waits for its next attempt
`deadletters`      items that failed too often: browse, redrive, purge
`watchdog`         give expired leases back when no consumer runs
`staged`           many consumers at one head, which wait without polling
`relaxed`          many consumers that can do without strict order
`priority`         levels of urgency
`earliest`         earliest deadline first
`subscriptions`    named consumers with conditions (`selectors`) and credit
`smart`            compare a new item with the queued ones, in the enqueueing transaction
`messages`         types of smart items, with `decisions` and `limits`
`monitor`          report items that miss their deadline
`resend`           keep items until every recipient has confirmed its copy
`oplog`            log what was done to a queue
=================  ====================================================================================

A layer keeps all its keys under the queue's own subspace. A layer that is too large for a file has a folder of parts,
which users need not know: `leasing` for `leases`, `staging` for `staged`, `subscribing` for `subscriptions`,
`selecting` for `selectors`, `comparing` for `smart`.

The folder is at the top of the repository. ``fdbqueue/layers`` is a symbolic link to it, and `fdbqueue.layers` is its
only import name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backoff import constant, exponential, immediately
    from .consumer import Consumer
    from .deadletters import DeadLetters
    from .deadlines import Deadlines
    from .decisions import Decision, Outcome, TakeOver
    from .earliest import EarliestDeadline
    from .handlers import ACKED, Snooze
    from .lease import Fate, Lease, LeaseHandle
    from .leases import Leases
    from .levels import AmqpLevels, Levels
    from .limits import Limit
    from .messages import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, keyed, types
    from .monitor import Monitor
    from .oplog import OperationLog
    from .priority import PriorityQueue
    from .relaxed import RelaxedQueue
    from .resend import Resend
    from .running.terms import ConsumerReport
    from .selectors import Selector
    from .smart import SmartQueue
    from .staged import StagedQueue
    from .subscription import Subscription
    from .subscriptions import Subscriptions
    from .watchdog import Watchdog

_MODULES = {
    "ACKED": "handlers",
    "AmqpLevels": "levels",
    "Consumer": "consumer",
    "ConsumerReport": "running.terms",
    "DeadLetters": "deadletters",
    "Deadlines": "deadlines",
    "Decision": "decisions",
    "EVERYTHING": "messages",
    "EarliestDeadline": "earliest",
    "Fate": "lease",
    "Lease": "lease",
    "LeaseHandle": "lease",
    "Leases": "leases",
    "Levels": "levels",
    "Limit": "limits",
    "MessageType": "messages",
    "Messages": "messages",
    "Monitor": "monitor",
    "NOTHING": "messages",
    "OWN_KEY": "messages",
    "OWN_TYPE": "messages",
    "OperationLog": "oplog",
    "Outcome": "decisions",
    "PriorityQueue": "priority",
    "RelaxedQueue": "relaxed",
    "Resend": "resend",
    "Selector": "selectors",
    "SmartQueue": "smart",
    "Snooze": "handlers",
    "StagedQueue": "staged",
    "Subscription": "subscription",
    "Subscriptions": "subscriptions",
    "TakeOver": "decisions",
    "Watchdog": "watchdog",
    "constant": "backoff",
    "exponential": "backoff",
    "immediately": "backoff",
    "keyed": "messages",
    "types": "messages",
}

__all__ = [
    "ACKED",
    "EVERYTHING",
    "NOTHING",
    "OWN_KEY",
    "OWN_TYPE",
    "AmqpLevels",
    "Consumer",
    "ConsumerReport",
    "DeadLetters",
    "Deadlines",
    "Decision",
    "EarliestDeadline",
    "Fate",
    "Lease",
    "LeaseHandle",
    "Leases",
    "Levels",
    "Limit",
    "MessageType",
    "Messages",
    "Monitor",
    "OperationLog",
    "Outcome",
    "PriorityQueue",
    "RelaxedQueue",
    "Resend",
    "Selector",
    "SmartQueue",
    "Snooze",
    "StagedQueue",
    "Subscription",
    "Subscriptions",
    "TakeOver",
    "Watchdog",
    "constant",
    "exponential",
    "immediately",
    "keyed",
    "types",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
