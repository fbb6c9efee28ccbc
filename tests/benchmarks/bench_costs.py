"""What each verb costs the database: transactions, reads, writes and bytes, counted and not timed.

The counts are those of a warm process that is alone. They are the same on both engines, but for what a layer does only
on one of them. `docs/operations/sizing.md` quotes this.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import fdbqueue
from fdbqueue import Queue, Subspace
from fdbqueue.layers import Gate, Leases, PriorityQueue, Results, Sessions, StagedQueue, Subscriptions
from tests.benchmarks.harness import heading, say
from tests.helpers.counted import Counted

SPACE = Subspace(("fdbqueue bench", "costs"))
PAYLOAD = b"x" * 100
TIMES = 20
Each = Callable[[str, Callable[[Any], Any]], tuple[str, dict[str, float]]]


def main() -> None:
    heading("What a call costs the database")
    cluster_file = os.environ.get("FDBQUEUE_TEST_CLUSTER_FILE") or os.environ.get("FDB_CLUSTER_FILE")
    if cluster_file:
        everything(f"fdb:{cluster_file}", "cluster")
    else:
        say("\nSkipped: the cluster's half, since FDB_CLUSTER_FILE names none.")
    with tempfile.TemporaryDirectory() as folder:
        everything(f"file:{folder}/db?durability=relaxed", "embedded")


def everything(url: str, engine: str) -> None:
    """Count on one engine."""
    with fdbqueue.open(url) as db:
        db.clear_range_startswith(SPACE.key())
        calls(db, engine)
        db.clear_range_startswith(SPACE.key())
        sizes(db, engine)
        db.clear_range_startswith(SPACE.key())


def calls(plain: Any, engine: str) -> None:
    """Print a row for each verb."""
    say(f"\n### Calls of one item of 100 B, {engine}\n")
    say("| verb | transactions | reads | writes |")
    say("| --- | ---: | ---: | ---: |")
    for name, did in counted(plain):
        say(f"| `{name}` | {did['commits']:.1f} | {did['reads']:.1f} | {did['writes']:.1f} |")


def counted(plain: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield verbs with their counts per call."""
    db = Counted(plain)

    def each(name: str, call: Callable[[Any], Any]) -> tuple[str, dict[str, float]]:
        call(db)
        call(db)  # what the process learns of a queue is known now
        db.did.clear()
        for _ in range(TIMES):
            call(db)
        return name, {kind: db.did[kind] / TIMES for kind in ("commits", "reads", "writes")}

    queue = Queue(SPACE["plain"])
    yield each("Queue.enqueue", lambda db: queue.enqueue(db, PAYLOAD))
    yield each("Queue.dequeue", lambda db: queue.dequeue(db))

    leases = Leases(Queue(SPACE["leases"]))
    leases.enqueue_many(plain, [PAYLOAD] * TIMES * 3)
    taken: list[Any] = []
    yield each("Leases.enqueue", lambda db: leases.enqueue(db, PAYLOAD))
    yield each("Leases.lease", lambda db: taken.append(leases.lease(db)))
    yield each("Leases.extend", lambda db: taken.append(leases.extend(db, taken.pop(0))))
    yield each("Leases.ack", lambda db: leases.ack(db, taken.pop()))
    staged = StagedQueue(Leases(Queue(SPACE["staged"])))
    staged.leases.enqueue_many(plain, [PAYLOAD] * TIMES * 3)
    held: list[Any] = []
    yield each("StagedQueue.enqueue", lambda db: staged.enqueue(db, PAYLOAD))
    yield each("StagedQueue.lease", lambda db: held.append(staged.lease(db)))
    yield each("StagedQueue.ack", lambda db: staged.ack(db, held.pop()))
    yield each("StagedQueue.dequeue", lambda db: staged.dequeue(db))
    urgent = PriorityQueue(Queue(SPACE["priority"], order=None))
    yield each("PriorityQueue.enqueue", lambda db: urgent.enqueue(db, PAYLOAD, priority=3))
    results = Results(Leases(Queue(SPACE["results"])))
    yield each("Results.enqueue", lambda db: results.enqueue(db, PAYLOAD))
    subscriptions = Subscriptions(Queue(SPACE["subscriptions"]))
    subscriptions.subscribe(plain, "all")
    yield each("Subscriptions.enqueue", lambda db: subscriptions.enqueue(db, PAYLOAD))
    own = subscriptions.open("all")
    got: list[Any] = []
    yield each("Subscription.lease", lambda db: got.append(own.lease(db)))
    yield each("Subscription.ack", lambda db: own.ack(db, got.pop()))
    yield from in_sessions(plain, each, "", None)
    yield from in_sessions(plain, each, " with a gate", lambda name: [Gate("all", limit=1_000)])


