"""Leases that were granted to a process that does not take them: no attempt counts, and others get the items soon."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pytest

import fdbqueue
from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.embedded.client.database import Database
from fdbqueue.engine.embedded.client.transaction import Transaction
from fdbqueue.engine.optional import members_of
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers import Consumer, Sessions, Subscriptions
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue, recent
from fdbqueue.layers.staged.requests import TAKE_SECONDS, UNMARKED, Grant, Wish, stored_grant
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.processes import Processes, kill_9
from tests.helpers.sessions import lease_of
from tests.helpers.staging import coordinating, has_requests, left_behind, register, value, wait_until

pytestmark = pytest.mark.slow

Granted = tuple[StagedQueue, Lease, FaultyDatabase]


@pytest.fixture
def memberless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine know which processes are alive, as a cluster does not."""
    monkeypatch.setattr(Database, "members", None)
    monkeypatch.setattr(Transaction, "members", None)


def line_of(sessions: Sessions) -> Queue:
    """Return the queue in which its workers wait."""
    return sessions.line.leases.queue


def own_left_behind(queue: Queue, db: Any) -> list[bytes]:
    """Return what is left behind, but for what was granted to the call that does nothing."""
    return [key for key in left_behind(queue, db) if b"sleeping" not in key]


def granted(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, again: bool = False
) -> Granted:
    """Let a call wait behind another one, and be granted its item by a third one.

    Args:
        again: whether its item was leased before.
    """
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)
    counting = FaultyDatabase(db, lambda: None)
    waiting = StagedQueue(leases)
    register(db, queue, clock, duration=30.0)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(waiting.lease, counting, timeout=20)
        wait_until(partial(has_requests, waiting, db, 2))
        wait_until(lambda: counting.commits >= 2)  # it has set its watches
        queue.enqueue_many(db, ["the first one's", "granted", "the third one's"])
        if again:  # the first two come back from earlier leases
            for earlier in leases.lease_many(db, limit=2):
                leases.snooze(db, earlier, delay=0)
        assert value(StagedQueue(leases).dequeue(db)) == "the third one's"
        lease = future.result(20)
    assert lease is not None
    assert lease.value == "granted"
    return waiting, lease, counting


# --- a grant that is not taken


@pytest.mark.parametrize("duration", [0.0, 0.2, 30.0])
def test_an_untaken_item_goes_back_uncounted_to_its_place(db: Any, queue: Queue, clock: Clock, duration: float) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    grant = register(db, queue, clock, wanted=2, duration=duration, process=b"")
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    assert value(staged.lease(db)) == "c"
    assert grant in left_behind(queue, db)
    assert leases.check(db).ok
    clock.now += TAKE_SECONDS + 0.001
    first, second = staged.lease_many(db)
    assert [(one.value, one.attempt, one.error) for one in (first, second)] == [("a", 1, ""), ("b", 1, "")]
    assert left_behind(queue, db) == []
    assert leases.stats(db).dead == 0
    assert leases.check(db).ok


def test_a_backoff_does_not_hold_an_untaken_item_back(db: Any, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, backoff=lambda attempt: 100.0, clock=clock)
    register(db, queue, clock, duration=30.0, process=b"")
    queue.enqueue(db, "a")
    assert StagedQueue(leases).lease(db) is None
    clock.now += TAKE_SECONDS + 0.001
    report = leases.reclaim(db)
    assert [(one.kind, one.fate.value, one.attempt) for one in report.reclaimed] == [("grant", "available", 0)]
    assert value(leases.lease(db)) == "a"


def test_a_grant_to_an_older_version_stays_as_it_was(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    register(db, queue, clock, duration=30.0)
    queue.enqueue(db, "a")
    staged = StagedQueue(leases)
    assert staged.lease(db) is None
    clock.now += 29
    assert staged.lease(db) is None
    clock.now += 2
    lease = staged.lease(db)
    assert lease is not None
    assert lease.attempt == 2


def test_older_versions_read_requests_and_grants() -> None:
    class OldWish(msgspec.Struct, array_like=True):
        client: bytes
        wanted: int
        expires_at_us: int
        duration_us: int = 0
        consumer: str = ""

    class OldGrant(msgspec.Struct, array_like=True):
        expires_at_us: int
        leases: list[Any]

    wish = msgspec.msgpack.encode(Wish(b"client", 3, 7, 9, "me", b"process"))
    assert msgspec.msgpack.decode(wish, type=OldWish) == OldWish(b"client", 3, 7, 9, "me")
    old = msgspec.msgpack.encode(OldWish(b"client", 3, 7, 9, "me"))
    assert msgspec.msgpack.decode(old, type=Wish).process is None
    stored = stored_grant([], 1, 2, b"process", True, expires_at_us=5)
    assert msgspec.msgpack.decode(stored, type=OldGrant) == OldGrant(5, [])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(OldGrant(5, [])), type=Grant) == Grant(5, [])


