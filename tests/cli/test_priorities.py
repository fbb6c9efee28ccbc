"""Priorities on the command line: who enqueues names them, everybody else need not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import EarliestDeadline
from tests.cli.conftest import Run, beside
from tests.cli.test_leasing import lines
from tests.cli.test_terminal import on_terminal

pytestmark = pytest.mark.engines("file", "cluster")


def test_every_command_takes_items_by_priority(run: Run, name: str) -> None:
    for priority, value in ((2, "1"), (0, "2"), (1, "3"), (0, "4"), (1, "5")):
        assert run("enqueue", name, "--priority", str(priority), "--levels", "3", value).exit_code == 0

    assert lines(run("browse", name).stdout) == [2, 4, 3, 5, 1]
    assert lines(run("peek", name, "--records").stdout)[0]["rank"] == 0
    assert lines(run("dequeue", name).stdout) == [2]
    leased = run("lease", name, "-n", "2").stdout
    assert [line["value"] for line in lines(leased)] == [4, 3]
    assert run("nack", name, stdin=leased.splitlines()[1]).exit_code == 0
    assert run("ack", name, stdin=leased.splitlines()[0]).exit_code == 0
    assert lines(run("dequeue", name, "--all").stdout) == [3, 5, 1]
    assert lines(run("check", name).stdout)[0]["ok"]


def test_the_queue_stores_its_levels_and_counts_their_items(run: Run, name: str) -> None:
    assert run("enqueue", name, "--levels", "amqp/3", "--priority", "9", "1").exit_code == 0
    assert run("enqueue", name, "2", "3").exit_code == 0
    assert run("enqueue", name, "--priority", "0", stdin="4\n5\n6\n").exit_code == 0

    told = lines(run("stats", name).stdout)[0]
    assert (told["order"], told["levels"]) == ("amqp/3", {"0": 1, "1": 2, "2": 3})
    assert lines(run("browse", name).stdout) == [1, 2, 3, 4, 5, 6]


def test_ten_levels_are_the_default_and_a_queue_without_priorities_has_no_order(run: Run, name: str) -> None:
    other = beside(name)
    run("enqueue", name, "--priority", "3", "1")
    run("enqueue", other, "1")

    assert lines(run("stats", name).stdout)[0]["order"] == "levels/10"
    assert "order" not in lines(run("stats", other).stdout)[0]


def test_items_after_a_position_are_browsed_over_the_levels(run: Run, name: str) -> None:
    for priority in (1, 0):
        run("enqueue", name, "--priority", str(priority), str(priority))
    first = lines(run("browse", name, "--records").stdout)[0]
    after = f"{first['rank']}:{first['index']}:{first['random']}"

    assert lines(run("browse", name, "--after", after).stdout) == [1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--priority", "10"), "integer from 0 to 9"),
        (("--priority", "-1"), "integer from 0 to 9"),
        (("--levels", "many"), "not a number of levels"),
        (("--levels", "amqp/11"), "1 to 10 priorities"),
        (("--levels", "0"), "1 to 256 levels"),
    ],
)
def test_a_priority_or_levels_that_can_not_be_are_refused(
    arguments: tuple[str, ...], told: str, run: Run, name: str
) -> None:
    refused = run("enqueue", name, "1", *arguments)

    assert refused.exit_code == errors.USAGE
    assert told in " ".join(refused.stderr.split())
    assert lines(run("stats", name).stdout)[0]["enqueued"] == 0


def test_another_order_than_the_queue_has_is_refused(run: Run, name: str, db: Any) -> None:
    queue = fdbqueue.Queue(tuple(json.loads(name)), codec="json", order=EarliestDeadline())
    Leases(queue).enqueue(db, 1, headers={"deadline": 2_000_000_000})

    for arguments in ((), ("--priority", "1"), ("--levels", "3")):
        refused = run("enqueue", name, "2", *arguments)
        assert refused.exit_code == errors.USAGE
        assert "in the order 'earliest deadline'" in refused.stderr
    told = lines(run("stats", name).stdout)[0]
    assert (told["order"], told["levels"], told["available"]) == ("earliest deadline", {}, 1)


@pytest.mark.slow
@pytest.mark.engines("file")
def test_a_terminal_shows_ranks_where_items_have_some(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'db'}"
    for arguments in (("enqueue", "jobs", "--priority", "4", "7"), ("enqueue", "plain", "7")):
        assert on_terminal(*arguments, url=url)[0] == 0

    assert "rank" in on_terminal("browse", "jobs", url=url)[1]
    assert "rank" not in on_terminal("browse", "plain", url=url)[1]
    shown = on_terminal("stats", "jobs", url=url)[1]
    assert "levels/10" in shown
    assert "level 4" in shown