def in_sessions(plain: Any, each: Each, kind: str, gates: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the verbs of sessions."""
    sessions: Sessions[bytes] = Sessions(Queue(SPACE["sessions" + kind]), quantum=10_000, gates=gates)
    names = iter(range(10**6))
    for name in range(TIMES * 3):
        sessions.enqueue(plain, PAYLOAD, session=str(name))
    turns: list[Any] = []
    yield each(
        f"Sessions.enqueue, new session{kind}", lambda db: sessions.enqueue(db, PAYLOAD, session=f"n{next(names)}")
    )
    yield each(f"Sessions.enqueue, same session{kind}", lambda db: sessions.enqueue(db, PAYLOAD, session="one"))
    yield each(f"Sessions.lease{kind}", lambda db: turns.append(sessions.lease(db)))
    yield each(f"Sessions.ack, the last item{kind}", lambda db: sessions.ack(db, turns.pop(0)))


def sizes(db: Any, engine: str) -> None:
    """Print how many keys and bytes an item has, by its kind."""
    say(f"\n### Keys and bytes of a waiting item of 100 B, {engine}\n")
    say("The queue's name has 6 characters. Bytes are those of keys and values, before the engine's own.\n")
    say("| item | keys | bytes beside the payload |")
    say("| --- | ---: | ---: |")
    kinds: dict[str, Callable[[Any], Any]] = {
        "plain": lambda queue: queue.enqueue_many(db, [PAYLOAD] * TIMES),
        "by Leases": lambda queue: Leases(queue).enqueue_many(db, [PAYLOAD] * TIMES),
        "with headers of 20 B": lambda queue: Leases(queue).enqueue_many(
            db, [PAYLOAD] * TIMES, headers={"c": "x" * 14}
        ),
        "delayed": lambda queue: Leases(queue).enqueue_many(db, [PAYLOAD] * TIMES, delay=3_600),
        "with a time to live": lambda queue: Leases(queue).enqueue_many(db, [PAYLOAD] * TIMES, ttl=3_600),
        "leased": lambda queue: _leased(db, queue),
        "with a completion": lambda queue: [Results(Leases(queue)).enqueue(db, PAYLOAD) for _ in range(TIMES)],
        "alone in its session": lambda queue: [
            Sessions(queue).enqueue(db, PAYLOAD, session=f"{n:06}") for n in range(TIMES)
        ],
        "behind others in its session": lambda queue: Sessions(queue).enqueue_many(
            db, [PAYLOAD] * TIMES, session="one"
        ),
    }
    for name, fill in kinds.items():
        space = Subspace(("costs!",))
        db.clear_range_startswith(space.key())
        queue = Queue(space)
        fill(queue)
        once = _measured(db, space)
        fill(queue)
        twice = _measured(db, space)
        if name == "alone in its session":
            once = twice
            for n in range(TIMES):
                Sessions(queue).enqueue(db, PAYLOAD, session=f"m{n:05}")
            twice = _measured(db, space)
        keys, size = ((twice[at] - once[at]) / TIMES for at in (0, 1))
        say(f"| {name} | {keys:.1f} | {size - len(PAYLOAD):.0f} |")
        queue.clear(db)
        db.clear_range_startswith(space.key())


def _leased(db: Any, queue: Any) -> None:
    leases = Leases(queue)
    leases.enqueue_many(db, [PAYLOAD] * TIMES)
    for _ in range(TIMES):
        leases.lease(db, duration=3_600)


def _measured(db: Any, space: Subspace) -> tuple[int, int]:
    rows = list(db.get_range_startswith(space.key()))
    return len(rows), sum(len(row.key) + len(row.value) for row in rows)
