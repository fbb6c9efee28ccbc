"""``fdbqueue purge``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.input import is_terminal
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import DeadItems, QueueName, Url, Yes, position, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.where import Where, chosen_positions, refuse_both
from fdbqueue.layers.leases import Leases


def purge(
    queue: QueueName,
    items: DeadItems = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Largest number of items. Default: all.")
    ] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0.0, help="Only those that died at least this many seconds ago.")
    ] = 0.0,
    where: Where = None,
    url: Url = None,
    yes: Yes = False,
) -> None:
    """Remove dead letters for good. Asks first. Exits with 1 if there was none.

    Example: fdbqueue purge orders --older-than 604800
    """
    leases = Leases(queue_of(queue))
    chosen = [position(item) for item in items] if items else None
    refuse_both(where, items)
    with opened(url) as db:
        there = leases.queue.stats(db).dead
        if not there:
            raise typer.Exit(errors.EMPTY)
        if not yes:
            what = f"up to {min(filter(None, (there, limit, len(chosen or ())))):,} dead letters"
            if not is_terminal(sys.stdin):
                raise typer.BadParameter(f"to remove {what} of {queue} unasked, say --yes", param_hint="purge")
            typer.confirm(f"Remove {what} of {queue} for good?", abort=True, err=True)
        with noted("Some dead letters may be removed already; `fdbqueue dead` prints those that are left."):
            if where is None:
                removed = leases.dead.purge(db, chosen, limit=limit, older_than=older_than)
            else:
                lists = chosen_positions(db, where, leases.layout, ("dead",), limit)
                removed = sum(leases.dead.purge(db, found, older_than=older_than) for found in lists)
    say(f"{removed:,} dead letters removed")
    if not removed:
        raise typer.Exit(errors.EMPTY)
