"""Claims, laid out by hand: each request takes what falls to it, whatever happens right before it commits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from fdbqueue import CodecError, Position, Queue
from fdbqueue.engine.optional import members_of
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import LeaseHandle, Leases
from fdbqueue.layers.leases.taking import Allotment
from fdbqueue.layers.leases.transitions import Transitions
from fdbqueue.layers.priority import WeightedHead
from fdbqueue.layers.staged import RelaxedQueue, StagedQueue
from fdbqueue.layers.staged.delivery import HeadDelivery
from fdbqueue.layers.staged.recent import PAUSE_CALLS, OwnVersion
from fdbqueue.layers.staged.requests import REQUEST_SECONDS, Request, Requests, read_grant
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.stored.counters import count
from fdbqueue.stored.items import NO_NOTES
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase, FaultyTransaction
from tests.helpers.reading import Reading
from tests.helpers.staging import acting_at, coordinating, left_behind, register, state_of, value, wait_until

CLAIM = 1
"""The number of the commit with which one who registers at once takes its items."""


@pytest.fixture(autouse=True)
def _registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everybody register at once, and nobody be thought to be stuck."""
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
    coordinating(monkeypatch, TAKEOVER_SECONDS=1_000.0)


def values(queue: Queue, db: Any) -> list[Any]:
    return [item.value for item in queue.browse(db)]


def first_request(queue: Queue, db: Any) -> Request:
    return run(Requests(queue.layout).first(db.create_transaction(), limit=1))[0]


