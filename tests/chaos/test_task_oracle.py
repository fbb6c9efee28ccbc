"""The oracle of tasks: it accepts a round without faults, and notices each promise that is broken by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.engine import Subspace
from tests.chaos.faults import ChaosClock, Odds
from tests.chaos.hand import Tools
from tests.chaos.history import History, Told, read_histories
from tests.chaos.kinds import Kind, queue_of
from tests.chaos.taskhands import KEYS, ONE, Caller, TaskSpaces, app_of, drain_tasks, gates_of_calls
from tests.chaos.taskpromises import judge_tasks


@pytest.fixture
def caller(db: Any, space: Subspace, tmp_path: Any) -> Caller:
    queue, history = queue_of(space, Kind.tasks), History(tmp_path, "me")
    clock = ChaosClock(Odds(), history, "seed")
    unused: Any = None
    tools = Tools(
        db, space, space["own"], Kind.tasks, queue, unused, unused, None, [], None, None, tmp_path, history, clock
    )
    return Caller(tools, 0, "seed")


def told(caller: Caller) -> list[Told]:
    return read_histories(caller.tools.folder)[0]


def broken(db: Any, caller: Caller) -> set[str]:
    verdict = judge_tasks(db, caller.tools.space, told(caller))
    return {name for name, found in verdict.violations.items() if found}


@pytest.fixture
def played(db: Any, caller: Caller) -> Caller:
    """A round in which each verb was called, and that was drained."""
    for verb in ("work_one", "chain", "group", "once", "once", "limited", "look_at_gates"):
        getattr(caller, verb)()
    assert drain_tasks(db, caller.tools.space, lambda: caller.tools.clock() + 7_200, caller.tools.history) == []
    return caller


def test_a_round_without_faults_breaks_nothing(db: Any, played: Caller) -> None:
    verdict = judge_tasks(db, played.tools.space, told(played))

    assert [found for found in verdict.violations.values() if found] == []
    assert {one.outcome for one in told(played)} == {"ok"}
    assert verdict.tallies["calls"]["effects"] == 1 + 3 + 4 + 1 + 4 + verdict.tallies["unique calls"]["is_new=True"] - 1
    assert verdict.tallies["limits"]["looks"] == 1


def change(name: str, number: int) -> Callable[[Any, TaskSpaces], None]:
    def body(db: Any, spaces: TaskSpaces) -> None:
        db[spaces.effects.pack((name,))] = number.to_bytes(8, "little")

    return body


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ([change("me/0/1", 2)], "calls"),
        ([change("me/0/1", 0)], "calls"),
        ([change("nobody", 1)], "calls"),
        ([change("tick 2026-01-01T00:00:00+00:00", 2)], "ticks"),
        ([change(f"tick 2026-01-01T00:00:{at:02}+00:00", 1) for at in (0, 5, 15)], "ticks"),
        ([lambda db, spaces: db.set(spaces.broken.pack(("beside it", "x")), b"")], "unique calls"),
    ],
)
def test_a_broken_promise_is_noticed(db: Any, played: Caller, changes: list[Any], promise: str) -> None:
    for one in changes:
        one(db, TaskSpaces(played.tools.space))

    assert broken(db, played) == {promise}


@pytest.mark.slow
def test_a_unique_call_beside_an_equal_one_is_noted(db: Any, played: Caller) -> None:
    spaces = TaskSpaces(played.tools.space)
    for key in range(KEYS):
        db[spaces.open.pack((key,))] = ONE  # as if one were under way

    played.once()

    assert "unique calls" in broken(db, played)


def test_gates_are_those_of_the_keys(db: Any, caller: Caller) -> None:
    for _ in range(12):
        caller.limited()

    gates = gates_of_calls(app_of(caller.tools.space, caller.tools.clock), db)
    assert {one.limit for one in gates} == {2}
    assert 0 < len(gates) <= KEYS
