"""CPU time of single calls, in a process that imports the library from another checkout; by the path of this file.

For each verb that it reads it makes so many calls, and writes the seconds that they took.
"""

import gc
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import fdbqueue

ITEM = b"x" * 100


def layers() -> Any:
    """Return the package of the layers, which had a name of its own."""
    try:
        return importlib.import_module("fdbqueue.layers")
    except ImportError:
        return importlib.import_module("layers")


class Calls:
    """The calls of each verb, on a queue of its own."""

    def __init__(self, url: str, number: int) -> None:
        self._db = fdbqueue.open(url)
        self._number = number
        self._layers: Any = layers()

    def took(self, verb: str) -> float:
        """Return the seconds of CPU that the calls of a verb took."""
        db, queue = self._db, fdbqueue.Queue(verb)
        leases, staged = self._layers.Leases(queue), self._layers.StagedQueue(queue)
        sessions = self._layers.Sessions(fdbqueue.Queue(f"{verb}, in sessions"))
        queue.enqueue(db, ITEM)
        leases.ack(db, leases.lease(db))
        if verb == "session lease":
            numbers = iter(range(self._number))
            sessions.enqueue_many(db, [ITEM] * self._number, session=lambda _: f"session {next(numbers)}")
        elif verb != "enqueue":
            queue.enqueue_many(db, [ITEM] * self._number)
        held = leases.lease_many(db, limit=self._number) if verb == "ack" else []
        calls: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: queue.enqueue(db, ITEM),
            "dequeue": lambda: queue.dequeue(db),
            "lease": lambda: leases.lease(db),
            "ack": lambda: leases.ack(db, held.pop()),
            "staged dequeue": lambda: staged.dequeue(db),
            "session lease": lambda: sessions.lease(db),
        }
        call = calls[verb]
        gc.collect()
        before = time.process_time()
        for _ in range(self._number):
            call()
        took = time.process_time() - before
        queue.clear(db)
        sessions.queue.clear(db)
        return took


def main(url: str, number: int) -> None:
    calls = Calls(url, number)
    for line in sys.stdin:
        print(calls.took(line.strip()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
