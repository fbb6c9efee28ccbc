"""``fdbqueue bury``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.byposition import Items, present_state
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import QueueName, Url, position, queue_of
from fdbqueue.cli.output import say
from fdbqueue.layers.leases import Leases


def bury(
    queue: QueueName,
    items: Items,
    error: Annotated[
        str | None,
        typer.Option("--error", help="Why, for people who look at the dead letters. Default: the item's last error."),
    ] = None,
    url: Url = None,
) -> None:
    """Make available items dead letters, also one that can't be read. Exits with 1 if one is not available.

    For an item that holds up the queue: the error of a take names it. `fdbqueue dead` shows it, and `fdbqueue cancel`
    removes it for good.

    Example: fdbqueue bury orders 7:72616e646f6d --error "of an older program"
    """
    chosen = [position(item) for item in items]
    leases = Leases(queue_of(queue))
    with opened_queue(url, leases.queue) as db:
        buried = [leases.dead.bury(db, one, error=error) for one in chosen]
        missing = [one for one, done in zip(chosen, buried, strict=True) if not done]
        states = {one: present_state(db, leases.queue, one) for one in missing}
    say(f"{counted(sum(buried), 'item')} buried")
    for one, state in states.items():
        typer.echo(f"The item {one.text} is not available{state and f': it {state}'}.", err=True)
    if missing:
        raise typer.Exit(errors.EMPTY)
