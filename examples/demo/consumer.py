"""A consumer of the demo: takes flights out, some at a time, until there are no more.

Run as ``python -m examples.demo.consumer URL QUEUE NAME BATCH``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import fdbqueue
from examples.demo.flights import DIGEST_BITS, fingerprint_of_item
from examples.demo.results import Results, Tally
from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import NOT_COMMITTED


def consume(url: str, results: Results, name: str, batch: int) -> None:
    """Take flights out of the queue, `batch` in a transaction, until it is empty or the demo is gone."""
    parent = os.getppid()
    with fdbqueue.open(url) as db:
        while os.getppid() == parent and take(db, results, name, batch):
            pass


def take(db: Any, results: Results, name: str, batch: int) -> int:
    """Take up to `batch` flights and add them to the tally, in one transaction. Return their number.

    `fdbqueue.transactional` would do the same, but it does not count conflicts and retries.
    """
    tr = db.create_transaction()
    conflicts = retries = 0
    while True:
        try:
            taken = results.queue.dequeue_many(tr, limit=batch)
            if not taken:
                return 0
            digest = sum(fingerprint_of_item(item.value) for item in taken) % 2**DIGEST_BITS
            results.add(tr, name, Tally(len(taken), digest, 1, conflicts, retries))
            tr.commit().wait()
            return len(taken)
        except FDBError as error:
            retries += 1
            conflicts += error.code == NOT_COMMITTED
            tr.on_error(error).wait()


if __name__ == "__main__":
    consume(sys.argv[1], Results(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
