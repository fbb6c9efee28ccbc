"""An `ack_and_next` that is cancelled or in doubt: the ack holds, and the session of the next item is ready again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, FDBError
from fdbqueue.layers.sessions import Gate, SessionLease, Sessions
from fdbqueue.stored.items import INLINE_BYTES
from tests.helpers.conflicting import conflicts
from tests.helpers.held import HeldDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.sessions import assert_sound, fill, lease_of
from tests.helpers.unanswered import UnansweredDatabase, let_threads_end

KINDS: dict[str, Callable[[Queue], Sessions]] = {
    "one at a time": lambda queue: Sessions(queue, max_attempts=1),
    "two at a time": lambda queue: Sessions(queue, max_attempts=1, concurrency=2),
    "with a gate": lambda queue: Sessions(queue, max_attempts=1, gates=lambda name: (Gate("all", limit=1),)),
}
CALL = (
    "layers/sessions/_sessions.py",
    "layers/sessions/workers/working.py",
    "layers/sessions/workers/keeping.py",
)


@pytest.fixture(params=KINDS)
def sessions(request: pytest.FixtureRequest, space: Subspace) -> Sessions:
    return KINDS[request.param](Queue(space, codec="str"))


async def cancelled_while_committing(held: HeldDatabase, sessions: Sessions, lease: SessionLease) -> None:
    task = asyncio.create_task(sessions.ack_and_next.aio(held, lease, duration=600))
    await asyncio.to_thread(held.committing.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def only_the_first_is_done(sessions: Sessions, db: Any, lease: SessionLease, then: list[str]) -> bool:
    let_threads_end()
    with pytest.raises(LeaseLost, match="perhaps by a call that was cancelled"):
        sessions.ack(db, lease)
    info = sessions.info(db, "ann")
    assert (info is None) == (not then)
    assert info is None or (info.running, info.items, info.dead) == (0, len(then), 0)
    assert_sound(sessions, db)
    left = []
    while (following := sessions.lease(db)) is not None:
        assert following.attempt == 1
        left.append(following.value)
        sessions.ack(db, following)
    assert left == then
    assert_sound(sessions, db)
    return True


@pytest.mark.parametrize("items", [1, 2, 3])
def test_a_call_that_is_cancelled_during_its_commit_acks_and_holds_nothing(
    db: Any, sessions: Sessions, items: int
) -> None:
    values = [str(number) for number in range(items)]
    fill(sessions, db, *(f"ann:{value}" for value in values))
    lease, held = lease_of(sessions, db, duration=600), HeldDatabase(db)
    asyncio.run(cancelled_while_committing(held, sessions, lease))
    held.release()
    assert only_the_first_is_done(sessions, db, lease, values[1:])


def test_a_call_that_is_cancelled_before_a_large_next_item_gives_it_back(db: Any, sessions: Sessions) -> None:
    large = "x" * (INLINE_BYTES + 1)
    fill(sessions, db, "ann:0", f"ann:{large}")
    lease, held = lease_of(sessions, db, duration=600), HeldDatabase(db)
    asyncio.run(cancelled_while_committing(held, sessions, lease))
    held.release()
    assert only_the_first_is_done(sessions, db, lease, [large])


def test_an_ack_that_fails_after_a_cancel_leaves_the_lease_with_its_holder(db: Any, sessions: Sessions) -> None:
    fill(sessions, db, "ann:0", "ann:1")
    lease, held = lease_of(sessions, db, duration=600), HeldDatabase(db)
    asyncio.run(cancelled_while_committing(held, sessions, lease))
    sessions.nack(db, lease, last=True)  # it conflicts with the ack, whose next attempt finds no lease
    held.release()
    let_threads_end()
    assert lease_of(sessions, db).value == "1"
    info = sessions.info(db, "ann")
    assert info is not None
    assert (info.running, info.items, info.dead) == (1, 1, 1)
    assert_sound(sessions, db)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_commit_that_times_out_leaves_no_session_busy(db: Any, sessions: Sessions, takes_effect: bool) -> None:
    fill(sessions, db, "ann:0", "ann:1")
    lease = lease_of(sessions, db, duration=600)
    unanswered = UnansweredDatabase(db, takes_effect=takes_effect, error=FDBError(TRANSACTION_TIMED_OUT))
    with pytest.raises(FDBError):
        sessions.ack_and_next(unanswered, lease, duration=600)
    let_threads_end()
    if not takes_effect:
        assert conflicts(unanswered.sent)
        sessions.ack(db, lease)
    assert only_the_first_is_done(sessions, db, lease, ["1"])


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_ctrl_c_at_any_line_holds_no_session_that_was_acked(db: Any, sessions: Sessions) -> None:
    leases: list[SessionLease] = []
    got: list[SessionLease | None] = []

    def prepare() -> None:
        sessions.clear(db)
        fill(sessions, db, "ann:0", "ann:1")
        leases[:] = [lease_of(sessions, db, duration=600)]

    def call() -> None:
        got.append(sessions.ack_and_next(db, leases[0], duration=600))

    def then(place: str) -> None:
        let_threads_end()
        info = sessions.info(db, "ann")
        assert info is not None
        assert (info.running, info.items) in ((1, 2), (0, 1)), place
        if info.running:
            sessions.snooze(db, leases[0], delay=0)
        assert lease_of(sessions, db).value == ("0" if info.running else "1")
        assert_sound(sessions, db)
        prepare()

    prepare()
    assert interrupted_at_each_line(call, of=CALL, then=then) > 20
    assert got[0] is not None
