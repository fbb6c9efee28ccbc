"""How many trips to a cluster a verb waits for, one after the other: on a cluster far away that is what a call costs.

A read version, each wave of reads that begin together, and a commit of writes take a trip each. A call that reads and
writes takes three at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.layers import (
    OWN_KEY,
    OWN_TYPE,
    Decision,
    Leases,
    Limit,
    Messages,
    MessageType,
    PriorityQueue,
    Sessions,
    SmartQueue,
    StagedQueue,
    Subscriptions,
)
from tests.helpers.rounds import Rounds

READ, WRITE = 2, 3
"""The least for a call that reads, and for one that writes as well."""
_names = count()


@dataclass
class Move:
    row: int

    def check(self, new: Move) -> Decision:
        self.row = new.row
        return Decision.ignore


@dataclass
class Report:
    file: int
    percent: int = 0

    def check(self, new: Report) -> Decision:
        self.percent = new.percent
        return Decision.ignore


def fresh(codec: Any = "json") -> Queue[Any]:
    return Queue(f"q{next(_names)}", codec=codec)


def queue(db: Rounds) -> Queue[Any]:
    made = fresh()
    made.enqueue_many(db, list(range(30)))
    made.peek(db)
    return made


def place(db: Rounds) -> tuple[Queue[Any], Any]:
    made = queue(db)
    return made, [item.position for item in made.browse(db)][3]


def known(db: Rounds) -> Queue[Any]:
    """Make an object whose process has not met it, of a queue that others use."""
    return Queue(queue(db).layout.space, codec="json")


def leases(db: Rounds) -> Leases[Any]:
    made: Leases[Any] = Leases(queue(db))
    made.lease(db)
    made.lease(db)  # it learns that there are timers
    return made


def held(db: Rounds) -> tuple[Leases[Any], Any]:
    made = leases(db)
    return made, made.lease(db)


def staged(db: Rounds) -> StagedQueue[Any]:
    made: StagedQueue[Any] = StagedQueue(queue(db))
    made.dequeue(db)
    return made


def staged_leases(db: Rounds) -> StagedQueue[Any]:
    made: StagedQueue[Any] = StagedQueue(leases(db))
    lease = made.lease(db)
    assert lease is not None
    made.ack(db, lease)
    return made


def sessions(db: Rounds) -> Sessions[Any]:
    made: Sessions[Any] = Sessions(fresh(), state_codec="json")
    for name in "abcd":
        made.enqueue_many(db, [1, 2, 3, 4], session=name)
    lease = made.lease(db)
    assert lease is not None
    made.ack(db, lease)
    return made


def held_session(db: Rounds) -> tuple[Sessions[Any], Any]:
    made = sessions(db)
    return made, made.lease(db)


def subscription(db: Rounds) -> tuple[Subscriptions[Any], Any]:
    made: Subscriptions[Any] = Subscriptions(fresh())
    red = made.subscribe(db, "red", selector="color = 'red'")
    for number in range(3):
        made.enqueue(db, number, headers={"color": "red"})
    lease = red.lease(db)
    assert lease is not None
    red.ack(db, lease)
    return made, red


def smart(db: Rounds) -> SmartQueue:
    made: SmartQueue = SmartQueue(fresh(Messages(MessageType("move", Move, sees=OWN_TYPE))))
    made.enqueue(db, Move(0))
    return made


def reports(db: Rounds, limit: Limit | None = None) -> SmartQueue:
    one = None if limit is None else Limit(1)
    kind = MessageType("report", Report, key=lambda report: report.file, sees=OWN_KEY, key_limit=one)
    made: SmartQueue = SmartQueue(fresh(Messages(kind)), limit=limit)
    made.enqueue_many(db, [Report(number) for number in range(50)])
    made.enqueue(db, Report(50))  # it learns that the queue is marked
    return made


def priorities(db: Rounds) -> PriorityQueue[Any]:
    made: PriorityQueue[Any] = PriorityQueue(fresh())
    for level in (1, 2):
        made.enqueue(db, level, priority=level)
    return made


Call = tuple[Callable[[Rounds], Any], Callable[[Rounds, Any], Any], int]
VERBS: dict[str, Call] = {
    "Queue.enqueue": (queue, lambda db, made: made.enqueue(db, 1), WRITE),
    "Queue.enqueue of a name that is new": (lambda db: fresh(), lambda db, made: made.enqueue(db, 1), WRITE),
    "Queue.enqueue, the first": (known, lambda db, made: made.enqueue(db, 1), WRITE),
    "Queue.enqueue_many, the first": (known, lambda db, made: made.enqueue_many(db, [1, 2]), WRITE),
    "Queue.dequeue, the first": (known, lambda db, made: made.dequeue(db), 4),
    "Leases.lease, the first": (known, lambda db, made: Leases(made).lease(db), WRITE),
    "StagedQueue.dequeue, the first": (known, lambda db, made: StagedQueue(made).dequeue(db), 4),
    "Sessions.enqueue, the first": (
        lambda db: Queue(sessions(db).layout.space, codec="json"),
        lambda db, made: Sessions(made).enqueue(db, 1, session="b"),
        WRITE,
    ),
    "Sessions.lease, the first": (
        lambda db: Queue(sessions(db).layout.space, codec="json"),
        lambda db, made: Sessions(made, state_codec="json").lease(db),
        7,
    ),
    "Subscription.lease, the first": (
        lambda db: Queue(subscription(db)[0].leases.queue.layout.space, codec="json"),
        lambda db, made: Subscriptions(made).open("red").lease(db),
        6,
    ),
    "Queue.enqueue_many": (queue, lambda db, made: made.enqueue_many(db, list(range(100))), WRITE),
    "Queue.dequeue": (queue, lambda db, made: made.dequeue(db), WRITE),
    "Queue.dequeue_many": (queue, lambda db, made: made.dequeue_many(db), WRITE),
    "Queue.peek": (queue, lambda db, made: made.peek(db), READ),
    "Queue.get": (place, lambda db, made: made[0].get(db, made[1]), READ),
    "Queue.cancel": (place, lambda db, made: made[0].cancel(db, made[1]), WRITE),
    "Queue.update": (place, lambda db, made: made[0].update(db, made[1], value=7), WRITE),
    "Queue.reschedule": (place, lambda db, made: made[0].reschedule(db, made[1], delay=9), WRITE),
    "Leases.lease": (leases, lambda db, made: made.lease(db), WRITE),
    "Leases.ack": (held, lambda db, made: made[0].ack(db, made[1]), WRITE),
    "Leases.nack": (held, lambda db, made: made[0].nack(db, made[1]), WRITE),
    "Leases.snooze": (held, lambda db, made: made[0].snooze(db, made[1], delay=3), WRITE),
    "Leases.extend": (held, lambda db, made: made[0].extend(db, made[1], duration=9), WRITE),
    "StagedQueue.dequeue": (staged, lambda db, made: made.dequeue(db), WRITE),
    "StagedQueue.lease": (staged_leases, lambda db, made: made.lease(db), WRITE),
    "PriorityQueue.enqueue": (priorities, lambda db, made: made.enqueue(db, 1, priority=1), WRITE),
    "PriorityQueue.dequeue": (priorities, lambda db, made: made.dequeue(db), WRITE),
    "Sessions.enqueue": (sessions, lambda db, made: made.enqueue(db, 1, session="b"), WRITE),
    "Sessions.enqueue into a new session": (sessions, lambda db, made: made.enqueue(db, 1, session="z"), 4),
    "Sessions.lease": (sessions, lambda db, made: made.lease(db), 4),
    "Sessions.ack": (held_session, lambda db, made: made[0].ack(db, made[1]), WRITE),
    "Sessions.ack_and_next": (held_session, lambda db, made: made[0].ack_and_next(db, made[1]), WRITE),
    "Sessions.nack": (held_session, lambda db, made: made[0].nack(db, made[1]), WRITE),
    "Sessions.extend": (held_session, lambda db, made: made[0].extend(db, made[1], duration=9), WRITE),
    "Sessions.state": (held_session, lambda db, made: made[0].state(db, "a"), READ),
    "Subscriptions.enqueue": (
        subscription,
        lambda db, made: made[0].enqueue(db, 1, headers={"color": "red"}),
        WRITE,
    ),
    "Subscription.lease": (subscription, lambda db, made: made[1].lease(db), 5),
    "SmartQueue.enqueue that merges": (smart, lambda db, made: made.enqueue(db, Move(1)), 4),
    "SmartQueue.enqueue within limits": (
        lambda db: reports(db, Limit(200)),
        lambda db, made: made.enqueue(db, Report(99)),
        WRITE,
    ),
    "SmartQueue.enqueue_many of 50 that merge with one": (
        smart,
        lambda db, made: made.enqueue_many(db, [Move(number) for number in range(50)]),
        4,
    ),
    "SmartQueue.enqueue_many of 50 that merge each": (
        reports,
        lambda db, made: made.enqueue_many(db, [Report(number, 1) for number in range(50)]),
        4,
    ),
    "SmartQueue.enqueue_many of 50 that are new": (
        reports,
        lambda db, made: made.enqueue_many(db, [Report(number) for number in range(100, 150)]),
        4,
    ),
    "SmartQueue.enqueue_many of 50 within limits": (
        lambda db: reports(db, Limit(200)),
        lambda db, made: made.enqueue_many(db, [Report(number) for number in range(100, 150)]),
        4,
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_waits_for_no_more_trips_than_it_must(verb: str) -> None:
    prepare, call, trips = VERBS[verb]
    with fdbqueue.open("memory:") as memory:
        db = Rounds(memory)
        made = prepare(db)
        before = db.trips
        call(db, made)
        assert db.trips - before == trips
