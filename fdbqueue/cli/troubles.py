"""``fdbqueue troubles``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.cli.known import complete_queue
from fdbqueue.cli.opening import check_known, opened
from fdbqueue.cli.options import AsJson, Url, named, queue_of
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.tables import line_of
from fdbqueue.cli.troubling import print_troubles, trouble_record
from fdbqueue.engine.steps import run


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
    """List the troubles of all queues, the worst first, each with the next command.

    A problem needs somebody now. A warning wants a look. A note tells of a pause, or of something that ends soon.
    Exits with 1 if there is a problem.

    Example: fdbqueue troubles
    """
    if queue is not None and within is not None:
        raise typer.BadParameter("give a queue or --within, and not both", param_hint="--within")
    with opened(url) as db:
        if queue is not None:
            own = queue_of(queue)
            run(own.read(db, partial(check_known, layout=own.layout)))
        one = None if queue is None else named(queue)
        below = None if within is None else named(within, "--within")
        found = fdbqueue.troubles(db, one, within=below, max_age=max_age)
    if wants_table(as_json):
        print_troubles(found)
    else:
        write_lines([line_of(trouble_record(trouble)) for trouble in found])
    if found.worst == "problem":
        raise typer.Exit(errors.EMPTY)
