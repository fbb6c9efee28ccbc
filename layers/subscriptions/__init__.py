"""Subscriptions: named consumers of one queue, each with a selector, a pointer and credit.

Challenge
    Consumers want different items of one queue, in its order. They should not read the items that they do not want
    again and again, and should not disturb each other.

Keys
    In addition to the keys of the queue and its leases (each after the queue's own tuple):

    ==========================================  =======================================================
    ``(True, "subscribed")``                    there are subscriptions: empty, or the name of the sole one
    ``("subscription", name)``                  selector, credit, owner
    ``("pointer", name)``                       the spans that it has yet to look at
    ``("held", name, index, random)``           size of an item that its consumers hold
    ``("returned", name)``                      changes when its consumers give one back or ack it
    ``("arrival", versionstamp, first, last)``  items became available between these places
    ``("waiting", versionstamp)``               calls of a process wait for items
    ``("served",)``                             the subscription that an enqueue delivered to last
    ``("trimmed",)``                            the version up to which arrivals may be gone
    ``("trimming",)``                           when a process last looked for arrivals to remove
    ==========================================  =======================================================

Ordering
    The queue's. A subscription delivers the next available item that its selector accepts. An item may return, become
    due, have a smaller rank, or come from a slow producer. Each subscription that wants it then delivers it before
    all items behind it. Every transaction that makes items available records where, in commit order. A subscription
    reads those records together with its pointer.

Guarantees
    An item is leased to one consumer at most: a lease moves its key, and one of two concurrent leases conflicts.
    Producers never conflict. Subscriptions that take different items do not conflict with each other. Concurrent
    consumers of one subscription do. A subscription passes once over an item that its selector rejects; the item stays
    for others. Credit counts the items leased in the subscription's name, so it is never below zero. Every end of a
    lease (ack, nack, expiry) returns it.

    An exclusive subscription has one owner, and the queue has no other subscription. Calls that take items without a
    subscription are refused; another process may notice that up to a second late. Ownership ends some seconds after the
    owner's last call, by the clock of the process that wants to own it. A former owner is refused in the same
    transaction. An exclusive subscription without a selector uses the head of the queue as its pointer. It costs little
    more than plain leases, and producers record nothing for it (`layers/subscriptions/head.py`).

Limits
    A selector that is a function is not stored; every process that serves the subscription must pass the same one. If
    it raises, the call that looked at the item raises. The item stays, and the subscription stops there.
    Subscriptions detect an enqueue by a library version that knows no subscriptions. Every subscription then looks at
    the whole queue again. They find items that such a version gives back only at that time. Subscriptions follow the
    order of the keys, and refuse leases with another head. There are no message groups and no "no-local": items do not
    name their producers.

Source
    Apache Qpid, "Queue Implementation" design (subscriptions, their pointers, immediate delivery). AMQP 0-10 for
    credit, here as a window.
"""

from __future__ import annotations

from ._subscriptions import Subscriptions, SubscriptionStats
from .following import Follower
from .selectors import Selector
from .subscription import Subscription

__all__ = [
    "Follower",
    "Selector",
    "Subscription",
    "SubscriptionStats",
    "Subscriptions",
]
