"""Workers of sessions in several shards: how they wait, are woken, and work side by side."""

from __future__ import annotations

import asyncio
import secrets
import threading
from functools import partial
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import SessionLease, Sessions
from fdbqueue.layers.sessions.line.line_queue import LineDelivery
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.layers.staged.allotments import Allotment
from fdbqueue.lowlevel import run
from tests.helpers.counted import Counted
from tests.helpers.sessions import assert_sound, do_all, fill, lease_of
from tests.helpers.shards import PATIENCE, SHARDS, named, shard, spread


async def until_requested(sessions: Sessions, db: Any, requests: int) -> None:
    """Wait until so many workers have registered that they wait."""
    async with asyncio.timeout(30):
        while (await sessions.staged.stats.aio(db)).requests < requests:  # noqa: ASYNC110 - it can only be looked for
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("number", range(SHARDS))
def test_a_waiting_worker_gets_a_session_of_any_shard(db: Any, queue: Queue, number: int) -> None:
    async def work() -> SessionLease | None:
        waiting = asyncio.create_task(sessions.lease.aio(db, timeout=PATIENCE))
        await until_requested(sessions, db, 1)
        await Sessions(queue).enqueue.aio(db, "1", session=named(number))
        return await waiting

    sessions = spread(db, queue)
    lease = asyncio.run(work())
    assert lease is not None
    assert lease.session == named(number)
    sessions.ack(db, lease)
    assert_sound(sessions, db)


def test_a_worker_that_waits_learns_of_new_shards(db: Any, queue: Queue) -> None:
    async def work() -> SessionLease | None:
        waiting = asyncio.create_task(early.lease.aio(db, timeout=PATIENCE))
        await until_requested(early, db, 1)
        own = Sessions(queue, shards=SHARDS)
        await own.set_shards.aio(db, SHARDS)
        await own.enqueue.aio(db, "1", session=named(3))
        return await waiting

    early = Sessions(queue)
    lease = asyncio.run(work())
    assert lease is not None
    assert lease.turn.random[8:] == b"\x03"


def test_a_worker_does_not_sleep_before_it_has_looked_at_shards_of_which_another_thread_learned(
    db: Any, queue: Queue
) -> None:
    sessions = Sessions(queue)
    delivery = LineDelivery(sessions.line.leases)
    tr = db.create_transaction()
    assert not run(delivery.take(tr, delivery.look(tr, limit=1), [Allotment(1, 1_000_000, "worker", own=True)])).items
    Sessions(queue).set_shards(db, SHARDS)
    run(sessions.queue.read(db, partial(sessions.line.shards.learn, seconds=0.0)))  # as another thread does
    fill(sessions, db, f"{named(3)}:1")
    assert run(delivery.next_due_us(tr)) is not None, "it looks again at once"
    assert all(key.startswith(sessions.line.layout.prefix) for key in delivery.watched()), "it has seen no other shard"


@pytest.mark.parametrize("duration", [30, 600], ids=["as granted", "longer"])
def test_a_call_at_the_first_shard_gets_what_it_was_granted_of_another(db: Any, queue: Queue, duration: int) -> None:
    async def work() -> Any:
        at_first = sessions.staged._of_shard(0)
        waiting = asyncio.create_task(at_first.lease.aio(db, duration=duration, timeout=PATIENCE))
        await until_requested(sessions, db, 1)
        await sessions.enqueue.aio(db, "1", session=named(2))
        other.staged._skips = 1  # it looks at all shards at once
        assert await other.lease.aio(db) is None, "the request in front got it"
        return await waiting

    sessions, other = spread(db, queue), spread(db, queue)
    pointer = asyncio.run(work())
    assert pointer is not None
    assert pointer.value.pointer.name == pack_name(named(2))
    sessions.line.leases.at(pointer).snooze(db, pointer, delay=0)
    assert do_all(other, db) == [f"{named(2)}:1"]


def test_a_worker_that_waits_before_the_number_is_stored_gets_a_session_of_any_shard(db: Any, queue: Queue) -> None:
    async def work() -> list[Any]:
        got = []
        for _ in range(2):
            waiting = asyncio.create_task(sessions.lease.aio(db, timeout=PATIENCE))
            await until_requested(sessions, db, 1)
            await sessions.enqueue.aio(db, "1", session=named(2))
            lease = await waiting
            got.append(lease and shard(lease.session))
            if lease is not None:
                await sessions.ack.aio(db, lease)
        return got

    sessions = Sessions(queue, shards=SHARDS)
    assert asyncio.run(work()) == [2, 2]


