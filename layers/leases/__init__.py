"""Leases: an item is lent for some time, and leaves the queue when its consumer confirms it.

Challenge
    A consumer that dies between the dequeue and the end of its work loses the item. One that works inside the
    dequeueing transaction can't take longer than five seconds.

Keys
    An item's state is where its key stands; moving it is one transaction (behind the queue's own tuple):

    ======================================  ================================================================
    ``(index, random)``                     available
    ``("lease", index, random)``            leased: with token, expiry, consumer and attempt in its notes
    ``("delay", index, random)``            delayed until a time
    ``("dead", index, random)``             a dead letter, with its last error
    ``("timer", at_us, index, random, k)``  what ends when: k is "lease", "delay" or "ttl"
    ======================================  ================================================================

Ordering
    Strict: an item that comes back, by nack, expiry or the end of its delay, stands where it stood, before all that was
    enqueued after it; the next lease takes it first. Due timers are settled before an item is taken. Inside a
    caller's transaction at most 64 of them are: if more fall due at the same time, the rest come back later.

Guarantees
    At most one live lease per item; a stale token can neither ack, nor give back, nor extend. Of an ack and a
    redelivery only one ever succeeds, since both read and write the leased item's key. An ack composes with the
    caller's own writes, so that work that only touches the database is done exactly once.

    Times are those of the clock of whoever writes them (`clock`, by default the wall clock); a time is judged to have
    come by the clock of whoever comes by. A clock that is ahead by s seconds takes a lease away s seconds early: the
    token fences the former holder, so that nothing but work is lost; one that is behind takes it s seconds late. With
    clocks that differ by more than a lease's duration there is no progress while its holder relies on it. Delays and
    times to live are early or late by the same s.

Limits
    An item whose lease expired is delivered again, though its consumer may still be at work: outside effects want to
    be idempotent. A plain `Queue.dequeue` takes available items only, settles no timers and looks at no time to live.

Source
    The SCS Agent Queue protocol 0.01 (receive and lock, confirm, watchdog); Apache Qpid's queue design (strict ordering
    through an item's whole life); QuiCK (Lev-Ari et al., SIGMOD 2021) for vesting times.
"""

from __future__ import annotations

from ._backoff import Backoff, constant, exponential, immediately
from ._browsing import State, StoredItem
from ._dead_letters import DeadLetters
from ._head import Head
from ._lease import Disposition, Lease, LeaseHandle, LeaseRef
from ._leases import Leases
from ._reclaiming import ReclaimReport
from ._stats import LeaseStats
from ._timers import Reclaimed

__all__ = [
    "Backoff",
    "DeadLetters",
    "Disposition",
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
