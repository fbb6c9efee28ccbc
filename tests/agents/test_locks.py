"""IDs of locks, with transactions laid out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.agents import queues as module
from fdbqueue.agents.queues import Locks
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.lowlevel import run
from tests.helpers.agentservers import leases_of
from tests.helpers.clock import Clock

CONFLICT = 1020


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(space: Subspace, clock: Clock) -> Leases[bytes]:
    return leases_of(space, clock=clock)


@pytest.fixture
def next_ids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The IDs that are given next."""
    ids: list[int] = []
    monkeypatch.setattr(module, "new_id", lambda: ids.pop(0))
    return ids


def leased(leases: Leases[bytes], db: Any) -> Lease[bytes]:
    leases.enqueue(db, b"data")
    lease = leases.lease(db)
    assert lease is not None
    return lease


def locked(leases: Leases[bytes], db: Any, lease: Lease[bytes]) -> int:
    return run(leases.queue.transact(db, lambda tr: Locks(leases).lock(tr, [lease])))[0]


def of_two_one_fails(first: Any, second: Any) -> None:
    first.commit().wait()
    with pytest.raises(FDBError) as failed:
        second.commit().wait()
    assert failed.value.code == CONFLICT


def test_of_two_locks_with_one_id_at_the_same_time_one_takes_another(
    db: Any, leases: Leases[bytes], next_ids: list[int]
) -> None:
    next_ids += [7, 7, 7, 8]
    one, other = leased(leases, db), leased(leases, db)
    first, second = db.create_transaction(), db.create_transaction()
    assert run(Locks(leases).lock(first, [one])) == [7]
    assert run(Locks(leases).lock(second, [other])) == [7]

    of_two_one_fails(first, second)

    assert locked(leases, db, other) == 8
    assert Locks(leases).confirm(db, 7)
    assert Locks(leases).confirm(db, 8)


def test_two_leases_of_one_transaction_get_two_ids(db: Any, leases: Leases[bytes], next_ids: list[int]) -> None:
    next_ids += [7, 7, 8]
    leases.enqueue_many(db, [b"one", b"other"])
    tr = db.create_transaction()

    assert run(Locks(leases).lock(tr, leases.lease_many(tr))) == [7, 8]
    tr.commit().wait()

    assert [item.value for item in leases.browse(db, state="leased")] == [b"one", b"other"]
    assert Locks(leases).confirm(db, 8)
    assert [item.value for item in leases.browse(db, state="leased")] == [b"one"]


def test_of_two_confirms_at_the_same_time_one_removes_the_item(db: Any, leases: Leases[bytes]) -> None:
    id = locked(leases, db, leased(leases, db))
    first, second = db.create_transaction(), db.create_transaction()
    assert Locks(leases).confirm(first, id)
    assert Locks(leases).confirm(second, id)

    of_two_one_fails(first, second)

    assert not Locks(leases).confirm(db, id)
    assert leases.stats(db).dequeued == 1


def test_confirming_many_ids_refuses_those_with_lost_locks(db: Any, leases: Leases[bytes], clock: Clock) -> None:
    lost = locked(leases, db, leased(leases, db))
    clock.now += 31
    leases.reclaim(db)
    leases.lease(db)
    good = locked(leases, db, leased(leases, db))

    assert Locks(leases).confirm_many(db, [lost, good, good, 0]) == [False, True, False, False]

    assert leases.stats(db).dequeued == 1
    assert leases.stats(db).leased == 1


def test_of_a_confirm_and_an_end_of_the_lock_at_the_same_time_one_happens(
    db: Any, leases: Leases[bytes], clock: Clock
) -> None:
    id = locked(leases, db, leased(leases, db))
    clock.now += 31
    first, second = db.create_transaction(), db.create_transaction()
    assert len(leases.reclaim(first).reclaimed) == 1
    assert Locks(leases).confirm(second, id)

    of_two_one_fails(first, second)

    assert not Locks(leases).confirm(db, id)
    assert leases.stats(db).available == 1


