"""Staged dequeue: a thousand consumers at one head.

Challenge
    All consumers want the same item, and of concurrent transactions only one commits. If consumers poll for items, they
    cost more when there is less to do.

Keys
    Beside those of the queue and its leases (behind the queue's own tuple):

    =============================  ================================================================
    ``("request", versionstamp)``  a client waits for some items until a time, which it can renew
    ``("grant", client)``          leases that another client took for it; watched by the client
    ``("timer", …, "grant")``      the time until which the client takes them
    =============================  ================================================================

Ordering
    Strict: items go in queue order to requests in request order, which is the order of their commits. A later request
    never takes the items assigned to an earlier one. If two processes take their assigned items at the same time,
    either may commit first. A process that finds registered requests comes after them. Calls of one process share its
    request, in the order of their arrival. Further calls join its next request.

Guarantees
    A call takes effect once or not at all, also after an unknown result. A consumer that dies leaves no item stuck and
    blocks no other consumer. On the embedded engine a dead process gets nothing: its requests are removed at once. On a
    cluster a request expires after 5 seconds without a renewal. If a request stays for a quarter of a second although
    items are assigned to it, another process grants it these items.

    A granted item counts an attempt when its process takes it. A grant that is not taken within 0.75 seconds goes back:
    the items are available in their places again, and no attempt counts. On a cluster a process that dies within 0.1
    seconds after it took a grant may count none either; the next take of that item counts. (docs/adr/0122)

    A call that times out or is cancelled leaves no request and takes nothing. If it got an item at that moment, the
    item goes back to its place, in front of later items. Waiting is a watch. One enqueue wakes the first process in
    order, which fulfills all requests, and then the next in order.

    Each process judges expiry by its own clock. A process whose clock is s seconds ahead skips a request, or takes back
    a grant, s seconds early. The holder notices this and registers again. It loses its place, but no item. On a cluster
    clocks that differ by less than 0.3 seconds cause no such loss.

Limits
    A destructive dequeue loses the item if its process dies between the commit and the caller's next line; use leases
    where that matters. A call whose assigned item can't be read raises, as the plain dequeue does, until the item is
    removed. Each process waits on up to 5 watches per kind of call. If items are over 4 kB on average, or a request is
    1,000 items or more behind the head, the first request in order fulfills the others, which is slower.

Source
    FoundationDB's queue recipe, "High-Contention Dequeue Operations", and its high-contention queue layer (staging);
    ZooKeeper's lock recipe, for watching the request in front; QuiCK (SIGMOD 2021).
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
