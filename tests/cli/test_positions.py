"""Positions travel: each command prints INDEX:RANDOM, and each command takes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fdbqueue import Position, Queue
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file", "cluster")


@pytest.mark.parametrize("options", [(), ("--delay", "60"), ("--session", "ann"), ("--group", "g")])
def test_enqueue_prints_the_positions_of_its_values(run: Run, name: str, options: tuple[str, ...]) -> None:
    enqueued = run("enqueue", name, "1", "2", *options)
    assert enqueued.exit_code == 0, enqueued.stderr
    places = enqueued.stdout.split()
    assert len(places) == 2
    within = options if "--session" in options else ()
    found = run("get", name, *places, *within).stdout.splitlines()
    assert [(json.loads(line)["item"], json.loads(line)["value"]) for line in found] == [(places[0], 1), (places[1], 2)]
    assert run("cancel", name, *places, *within).exit_code == 0


def test_plain_values_are_stored_as_by_a_plain_enqueue(run: Run, name: str, db: Any, space: Any) -> None:
    [place] = run("enqueue", name, "1").stdout.split()
    position = Queue(space, codec="json").enqueue(db, 1)
    layout = Queue(space).layout
    assert bytes(db[layout.item_key(Position.parse(place))]) == bytes(db[layout.item_key(position)])


def test_lines_of_standard_input_are_enqueued_silently(run: Run, name: str) -> None:
    assert run("enqueue", name, stdin="1\n2\n").stdout == ""


@pytest.mark.parametrize("levels", [(), ("--priority", "1", "--levels", "3")])
def test_records_show_the_position_that_other_commands_take(run: Run, name: str, levels: tuple[str, ...]) -> None:
    [place] = run("enqueue", name, "1", *levels).stdout.split()
    for command in (("browse",), ("peek",)):
        record = json.loads(run(*command, name, "--records").stdout)
        assert record["item"] == place
    assert json.loads(run("get", name, place).stdout)["item"] == place
    taken = run("dequeue", name, "--records").stdout
    assert json.loads(taken)["item"] == place
    assert run("enqueue", name, "--records", *levels[2:], stdin=taken).exit_code == 0