def test_a_waiting_worker_wakes_for_a_timer_of_another_shard(db: Any, queue: Queue) -> None:
    async def work() -> list[Any]:
        waiting = asyncio.create_task(sessions.lease.aio(db, timeout=PATIENCE))
        await until_requested(sessions, db, 1)
        await sessions.enqueue.aio(db, "soon", session=named(2), delay=0.05)
        await sessions.enqueue.aio(db, "far", session=named(1), delay=600)
        return [await waiting, await sessions.lease.aio(db, timeout=0.01)]

    sessions = spread(db, queue)
    lease, nothing = asyncio.run(work())
    assert (lease.value, nothing) == ("soon", None)


def test_an_enqueue_into_any_shard_wakes_at_most_two_waiting_workers(db: Any, space: Subspace) -> None:
    async def woken_by_one(number: int) -> list[int]:
        fresh = space[secrets.token_bytes(4)]
        # Each object waits as a process of its own does.
        workers = [spread(db, Queue(fresh, codec="str"), consumer=f"worker {n}") for n in range(6)]
        tasks = [asyncio.create_task(sessions.lease.aio(db, timeout=30)) for sessions in workers]
        await until_requested(workers[0], db, 6)
        await asyncio.sleep(0.05)  # they set their watches
        before = [sessions.staged.contention_stats().looks for sessions in workers]
        await workers[0].enqueue.aio(db, "1", session=named(number))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        looks = [sessions.staged.contention_stats().looks for sessions in workers]
        assert len(done) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [now - then for now, then in zip(looks, before, strict=True)]

    # On a busy machine a worker may look once more before it sleeps. That only adds to what the enqueue wakes.
    for number in (0, 3):
        rounds = (asyncio.run(woken_by_one(number)) for _ in range(10))
        assert any(sum(looks > 0 for looks in woken) <= 2 for woken in rounds)


def test_a_wait_over_shards_ends_after_its_time_and_leaves_nothing(db: Any, queue: Queue) -> None:
    sessions = spread(db, queue)
    assert sessions.lease(db, timeout=0.05) is None
    assert sessions.staged.stats(db).requests == 0


# --- workers side by side


def test_workers_of_several_shards_do_every_item_once(db: Any, space: Subspace) -> None:
    owns = [spread(db, Queue(space, codec="str"), quantum=3) for _ in range(4)]
    numbers = iter(range(240))
    owns[0].enqueue_many(db, map(str, range(240)), session=lambda value: f"s{next(numbers) % 24}")
    done: dict[Any, list[int]] = {}

    def work(own: Sessions) -> None:
        lease = own.lease(db, duration=600)
        while lease is not None:
            done.setdefault(lease.session, []).append(int(lease.value))
            lease = own.ack_and_next(db, lease) or own.lease(db, duration=600)

    threads = [threading.Thread(target=work, args=(owns[n % 4],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while owns[0].stats(db).available:  # a session that was given back as the last worker left
        left = lease_of(owns[0], db, timeout=30)
        done.setdefault(left.session, []).append(int(left.value))
        owns[0].ack(db, left)
    assert sum(map(len, done.values())) == 240
    assert all(sorted(mine) == mine for mine in done.values())
    assert_sound(owns[0], db)


def touched_by(counted: Counted, sessions: Sessions) -> set[int]:
    """Return the shards whose keys were touched, apart from those that a process reads now and then."""
    lines = [layout.prefix for layout in sessions.line.shards.layouts()]
    rare = {sessions.line.layout.paused_key, sessions.line.layout.type_key}
    touched = (counted.read - rare) | counted.written
    return {at for at, prefix in enumerate(lines) for key in touched if key.startswith(prefix)}


@pytest.mark.engines("memory")
def test_an_enqueue_and_a_turn_touch_the_keys_of_one_shard(db: Any, space: Subspace) -> None:
    sessions = spread(db, Queue(space, codec="str"))
    for name in [named(number, other) for number in range(SHARDS) for other in range(3)]:
        counted = Counted(db)
        fill(sessions, counted, f"{name}:1", f"{name}:2")
        assert touched_by(counted, sessions) == {shard(name)}
    for _ in range(2 * SHARDS):
        counted = Counted(db)
        lease = lease_of(sessions, counted)
        sessions.ack(counted, lease)
        assert touched_by(counted, sessions) == {shard(lease.session)}
