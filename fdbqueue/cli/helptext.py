"""The help of the commands, at every width of the terminal."""

from __future__ import annotations

import difflib
import inspect
import shutil
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

NARROW_COLUMNS = 60
"""On a narrower terminal the tables of options would cut off the options' names."""
NEAR = 0.75
"""How like two options are that may be mistaken for each other. "--port" and "--cert" have 0.67."""
OTHER_WORDS = {
    **dict.fromkeys(("--address", "--bind", "--port"), ("--listen",)),
    **dict.fromkeys(("--count", "--max", "--number"), ("--limit",)),
    **dict.fromkeys(("--cluster", "--cluster-file", "--database", "--db"), ("--url",)),
    **dict.fromkeys(("--force", "--assume-yes"), ("--yes",)),
    **dict.fromkeys(("--filter", "--headers"), ("--where",)),
    **dict.fromkeys(("--output", "--file"), ("--to", "--from")),
    **dict.fromkeys(("--timeout", "--wait-for"), ("--wait", "--patience")),
    "--reason": ("--error",),
}
"""Options of other tools, and ours for the same."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""The class of all errors about arguments, which typer does not export."""
NAME_COLUMNS = 14
"""On a narrow terminal a longer name gets a line of its own."""


def reflowed(docstring: str | None) -> str:
    """Join the lines of each paragraph, so that the help wraps at the terminal's width.

    >>> reflowed('''Print items.
    ...
    ...     This sentence
    ...     has two lines.
    ...     ''')
    'Print items.\\n\\nThis sentence has two lines.'
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def with_limits(arguments: list[str]) -> list[str]:
    """Return arguments in which every `--wait` has a number of seconds: infinity if none follows it.

    >>> with_limits(["orders", "--wait", "7"]), with_limits(["orders", "--wait", "--url", "fdb:"])
    (['orders', '--wait', '7'], ['orders', '--wait', 'inf', '--url', 'fdb:'])
    """
    given: list[str] = []
    for at, argument in enumerate(arguments):
        if argument == "--":
            return [*given, *arguments[at:]]
        given.append(argument)
        if argument == "--wait" and not _is_number(arguments[at + 1 : at + 2]):
            given.append("inf")
    return given


def likely_options(typed: str, options: list[str]) -> list[str]:
    """Return the options that are probably meant by one that is not there: by their meanings, else by their letters.

    >>> likely_options("--port", ["--listen", "--cert", "--url"]), likely_options("--limt", ["--limit", "--url"])
    (['--listen'], ['--limit'])
    """
    meant = [name for name in OTHER_WORDS.get(typed, ()) if name in options]
    return meant or difflib.get_close_matches(typed, options, cutoff=NEAR)


def _is_number(following: list[str]) -> bool:
    try:
        float(*following)
    except ValueError:
        return False
    return bool(following)


class Command(TyperCommand):
    """A command whose help has no tables on a narrow terminal, and whose option `--wait` may lack its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        waits = any("--wait" in parameter.opts for parameter in self.params)
        try:
            return super().parse_args(ctx, with_limits(args) if waits else args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # a word of the parser of values
            raise
        except USAGE_ERROR as error:
            if hasattr(error, "possibilities"):  # there is no such option
                own = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
                error.possibilities = likely_options(error.option_name, own)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        columns = shutil.get_terminal_size().columns
        if columns < NARROW_COLUMNS:
            self.rich_markup_mode = None
            formatter.width = columns - 1
            formatter.write_dl = partial(formatter.write_dl, col_max=NAME_COLUMNS)
        super().format_help(ctx, formatter)
