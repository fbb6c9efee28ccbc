"""Every verb of subscriptions takes effect once, whatever becomes of its commits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions.waiters import Waiters
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, Plan, says_the_same_whichever_commit_fails

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020)]


def program(leases: Leases, db: Any, sound: Any, clock: Clock) -> list[Any]:
    """Use every verb, and return what each said."""
    subscriptions = Subscriptions(leases)
    line = Waiters(leases.layout)
    said: list[Any] = []
    red = subscriptions.subscribe(db, "red", selector="color = 'red'")
    everything = subscriptions.subscribe(db, "all")
    for n, color in enumerate(["red", "blue", "red", "red"]):
        leases.enqueue(db, f"{color}{n}", headers={"color": color})
    red.grant(db, items=3)
    taken = red.lease_many(db, limit=2, duration=10)
    said.append([(lease.value, lease.attempt) for lease in taken])
    red.ack(db, taken[0])
    leases.nack(db, taken[1])
    said.append((red.credit(db), [lease.value for lease in everything.lease_many(db, limit=1, duration=100)]))
    red.suspend(db)
    said.append(red.lease(db))
    red.resume(db)
    said.append([(lease.value, lease.attempt) for lease in red.lease_many(db, duration=10)])
    clock.now += 20
    said.append([(lease.value, lease.attempt) for lease in red.lease_many(db, limit=1, timeout=1)])
    said.append(red.lease(db, timeout=0.01) is not None)
    said.append(red.lease(db, timeout=0.01))
    said.append(subscriptions.enqueue(db, "nobody", immediate=True))
    tr = sound.create_transaction()
    line.register(tr, line.wish(tr, b"client", "all", leases.now_us()))
    tr.commit().wait()
    delivery = subscriptions.enqueue(db, "pushed", immediate=True)
    said.append(delivery and delivery.subscription)
    delivery = subscriptions.enqueue(db, "stays")
    said.append(delivery and delivery.subscription)
    said.append([subscriptions.unsubscribe(db, name) for name in ("red", "red")])
    said.append(subscriptions.unsubscribe(db, "all"))
    mine = subscriptions.subscribe(db, "mine", exclusive=True)
    said.append([lease.value for lease in mine.lease_many(db)])
    tr = sound.create_transaction()
    line.register(tr, line.wish(tr, b"client", "mine", leases.now_us()))
    tr.commit().wait()
    delivery = subscriptions.enqueue(db, "straight", immediate=True)
    said.append(delivery and delivery.subscription)
    said.append(mine.lease(db, timeout=0.01))
    subscriptions.enqueue(db, "waited for")
    said.append([(lease.value, lease.attempt) for lease in mine.lease_many(db, timeout=1)])
    stats = leases.queue.stats(db)
    said.append((stats.available, stats.leased, stats.enqueued, stats.dequeued))
    return said


def outcome(db: Any, space: Subspace, plan: Plan) -> tuple[list[Any], int]:
    clock = Clock()
    faulty = FaultyDatabase(db, plan)
    leases = Leases(Queue(space, codec="str"), clock=clock)
    said = program(leases, faulty, db, clock)
    assert Subscriptions(leases).check(db).problems == ()
    leases.queue.clear(db)
    return said, faulty.commits


@pytest.mark.parametrize("fault", FAULTS)
def test_every_verb_is_exactly_once_when_any_commit_fails(db: Any, space: Subspace, fault: Fault) -> None:
    says_the_same_whichever_commit_fails(lambda plan: outcome(db, space, plan), fault, commits=16)


@given(plan=st.lists(st.none() | st.sampled_from(FAULTS), max_size=60))
def test_every_verb_is_exactly_once_under_random_faults(db: Any, plan: list[Fault | None]) -> None:
    space = Subspace(("fdbqueue tests", "subscriptions", "random faults"))
    expected, _ = outcome(db, space, lambda: None)
    pending = iter(plan)
    assert outcome(db, space, lambda: next(pending, None))[0] == expected
