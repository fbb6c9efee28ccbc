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

from fdbqueue.engine import Subspace
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
