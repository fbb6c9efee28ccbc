"""``fdbqueue clear``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from fdbqueue.cli.input import is_terminal
from fdbqueue.cli.known import check_known
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.engine.steps import run
from fdbqueue.renamed import renamed


def clear(
    queue: QueueName,
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove all items and everything else that the queue owns, including its counters. Asks first.

    Example: fdbqueue clear orders
    """
    with opened(url) as db:
        cleared = queue_of(queue)
        if not run(cleared.read(db, partial(renamed, layout=cleared.layout))):
            check_known(db, cleared)
        held = cleared.stats(db)
        items = held.available + held.leased + held.delayed + held.dead + held.claimed
        if not yes:
            if not is_terminal(sys.stdin):
                raise typer.BadParameter(
                    f"{queue} has {items:,} items; to remove them without being asked, say --yes",
                    param_hint="clear",
                )
            typer.confirm(f"Remove the {items:,} items of {queue} and all that belongs to it?", abort=True, err=True)
        cleared.clear(db)
    say(f"{items:,} items removed")
