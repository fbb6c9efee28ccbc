"""The verbs of leases, on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Disposition, Lease, LeaseHandle, Leases
from fdbqueue.layers.leases.timers import FIRE_LIMIT
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.items import INLINE_BYTES
from tests.helpers.clock import Clock
from tests.helpers.leasing import fill, lease_of


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


def values(leases: Leases, db: Any) -> list[Any]:
    return [item.value for item in leases.queue.browse(db)]


def keys(db: Any, leases: Leases) -> list[tuple[Any, ...]]:
    """What is left under the queue, apart from counters, markers and the high-water mark."""
    space = leases.layout.space
    found = [space.unpack(row.key) for row in db.get_range_startswith(space.key())]
    return [key for key in found if key[0] is not True and key[0] not in ("count", "once")]


def test_a_leased_item_is_exclusive_until_it_is_acked(db: Any, leases: Leases) -> None:
    positions = fill(leases, db, 2)
    first, second = lease_of(leases, db), lease_of(leases, db)
    assert [first.position, second.position] == positions
    assert (first.value, first.attempt, first.error) == (b"0", 1, "")
    assert leases.lease(db) is None
    leases.ack(db, first)
    leases.ack(db, second)
    assert keys(db, leases) == []
    stats = leases.queue.stats(db)
    assert (stats.available, stats.leased, stats.enqueued, stats.dequeued) == (0, 0, 2, 2)


def test_an_item_changes_its_place_and_never_its_position(db: Any, leases: Leases, clock: Clock) -> None:
    position = leases.enqueue(db, b"x")
    where = (position.index, position.random)
    assert keys(db, leases) == [where]
    lease = lease_of(leases, db, duration=10)
    timer = ("timer", int((clock.now + 10) * 1e6), *where, "lease")
    assert sorted(keys(db, leases)) == [("lease", *where), timer]
    leases.nack(db, lease, delay=5)
    assert sorted(keys(db, leases)) == [("delay", *where), ("timer", int((clock.now + 5) * 1e6), *where, "delay")]
    clock.now += 5
    assert leases.reclaim(db).reclaimed[0].fate is Disposition.available
    assert keys(db, leases) == [where]


def test_an_item_given_back_is_first_again(db: Any, leases: Leases) -> None:
    fill(leases, db, 5)
    taken = leases.lease_many(db, limit=3)
    assert leases.nack(db, taken[1]) is Disposition.available
    assert values(leases, db) == [b"1", b"3", b"4"]
    again = lease_of(leases, db)
    assert (again.value, again.attempt, again.error) == (b"1", 2, "It was given back.")


def test_an_enqueue_while_all_items_are_leased_comes_after_them(db: Any, leases: Leases) -> None:
    fill(leases, db, 3)
    taken = leases.lease_many(db)
    leases.queue.enqueue(db, b"plain")
    leases.queue.enqueue_many(db, [b"bulk"])
    leases.enqueue(db, b"late")
    for lease in reversed(taken):
        leases.nack(db, lease)
    assert values(leases, db) == [b"0", b"1", b"2", b"plain", b"bulk", b"late"]


def test_an_enqueue_after_a_delayed_item_comes_after_it(db: Any, leases: Leases, clock: Clock) -> None:
    tr = db.create_transaction()
    leases.enqueue(tr, b"delayed", delay=10)
    leases.enqueue(tr, b"next")
    tr.commit().wait()
    leases.queue.enqueue(db, b"last")
    clock.now += 11
    assert [lease.value for lease in leases.lease_many(db)] == [b"delayed", b"next", b"last"]


def test_a_stale_token_can_do_nothing(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    stale = lease_of(leases, db, duration=10)
    clock.now += 11
    fresh = lease_of(leases, db, duration=10)
    assert (fresh.position, fresh.attempt) == (stale.position, 2)
    for attempt in (
        lambda: leases.ack(db, stale),
        lambda: leases.nack(db, stale),
        lambda: leases.snooze(db, stale, delay=1),
        lambda: leases.extend(db, stale),
    ):
        with pytest.raises(LeaseLost, match="another consumer took the item") as lost:
            attempt()
        assert lost.value.lost == [stale.position]
    leases.ack(db, fresh)
    with pytest.raises(LeaseLost):
        leases.ack(db, fresh)
    assert keys(db, leases) == []


def test_a_stale_token_is_lost_before_or_after_a_good_one_of_its_item(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    stale = lease_of(leases, db, duration=10)
    clock.now += 11
    fresh = lease_of(leases, db, duration=10)
    for both in ([stale, fresh], [fresh, stale]):
        with pytest.raises(LeaseLost, match="perhaps by a call that was cancelled") as lost:
            leases.ack_many(db, both)
        assert lost.value.lost == [stale.position]
    assert leases.queue.stats(db).leased == 1
    leases.ack_many(db, [fresh, fresh])
    assert leases.queue.stats(db).dequeued == 1


def test_an_overdue_lease_that_was_not_reclaimed_is_still_good(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    lease = lease_of(leases, db, duration=1)
    clock.now += 100
    leases.ack(db, lease)
    assert keys(db, leases) == []


def test_an_ack_composes_with_the_callers_own_writes(db: Any, leases: Leases, space: Subspace, clock: Clock) -> None:
    fill(leases, db, 1)
    done = space.pack(("done",))
    stale = lease_of(leases, db, duration=1)
    clock.now += 2
    lease = lease_of(leases, db)
    tr = db.create_transaction()
    tr[done] = b"by the stale one"
    with pytest.raises(LeaseLost):
        leases.ack(tr, stale)
    tr = db.create_transaction()
    tr[done] = b"by the fresh one"
    leases.ack(tr, lease)
    tr.commit().wait()
    assert db[done] == b"by the fresh one"


def test_ack_many_acks_all_or_none(db: Any, leases: Leases) -> None:
    fill(leases, db, 5)
    taken = leases.lease_many(db)
    leases.ack(db, taken[1])
    leases.ack(db, taken[3])
    with pytest.raises(LeaseLost) as lost:
        leases.ack_many(db, taken)
    assert lost.value.lost == [taken[1].position, taken[3].position]
    assert leases.queue.stats(db).leased == 3
    leases.ack_many(db, [taken[0], taken[2], taken[4], taken[4].handle])
    assert leases.queue.stats(db).leased == 0
    assert leases.queue.stats(db).dequeued == 5


def test_a_handle_that_was_written_down_acks(db: Any, leases: Leases) -> None:
    fill(leases, db, 1)
    text = str(lease_of(leases, db).handle)
    leases.ack(db, LeaseHandle.parse(text))
    assert keys(db, leases) == []


def test_an_extended_lease_ends_later_and_the_old_object_stays_good(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    lease = lease_of(leases, db, duration=10)
    clock.now += 8
    longer = leases.extend(db, lease, duration=10)
    assert longer.expires_at == pytest.approx(clock.now + 10)
    clock.now += 8
    assert leases.lease(db) is None
    leases.ack(db, lease)
    assert keys(db, leases) == []


def test_an_item_becomes_available_after_its_delay_or_at_its_time(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"at", at=clock.now + 20)
    leases.enqueue(db, b"delay", delay=10)
    leases.enqueue(db, b"past", at=clock.now - 1)
    assert leases.queue.stats(db).delayed == 2
    assert [lease.value for lease in leases.lease_many(db)] == [b"past"]
    clock.now += 10
    assert [lease.value for lease in leases.lease_many(db)] == [b"delay"]
    clock.now += 10
    assert [lease.value for lease in leases.lease_many(db)] == [b"at"]


def test_an_expired_item_is_removed_at_any_place_in_the_queue(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"available", ttl=10)
    leases.enqueue(db, b"delayed", ttl=10, delay=5)
    leases.enqueue(db, b"both at once", ttl=10, delay=10)
    leases.enqueue(db, b"stays")
    clock.now += 10
    assert [lease.value for lease in leases.lease_many(db)] == [b"stays"]
    stats = leases.queue.stats(db)
    assert (stats.expired, stats.leased, stats.available, stats.delayed) == (3, 1, 0, 0)
    assert leases.queue.check(db).ok
    assert {key[0] for key in keys(db, leases)} == {"lease", "timer"}


def test_a_leased_item_outlives_its_time_until_it_is_given_back(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"x", ttl=10)
    leases.enqueue(db, b"y", ttl=10)
    x, y = leases.lease_many(db, duration=100)
    clock.now += 50
    assert leases.reclaim(db).reclaimed == ()
    leases.ack(db, x)
    assert leases.nack(db, y) is Disposition.expired
    assert keys(db, leases) == []
    assert leases.queue.stats(db).expired == 1


def test_an_item_given_back_in_time_is_still_removed_at_its_time(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"x", ttl=10)
    leases.nack(db, lease_of(leases, db))
    clock.now += 10
    assert leases.lease(db) is None
    assert keys(db, leases) == []


def test_a_plain_dequeue_takes_returned_items_and_leaves_no_timer(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"x", ttl=1e10, headers={"n": 1})  # a plain dequeue has the wall clock
    leases.nack(db, lease_of(leases, db))
    item = leases.queue.dequeue(db)
    assert item is not None
    assert (item.value, dict(item.headers)) == (b"x", {"n": 1})
    assert keys(db, leases) == []


def test_a_large_item_keeps_its_chunks_where_they_are_until_it_is_acked(db: Any, leases: Leases) -> None:
    payload = bytes(range(256)) * (INLINE_BYTES // 200)
    leases.enqueue(db, payload, headers={"n": 1})
    lease = lease_of(leases, db)
    assert (lease.value, dict(lease.headers)) == (payload, {"n": 1})
    assert leases.queue.check(db).ok
    leases.nack(db, lease)
    lease = lease_of(leases, db)
    assert lease.value == payload
    leases.ack(db, lease)
    assert keys(db, leases) == []


def test_verbs_of_one_transaction_see_each_other(db: Any, leases: Leases, clock: Clock) -> None:
    tr = db.create_transaction()
    leases.enqueue(tr, b"1")
    leases.queue.enqueue(tr, b"2")
    leases.enqueue(tr, b"3", delay=5)
    first, second = lease_of(leases, tr), lease_of(leases, tr)
    assert (first.value, second.value, leases.lease(tr)) == (b"1", b"2", None)
    leases.ack(tr, first)
    leases.nack(tr, second)
    again = lease_of(leases, tr)
    assert (again.value, again.attempt) == (b"2", 2)
    assert leases.snooze(tr, again, delay=0) is Disposition.available
    tr.commit().wait()
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.delayed, stats.dequeued) == (1, 0, 1, 1)
    assert leases.check(db).ok


def test_an_uncommitted_call_has_no_effect(db: Any, leases: Leases) -> None:
    fill(leases, db, 1)
    tr = db.create_transaction()
    lease_of(leases, tr)
    del tr
    assert lease_of(leases, db).attempt == 1


def test_large_items_are_leased_a_few_at_a_time(db: Any, leases: Leases) -> None:
    leases.queue.enqueue_many(db, [bytes(80_000)] * 60)
    leases.queue.enqueue_many(db, [bytes(3_000_000)] * 2)
    sizes = []
    while taken := leases.lease_many(db):
        sizes.append(len(taken))
    assert sizes == [24, 24, 12, 1, 1]
    assert leases.check(db).ok


def test_more_due_timers_than_one_transaction_settles_do_not_change_the_order(
    db: Any, leases: Leases, clock: Clock
) -> None:
    fill(leases, db, 200)
    taken = leases.lease_many(db, limit=150, duration=100)
    leases.extend_many(db, taken[:100], duration=200)
    clock.now += 300
    assert [lease.value for lease in leases.lease_many(db, limit=200)] == [b"%d" % n for n in range(200)]


def test_an_empty_lease_writes_nothing(db: Any, leases: Leases, space: Subspace) -> None:
    assert leases.lease(db) is None
    assert leases.reclaim(db).reclaimed == ()
    assert db.get_range_startswith(space.key()) == []


def test_verbs_can_be_awaited(db: Any, leases: Leases) -> None:
    async def main() -> Lease | None:
        await asyncio.gather(*(leases.enqueue.aio(db, b"x") for _ in range(5)))
        taken = await leases.lease_many.aio(db, limit=4)
        await leases.ack_many.aio(db, taken)
        return await leases.lease.aio(db)

    assert asyncio.run(main()) is not None
    assert leases.queue.stats(db).dequeued == 4


def test_a_callers_transaction_finds_the_item_behind_many_expired_ones(
    db: Any, leases: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = 50  # the real limit takes a busy machine nearly the five seconds of a transaction
    monkeypatch.setattr(Takes, "EXPIRED_LIMIT", few)
    leases.enqueue_many(db, [b"over"] * (2 * few + FIRE_LIMIT), ttl=1)
    leases.enqueue(db, b"alive")
    clock.now += 2
    tr = db.create_transaction()
    lease = leases.lease(tr)
    assert lease is not None
    assert lease.value == b"alive"
    tr.commit().wait()
    assert leases.stats(db).expired == 2 * few + FIRE_LIMIT
    assert leases.check(db).problems == ()


def test_leases_print_their_subspace_as_a_tuple() -> None:
    assert repr(Leases(Queue(("a", 1)), max_attempts=3)) == "Leases(('a', 1), max_attempts=3)"
