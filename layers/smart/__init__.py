"""Smart checks: a newcomer is compared with what is queued already, in the transaction that enqueues it.

Challenge
    A report of progress is outdated by the next one, a confirmation neutralizes what it confirms, a repeated alarm is
    no news. A consumer that sorts this out does so too late, or for a state that the queue has left.

Keys
    A smart item is an item like any other. Beside it (behind the queue's own tuple):

    ============================================  ===================================================
    ``("smart", type, key, index, random)``       its entry in the index of types and relation keys
    ``("deadline", stage, at_us, index, random)``  when it should have left the queue
    ============================================  ===================================================

    Its notes name these keys, so that any transaction that takes it out (a plain dequeue, an ack, a purge) clears them
    too. A dead letter has none: it has left the queue until it is redriven. The key ``(True, "type")`` says that the
    queue is smart.

Ordering
    Queued items are asked in queue order; the first that answers anything but "don't care" decides. What is appended
    stands behind all that its transaction saw. An item that takes over values keeps its place.

Guarantees
    The decision is the one that the serial state at the commit gives, phantoms included: everything that it depends on,
    and nothing else, is read with a conflict. Newcomers whose relations are disjoint do not conflict. What fails has
    written nothing. Given a database, each call takes effect exactly once.

Limits
    A type that sees everything conflicts with every enqueue and every dequeue; see `MessageType.sees`.

    The first smart enqueue that appends an item makes the queue a smart one, until it is cleared. From then on all
    other enqueues raise `ChecksBypassed`: those of `Queue`, `Leases`, `PriorityQueue`, `StagedQueue`, `Subscriptions`,
    the command line, and Spark without its option ``smart``. All verbs that take items, or move them, work as ever. A
    process with an older version of the library does not refuse. Its plain items, and those enqueued before or at the
    same time as the first smart one, have no entry in the index: only types that see everything meet them, and `check`
    tells of them.

    A redriven dead letter comes back without being compared. A leased item is asked only if its check takes `asked`,
    and can't take over values; if it is deleted, its holder's ack raises `LeaseLost`. A check's own time is limited,
    not its calls into C (`layers/smart/_time_limit.py`).

Source
    W. Herzner, M. Thuswald: "Smart Queue – A Pattern for Message Handling in Distributed Environments".
"""

from __future__ import annotations

from ._deadlines import Deadlines
from ._decisions import Decision, Outcome, Replace
from ._limits import Limit
from ._messages import EVERYTHING, NOTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, keyed, types
from ._monitor import Monitor, MonitorReport
from ._resend import Resend
from ._smart import SmartQueue

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
