"""Every verb of sessions takes effect once, whatever becomes of its commits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails
from tests.helpers.sessions import lease_of

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]


def program(sessions: Sessions, db: Any, clock: Clock) -> list[Any]:
    """Use every verb, and return what each said."""
    said: list[Any] = []
    sessions.enqueue(db, "1", session="ann")
    sessions.enqueue(db, "later", session="ann", delay=5)
    said.append(sessions.enqueue_many(db, ["2", "3", "4"], session="bob", ttl=1_000).items)
    sessions.enqueue(db, "x" * 200_000, session="bob", level=0)
    ann, bob = lease_of(sessions, db, duration=10), lease_of(sessions, db, duration=10)
    said.append((ann.session, ann.value, bob.session, len(bob.value)))
    sessions.extend(db, ann, duration=100)
    sessions.set_state(db, ann, b"0")
    following: Any = sessions.ack_and_next(db, bob, state=b"1")
    said.append((following.value, following.state))
    said.append(sessions.nack(db, following, error="no", delay=3))
    sessions.ack(db, ann)
    said.append((sessions.state(db, "ann"), sessions.lease(db)))
    clock.now += 20
    lost = lease_of(sessions, db, duration=10)
    said.append((lost.session, lost.value, lost.attempt))
    clock.now += 20
    said.append(sorted(found.fate for found in sessions.reclaim(db).reclaimed))
    sessions.snooze(db, lease_of(sessions, db), delay=1)
    sessions.pause(db, "bob")
    clock.now += 20
    said.append([info.status for info in sessions.list(db)])
    sessions.resume(db, "bob")
    while (lease := sessions.lease(db)) is not None:
        while lease is not None:
            said.append((lease.session, lease.value, lease.attempt))
            lease = sessions.ack_and_next(db, lease)
    sessions.enqueue(db, "dead", session="cy")
    said += [sessions.nack(db, lease_of(sessions, db)) for _ in range(3)]
    said.append((sessions.redrive(db, "cy"), sessions.purge(db, "cy")))
    sessions.remove(db, "cy", later="renew")
    sessions.enqueue(db, "new", session="cy")
    while (lease := sessions.lease(db)) is not None:
        said.append((lease.value, lease.generation))
        sessions.ack(db, lease)
    said.append((sessions.stats(db), list(sessions.list(db))))
    return said


def outcome(db: Any, space: Subspace, plan: Plan) -> tuple[list[Any], int]:
    clock = Clock()
    faulty = FaultyDatabase(db, plan)
    sessions = Sessions(Queue(space, codec="str"), max_attempts=3, clock=clock)
    said = program(sessions, faulty, clock)
    assert sessions.check(db).problems == ()
    sessions.queue.clear(db)
    return said, faulty.commits


@pytest.mark.parametrize("fault", FAULTS)
def test_every_verb_is_exactly_once_when_any_commit_fails(db: Any, space: Subspace, fault: Fault) -> None:
    says_the_same_whichever_commit_fails(lambda plan: outcome(db, space, plan), fault, commits=25)


@given(plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=60))
def test_every_verb_is_exactly_once_under_random_faults(db: Any, plan: list[Fault | None]) -> None:
    space = Subspace(("fdbqueue tests", "sessions", "random faults"))
    expected, _ = outcome(db, space, lambda: None)
    faults = iter(plan)
    said, _ = outcome(db, space, lambda: next(faults, None))
    assert said == expected
