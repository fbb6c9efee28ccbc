"""Foreign keys and envelopes in any family: each verb works, or raises an error that names one of them, and soon.

By day a few hundred keys are written, and 100,000 at night. A failure names the call, the round, and the keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
import fdbqueue.spark
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Groups, Leases
from fdbqueue.moves.ends import group_keys
from tests.helpers.nightly import at_night
from tests.helpers.tampering import Played, Round, Shell, culprits
from tests.helpers.watching_commits import WatchedCommits

ROUNDS, KEYS = 5, 1_000
"""What a seed of the night has. By day it is one round, with fewer keys."""
SHOWN = 5
"""How many keys a failure shows."""
BY_DAY = {0: 3, 1: 60, 2: 300}
"""The number of keys, by the seed. With few keys the calls get farther."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*BY_DAY, *at_night(*range(100, 120))])
@pytest.mark.engines("memory", "cluster")
def test_each_verb_works_or_names_what_is_wrong(
    db: Any,
    space: Subspace,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # consumers and schedules log what they pass by
    keys = BY_DAY.get(seed, KEYS)
    for number in range(1 if seed in BY_DAY else ROUNDS):
        terms: dict[str, Any] = {"keys": keys, "shell": Shell(monkeypatch), "folder": tmp_path}
        made = partial(Round, db, space[number], f"{seed}/{number}", **terms)
        played, one = Played(), made()
        one.play(played)
        assert played.keys >= keys
        assert not played.failures, told(played, one.planted or {}, made)


def told(played: Played, planted: dict[bytes, bytes], made: Callable[..., Round]) -> str:
    """Return the failures of a round, and the keys by which the first one fails again alone, if they are found."""
    first = played.failures[0]
    keys = culprits(lambda some: made(planted=some), first, planted)
    fewest = {key: planted[key] for key in keys[:SHOWN]}
    return f"{first.call} fails by {len(keys):,} keys, such as {fewest}:\n" + "\n".join(map(str, played.failures))


@pytest.mark.engines("memory")
def test_commits_without_a_change_are_counted(db: Any, space: Subspace) -> None:
    watched = WatchedCommits(db)
    for value in (b"new", b"new", b"other"):
        tr = watched.create_transaction()
        tr.set(space.key(), value)
        tr.clear(space.key() + b"nothing")
        tr.commit().wait()
    assert (watched.commits, watched.idle) == (3, 1)


@pytest.mark.parametrize("name", ["", "x" * 1_001])
@pytest.mark.engines("memory", "cluster")
def test_a_key_with_a_name_of_another_length_is_foreign(db: Any, space: Subspace, name: str) -> None:
    queue: Queue[bytes] = Queue(space)
    queue.enqueue(db, b"item")
    for key in (
        queue.layout.groups.pack((name, "record")),
        queue.layout.streams.pack((name,)),
        queue.layout.jobs.pack((name,)),
    ):
        db[key] = b"x"
    assert list(Groups(Leases(queue)).list(db)) == []
    assert list(fdbqueue.spark.streams(db, space)) == []
    assert list(fdbqueue.spark.jobs(db, space)) == []
    assert fdbqueue.check(db, queue, remove_foreign=True).removed == 3


@pytest.mark.engines("memory", "cluster")
def test_foreign_members_stop_no_cancel_of_a_group(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="str"))
    group = Groups(leases).open(db, "mine")
    group.enqueue(db, "member")
    layout = leases.layout
    for tail in (b"", b"\x15\x07\x02text\x00", b"\x15", b"\x14\x14"):
        foreign = group_keys(layout, "mine").members + tail
        db[foreign] = b""
        db[layout.available.key(tail)] = b"\x10x"
    assert group.cancel(db).state == "cancelled"
    assert group.stats(db).available == 0
