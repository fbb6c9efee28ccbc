"""``fdbqueue ack``."""

from __future__ import annotations

import itertools

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.handles import Handles, handles_of
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.engine import open
from fdbqueue.errors import LeaseLost
from layers.leases import Leases

BATCH_ITEMS = 500


def ack(queue: QueueName, handles: Handles = None, url: Url = None) -> None:
    """Let leased items be gone: they are done. Exits with 5 if leases are lost; those are named, the others acked.

    A line of standard input is a handle, or what `fdbqueue lease` printed.
    """
    given = handles_of(handles)
    leases = Leases(queue_of(queue))
    acked = lost = 0
    with open(url) as db:
        while batch := list(itertools.islice(given, BATCH_ITEMS)):
            try:
                leases.ack_many(db, batch)
            except LeaseLost as error:
                typer.echo(f"Error: {error}", err=True)
                lost += len(error.lost)
                batch = [handle for handle in batch if handle.position not in error.lost]
                leases.ack_many(db, batch)
            acked += len(batch)
    say(f"{acked:,} items acked")
    if lost:
        raise typer.Exit(errors.LOST)
