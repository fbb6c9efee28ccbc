"""Calls of leases that are cancelled, interrupted or timed out in their commit keep nothing, and count no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.blocking import unfinished
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, FDBError
from fdbqueue.layers import PriorityQueue, RelaxedQueue
from fdbqueue.layers.leases import Leases
from tests.helpers.conflicting import conflicts
from tests.helpers.held import HeldDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.leasing import lease_of
from tests.helpers.unanswered import UnansweredDatabase, let_threads_end

KINDS: dict[str, Callable[[Queue], Leases]] = {
    "plain": lambda queue: Leases(queue, max_attempts=1),
    "by priority": lambda queue: PriorityQueue(queue, levels=2, max_attempts=1).leases,
    "with weights": lambda queue: PriorityQueue(queue, levels=2, weights=[2, 1], max_attempts=1).leases,
    "relaxed": lambda queue: RelaxedQueue(Leases(queue, max_attempts=1)).leases,
}
WAYS = ("lease", "lease_many")
CALL = ("layers/leases/leases.py", "layers/leases/taking.py", "layers/leases/taking.py")


@pytest.fixture(params=KINDS)
def leases(request: pytest.FixtureRequest, space: Subspace) -> Leases:
    return KINDS[request.param](Queue(space, codec="str"))


def is_as_if_never_called(leases: Leases, db: Any, *, available: int) -> bool:
    let_threads_end()
    stats = leases.stats(db)
    assert (stats.leased, stats.dead, stats.available) == (0, 0, available)
    assert [one.attempt for one in leases.browse(db)] == [0] * available
    assert leases.check(db).problems == ()
    return True


async def cancelled_while_committing(db: Any, leases: Leases, way: str) -> None:
    task = asyncio.create_task(getattr(leases, way).aio(db, duration=600))
    await asyncio.to_thread(db.committing.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def ended_while_committing(db: Any, leases: Leases, way: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        getattr(leases, way)(db, duration=600)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "interrupted", "timed out"])
def test_a_call_that_goes_during_its_commit_keeps_nothing(
    db: Any, leases: Leases, way: str, takes_effect: bool, how: str
) -> None:
    leases.enqueue_many(db, ["a", "b", "c"])
    error = FDBError(TRANSACTION_TIMED_OUT) if how == "timed out" else KeyboardInterrupt()
    unanswered = UnansweredDatabase(db, takes_effect=takes_effect, error=error)
    if how == "cancelled":
        asyncio.run(cancelled_while_committing(unanswered, leases, way))
    else:
        ended_while_committing(unanswered, leases, way, type(error))
    assert is_as_if_never_called(leases, db, available=3)
    if not takes_effect:
        assert conflicts(unanswered.sent)
        assert is_as_if_never_called(leases, db, available=3)


@pytest.mark.parametrize("way", WAYS)
def test_a_time_limit_during_a_commit_keeps_nothing(db: Any, leases: Leases, way: str) -> None:
    leases.enqueue(db, "a")
    unanswered = UnansweredDatabase(db, takes_effect=True)

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            committing = asyncio.create_task(asyncio.to_thread(unanswered.committing.wait, 10))
            committing.add_done_callback(lambda _: limit.reschedule(0))
            await getattr(leases, way).aio(unanswered, duration=600)

    with pytest.raises(TimeoutError):
        asyncio.run(limited())
    assert is_as_if_never_called(leases, db, available=1)


def test_what_another_call_got_meanwhile_stays_with_it(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    held = HeldDatabase(db)

    async def session() -> Any:
        await cancelled_while_committing(held, leases, "lease_many")  # its commit is never sent
        lease = lease_of(leases, db)
        held.release()
        await asyncio.to_thread(let_threads_end)
        return lease

    leases.ack(db, asyncio.run(session()))
    assert is_as_if_never_called(leases, db, available=0)


def test_an_error_that_leaves_nothing_in_doubt_starts_no_thread(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    refused = UnansweredDatabase(db, takes_effect=False, error=FDBError(2023))
    ended_while_committing(refused, leases, "lease", FDBError)
    assert unfinished() == []


def test_a_call_that_goes_before_its_commit_has_nothing_to_give_back(db: Any, leases: Leases) -> None:
    held = HeldDatabase(db)
    assert leases.lease(held) is None

    async def session() -> None:
        task = asyncio.create_task(leases.lease.aio(held))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(session())
    assert unfinished() == []
    assert held.commits == 0


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_ctrl_c_at_any_line_leaves_no_lease(db: Any, leases: Leases) -> None:
    def call() -> None:
        if (lease := leases.lease(db, duration=600)) is not None:
            held.append(lease)

    held: list[Any] = []

    def then(place: str) -> None:
        let_threads_end()
        assert leases.stats(db).leased == 0, place

    leases.enqueue(db, "a")
    assert interrupted_at_each_line(call, of=CALL, then=then) > 20
    leases.snooze(db, held.pop(), delay=0)
    assert is_as_if_never_called(leases, db, available=1)
