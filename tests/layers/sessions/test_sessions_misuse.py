"""A wrong argument of a session verb is refused with a clear sentence, and no key is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue import ChecksBypassed, CodecError, ItemTooLarge, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Groups,
    Lease,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    Results,
    SessionHandle,
    Sessions,
    SmartQueue,
)
from tests.helpers.processes import Processes
from tests.helpers.sessions import do_all, fill, lease_of

MAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Sessions("orders"), r"Sessions are of a Queue, as in Sessions\(Queue\('orders'\)\)"),  # type: ignore[arg-type]
    (lambda: Sessions(Leases(Queue("q"))), r"have leases and levels of their own"),  # type: ignore[arg-type]
    (lambda: Sessions(PriorityQueue(Queue("q")).queue), r"give the queue without an order"),
    (lambda: Sessions(Queue("q"), levels=0), "levels is the number of levels of a session, from 1 to 256"),
    (lambda: Sessions(Queue("q"), levels="2"), "levels is the number of levels of a session, an integer"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), quantum=0), "quantum is how many items .* at least 1"),
    (lambda: Sessions(Queue("q"), quantum=True), "quantum is how many items .* an integer"),
    (lambda: Sessions(Queue("q"), max_attempts=0), "max_attempts is at least 1"),
    (lambda: Sessions(Queue("q"), weights=3), "weights is a function"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), backoff=1.0), "backoff is a function"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), clock=7), "clock is a function"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), on_dead="stop"), "on_dead is 'go on' or 'block', not 'stop'"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), delays="wait"), "delays is 'pass' or 'hold', not 'wait'"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("q"), consumer=7), "consumer is a text"),  # type: ignore[arg-type]
    (lambda: Sessions(Queue("x" * 7_000)), "queue's name .* sessions"),
    (lambda: SessionHandle.parse("7:72616e64:746f6b65"), "is no handle of a session's lease"),
]


@pytest.mark.parametrize(("make", "told"), MAKES)
def test_wrong_terms_are_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        make()


def _of_ann(verb: str, *wrong: Any, **terms: Any) -> Callable[[Sessions, Any, Any], Any]:
    return lambda sessions, db, lease: getattr(sessions, verb)(db, "ann", *wrong, **terms)


CALLS: list[tuple[Callable[[Sessions, Any, Any], Any], str]] = [
    (lambda s, db, lease: s.enqueue(db, "x", session=None), "named by a str, bytes or a tuple, not None"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.enqueue(db, "x", session=7), "named by a str, bytes or a tuple, not 7"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.enqueue(db, "x", session=""), "needs a name"),
    (lambda s, db, lease: s.enqueue(db, "x", session=()), "needs a name"),
    (lambda s, db, lease: s.enqueue(db, "x", session=({},)), "can't be a key"),
    (lambda s, db, lease: s.enqueue(db, "x", session="x" * 1_001), "It may have 1,000"),
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", level=2), "an integer from 0 to 1, not 2"),
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", level="high"), "an integer from 0 to 1, not 'high'"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", level=True), "an integer from 0 to 1, not True"),
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", delay=-1), "delay is a number of seconds, 0 or more"),
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", delay=1, at=2), "after a delay, or at a time; not both"),
    (lambda s, db, lease: s.enqueue(db, "x", session="ann", ttl=0), "ttl is a number of seconds, more than 0"),
    (lambda s, db, lease: s.enqueue(db, b"x", session="ann"), "codec is 'str'"),
    (lambda s, db, lease: s.enqueue(db, "x" * 8_000_001, session="ann"), "over the limit"),
    (lambda s, db, lease: s.enqueue(None, "x", session="ann"), "A database or a transaction was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.enqueue_many(db, "x", session="ann"), r"Give \[value\]"),
    (lambda s, db, lease: s.enqueue_many(db, 7, session="ann"), "are an iterable"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.enqueue_many(db, ["x"], session=lambda value: None), "not None"),  # type: ignore[arg-type,return-value]
    (lambda s, db, lease: s.lease(db, duration=0), "duration is a number of seconds, more than 0"),
    (lambda s, db, lease: s.lease("memory:"), "A database or a transaction was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.ack(db, None), "A session's lease was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.ack(db, "ann"), "A session's lease was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.ack(db, Lease(lease.position, "", {}, b"", 0.0, 1, "")), "A session's lease was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.ack(db, lease, state="text"), "must be bytes"),
    (lambda s, db, lease: s.ack_and_next(db, lease, duration=-1), "duration is a number of seconds"),
    (lambda s, db, lease: s.nack(db, lease, delay="soon"), "delay is a number of seconds"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.snooze(db, lease, delay=float("nan")), "delay is a number of seconds"),
    (lambda s, db, lease: s.extend(db, lease, duration=None), "duration is a number of seconds"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.pause(db, 7), "named by a str, bytes or a tuple"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.remove(db, "ann", later="drop"), "later is 'refuse' or 'renew', not 'drop'"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.redrive(db, "ann", "first"), "named by its Position"),  # type: ignore[arg-type]
    *(
        (_of_ann(verb, wrong), "named by its Position")
        for verb in ("redrive", "purge")
        for wrong in ("", b"", {"a": 1})
    ),
    *((_of_ann(verb, limit=10**19), r"less than 2\^63") for verb in ("dead", "scheduled", "redrive", "purge")),
    (lambda s, db, lease: s.redrive(db, "ann", 5), "named by its Position"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.list(db, limit="3"), "limit is how many items to show, an integer"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.nack(db, lease, error=ValueError("x")), "error is a text"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.redrive(db, "ann", limit=0), "limit is how many dead letters"),
    (lambda s, db, lease: s.purge(db, "ann", [Position(1, b""), 7]), "named by its Position"),  # type: ignore[list-item]
    (lambda s, db, lease: s.scheduled(db, "ann", limit=-1), "limit is how many items"),
    (lambda s, db, lease: s.dead(db, "ann", limit="all"), "limit is how many items"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.list(db, status="asleep"), "status is one of 'ready'"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.list(None), "A database or a transaction was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.check(None), "A database or a transaction was expected"),  # type: ignore[arg-type]
    (lambda s, db, lease: s.stats("memory:"), "A database or a transaction was expected"),  # type: ignore[arg-type]
]


@pytest.mark.engines("memory")
@pytest.mark.parametrize(("call", "told"), CALLS)
def test_wrong_arguments_are_refused_and_no_key_is_touched(
    db: Any, space: Subspace, call: Callable[[Sessions, Any, Any], Any], told: str
) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, "ann:1", "ann:2")
    lease = lease_of(sessions, db)
    rows = list(map(tuple, db.get_range_startswith(space.key())))
    with pytest.raises((TypeError, ValueError, CodecError, ItemTooLarge), match=told):
        call(sessions, db, lease)
    tr = db.create_transaction()
    if "database or a transaction" not in told:
        with pytest.raises((TypeError, ValueError, CodecError, ItemTooLarge), match=told):
            call(sessions, tr, lease)
        tr.commit().wait()
    assert list(map(tuple, db.get_range_startswith(space.key()))) == rows


@pytest.mark.engines("file")
def test_a_forked_process_works_on_the_same_sessions(db: Any, url: str, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, "ann:1", "bob:1")
    sessions.ack(db, lease_of(sessions, db))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            import fdbqueue

            own = fdbqueue.open(url)
            code = 0 if do_all(sessions, own) == ["bob:1"] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sessions.lease(db) is None


@pytest.mark.engines("file", "cluster")
def test_a_handle_can_be_sent_to_the_process_that_acks(
    db: Any, url: str, space: Subspace, processes: Processes
) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    fill(sessions, db, "ann:1", "ann:2")
    processes.run(acks, url, space.key(), str(lease_of(sessions, db).handle))
    assert do_all(sessions, db) == ["ann:2"]


def acks(url: str, key: bytes, handle: str) -> None:
    import fdbqueue

    with fdbqueue.open(url) as db:
        Sessions(Queue(Subspace((), key), codec="str")).ack(db, SessionHandle.parse(handle))


@dataclass
class Bid:
    """A message."""

    lot: int


def test_a_smart_queue_of_sessions_is_refused_with_the_remedy(queue: Queue) -> None:
    for given in (Sessions(queue), Results(Sessions(queue)), Groups(Sessions(queue))):
        with pytest.raises(TypeError, match=r"For checks within a session take SmartSessions\(sessions\).*taken by"):
            SmartQueue(given)  # type: ignore[arg-type]


def test_sessions_of_messages_are_enqueued_into_by_smart_sessions_only(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec=Messages(MessageType("bid", Bid))))
    with pytest.raises(ChecksBypassed, match="SmartSessions"):
        sessions.enqueue(db, Bid(1), session="ann")
