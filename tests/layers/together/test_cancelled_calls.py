"""Calls of every kind of queue that are cancelled, dropped, interrupted or timed out, wherever they are.

Nothing is lost or doubled, no lease stays unknown, no attempt is counted, and nobody waits behind a call that has gone.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fdbqueue import LeaseLost
from fdbqueue.engine import Subspace
from fdbqueue.engine.blocking import unfinished
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, FDBError
from fdbqueue.layers.common import waiting as layer_of_waiting
from fdbqueue.stored.items import INLINE_BYTES
from tests.helpers.conflicting import conflicts
from tests.helpers.held import HeldDatabase
from tests.helpers.interrupting import interrupted_at_each_line
from tests.helpers.kinds import KINDS, Kind, kind_of
from tests.helpers.unanswered import UnansweredDatabase, let_threads_end

pytestmark = pytest.mark.slow

FOR_LONG: dict[str, Any] = {"duration": 600.0}
ITEMS = 3
IN_SESSIONS = [name for name in KINDS if "sessions" in name]
SUBSCRIBED = ["subscriptions", "subscriptions of one process"]
LEASED = [name for name in KINDS if name not in (*IN_SESSIONS, *SUBSCRIBED, "staged")]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, db: Any, space: Subspace) -> Kind:
    return kind_of(request.param, db, space)


@dataclass
class Cancel:
    """Cancels a call at one of its waits, or lets go of it there."""

    number: int
    """Of the wait, counted from 1."""
    moment: str
    waits: int = 0

    async def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return what the call returned, None if it was cancelled."""
        with suppress(asyncio.CancelledError):
            return await asyncio.create_task(self._driven(call))
        return None

    @property
    def is_over(self) -> bool:
        """Whether the call has fewer waits than this."""
        return self.waits < self.number

    async def _driven(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await self._steps(call)

    @types.coroutine
    def _steps(self, call: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        task: Any = asyncio.current_task()
        step: Callable[[], Any] = lambda: call.send(None)  # noqa: E731
        while True:
            try:
                waited = step()
            except StopIteration as ended:
                return ended.value
            self.waits += 1
            if self.waits == self.number:
                if self.moment == "dropped":
                    call.close()
                    return None
                if self.moment == "as it is answered" and waited is not None:
                    waited.add_done_callback(lambda _: task.cancel())  # before the task itself learns of it
                else:
                    task.cancel()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - the cancellation, or what the wait raises
                step = lambda error=error: call.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda: call.send(None)  # noqa: E731


async def finished() -> None:
    """Wait for the threads that go on for callers that have gone."""
    await asyncio.to_thread(let_threads_end)


async def at_each_wait(kind: Kind, db: Any, moment: str, act: Callable[[Cancel], Any], items: int = ITEMS) -> int:
    """Act on a queue with some items, cancelled at one wait after the other; return how many waits there were."""
    number = 0
    while True:
        number += 1
        cancel = Cancel(number, moment)
        for item in range(items):
            await kind.putting(db, item)
        await act(cancel)
        assert kind.is_sound_and_empty(db), number
        if cancel.is_over:
            return number - 1


MOMENTS = pytest.mark.parametrize("moment", ["as it begins to wait", "as it is answered", "dropped"])


async def keeps_what_it_got(kind: Kind, db: Any, got: Any) -> None:
    """Nothing is held but what a call returned, and all other items are there, as if never taken."""
    await finished()
    assert kind.held(db) == (got is not None)
    if got is not None:
        await kind.leases.ack.aio(db, got)
    rest = kind.taken_to_the_end(db, **FOR_LONG)
    assert sorted([*rest, *([got.value["n"]] if got else [])]) == [0, 1, 2]


@MOMENTS
def test_a_lease_that_is_cancelled_at_any_wait_keeps_nothing(db: Any, kind: Kind, moment: str) -> None:
    async def lease(cancel: Cancel) -> None:
        await keeps_what_it_got(kind, db, await cancel.run(kind.taker.lease.aio(db, **FOR_LONG)))

    assert asyncio.run(at_each_wait(kind, db, moment, lease)) >= 1


@MOMENTS
@pytest.mark.parametrize(("end", "terms"), [("ack", {}), ("snooze", {"delay": 0})])
def test_an_end_that_is_cancelled_at_any_wait_takes_effect_or_leaves_its_item_held(
    db: Any, kind: Kind, moment: str, end: str, terms: dict[str, Any]
) -> None:
    async def ends(cancel: Cancel) -> None:
        held = await kind.taker.lease.aio(db, **FOR_LONG)
        await cancel.run(getattr(kind.leases, end).aio(db, held, **terms))
        await finished()
        is_lost = False
        try:
            await kind.leases.ack.aio(db, held)
        except LeaseLost:
            is_lost = True
        left = {0, 1, 2} if is_lost and end == "snooze" else {0, 1, 2} - {held.value["n"]}
        assert set(kind.taken_to_the_end(db, **FOR_LONG)) == left

    assert asyncio.run(at_each_wait(kind, db, moment, ends)) >= 1


@MOMENTS
@pytest.mark.parametrize("kind", IN_SESSIONS, indirect=True)
@pytest.mark.parametrize("size", [0, INLINE_BYTES + 1])
def test_an_ack_and_next_that_is_cancelled_at_any_wait_holds_no_session_that_was_acked(
    db: Any, kind: Kind, moment: str, size: int
) -> None:
    kind = replace(kind, sessions=1, size=size)

    async def ack(cancel: Cancel) -> None:
        held = await kind.taker.lease.aio(db, **FOR_LONG)
        following = await cancel.run(kind.leases.ack_and_next.aio(db, held, **FOR_LONG))
        await finished()
        with suppress(LeaseLost):
            await kind.leases.ack.aio(db, held)
        assert kind.held(db) == (following is not None)
        if following is not None:
            assert following.value["n"] == 1
            await kind.leases.ack.aio(db, following)
        assert kind.taken_to_the_end(db, **FOR_LONG) == ([2] if following else [1, 2])

    assert asyncio.run(at_each_wait(kind, db, moment, ack)) >= 1


@MOMENTS
@pytest.mark.engines("memory", "file")
def test_an_enqueue_that_is_cancelled_at_any_wait_puts_one_item_or_none(db: Any, kind: Kind, moment: str) -> None:
    """The embedded engine commits in the order of the calls, so that what comes later tells that the call is over."""

    async def enqueue(cancel: Cancel) -> None:
        done = await cancel.run(kind.putting(db, ITEMS))  # type: ignore[arg-type]
        await finished()
        await kind.putting(db, ITEMS + 1)
        there = sorted(kind.taken_to_the_end(db, **FOR_LONG))
        assert there in ([0, 1, 2, 3, 4], [0, 1, 2, 4])
        assert done is None or ITEMS in there

    assert asyncio.run(at_each_wait(kind, db, moment, enqueue)) >= 1


@pytest.fixture(params=["the call notes first that its caller has gone", "the thread ends first"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two comes first: the thread that goes on in a cancelled call, or what its caller does meanwhile."""

    def run_now(target: Callable[..., object], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        thread.start()
        thread.join()

    if request.param == "the thread ends first":
        monkeypatch.setattr(layer_of_waiting, "start", run_now)


@MOMENTS
@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("kind", [*IN_SESSIONS, *SUBSCRIBED, "staged"], indirect=True)
@pytest.mark.parametrize("comes", ["an item", "nothing"])
def test_a_call_that_waits_and_is_cancelled_keeps_nothing_and_nobody_waits_behind_it(
    db: Any, kind: Kind, moment: str, comes: str
) -> None:
    async def wait(cancel: Cancel) -> None:
        timeout = 100.0 if comes == "an item" else 0.02
        waiting = asyncio.create_task(cancel.run(kind.taker.lease.aio(db, **FOR_LONG, timeout=timeout)))
        seen, quiet = 0, 0
        while not waiting.done() and quiet < 50 and comes == "an item":  # it waits for the item
            await asyncio.sleep(0)
            seen, quiet = cancel.waits, quiet + 1 if cancel.waits == seen else 0
        for item in range(ITEMS if comes == "an item" else 0):
            await kind.putting(db, item)
        got = await waiting
        await finished()
        for item in range(ITEMS if comes == "nothing" else 0):
            await kind.putting(db, item)
        await keeps_what_it_got(kind, db, got)

    assert asyncio.run(at_each_wait(kind, db, moment, wait, items=0)) >= (2 if comes == "an item" else 0)


# --- calls that go during their commit, and calls that block


class Interrupted(UnansweredDatabase):
    """A database whose first commit is interrupted by Ctrl-C, before the caller has its future."""

    def commit(self, tr: Any) -> Any:
        super().commit(tr)
        raise KeyboardInterrupt


async def cancelled_while_committing(db: Any, call: Any, *given: Any, **terms: Any) -> None:
    task = asyncio.create_task(call.aio(db, *given, **FOR_LONG, **terms))
    await asyncio.to_thread(db.committing.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def goes(call: Any, db: Any, takes_effect: bool, how: str, *given: Any, **terms: Any) -> None:
    """Let a caller go during the commit of its call, which takes effect at once, or would later."""
    error = FDBError(TRANSACTION_TIMED_OUT) if how == "timed out" else KeyboardInterrupt()
    made = Interrupted if how == "interrupted as it is sent" else UnansweredDatabase
    unanswered = made(db, takes_effect=takes_effect, error=error)
    if how == "cancelled":
        asyncio.run(cancelled_while_committing(unanswered, call, *given, **terms))
    else:
        with pytest.raises(type(error)):
            call(unanswered, *given, **FOR_LONG, **terms)
    let_threads_end()
    assert takes_effect or conflicts(unanswered.sent)
    let_threads_end()


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *itertools.product(LEASED, ["cancelled", "interrupted", "interrupted as it is sent", "timed out"]),
        *itertools.product(SUBSCRIBED, ["interrupted as it is sent", "timed out"]),
    ],
    indirect=["kind"],
)
def test_a_caller_that_goes_during_the_commit_of_a_lease_keeps_nothing(
    db: Any, kind: Kind, takes_effect: bool, how: str
) -> None:
    waits = [{}] if kind.taker is kind.leases else [{}, {"timeout": 100.0}]
    for verb, terms, items in itertools.product(("lease", "lease_many"), waits, (ITEMS, 0)):
        if items or "timeout" in terms:
            for item in range(items):
                kind.put(db, item)
            goes(getattr(kind.taker, verb), db, takes_effect, how, **terms)
            assert kind.held(db) == 0
            assert sorted(kind.taken_to_the_end(db)) == list(range(items))
            assert kind.is_sound_and_empty(db)


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("kind", IN_SESSIONS, indirect=True)
def test_an_ack_and_next_that_times_out_in_its_commit_holds_no_session_that_was_acked(
    db: Any, kind: Kind, takes_effect: bool
) -> None:
    kind = replace(kind, sessions=1)
    for item in range(ITEMS):
        kind.put(db, item)
    lease = kind.taker.lease(db, **FOR_LONG)
    goes(kind.leases.ack_and_next, db, takes_effect, "timed out", lease)
    if not takes_effect:
        kind.leases.ack(db, lease)
    with pytest.raises(LeaseLost, match="perhaps by a call that was cancelled"):
        kind.leases.ack(db, lease)
    assert kind.held(db) == 0
    assert kind.taken_to_the_end(db) == [1, 2]
    assert kind.is_sound_and_empty(db)


@pytest.mark.parametrize("kind", IN_SESSIONS, indirect=True)
def test_an_ack_that_fails_after_a_cancel_leaves_the_lease_with_its_holder(db: Any, kind: Kind) -> None:
    kind = replace(kind, sessions=1)
    for item in range(2):
        kind.put(db, item)
    lease, held = kind.taker.lease(db, **FOR_LONG), HeldDatabase(db)
    asyncio.run(cancelled_while_committing(held, kind.leases.ack_and_next, lease))
    kind.leases.nack(db, lease, last=True)  # it conflicts with the ack, whose next attempt finds no lease
    held.release()
    let_threads_end()
    assert kind.taken_to_the_end(db) == [1]
    assert (kind.held(db), kind.leases.stats(db).dead) == (0, 1)


@pytest.mark.parametrize("kind", LEASED, indirect=True)
def test_a_call_that_goes_gives_back_what_it_alone_may_have(db: Any, kind: Kind) -> None:
    kind.put(db, 0)
    held, refused = HeldDatabase(db), UnansweredDatabase(db, takes_effect=False, error=FDBError(2023))
    with pytest.raises(FDBError):
        kind.taker.lease(refused)
    assert unfinished() == [], "an error that leaves nothing in doubt"

    async def session() -> Any:
        task = asyncio.create_task(kind.taker.lease.aio(held))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (unfinished(), held.commits) == ([], 0), "a cancel before the commit"
        await cancelled_while_committing(held, kind.taker.lease)  # its commit is never sent
        got = kind.taker.lease(db)
        held.release()
        await finished()
        return got

    kind.leases.ack(db, asyncio.run(session()))
    assert kind.is_sound_and_empty(db)


CALL = (
    *("layers/leases/leases.py", "layers/leases/taking.py", "layers/common/batcher.py", "layers/common/waiting.py"),
    *("layers/subscriptions/subscription.py", "layers/subscriptions/_awaiting.py", "engine/waiting.py"),
    *("layers/sessions/_sessions.py", "layers/sessions/workers/working.py", "layers/sessions/workers/keeping.py"),
)


@pytest.mark.engines("memory")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *itertools.product([*LEASED, *SUBSCRIBED], ["an item"]),
        *itertools.product(SUBSCRIBED, ["a delivery", "nothing"]),
    ],
    indirect=["kind"],
)
def test_ctrl_c_at_any_line_of_a_lease_leaves_no_lease_and_no_waiter(db: Any, kind: Kind, what: str) -> None:
    waits = {"an item": {}, "a delivery": {"timeout": 0.02}, "nothing": {"timeout": 0.002}}[what]

    def call() -> None:
        over = threading.Event()
        producer = threading.Thread(target=deliver, args=(over,))
        if what == "a delivery":
            producer.start()
        try:
            held.append(kind.taker.lease(db, **FOR_LONG, **waits))
        finally:
            over.set()
            if what == "a delivery":
                producer.join()

    def deliver(over: threading.Event) -> None:
        while not over.is_set() and kind.enqueue(db, {"n": 0}, immediate=True) is None:
            pass  # as soon as the call stands in the line

    def then(place: str) -> None:
        let_threads_end()
        assert kind.held(db) == 0, place
        assert kind.taken_to_the_end(db) in ([0], []), place
        if what == "an item":
            kind.put(db, 0)

    held: list[Any] = []
    if what == "an item":
        kind.put(db, 0)
    assert interrupted_at_each_line(call, of=CALL[:7], then=then) > 20
    for lease in filter(None, held):
        kind.leases.ack(db, lease)
    assert kind.is_sound_and_empty(db)


@pytest.mark.engines("memory")
@pytest.mark.parametrize("kind", IN_SESSIONS, indirect=True)
def test_ctrl_c_at_any_line_of_an_ack_and_next_holds_no_session_that_was_acked(db: Any, kind: Kind) -> None:
    kind = replace(kind, sessions=1)
    leases: list[Any] = []
    got: list[Any] = []

    def prepare() -> None:
        for number in range(2):
            kind.put(db, number)
        leases[:] = [kind.taker.lease(db, **FOR_LONG)]

    def then(place: str) -> None:
        let_threads_end()
        if kind.held(db):
            kind.leases.snooze(db, leases[0], delay=0)
        assert kind.taken_to_the_end(db) in ([0, 1], [1]), place
        prepare()

    prepare()
    call = lambda: got.append(kind.leases.ack_and_next(db, leases[0], **FOR_LONG))  # noqa: E731
    assert interrupted_at_each_line(call, of=CALL[7:], then=then) > 20
    kind.leases.ack(db, got[0])
    assert kind.is_sound_and_empty(db)