def test_a_sweep_of_expired_locks_leaves_a_new_lock(
    db: Any, leases: Leases[bytes], clock: Clock, next_ids: list[int]
) -> None:
    next_ids += [7, 7, 5]
    locked(leases, db, leased(leases, db))
    clock.now += 100
    leases.reclaim(db)
    one, other = leased(leases, db), leases.lease(db)
    assert other is not None
    first, second = db.create_transaction(), db.create_transaction()
    assert run(Locks(leases).lock(first, [one])) == [7]
    assert run(Locks(leases).lock(second, [other])) == [5]  # it clears 7, as it was

    of_two_one_fails(first, second)

    assert Locks(leases).confirm(db, 7)


def test_one_lock_of_sixteen_looks_for_expired_ones(
    db: Any, leases: Leases[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    async def sweep(self: Locks, tr: Any, begin: bytes, *, limit: int) -> list[Any]:
        limits.append(limit)
        return []

    monkeypatch.setattr(Locks, "_sweep", sweep)
    locks, lease = Locks(leases), leased(leases, db)
    for _ in range(40):
        run(locks.lock(db.create_transaction(), [lease]))
    assert limits == [34, 32, 32]
    run(locks.lock(db.create_transaction(), [lease] * 50))
    assert limits[3:] == [114]


def test_a_lock_of_a_lease_that_was_extended_is_kept(
    db: Any, leases: Leases[bytes], clock: Clock, next_ids: list[int]
) -> None:
    next_ids += [7, 5]
    lease = leased(leases, db)
    locked(leases, db, lease)
    leases.extend(db, lease, duration=1_000)
    clock.now += 100

    locked(leases, db, leased(leases, db))

    assert Locks(leases).confirm(db, 7)


def test_an_item_that_is_given_back_has_no_id(db: Any, leases: Leases[bytes]) -> None:
    lease = leased(leases, db)
    id = locked(leases, db, lease)

    Locks(leases).give_back(db, id, lease)

    assert not list(db.get_range_startswith(leases.layout.agents.key()))
    assert not Locks(leases).confirm(db, id)
    assert leases.stats(db).available == 1


def test_an_unreadable_key_is_no_lock(db: Any, leases: Leases[bytes], next_ids: list[int]) -> None:
    next_ids += [7]
    db[leases.layout.agents.pack((7,))] = b"\xff"
    lease = leased(leases, db)

    assert not Locks(leases).confirm(db, 7)
    assert locked(leases, db, lease) == 7
    assert Locks(leases).confirm(db, 7)


def test_clearing_the_queue_clears_its_locks(db: Any, leases: Leases[bytes]) -> None:
    id = locked(leases, db, leased(leases, db))
    leases.queue.clear(db)

    assert not Locks(leases).confirm(db, id)
    assert leases.check(db).ok


@pytest.mark.parametrize("verb", ["cancel", "update", "reschedule"])
def test_an_item_that_was_changed_under_an_agents_hands_is_not_confirmed(
    db: Any, leases: Leases[bytes], verb: str
) -> None:
    lease, other = leased(leases, db), leased(leases, db)
    id, live = locked(leases, db, lease), locked(leases, db, other)
    terms: dict[str, dict[str, Any]] = {"cancel": {}, "update": {"value": b"new"}, "reschedule": {"delay": 9}}
    assert getattr(leases, verb)(db, lease.position, **terms[verb])
    assert Locks(leases).confirm_many(db, [id, live]) == [False, True]
    found = leases.get(db, lease.position)
    assert (found and found.value) == {"cancel": None, "update": b"new"}.get(verb, b"data")
    assert leases.check(db).problems == ()


def test_an_old_and_a_live_id_of_one_item_in_one_call_are_told_apart(
    db: Any, leases: Leases[bytes], clock: Clock
) -> None:
    old = leased(leases, db)
    old_id = locked(leases, db, old)
    clock.now += 1_000
    live = leases.lease(db)
    assert live is not None
    live_id = locked(leases, db, live)
    other_id = locked(leases, db, leased(leases, db))

    assert Locks(leases).confirm_many(db, [old_id, live_id, other_id]) == [False, True, True]

    assert leases.stats(db).leased == 0
