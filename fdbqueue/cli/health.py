"""``fdbqueue health``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.metrics import Exclude, Include
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Url
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.remedies import in_shell
from fdbqueue.cli.tables import print_pairs
from fdbqueue.cli.values import encode_json


def health(
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0.0, help="Oldest age of a first item, in seconds. Default: any.")
    ] = None,
    max_commit: Annotated[
        float, typer.Option("--max-commit", min=0.001, help="Longest time of a commit, in seconds.")
    ] = 2.0,
    max_skew: Annotated[
        float,
        typer.Option("--max-skew", min=0.0, help="How far an item's time may be ahead of this clock, in seconds."),
    ] = 5.0,
    patience: Annotated[
        float, typer.Option("--patience", min=0.1, help="How many seconds the database may take for an answer.")
    ] = 5.0,
    include: Include = None,
    exclude: Exclude = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Look whether the database answers, and whether its queues are well. For probes, and for people at night.

    Exits with 0 if all is well, with 1 if something is wrong, and with 3 if the database does not answer. It looks at
    the time of a commit, the clocks, the oldest item, expired leases that nobody ends, and items that can't be read.

    Dead letters, pauses, items at their third attempt or later, and sessions that wait for more than 10 minutes are
    warnings: they change no exit code.

    Example: fdbqueue health --max-age 600
    """
    from fdbqueue.observe.figures import Wanted
    from fdbqueue.observe.health import Limits, check_health

    try:
        wanted = Wanted(include or (), exclude or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--include / --exclude") from error
    with opened(url, patience=patience) as db:
        report = check_health(db, wanted=wanted, limits=Limits(max_age, max_commit, max_skew))
    record = report.record()
    record["problems"] = [_in_shell(problem, report.stuck) for problem in report.problems]
    if wants_table(as_json):
        shown = {name: value for name, value in record.items() if value not in (None, "", {}, [])}
        print_pairs("health", {name: _cell(value) for name, value in shown.items()})
    else:
        write_lines([encode_json(record).encode() + b"\n"])
    if not report.ok:
        raise typer.Exit(errors.EMPTY)


def _in_shell(problem: str, stuck: Iterable[str]) -> str:
    """Return a problem with a command that can be copied: with its queue's name."""
    told = in_shell(problem)
    for queue in stuck:
        if told.startswith(f"{queue} has "):
            return told.replace("fdbqueue watchdog --once", f"fdbqueue watchdog {shlex.quote(queue)} --once")
    return told


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        told = [(name, one) for name, some in value.items() for one in (some if isinstance(some, list) else [some])]
        return "\n".join(f"{name}: {one}" for name, one in told)
    return value
