"""``fdbqueue redrive``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import DeadItems, QueueName, Url, position, queue_of
from fdbqueue.cli.output import say
from fdbqueue.layers.leases import Leases


def redrive(
    queue: QueueName,
    items: DeadItems = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most; default: all.")] = None,
    tail: Annotated[bool, typer.Option("--tail", help="Behind the last item, not where they stood.")] = False,
    url: Url = None,
) -> None:
    """Make dead letters available again, as if they were never tried. Exits with 1 if there was none."""
    letters = Leases(queue_of(queue)).dead
    chosen = [position(item) for item in items] if items else None
    note = "Some dead letters may be redriven already; `fdbqueue dead` prints those that are left."
    with opened(url) as db, noted(note):
        moved = letters.redrive(db, chosen, limit=limit, to="tail" if tail else "place")
    say(f"{moved:,} dead letters redriven")
    if not moved:
        raise typer.Exit(errors.EMPTY)
