"""Dead letters, and looks at items in every state."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import BulkInterrupted, CodecError, Position, Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Disposition, Leases
from fdbqueue.layers.leases.browsing import BATCH_ITEMS
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.stored.items import INLINE_BYTES
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.faults import FaultyDatabase, When


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases:
    return Leases(Queue(space), max_attempts=1, clock=clock)


def kill(leases: Leases, db: Any, amount: int = 1, value: bytes | None = None) -> list[Position]:
    """Enqueue some and let them fail."""
    for n in range(amount):
        leases.enqueue(db, value or b"%d" % n)
    dead = leases.lease_many(db, limit=amount)
    for lease in dead:
        leases.nack(db, lease, error=f"no {lease.value[:4].decode()}")
    return [lease.position for lease in dead]


def values(leases: Leases, db: Any) -> list[Any]:
    return [item.value for item in leases.queue.browse(db)]


def test_a_dead_letter_keeps_its_last_error_and_when_it_died(db: Any, leases: Leases, clock: Clock) -> None:
    [position] = kill(leases, db)
    [letter] = leases.dead.browse(db)
    assert (letter.position, letter.value, letter.error, letter.attempt) == (position, b"0", "no 0", 1)
    assert (letter.died_at, letter.enqueued_at, letter.expires_at) == (clock.now, clock.now, None)
    assert leases.lease(db) is None


def test_a_redriven_item_returns_to_its_place_with_no_attempts(db: Any, leases: Leases) -> None:
    first, second = kill(leases, db, 2)
    leases.queue.enqueue(db, b"later")
    assert leases.dead.redrive(db, second) == 1
    assert leases.dead.redrive(db, second) == 0
    assert leases.dead.redrive(db) == 1
    assert values(leases, db) == [b"0", b"1", b"later"]
    lease = leases.lease(db)
    assert lease is not None
    assert (lease.position, lease.attempt, lease.error) == (first, 1, "no 0")
    assert leases.check(db).ok


def test_an_item_redriven_to_the_tail_gets_a_new_position_and_brings_its_chunks(db: Any, leases: Leases) -> None:
    large = b"large" + bytes(range(256)) * (INLINE_BYTES // 200)
    kill(leases, db, value=large)
    leases.queue.enqueue(db, b"later")
    assert leases.dead.redrive(db, to="tail") == 1
    assert values(leases, db) == [b"later", large]
    assert leases.check(db).ok


def test_a_redriven_item_has_no_time_to_live_any_more(db: Any, leases: Leases, clock: Clock) -> None:
    leases.enqueue(db, b"x", ttl=10)
    lease = leases.lease(db, duration=100)
    assert lease is not None
    leases.nack(db, lease)
    clock.now += 50
    assert leases.dead.redrive(db) == 1
    assert values(leases, db) == [b"x"]
    assert leases.check(db).ok


@pytest.mark.parametrize("how", ["nack", "expiry", "reclaim", "subscription"])
def test_an_item_that_expires_at_its_last_attempt_is_removed_and_no_dead_letter(
    db: Any, leases: Leases, clock: Clock, how: str
) -> None:
    large = b"large" + bytes(range(256)) * (INLINE_BYTES // 200)
    leases.enqueue_many(db, [b"x", large], ttl=10)
    leases.enqueue(db, b"immortal")
    taken = leases.lease_many(db, duration=50)
    clock.now += 50
    if how == "nack":
        assert leases.nack_many(db, taken) == [Disposition.expired, Disposition.expired, Disposition.dead]
    elif how == "expiry":
        assert leases.lease(db) is None
    elif how == "reclaim":
        assert [one.fate for one in leases.reclaim(db).reclaimed] == [
            Disposition.expired,
            Disposition.expired,
            Disposition.dead,
        ]
    else:
        red = Subscriptions(leases).subscribe(db, "red")
        red.grant(db, items=1)
        assert red.lease(db) is None
    stats = leases.stats(db)
    assert (stats.expired, stats.dead, stats.leased, stats.available, stats.overdue) == (2, 1, 0, 0, 0)
    assert [letter.value for letter in leases.dead.browse(db)] == [b"immortal"]
    assert leases.check(db).ok
    assert leases.dead.redrive(db) == 1
    assert values(leases, db) == [b"immortal"]


def test_more_dead_letters_than_one_transaction_takes_are_redriven_and_purged_too(db: Any, leases: Leases) -> None:
    amount = BATCH_ITEMS * 2 + 7
    kill(leases, db, amount)
    assert leases.dead.redrive(db, limit=BATCH_ITEMS + 3) == BATCH_ITEMS + 3
    assert leases.dead.purge(db) == BATCH_ITEMS + 4
    stats = leases.stats(db)
    assert (stats.available, stats.dead, stats.purged) == (BATCH_ITEMS + 3, 0, BATCH_ITEMS + 4)
    assert leases.check(db).ok


def test_large_dead_letters_are_redriven_in_transactions_that_are_not_too_large(db: Any, leases: Leases) -> None:
    for _ in range(4):
        kill(leases, db, value=b"large" + bytes(3_000_000))
    assert leases.dead.redrive(db, to="tail") == 4
    assert leases.stats(db).available == 4
    assert leases.check(db).ok


def test_named_dead_letters_are_redriven_together_in_their_order(db: Any, leases: Leases) -> None:
    a, b, c, d = kill(leases, db, 4)
    counted = FaultyDatabase(db, lambda: None)
    assert leases.dead.redrive(counted, [c, a, c, Position(7, b"nobody")], to="tail") == 2
    assert counted.commits == 1
    assert values(leases, db) == [b"2", b"0"]
    assert leases.dead.redrive(db, iter([d, b]), limit=1) == 1
    assert values(leases, db) == [b"3", b"2", b"0"]
    assert leases.dead.redrive(db, []) == 0
    assert leases.dead.purge(db, [a, b]) == 1
    assert leases.check(db).ok


def test_more_that_are_named_than_one_transaction_takes_are_redriven_too(db: Any, leases: Leases) -> None:
    positions = kill(leases, db, BATCH_ITEMS * 2 + 7)
    counted = FaultyDatabase(db, lambda: None)
    assert leases.dead.redrive(counted, reversed(positions)) == len(positions)
    assert counted.commits == 3
    assert leases.stats(db).available == len(positions)


def test_large_dead_letters_that_are_named_are_redriven_in_transactions_that_are_not_too_large(
    db: Any, leases: Leases
) -> None:
    positions = [kill(leases, db, value=b"large" + bytes(3_000_000))[0] for _ in range(4)]
    assert leases.dead.redrive(db, positions, to="tail") == 4
    assert leases.stats(db).available == 4
    assert leases.check(db).ok


def test_of_two_redrives_by_name_of_the_same_dead_letter_one_conflicts(db: Any, leases: Leases) -> None:
    positions = kill(leases, db, 3)
    first, second = db.create_transaction(), db.create_transaction()
    assert leases.dead.redrive(first, positions[:2]) == leases.dead.purge(second, positions[1:]) == 2
    first.commit().wait()
    with pytest.raises(FDBError, match="1020"):
        second.commit().wait()


@pytest.mark.parametrize("verb", ["redrive", "purge"])
@pytest.mark.parametrize("named", [False, True])
def test_a_dead_letter_that_can_not_be_read_holds_up_no_other_and_is_purged(
    db: Any, leases: Leases, verb: str, named: bool
) -> None:
    positions = kill(leases, db, 3)
    db[leases.layout.dead.key(pack(positions[1]))] = b"\x20newer"
    assert leases.dead.purge(db, older_than=1) == 0  # nothing says when it died
    there = 3 if verb == "purge" else 2
    assert getattr(leases.dead, verb)(db, *([positions] if named else [])) == there
    assert leases.stats(db).dead == 3 - there
    assert [problem for problem in leases.check(db).problems if "newer version" not in problem] == []


def test_only_dead_letters_that_are_old_enough_are_purged(db: Any, leases: Leases, clock: Clock) -> None:
    kill(leases, db, 2)
    clock.now += 100
    kill(leases, db, 1)
    assert leases.dead.purge(db, older_than=50) == 2
    assert len(list(leases.dead.browse(db))) == 1


def test_of_two_redrives_of_the_same_dead_letter_one_conflicts(db: Any, leases: Leases) -> None:
    kill(leases, db)
    first, second = db.create_transaction(), db.create_transaction()
    assert leases.dead.redrive(first) == leases.dead.purge(second) == 1
    first.commit().wait()
    with pytest.raises(FDBError, match="1020"):
        second.commit().wait()


def test_a_redrive_does_not_conflict_with_a_new_dead_letter(db: Any, leases: Leases) -> None:
    kill(leases, db)
    tr = db.create_transaction()
    assert leases.dead.redrive(tr) == 1
    kill(leases, db)
    tr.commit().wait()


def test_every_state_can_be_browsed(db: Any, leases: Leases, clock: Clock) -> None:
    kill(leases, db)
    leases.enqueue(db, b"leased", headers={"n": 1})
    leases.lease(db, duration=9, consumer="me")
    leases.enqueue(db, b"delayed", delay=5, ttl=50)
    leases.enqueue(db, b"available")
    large = b"large" + bytes(INLINE_BYTES)
    leases.enqueue(db, large)
    [leased] = leases.browse(db, state="leased")
    assert (leased.value, leased.consumer, leased.expires_at) == (b"leased", "me", clock.now + 9)
    assert dict(leased.headers) == {"n": 1}
    [delayed] = leases.browse(db, state="delayed")
    assert (delayed.value, delayed.visible_at, delayed.ttl_at) == (b"delayed", clock.now + 5, clock.now + 50)
    assert [kept.value for kept in leases.browse(db, state="available")] == [b"available", large]
    tr = db.create_transaction()
    assert [kept.value for kept in leases.browse(tr, state="available", limit=1)] == [b"available"]
    assert [kept.value for kept in leases.browse(db, state="dead")] == [b"0"]


def test_browsing_starts_after_a_position_and_skips_removed_large_items(db: Any, leases: Leases) -> None:
    large = bytes(INLINE_BYTES + 1)
    leases.enqueue_many(db, [b"0", b"1", large, large, b"4"], ttl=1e10)  # a plain dequeue has the wall clock
    [first] = leases.browse(db, state="available", limit=1)
    found = leases.browse(db, state="available", after=first.position)
    assert next(found).value == b"1"
    assert len(leases.queue.dequeue_many(db, limit=3)) == 3
    assert [kept.value for kept in found] == [large, b"4"]


def test_stats_say_how_old_the_first_item_is_and_what_is_overdue(db: Any, leases: Leases, clock: Clock) -> None:
    assert leases.stats(db).oldest_age_s is None
    leases.enqueue(db, b"old")
    clock.now += 7
    leases.enqueue(db, b"young")
    leases.enqueue(db, b"delayed", delay=1)
    clock.now += 3
    stats = leases.stats(db)
    assert (stats.oldest_age_s, stats.overdue, stats.delayed) == (10.0, 1, 1)
    leases.queue.clear(db)
    leases.queue.enqueue(db, b"of which nobody knows when it came")
    assert leases.stats(db).oldest_age_s is None


def test_stats_count_on_when_the_first_item_can_not_be_read(db: Any, leases: Leases) -> None:
    position = leases.enqueue(db, b"x")
    db[leases.layout.item_key(position)] = b"\x20newer"
    stats = leases.stats(db)
    assert (stats.available, stats.oldest_age_s) == (1, None)


def test_check_finds_timers_without_items_and_items_without_timers(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"leased")
    leases.lease(db)
    leases.enqueue(db, b"with a life", ttl=10)
    assert leases.check(db).ok
    span = leases.layout.timers.range()
    timers = [row.key for row in db.get_range(span.start, span.stop)]
    assert len(timers) == 2
    del db[timers[0]]
    db[leases.layout.timer_key(1, b"\x15\x01\x01r\x00", "delay")] = b""
    problems = " ".join(leases.check(db).problems)
    assert "of the ttl of" in problems
    assert "is missing" in problems
    assert "of the delay of 1:72 at 0.000001 belongs to no item" in problems


def test_a_timer_without_an_item_is_removed_by_the_next_take(db: Any, leases: Leases) -> None:
    leases.enqueue(db, b"x")
    stray = leases.layout.timer_key(1, b"\x15\x01\x01r\x00", "delay")
    db[stray] = b""
    assert leases.lease(db) is not None
    assert leases.check(db).ok
    db[stray] = b""
    assert leases.lease(db) is None
    assert leases.check(db).ok


def test_many_items_are_enqueued_with_terms_in_as_many_transactions_as_it_takes(
    db: Any, leases: Leases, clock: Clock
) -> None:
    report = leases.enqueue_many(db, (b"%d" % n for n in range(1_200)), delay=5)
    assert (report.items, report.size_bytes, report.transactions) == (1_200, 10 + 180 + 2_700 + 800, 3)
    assert report.first is not None
    assert report.last is not None
    assert (report.first.index, report.last.index) == (1, 1_200)
    assert leases.enqueue_many(db, []).items == 0
    assert leases.stats(db).delayed == 1_200
    leases.queue.enqueue(db, b"last")
    clock.now += 5
    while leases.reclaim(db).more:
        pass
    assert values(leases, db) == [b"%d" % n for n in range(1_200)] + [b"last"]


def test_an_interrupted_enqueue_says_which_values_are_in(db: Any, leases: Leases) -> None:
    def some() -> Any:
        yield from (b"x" for _ in range(600))
        yield "not bytes"

    with pytest.raises(BulkInterrupted) as interrupted:
        leases.enqueue_many(db, some())
    assert interrupted.value.missing == [(500, 601)]
    assert leases.stats(db).available == interrupted.value.report.items == 500
    tr = db.create_transaction()
    with pytest.raises(CodecError):
        leases.enqueue_many(tr, [b"x", "y"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_enqueue_whose_commit_timed_out_names_the_values_in_doubt(db: Any, leases: Leases, when: When) -> None:
    faulty = FaultyDatabase.failing_at(db, {1}, (when, 1031))
    with pytest.raises(BulkInterrupted, match="Of 500 more, in `unknown`, nobody knows") as interrupted:
        leases.enqueue_many(faulty, (b"x" for _ in range(1_200)))
    assert (interrupted.value.missing, interrupted.value.unknown) == ([(1000, 1001)], [(500, 1000)])
    assert leases.stats(db).available == (1_000 if when == "after" else 500)
