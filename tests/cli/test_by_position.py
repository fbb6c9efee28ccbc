"""Commands find, cancel, update and reschedule items by their positions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, PriorityQueue, Sessions
from tests.cli.conftest import Run

kept = pytest.mark.engines("file", "cluster")


def objects(text: str) -> list[Any]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


@kept
def test_items_are_found_changed_and_cancelled(db: Any, space: Subspace, run: Run, name: str) -> None:
    leases = Leases(Queue(space, codec="json"))
    first, second = (leases.enqueue(db, {"n": n}).text for n in (1, 2))
    lease = leases.lease(db, consumer="me")
    assert lease is not None

    [found, waits] = objects(run("get", name, first, second).stdout)
    assert (found["item"], found["state"], found["value"], found["consumer"]) == (first, "leased", {"n": 1}, "me")
    assert (waits["state"], "consumer" in waits) == ("available", False)
    assert objects(run("update", name, second, "--value", '{"n": 7}', "--headers", '{"a": 1}').stdout) == [
        {"item": second}
    ]
    assert objects(run("reschedule", name, second, "--delay", "60").stdout) == [{"item": second}]
    [waits] = objects(run("get", name, second).stdout)
    assert (waits["state"], waits["value"], waits["headers"]) == ("delayed", {"n": 7}, {"a": 1})
    assert run("cancel", name, first, second).exit_code == 0

    gone = run("cancel", name, first)
    assert (gone.exit_code, gone.stderr) == (1, f"The item {first} is not in the queue.\n")
    assert run("get", name, first).exit_code == 1
    lost = run("ack", name, str(lease.handle))
    assert lost.exit_code == 5
    assert leases.check(db).problems == ()


@kept
@pytest.mark.parametrize("command", [["get"], ["cancel"], ["update", "--value", "2"], ["reschedule", "--delay", "1"]])
def test_an_item_of_a_session_is_proposed_to_be_named_with_it(
    db: Any, space: Subspace, run: Run, name: str, command: list[str]
) -> None:
    queue = Queue(space, codec="json")
    elsewhere = run(command[0], name, "--session", "ann", "1:7:72", *command[1:])
    position = Sessions(queue).enqueue(db, 1, session="ann").text
    proposal = (
        f"it is an item of a session. Name the session, too: `fdbqueue {command[0]} QUEUE ITEM --session SESSION`"
    )

    missed = run(command[0], name, position, *command[1:])
    assert missed.exit_code == 2
    assert proposal in " ".join(missed.stderr.split())
    assert proposal not in elsewhere.stderr
    assert proposal not in run(command[0], name, "--session", "ann", "1:7:72", *command[1:]).stderr
    assert run(command[0], name, "--session", "ann", position, *command[1:]).exit_code == 0


@kept
def test_a_priority_and_a_level_give_an_item_another_position(db: Any, space: Subspace, run: Run, name: str) -> None:
    jobs = PriorityQueue(Queue(space, codec="json"), levels=3)
    position = jobs.enqueue(db, 1, priority=2).text

    [moved] = objects(run("reschedule", name, position, "--priority", "0").stdout)

    assert moved == {"item": f"0{position[1:]}", "was": position}
    [found] = objects(run("get", name, moved["item"]).stdout)
    assert (found["rank"], found["headers"]) == (0, {"priority": 0})
    assert run("reschedule", name, moved["item"], "--priority", "3").exit_code == 2
    own = Sessions(Queue(space, codec="json"))
    position = own.enqueue(db, 2, session="ann").text
    [moved] = objects(run("reschedule", name, position, "--session", "ann", "--level", "0").stdout)
    [found] = objects(run("get", name, moved["item"], "--session", "ann").stdout)
    assert (found["state"], found["value"]) == ("available", 2)
    assert run("cancel", name, moved["item"], "--session", "ann").exit_code == 0
    assert own.info(db, "ann") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "seven"),
        ("update", "7:61"),
        ("reschedule", "7:61"),
        ("reschedule", "7:61", "--delay", "1", "--at", "1"),
        ("reschedule", "7:61", "--delay", "-1"),
        ("reschedule", "7:61", "--level", "1"),
        ("reschedule", "7:61", "--level", "1", "--session", "ann", "--priority", "1"),
        ("update", "7:61", "--headers", "[1]"),
        ("cancel",),
    ],
)
def test_a_wrong_argument_is_a_usage_error(db: Any, run: Run, name: str, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments

    assert run(command, name, *rest).exit_code == 2


@kept
def test_a_position_in_place_of_a_handle_is_told_with_the_lease(db: Any, space: Subspace, run: Run, name: str) -> None:
    leases = Leases(Queue(space, codec="json"))
    first, second = (leases.enqueue(db, n).text for n in (1, 2))
    lease = leases.lease(db, consumer="me")
    assert lease is not None
    typed = msgspec.json.encode(msgspec.json.decode(name)).decode().replace(",", ", ")
    hint = f"`fdbqueue reschedule '{typed}' {first} --delay 0` takes it away.\n"

    for command in ("nack", "ack"):
        told = run(command, name, first)
        assert told.exit_code == 4
        assert f"'{first}' is an item's position and no lease's handle" in told.stderr
        assert "The item is leased by me until 20" in told.stderr
        assert told.stderr.endswith(hint)
        assert "The item is available." in run(command, name, second).stderr
        assert "The item is not in the queue." in run(command, name, "7:61").stderr
    buried = run("bury", name, first)
    assert buried.exit_code == 1
    assert buried.stderr.startswith(f"The item {first} is not available: it is leased by me until 20")
    assert buried.stderr.endswith(hint)
    assert run("reschedule", name, first, "--delay", "0").exit_code == 0
    assert run("bury", name, first).exit_code == 0
    assert run("bury", name, first).stderr == f"The item {first} is not available: it is dead.\n"
    assert run("nack", name, str(lease.handle)).exit_code == 5


@kept
def test_all_items_are_rescheduled_and_cancelled(db: Any, space: Subspace, run: Run, name: str) -> None:
    leases = Leases(Queue(space, codec="json"))
    for n in range(3):
        leases.enqueue(db, n, delay=600)
    leases.enqueue(db, 3)

    asked = run("reschedule", name, "--all", "--state", "delayed", "--delay", "0")
    assert asked.exit_code == 2
    moved = run("reschedule", name, "--all", "--state", "delayed", "--delay", "0", "--yes")
    assert len(objects(moved.stdout)) == 3
    assert leases.stats(db).available == 4
    assert run("cancel", name, "--all", "--limit", "1", "--yes").exit_code == 0
    assert run("cancel", name, "--all", "--yes").exit_code == 0
    assert leases.stats(db).available == 0
    assert run("cancel", name, "--all", "--yes").exit_code == 1
    for wrong in (
        ["--all", "--where", "a = 1"],
        ["--all", "1:61"],
        ["--all", "--session", "ann"],
        ["--limit", "1", "1:61"],
    ):
        assert run("cancel", name, *wrong, "--yes").exit_code == 2


@kept
def test_which_dead_letters_are_meant_is_said_once(run: Run, name: str) -> None:
    for command in ("redrive", "purge"):
        both = run(command, name, "--error", "X", "--all")
        assert both.exit_code == 2
        assert "--where" not in both.stderr
        assert "--error / --all" in both.stderr
        none = run(command, name)
        assert none.exit_code == 2
        assert "--error" in none.stderr
        assert run(command, name, "--error", "X", "--where", "a = 1").exit_code == 1
    assert "--error" not in run("cancel", name).stderr
