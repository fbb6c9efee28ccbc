"""A wrong argument of a session verb is refused with a clear sentence, and no key is touched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue import ChecksBypassed, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Messages,
    MessageType,
    SessionHandle,
    Sessions,
)
from tests.helpers.processes import Processes
from tests.helpers.sessions import do_all, fill, lease_of


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


def test_sessions_of_messages_are_enqueued_into_by_smart_sessions_only(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec=Messages(MessageType("bid", Bid))))
    with pytest.raises(ChecksBypassed, match="SmartSessions"):
        sessions.enqueue(db, Bid(1), session="ann")
