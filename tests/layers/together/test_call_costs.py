"""How many functions of the library an everyday verb enters. What an item does not use, its verbs must not pay for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.calls import entering

pytestmark = pytest.mark.engines("memory", "file")  # a cluster's reads resume their callers more often

LIBRARY = str(Path(fdbqueue.__file__).parent)
ENGINE = str(Path(LIBRARY, "engine"))


def counts(file: str) -> bool:
    """Return whether a file is of the library, and not of its engines."""
    return file.startswith(LIBRARY) and not file.startswith(ENGINE)


def calls(verb: Callable[[], object]) -> int:
    """Return the fewest calls of several runs. Now and then a run looks whether the queue is paused or registered."""
    found = []
    for _ in range(5):
        with entering(counts) as entered:
            verb()
        found.append(len(entered))
    return min(found)


@pytest.mark.parametrize(("verb", "most"), [("enqueue", 50), ("enqueue with notes", 81), ("dequeue", 38), ("ack", 66)])
def test_a_verb_of_a_plain_item_enters_few_functions(db: Any, space: Subspace, verb: str, most: int) -> None:
    queue = Queue(space, codec="bytes")
    leases = Leases(queue)
    queue.enqueue_many(db, [b"x"] * 20)
    held = leases.lease_many(db, limit=10) if verb == "ack" else []
    verbs: dict[str, Callable[[], object]] = {
        "enqueue": lambda: queue.enqueue(db, b"x"),
        "enqueue with notes": lambda: leases.enqueue(db, b"x"),
        "dequeue": lambda: queue.dequeue(db),
        "ack": lambda: leases.ack(db, held.pop()),
    }
    assert 10 < calls(verbs[verb]) <= most


def test_a_lease_of_a_plain_item_enters_few_functions(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="bytes")
    leases = Leases(queue)
    queue.enqueue_many(db, [b"x"] * 20)
    assert 10 < calls(lambda: leases.lease(db)) <= 98
