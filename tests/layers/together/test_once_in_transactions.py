"""A `transactional` body with calls of queues takes effect once, whatever becomes of its commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import TRANSACTIONS
from fdbqueue.layers import ACKED, Consumer, Lease, Leases, PriorityQueue, Sessions
from fdbqueue.layers.smart._deadlines import ClaimedDeadline
from tests.helpers.faults import Fault, FaultyDatabase, When
from tests.helpers.verbs import Call, Scene, driven
from tests.layers.together.test_verbs_in_transactions import EITHER, PARTS

ONE = (1).to_bytes(8, "little")
FAULTS: list[Fault] = [("before", 1021), ("after", 1021)]


def _paused(scene: Scene) -> Call:
    scene.queue.pause(scene.db)
    return Call(scene.queue.resume)


def _claimed(scene: Scene) -> ClaimedDeadline:
    """Claim the first of the missed deadlines until a time that is long over."""

    @fdbqueue.transactional
    def claim(tr: fdbqueue.Transaction) -> Any:
        return run(scene.deadlines.claim_next(tr, until_us=5, lapsed_us=0, ended=None))

    claimed: ClaimedDeadline = claim(scene.db)
    return claimed


def _lapsed(scene: Scene) -> Call:
    _claimed(scene)
    scene.deadlines.claim(scene.db)  # the others
    return driven(scene.deadlines.claim_next, until_us=9, lapsed_us=6, ended=None)


MORE: dict[str, Callable[[Scene], Call]] = {
    "Queue.resume of a paused queue": _paused,
    "Deadlines.end of a claim": lambda s: driven(s.deadlines.end, _claimed(s)),
    "Deadlines.claim_next of a claim that has lapsed": _lapsed,
}
"""Calls that write nothing with the arguments of the other tables."""
CALLS = {**EITHER, **PARTS, **MORE}


class Body:
    """A `transactional` function that makes one call and counts in a key of its own."""

    def __init__(self, db: Any, space: Subspace, name: str) -> None:
        self._db = db
        self.name = name
        self._key = space["counted"].key()
        self.scene = Scene(db, space["scene"])
        self.call = CALLS[name](self.scene)
        self.runs = 0
        self.before = self.scene.rows()

    def run(self, db: Any) -> Any:
        """Run it in the thread."""

        @fdbqueue.transactional
        def body(tr: fdbqueue.Transaction) -> Any:
            self._begin(tr)
            return self.call(tr)

        return body(db)

    def run_awaited(self, db: Any) -> Any:
        """Run it in an event loop."""

        @fdbqueue.transactional
        async def body(tr: fdbqueue.Transaction) -> Any:
            self._begin(tr)
            return await self.call.begun(tr)

        return asyncio.run(body(db))

    def _begin(self, tr: fdbqueue.Transaction) -> None:
        self.runs += 1
        tr.add(self._key, ONE)

    @property
    def counted(self) -> int:
        return int.from_bytes(bytes(self._db[self._key]), "little")

    def check(self) -> None:
        """Compare what is there after a first commit that was lost and a second one that took effect."""
        changed = self.scene.rows() != self.before
        assert changed or self.name not in MORE
        if changed:
            assert (self.runs, self.counted) == (2, 1)
        else:
            assert self.counted == self.runs - 1  # a call that only reads asks for no marker


@pytest.mark.parametrize("name", CALLS)
def test_a_body_with_a_call_that_writes_takes_effect_once(db: Any, space: Subspace, name: str) -> None:
    body = Body(db, space, name)
    faults = iter(FAULTS)
    body.run(FaultyDatabase(db, lambda: next(faults, None)))
    body.check()


@pytest.mark.parametrize("name", EITHER)
def test_an_awaited_body_with_a_call_that_writes_takes_effect_once(db: Any, space: Subspace, name: str) -> None:
    body = Body(db, space, name)
    faults = iter(FAULTS)
    if hasattr(body.call.verb, "aio"):
        body.run_awaited(FaultyDatabase(db, lambda: next(faults, None)))
        body.check()


def markers(db: Any) -> list[bytes]:
    return [row.key for row in db.get_range_startswith(TRANSACTIONS)]


def test_the_result_is_that_of_the_attempt_that_took_effect(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    names = iter("abc")

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction) -> tuple[str, fdbqueue.Position]:
        name = next(names)
        return name, queue.enqueue(tr, name)

    name, position = buy(FaultyDatabase.failing_at(db, {0}, ("after", 1021)))
    assert name == "a"
    assert [item.position for item in queue.browse(db)] == [position]
    assert buy(FaultyDatabase.failing_at(db, {0}, ("before", 1021)))[0] == "c"
    assert [item.value for item in queue.browse(db)] == ["a", "c"]


def test_every_one_of_several_unknown_outcomes_is_looked_up(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    faults: Iterator[Fault] = iter([("before", 1021), ("before", 1020), ("after", 1021)])

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction) -> None:
        queue.enqueue(tr, "a cup")

    buy(FaultyDatabase(db, lambda: next(faults, None)))
    assert [item.value for item in queue.browse(db)] == ["a cup"]


def test_a_function_within_a_function_shares_its_marker(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    runs: list[str] = []

    @fdbqueue.transactional
    def inner(tr: fdbqueue.Transaction) -> None:
        runs.append("inner")
        queue.enqueue(tr, "a cup")

    @fdbqueue.transactional
    def outer(tr: fdbqueue.Transaction) -> None:
        runs.append("outer")
        inner(tr)

    outer(FaultyDatabase.failing_at(db, {0}, ("after", 1021)))
    assert runs == ["outer", "inner"]


def test_a_body_whose_calls_only_look_writes_no_marker(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    before = markers(db)

    @fdbqueue.transactional
    def look(tr: fdbqueue.Transaction) -> Any:
        leases = Leases(queue)
        return queue.dequeue(tr), leases.lease(tr), queue.dequeue_many(tr), queue.stats(tr)

    look(db)
    look(db)
    assert markers(db) == before


def test_calls_leave_one_marker_for_each_that_ran_beside_others(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    faulty = FaultyDatabase(db, lambda: None)
    before = markers(db)

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction, beside: int = 0) -> None:
        queue.enqueue(tr, "a cup")
        if beside:
            buy(faulty, beside - 1)

    for _ in range(3):
        buy(faulty)
    assert len(markers(db)) == len(before) + 1
    buy(faulty, 1)
    assert len(markers(db)) == len(before) + 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_timed_out_commit_is_raised_and_its_marker_is_not_reused(db: Any, space: Subspace, when: When) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    faulty = FaultyDatabase.failing_at(db, {0}, (when, 1031))
    runs: list[int] = []

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction) -> None:
        runs.append(1)
        queue.enqueue(tr, "a cup")

    before = markers(db)
    with pytest.raises(fdbqueue.FDBError, match="1031"):
        buy(faulty)
    assert len(runs) == 1
    timed_out = set(markers(db)) - set(before)
    buy(faulty)
    assert len(set(markers(db)) - set(before) - timed_out) == 1


@pytest.mark.engines("memory")
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("kind", [Leases, PriorityQueue, Sessions])
def test_a_handler_that_acks_in_its_own_transaction_has_done_its_item(
    db: Any, space: Subspace, kind: Any, *, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = kind(fdbqueue.Queue(space, codec="str"))
    source.enqueue(db, "a cup", **({"session": "ann"} if kind is Sessions else {}))
    acks = source.leases if kind is PriorityQueue else source
    faults: list[Fault] = []
    faulty = FaultyDatabase(db, lambda: faults.pop() if faults else None)
    handled: list[str] = []

    @fdbqueue.transactional
    def book(tr: fdbqueue.Transaction, lease: Lease) -> None:
        tr.add(space["sold"].key(), ONE)
        acks.ack(tr, lease)

    def handle(lease: Any) -> object:
        faults.append(("after" if after else "before", 1021))
        book(faulty, lease)
        handled.append(lease.value)
        return ACKED

    report = Consumer(source, handle, concurrency=1).drain(db)
    assert (report.acked, report.failed, report.lost, handled) == (1, 0, 0, ["a cup"])
    assert bytes(db[space["sold"].key()]) == ONE
    assert not caplog.records


def test_an_attempt_whose_calls_only_look_is_repeated(db: Any, space: Subspace) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    before = markers(db)
    runs: list[int] = []

    @fdbqueue.transactional
    def buy(tr: fdbqueue.Transaction) -> None:
        runs.append(1)
        if len(runs) == 1:
            queue.enqueue(tr, "a cup")

    buy(FaultyDatabase.failing_at(db, {0}, ("before", 1020)))
    assert len(runs) == 2
    assert markers(db) == before
