"""A state is decoded by the codec that wrote it, and by no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import OtherCodec, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.sessions import NewState, SessionLease, Sessions
from tests.helpers.reading import Reading

REFUSED = r"have the codec 'json', and not 'msgpack'.*state_codec='json'"


def made(space: Subspace, codec: str) -> Sessions[int]:
    return Sessions(Queue(space, codec="json"), state_codec=codec)


def with_state(db: Any, space: Subspace) -> Sessions[int]:
    """Return sessions of which Ann has the state 5, in JSON, and one more item."""
    sessions = made(space, "json")
    sessions.enqueue_many(db, [1, 2], session="Ann")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.ack(db, lease, state=5)
    return sessions


def taken(sessions: Sessions[int], db: Any) -> SessionLease[int]:
    lease = sessions.lease(db)
    assert lease is not None
    return lease


READS: dict[str, Callable[[Sessions[int], Any], object]] = {
    "state": lambda sessions, db: sessions.state(db, "Ann"),
    "state in a transaction": lambda sessions, db: sessions.state(db.create_transaction(), "Ann"),
    "lease": lambda sessions, db: sessions.lease(db),
    "lease in a transaction": lambda sessions, db: sessions.lease(db.create_transaction()),
    "consumer": lambda sessions, db: Consumer(sessions, print, concurrency=1).drain(db),
}


@pytest.mark.parametrize("name", sorted(READS))
def test_a_state_of_another_codec_is_refused_by_every_read(db: Any, space: Subspace, name: str) -> None:
    right = with_state(db, space)
    with pytest.raises(OtherCodec, match=REFUSED):
        READS[name](made(space, "msgpack"), db)

    lease = right.lease(db, timeout=60)
    assert lease is not None
    assert (lease.value, lease.attempt, lease.state) == (2, 1, 5)


WRITES: dict[str, Callable[[Sessions[int], Any, SessionLease[int]], object]] = {
    "ack": lambda sessions, db, lease: sessions.ack(db, lease, state=53),
    "ack in a transaction": lambda sessions, db, lease: sessions.ack(db.create_transaction(), lease, state=53),
    "ack_and_next": lambda sessions, db, lease: sessions.ack_and_next(db, lease, state=53),
    "set_state": lambda sessions, db, lease: sessions.set_state(db, lease, 53),
}


@pytest.mark.parametrize("name", sorted(WRITES))
@pytest.mark.parametrize("codec", ["msgpack", "bytes"])
def test_a_state_of_another_codec_is_refused_by_every_write(db: Any, space: Subspace, name: str, codec: str) -> None:
    right = with_state(db, space)
    right.enqueue(db, 3, session="Bob")
    other, value = made(space, codec), 53 if codec == "msgpack" else b"53"
    ann = taken(right, db)
    bob = taken(right, db)  # Bob has no state
    assert (ann.session, bob.session) == ("Ann", "Bob")

    def call(lease: SessionLease[int]) -> None:
        if codec == "msgpack":
            WRITES[name](other, db, lease)
        else:
            other.ack(db, lease, state=value)

    for lease in (ann, bob):
        with pytest.raises(OtherCodec, match="Give Sessions state_codec='json'"):
            call(lease)
    right.ack(db, ann)
    right.ack(db, bob, state=7)
    assert (right.state(db, "Ann"), right.state(db, "Bob")) == (5, 7)


def test_a_consumer_with_another_codec_ends_and_commits_no_state(db: Any, space: Subspace) -> None:
    right = with_state(db, space)
    right.ack(db, taken(right, db), state=5)
    right.enqueue(db, 3, session="Bob")
    with pytest.raises(OtherCodec, match=REFUSED):
        Consumer(made(space, "msgpack"), lambda lease: NewState(53), concurrency=1).drain(db)

    assert right.state(db, "Bob") is None
    lease = right.lease(db, timeout=40)
    assert lease is not None
    assert lease.value == 3


def test_the_codec_bytes_reads_every_state(db: Any, space: Subspace) -> None:
    with_state(db, space)
    raw: Sessions[int] = Sessions(Queue(space, codec="json"))
    assert raw.state(db, "Ann") == b"5"
    lease = taken(raw, db)
    assert lease.state == b"5"
    raw.ack(db, lease)
    assert raw.state(db, "Ann") == b"5"


def test_another_codec_may_follow_when_no_session_has_a_state(db: Any, space: Subspace) -> None:
    right, other = with_state(db, space), made(space, "msgpack")
    right.ack(db, taken(right, db), state=None)
    other.enqueue(db, 3, session="Ann")
    other.ack(db, taken(other, db), state=53)
    assert made(space, "msgpack").state(db, "Ann") == 53
    with pytest.raises(OtherCodec, match="have the codec 'msgpack'"):
        made(space, "json").state(db, "Ann")


def test_the_codec_of_older_states_is_unknown_and_stays_so(db: Any, space: Subspace) -> None:
    with_state(db, space)
    del db[space["state"].key()]

    other = made(space, "msgpack")
    assert other.state(db, "Ann") == 53  # the byte of "5"
    other.ack(db, taken(other, db), state=53)
    assert db[space["state"].key()] is None


def test_two_first_states_of_two_codecs_conflict(db: Any, space: Subspace) -> None:
    right, other = made(space, "json"), made(space, "msgpack")
    right.enqueue(db, 1, session="Ann")
    right.enqueue(db, 2, session="Bob")
    ann, bob = taken(right, db), taken(right, db)
    one, two = db.create_transaction(), db.create_transaction()
    right.ack(one, ann, state=5)
    other.set_state(two, bob, 53)
    one.commit().wait()
    with pytest.raises(Exception, match=r"conflict|not_committed|1020"):
        two.commit().wait()


def test_states_are_removed_with_their_codec(db: Any, space: Subspace) -> None:
    sessions = with_state(db, space)
    assert sessions.check(db).problems == ()
    sessions.clear(db)
    assert db[space["state"].key()] is None


@pytest.mark.engines("memory", "file")
def test_the_codec_is_read_once_a_minute(db: Any, space: Subspace) -> None:
    with_state(db, space)
    sessions = made(space, "json")
    reading = Reading(db)
    counts = []
    for _ in range(3):
        before = reading.reads
        sessions.state(reading, "Ann")
        counts.append(reading.reads - before)
    assert counts == [3, 2, 2], "the state, whether the queue was renamed, and the codec"
