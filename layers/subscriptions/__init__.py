"""Subscriptions: named consumers of one queue, each with a selector, a pointer and credit.

Challenge
    Consumers that want different items of one queue, in its order, without reading again and again what they do not
    want, and without disturbing each other.

Keys
    Beside those of the queue and its leases (behind the queue's own tuple):

    ==========================================  =======================================================
    ``(True, "subscribed")``                    there are subscriptions: empty, or the name of the sole one
    ``("subscription", name)``                  selector, credit, owner
    ``("pointer", name)``                       what it has yet to look at
    ``("held", name, index, random)``           size of an item that its consumers have
    ``("returned", name)``                      changes whenever one of those leaves their hands
    ``("arrival", versionstamp, first, last)``  items became available between these places
    ``("waiting", versionstamp)``               a consumer waits for items
    ``("served",)``                             the subscription that an enqueue delivered to last
    ``("trimmed",)``                            the version up to which such notes may be gone
    ``("trimming",)``                           when somebody last looked which of them may go
    ==========================================  =======================================================

Ordering
    The queue's. A subscription delivers the next available item that its selector accepts; one that comes back, falls
    due, has a smaller rank, or comes from a slow producer is delivered before all that stands behind it, for everybody
    who wants it: every transaction that makes items available notes where, in commit order, and a subscription reads
    those notes together with its pointer.

Guarantees
    An item is leased to one consumer at most: acquiring it moves its key, and of two who do so one conflicts.
    Producers conflict with nobody. Subscriptions that take different items do not conflict with each other, those of
    one subscription's consumers that run at the same time do. What a selector does not accept is passed by once, and
    stays for others. Credit counts what is leased in the subscription's name, so that it is never below zero, and
    whatever ends a lease (ack, nack, expiry) returns it.

    An exclusive subscription has one owner, and no other subscription beside it. Calls that take items without a
    subscription are refused; another process may notice that up to a second late. Ownership ends some seconds after its
    owner was last heard of, judged by the clock of whoever wants it; a former owner is refused in the same transaction.
    If it has no selector either, the head of the queue is its pointer: it costs little more than plain leases, and
    producers note nothing for it (`layers/subscriptions/_exclusive_all.py`).

Limits
    A selector that is a function is not stored; every process that serves the subscription must bring the same. What
    it raises comes out of the call that looked at the item, which stays, and stops the subscription there.
    Whoever enqueues with a version of this library that knows no subscriptions is noticed, but then every subscription
    looks at the whole queue again; what such a version gives back is found only then. Subscriptions follow the order
    of the keys, and refuse leases with another head. There are no message groups and no "no-local": items do not name
    their producers.

Source
    Apache Qpid, "Queue Implementation" design (subscriptions, their pointers, immediate delivery); AMQP 0-10 for
    credit, here as a window.
"""

from __future__ import annotations

from ._selectors import Selector
from ._subscription import Subscription
from ._subscriptions import Subscriptions, SubscriptionStats

__all__ = [
    "Selector",
    "Subscription",
    "SubscriptionStats",
    "Subscriptions",
]
