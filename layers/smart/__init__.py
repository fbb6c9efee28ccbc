"""Smart checks: an incoming item is compared with queued items, in the transaction that enqueues it.

Challenge
    The next progress report makes the last one outdated. A confirmation cancels the item that it confirms. A repeated
    alarm is no news. A consumer that sorts this out does so too late, or for a state that the queue has left.

Keys
    A smart item is an ordinary item with dependent keys (each after the queue's own tuple):

    ============================================  ===================================================
    ``("smart", type, key, index, random)``       its entry in the index of types and relation keys
    ``("deadline", stage, at_us, index, random)``  when it should have left the queue
    ============================================  ===================================================

    Its notes name these keys, so any transaction that takes it out (a plain dequeue, an ack, a purge) clears them too.
    A dead letter has none: it has left the queue until it is redriven. The key ``(True, "type")`` marks the queue as
    smart.

Ordering
    The checks of queued items run in queue order. The first answer other than "don't care" decides. An appended item
    is placed after all items that its transaction saw. An item that takes the incoming item's values keeps its place.

Guarantees
    The decision is the one that the serial state at the commit gives, phantoms included. The transaction reads exactly
    the keys that the decision depends on with a conflict. Incoming items whose relations are disjoint do not conflict.
    A failed call has written nothing. Given a database, each call takes effect exactly once.

Limits
    A type that sees everything conflicts with every enqueue and every dequeue; see `MessageType.sees`.

    The first smart enqueue that appends an item makes the queue a smart one, until it is cleared. It raises
    `ChecksBypassed` if the queue has plain items, leased, delayed and dead ones included: no index names them. From
    then on all other enqueues raise `ChecksBypassed`: those of `Queue`, `Leases`, `PriorityQueue`, `StagedQueue`,
    `Subscriptions`, the command line, and Spark without its option ``smart``. All verbs that take or move items work
    as before. The `Queue` and the `Leases` that a `SmartQueue` was made of refuse at once, and so do all layers of
    them.

    A process with an older version of the library does not refuse. Its plain items have no entry in the index, and
    neither have items that other objects enqueued at the same time as the first smart one. Only types that see
    everything meet such items, and `check` reports them.

    A redriven dead letter comes back without a comparison. The check of a leased item runs only if it takes `asked`,
    and it can't change the item. If a leased item is deleted, its holder's ack raises `LeaseLost`. A check's own time
    is limited, but its calls into C are not (`layers/smart/messages.py`).

Source
    W. Herzner, M. Thuswald: "Smart Queue – A Pattern for Message Handling in Distributed Environments".
"""

from __future__ import annotations

from ._deadlines import Deadlines, Monitor, MonitorReport
from ._resend import Resend
from .messages import Messages
from .smart import SmartQueue
from .types import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Decision, Limit, MessageType, Outcome, Replace, keyed, types

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "OWN_KEY",
    "OWN_TYPE",
    "Deadlines",
    "Decision",
    "Limit",
    "MessageType",
    "Messages",
    "Monitor",
    "MonitorReport",
    "Outcome",
    "Replace",
    "Resend",
    "SmartQueue",
    "keyed",
    "types",
]
