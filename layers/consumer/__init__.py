"""A consumer: lease items, call a handler for each, and ack it or give it back.

Challenge
    "Lease, work, ack" is a loop of three lines. A program that runs unattended needs more: concurrency, leases that do
    not expire while the work goes on, failures, and a stop that loses no work.

Keys
    None of its own.

Ordering
    Items are begun in queue order. With a concurrency above 1 they end in any order.

Guarantees
    A consumer acks an item after its handler has returned. If the handler raises, the attempt has failed: the item goes
    back or becomes a dead letter, as the leases' policy says. A thread extends leases until their handlers are done,
    even while a handler blocks the event loop. So a duration of seconds is enough for work of hours. A lost lease is
    logged as a warning. A consumer does not reclaim leases that it holds itself: it extends them, even expired ones.

    If the leases have no back-off, an item waits longer after each of its failures. Otherwise a handler that always
    fails would run in a busy loop.

    After `stop`, a signal or a cancellation, no handler begins. Leased items that were not begun go back to their
    places at once, and running handlers get some seconds to end. A second signal or cancellation ends the run at once,
    and leaves no task behind. An exclusive subscription stays the consumer's own while it runs.

    From a second after a pause of the queue no handler begins. Items that were not begun go back to their places, and
    the consumer waits for `resume`.

    A handler sees the context variables of the task that started the consumer. One call of the handler does not see the
    variables that another call sets.

Limits
    At least once: an item whose handler has done its work is delivered again if the process dies before the ack. A
    handler that writes to the same database can ack in its own transaction and return `ACKED`: exactly once.

    The consumer can't interrupt a handler in a thread. If it does not end in time, its lease is given back, which
    fences its ack but not its other effects. Its thread counts towards `concurrency` until it returns. When all threads
    hang like this, the consumer gives back the items not begun, and begins none until a thread returns.

    A lease expires if the process is stopped for longer than its duration, or if a handler holds the interpreter lock
    for that long. An event loop that cancels all its tasks as it ends gives running coroutines no grace.

Source
    The SCS Agent Queue protocol 0.01: agents that receive, lock and confirm.
"""

from __future__ import annotations

from ..common.handlers import ACKED, GiveUp, RetryIn, Snooze
from ._consumer import Consumer
from ._watchdog import Watchdog, WatchdogReport
from .holds import ConsumerReport

__all__ = [
    "ACKED",
    "Consumer",
    "ConsumerReport",
    "GiveUp",
    "RetryIn",
    "Snooze",
    "Watchdog",
    "WatchdogReport",
]
