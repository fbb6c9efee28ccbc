"""Staged dequeue: a thousand consumers at one head.

Challenge
    Everybody who dequeues wants the same item, and of those who try at the same time one commits. Waiting for an item
    by asking again and again costs the more, the less there is to do.

Keys
    Beside those of the queue and its leases (behind the queue's own tuple):

    =============================  ================================================================
    ``("request", versionstamp)``  a client waits for some items, until a time unless it renews that
    ``("grant", client)``          leases that another took for it; watched by the client
    =============================  ================================================================

Ordering
    Strict: items go in queue order to requests in request order, which is the order of their commits. What falls to a
    request nobody behind it takes; of two that take what falls to them at the same time, either may be done first. Who
    finds requests registered stands behind them. Calls of one process share its request, in the order in which they
    came; when more came meanwhile, they stand in its next one.

Guarantees
    A call takes effect once or not at all, also when a commit's outcome is unknown. A consumer that dies strands
    nothing and holds nobody up: when its request has stood still for a quarter of a second though items fall to it, it
    is granted them. It expires after 30 seconds, and what was granted to it is a lease of 10 seconds, or of as many,
    up to 30, as a lease was to have, after which the item stands where it stood. A call that times out or is cancelled
    leaves no request and takes nothing: what it got at that moment goes back to its place, in front of what came after.
    Waiting is a watch. One enqueue wakes the first in order, who serves all, and then the next in order.

    Expiries are judged by the clock of whoever comes by. A clock that is s seconds ahead passes a request over, or
    takes a grant back, s seconds early: its holder notices and registers again, and loses its place but no item.

Limits
    A destructive dequeue loses the item if its process dies between the commit and the caller's next line; use leases
    where that matters. A call to which a bad item falls raises, as the plain dequeue does, until it is taken away.
    Each process waits on up to 5 watches per kind of call. Of items over 4 kB on average, and from 1,000 items behind
    the head on, the first in order serves the others, which is slower.

Source
    FoundationDB's queue recipe, "High-Contention Dequeue Operations", and its high-contention queue layer (staging);
    ZooKeeper's lock recipe, for watching the one in front; QuiCK (SIGMOD 2021).
"""

from __future__ import annotations

from ._relaxed import RelaxedHead, RelaxedQueue
from ._staged import StagedQueue, StagedStats

__all__ = [
    "RelaxedHead",
    "RelaxedQueue",
    "StagedQueue",
    "StagedStats",
]
