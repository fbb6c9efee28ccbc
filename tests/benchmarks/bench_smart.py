"""Smart checks: what a newcomer pays for the items that it is related to, and for those that it is not.

FDBQUEUE_BENCH_PRELOAD says how many items are queued before the first question is asked, 1,000,000 by default.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.smart import EVERYTHING, NOTHING, OWN_KEY, Messages, MessageType, SmartQueue
from fdbqueue.layers.smart.types import Answer, Decision, Replace
from fdbqueue.stored.items import parse
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import ROUNDS, Contestant, Sample, compare, heading, in_threads, in_turn, say

SPACE = Subspace(("fdbqueue smart bench",))
PRELOAD = int(os.environ.get("FDBQUEUE_BENCH_PRELOAD", "1_000_000"))
RELATED = 10
PROCESSES = 4
PRODUCERS = 16
TEXT = "x" * 80
CALLS = 500
RELATED_SPACE = SPACE["related"]
KNOWN_KEYS = 3 * ROUNDS * CALLS
_keys = itertools.count()


def main() -> None:
    heading("Smart checks")
    cluster_file = os.environ.get("FDBQUEUE_TEST_CLUSTER_FILE") or os.environ.get("FDB_CLUSTER_FILE")
    if cluster_file:
        everything(f"fdb:{cluster_file}", "cluster")
    else:
        say("\nSkipped: the cluster's half, since FDB_CLUSTER_FILE names none.")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db?durability=relaxed", "embedded, relaxed")
        with fdbqueue.open(f"file:{folder}/db") as db:
            related(db, "the same, embedded, durable")


def everything(url: str, engine: str) -> None:
    """Ask every question of one engine."""
    with fdbqueue.open(url) as db:
        db.clear_range_startswith(SPACE.key())
        full_scan(db, engine)
        with Crowd(url, PROCESSES) as crowd:
            producers(crowd, engine)
            amount = load_all(db, crowd)
        related(db, f"one enqueue per transaction, one thread, {amount:,} queued items, {engine}")
        if url.startswith("fdb:"):
            db.clear_range_startswith(SPACE.key())


def does_not_care(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
    return Decision.dont_care


def ignores_at_the_end(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
    return Decision.ignore if queued["n"] == new["n"] else Decision.dont_care


def takes_over(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
    return Replace(new)


def smart_queue(space: Subspace, *types: MessageType) -> SmartQueue:
    return SmartQueue(Queue(space, codec=Messages(*types)))


def keyed(space: Subspace, *, loading: bool = False) -> SmartQueue:
    """Return the queue whose items are related by their key, or not at all while it is loaded."""
    sees = NOTHING if loading else OWN_KEY
    return smart_queue(space, MessageType("m", check=does_not_care, key=lambda message: message["of"], sees=sees))


def message(of: int, n: int = 0) -> dict[str, Any]:
    return {"type": "m", "of": of, "n": n, "text": TEXT}


def load_all(db: Any, crowd: Crowd) -> int:
    """Load the items that newcomers will be related to, and many more; return how many."""
    known = load(db, RELATED_SPACE, 0, KNOWN_KEYS)
    others = crowd.run(load, RELATED_SPACE, None, max(0, PRELOAD - known.items) // PROCESSES // RELATED)
    amount = known.items + others.items
    say(f"\nLoaded {amount:,} items, {RELATED} of a key, in {known.seconds + others.seconds:.0f} s.")
    return amount


def related(db: Any, question: str) -> None:
    """A newcomer that is related to 10 of very many, against a plain enqueue into a plain queue beside it."""
    smart = keyed(RELATED_SPACE)
    plain = keyed(SPACE["plain"][os.urandom(4)]).queue

    def incoming() -> None:
        outcome = smart.enqueue(db, message(next(_keys)))
        if outcome.asked != RELATED:
            raise SystemExit(f"{outcome.asked} items were asked, not {RELATED}")

    compare(
        f"{question} (a third of the rate wanted)",
        [
            Contestant("plain enqueue", lambda: in_turn(CALLS, lambda: plain.enqueue(db, message(-1)))),
            Contestant(f"smart enqueue, related to {RELATED}", lambda: in_turn(CALLS, incoming), wanted=1 / 3),
        ],
    )


def load(db: Any, space: Subspace, first: int | None, keys: int) -> Sample:
    """Load items of so many keys, those of a key far from each other; None: keys that no other process has."""
    begin = int.from_bytes(os.urandom(5), "big") << 20 if first is None else first
    started = time.perf_counter()
    wanted = (message(of, n) for n in range(RELATED) for of in range(begin, begin + keys))
    done = keyed(space, loading=True).enqueue_many(db, wanted)
    return Sample(len(done), time.perf_counter() - started)


def full_scan(db: Any, engine: str) -> None:
    """A newcomer that has to see 1,000 items, against a bare range read of the same, decoded by the same codec."""
    smart = smart_queue(SPACE["scan"], MessageType("m", check=ignores_at_the_end, sees=EVERYTHING))
    amount = 1_000
    for at in range(0, amount, 100):
        keyed(SPACE["scan"], loading=True).enqueue_many(db, [message(0, n) for n in range(at, at + 100)])
    last = message(0, amount - 1)

    def bare() -> None:
        tr = db.create_transaction()
        layout = smart.queue.layout
        for row in tr.get_range(layout.begin, layout.end).to_list():
            smart.messages.decode(parse(row.value).payload)

    def scan() -> None:
        outcome = smart.enqueue(db.create_transaction(), last)
        if outcome.asked != amount:
            raise SystemExit(f"{outcome.asked} of {amount} items were asked")

    compare(
        f"a full scan of {amount:,} items, {engine} (2/5 of the rate wanted)",
        [
            Contestant("range read, decoded", lambda: in_turn(50, bare)),
            Contestant("smart enqueue that sees everything", lambda: in_turn(50, scan), wanted=0.4),
        ],
    )


def producers(crowd: Crowd, engine: str) -> None:
    """16 producers that are related to themselves only, against 16 that are all related."""
    compare(
        f"{PRODUCERS} producers over {PROCESSES} processes, {engine}",
        [
            Contestant("one key", partial(crowd.run, produce, SPACE[os.urandom(4)], 25, False)),
            Contestant("a key each", partial(crowd.run, produce, SPACE[os.urandom(4)], 200, True), wanted=8.0),
            Contestant("plain enqueues", partial(crowd.run, produce_plainly, SPACE[os.urandom(4)], 200)),
        ],
    )


def produce(db: Any, space: Subspace, calls: int, disjoint: bool) -> Sample:
    """Enqueue from one process' share of the producers; each message takes the place of the one before."""
    smart = smart_queue(space, MessageType("m", check=takes_over, key=lambda message: message["of"], sees=OWN_KEY))
    first = int.from_bytes(os.urandom(6), "big") if disjoint else 0

    def call(number: int) -> None:
        smart.enqueue(db, message(first + number // calls if disjoint else 0, number))

    return in_threads(PRODUCERS // PROCESSES, calls, call)


def produce_plainly(db: Any, space: Subspace, calls: int) -> Sample:
    queue = keyed(space).queue
    return in_threads(PRODUCERS // PROCESSES, calls, lambda number: queue.enqueue(db, message(0, number)))
