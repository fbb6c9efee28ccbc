"""Every layer works on every object that a layer may be made of, or refuses it with the remedy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue.layers
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    DeadLetters,
    Deadlines,
    Disposition,
    Groups,
    Leases,
    Messages,
    MessageType,
    Monitor,
    OperationLog,
    PriorityQueue,
    RelaxedQueue,
    Resend,
    Results,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscription,
    Subscriptions,
    Tasks,
    Watchdog,
    exponential,
)
from fdbqueue.layers.leases import Head
from fdbqueue.layers.priority import WeightedHead
from fdbqueue.layers.staged import RelaxedHead
from fdbqueue.stored.policies import NO_POLICY

MESSAGES = Messages(MessageType("job"))
JOB = {"type": "job", "n": 1}


def _handler(given: Any) -> None:
    raise RuntimeError("it failed")


def _leases(queue: Queue) -> Leases:
    return Leases(queue, max_attempts=1)


def _smart(queue: Queue) -> SmartQueue:
    return SmartQueue(_leases(queue))


def _subscription(queue: Queue) -> Subscription:
    return Subscriptions(_leases(queue)).open("all")


THINGS: dict[str, Callable[[Queue], Any]] = {
    "None": lambda queue: None,
    "a name": lambda queue: "orders",
    "a Queue": lambda queue: queue,
    "a Queue of texts": lambda queue: Queue(queue.layout.space, codec="str"),
    "Leases": _leases,
    "Leases by turns": lambda queue: Leases(queue, head=WeightedHead(queue.layout, [1, 1])),
    "Leases in relaxed order": lambda queue: Leases(queue, head=RelaxedHead(queue.layout)),
    "PriorityQueue": lambda queue: PriorityQueue(queue, levels=2, max_attempts=1),
    "PriorityQueue by turns": lambda queue: PriorityQueue(queue, levels=2, weights=[1, 1], max_attempts=1),
    "RelaxedQueue": lambda queue: RelaxedQueue(_leases(queue)),
    "Groups": lambda queue: Groups(_leases(queue)),
    "Results": lambda queue: Results(_leases(queue)),
    "Sessions": lambda queue: Sessions(Queue(queue.layout.space, codec="str")),
    "Sessions of messages": Sessions,
    "SmartQueue": _smart,
    "SmartSessions": lambda queue: SmartSessions(Sessions(queue)),
    "StagedQueue": lambda queue: StagedQueue(_leases(queue)),
    "Subscriptions": lambda queue: Subscriptions(_leases(queue)),
    "Subscription": _subscription,
    "Consumer": lambda queue: Consumer(_leases(queue), _handler),
    "Watchdog": lambda queue: Watchdog(_leases(queue)),
    "DeadLetters": lambda queue: _leases(queue).dead,
    "Deadlines": lambda queue: Deadlines(_smart(queue)),
    "Monitor": lambda queue: Monitor(Deadlines(_smart(queue)), _handler),
    "Resend": lambda queue: _smart(queue).resend,
    "OperationLog": lambda queue: OperationLog("log", queue),
    "Tasks": lambda queue: Tasks(Leases(Queue(queue.layout.space, codec="json"))),
}

MAKERS: dict[str, Callable[[Any], Any]] = {
    "Blobs": Blobs,
    "Consumer": lambda given: Consumer(given, _handler),
    "DeadLetters": lambda given: DeadLetters(given, lambda: 0),
    "Deadlines": Deadlines,
    "Groups": Groups,
    "Leases": Leases,
    "Monitor": lambda given: Monitor(given, _handler),
    "OperationLog": lambda given: OperationLog("log", given),
    "PriorityQueue": lambda given: PriorityQueue(given, levels=2),
    "RelaxedQueue": RelaxedQueue,
    "Resend": Resend,
    "Results": Results,
    "Sessions": Sessions,
    "SmartQueue": SmartQueue,
    "SmartSessions": SmartSessions,
    "StagedQueue": StagedQueue,
    "Subscriptions": Subscriptions,
    "Tasks": Tasks,
    "Watchdog": Watchdog,
}

QUEUES = {"a Queue", "a Queue of texts"}
STRICT = {"Groups", "Leases", "PriorityQueue", "Results", "SmartQueue"}
ANY_HEAD = {*STRICT, "Leases by turns", "Leases in relaxed order", "PriorityQueue by turns", "RelaxedQueue"}
OF_SESSIONS = {"Sessions", "Sessions of messages", "SmartSessions"}
WORKS = {
    "Blobs": {*QUEUES, *ANY_HEAD, *OF_SESSIONS, "StagedQueue", "Subscriptions"} - {"Groups", "Results"},
    "Consumer": {*ANY_HEAD, *OF_SESSIONS, "Subscription"},
    "DeadLetters": QUEUES,
    "Deadlines": {"SmartQueue"},
    "Groups": {*ANY_HEAD, *OF_SESSIONS, "Subscriptions"} - {"Groups", "RelaxedQueue"},
    "Leases": QUEUES,
    "Monitor": {"Deadlines"},
    "OperationLog": QUEUES,
    "PriorityQueue": QUEUES,
    "RelaxedQueue": {*QUEUES, *STRICT},
    "Resend": {"Leases", "Leases by turns", "Leases in relaxed order"},
    "Results": {*ANY_HEAD, *OF_SESSIONS, "Subscriptions"} - {"RelaxedQueue"},
    "Sessions": QUEUES,
    "SmartQueue": {"a Queue", *ANY_HEAD} - {"SmartQueue"},
    "SmartSessions": {"Sessions of messages"},
    "StagedQueue": {*QUEUES, *ANY_HEAD},
    "Subscriptions": {*QUEUES, *STRICT},
    "Tasks": {"a name"},
    "Watchdog": {*ANY_HEAD, *OF_SESSIONS},
}
"""All that is not here is refused."""

REFUSED = {
    "Blobs": r"takes a Queue, or a layer that enqueues, as in Blobs\(Leases\(Queue\('films'\)\)\)",
    "Consumer": r"takes Leases, as in Consumer\(Leases\(Queue\('orders'\)\)\), or a Subscription, or Sessions, not ",
    "DeadLetters": r"Use Leases\(queue\)\.dead",
    "Deadlines": r"as in Deadlines\(SmartQueue\(queue\)\)",
    "Groups": r"Groups takes Leases, as in Groups\(Leases\(Queue\('orders'\)\)\), or a layer that enqueues in a tran"
    "|is a member of one group at most: give Groups the source of Groups",
    "Leases": r"as in Leases\(Queue\('orders'\)\), not of .* A layer over a queue has leases already: use those",
    "Monitor": r"as in Monitor\(Deadlines\(smart\), handler\)",
    "OperationLog": r"as in OperationLog\('log', leases\.queue\)",
    "PriorityQueue": r"as in PriorityQueue\(Queue\('jobs'\)\), .* other layers are made of the priority queue",
    "RelaxedQueue": r"takes a Queue or its Leases|A queue has one head: give Leases\(queue\)",
    "Resend": r"Use the `resend` of a SmartQueue",
    "Results": r"Results takes Leases, as in Results\(Leases\(Queue\('orders'\)\)\), or a layer that enqueues in a tr",
    "Sessions": r"as in Sessions\(Queue\('orders'\)\), not of ",
    "SmartQueue": r"takes a Queue or its Leases|codec is a Messages, not 'str'|is a SmartQueue already.*: use it",
    "SmartSessions": r"SmartSessions are made of Sessions, as in SmartSessions\(Sessions\(|is a Messages, not 'str'",
    "StagedQueue": r"takes a Queue or its Leases",
    "Subscriptions": r"takes a Queue or its Leases|go by the queue's order: give Leases\(queue\) without a head",
    "Tasks": r"Tasks are in a queue that is named, as in Tasks\('mail'\), or|Give codec='json'",
    "Watchdog": r"takes Leases, as in Watchdog\(Leases\(Queue\('orders'\)\)\), or Sessions, not ",
}
"""What the message of each says."""


def matrix(*, works: bool) -> list[tuple[str, str]]:
    return [(maker, thing) for maker in MAKERS for thing in THINGS if (thing in WORKS[maker]) == works]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space["queue"], codec=MESSAGES)


def test_no_layer_is_left_out_of_the_matrix() -> None:
    public = {name: getattr(fdbqueue.layers, name) for name in fdbqueue.layers.__all__}
    taking = {"deadlines", "leases", "queue", "sessions", "smart", "source"}
    layers = {
        name
        for name, given in public.items()
        if inspect.isclass(given) and taking & set(inspect.signature(given).parameters)
    }

    made_by_another = {"Follower", "RateLimit", "Schedules", "Subscription"}  # a middleware; the others by layers
    assert layers - made_by_another == set(MAKERS) == set(WORKS) == set(REFUSED)
    assert layers - {"Follower", "RateLimit", "Schedules"} <= {*THINGS, *MAKERS}


@pytest.mark.parametrize(("maker", "thing"), matrix(works=False))
def test_every_layer_refuses_an_unsuitable_argument_with_the_remedy(queue: Queue, maker: str, thing: str) -> None:
    given = THINGS[thing](queue)

    with pytest.raises(TypeError) as refused:
        MAKERS[maker](given)

    assert re.search(REFUSED[maker], str(refused.value))
    if thing == "Sessions" and "takes" in REFUSED[maker] and maker != "Blobs":
        assert "Sessions are taken by their own verbs" in str(refused.value)
    if thing in ("StagedQueue", "Subscriptions") and "takes" in REFUSED[maker]:
        assert f"give the `leases` of this {thing}" in str(refused.value)


@pytest.mark.parametrize(("maker", "thing"), matrix(works=True))
def test_a_layer_follows_the_policy_the_clock_and_the_head_of_what_it_is_made_of(
    queue: Queue, maker: str, thing: str
) -> None:
    given = THINGS[thing](queue)
    made = MAKERS[maker](given)

    own = getattr(made, "source", made)
    leases = getattr(own, "leases", own)
    if isinstance(leases, Leases) and not isinstance(given, Queue | Sessions | SmartSessions):
        theirs = given if isinstance(given, Leases) else given.leases
        assert leases.queue is theirs.queue
        assert leases.retry == theirs.retry
        assert leases.clock is theirs.clock
        assert leases.head is theirs.head or (maker == "RelaxedQueue" and type(theirs.head) is Head)


TAKE: dict[str, Callable[[Any, Any], Any]] = {
    "Groups": lambda made, db: made.leases.lease(db),
    "RelaxedQueue": lambda made, db: made.leases.lease(db),
    "Results": lambda made, db: made.leases.lease(db),
    "SmartQueue": lambda made, db: made.leases.lease(db),
    "StagedQueue": lambda made, db: made.lease(db),
    "Subscriptions": lambda made, db: made.subscribe(db, "all").lease(db),
}


@pytest.mark.parametrize(
    ("maker", "thing"),
    [(maker, thing) for maker, thing in matrix(works=True) if maker in TAKE and thing in {*ANY_HEAD} & WORKS[maker]],
)
def test_an_item_that_fails_dies_by_the_policy_of_what_the_layer_is_made_of(
    db: Any, queue: Queue, maker: str, thing: str
) -> None:
    given = THINGS[thing](queue)
    leases = given if isinstance(given, Leases) else given.leases
    made = MAKERS[maker](given)
    if thing == "SmartQueue" or maker == "SmartQueue":
        (given if thing == "SmartQueue" else made).enqueue(db, JOB)
    else:
        leases.queue.enqueue(db, JOB)

    lease = TAKE[maker](made, db)

    assert lease.value == JOB
    fate = made.leases.nack(db, lease)
    assert fate is (Disposition.available if leases.retry.policy.max_attempts is None else Disposition.dead)
    assert leases.check(db).ok


@pytest.mark.parametrize("thing", [*sorted(ANY_HEAD & {"PriorityQueue", "SmartQueue", "RelaxedQueue"})])
def test_a_consumer_of_a_kind_of_queue_fails_its_items_by_that_policy(db: Any, queue: Queue, thing: str) -> None:
    given = THINGS[thing](queue)
    (given if thing == "SmartQueue" else given.leases).enqueue(db, JOB)

    report = Consumer(given, _handler).drain(db)

    assert (report.failed, report.dead) == (1, 1)


def test_layers_on_a_priority_queue_keep_its_levels_and_turns(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space["levels"], codec=MESSAGES), levels=2)
    smart = SmartQueue(jobs)
    for number, priority in enumerate([1, 0, 1, 0]):
        smart.enqueue(db, {"type": "job", "n": number}, headers={"priority": priority})
    taken = [StagedQueue(jobs).dequeue(db), smart.dequeue(db)]
    assert [item.value["n"] for item in taken if item] == [1, 3]
    subscribed = Subscriptions(smart).subscribe(db, "all").lease(db)
    assert subscribed is not None
    assert subscribed.value["n"] == 0

    turns = PriorityQueue(Queue(space["turns"], codec="str"), levels=2, weights=[1, 1])
    turns.enqueue_many(db, ["urgent"] * 3, priority=0)
    turns.enqueue_many(db, ["can wait"] * 3, priority=1)
    crowd = StagedQueue(turns)
    first_four = [crowd.dequeue(db) for _ in range(4)]
    assert sorted(item.value for item in first_four if item) == ["can wait"] * 2 + ["urgent"] * 2


LAYERS: list[Callable[[Any], Any]] = [StagedQueue, Subscriptions, SmartQueue, RelaxedQueue]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("policy", [{"max_attempts": 1}, {"backoff": exponential()}], ids=["attempts", "backoff"])
def test_a_layer_of_the_bare_queue_follows_the_policy_of_leases_beside_it(
    queue: Queue, layer: Any, policy: dict[str, Any]
) -> None:
    bare = layer(queue)
    leases = Leases(queue, **policy)

    assert bare.leases.retry.policy == leases.retry.policy == layer(leases).leases.retry.policy != NO_POLICY


def test_a_layer_of_the_queue_of_a_priority_queue_follows_its_policy() -> None:
    jobs = PriorityQueue(Queue("jobs"), max_attempts=3)
    assert StagedQueue(jobs.queue).leases.retry.policy.max_attempts == 3


def test_leases_with_another_policy_beside_leases_with_one_are_refused(queue: Queue) -> None:
    Leases(queue, max_attempts=3, backoff=exponential(first=2))

    Leases(queue, max_attempts=3, backoff=exponential(first=2))
    Leases(queue)
    others: list[Any] = [{"max_attempts": 5}, {"max_attempts": 3}, {"backoff": exponential(first=2)}]
    for other in others:
        with pytest.raises(TypeError, match=r"max_attempts=3.* would follow another policy. Use one Leases object"):
            Leases(queue, **other)
    Leases(Queue(queue.layout.space), max_attempts=5)


def test_a_priority_queue_of_a_queue_with_a_policy_follows_it(queue: Queue) -> None:
    Leases(queue, max_attempts=3)

    with pytest.raises(TypeError, match=r"max_attempts=3"):
        PriorityQueue(queue, max_attempts=5)
    assert PriorityQueue(queue).leases.retry.policy.max_attempts == 3