def test_two_claims_take_their_assigned_items_without_conflict(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    first, second = StagedQueue(leases), StagedQueue(leases)
    got: list[Any] = []
    behind = FaultyDatabase(db, lambda: None)
    in_front = acting_at(db, CLAIM, lambda: got.append(second.dequeue(behind)))
    assert value(first.dequeue(in_front)) == "a"
    assert value(got[0]) == "b"
    assert (in_front.commits, behind.commits) == (2, 2)
    assert first.contention_stats().conflicts == second.contention_stats().conflicts == 0
    assert values(queue, db) == ["c"]
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_two_claims_of_leases_do_not_conflict_and_ack_without_a_read(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    first, second = StagedQueue(leases), StagedQueue(leases)
    got: list[Any] = []
    in_front = acting_at(db, CLAIM, lambda: got.extend(second.lease_many(db, limit=2)))
    mine = first.lease_many(in_front, limit=2)
    assert [lease.value for lease in mine + got] == ["a", "b", "c", "d"]
    assert first.contention_stats().conflicts == second.contention_stats().conflicts == 0
    reading = Reading(db)
    second.ack(reading, got[1])
    assert reading.reads == 0
    for lease in [*mine, got[0]]:
        leases.ack(db, lease)
    assert leases.check(db).ok


def dequeue(db: Any, queue: Queue, leases: Leases) -> None:
    queue.dequeue(db)


def lease(db: Any, queue: Queue, leases: Leases) -> None:
    leases.lease(db)


def pick(db: Any, queue: Queue, leases: Leases) -> None:
    RelaxedQueue(queue, window=1).dequeue(db)


def take_many(db: Any, queue: Queue, leases: Leases) -> None:
    assert len(queue.dequeue_many(db, limit=1)) == 1


def take_a_levels(db: Any, queue: Queue, leases: Leases) -> None:
    head = WeightedHead(queue.layout, [1])
    tr = db.create_transaction()
    head.take(tr, run(head.first(tr, limit=1)))
    count(tr, queue.layout, dequeued=1)
    tr.commit().wait()


def expire(db: Any, queue: Queue, leases: Leases) -> None:
    [first] = queue.browse(db, limit=1)
    tr = db.create_transaction()
    moves = Transitions(tr, queue.layout)
    moves.leave_available(pack(first.position), NO_NOTES)
    moves.vanish(pack(first.position), b"", "expired")
    moves.finish()
    tr.commit().wait()


def subscribed(db: Any, queue: Queue, leases: Leases) -> None:
    subscription = Subscriptions(leases).subscribe(db, "all")
    assert value(subscription.lease(db)) == "a"


def renew_for_two(db: Any, queue: Queue, leases: Leases) -> None:
    request = first_request(queue, db)
    tr = db.create_transaction()
    Requests(queue.layout).put(tr, request.key, replace(request.wish, wanted=2))
    tr.commit().wait()


def withdraw(db: Any, queue: Queue, leases: Leases) -> None:
    tr = db.create_transaction()
    Requests(queue.layout).remove(tr, first_request(queue, db).key)
    tr.commit().wait()


def take_and_give_back(db: Any, queue: Queue, leases: Leases) -> None:
    taken = leases.lease(db)
    assert taken is not None
    leases.nack(db, taken)


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (dequeue, "c"),  # the request in front has b now
        (lease, "c"),
        (pick, "c"),
        (take_many, "c"),
        (take_a_levels, "c"),
        (expire, "c"),
        (subscribed, "c"),
        (renew_for_two, "c"),
        (withdraw, "a"),
        (take_and_give_back, "b"),
    ],
)
@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_a_claim_notices_a_change_ahead_right_before_its_commit(
    db: Any,
    queue: Queue,
    leases: Leases,
    clock: Clock,
    happens: Callable[[Any, Queue, Leases], None],
    expected: str,
    verb: str,
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    staged = StagedQueue(leases)
    acting = acting_at(db, CLAIM, lambda: happens(db, queue, leases))
    assert value(getattr(staged, verb)(acting)) == expected
    assert staged.contention_stats().conflicts == 1
    assert leases.check(db).ok


@pytest.mark.parametrize("at", [0, 1])
def test_an_item_inserted_ahead_of_a_claim_is_counted(
    db: Any, queue: Queue, leases: Leases, clock: Clock, at: int
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    places = [item.position for item in queue.browse(db)]

    def slip_in() -> None:
        # A slow producer's: in front of all, or right behind the first.
        index, random = (places[0].index, b"\x00") if at == 0 else (places[0].index, b"\xff" * 8)
        db[queue.layout.item_key(Position(index, random))] = db[queue.layout.item_key(places[0])]

    staged = StagedQueue(leases)
    assert value(staged.dequeue(acting_at(db, CLAIM, slip_in))) == "b"
    assert staged.contention_stats().conflicts == 1


def serve_first(db: Any, queue: Queue, leases: Leases, *, wanted: int = 1, in_turn: bool = True) -> LeaseHandle:
    """Lease items to the first request, as a claim does; return the first one."""
    request, server = first_request(queue, db), HeadDelivery(leases)
    tr = db.create_transaction()
    duty_cycle = Allotment(wanted, 60_000_000, "somebody")
    assert run(server.take_own(tr, server.look(tr, limit=wanted), [duty_cycle], offset=0))
    given, now_us = len(duty_cycle.handles), leases.now_us()
    Requests(queue.layout).fulfill(tr, request, duty_cycle.handles, now_us=now_us, given=given, in_turn=in_turn)
    tr.commit().wait()
    return duty_cycle.handles[0]


def test_serving_an_earlier_request_in_order_does_not_conflict(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    assert value(staged.dequeue(acting_at(db, CLAIM, lambda: serve_first(db, queue, leases)))) == "b"
    assert staged.contention_stats().conflicts == 0
    assert leases.check(db).ok


def test_an_item_taken_in_order_and_given_back_is_noticed(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    acting = acting_at(db, CLAIM, lambda: leases.nack(db, serve_first(db, queue, leases)))
    assert value(staged.dequeue(acting)) == "a"
    assert staged.contention_stats().conflicts == 1


def test_a_request_served_with_less_than_it_wanted_makes_later_claims_retry(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    staged = StagedQueue(leases)
    acting = acting_at(db, CLAIM, lambda: serve_first(db, queue, leases, wanted=1, in_turn=False))
    assert value(staged.dequeue(acting)) == "b"
    assert staged.contention_stats().conflicts == 1


def test_a_claim_that_finds_too_few_items_takes_those_and_ignores_arrivals(
    db: Any, queue: Queue, leases: Leases
) -> None:
    queue.enqueue_many(db, ["a"])
    staged = StagedQueue(leases)
    acting = acting_at(db, CLAIM, lambda: queue.enqueue_many(db, ["b", "c"]))
    assert [item.value for item in staged.dequeue_many(acting, limit=2)] == ["a"]
    assert staged.contention_stats().conflicts == 0
    assert values(queue, db) == ["b", "c"]


def test_a_claim_that_finds_too_few_items_retries_when_overtaken(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a"])
    first, second = StagedQueue(leases), StagedQueue(leases)
    passing: list[Any] = []

    def pass_by() -> None:
        queue.enqueue_many(db, ["b", "c"])
        passing.append(second.dequeue(db))

    assert [item.value for item in first.dequeue_many(acting_at(db, CLAIM, pass_by), limit=2)] == ["a", "b"]
    assert value(passing[0]) == "c"
    assert first.contention_stats().conflicts == 1


def test_an_arrival_behind_a_claim_does_not_conflict(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    acting = acting_at(db, CLAIM, lambda: queue.enqueue_many(db, ["c", "d"]))
    assert [item.value for item in staged.dequeue_many(acting, limit=2)] == ["a", "b"]
    assert staged.contention_stats().conflicts == 0


def test_a_request_in_front_that_has_expired_is_removed_and_what_fell_to_it_falls_to_the_next(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    clock.now += REQUEST_SECONDS + 1
    assert value(StagedQueue(leases).dequeue(db)) == "a"
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


@pytest.mark.engines("memory", "file")
def test_a_request_in_front_of_a_process_that_has_ended_is_removed_at_once(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    place = members_of(db).own_id()[:2]  # of this process among the members: whoever had it before has ended
    register(db, queue, clock, process=place + b"an older")
    queue.enqueue_many(db, ["a", "b"])
    assert value(StagedQueue(leases).dequeue(db)) == "a"
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


def test_a_request_in_front_that_is_stuck_is_given_what_falls_to_it_and_no_more(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c", "d", "e"])
    staged, other = StagedQueue(leases), StagedQueue(leases)
    assert value(staged.dequeue(db)) == "c"
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.0)
    assert value(other.dequeue(db)) == "d"  # it sees that one for the first time
    assert leases.stats(db).leased == 0
    assert value(staged.dequeue(db)) == "e"
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["a", "b"]
    [grant] = left_behind(queue, db)
    assert len(read_grant(queue.layout, grant, bytes(db[grant])).leases) == 2
    assert leases.check(db).ok


def test_all_in_front_that_are_stuck_are_served_together(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in (2, 1, 3):
        register(db, queue, clock, wanted=wanted)
    queue.enqueue_many(db, list("aabcccdefg"))
    staged, counting = StagedQueue(leases), FaultyDatabase(db, lambda: None)
    assert value(staged.dequeue(counting)) == "d"
    register(db, queue, clock)  # which has not stood there for long
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.0)
    assert value(staged.dequeue(counting)) == "f"
    assert counting.commits == 2 + 3
    assert [kept.value for kept in leases.browse(db, state="leased")] == list("aabccc")
    assert leases.stats(db).leased == 6
    assert leases.check(db).ok


def test_an_expired_item_in_front_is_assigned_to_no_request(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinating(monkeypatch, TAKEOVER_SECONDS=0.01)
    register(db, queue, clock)
    leases.enqueue(db, "short", ttl=1)
    queue.enqueue_many(db, ["a", "b"])
    clock.now += 2
    assert value(StagedQueue(leases).dequeue(db, timeout=20)) == "b"
    assert leases.stats(db).expired == 1
    assert leases.check(db).ok


def test_an_item_that_has_fallen_due_in_front_comes_first(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, "a", delay=1)
    queue.enqueue(db, "b")
    clock.now += 2
    staged = StagedQueue(leases)
    assert [value(staged.dequeue(db)) for _ in range(2)] == ["a", "b"]


def test_a_request_far_from_the_head_waits_for_its_items(
    db: Any, queue: Queue, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(db, queue, clock, wanted=2)
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    with monkeypatch.context() as patch:
        coordinating(patch, REACH_ITEMS=2)
        assert staged.dequeue(db, timeout=0.01) is None
    assert value(staged.dequeue(db)) == "c"


def test_a_claim_that_is_too_slow_to_read_waits_for_a_grant(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    register(db, queue, clock)
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    too_slow = FaultyDatabase.failing_at(db, set(range(CLAIM, CLAIM + 3)), ("before", 1007))
    assert staged.dequeue(too_slow, timeout=0.5) is None
    assert too_slow.faults == 3
    assert value(staged.dequeue(db)) == "b"


def test_a_call_after_the_registration_joins_the_next_request(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b", "c"])
    staged = StagedQueue(leases)
    late: list[Future[Any]] = []

    def come() -> None:
        late.append(pool.submit(staged.dequeue, acting))
        line = state_of(staged).coordinator(acting, 0).calls
        wait_until(lambda: len(line.waiting()) == 2)

    with ThreadPoolExecutor(1) as pool:
        acting = acting_at(db, CLAIM - 1, come)
        assert value(staged.dequeue(acting)) == "a"
        assert value(late[0].result(20)) == "b"
    assert acting.commits == 4


def test_a_claim_raises_an_unreadable_item_when_it_is_first(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    Queue(queue.layout.space).enqueue_many(db, [b"\xff", b"b"])
    staged = StagedQueue(leases)
    with pytest.raises(CodecError):
        staged.dequeue(db)
    assert queue.stats(db).available == 2
    assert left_behind(queue, db) == []


def test_with_large_items_the_first_process_serves_later_requests(
    db: Any, queue: Queue, leases: Leases, clock: Clock
) -> None:
    size = 5_000
    queue.enqueue_many(db, [name * size for name in "abcde"])
    staged = StagedQueue(leases)
    assert value(staged.dequeue(db)) == "a" * size  # and now it knows how large they are

    def another_registers() -> None:
        register(db, queue, clock)
        queue.dequeue(db)  # so that it looks again

    assert value(staged.dequeue(acting_at(db, CLAIM, another_registers))) == "c" * size
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["d" * size]
    assert leases.check(db).ok


def test_items_in_chunks_are_taken_one_after_the_other(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, [name * 200_000 for name in "abc"])
    staged = StagedQueue(leases)
    assert [value(staged.dequeue(db)) for _ in range(3)] == [name * 200_000 for name in "abc"]
    assert leases.check(db).ok


def test_a_claim_reads_at_the_version_of_its_registration(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    staged = StagedQueue(leases)
    versions: list[int] = []

    class Transaction(FaultyTransaction):
        def set_read_version(self, version: int) -> None:
            versions.append(version)
            self._tr.set_read_version(version)

    class Watching(FaultyDatabase):
        def create_transaction(self) -> FaultyTransaction:
            return Transaction(self._db.create_transaction(), self)

    assert value(staged.dequeue(Watching(db, lambda: None))) == "a"
    assert len(versions) == 1


def test_a_claim_reads_once_in_a_queue_without_timers(db: Any, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(db, ["a", "b"])
    db[queue.layout.returned.pack(("somebody",))] = bytes(8)  # between requests and timers
    staged, reading = StagedQueue(leases), Reading(db)
    assert value(staged.dequeue(reading)) == "a"  # whoever comes first also looks for old marks and grants
    before = reading.reads
    assert value(staged.dequeue(reading)) == "b"
    assert reading.reads - before == 1


def test_a_version_that_is_too_old_is_not_used_again_for_a_while() -> None:
    own = OwnVersion()
    assert own.of(7) == 7
    assert own.of(-1) == 0
    own.was_refused()
    assert [own.of(8) for _ in range(PAUSE_CALLS)] == [0] * PAUSE_CALLS
    assert own.of(9) == 9
