"""``fdbqueue ack``."""

from __future__ import annotations

import itertools

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.handles import Handles, handles_of, told_lost
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.engine.api import Database
from fdbqueue.errors import LeaseLost
from fdbqueue.layers.lease import LeaseHandle
from fdbqueue.layers.leases import Leases

BATCH_ITEMS = 500


def ack(queue: QueueName, handles: Handles = None, url: Url = None) -> None:
    """Let leased items be gone: they are done. Exits with 5 if leases are lost; those are named, the others acked.

    A line of standard input is a handle, or what `fdbqueue lease` printed.
    """
    given = handles_of(handles)
    leases = Leases(queue_of(queue))
    acked = lost = 0
    with opened(url) as db:
        try:
            for group in given:
                while batch := list(itertools.islice(group, BATCH_ITEMS)):
                    held = _ack(leases, db, batch)
                    acked += held
                    lost += len(batch) - held
        except BadValue as error:
            raise BadValue(f"{error} {acked:,} items were acked.") from error
    say(f"{acked:,} items acked")
    if lost:
        raise typer.Exit(errors.LOST)


def _ack(leases: Leases, db: Database, batch: list[LeaseHandle]) -> int:
    """Ack those that are not lost, and tell which are; return how many were acked."""
    while batch:
        try:
            leases.ack_many(db, batch)
            break
        except LeaseLost as error:
            for handle in batch:
                if handle.position in error.lost:
                    told_lost(handle)
            batch = [handle for handle in batch if handle.position not in error.lost]
    return len(batch)
