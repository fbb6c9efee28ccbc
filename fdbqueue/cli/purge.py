"""``fdbqueue purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import DeadItems, QueueName, Url, Yes, position, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.sessioning import tell_none
from fdbqueue.cli.where import ErrorBegins, Where, check_chosen, chosen_positions, confirm_removal
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
    error: ErrorBegins = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    url: Url = None,
    yes: Yes = False,
) -> None:
    """Remove dead letters for good. Asks first, with their number. Exits with 1 if there was none.

    Example: fdbqueue purge orders --all --older-than 604800
    """
    leases = Leases(queue_of(queue))
    chosen = [position(item) for item in items] if items else None
    check_chosen(where, items, everything, error=error)
    with opened_queue(url, leases.queue) as db:
        there = leases.queue.stats(db).dead
        if not there:
            tell_none(db, leases.queue, "dead letters to remove", "dead")
            raise typer.Exit(errors.EMPTY)
        wanted: list[list[Position]] | None = None
        if where is not None or error is not None:
            wanted = list(chosen_positions(db, where, leases.layout, ("dead",), limit, error))
            there = sum(map(len, wanted))
        elif chosen is not None:
            there = len(set(chosen))
        if there:
            confirm_removal(f"up to {min(filter(None, (there, limit))):,} dead letters of {queue}", yes=yes)
        with noted("Some dead letters may be removed already; `fdbqueue dead` prints those that are left."):
            if wanted is None:
                removed = leases.dead.purge(db, chosen, limit=limit, older_than=older_than)
            else:
                removed = sum(leases.dead.purge(db, found, older_than=older_than) for found in wanted)
        if not removed:
            such = "" if everything and not older_than else "such "
            tell_none(db, leases.queue, f"{such}dead letters to remove", "dead")
            raise typer.Exit(errors.EMPTY)
    say(f"{counted(removed, 'dead letter')} removed")
