"""Leased items that come back: given back, snoozed or expired, after a delay or not, and at last as dead letters."""

from __future__ import annotations

import random
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.base.times import LONGEST_SECONDS
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Disposition, Leases, constant
from fdbqueue.layers.leases.timers import kinds_of_timers, timer_kinds
from fdbqueue.stored.shapes import Due
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase
from tests.helpers.leasing import fill, lease_of


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), clock=clock)


def test_a_snooze_does_not_count_the_attempt(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 2)
    lease = lease_of(leases, db)
    assert leases.snooze(db, lease, delay=3) is Disposition.delayed
    assert lease_of(leases, db).value == b"1"
    clock.now += 3
    again = lease_of(leases, db)
    assert (again.value, again.attempt) == (b"0", 1)
    assert leases.snooze_many(db, [again, again], delay=0) == [Disposition.available] * 2


def test_many_leases_are_given_back_in_one_transaction_each_with_its_own_disposition(
    db: Any, space: Subspace, clock: Clock
) -> None:
    leases = Leases(Queue(space), max_attempts=2, backoff=lambda attempt: 7, clock=clock)
    fill(leases, db, 4)
    assert leases.nack(db, lease_of(leases, db), delay=0) is Disposition.available
    mortal, *others = leases.lease_many(db)
    versions = FaultyDatabase(db, lambda: None)
    assert leases.nack_many(versions, [others[0], mortal, others[0]], error="jam") == [
        Disposition.delayed,
        Disposition.dead,
        Disposition.delayed,
    ]
    assert versions.commits == 1
    assert leases.nack_many(db, others[1:], delay=0) == [Disposition.available] * 2
    assert [kept.error for kept in leases.dead.browse(db)] == ["jam"]
    stats = leases.stats(db)
    assert (stats.available, stats.leased, stats.delayed, stats.dead) == (2, 0, 1, 1)
    assert leases.nack_many(db, []) == []
    assert leases.check(db).ok


def test_many_leases_are_given_back_only_if_none_is_lost(db: Any, leases: Leases) -> None:
    fill(leases, db, 3)
    first, lost, last = leases.lease_many(db)
    leases.ack(db, lost)
    with pytest.raises(LeaseLost) as error:
        leases.nack_many(db, [first, lost, last])
    assert error.value.lost == [lost.position]
    assert leases.stats(db).leased == 2
    leases.ack_many(db, [first, last])


def test_an_expired_lease_counts_an_attempt_and_says_why(db: Any, leases: Leases, clock: Clock) -> None:
    fill(leases, db, 1)
    lease_of(leases, db, duration=5, consumer="worker 1")
    clock.now += 4.9
    assert leases.lease(db) is None
    clock.now += 0.1
    again = lease_of(leases, db)
    assert (again.attempt, again.error) == (2, "The lease of worker 1 expired.")


def test_after_max_attempts_an_item_is_a_dead_letter(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), max_attempts=2, clock=clock)
    fill(leases, db, 2)
    assert leases.nack(db, lease_of(leases, db), error="first") is Disposition.available
    assert leases.nack(db, lease_of(leases, db), error="second", delay=9) is Disposition.dead
    lease_of(leases, db, duration=1)
    clock.now += 2
    lease_of(leases, db, duration=1)
    clock.now += 2
    [reclaimed] = leases.reclaim(db).reclaimed
    assert (reclaimed.fate, reclaimed.kind, reclaimed.attempt) == (Disposition.dead, "lease", 2)
    stats = leases.queue.stats(db)
    assert (stats.available, stats.leased, stats.dead) == (0, 0, 2)
    assert leases.queue.check(db).ok


def test_a_back_off_policy_delays_what_failed(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), backoff=constant(7), clock=clock)
    fill(leases, db, 2)
    assert leases.nack(db, lease_of(leases, db)) is Disposition.delayed
    lease_of(leases, db, duration=5)
    clock.now += 6.5
    assert leases.lease(db) is None
    clock.now += 0.5
    assert lease_of(leases, db).value == b"0"
    clock.now += 6.5
    assert lease_of(leases, db).value == b"1"


def test_a_back_off_begins_at_the_end_of_a_lease(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), backoff=constant(7), clock=clock)
    fill(leases, db, 1)
    lease_of(leases, db, duration=5)
    clock.now += 11.5  # nothing looks at the queue meanwhile
    assert leases.lease(db) is None
    clock.now += 0.5
    assert lease_of(leases, db, duration=5).attempt == 2
    clock.now += 12
    assert lease_of(leases, db).attempt == 3, "its wait is over, so it comes at the first look"


