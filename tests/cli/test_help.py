"""The help of the commands: it fits every width, and its examples can be run."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import typer
from rich.cells import cell_len
from typer import rich_utils
from typer.testing import CliRunner

from fdbqueue.cli import app
from fdbqueue.cli.agents import agents
from fdbqueue.cli.app import COMMANDS, SECTIONS
from fdbqueue.cli.helptext import NARROW_COLUMNS, arguments_of
from fdbqueue.cli.options import command_of
from tests.helpers.nightly import at_night

WIDTHS = (40, 200, *at_night(80, 120))
AGENTS = [one.callback.__name__ for one in agents.registered_commands if one.callback]
names = pytest.mark.parametrize("name", [command.__name__ for command in COMMANDS])


@cache
def built() -> Any:
    return typer.main.get_command(app)


@cache
def help_of(name: str, width: int) -> str:
    """Return a command's help on a terminal of some width."""
    with patch.object(rich_utils, "MAX_WIDTH", width):
        return CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": str(width)}).stdout


def text_of(name: str, width: int) -> list[str]:
    """Return the lines between a command's usage and its table of options."""
    before = re.split("╭|^Options:|^Arguments:", help_of(name, width), maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip() for line in before.strip().splitlines()]
    return lines[lines.index("") :]


@pytest.mark.parametrize("width", WIDTHS)
@names
def test_a_line_of_the_help_ends_only_where_the_next_word_does_not_fit(name: str, width: int) -> None:
    lines = text_of(name, width)

    assert all(cell_len(line) <= width for line in lines)
    for line, following in itertools.pairwise(lines):
        if line and following and not following.startswith("Example:"):
            assert cell_len(f"{line} {following.split()[0]}") > width - 4, (line, following)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_help_lists_all_commands_in_sections(width: int) -> None:
    parts = re.split("╭─ (.*?) ─+╮", help_of("", width))[1:]
    shown = dict(zip(parts[::2], parts[1::2], strict=True))

    assert list(shown) == ["Options", *SECTIONS]
    for section, commands in SECTIONS.items():
        assert all(f"│ {command.__name__.rstrip('_')} " in shown[section] for command in commands)


@names
def test_the_help_of_every_command_has_one_example_that_parses(name: str) -> None:
    [example] = re.findall(r"Example: fdbqueue (.*)", " ".join(text_of(name, 200)).strip())
    arguments = shlex.split(re.sub(r" [<>] \S+$", "", example))

    assert arguments[0] == name
    group = built()
    command: Callable[..., object] = group.commands[name].make_context
    assert command(name, arguments[1:])


@pytest.mark.parametrize("width", [40, NARROW_COLUMNS - 1, NARROW_COLUMNS])
@pytest.mark.parametrize("name", [command.__name__ for command in COMMANDS] + [f"agents {one}" for one in AGENTS])
def test_the_help_names_every_option_in_full_also_on_a_narrow_terminal(name: str, width: int) -> None:
    wide, narrow = help_of(name, 200), help_of(name, width)

    assert "…" not in narrow
    assert set(re.findall(r"--[a-z-]+", wide)) <= set(re.findall(r"--[a-z-]+", narrow))


@pytest.mark.parametrize("arguments", ["sessions q --pause", "register q --backoff", "agents run --lock"])
def test_an_option_without_its_value_is_answered_with_the_usage(arguments: str) -> None:
    refused = CliRunner().invoke(app, shlex.split(arguments), env={"COLUMNS": "80"})

    assert refused.exit_code == 2
    assert refused.stderr.startswith("Usage: ")
    assert "requires an argument" in refused.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_each_argument_that_a_docstring_names_is_one(command: Callable[..., object]) -> None:
    assert arguments_of(command.__doc__).keys() <= command.__annotations__.keys()


def test_rows_of_a_docstring_make_options() -> None:
    def paint(room: str, coats: int = 1, wet_paint: bool = False, hue: str | None = None) -> None:
        """Paint a room.

        Args:
            room (argument, ROOM): The room.
            coats (--layers, -n, N, min=1): How many layers: one,
                or more.
            wet_paint: Hang up a sign.
            hue (hidden, $HUE): Its colour.
        """

    told = typer.Typer()
    told.command()(command_of(paint))
    rooms, coats, wet, hue = typer.main.get_command(told).params[:4]

    assert (rooms.param_type_name, rooms.metavar) == ("argument", "ROOM")
    assert (coats.opts, coats.metavar, coats.min) == (["--layers", "-n"], "N", 1)  # type: ignore[attr-defined]
    assert coats.help == "How many layers: one, or more."  # type: ignore[attr-defined]
    assert (wet.opts, wet.secondary_opts) == (["--wet-paint"], [])
    assert (hue.envvar, hue.hidden) == ("HUE", True)  # type: ignore[attr-defined]
