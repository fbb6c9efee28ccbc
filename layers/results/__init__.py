"""Results: wait for the end of an item, get its result, and let other items follow it.

Challenge
    A caller enqueues an item and wants the result of its handler: in this process or another one, now or later. It must
    never wait for an item that can't end any more. Items that follow must be enqueued exactly once.

Keys
    Behind the queue's own tuple:

    ============================================  ============================================================
    ``("completion", index, random)``             pending; later the item's result or error
    ``("timer", at_us, index, random, "result")``  the time at which the outcome is removed
    ``("timer", 0, index, random, "go")``          a follow-up that waited becomes available ("drop": is removed)
    ============================================  ============================================================

    The item's notes say how long its outcome is kept, and list its follow-ups.

Ordering
    A follow-up that was given at the enqueue is in its queue from then on, delayed. When the item before it is done, it
    becomes available in that place, in front of later items. A follow-up that is given at the ack is enqueued then.

Guarantees
    The transaction that ends an item stores its outcome. So a waiting call sees the outcome if and only if the item has
    ended so. It waits by a watch, and polls nothing. It returns the result, or raises `CompletionError`. The item
    became a dead letter, expired or was removed; or there is no record. Then its enqueue was not committed, its outcome
    was kept for its time and then removed, or the queue was cleared.

    A follow-up runs if the item before it was acked, once, even if the ack's commit has an unknown outcome. If that
    item expires or is removed, its follow-up is removed. A dead letter's follow-up waits until an operator redrives the
    dead letter or purges it. A redrive to its place makes the completion pending again.

Limits
    A result is stored in MessagePack, and has at most 90,000 bytes. An item has follow-ups of about 400 bytes: some
    eight of them in queues with short names. If the queue of an item is cleared, its follow-ups in other queues stay
    delayed. Give them a time to live, which counts from the enqueue.

    An item that is dequeued has no handler: its result is None, and its follow-ups are released. If a call of
    `StagedQueue.dequeue` is cancelled while it commits, its item goes back to its place and is pending again, but the
    follow-ups stay released. A waiting call ends an item's time to live itself, if no consumer runs. It does not
    reclaim leases of dead consumers: a consumer or a `Watchdog` does.

    An older version of the library refuses to read items that have completions.

Source
    Futures as in Celery's result backends and Dramatiq's results, inside the queue's transactions; chained messages of
    K. Henidak's sequential levelled task scheduler.
"""

from __future__ import annotations

from ..leases import Done, FollowUp
from .results import Completion, Outcome, Results

__all__ = ["Completion", "Done", "FollowUp", "Outcome", "Results"]
