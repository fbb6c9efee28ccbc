"""Smart checks within sessions: an incoming item is compared with the items that wait in its own session.

Challenge
    Order per customer, and the next report of the customer's position makes the last one outdated. A consumer that
    sorts this out does so too late, and each worker in its own way.

Keys
    None of its own. The index of a session's items (`fdbqueue.layers.smart`) is among the keys of that session's items
    (`fdbqueue.layers.sessions`), and goes with them. The key ``("line", True, "type")`` says that the sessions make
    smart checks.

Ordering
    As in sessions. Checks run in the order of the session: urgent items first. An item that takes the incoming item's
    values keeps its place.

Guarantees
    As in a smart queue: the decision is the one that the serial state at the commit gives. An item that a worker has
    begun is a leased one: its check runs only if it takes `asked`, and it can't change. A `Consumer` reads nothing
    ahead: one transaction acks an item and begins the next one. So a rewrite comes before an item begins, and its
    handler gets the new message; or it comes later, and the item is asked as a leased one.

    - *Rewrite, deletion, or a decision of an item against the lease that begins it.* Both touch the session's pointer,
      or in a session with slots the item's mark. One of them runs again.
    - *The same against the ack of an item in progress.* Both touch the leased pointer.
    - *Enqueue against enqueue.* As in a smart queue, over the index of the session. Enqueues into two sessions have no
      key in common but the totals, which are atomic adds.

Limits
    An item is compared with items of its own session only. A limit counts the items of one session. No deadlines and no
    confirmations: their monitors and recipients would have to look into every session. A consumer makes one transaction
    per item. If the predicate of an item's type fails, its session is blocked, as by an item that can't be read.

    All other enqueues into these sessions raise `ChecksBypassed`. A process that knows the sessions under another codec
    finds that out within a second of the first smart enqueue. `Sessions.clear` ends it.

Source
    W. Herzner, M. Thuswald: "Smart Queue – A Pattern for Message Handling in Distributed Environments".
"""

from __future__ import annotations

from ._smart_sessions import SmartSessions

__all__ = ["SmartSessions"]
