"""LEVEL 0: ordered keys and transactions, without queues.

It exports everything that user code needs beside a queue, under the official binding's names, for both engines.
"""

from fdbqueue.engine.api import Database, KeySelector, ReadTransaction, StreamingMode, Transaction
from fdbqueue.engine.errors import FDBError, predicates
from fdbqueue.engine.keys import SingleFloat, Subspace, Versionstamp, strinc, tuple
from fdbqueue.engine.steps import aio
from fdbqueue.engine.transactional import transactional
from fdbqueue.engine.url import open

__all__ = [
    "Database",
    "FDBError",
    "KeySelector",
    "ReadTransaction",
    "SingleFloat",
    "StreamingMode",
    "Subspace",
    "Transaction",
    "Versionstamp",
    "aio",
    "open",
    "predicates",
    "strinc",
    "transactional",
    "tuple",
]
