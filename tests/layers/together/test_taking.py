"""One module decides what is taken: a rule that it gets is a rule of every taker, and no other module decides."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import CheckFailed, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import (
    Consumer,
    Groups,
    Lease,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    Sessions,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.leases import LeaseHandle
from fdbqueue.layers.leases.taking import Allotment
from fdbqueue.layers.staged import RelaxedHead
from fdbqueue.layers.staged.delivery import HeadDelivery
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.lowlevel import Notes, headers_of, rows
from fdbqueue.moves.taking import Takes
from tests.helpers.clock import Clock
from tests.helpers.copies import FRAME, frame, registered
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import smart_queue
from tests.helpers.staging import coordinating, register
from tests.helpers.subscribing import started

OVER = {"over": True}
ITEMS = (("a", None), ("b", OVER), ("c", OVER), ("d", None), ("e", OVER))
"""Values with their headers. Those with these headers are over, by the imaginary rule."""


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a rule: an item with the header "over" is over."""
    was = Takes.is_over

    def is_over(stored: bytes, notes: Notes, now_us: int) -> bool:
        return was(stored, notes, now_us) or "over" in headers_of(stored)

    monkeypatch.setattr(Takes, "is_over", staticmethod(is_over))


def filled(db: Any, queue: Any) -> Any:
    for value, headers in ITEMS:
        queue.enqueue(db, value, headers=headers)
    return queue


def values(taken: Any) -> list[Any]:
    return [one.value for one in taken]


def until_none(take: Callable[[], Any]) -> list[Any]:
    return values(iter(take, None))


def plain(db: Any, space: Subspace) -> Queue[str]:
    queue: Queue[str] = filled(db, Queue(space, codec="str"))
    return queue


def dequeue(db: Any, space: Subspace) -> list[Any]:
    queue = plain(db, space)
    return until_none(lambda: queue.dequeue(db))


def dequeue_many(db: Any, space: Subspace) -> list[Any]:
    return values(plain(db, space).dequeue_many(db, limit=10))


def dequeue_arrow(db: Any, space: Subspace) -> list[Any]:
    return list(plain(db, space).dequeue_arrow(db).column("value").to_pylist())


def take_rows(db: Any, space: Subspace) -> list[Any]:
    queue = plain(db, space)

    async def body(tr: Any) -> list[Any]:
        return await queue.take_rows(tr, await rows(tr, queue.layout.begin, queue.layout.end))

    return values(run(queue.transact(db, body)))


def lease(db: Any, space: Subspace) -> list[Any]:
    leases = Leases(plain(db, space))
    return until_none(lambda: leases.lease(db))


def lease_many(db: Any, space: Subspace) -> list[Any]:
    return values(Leases(plain(db, space)).lease_many(db, limit=10))


def staged_dequeue(db: Any, space: Subspace) -> list[Any]:
    staged = StagedQueue(plain(db, space))
    return until_none(lambda: staged.dequeue(db))


def staged_dequeue_many(db: Any, space: Subspace) -> list[Any]:
    return values(StagedQueue(plain(db, space)).dequeue_many(db, limit=10))


def staged_lease(db: Any, space: Subspace) -> list[Any]:
    staged = StagedQueue(plain(db, space))
    return until_none(lambda: staged.lease(db))


def staged_lease_many(db: Any, space: Subspace) -> list[Any]:
    return values(StagedQueue(plain(db, space)).lease_many(db, limit=10))


def coordinated(db: Any, space: Subspace, verb: str) -> list[Any]:
    """Take by requests only, as processes do that met others lately."""
    with pytest.MonkeyPatch.context() as patch:
        coordinating(patch, AFTERMATH_SECONDS=float("inf"))
        staged = StagedQueue(plain(db, space))
        return until_none(lambda: getattr(staged, verb)(db))


def granted(db: Any, space: Subspace) -> list[Any]:
    """Take what falls to a request of a process that sleeps, and what is behind it."""
    clock = Clock()
    queue: Queue[str] = Queue(space, codec="str")
    leases = Leases(queue, clock=clock)
    register(db, queue, clock)
    filled(db, queue)
    staged = StagedQueue(leases)
    mine = until_none(lambda: staged.dequeue(db))
    return [*values(leases.browse(db, state="leased")), *mine]


