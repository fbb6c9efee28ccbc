"""``fdbqueue troubles``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.cli.known import complete_queue
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Url, named
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.tables import line_of
from fdbqueue.cli.troubling import print_troubles, trouble_record
from fdbqueue.reads.trouble import Troubles


def troubles(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]", help="Only this queue: its name, or key tuple as JSON.", autocompletion=complete_queue
        ),
    ] = None,
    within: Annotated[
        str | None, typer.Option("--within", metavar="NAME", help="Only queues below this name, or key tuple as JSON.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0.0, help="Oldest age of a first item, in seconds. Default: any.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List what is wrong with the queues, the worst first, each with the command that comes next.

    A problem needs somebody now. A warning wants a look. A note says what an operator has set, or what ends by itself.
    Exits with 1 if there is a problem.

    Example: fdbqueue troubles
    """
    if queue is not None and within is not None:
        raise typer.BadParameter("give a queue or --within, and not both", param_hint="--within")
    with opened(url) as db:
        found = read_troubles(db, queue=queue, within=within, max_age=max_age)
    show(found, as_json)
    if found.worst == "problem":
        raise typer.Exit(errors.EMPTY)


def read_troubles(db: Any, *, queue: str | None = None, within: str | None = None, max_age: float | None) -> Troubles:
    """Return the troubles of one queue, or of those below a name, or of all."""
    one, below = (None if name is None else named(name) for name in (queue, within))
    return fdbqueue.troubles(db, one, within=below, max_age=max_age)


def show(found: Troubles, as_json: bool) -> None:
    """Print troubles: lines on a terminal, JSON lines elsewhere."""
    if wants_table(as_json):
        print_troubles(found)
    else:
        write_lines([line_of(trouble_record(one)) for one in found])
