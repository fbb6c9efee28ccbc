"""The operation log: what was done to a queue, in the order in which it took effect.

Challenge
    A queue is empty, or an item is where nobody expects it. Who did it, when, and what stood there before? Log files of
    many processes say what each of them believes; a commit whose outcome was unknown is in none of them, or in two.

Keys
    In a subspace of the log's own, apart from the queue, so that it stays when the queue is cleared:

    ==========================  ==============================================================================
    ``(log, versionstamp)``     what one transaction changed; a large record goes on under the next user version
    ==========================  ==============================================================================

Ordering
    That of the commits. Replayed in order, the records rebuild every key that the queue has.

Guarantees
    A record is written by the transaction that it tells of: both take effect, or neither. It conflicts with nothing.
    Values are noted as digests; positions, states, lease tokens and attempts can be read.

Limits
    It logs calls through it only: each process opens its database by `of`. Calls of one process that share a
    transaction (`layers/staged`) share its record, under one caller's name. The log grows until a program removes its
    beginning. It costs each transaction about 60 bytes per changed key.

Source
    Kingsbury's Jepsen, which checks histories of operations; here the database itself says in which order they took
    effect, so that a history is checked by replaying it.
"""

from __future__ import annotations

from ._oplog import OperationLog
from ._records import Record

__all__ = [
    "OperationLog",
    "Record",
]