def test_a_waiting_call_gets_an_item_that_another_did_not_take(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    staged = StagedQueue(leases)
    with ThreadPoolExecutor(1) as pool:
        register(db, queue, Clock(time.time()), duration=30.0, process=b"")
        waiting = pool.submit(staged.lease, db, timeout=20)
        wait_until(partial(has_requests, staged, db, 2))
        queue.enqueue(db, "a")
        lease = waiting.result(60)
    assert lease is not None, "it came when the lease of 30 s had ended"
    assert (lease.value, lease.attempt) == ("a", 1)


def test_an_unreadable_grant_of_a_newer_version_is_left_alone(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    grant = register(db, queue, clock, duration=30.0, process=b"")
    queue.enqueue(db, "a")
    assert StagedQueue(leases).lease(db) is None
    db[grant] = b"newer"
    clock.now += TAKE_SECONDS + 0.001
    assert leases.reclaim(db).reclaimed == ()
    assert bytes(db[grant]) == b"newer"


def test_an_untaken_session_goes_back_to_its_place(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, max_attempts=1, clock=clock)
    for name in ("ann", "bob", "cid"):
        sessions.enqueue(db, f"{name}'s", session=name)
    register(db, line_of(sessions), clock, wanted=2, duration=30.0, process=b"")
    leases = [sessions.lease(db), sessions.lease(db), sessions.lease(db)]
    assert sum(lease is not None for lease in leases) == 1
    clock.now += TAKE_SECONDS + 0.001
    leases += [sessions.lease(db), sessions.lease(db)]
    got = [lease for lease in leases if lease is not None]
    assert sorted(lease.value for lease in got) == ["ann's", "bob's", "cid's"]
    assert {lease.attempt for lease in got} == {1}
    assert sessions.stats(db).dead == 0
    for lease in got:
        sessions.ack(db, lease)
    assert sessions.check(db).problems == ()


def test_a_session_with_slots_that_was_not_taken_goes_back(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, max_attempts=1, concurrency=2, clock=clock)
    sessions.enqueue_many(db, ["a", "b", "c"], session="ann")
    register(db, line_of(sessions), clock, wanted=2, duration=30.0, process=b"")
    assert sessions.lease(db) is None
    clock.now += TAKE_SECONDS + 0.001
    first, second = lease_of(sessions, db), lease_of(sessions, db)
    assert [(one.value, one.attempt) for one in (first, second)] == [("a", 1), ("b", 1)]
    for lease in (first, second):
        sessions.ack(db, lease)
    assert sessions.check(db).problems == ()


# --- requests behind a grant that is not taken


def three_asleep(db: Any, queue: Queue, clock: Clock) -> None:
    """Let three processes wait that have ended, which the engine does not know."""
    for client in (b"sleeping 1", b"sleeping 2", b"sleeping 3"):
        register(db, queue, clock, duration=30.0, process=b"", client=client)


@pytest.mark.parametrize("fired_by", ["the next call", "a reclaim", "a plain lease"])
def test_an_untaken_item_comes_before_those_behind_it(db: Any, queue: Queue, clock: Clock, fired_by: str) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    staged = StagedQueue(leases)
    three_asleep(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    assert staged.lease(db) is None
    queue.enqueue_many(db, ["c", "d"])
    clock.now += TAKE_SECONDS + 0.001
    got = []
    if fired_by == "a reclaim":
        assert len(leases.reclaim(db).reclaimed) == 2
    elif fired_by == "a plain lease":
        got.append(leases.lease(db))
    while lease := staged.lease(db):
        got.append(lease)
    assert [(one.value, one.attempt) for one in got if one is not None] == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    clock.now += TAKE_SECONDS + 0.001
    assert staged.lease(db) is None
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_an_untaken_item_comes_before_those_behind_it_to_a_call_that_waits(db: Any, queue: Queue) -> None:
    staged = StagedQueue(Leases(queue, max_attempts=1))
    three_asleep(db, queue, Clock(time.time()))
    queue.enqueue_many(db, ["a", "b"])
    first, second = staged.lease(db, timeout=20), staged.lease(db, timeout=20)
    assert [value(first), value(second)] == ["a", "b"]


def test_an_untaken_items_session_comes_before_those_behind_it(db: Any, queue: Queue, clock: Clock) -> None:
    sessions = Sessions(queue, max_attempts=1, clock=clock)
    three_asleep(db, line_of(sessions), clock)
    for name in ("ann", "bob"):
        sessions.enqueue(db, f"{name}'s", session=name)
    assert sessions.lease(db) is None
    for name in ("cid", "dan"):
        sessions.enqueue(db, f"{name}'s", session=name)
    clock.now += TAKE_SECONDS + 0.001
    got = [lease_of(sessions, db) for _ in range(4)]
    assert [(one.value, one.attempt) for one in got] == [("ann's", 1), ("bob's", 1), ("cid's", 1), ("dan's", 1)]
    for one in got:
        sessions.ack(db, one)
    assert sessions.check(db).problems == ()


def test_an_item_that_a_subscription_did_not_take_comes_before_those_behind_it(
    db: Any, queue: Queue, clock: Clock
) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    subscriptions = Subscriptions(leases)
    subscription = subscriptions.subscribe(db, "all")
    waiters = Waiters(queue.layout)

    async def ask(tr: Any) -> None:
        for client in (b"sleeping 1", b"sleeping 2"):
            wish = Wish(client, 1, int((clock() + 30) * 1e6), 0, "all", b"")
            waiters.register(tr, wish)

    run(attempts(db, ask))
    first = subscriptions.enqueue(db, "a")
    assert first is not None
    assert first.subscription == "all"
    clock.now += TAKE_SECONDS + 0.001
    assert len(leases.reclaim(db).reclaimed) == 1
    assert value(subscription.lease(db)) == "a"
    second = subscriptions.enqueue(db, "b")
    assert second is not None
    assert second.subscription is None
    assert value(subscription.lease(db)) == "b"


def test_a_live_process_that_is_asked_again_gets_its_item(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    staged = StagedQueue(leases)
    register(db, queue, Clock(time.time()), duration=30.0, process=b"")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(StagedQueue(leases).lease, db, timeout=20) for _ in range(2)]
        wait_until(partial(has_requests, staged, db, 3))
        queue.enqueue(db, "a")
        wait_until(lambda: any(one.done() for one in waiting))
        queue.enqueue(db, "b")
        got = [one.result(20) for one in waiting]
    assert sorted((value(lease), lease.attempt) for lease in got if lease is not None) == [("a", 1), ("b", 1)]
    wait_until(lambda: own_left_behind(queue, db) == [])
    assert leases.check(db).ok


# --- a grant that is taken


def test_a_taken_item_stays_with_its_process(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, lease, _ = granted(db, queue, leases, clock, monkeypatch)
    if not members_of(db).own_id():
        wait_until(lambda: own_left_behind(queue, db) == [])  # a cluster is told in the background
    clock.now += TAKE_SECONDS + 0.001
    assert leases.reclaim(db).reclaimed == ()
    assert own_left_behind(queue, db) == []
    assert leases.stats(db).leased == 2
    staged.ack(db, lease)
    assert leases.check(db).ok


def test_the_end_of_a_taken_lease_counts(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(db, queue, leases, clock, monkeypatch)
    if not members_of(db).own_id():
        wait_until(lambda: own_left_behind(queue, db) == [])
    clock.now += 31
    _, lease = leases.lease(db), leases.lease(db)
    assert lease is not None
    assert (lease.value, lease.attempt) == ("granted", 2)


def test_without_members_a_slow_handler_costs_a_commit_in_the_background(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, lease, counting = granted(db, queue, leases, clock, monkeypatch)
    assert counting.commits <= 3
    wait_until(lambda: own_left_behind(queue, db) == [])
    wait_until(lambda: not UNMARKED)
    assert leases.stats(db).leased == 2
    staged.ack(db, lease)


def test_a_request_without_a_process_is_taken_by_a_commit_in_the_background(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fdbqueue.engine.embedded.store.members.Members.own_id", lambda _: b""
    )  # too many have the folder open
    granted(db, queue, leases, clock, monkeypatch)
    wait_until(lambda: own_left_behind(queue, db) == [])
    clock.now += TAKE_SECONDS + 0.001
    assert leases.reclaim(db).reclaimed == ()


def test_without_members_a_quick_handler_costs_no_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "CONFIRM_SECONDS", 0.5)
    staged, lease, counting = granted(db, queue, leases, clock, monkeypatch)
    before = counting.commits
    staged.ack(counting, lease)
    wait_until(lambda: not UNMARKED)
    assert counting.commits == before + 1
    assert own_left_behind(queue, db) == []


def test_without_members_a_lease_that_was_extended_was_taken(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent.RecentLeases, "confirm_soon", lambda *_: None)
    staged, lease, _ = granted(db, queue, leases, clock, monkeypatch)
    clock.now += 0.1
    lease = leases.extend(db, lease, duration=60)
    clock.now += TAKE_SECONDS
    assert leases.reclaim(db).reclaimed == ()
    staged.ack(db, lease)
    assert leases.check(db).ok


def test_without_members_a_process_that_dies_at_once_counts_no_attempt(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent.RecentLeases, "confirm_soon", lambda *_: None)
    _, lease, counting = granted(db, queue, leases, clock, monkeypatch)
    assert counting.commits == 2
    clock.now += TAKE_SECONDS + 0.001
    assert [(one.kind, one.attempt) for one in leases.reclaim(db).reclaimed] == [("grant", 0)]
    with pytest.raises(LeaseLost):
        leases.ack(db, lease)


def test_an_item_that_was_leased_before_is_taken_by_a_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent.RecentLeases, "confirm_soon", lambda *_: None)
    _, lease, counting = granted(db, queue, leases, clock, monkeypatch, again=True)
    assert (counting.commits, lease.attempt) == (3, 1)
    clock.now += TAKE_SECONDS + 0.001
    assert leases.reclaim(db).reclaimed == ()
    clock.now += 31
    assert {one.kind for one in leases.reclaim(db).reclaimed} == {"lease"}


def test_a_grant_that_is_nearly_over_is_taken_by_a_commit(
    db: Any, queue: Queue, leases: Leases, clock: Clock, memberless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.layers.staged.grants.TAKE_SECONDS", 1_000.0)
    _, _, counting = granted(db, queue, leases, clock, monkeypatch)
    assert own_left_behind(queue, db) == []
    assert counting.commits == 3


# --- processes that were killed


@pytest.fixture
def long_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for the end of a grant to a process that has died."""
    monkeypatch.setattr("fdbqueue.layers.staged.requests.GRANT_SECONDS", 3_000.0)
    monkeypatch.setattr("fdbqueue.layers.staged.requests.LONGEST_GRANT_SECONDS", 0.0)


def wait_for_ever(url: str, prefix: bytes, layer: str, up: Any) -> None:
    """Wait for an item, and do nothing with it."""
    db = fdbqueue.open(url)
    queue = Queue(Subspace(rawPrefix=prefix), codec="str")
    up.put(None)
    if layer == "sessions":
        Sessions(queue, max_attempts=3).lease(db, timeout=None, duration=30)
    elif layer == "consumer":
        Consumer(Sessions(queue, max_attempts=3), lambda item: None, concurrency=16).run(db)
    elif layer == "lease":
        StagedQueue(Leases(queue, max_attempts=3)).lease(db, timeout=None)
    elif layer == "dequeue":
        StagedQueue(Leases(queue, max_attempts=3)).dequeue(db, timeout=None)
    else:
        Subscriptions(Leases(queue, max_attempts=3)).subscribe(db, "all").lease(db, timeout=None)


def kill_waiting(processes: Processes, db: Any, url: str, waiting: Queue, space: Subspace, layer: str, n: int) -> None:
    """Let processes wait for items, and kill them."""
    up = processes.queue()
    victims = [processes.start(wait_for_ever, url, space.key(), layer, up) for _ in range(n)]
    for _ in victims:
        up.get(timeout=120)
    wait_until(lambda: len(left_behind(waiting, db)) >= n)
    time.sleep(0.2)  # they set their watches, most likely: what follows holds without them, too
    for victim in victims:
        kill_9(victim)


@pytest.mark.usefixtures("long_grants")
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize(("layer", "workers"), [("sessions", 3), ("consumer", 1)])
def test_killed_idle_workers_get_no_session(
    db: Any, url: str, space: Subspace, processes: Processes, layer: str, workers: int
) -> None:
    queue = Queue(space, codec="str")
    sessions = Sessions(queue, max_attempts=3)
    kill_waiting(processes, db, url, line_of(sessions), space, layer, workers)
    sessions.enqueue_many(db, ["deposit", "withdraw"], session="ann")
    sessions.enqueue(db, "deposit", session="bob")
    done: list[tuple[Any, str, int]] = []
    while len(done) < 3:
        lease = sessions.lease(db, timeout=250, duration=600)
        assert lease is not None
        done.append((lease.session, lease.value, lease.attempt))
        sessions.ack(db, lease)
    assert sorted(done) == [("ann", "deposit", 1), ("ann", "withdraw", 1), ("bob", "deposit", 1)]
    assert [value for session, value, _ in done if session == "ann"] == ["deposit", "withdraw"]
    assert sessions.stats(db).dead == 0


@pytest.mark.usefixtures("long_grants")
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("layer", ["lease", "dequeue"])
def test_killed_idle_workers_get_no_item(db: Any, url: str, space: Subspace, processes: Processes, layer: str) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue, max_attempts=1)
    kill_waiting(processes, db, url, queue, space, layer, 3)
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    done: list[tuple[str, int]] = []
    while len(done) < 4:
        lease = staged.lease(db, timeout=250, duration=600)
        assert lease is not None
        done.append((lease.value, lease.attempt))
        if len(done) == 1:
            queue.enqueue_many(db, ["c", "d"])
        staged.ack(db, lease)
    assert done == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert leases.check(db).ok


def lease_and_wait(url: str, prefix: bytes) -> None:
    """Hold an item, and wait for another one."""
    db = fdbqueue.open(url)
    staged = StagedQueue(Leases(Queue(Subspace(rawPrefix=prefix), codec="str")))
    assert staged.lease(db, duration=600) is not None
    staged.lease(db, duration=3, timeout=None)


@pytest.mark.engines("file", "cluster")
def test_the_item_of_a_killed_worker_that_waits_for_more_comes_in_time(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    queue = Queue(space, codec="str")
    later = 0.0
    staged = StagedQueue(Leases(queue, clock=lambda: time.time() + later))
    queue.enqueue(db, "a")
    victim = processes.start(lease_and_wait, url, space.key())
    wait_until(partial(has_requests, staged, db, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.lease, db, timeout=250, duration=600)
        wait_until(lambda: staged.contention_stats().looks >= 5)  # it has looked often, and waits longer each time
        kill_9(victim)
        later = 600.0
        lease = waiting.result()
    assert lease is not None
    assert (lease.value, lease.attempt) == ("a", 2)


def take_and_die(url: str, prefix: bytes, begun: Any, up: Any) -> None:
    """Die of an item, as soon as the process has it in hand."""
    db = fdbqueue.open(url)
    staged = StagedQueue(Leases(Queue(Subspace(rawPrefix=prefix), codec="str"), max_attempts=3))
    up.put(None)
    while True:
        lease = staged.lease(db, timeout=None, duration=600)
        if lease is not None:
            begun.put((lease.value, lease.attempt))
            if lease.value == "poison":
                begun.close()
                begun.join_thread()
                os.kill(os.getpid(), signal.SIGKILL)
            staged.ack(db, lease)


@pytest.mark.engines("file", "cluster")
def test_an_item_that_kills_its_process_at_once_becomes_a_dead_letter(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue, max_attempts=3)
    staged = StagedQueue(leases)
    begun = processes.queue()
    up = processes.queue()
    for _ in range(5):
        processes.start(take_and_die, url, space.key(), begun, up)
    for _ in range(5):
        up.get(timeout=120)
    wait_until(partial(has_requests, staged, db, 5))
    # The first in order takes "fine", and grants "poison" to the second one.
    queue.enqueue_many(db, ["fine", "poison"])
    an_hour_later = Leases(queue, max_attempts=3, clock=lambda: time.time() + 3_600)
    seen: list[tuple[str, int]] = []
    while ("fine", 1) not in seen or ("poison", 3) not in seen:
        seen.append(begun.get(timeout=600))
        if seen[-1][0] == "poison":
            wait_until(lambda: leases.stats(db).dequeued == 1)  # "fine" is done
            an_hour_later.reclaim(db)
    assert leases.stats(db).dead == 1
    attempts = sorted(attempt for item, attempt in seen if item == "poison")
    # Without marks a process that dies at once may not be known to have taken its first grant.
    assert attempts == [1, 2, 3] or (not members_of(db).own_id() and attempts == [1, 1, 2, 3])
