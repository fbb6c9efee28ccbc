"""The demo's load without Spark: bulk calls, each in a transaction that also records the load's progress.

Run as ``python -m examples.demo.load_plain URL QUEUE CSV BATCH``.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import fdbqueue
from examples.demo.flights import items
from examples.demo.results import LOADER, Results, Tally
from fdbqueue import transactional


def load(url: str, results: Results, path: Path, batch: int) -> None:
    """Enqueue the flights of a CSV file. Continue where an earlier load was killed."""
    parent = os.getppid()
    with fdbqueue.open(url) as db:
        done = results.next_row(db)
        flights = items(path, done)
        while os.getppid() == parent:
            values = list(itertools.islice(flights, batch))
            if not values:
                results.set_loaded(db)
                return
            if not enqueue_from(db, results, done, values):
                raise SystemExit("Another loader is at work on the same queue.")
            done += len(values)


@transactional
def enqueue_from(tr: Any, results: Results, row: int, values: list[dict[str, Any]]) -> bool:
    """Enqueue the flights that follow the first `row` ones. Return False if others are already in."""
    reached = results.next_row(tr)
    if reached != row:
        # After an unknown outcome this call may run again although it had taken effect.
        return reached == row + len(values)
    results.queue.enqueue_many(tr, values)
    results.set_next_row(tr, row + len(values))
    results.add(tr, LOADER, Tally(items=len(values), transactions=1))
    return True


if __name__ == "__main__":
    load(sys.argv[1], Results(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