def refuse(attempt: int) -> float:
    raise LookupError(f"no policy for attempt {attempt}")


@pytest.mark.parametrize("policy", [refuse, lambda attempt: float("nan")])
def test_a_back_off_policy_that_raises_leaves_the_lease_as_it_was(
    db: Any, space: Subspace, clock: Clock, policy: Any
) -> None:
    leases = Leases(Queue(space), backoff=policy, clock=clock)
    fill(leases, db, 2)
    given_back, expired = leases.lease_many(db, duration=10)
    clock.now += 11
    give_back = partial(leases.nack, lease=given_back)
    give_both_back = partial(leases.nack_many, leases=[given_back, expired])
    for fails in (give_back, give_both_back):
        tr = db.create_transaction()
        with pytest.raises((LookupError, ValueError)):
            fails(tr)
        tr.commit().wait()
    assert leases.stats(db).leased == 2
    assert leases.check(db).problems == ()
    leases.ack_many(db, [given_back, expired])


@pytest.mark.parametrize("policy", [refuse, lambda attempt: float("nan")])
def test_an_expired_item_waits_as_by_default_if_its_back_off_policy_raises(
    db: Any, space: Subspace, clock: Clock, policy: Any
) -> None:
    leases = Leases(Queue(space), backoff=policy, clock=clock)
    fill(leases, db, 2)
    leases.lease_many(db, duration=10)
    clock.now += 10.5

    assert len(leases.reclaim(db).reclaimed) == 2
    assert leases.lease(db) is None, "another consumer's call gets no error of this policy"
    clock.now += 1
    assert len(leases.lease_many(db)) == 2
    assert leases.check(db).problems == ()


def test_a_back_off_policy_that_raises_for_one_of_many_leaves_all_with_their_holder(
    db: Any, space: Subspace, clock: Clock
) -> None:
    leases = Leases(Queue(space), backoff=lambda attempt: refuse(attempt) if attempt > 1 else 0.0, clock=clock)
    fill(leases, db, 2)
    leases.nack(db, leases.lease_many(db, limit=2)[1])
    again = lease_of(leases, db)
    fill(leases, db, 1)
    new = lease_of(leases, db)
    tr = db.create_transaction()
    with pytest.raises(LookupError):
        leases.nack_many(tr, [new, again])
    tr.commit().wait()
    leases.ack_many(db, [new, again])
    assert leases.check(db).ok


def test_a_back_off_policy_is_not_asked_about_the_last_attempt(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), max_attempts=1, backoff=refuse, clock=clock)
    fill(leases, db, 1)
    assert leases.nack(db, lease_of(leases, db)) is Disposition.dead


def test_a_back_off_without_end_is_a_very_long_one(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space), backoff=lambda attempt: 2.0**1023 if attempt == 1 else float("inf"), clock=clock)
    fill(leases, db, 1)
    assert leases.nack(db, lease_of(leases, db)) is Disposition.delayed
    [kept] = leases.browse(db, state="delayed")
    assert kept.visible_at == clock.now + LONGEST_SECONDS, "below the time of a held item, which has none to show"
    clock.now += 1e9
    assert leases.lease(db) is None
    assert leases.check(db).problems == ()


def test_each_kind_of_timer_has_one_entry_in_the_table() -> None:
    names = (
        Due.LEASE,
        Due.DELAY,
        Due.TTL,
        Due.RESULT,
        Due.GO,
        Due.DROP,
        Due.GRANT,
        Due.GROUP,
        Due.HOLD,
        Due.SWEEP,
    )
    assert sorted(kinds_of_timers()) == sorted(names)
    assert sum(map(len, timer_kinds.all().values())) == len(names)


def test_threads_get_each_item_once(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue_many(db, [b"%d" % n for n in range(300)])
    got: Counter[bytes] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        while taken := leases.lease_many(db, limit=random.randint(1, 9), duration=600):
            with lock:
                got.update(lease.value for lease in taken)
            leases.ack_many(db, taken)

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {b"%d" % n: 1 for n in range(300)}
    assert leases.stats(db).dequeued == 300
    assert leases.check(db).ok
