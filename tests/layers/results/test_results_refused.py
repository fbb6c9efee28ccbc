"""Results that can't be stored: every ack refuses them; a handler may return anything if nobody waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue import CodecError, ItemTooLarge, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Done, Lease, Leases, Results, Sessions, Subscriptions, immediately
from fdbqueue.layers.sessions import NewState
from tests.helpers.leasing import lease_of

WRONG = [pytest.param(object(), CodecError, id="object"), pytest.param(b"x" * 100_000, ItemTooLarge, id="too large")]


@pytest.mark.parametrize("waits", [True, False], ids=["awaited", "not awaited"])
@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_an_ack_refuses_a_result_that_can_not_be_stored(
    db: Any, leases: Leases, waits: bool, wrong: object, error: type[Exception]
) -> None:
    source: Any = Results(leases) if waits else leases
    for value in ("x", "y"):
        source.enqueue(db, value)
    first, second = lease_of(leases, db), lease_of(leases, db)
    handle: Any = first.handle
    calls: list[Any] = [
        lambda to: leases.ack(to, first, result=wrong),
        lambda to: leases.ack(to, handle, result=wrong),
        lambda to: leases.ack(to, first, result=Done(wrong)),
        lambda to: leases.ack_many(to, [first, second], results=[1, wrong]),
        lambda _: asyncio.run(awaited(leases.ack, first, wrong)),
    ]

    async def awaited(ack: Any, lease: Any, result: object) -> None:
        await ack.aio(db, lease, result=result)

    tr = db.create_transaction()
    for call in calls:
        for to in (db, tr):
            with pytest.raises(error):
                call(to)
    assert leases.stats(db).leased == 2
    leases.ack_many(db, [first, second], results=[1, {"n": 2}])


@pytest.mark.parametrize("waits", [True, False], ids=["awaited", "not awaited"])
@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_an_ack_in_a_session_refuses_a_result_that_can_not_be_stored(
    db: Any, space: Subspace, waits: bool, wrong: object, error: type[Exception]
) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    source: Any = Results(sessions) if waits else sessions
    source.enqueue(db, "x", session="ann")
    lease = sessions.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    for given in (lease, lease.handle):
        for verb in (sessions.ack, sessions.ack_and_next):
            for to in (db, tr):
                for result in (wrong, Done(wrong)):
                    with pytest.raises(error):
                        verb(to, given, result=result)
    sessions.ack(db, lease.handle, result=7)


@pytest.mark.parametrize("waits", [True, False], ids=["awaited", "not awaited"])
@pytest.mark.parametrize("kind", ["leases", "subscription", "sessions", "new state", "done"])
def test_a_handler_fails_if_its_result_is_to_be_stored_and_can_not_be(
    db: Any, space: Subspace, waits: bool, kind: str
) -> None:
    queue = Queue(space, codec="str")
    source: Any = Leases(queue, max_attempts=2, backoff=immediately)
    terms: dict[str, Any] = {}
    if kind in ("sessions", "new state"):
        source, terms = Sessions(queue, max_attempts=2, backoff=immediately), {"session": "ann"}
    (Results(source) if waits else source).enqueue(db, "x", **terms)
    consumed = Subscriptions(source).subscribe(db, "all") if kind == "subscription" else source

    def handle(lease: Lease) -> Any:
        if lease.attempt == 1:
            return {"new state": NewState(7, result=object()), "done": Done(object())}.get(kind, object())
        return 7

    report = Consumer(consumed, handle).drain(db)
    refused = waits or kind in ("new state", "done")
    assert (report.failed, report.acked) == (int(refused), 1)
