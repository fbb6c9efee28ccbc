"""Awaited verbs of one transaction side by side: each sees what those before it have written, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace, verb
from fdbqueue.layers import Leases, PriorityQueue, Sessions
from tests.helpers.rounds import Rounds


def together(db: Any, *calls: Any) -> list[Any]:
    """Await calls side by side in one transaction; each call gets the transaction."""

    @fdbqueue.transactional
    async def body(tr: Any) -> list[Any]:
        return await asyncio.gather(*(call(tr) for call in calls))

    async def main() -> list[Any]:
        return await body(Rounds(db))  # no read comes at once, as on a cluster

    found = asyncio.run(main())
    assert not verb.under_way, "a transaction was not forgotten"
    return found


def test_items_are_taken_once(db: Any, space: Subspace) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    queue.enqueue_many(db, ["a", "b", "c", "d"])
    items = together(db, *[queue.dequeue.aio] * 3)
    assert [item.value for item in items] == ["a", "b", "c"]
    assert [item.value for item in queue.browse(db)] == ["d"]
    assert queue.check(db).ok


def test_items_are_leased_once(db: Any, space: Subspace) -> None:
    leases: Leases[str] = Leases(Queue(space, codec="str"))
    leases.enqueue_many(db, ["a", "b", "c"])
    found = together(db, *[leases.lease.aio] * 4)
    assert [lease and lease.value for lease in found] == ["a", "b", "c", None]
    together(db, *[lambda tr, lease=lease: leases.ack.aio(tr, lease) for lease in found[:3]])
    assert leases.check(db).ok
    assert leases.stats(db).leased == 0


def test_an_item_is_cancelled_once(db: Any, space: Subspace) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    position = queue.enqueue(db, "a")
    found = together(db, *[lambda tr: queue.cancel.aio(tr, position)] * 2)
    assert [bool(one) for one in found] == [True, False]
    assert queue.check(db).ok


def test_items_with_priorities_are_taken_once(db: Any, space: Subspace) -> None:
    queue: PriorityQueue[str] = PriorityQueue(Queue(space, codec="str"))
    for number, value in enumerate("abc"):
        queue.enqueue(db, value, priority=number)
    found = together(db, *[queue.dequeue.aio] * 3)
    assert sorted(item.value for item in found) == ["a", "b", "c"]
    assert queue.check(db).ok


def test_sessions_keep_their_order(db: Any, space: Subspace) -> None:
    sessions: Sessions[str] = Sessions(Queue(space, codec="str"))
    together(db, *[lambda tr, n=n: sessions.enqueue.aio(tr, str(n), session="ann") for n in range(3)])
    assert sessions.check(db).ok
    together(db, *[lambda tr: sessions.enqueue.aio(tr, "x", session="bob")])
    [ann, bob, none] = together(db, *[sessions.lease.aio] * 3)
    assert (ann.value, bob.value, none) == ("0", "x", None)
    together(db, lambda tr: sessions.ack.aio(tr, ann), lambda tr: sessions.ack.aio(tr, bob))
    assert sessions.check(db).ok


def test_a_verb_that_is_cancelled_or_fails_lets_the_next_one_run(db: Any, space: Subspace) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    queue.enqueue_many(db, ["a", "b", "c"])

    async def main() -> tuple[Any, ...]:
        tr = db.create_transaction()
        first, second = (asyncio.ensure_future(queue.dequeue.aio(tr)) for _ in range(2))
        wrong: Coroutine[Any, Any, Any] = queue.get.aio(tr, "no position")  # type: ignore[arg-type]
        third = asyncio.ensure_future(queue.dequeue.aio(tr))
        second.cancel()
        found = await asyncio.gather(first, second, wrong, third, return_exceptions=True)
        await asyncio.wait_for(fdbqueue.aio(tr.commit()), 30)
        return tuple(found)

    first, second, wrong, third = asyncio.run(main())
    assert first.value == "a"
    assert third.value == "b"
    assert isinstance(second, asyncio.CancelledError)
    assert isinstance(wrong, TypeError)
    assert queue.check(db).ok
    assert not verb.under_way


@pytest.mark.parametrize("number", [1, 3])
def test_transactions_run_side_by_side(db: Any, space: Subspace, number: int) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    queue.enqueue_many(db, ["a"] * number)

    async def main() -> None:
        trs = [db.create_transaction() for _ in range(number)]
        assert len(await asyncio.gather(*(queue.dequeue.aio(tr) for tr in trs))) == number

    asyncio.run(main())