def collected(db: Any, space: Subspace) -> list[Any]:
    """Wait with a request until another process grants an item to it."""
    staged: StagedQueue[str] = StagedQueue(Queue(space, codec="str"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.lease_many, db, limit=10, timeout=20)
        filled(db, staged.queue)
        got = values(waiting.result(30))
    return got + until_none(lambda: staged.dequeue(db))


def relaxed_dequeue(db: Any, space: Subspace) -> list[Any]:
    relaxed = RelaxedQueue(plain(db, space), window=3)
    return sorted(until_none(lambda: relaxed.dequeue(db)))


def relaxed_lease(db: Any, space: Subspace) -> list[Any]:
    relaxed = RelaxedQueue(plain(db, space), window=3)
    return sorted(until_none(lambda: relaxed.leases.lease(db)))


def priority(db: Any, space: Subspace) -> list[Any]:
    jobs = filled(db, PriorityQueue(Queue(space, codec="str")))
    return until_none(lambda: jobs.dequeue(db))


def weighted(db: Any, space: Subspace) -> list[Any]:
    jobs = filled(db, PriorityQueue(Queue(space, codec="str"), levels=2, weights=[2, 1]))
    return until_none(lambda: jobs.dequeue(db))


def stream(db: Any, space: Subspace) -> list[Any]:
    stream = Stream(Leases(plain(db, space)), "s")
    batch = stream.claim(db, Terms(epoch="e", run="r", items=10, size_bytes=1_000, batch=1))
    read = (row for split in batch.splits for page in stream.read(db, "e", 1, split) for row in page)
    return [stream.payload(db, 1, row).decode() for row in read]


def stream_with_bad_items(db: Any, space: Subspace) -> list[Any]:
    stream = Stream(Leases(plain(db, space)), "s")
    terms = Terms(epoch="e", run="r", items=10, size_bytes=1_000, batch=1, bad=lambda payload: "")
    read = (row for split in stream.claim(db, terms).splits for page in stream.read(db, "e", 1, split) for row in page)
    return [stream.payload(db, 1, row).decode() for row in read]


def messages(db: Any, space: Subspace) -> Any:
    smart = registered(smart_queue(space, FRAME), db)
    for at, (_, headers) in enumerate(ITEMS):
        smart.enqueue(db, frame(at), headers=headers)
    return smart


def smart_dequeue(db: Any, space: Subspace) -> list[Any]:
    smart = messages(db, space)
    return ["abcde"[message["n"]] for message in until_none(lambda: smart.dequeue(db))]


def smart_copies(db: Any, space: Subspace) -> list[Any]:
    return ["abcde"[copy.value["n"]] for copy in messages(db, space).resend.fetch_many(db, "B")]


def shared_subscription(db: Any, space: Subspace) -> list[Any]:
    subscription = Subscriptions(plain(db, space)).subscribe(db, "all")
    return until_none(lambda: subscription.lease(db))


def exclusive_subscription(db: Any, space: Subspace) -> list[Any]:
    subscription = Subscriptions(plain(db, space)).subscribe(db, "all", exclusive=True)
    return values(subscription.lease_many(db, limit=10))


def immediate_delivery(db: Any, space: Subspace) -> list[Any]:
    subscriptions: Subscriptions[str] = Subscriptions(Queue(space, codec="str"))

    async def session() -> list[Any]:
        subscription = subscriptions.subscribe(db, "all")
        [waiting] = await started(subscriptions, db, subscription)
        filled(db, subscriptions)
        got = [await waiting]
        return values(got) + until_none(lambda: subscription.lease(db))

    return asyncio.run(session())


def sessions_of(db: Any, space: Subspace, limit: int) -> Any:
    sessions: Sessions[str] = Sessions(Queue(space, codec="str"), concurrency=limit)
    for value, headers in ITEMS:
        sessions.enqueue(db, value, headers=headers, session="ann")
    return sessions


def session(db: Any, space: Subspace, limit: int = 1) -> list[Any]:
    sessions, got = sessions_of(db, space, limit), []
    while (lease := sessions.lease(db)) is not None:
        got.append(lease.value)
        sessions.ack(db, lease)
    return got


def session_with_slots(db: Any, space: Subspace) -> list[Any]:
    sessions = sessions_of(db, space, 9)
    return until_none(lambda: sessions.lease(db))


def ack_and_next(db: Any, space: Subspace, limit: int = 1) -> list[Any]:
    sessions, got = sessions_of(db, space, limit), []
    lease = sessions.lease(db)
    while lease is not None:
        got.append(lease.value)
        lease = sessions.ack_and_next(db, lease) or sessions.lease(db)
    return got


def consumer(db: Any, space: Subspace) -> list[Any]:
    return consumed(db, Leases(plain(db, space)))


def consumer_of_sessions(db: Any, space: Subspace, limit: int = 1) -> list[Any]:
    return consumed(db, sessions_of(db, space, limit))


def consumed(db: Any, source: Any) -> list[Any]:
    got: list[Any] = []

    def handle(lease: Lease) -> None:
        got.append(lease.value)

    Consumer(source, handle, concurrency=1).drain(db)
    return got


TAKERS: dict[str, Callable[[Any, Subspace], list[Any]]] = {
    one.__name__: one
    for one in (
        *(dequeue, dequeue_many, dequeue_arrow, take_rows, lease, lease_many),
        *(staged_dequeue, staged_dequeue_many, staged_lease, staged_lease_many, granted, collected),
        *(relaxed_dequeue, relaxed_lease, priority, weighted, stream, stream_with_bad_items),
        *(smart_dequeue, smart_copies, shared_subscription, exclusive_subscription, immediate_delivery),
        *(session, session_with_slots, ack_and_next, consumer, consumer_of_sessions),
    )
} | {
    "coordinated_dequeue": lambda db, space: coordinated(db, space, "dequeue"),
    "coordinated_lease": lambda db, space: coordinated(db, space, "lease"),
    "session_with_slots_in_turn": lambda db, space: session(db, space, 2),
    "ack_and_next_of_a_slot": lambda db, space: ack_and_next(db, space, 2),
    "consumer_of_slots": lambda db, space: consumer_of_sessions(db, space, 2),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_without_the_rule_a_taker_takes_all(db: Any, space: Subspace, taker: str) -> None:
    assert TAKERS[taker](db, space) == list("abcde")


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("taker", TAKERS)
def test_a_rule_in_one_place_is_obeyed_by_every_taker(db: Any, space: Subspace, taker: str) -> None:
    assert TAKERS[taker](db, space) == ["a", "d"]
    assert Leases(Queue(space)).stats(db).dead == 0


@pytest.mark.usefixtures("rule")
def test_a_new_item_that_is_over_is_not_delivered_to_a_waiting_call(db: Any, space: Subspace) -> None:
    subscriptions: Subscriptions[str] = Subscriptions(Queue(space, codec="str"))

    async def session() -> None:
        [waiting] = await started(subscriptions, db, subscriptions.subscribe(db, "all"))
        assert await subscriptions.enqueue.aio(db, "over", headers=OVER, immediate=True) is None
        delivery = await subscriptions.enqueue.aio(db, "alive", immediate=True)
        assert delivery is not None
        assert delivery.subscription == "all"
        assert (await waiting).value == "alive"

    asyncio.run(session())


@pytest.mark.usefixtures("rule")
def test_a_relaxed_lease_that_picks_an_item_that_is_over_picks_again(db: Any, space: Subspace) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    queue.enqueue(db, "alive")
    queue.enqueue(db, "over", headers=OVER)
    head = RelaxedHead(queue.layout, window=2, choose=lambda n: n - 1)
    lease = Leases(queue, head=head).lease(db)
    assert lease is not None
    assert lease.value == "alive"


ROOM = "fdbqueue/moves/taking.py"
ASKED_ELSEWHERE = {
    ("is_over", "layers/smart/check_runner.py"),  # a check of a queued item, which nobody takes
    ("is_over", "layers/sessions/line/tracking.py"),  # the timer of one item
    ("is_cancelled", "fdbqueue/moves/moves.py"),  # the group of an item that comes back
    ("is_cancelled", "layers/consumer/holds.py"),  # an item that is leased, and not begun
}
"""The questions that are asked about one item, which no head has, and the modules that ask."""
ORDERED = ast.Lt | ast.LtE | ast.Gt | ast.GtE
WORDS = ("is_over", "is_cancelled", "ttl_at_us")


def questions(tree: ast.AST) -> Iterator[str]:
    """Yield what a module asks that only the room decides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr == "is_cancelled" or ast.unparse(node) == "Takes.is_over"):
            yield node.attr
        if isinstance(node, ast.Compare) and any(isinstance(one, ORDERED) for one in node.ops):
            named = [getattr(one, "attr", getattr(one, "id", "")) for one in (node.left, *node.comparators)]
            yield from (name for name in named if name == "ttl_at_us")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            yield from ("codec.is_over" for one in node.args if getattr(one, "value", "") == "is_over")


def test_no_other_module_decides_whether_an_item_is_over(repository: Path) -> None:
    found = set()
    for folder in ("fdbqueue", "layers"):
        for path in sorted((repository / folder).rglob("*.py")):
            name = path.relative_to(repository).as_posix()
            text = path.read_text()
            if not name.startswith("fdbqueue/layers/") and name != ROOM and any(word in text for word in WORDS):
                found |= {(what, name) for what in questions(ast.parse(text))}
    assert found == ASKED_ELSEWHERE


def test_the_search_for_questions_finds_them() -> None:
    asked = (
        "Takes.is_over(stored, notes, now)",
        "0 < notes.ttl_at_us <= now",
        "getattr(codec, 'is_over', None)",
    )
    assert [list(questions(ast.parse(one))) for one in asked] == [["is_over"], ["ttl_at_us"], ["codec.is_over"]]


# --- what was different by accident


def outdated(space: Subspace) -> Queue[Any]:
    """Return a queue whose type calls messages below 2 over."""
    return Queue(space, codec=Messages(MessageType("x", expires=lambda message: message["n"] < 2)))


@pytest.mark.parametrize("bad", [None, lambda payload: ""])
def test_a_stream_does_not_claim_messages_that_their_type_calls_over(db: Any, space: Subspace, bad: Any) -> None:
    queue = outdated(space)
    for number in (0, 2, 1, 3):
        queue.enqueue(db, {"type": "x", "n": number})
    terms = Terms(epoch="e", run="r", items=10, size_bytes=1_000, batch=1, bad=bad)
    assert Stream(Leases(queue), "s").claim(db, terms).count == 2
    assert Leases(queue).stats(db).expired == 2


def test_copies_of_a_cancelled_groups_members_are_not_fetched(db: Any, space: Subspace) -> None:
    smart = registered(smart_queue(space, FRAME), db)
    group = Groups(smart).open(db, "import")
    group.enqueue(db, frame(0))
    smart.enqueue(db, frame(1))
    tr = db.create_transaction()
    group.cancel(tr)  # without the sweep that follows
    tr.commit().wait()
    assert [copy.value["n"] for copy in smart.resend.fetch_many(db, "B")] == [1]
    assert group.stats(db).cancelled == 1
    assert smart.check(db).problems == ()


def test_a_granted_item_whose_predicate_fails_goes_back_to_its_place(db: Any, space: Subspace) -> None:
    """The process that grants it does not open it, so that its holder finds out."""

    def expires(message: Any) -> bool:
        raise ValueError("broken")

    queue: Queue[Any] = Queue(space, codec=Messages(MessageType("x", expires=expires)))
    queue.enqueue(db, {"type": "x"})
    delivery = HeadDelivery(Leases(queue))

    async def grant(tr: Any) -> list[LeaseHandle]:
        allotment = Allotment(1, 60_000_000, "c")
        await delivery.take(tr, delivery.look(tr, limit=1), [allotment])
        return allotment.handles

    handles = run(queue.transact(db, grant))
    assert len(handles) == 1
    got = Allotment(1, 60_000_000, "c", own=True)
    assert run(queue.transact(db, lambda tr: delivery.accept(tr, handles, 60_000_000))) is None
    assert run(queue.transact(db, lambda tr: delivery.collect(tr, handles, got))) == []
    assert Leases(queue).stats(db).available == 1
    with pytest.raises(CheckFailed, match="broken"):
        StagedQueue(queue).dequeue(db)


def test_a_staged_lease_takes_large_items_together_as_far_as_they_fit(db: Any, space: Subspace) -> None:
    queue: Queue[bytes] = Queue(space)
    queue.enqueue_many(db, [b"x" * 800_000] * 4)
    commits = FaultyDatabase(db, lambda: None)
    assert len(StagedQueue(queue).lease_many(commits, limit=4)) == 2
    assert commits.commits == 1


def test_assigned_members_of_a_group_end_it(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
    leases = Leases(Queue(space, codec="str"))
    group = Groups(leases).open(db, "import")
    group.enqueue_many(db, ["a", "b"])
    group.close(db)
    staged = StagedQueue(leases)
    assert until_none(lambda: staged.dequeue(db)) == ["a", "b"]
    assert group.stats(db).state == "done"
    assert leases.check(db).problems == ()
