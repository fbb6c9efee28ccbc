"""``fdbqueue redrive``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import DeadItems, QueueName, Url, position, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.sessioning import tell_none
from fdbqueue.cli.where import ErrorBegins, Where, check_chosen, chosen_positions
from fdbqueue.layers.leases import Leases


def redrive(
    queue: QueueName,
    items: DeadItems = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Largest number of items. Default: all.")
    ] = None,
    tail: Annotated[
        bool, typer.Option("--tail", help="Put them behind the last item instead of in their old places.")
    ] = False,
    where: Where = None,
    error: ErrorBegins = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    url: Url = None,
) -> None:
    """Make dead letters available again, with their attempts reset to 0. Exits with 1 if there was none.

    Example: fdbqueue redrive orders --where "color = 'red'" --limit 100
    """
    leases = Leases(queue_of(queue))
    redriven = partial(leases.dead.redrive, to="tail" if tail else "place")
    chosen = [position(item) for item in items] if items else None
    check_chosen(where, items, everything, error=error)
    note = "Some dead letters may be redriven already; `fdbqueue dead` prints those that are left."
    with opened_queue(url, leases.queue) as db, noted(note):
        if where is None and error is None:
            moved = redriven(db, chosen, limit=limit)
        else:
            lists = chosen_positions(db, where, leases.layout, ("dead",), limit, error)
            moved = sum(redriven(db, found) for found in lists)
        if not moved:
            such = "" if everything else "such "
            tell_none(db, leases.queue, f"{such}dead letters to redrive", "dead")
            raise typer.Exit(errors.EMPTY)
    say(f"{counted(moved, 'dead letter')} redriven")
