"""Consumers of every kind of queue are killed where they stand: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers import Sessions
from tests.helpers.faults import Dying
from tests.helpers.kinds import KINDS, Kind, kind_of
from tests.helpers.nightly import at_night
from tests.helpers.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.engines("file", "cluster")]

ITEMS = 120
WORKERS = 3
KILLS = 7
DURATION_S = 0.5
SESSIONS = 7


def some_kind(name: str, db: Any, space: Subspace) -> Kind:
    return replace(kind_of(name, db, space), sessions=SESSIONS)


def take(kind: Kind, db: Any, choice: random.Random) -> Sequence[Any]:
    """Lease some items, perhaps as a call that waits for them."""
    waits: dict[str, Any] = {"timeout": choice.choice((0, 0.2))}
    if isinstance(kind.leases, Sessions):
        lease = kind.taker.lease(db, duration=DURATION_S, **waits)
        return [lease] if lease is not None else []
    terms = waits if kind.taker is not kind.leases else {}
    return kind.taker.lease_many(db, limit=choice.randint(1, 9), duration=DURATION_S, **terms)  # type: ignore[no-any-return]


def work(url: str, key: bytes, name: str, seed: int, dies_at: int | None) -> None:
    """Take items and count each in the transaction that acks it, until all are counted. Some fail, some are slow."""
    choice, space, sound = random.Random(seed), Subspace((), key), fdbqueue.open(url)
    db: Any = sound if dies_at is None else Dying(sound, dies_at, choice.choice(("before", "after")))
    kind = some_kind(name, db, space)
    leases: list[Any] = []
    while leases or len(sound.get_range_startswith(space["done"].key())) < ITEMS:
        try:
            leases = leases or list(take(kind, db, choice))
            while leases:
                lease, dice = leases.pop(0), choice.random()
                if dice < 0.05:
                    kind.leases.nack(db, lease)
                    continue
                if dice < 0.07:
                    time.sleep(1.5 * DURATION_S)  # the lease is lost meanwhile
                number = lease.value["n"]
                tr = db.create_transaction()
                tr.add(space["done"].pack((number,)), (1).to_bytes(8, "little"))
                if not isinstance(kind.leases, Sessions):
                    kind.leases.ack(tr, lease)
                elif dice < 0.5:
                    kind.leases.ack(tr, lease, state=[*(lease.state or []), number])
                else:
                    state = [*(lease.state or []), number]
                    following = kind.leases.ack_and_next(tr, lease, state=state, duration=DURATION_S)
                    leases = [] if following is None else [following]
                tr.commit().wait()
        except (LeaseLost, FDBError):
            leases = []  # it comes back, or was done already


BY_DAY = ("leases", "staged", "sessions", "subscriptions")
OTHERS = sorted(KINDS.keys() - {*BY_DAY, "subscriptions of one process"})


@pytest.mark.parametrize("name", [*BY_DAY, *at_night(*OTHERS)])
def test_nothing_is_lost_and_nothing_done_twice_when_consumers_are_killed(
    db: Any, url: str, space: Subspace, processes: Processes, name: str
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    choice, kind = random.Random(seed), some_kind(name, db, space)
    start = partial(processes.start, work, url, space.key(), name)
    workers = [start(seed + n, choice.randint(3, 20)) for n in range(WORKERS)]
    deadline = time.monotonic() + 600
    kills = enqueued = 0
    while any(worker.exitcode != 0 for worker in workers):
        done = len(db.get_range_startswith(space["done"].key()))
        assert time.monotonic() < deadline, f"only {done} done; seed {seed}"
        if enqueued < ITEMS:
            kind.put(db, enqueued)
            enqueued += 1
        for place, worker in enumerate(workers):
            if worker.exitcode not in (None, 0):
                assert worker.exitcode == -signal.SIGKILL
                kills += 1
                workers[place] = start(seed + WORKERS + kills, choice.randint(3, 20) if kills < KILLS else None)
        time.sleep(0.01)  # looking at other processes has to be done by polling
    assert kills >= WORKERS
    rows = db.get_range_startswith(space["done"].key())
    # A commit whose outcome was unknown may have taken effect though the worker did not count on it; never twice.
    assert {space["done"].unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in rows} == dict.fromkeys(
        range(ITEMS), 1
    )
    assert kind.is_sound_and_empty(db)
    if isinstance(kind.leases, Sessions) and name != "sessions with slots":  # those write the state side by side
        in_order = [kind.leases.state(db, f"s{n}") for n in range(SESSIONS)]
        assert in_order == [list(range(n, ITEMS, SESSIONS)) for n in range(SESSIONS)]
