"""Every verb of every kind of queue takes effect once, whatever becomes of its commits.

A program uses the verbs of a kind and yields what they say. It says the same if any commit fails, or many do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import CompletionError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    Decision,
    Done,
    FollowUp,
    Groups,
    Leases,
    Levels,
    Messages,
    MessageType,
    PriorityQueue,
    Results,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
    Tasks,
    Worker,
    immediately,
)
from fdbqueue.layers.staged.requests import wished
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.layers.subscriptions.waiters import Waiters
from fdbqueue.writes.adaptive_limit import PATIENCE
from tests.helpers import sessions as of_session
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails
from tests.helpers.leasing import lease_of
from tests.helpers.nightly import at_night
from tests.helpers.staging import coordinating, left_behind, value

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]
TOO_OLD = ("before", 1007)

Program = Callable[[Any, Any, Subspace, Clock], Iterator[Any]]


def of_a_queue(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    queue: Queue[str] = Queue(space, codec="str")
    positions = [queue.enqueue(db, text) for text in ("a", "b", "c", "d")]
    yield queue.enqueue_many(db, ["e", "f", "x" * 200_000]).items
    yield (item := queue.dequeue(db)) and item.value
    yield [item.value for item in queue.dequeue_many(db, limit=2)]
    yield queue.update(db, positions[3], value="D") is not None
    yield queue.cancel(db, positions[0]), queue.cancel(db, positions[3])
    queue.pause(db, reason="stocktaking")
    yield queue.dequeue(db)
    queue.resume(db)
    yield [len(item.value) for item in queue.dequeue_many(db)]
    yield queue.stats(db), queue.check(sound).problems


def of_smart_queues(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    smart = SmartQueue(Queue(space, codec=smart_messages()))
    smart.resend.register(db, "B")
    yield [smart.enqueue(db, {"type": "call", "to": to}).decision.name for to in "aabe"]
    yield smart.enqueue(db, {"type": "call", "to": "e", "over": True}).decision.name
    yield [one.decision.name for one in smart.enqueue_many(db, [{"type": "call", "to": to} for to in "bcd"])]
    yield [copy.value["to"] for copy in smart.resend.fetch_many(db, "B")]
    yield smart.resend.confirm(db, "B")[1]
    yield (item := smart.dequeue(db)) and item.value["to"]
    yield [item.value["to"] for item in smart.dequeue_many(db)]
    yield smart.queue.stats(db), smart.check(sound).problems


def of_smart_sessions(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    smart = SmartSessions(Sessions(Queue(space, codec=smart_messages()), clock=clock))
    for session in ("ann", "bob"):
        yield [smart.enqueue(db, {"type": "call", "to": to}, session=session).decision.name for to in "aab"]
    while (lease := smart.sessions.lease(db)) is not None:
        yield lease.session, lease.value["to"]
        smart.sessions.ack(db, lease)
    yield smart.sessions.stats(db), smart.check(sound).problems


def of_blobs(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    blobs = Blobs(leases, clock=clock)
    for size in (10, 300_000):
        with blobs.write(db, f"{size}") as out:
            out.write(b"x" * size)
    while (lease := leases.lease(db)) is not None:
        with blobs.read(db, lease) as data:
            yield lease.value, len(data.read())
        leases.ack(db, lease)
    yield blobs.stats(db), blobs.check(sound).problems, leases.stats(db).dequeued


def of_tasks(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    app = Tasks(Leases(Queue(space, codec="json"), clock=clock))
    done: list[int] = []

    @app.task(name="note", keep_result=60)
    def note(number: int) -> int:
        done.append(number)
        return number

    handles = [note.enqueue(db, number) for number in range(3)]
    yield note.enqueue_many(db, [note.call(3), note.call(4)]).items
    Worker(app, concurrency=1, signals=False).drain(db)
    yield [handle.result(timeout=60) for handle in handles], set(done)


def of_leases(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space), clock=clock)
    leases.enqueue(db, b"a")
    leases.enqueue(db, b"b", ttl=1_000)
    leases.enqueue(db, b"c", delay=5)
    leases.enqueue(db, bytes(100_000))
    first = leases.lease(db, duration=10)
    assert first is not None
    yield first.value, first.attempt
    many = leases.lease_many(db, limit=2, duration=10)
    yield [(lease.value[:1], lease.attempt) for lease in many]
    leases.extend(db, first, duration=100)
    yield leases.nack(db, many[0], error="no")
    yield leases.snooze(db, many[1], delay=3)
    clock.now += 20
    yield sorted(found.fate for found in leases.reclaim(db).reclaimed)
    leases.ack(db, first)
    rest = leases.lease_many(db, duration=10)
    yield [(lease.value[:1], lease.attempt) for lease in rest]
    leases.ack_many(db, rest[1:])
    clock.now += 20
    again = leases.lease(db)
    assert again is not None
    yield again.attempt, again.error
    leases.ack(db, again)
    yield leases.enqueue_many(db, [b"d", b"e", b"f"], ttl=5).items
    mortal = Leases(leases.queue, max_attempts=1, clock=clock)
    yield mortal.nack_many(db, mortal.lease_many(db))
    first_dead = next(mortal.dead.browse(db)).position
    yield [mortal.dead.redrive(db, [first_dead]), mortal.dead.redrive(db, limit=1, to="tail")]
    yield [mortal.dead.purge(db, older_than=1), mortal.dead.purge(db)]
    stats = leases.queue.stats(db)
    yield stats.dead, stats.purged, stats.expired
    yield stats.available, stats.leased, stats.delayed, stats.enqueued, stats.dequeued
    yield leases.queue.check(sound).problems


def of_sessions(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    sessions = Sessions(Queue(space, codec="str"), max_attempts=3, clock=clock)
    sessions.enqueue(db, "1", session="ann")
    sessions.enqueue(db, "later", session="ann", delay=5)
    yield sessions.enqueue_many(db, ["2", "3", "4"], session="bob", ttl=1_000).items
    sessions.enqueue(db, "x" * 200_000, session="bob", level=0)
    ann, bob = of_session.lease_of(sessions, db, duration=10), of_session.lease_of(sessions, db, duration=10)
    yield ann.session, ann.value, bob.session, len(bob.value)
    sessions.extend(db, ann, duration=100)
    sessions.set_state(db, ann, b"0")
    following: Any = sessions.ack_and_next(db, bob, state=b"1")
    yield following.value, following.state
    yield sessions.nack(db, following, error="no", delay=3)
    sessions.ack(db, ann)
    yield sessions.state(db, "ann"), sessions.lease(db)
    clock.now += 20
    lost = of_session.lease_of(sessions, db, duration=10)
    yield lost.session, lost.value, lost.attempt
    clock.now += 20
    yield sorted(found.fate for found in sessions.reclaim(db).reclaimed)
    sessions.snooze(db, of_session.lease_of(sessions, db), delay=1)
    sessions.pause(db, "bob")
    clock.now += 20
    yield [info.status for info in sessions.list(db)]
    sessions.resume(db, "bob")
    while (lease := sessions.lease(db)) is not None:
        while lease is not None:
            yield lease.session, lease.value, lease.attempt
            lease = sessions.ack_and_next(db, lease)
    sessions.enqueue(db, "dead", session="cy")
    yield [sessions.nack(db, of_session.lease_of(sessions, db)) for _ in range(3)]
    yield sessions.redrive(db, "cy"), sessions.purge(db, "cy")
    sessions.remove(db, "cy", later="renew")
    sessions.enqueue(db, "new", session="cy")
    while (lease := sessions.lease(db)) is not None:
        yield lease.value, lease.generation
        sessions.ack(db, lease)
    yield sessions.stats(db), list(sessions.list(db))
    yield sessions.check(sound).problems


def of_levels(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    order = Levels(3, of=lambda value: value // 10)
    jobs = PriorityQueue(Queue(space, codec="json"), levels=order, max_attempts=2)
    staged = StagedQueue(jobs.leases)
    yield jobs.enqueue(db, 3).rank
    yield jobs.enqueue(db, 4, priority=1).rank
    yield jobs.enqueue_many(db, [15, 16, 17], priority=0).items
    yield jobs.queue.enqueue_many(db, [28, 19, 10]).items
    yield staged.enqueue(db, 5, headers={"priority": 1}).rank
    yield [item.value for item in jobs.dequeue_many(db, limit=2)]
    item = jobs.dequeue(db)
    yield item and item.value
    lease = jobs.leases.lease(db)
    assert lease is not None
    yield lease.value, jobs.leases.nack(db, lease)
    item = staged.dequeue(db)
    yield item and item.value
    dead = jobs.leases.lease(db)
    assert dead is not None
    yield dead.value, jobs.leases.nack(db, dead)
    again = jobs.leases.lease(db)
    assert again is not None
    yield again.value, jobs.leases.nack(db, again)
    yield jobs.leases.dead.redrive(db, to="tail")
    yield [item.value for item in jobs.browse(db)]
    stats = jobs.stats(db)
    yield stats.levels, stats.items.available, stats.items.enqueued, stats.items.dequeued
    yield jobs.check(sound).problems


def of_results(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space["jobs"], codec="str"), max_attempts=1, clock=clock)
    mails = Leases(Queue(space["mails"], codec="str"), clock=clock)
    results = Results(leases, keep=60)
    first = results.enqueue(db, "first", then=FollowUp(mails, "receipt"))
    second = results.enqueue(db, "second", ttl=5, then=FollowUp(mails, "never"))
    third = results.enqueue(db, "third")
    leases.ack(db, lease_of(leases, db), result=1, then=[FollowUp(mails, "now"), FollowUp(mails, "and this")])
    yield first.wait(timeout=60)
    clock.now += 6
    with pytest.raises(CompletionError) as told:
        second.wait(timeout=60)
    yield told.value.outcome
    leases.nack(db, lease_of(leases, db), error="broken")
    yield leases.dead.redrive(db)
    leases.ack(db, lease_of(leases, db), result=3)
    yield third.wait(timeout=60)
    yield [lease.value for lease in mails.lease_many(db, duration=600)]
    yield mails.lease(db)
    clock.now += 120
    leases.reclaim(db)
    for queue in leases, mails:
        assert queue.check(db).problems == ()
        stats = queue.queue.stats(db)
        yield stats.enqueued, stats.dequeued, stats.available, stats.delayed, stats.deleted, stats.outcomes


def of_groups(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), max_attempts=1, clock=clock)
    groups, staged = Groups(leases), StagedQueue(leases)
    done = groups.open(db, "done", then=FollowUp(leases, "report"))
    yield done.enqueue_many(db, ["a", "b", "c"])
    done.enqueue(db, "d", ttl=5)
    done.close(db)
    for source in leases, staged:
        lease = source.lease(db)
        assert lease is not None
        source.ack(db, lease)
    clock.now += 6
    leases.nack_many(db, leases.lease_many(db, limit=2))
    yield done.wait(timeout=60)
    cancelled = groups.open(db, "cancelled", then=FollowUp(leases, "never"))
    cancelled.enqueue_many(db, ["e", "f"], delay=5)
    yield cancelled.cancel(db)
    yield [lease.value for lease in leases.lease_many(db)]
    held = groups.open(db, "held", hold=10)
    other = groups.group(db, "held").hold(db, duration=30)
    held.close(db)
    yield held.stats(db).ended
    other.close(db)
    yield held.wait(timeout=60)
    assert leases.check(db).problems == ()
    stats = leases.queue.stats(db)
    yield stats.enqueued, stats.dequeued, stats.available, stats.delayed, stats.deleted, stats.dead


def of_subscriptions(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    subscriptions = Subscriptions(leases)
    line = Waiters(leases.layout)
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    everything = subscriptions.subscribe(db, "all")
    for n, color in enumerate(["red", "blue", "red", "red"]):
        leases.enqueue(db, f"{color}{n}", headers={"color": color})
    red.grant(db, items=3)
    taken = red.lease_many(db, limit=2, duration=10)
    yield [(lease.value, lease.attempt) for lease in taken]
    red.ack(db, taken[0])
    leases.nack(db, taken[1])
    yield red.credit(db), [lease.value for lease in everything.lease_many(db, limit=1, duration=100)]
    red.suspend(db)
    yield red.lease(db)
    red.resume(db)
    yield [(lease.value, lease.attempt) for lease in red.lease_many(db, duration=10)]
    clock.now += 20
    yield [(lease.value, lease.attempt) for lease in red.lease_many(db, limit=1, timeout=1)]
    yield red.lease(db, timeout=0.01) is not None
    yield red.lease(db, timeout=0.01)
    yield subscriptions.enqueue(db, "nobody", immediate=True)
    tr = sound.create_transaction()
    line.register(tr, wished(tr, b"client", 1, now_us=leases.now_us(), consumer="all"))
    tr.commit().wait()
    delivery = subscriptions.enqueue(db, "pushed", immediate=True)
    yield delivery and delivery.subscription
    delivery = subscriptions.enqueue(db, "stays")
    yield delivery and delivery.subscription
    yield [subscriptions.unsubscribe(db, name) for name in ("red", "red")]
    yield subscriptions.unsubscribe(db, "all")
    mine = subscriptions.subscribe(db, "mine", exclusive=True)
    yield [lease.value for lease in mine.lease_many(db)]
    tr = sound.create_transaction()
    line.register(tr, wished(tr, b"client", 1, now_us=leases.now_us(), consumer="mine"))
    tr.commit().wait()
    delivery = subscriptions.enqueue(db, "straight", immediate=True)
    yield delivery and delivery.subscription
    yield mine.lease(db, timeout=0.01)
    subscriptions.enqueue(db, "waited for")
    yield [(lease.value, lease.attempt) for lease in mine.lease_many(db, timeout=1)]
    stats = leases.queue.stats(db)
    yield stats.available, stats.leased, stats.enqueued, stats.dequeued
    yield subscriptions.check(sound).problems


def of_staged_queues(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    one, other = StagedQueue(leases), StagedQueue(leases)
    for text in "abcdefghi":
        one.enqueue(db, text)
    yield value(other.dequeue(db))
    yield [item.value for item in one.dequeue_many(db, limit=2, timeout=20)]
    lease = lease_of(other, db)
    many = one.lease_many(db, limit=2, duration=10)
    yield [(each.value, each.attempt) for each in (lease, *many)]
    other.ack(db, lease)
    leases.nack(db, many[0])
    yield value(one.dequeue(db))
    clock.now += 20
    again = lease_of(other, db)
    yield again.value, again.attempt
    one.ack(db, again)
    yield [item.value for item in other.dequeue_many(db, limit=2)], [item.value for item in one.dequeue_many(db)]
    yield other.dequeue(db, timeout=0.01), one.lease(db, timeout=0.01)
    yield left_behind(leases.queue, sound)
    stats = leases.stats(db)
    yield stats.enqueued, stats.dequeued, stats.leased, stats.available, leases.check(sound).problems


def of_staged_queues_among_others(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        coordinating(patch, AFTERMATH_SECONDS=float("inf"))
        yield from of_staged_queues(db, sound, space, clock)


def of_streams(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), clock=clock)
    leases.enqueue_many(sound, [f"{number:03}" for number in range(180)])
    promised = [Results(leases).enqueue(sound, text, then=FollowUp(leases, "more")) for text in ("bad", "good")]
    stream = Stream(leases, "s", clock=clock)
    plain: dict[str, Any] = {"epoch": "e", "run": "r", "size_bytes": 1_000_000}
    for batch in (1, 2):
        why: Any = lambda payload: "It is bad." if payload == b"bad" else ""  # noqa: E731
        terms = Terms(**plain, batch=batch, items=150, bad=why if batch == 2 else None)
        record = stream.claim(db, terms)
        yield [
            stream.payload(sound, batch, row)
            for split in record.splits
            for page in stream.read(sound, "e", batch, split)
            for row in page
        ]
        stream.ack(db, terms)
    yield promised[1].wait(timeout=60), [letter.value for letter in leases.dead.browse(sound)]
    stats = leases.stats(sound)
    yield stats.enqueued, stats.dequeued, stats.dead, stats.available, leases.queue.stats(sound).claimed
    yield stream.check(sound).problems, leases.check(sound).problems


def of_consumers(db: Any, sound: Any, space: Subspace, clock: Clock) -> Iterator[Any]:
    leases = Leases(Queue(space, codec="str"), max_attempts=2, backoff=immediately, clock=clock)
    promised = Results(leases).enqueue(db, "5")
    leases.enqueue_many(db, ["100", "107", "200"])
    done: list[str] = []

    def handle(lease: Any) -> object:
        if lease.value == "107" and lease.attempt == 1:
            raise LookupError
        done.append(lease.value)
        number = int(lease.value)
        return Done(number, then=[FollowUp(leases, str(number - 1))] if 0 < number < 100 else [])

    failed = lost = 0
    while leases.stats(sound).available:
        report = Consumer(leases, handle, concurrency=2, signals=False).drain(db)
        failed, lost = failed + report.failed, lost + report.lost
    yield sorted(done), failed, lost, promised.wait(timeout=60)
    stats = leases.stats(sound)
    yield stats.enqueued, stats.dequeued, stats.leased, stats.dead, leases.check(sound).problems


def smart_messages() -> Messages:
    """Return a codec of calls, of which a queue keeps one for each receiver, until he is no more to be called."""

    def check(queued: Any, new: Any) -> Decision:
        return Decision.ignore_and_delete if new.get("over") else Decision.ignore

    return Messages(MessageType("call", key=lambda message: message["to"], check=check))


PROGRAMS: dict[str, tuple[Program, int]] = {
    "blobs": (of_blobs, 6),
    "consumers": (of_consumers, 7),
    "groups": (of_groups, 12),
    "leases": (of_leases, 13),
    "levels": (of_levels, 13),
    "plain": (of_a_queue, 9),
    "results": (of_results, 8),
    "sessions": (of_sessions, 25),
    "smart": (of_smart_queues, 8),
    "smart sessions": (of_smart_sessions, 9),
    "staged": (of_staged_queues, 12),
    "staged among others": (of_staged_queues_among_others, 12),
    "streams": (of_streams, 5),
    "subscriptions": (of_subscriptions, 16),
    "tasks": (of_tasks, 9),
}
"""By the kind: its program, and how many commits that makes at least."""
TAKES_FEWER = ("groups", "subscriptions")
"""A call that was too slow once may rightly take fewer items than it was asked for."""
runs = itertools.count()


def outcome(kind: str, db: Any, plan: Plan) -> tuple[list[Any], int]:
    space = Subspace(("fdbqueue tests", "commits that fail", next(runs)))
    db.clear_range_startswith(space.key())  # a run that was killed may have left items on a cluster
    faulty = FaultyDatabase(db, plan)
    said = list(PROGRAMS[kind][0](faulty, db, space, Clock()))
    db.clear_range_startswith(space.key())
    return said, faulty.commits


@pytest.mark.parametrize("fault", [*FAULTS[:2], *at_night(*FAULTS[2:])], ids=str)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_verb_is_exactly_once_when_any_commit_fails(db: Any, kind: str, fault: Fault) -> None:
    if fault == TOO_OLD and kind in TAKES_FEWER:
        pytest.skip("it may take fewer items")
    says_the_same_whichever_commit_fails(lambda plan: outcome(kind, db, plan), fault, commits=PROGRAMS[kind][1])


@pytest.mark.parametrize("kind", PROGRAMS)
@given(plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=60))
def test_every_verb_is_exactly_once_under_random_faults(db: Any, kind: str, plan: list[Fault | None]) -> None:
    expected, _ = outcome(kind, db, lambda: None)
    most, too_old = 0 if kind in TAKES_FEWER else PATIENCE, itertools.count()
    pending = iter([fault for fault in plan if fault != TOO_OLD or next(too_old) < most])
    assert outcome(kind, db, lambda: next(pending, None))[0] == expected
