"""``fdbqueue ack``."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.handles import Handles, apart, bundles, handles_of, told_lost, with_those_held
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.engine import FDBError
from fdbqueue.errors import FdbQueueError, LeaseLost
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.sessions import SessionHandle, Sessions

BUNDLE_ITEMS = 500


def ack(queue: QueueName, handles: Handles = None, url: Url = None) -> None:
    """Acknowledge leased items: their work is done. Exits with 5 if leases are lost.

    It prints the lost leases and acks the others.

    A line of standard input is a handle, or a line that `fdbqueue lease` printed.

    Example: fdbqueue ack orders < leases.jsonl
    """
    given = handles_of(handles)
    leases = Leases(queue_of(queue))
    acked = taken = 0
    with opened(url) as db:
        try:
            for bundle in chain.from_iterable(bundles(group, BUNDLE_ITEMS) for group in given):
                taken += len(bundle)
                plain, of_sessions = apart(bundle)
                acked += len(with_those_held(partial(leases.ack_many, db), plain, on_lost=told_lost))
                acked += _ack_sessions(db, sessions_of(leases.queue), of_sessions)
        except BadValue as error:
            raise BadValue(f"{error} {acked:,} items were acked.") from error
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if acked:
                typer.echo(f"{acked:,} items were acked before.", err=True)
            raise
    if not taken:
        typer.echo("Standard input had no handles of leases: nothing was acked.", err=True)
    say(f"{acked:,} items acked")
    if acked < taken:
        raise typer.Exit(errors.LOST)


def _ack_sessions(db: Any, sessions: Sessions, handles: list[SessionHandle]) -> int:
    """Ack items of sessions, one after the other. Return how many were not lost."""
    acked = 0
    for handle in handles:
        try:
            sessions.ack(db, handle)
            acked += 1
        except LeaseLost:
            told_lost(handle)
    return acked
