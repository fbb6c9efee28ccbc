"""The operation log: all changes to a queue, in the order of their commits.

Challenge
    A queue is empty, or an item is in an unexpected place. Which process did it, when, and what was there before? The
    log files of many processes tell only each one's own view. A commit with an unknown result is in none, or in two.

Keys
    In a subspace of the log's own, outside the queue's. So the log survives when the queue is cleared:

    ==========================  ==============================================================================
    ``(log, versionstamp)``     changes of one transaction; a large record goes on under the next user version
    ==========================  ==============================================================================

Ordering
    Commit order. Replaying the records in order rebuilds every key of the queue.

Guarantees
    Each transaction writes its own record: both take effect, or neither. The record conflicts with nothing.
    Values are logged as digests; positions, states, lease tokens and attempts can be read.

Limits
    Only calls through the log are logged: each process wraps its database with `of`. Calls of one process that share a
    transaction (`layers/staged`) share its record, under one caller's name. The log grows until a program removes old
    records. It costs each transaction about 60 bytes per changed key.

Source
    Kingsbury's Jepsen, which checks histories of operations. Here the database itself has their order, so that a
    replay checks a history.
"""

from __future__ import annotations

from ._oplog import OperationLog, calling
from ._records import Record

__all__ = [
    "OperationLog",
    "Record",
    "calling",
]
