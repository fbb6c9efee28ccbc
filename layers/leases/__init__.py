"""Leases: a consumer gets an item for some time, and the item leaves the queue when the consumer acks it.

Challenge
    A consumer that dies between the dequeue and the end of its work loses the item. One that works inside the
    dequeueing transaction can't take longer than five seconds.

Keys
    The place of an item's key is its state. A move is one transaction (behind the queue's own tuple):

    ======================================  ================================================================
    ``(index, random)``                     available
    ``("lease", index, random)``            leased: with token, expiry, consumer and attempt in its notes
    ``("delay", index, random)``            delayed until a time
    ``("dead", index, random)``             a dead letter, with its last error
    ``("timer", at_us, index, random, k)``  end of k at that time: "lease", "delay" or "ttl"
    ======================================  ================================================================

Ordering
    Strict: an item that comes back, by nack, expiry or the end of its delay, returns to its place, in front of all
    later items. The next lease takes it first. Due timers fire before an item is taken. In a caller's transaction at
    most 64 of them fire. If more are due at the same time, their items come back later.

Guarantees
    At most one live lease per item; a stale token can neither ack, nor give back, nor extend. Of an ack and a
    redelivery only one ever succeeds, since both read and write the leased item's key. An ack composes with the
    caller's own writes, so that work that only touches the database is done exactly once.

    Times are those of the writer's clock (`clock`, by default the wall clock). The process that reads a time compares
    it with its own clock. A clock that is s seconds ahead takes a lease away s seconds early. The token fences the
    former holder, so that only work is lost. A clock that is s seconds behind takes the lease away s seconds late. If
    clocks differ by more than a lease's duration, work under that lease makes no progress. Delays and times to live are
    early or late by the same s.

Limits
    An item whose lease expired is delivered again, though its consumer may still be at work. So effects outside the
    database must be idempotent. A plain `Queue.dequeue` takes available items only, and fires no timers.

Source
    The SCS Agent Queue protocol 0.01 (receive and lock, confirm, watchdog); Apache Qpid's queue design (strict ordering
    through an item's whole life); QuiCK (Lev-Ari et al., SIGMOD 2021) for vesting times.
"""

from __future__ import annotations

from fdbqueue.stored.policies import Backoff, constant, exponential, immediately

from .browsing import DeadLetters, State, StoredItem
from .done import Done, FollowUp
from .lease import Disposition, Lease, LeaseHandle, LeaseRef
from .leases import Leases
from .reports import LeaseStats
from .taking import Head
from .timers import Reclaimed, ReclaimReport

__all__ = [
    "Backoff",
    "DeadLetters",
    "Disposition",
    "Done",
    "FollowUp",
    "Head",
    "Lease",
    "LeaseHandle",
    "LeaseRef",
    "LeaseStats",
    "Leases",
    "ReclaimReport",
    "Reclaimed",
    "State",
    "StoredItem",
    "constant",
    "exponential",
    "immediately",
]
