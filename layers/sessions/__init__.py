"""Sessions: items of one session run in order, one or a few at a time, and every session gets a fair turn.

Challenge
    Order per customer, account or document, without one customer that blocks the others. A queue for each would need a
    worker for each; one queue for all loses the order, or the concurrency.

Keys
    A session's items are a queue of their own. The line is one more queue, and its items are pointers: one for each
    session that has something to do. To lease a session is to lease its pointer (behind the queue's own tuple):

    ==================================================  ==========================================================
    ``("session", name)``                               the record: where its pointer is, paused, blocked, closing
    ``("items", name, generation, level, index, rnd)``  an item that waits, or is in progress
    ``("items", name, generation, …)``                  its timers, delayed items, dead letters, chunks, counters
    ``("line", index, rnd)``                            the pointer of a ready session
    ``("line", "lease", index, rnd)``                   the pointer of a busy one: token, worker, item in progress
    ``("line", "delay", index, rnd)``                   the pointer of one that waits for a time
    ``("slot", name, generation) + id``                 where a slot's pointer is, and the item that it holds
    ``("gate", "limit", gate)``                         a gate: its limit, and how many of its slots are taken
    ``("gate", "surplus", gate)``                       how many are too many since its limit was lowered; absent if 0
    ``("gate", "line", gate, index, rnd)``              the pointer of a slot that waits for one of this gate
    ``("gate", "waiting", gate)``                       8 bytes, by atomic adds: how many wait there
    ``("state", name)``                                 its state, if a worker has written one
    ``("state",)``                                      the name of the codec of states; absent: unknown
    ``("summed", counter, shard)``                      totals of all sessions, each spread over 16 keys
    ``("line", "completion", …)``, ``("line", "group", …)``  outcomes and groups of items, by their addresses
    ``("line", "blob", …)``, ``("line", "upload", …)``  data of items (`fdbqueue.layers.blobs`)
    ==================================================  ==========================================================

    A session without items has no pointer, no record and no item key. Only a state, dead letters or a pause remain.

Ordering
    Within a session: by level, and in a level by enqueue. A nack, an expiry or the end of a delay leaves an item in its
    place. An urgent item goes in front of all that waits, and never interrupts the item in progress.

    Sessions take turns. A turn ends after `quantum` items if another session is ready, and the session goes to the end
    of the line. Between two items of my session that wait, one worker does at most quantum x (other ready sessions)
    items of others, with weights the sum of their quotas. So a session of a million items delays another one's single
    item by one quantum. A session that comes back from a nack or an expiry keeps its place in the line. With gates a
    turn also ends if another session waits at a gate of this one, which then goes to the end of that gate's line.

Guarantees
    At most one live lease per session, so at most one item of it in progress. All that a worker does under a lease
    reads the leased pointer: the token and the item in progress. A late ack, nack, extension or state write fails, and
    writes nothing. The ack, the state and the session's next place in the line are one transaction.

    These interleavings are decided by conflicts:

    - *Enqueue against the end of a session.* The ack of a last item reads the ranges of items, and writes the record's
      guard. An enqueue writes into these ranges, and reads the guard. So one of them runs again.
    - *Enqueue against an enqueue or a lease.* A session that has a pointer keeps it. The enqueue reads the record by
      snapshot, and its guard, which a moving pointer does not write. There is no conflict.
    - *Removal and pause against work.* Both write the record, which every ack, nack and expiry reads.
    - *A change of one item against a consumer that works ahead of its acks.* The change writes the leased pointer,
      which every ack reads. The ack then compares the items that its consumer has begun with what is stored. It refuses
      all from the first changed one on, with their states.
    - *Lease against expiry, and two leases.* As for the items of any queue: the pointer's key decides.
    - *The end of a life, or a cancel, against a lease.* A lease that takes a group's member reads the group's record. A
      waiting `Completion` that ends an item's life writes to the pointer, which the lease takes.
    - *Another quantum.* It is this object's own and takes effect at the next ack; no stored key depends on it.

    A session has a pointer for each slot (`line/slots.py`): a serial one has one, which its record names, and one with
    `concurrency` several. An ack that has no item for its slot ends the slot, and conflicts with enqueues. All that
    changes the number of slots reads and writes the record. Two slots that take the same item conflict. So there are
    never more than the limit, also when it is lowered while several items end, and no item waits beside a free slot.

    A session with gates has slots too (`line/gates.py`). Its pointers are in the line with a slot of each gate, or wait
    at one. A transaction that takes a slot reads and writes the gate's record. One that gives it back, and finds no
    session that waits, does the same, and conflicts with a session that begins to wait. So a gate never has too many
    items at work, and no item waits beside a free slot. A slot that goes from one session to another changes no record.

    Expiries are judged by clocks as leases document it. Waiting workers sleep on watches, as in `staged`.

Limits
    A handler may run twice, as under any lease. A session's state has at most 90,000 bytes. A dead letter stays in its
    session. Items of sessions are not the queue's plain items: layers over the queue do not see them. With a removed
    session go the follow-ups and the blobs of its first 2,000 dead letters, and of 5 MB of them at most: purge others
    before. A group counts the item in progress as available.

    Hot keys on a cluster: the counters and both ends of the line change with each turn of a session, and with each new
    session. An enqueue into a session that has items adds to one of 16 totals. A gate's record changes when a slot is
    taken or given back and no session waits. The first place of its line changes when a slot goes from one session to
    another.

Source
    K. Henidak's sequential levelled task scheduler (turns, quantum, levels, removal); QuiCK (Lev-Ari et al., SIGMOD
    2021) for pointers to queues that are not empty.
"""

from __future__ import annotations

from fdbqueue.lowlevel import UNCHANGED

from ._sessions import Sessions
from .reading.listing import SessionInfo, SessionStats
from .session.lease import SessionHandle, SessionLease
from .session.records import Gate, GateInfo
from .workers.read_ahead import NewState

__all__ = [
    "UNCHANGED",
    "Gate",
    "GateInfo",
    "NewState",
    "SessionHandle",
    "SessionInfo",
    "SessionLease",
    "SessionStats",
    "Sessions",
]
